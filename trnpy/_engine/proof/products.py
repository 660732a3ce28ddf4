"""The proof of a product of floating-point matrices: its rows and columns, summed with random weights.

Huang and Abraham, IEEE Trans. Comput. C-33, 518 (1984), with a tolerance for each row and each column.
"""

from __future__ import annotations

import math

import numpy as np

from trnpy._engine.proof.weights import weights

# Times u |a_i| |b_j|: 8 deviations of random signs times the 4 u of a certified product, and 8 for the sums of the
# check. The error of sums in float32 is not certified: twice as much is allowed (docs/numerics.md#proof-of-a-product).
CERTIFIED, SUMMED = 40.0, 72.0
DEVIATIONS = 8.0  # of a sum with random signs: more have probability 2.5e-14 for each row
BLOCK = 64  # terms that one call of BLAS sums: of constants, with 256, the sums of the check err by 48 u
SAFE = 900  # exponents beyond which sums or squares may overflow or underflow
SINGLE, DOUBLE = np.dtype(np.float32), np.dtype(np.float64)
ROUNDED = ("float32", "bfloat16")  # formats to which a kernel rounds operands; its sums are float32's
HALF = np.dtype(np.float16)


def excess(a: np.ndarray, b: np.ndarray, c: np.ndarray, form: str = "", single: bool = False) -> float:
    """The largest error of c (..., m, n) = a b in tolerances: up to 1 it is accepted. NaN if a sum of c is not finite.

    ``form`` is the format to which the engine rounds operands; ``single``: its sums are float32's.
    """
    if not c.size:
        return 0.0
    single = single or form in ROUNDED or c.real.dtype.itemsize < DOUBLE.itemsize
    with np.errstate(all="ignore"):
        a, b = (_wide(_rounded(x, form)) for x in (a, b))
        rows, columns = lengths(a), lengths(b.swapaxes(-1, -2))
        kept = c.dtype == HALF
        c = _wide(c)
        return max_nan(
            _side(a, b, c, rows, columns, single, kept),
            _side(b.swapaxes(-1, -2), a.swapaxes(-1, -2), c.swapaxes(-1, -2), columns, rows, single, kept),
        )


def may_overflow(a: np.ndarray, b: np.ndarray, dtype: np.dtype) -> bool:
    """Whether an element of a b may exceed the largest number of ``dtype``."""
    with np.errstate(all="ignore"):
        bound = lengths(_wide(a)).max(initial=0.0) * lengths(_wide(b.swapaxes(-1, -2))).max(initial=0.0)
        return not bound < float(np.finfo(dtype).max) / 2


def max_nan(*numbers: float) -> float:
    """The largest number; NaN if one is."""
    return float(np.max(numbers))


def _side(
    a: np.ndarray, b: np.ndarray, c: np.ndarray, rows: np.ndarray, columns: np.ndarray, single: bool, half: bool
) -> float:
    """The largest error of a row of c w - a (b w) in tolerances; rows and columns are lengths of a's and b's."""
    k, n = b.shape[-2:]
    info = np.finfo(SINGLE if single else DOUBLE)
    tiny = float(info.tiny if single else info.smallest_subnormal)  # a device may flush below float32's normal numbers
    lowest = int(np.frexp(tiny)[1]) + (SAFE // 20 if single else SAFE // 8)
    # Powers of two make columns of unlike size equal; small columns keep some of their size, or their underflow would
    # hide the others' errors.
    top = max(int(np.frexp(rows.max(initial=0.0))[1]) - SAFE, 0)
    w = np.ldexp(weights(n), -np.maximum(np.frexp(columns)[1], lowest) - top)
    residual = np.abs(_times(c, w) - _times(a, _times(b, w)))
    unit = float(info.eps) / 2
    most = (SUMMED if single else CERTIFIED) * (2 if c.dtype.kind == "c" else 1)
    size = np.sqrt(np.square(w * columns).sum(axis=-1, keepdims=True))
    length = np.sqrt(np.square(w).sum(axis=-1, keepdims=True))
    floor = DEVIATIONS * (k + 2) * tiny * (length * (1 + rows) + 2 * math.sqrt(n))
    tolerance = most * unit * rows * size + floor
    if half:  # the sums are rounded once more
        rounding = np.sqrt(_times(np.square(c), np.broadcast_to(np.square(w), (*c.shape[:-2], n))))
        tolerance = tolerance + DEVIATIONS * (2.0**-11 * rounding + 2.0**-25 * length)
    return float(np.max(residual / tolerance))


def _rounded(x: np.ndarray, form: str) -> np.ndarray:
    """``x`` as an engine rounds it to ``form``."""
    if form not in ROUNDED or x.real.dtype == form:
        return x
    if x.dtype.kind == "c":
        return _rounded(x.real, form).astype(DOUBLE) + 1j * _rounded(x.imag, form).astype(DOUBLE)
    if form == "bfloat16":
        import ml_dtypes  # imported late: a process without a device does not need it

        return x.astype(ml_dtypes.bfloat16)
    return x.astype(form)


def _wide(x: np.ndarray) -> np.ndarray:
    """``x`` in float64 or complex128, in a layout that BLAS reads in place."""
    x = x.astype(np.complex128 if x.dtype.kind == "c" else DOUBLE, copy=False)
    return x if x.itemsize in x.strides[-2:] else np.ascontiguousarray(x)


def lengths(x: np.ndarray) -> np.ndarray:
    """The lengths (..., m) of the rows of wide x (..., m, k), even if squares underflow or overflow."""
    found = _squares(x)
    if np.all((found > 2.0**-SAFE) & (found < np.inf)):
        return np.asarray(np.sqrt(found))
    size = np.abs(x)
    exponent = np.frexp(size.max(axis=-1, initial=0.0))[1]
    return np.asarray(np.ldexp(np.sqrt(_squares(np.ldexp(size, -exponent[..., np.newaxis]))), exponent))


def _squares(x: np.ndarray) -> np.ndarray:
    if x.dtype.kind == "c":
        return np.asarray(_squares(x.real) + _squares(x.imag))
    return np.asarray(np.einsum("...ij,...ij->...i", x, x))


def _times(x: np.ndarray, v: np.ndarray) -> np.ndarray:
    """x (..., m, k) times v (..., k), summed in blocks, and those in pairs."""
    column = v[..., np.newaxis]
    cuts = range(0, x.shape[-1], BLOCK)
    parts = [x[..., at : at + BLOCK] @ column[..., at : at + BLOCK, :] for at in cuts]
    while len(parts) > 1:
        parts = [a + b for a, b in zip(parts[::2], parts[1::2], strict=False)] + parts[len(parts) & ~1 :]
    return np.asarray(parts[0][..., 0]) if parts else np.zeros(x.shape[:-1])
