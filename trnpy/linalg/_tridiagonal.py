"""All eigenpairs of a real symmetric matrix on the host, the method chosen by the tridiagonal matrix it reduces to.

?syevr and ?syevd reduce the matrix to a tridiagonal T, take its eigenvectors, and turn them back; they differ in the
middle. Divide and conquer (?stedc) is up to eight times faster than MRRR (?stemr, SciPy's default), but for a T that
falls apart, as that of a matrix of low rank does: there MRRR has little to do, while divide and conquer merges the
parts again.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable, Mapping
from ctypes import byref, c_char_p, c_int, c_void_p
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.linalg import cython_lapack

from trnpy import _host

BLOCK = 32  # columns that ?sytrd and ?ormtr work on at once: what ilaenv gives
APART = 1 / 3  # of the couplings of T are negligible: MRRR wins, by 1.2 at 9/10, by 1.05 at 1/2 (n = 100 to 400)
NEGLIGIBLE = 8.0  # times eps ||T||: couplings that are rounding errors of the reduction

_pointer = ctypes.pythonapi.PyCapsule_GetPointer
_pointer.restype, _pointer.argtypes = c_void_p, (ctypes.py_object, c_char_p)
_signature = ctypes.pythonapi.PyCapsule_GetName
_signature.restype, _signature.argtypes = c_char_p, (ctypes.py_object,)


class OutOfRange(ArithmeticError):
    """The largest entry is not finite, or where ?syevr would scale the matrix first."""


@dataclass(frozen=True, slots=True)
class _Lapack:
    """The steps by address: SciPy's wrappers would copy each operand between them."""

    sytrd: Callable[..., None]
    stemr: Callable[..., None]
    stedc: Callable[..., None]
    ormtr: Callable[..., None]
    low: float  # ?syevr scales matrices whose largest entry is not between low and 1 / low
    noise: float  # over ||T||, of couplings that are zero to rounding


@functools.cache
def _lapack(dtype: np.dtype) -> _Lapack:
    kind = {"f": "s", "d": "d"}[dtype.char]
    capsules: Mapping[str, Any] = cython_lapack.__pyx_capi__

    def routine(name: str) -> Callable[..., None]:
        capsule = capsules[kind + name]
        return ctypes.CFUNCTYPE(None)(_pointer(capsule, _signature(capsule)))

    machine = np.finfo(dtype)
    low = float(np.sqrt(machine.tiny / machine.eps))
    return _Lapack(
        routine("sytrd"), routine("stemr"), routine("stedc"), routine("ormtr"), low, NEGLIGIBLE * float(machine.eps)
    )


def _address(a: np.ndarray) -> c_void_p:
    return c_void_p(a.__array_interface__["data"][0])


def eigh(a: np.ndarray, lower: bool, dtype: np.dtype) -> tuple[np.ndarray, np.ndarray]:
    """Eigenvalues (n,), ascending, and orthonormal eigenvectors (n, n) of the symmetric a (n, n) with that triangle.

    ``dtype``: float32 or float64. OutOfRange when entries are not finite, or too large or too small to be squared;
    _host.LinAlgError when a step of LAPACK fails. LAPACK Users' Guide, 3rd ed., sec. 2.4.4.
    """
    lapack, n = _lapack(dtype), len(a)
    largest = max(float(a.max()), -float(a.min()))
    if not (largest == 0 or lapack.low < largest < 1 / lapack.low):
        raise OutOfRange(f"largest entry {largest:.2g}")
    # From lower triangles always: with the upper one ?sytrd takes up to a third longer.
    q = np.array(a if lower else a.T, dtype, order="F")
    work = np.empty(BLOCK * n, dtype)
    t = np.empty((3, n), dtype)  # diagonal, off-diagonal, scales of the reflectors
    info, rows, length = byref(c_int()), byref(c_int(n)), byref(c_int(len(work)))
    at, scratch, low = _address(q), _address(work), c_char_p(b"L")
    d, e, tau = map(_address, t)
    lapack.sytrd(low, rows, at, rows, d, e, tau, scratch, length, info)
    w, x = _tridiagonal(lapack, t[0], t[1], scratch, length)
    lapack.ormtr(low, low, c_char_p(b"N"), rows, rows, at, rows, tau, _address(x), rows, scratch, length, info)
    return w, x


def _tridiagonal(
    lapack: _Lapack, d: np.ndarray, e: np.ndarray, scratch: c_void_p, length: object
) -> tuple[np.ndarray, np.ndarray]:
    """Eigenvalues and eigenvectors of T with diagonal d (n,) and off-diagonal e[:-1], both (n,)."""
    if _negligible(d, e[:-1], lapack.noise) > APART * len(d):
        found = _mrrr(lapack, d.copy(), e.copy(), scratch, length)
        if found is not None:
            return found
    n = len(d)
    w, x, work = d.copy(), np.empty((n, n), d.dtype, order="F"), np.empty(1 + 4 * n + n * n, d.dtype)
    integers, rows, info = np.empty(3 + 5 * n, np.intc), byref(c_int(n)), c_int()
    lapack.stedc(
        c_char_p(b"I"), rows, _address(w), _address(e), _address(x), rows, _address(work), byref(c_int(len(work))),
        _address(integers), byref(c_int(len(integers))), byref(info),
    )  # fmt: skip
    if info.value:
        raise _host.LinAlgError(f"divide and conquer of {n} rows failed: stedc gave {info.value}")
    return w, x


def _negligible(d: np.ndarray, e: np.ndarray, noise: float) -> int:
    """Couplings that are zero to rounding."""
    sizes = np.abs(e)
    return int(np.count_nonzero(sizes <= noise * max(sizes.max(), d.max(), -d.min())))


def _mrrr(
    lapack: _Lapack, d: np.ndarray, e: np.ndarray, scratch: c_void_p, length: object
) -> tuple[np.ndarray, np.ndarray] | None:
    """None where MRRR finds no relatively robust representation."""
    n = len(d)
    w, x = np.empty(n, d.dtype), np.empty((n, n), d.dtype, order="F")
    integers, found, info = np.empty(12 * n, np.intc), c_int(), c_int()  # two integers a vector of support, ten of work
    rows, zero, all_of_them = byref(c_int(n)), byref(c_int(0)), _address(w)
    lapack.stemr(
        c_char_p(b"V"), c_char_p(b"A"), rows, _address(d), _address(e), all_of_them, all_of_them, zero, zero,
        byref(found), all_of_them, _address(x), rows, rows, _address(integers[10 * n :]), byref(c_int(1)), scratch,
        length, _address(integers), byref(c_int(10 * n)), byref(info),
    )  # fmt: skip
    return (w, x) if info.value == 0 and found.value == n else None
