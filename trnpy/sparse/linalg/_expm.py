"""expm of a dense matrix: SciPy has two functions of this name, and the device path of both is that of scipy.linalg."""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy.sparse import linalg as scipy_linalg

from trnpy._call.dispatch import Op, Problem, Reason, Unsupported
from trnpy.linalg import _expm
from trnpy.linalg._matrices import SMALL, form


def prepare_expm(A: Any) -> Problem:
    if type(A) is not np.ndarray or A.ndim != 2:
        raise Unsupported(Reason.LAYOUT, f"{type(A).__name__} is not one dense matrix")
    return _expm.prepare_expm(A)


OPS = (Op("scipy.sparse.linalg.expm", scipy_linalg.expm, prepare_expm, small=SMALL, form=form),)
