"""The host's own routines, bound before anything is patched: what algorithms call for small blocks."""

from typing import Any

import scipy.linalg
from scipy.linalg import LinAlgError, bandwidth, cholesky, eigh, qr, solve_triangular, svd

# f2py objects: no types to check
lapack: Any = scipy.linalg.lapack
blas: Any = scipy.linalg.blas

__all__ = ["LinAlgError", "bandwidth", "blas", "cholesky", "eigh", "lapack", "qr", "solve_triangular", "svd"]
