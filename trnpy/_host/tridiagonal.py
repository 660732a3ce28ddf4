"""All eigenpairs of a real symmetric matrix on the host; its tridiagonal form determines the method.

?syevr and ?syevd reduce the matrix to a tridiagonal T, compute the eigenvectors of T, and transform them back. They
differ in the middle step. Divide and conquer (?stedc) is up to eight times faster than MRRR (?stemr, SciPy's default),
unless T splits into parts, as for a matrix of low rank: MRRR then has little to do, while divide and conquer still
merges the parts. For large matrices this module applies the reflectors itself, 64 at a time in plain matrix products;
?ormtr applies 32 at a time and splits them.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable, Mapping
from ctypes import byref, c_char_p, c_double, c_float, c_int, c_void_p
from typing import Any, NamedTuple

import numpy as np

from trnpy._base.records import record
from trnpy._engine import lapack as _plain
from trnpy._settings.tile import length

BLOCK = length(24, least=2)  # columns of ?sytrd's blocks: to n = 512 4 % faster than ilaenv's 32, then as fast
WIDE = length(64, least=2)  # reflectors applied at once: products run at 3/4 of their best rate, preparing takes 1/20
LARGE = length(700)  # rows from which applying WIDE at once is faster than ?ormtr, by 1.15 from n = 1000
# From SHARED rows, multiples of ALIKE are faster, too: ?ormtr copies rows, whose elements then share cache sets.
SHARED, ALIKE = length(512), length(128)
COPIED = length(64)  # columns of a triangle that are transposed at once, within a core's cache
STEMR = 18  # the workspace of ?stemr is 18 n numbers; ?stedc needs n^2 + 4 n + 1
ORMTR_BLOCK, ORMTR_SPACE = 32, 65 * 64  # the workspace of ?ormtr is ORMTR_BLOCK n + ORMTR_SPACE
APART = 1 / 3  # share of negligible couplings of T above which MRRR wins, by 1.2 at 9/10, 1.05 at 1/2 (n = 100 to 400)
NEGLIGIBLE = 8.0  # times eps ||T||: smaller couplings are rounding errors of the reduction

ABOVE = np.triu(np.ones((WIDE, WIDE), bool))  # above the diagonal and on it

_pointer = ctypes.pythonapi.PyCapsule_GetPointer
_pointer.restype, _pointer.argtypes = c_void_p, (ctypes.py_object, c_char_p)
_signature = ctypes.pythonapi.PyCapsule_GetName
_signature.restype, _signature.argtypes = c_char_p, (ctypes.py_object,)


class OutOfRange(ArithmeticError):
    """Raised if the largest entry is not finite, or so large or small that ?syevr would scale the matrix first."""


@record()
class _Lapack:
    """LAPACK's functions, called by address, because SciPy's wrappers would copy each operand between the steps."""

    sytrd: Callable[..., None]
    stemr: Callable[..., None]
    stedc: Callable[..., None]
    ormtr: Callable[..., None]
    larft: Callable[..., None]
    gemm: Callable[..., None]
    one: object  # pointers to the numbers 1, 0 and -1
    zero: object
    minus: object
    low: float  # ?syevr scales matrices whose largest entry is not between low and 1 / low
    noise: float  # couplings below noise * ||T|| are zero to rounding


@functools.cache
def _lapack(dtype: np.dtype) -> _Lapack:
    kind = {"f": "s", "d": "d"}[dtype.char]
    from scipy.linalg import cython_blas, cython_lapack

    capsules: Mapping[str, Any] = {**cython_lapack.__pyx_capi__, **cython_blas.__pyx_capi__}

    def routine(name: str) -> Callable[..., None]:
        capsule = capsules[kind + name]
        return ctypes.CFUNCTYPE(None)(_pointer(capsule, _signature(capsule)))

    machine, scalar = np.finfo(dtype), {"f": c_float, "d": c_double}[dtype.char]
    low = float(np.sqrt(machine.tiny / machine.eps))
    return _Lapack(
        routine("sytrd"), routine("stemr"), routine("stedc"), routine("ormtr"), routine("larft"), routine("gemm"),
        byref(scalar(1)), byref(scalar(0)), byref(scalar(-1)), low, NEGLIGIBLE * float(machine.eps),
    )  # fmt: skip


def _int(i: int) -> object:
    return byref(c_int(i))


def _address(a: np.ndarray) -> c_void_p:
    return c_void_p(a.__array_interface__["data"][0])


def eigh(a: np.ndarray, lower: bool, dtype: np.dtype) -> tuple[np.ndarray, np.ndarray]:
    """Eigenvalues (n,), ascending, and orthonormal eigenvectors (n, n) of the symmetric a (n, n), from one triangle.

    ``dtype``: float32 or float64. OutOfRange if entries are not finite, or too large or too small to be squared;
    _host.LinAlgError if a step of LAPACK fails. LAPACK Users' Guide, 3rd ed., sec. 2.4.4.
    """
    lapack, n = _lapack(dtype), len(a)
    largest = max(float(a.max()), -float(a.min()))
    if not (largest == 0 or lapack.low < largest < 1 / lapack.low):
        raise OutOfRange(f"largest entry {largest:.2g}")
    products = n >= LARGE or (n >= SHARED and n % ALIKE == 0)
    # If products apply the reflectors, this array is first the matrix and, after they are copied, workspace.
    space = np.empty(n * n + (2 * WIDE * n if products else 0), dtype)
    t = np.empty((3, n), dtype)  # diagonal, off-diagonal, scales of the reflectors
    # Always reduce a lower triangle, because ?sytrd takes up to a third longer for an upper one.
    q = space[: n * n].reshape(n, n, order="F")
    for j in range(0, n, COPIED):
        q[j:, j : j + COPIED] = (a if lower else a.T)[j:, j : j + COPIED]
    work, rows = np.empty(BLOCK * n, dtype), _int(n)
    lapack.sytrd(
        c_char_p(b"L"), rows, _address(q), rows, *map(_address, t), _address(work), _int(len(work)), byref(c_int())
    )
    if products:
        reflectors = _reflectors(lapack, q, t[2])
        w, x = _tridiagonal(lapack, t[0], t[1], space)
        _reflect(lapack, reflectors, x, space)
        return w, x
    w, x = _tridiagonal(lapack, t[0], t[1], np.empty(n * n + STEMR * n, dtype))
    work = np.empty(ORMTR_BLOCK * n + ORMTR_SPACE, dtype)
    lapack.ormtr(
        c_char_p(b"L"), c_char_p(b"L"), c_char_p(b"N"), rows, rows, _address(q), rows, _address(t[2]), _address(x),
        rows, _address(work), _int(len(work)), byref(c_int()),
    )  # fmt: skip
    return w, x


class _Reflectors(NamedTuple):
    """I - V T V^T, acting on the last m of n rows: v (m, k) is unit lower trapezoidal, t (k, k) upper triangular."""

    v: np.ndarray
    t: np.ndarray


def _reflectors(lapack: _Lapack, q: np.ndarray, scales: np.ndarray) -> list[_Reflectors]:
    """The reflectors below the diagonal of q (n, n) in blocks of WIDE; the last of scales (n,) is not used."""
    n, blocks = len(q), []
    free = np.empty((n + WIDE) * n // 2, q.dtype)
    for j in range(0, n - 1, WIDE):
        m, k = n - 1 - j, min(WIDE, n - 1 - j)
        v, free = free[: m * k].reshape(m, k, order="F"), free[m * k :]
        v[...] = q[j + 1 :, j : j + k]
        np.copyto(v[:k], np.eye(k), where=ABOVE[:k, :k])
        t = np.zeros((k, k), v.dtype, order="F")
        lapack.larft(
            c_char_p(b"F"), c_char_p(b"C"), _int(m), _int(k), _address(v), _int(m), _address(scales[j:]), _address(t),
            _int(k),
        )  # fmt: skip
        blocks.append(_Reflectors(v, t))
    return blocks


def _reflect(lapack: _Lapack, blocks: list[_Reflectors], x: np.ndarray, space: np.ndarray) -> None:
    """x (n, n) := the product of all reflectors times x: Golub & Van Loan, 4th ed., sec. 5.1.7; ``space``: 2 WIDE n."""
    n = len(x)
    for v, t in reversed(blocks):
        m, k = v.shape
        y, z = space[: m * k].reshape(m, k, order="F"), space[m * k : (m + n) * k].reshape(n, k, order="F")
        part = x[n - m :]
        _gemm(lapack, lapack.one, v, t, lapack.zero, y)
        _gemm(lapack, lapack.one, part.T, v, lapack.zero, z)
        _gemm(lapack, lapack.minus, y, z.T, lapack.one, part)


def _gemm(lapack: _Lapack, alpha: object, a: np.ndarray, b: np.ndarray, beta: object, c: np.ndarray) -> None:
    """c := alpha a b + beta c. The columns of c are contiguous; in a and b either the columns or the rows are."""
    operands: list[object] = []
    turned = []
    for x in (a, b):
        rows = x.strides[0] != x.itemsize
        turned.append(c_char_p(b"T" if rows else b"N"))
        operands += _address(x), _int(x.strides[0 if rows else 1] // x.itemsize)
    (m, n), k = c.shape, a.shape[1]
    lapack.gemm(
        *turned, _int(m), _int(n), _int(k), alpha, *operands, beta, _address(c), _int(c.strides[1] // c.itemsize)
    )


def _tridiagonal(lapack: _Lapack, d: np.ndarray, e: np.ndarray, work: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Eigenvalues and eigenvectors of T with diagonal d (n,) and off-diagonal e[:-1], both (n,)."""
    n = len(d)
    negligible = _negligible(d, e[:-1], lapack.noise)
    if np.count_nonzero(negligible) > APART * n:
        # Set them to zero: T then splits into parts whose eigenvectors are exactly orthogonal. Otherwise MRRR may leave
        # clusters orthogonal only to 50 n eps.
        found = _mrrr(lapack, d.copy(), np.append(np.where(negligible, 0, e[:-1]), e[-1:]), work)
        if found is not None:
            return found
    w, x = d.copy(), np.empty((n, n), d.dtype, order="F")
    integers, rows, info = np.empty(3 + 5 * n, np.intc), _int(n), c_int()
    lapack.stedc(
        c_char_p(b"I"), rows, _address(w), _address(e), _address(x), rows, _address(work), _int(len(work)),
        _address(integers), _int(len(integers)), byref(info),
    )  # fmt: skip
    if info.value:
        raise _plain.LinAlgError(f"divide and conquer of {n} rows failed: stedc gave {info.value}")
    return w, x


