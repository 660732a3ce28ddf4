"""Square roots of positive-definite matrices, by eigenvectors (``_positive``): the row."""

from __future__ import annotations

from typing import Any

import numpy as np

from trnpy._call.dispatch import Op, Problem
from trnpy._engine import lapack
from trnpy.linalg import _positive
from trnpy.linalg._matrices import SMALL, refuse_options


def prepare_sqrtm(A: Any, *options: Any, **named: Any) -> Problem:
    refuse_options(options, named)
    return _positive.problem("sqrtm", A, np.sqrt)


def scipy_ops() -> tuple[Op, ...]:
    return (Op("scipy.linalg.sqrtm", lapack.linalg.sqrtm, prepare_sqrtm, small=SMALL, dtypes="fdFD"),)
