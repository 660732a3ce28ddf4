"""The host's own routines, bound before anything is patched: what algorithms call for small blocks."""

from typing import Any

import scipy.linalg
from scipy.linalg import LinAlgError, bandwidth, cholesky, eigh, solve_triangular

lapack: Any = scipy.linalg.lapack  # f2py objects: no types to check

__all__ = ["LinAlgError", "bandwidth", "cholesky", "eigh", "lapack", "solve_triangular"]
