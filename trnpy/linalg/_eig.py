"""The rows of scipy.linalg.eig and eigvals, which have no device path. Stacks have a CPU fast path in ``_host``."""

from __future__ import annotations

from typing import Any, NoReturn

from trnpy._call.dispatch import Reason, Unsupported
from trnpy._report.no_path import SCHUR
from trnpy.linalg._reference_forms import scipy_function


def prepare(*args: Any, **kwargs: Any) -> NoReturn:
    raise Unsupported(Reason.NO_PATH, SCHUR)


OPS = tuple(scipy_function(name, prepare, dtypes="") for name in ("eig", "eigvals"))
