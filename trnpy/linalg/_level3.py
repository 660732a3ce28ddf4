"""Products and triangular systems as BLAS defines them, under one name for all types: gemm, symm, syrk, trmm, trsm.

Each takes f2py's arguments and calls the routine of ``trnpy.linalg.blas`` for the dtype of the arrays.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from trnpy.linalg import blas

__all__ = ["gemm", "symm", "syrk", "trmm", "trsm"]


def _routine(name: str, *arrays: Any) -> Callable[..., np.ndarray]:
    found: Callable[..., np.ndarray] = blas.get_blas_funcs(name, [np.asanyarray(a) for a in arrays if a is not None])
    return found


def gemm(
    alpha: complex, a: Any, b: Any, beta: complex = 0.0, c: Any = None, trans_a: int = 0, trans_b: int = 0,
    overwrite_c: int = 0,
) -> np.ndarray:  # fmt: skip
    """Product of two matrices, ``alpha op(a) op(b) + beta c``.

    Parameters
    ----------
    alpha, beta : number
        Real factors unless the arrays are complex.
    a, b : (m, k) and (k, n) array_like, after op
        Computed in float32, float64, complex64 or complex128: in the type that SciPy's ``get_blas_funcs`` chooses for
        the arrays: float32 for float16, float64 for integers.
    c : (m, n) array_like, optional
        The matrix multiplied by ``beta``; zero if not given.
    trans_a, trans_b : {0, 1, 2}, optional
        op: the matrix itself, its transpose, or its conjugate transpose.
    overwrite_c : {0, 1}, optional
        Whether the result may overwrite `c`, as it does if that is in Fortran order and of the routine's type.

    Returns
    -------
    (m, n) ndarray
        In Fortran order.

    Raises
    ------
    f2py's error class of the installed SciPy
        If the shapes do not match, or for any other option value.

    References
    ----------
    J. J. Dongarra, J. Du Croz, S. Hammarling and I. S. Duff, "A set of level 3 basic linear algebra subprograms",
    ACM Trans. Math. Softw. 16, 1-17 (1990).

    Examples
    --------
    >>> import numpy as np
    >>> import trnpy.linalg
    >>> trnpy.linalg.gemm(2.0, np.eye(2), [[1.0, 2.0], [3.0, 4.0]])
    array([[2., 4.],
           [6., 8.]])
    """
    return _routine("gemm", a, b, c)(alpha, a, b, beta, c, trans_a, trans_b, overwrite_c)


def symm(
    alpha: complex, a: Any, b: Any, beta: complex = 0.0, c: Any = None, side: int = 0, lower: int = 0,
    overwrite_c: int = 0,
) -> np.ndarray:  # fmt: skip
    """Product with a symmetric matrix, ``alpha a b + beta c`` or, with ``side=1``, ``alpha b a + beta c``.

    Parameters
    ----------
    alpha, beta : number
        Real factors unless the arrays are complex.
    a : (m, m) array_like, or (n, n) with ``side=1``
        Symmetric, also if it is complex. One triangle is read.
    b : (m, n) array_like
        The types of arrays are those of `gemm`.
    c : (m, n) array_like, optional
        The matrix multiplied by ``beta``; zero if not given.
    side : {0, 1}, optional
        0 if `a` is the left factor, 1 if it is the right one.
    lower : {0, 1}, optional
        Whether the upper or the lower triangle of `a` is read.
    overwrite_c : {0, 1}, optional
        Whether the result may overwrite `c`.

    Returns
    -------
    (m, n) ndarray
        In Fortran order.

    Raises
    ------
    f2py's error class of the installed SciPy
        As in `gemm`.

    References
    ----------
    As in `gemm`.

    Examples
    --------
    >>> import trnpy.linalg
    >>> trnpy.linalg.symm(1.0, [[1.0, 2.0], [0.0, 3.0]], [[1.0], [1.0]])
    array([[3.],
           [5.]])
    """
    return _routine("symm", a, b, c)(alpha, a, b, beta, c, side, lower, overwrite_c)


def syrk(
    alpha: complex, a: Any, beta: complex = 0.0, c: Any = None, trans: int = 0, lower: int = 0, overwrite_c: int = 0
) -> np.ndarray:
    """One triangle of ``alpha a a^T + beta c`` or, with ``trans=1``, of ``alpha a^T a + beta c``.

    Parameters
    ----------
    alpha, beta : number
        Real factors unless the arrays are complex.
    a : (n, k) array_like, or (k, n) with ``trans=1``
        The types of arrays are those of `gemm`. A complex `a` is transposed, not conjugated.
    c : (n, n) array_like, optional
        The matrix multiplied by ``beta``; zero if not given.
    trans : {0, 1}, optional
        0 for the first product, 1 for the second.
    lower : {0, 1}, optional
        Whether the upper or the lower triangle is computed.
    overwrite_c : {0, 1}, optional
        Whether the result may overwrite `c`.

    Returns
    -------
    (n, n) ndarray
        In Fortran order; the other triangle is copied from `c`, or zero.

    Raises
    ------
    f2py's error class of the installed SciPy
        As in `gemm`.

    References
    ----------
    As in `gemm`.

    Examples
    --------
    >>> import trnpy.linalg
    >>> trnpy.linalg.syrk(1.0, [[1.0, 2.0], [3.0, 4.0]])
    array([[ 5., 11.],
           [ 0., 25.]])
    """
    return _routine("syrk", a, c)(alpha, a, beta, c, trans, lower, overwrite_c)


def trmm(
    alpha: complex, a: Any, b: Any, side: int = 0, lower: int = 0, trans_a: int = 0, diag: int = 0, overwrite_b: int = 0
) -> np.ndarray:
    """Product with a triangular matrix, ``alpha op(a) b`` or, with ``side=1``, ``alpha b op(a)``.

    Parameters
    ----------
    alpha : number
        A real factor unless the arrays are complex.
    a : (m, m) array_like, or (n, n) with ``side=1``
        One triangle is read.
    b : (m, n) array_like
        The types of arrays are those of `gemm`.
    side : {0, 1}, optional
        0 if `a` is the left factor, 1 if it is the right one.
    lower : {0, 1}, optional
        Whether the upper or the lower triangle of `a` is read.
    trans_a : {0, 1, 2}, optional
        op: the matrix itself, its transpose, or its conjugate transpose.
    diag : {0, 1}, optional
        Whether the diagonal of `a` is read or assumed to be ones.
    overwrite_b : {0, 1}, optional
        Whether the result may overwrite `b`.

    Returns
    -------
    (m, n) ndarray
        In Fortran order.

    Raises
    ------
    f2py's error class of the installed SciPy
        As in `gemm`.

    References
    ----------
    As in `gemm`.

    Examples
    --------
    >>> import trnpy.linalg
    >>> trnpy.linalg.trmm(1.0, [[1.0, 2.0], [0.0, 3.0]], [[1.0], [1.0]])
    array([[3.],
           [3.]])
    """
    return _routine("trmm", a, b)(alpha, a, b, side, lower, trans_a, diag, overwrite_b)


def trsm(
    alpha: complex, a: Any, b: Any, side: int = 0, lower: int = 0, trans_a: int = 0, diag: int = 0, overwrite_b: int = 0
) -> np.ndarray:
    """Solution x of ``op(a) x = alpha b`` or, with ``side=1``, of ``x op(a) = alpha b``, for a triangular `a`.

    As in BLAS there is no test for a zero on the diagonal, and the result then is not finite.

    Parameters
    ----------
    alpha, a, b, side, lower, trans_a, diag, overwrite_b
        As in `trmm`.

    Returns
    -------
    (m, n) ndarray
        In Fortran order.

    Raises
    ------
    f2py's error class of the installed SciPy
        As in `gemm`.

    References
    ----------
    As in `gemm`.

    Examples
    --------
    >>> import trnpy.linalg
    >>> trnpy.linalg.trsm(1.0, [[1.0, 2.0], [0.0, 3.0]], [[3.0], [3.0]])
    array([[1.],
           [1.]])
    """
    return _routine("trsm", a, b)(alpha, a, b, side, lower, trans_a, diag, overwrite_b)