def _negligible(d: np.ndarray, e: np.ndarray, noise: float) -> np.ndarray:
    """Which couplings (off-diagonal elements of T) are zero to rounding."""
    sizes = np.abs(e)
    return np.asarray(sizes <= noise * max(sizes.max(), d.max(), -d.min()))


def _mrrr(lapack: _Lapack, d: np.ndarray, e: np.ndarray, work: np.ndarray) -> tuple[np.ndarray, np.ndarray] | None:
    """Eigenvalues and eigenvectors of T by MRRR; None if it finds no relatively robust representation."""
    n = len(d)
    w, x = np.empty(n, d.dtype), np.empty((n, n), d.dtype, order="F")
    integers, found, info = np.empty(12 * n, np.intc), c_int(), c_int()  # a vector has 2 for support, 10 for work
    rows, zero, all_of_them = _int(n), _int(0), _address(w)
    lapack.stemr(
        c_char_p(b"V"), c_char_p(b"A"), rows, _address(d), _address(e), all_of_them, all_of_them, zero, zero,
        byref(found), all_of_them, _address(x), rows, rows, _address(integers[10 * n :]), byref(c_int(1)),
        _address(work), _int(len(work)), _address(integers), _int(10 * n), byref(info),
    )  # fmt: skip
    return (w, x) if info.value == 0 and found.value == n else None
