"""Screening of integrals and products by the Cauchy-Schwarz bound |(mn|rs)| <= Q_mn Q_rs, with exact comparisons.

Haeser and Ahlrichs, J. Comput. Chem. 10, 104 (1989).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, ClassVar

import numpy as np

from trnpy._base.records import record
from trnpy._call.dispatch import Cost, Problem, Reason, Unsupported
from trnpy._engine import digits
from trnpy._engine.engines import BY_DIGITS, Engine, Held
from trnpy._engine.proof.weights import probe
from trnpy._nki.kernels.chem.schwarz_screened_spmm_reference import LARGEST, LONGEST_K
from trnpy._nki.kernels.products.float64_matmul_reference import longest_k
from trnpy._nki.kernels.shared.parameters import TILE, for_digits
from trnpy.chem._ao2mo import unpacked
from trnpy.chem._pairs import rung
from trnpy.chem._progress import track
from trnpy.chem._rows import (
    MEMORY,
    REAL,
    Product,
    checked_product,
    cube,
    host_product,
    norm,
    real_array,
    relative,
    row,
)

ROWS = 256  # in one product: enough for BLAS to be fast, few enough that rows of similar bounds keep the same columns
DIGITS = 7  # of eight bits: as accurate as BLAS unless the elements of a row differ by many orders of magnitude
KERNEL_ROWS, KERNEL_STEP = 512, 512  # rows of a block of the kernel's result; its columns are multiples of KERNEL_STEP
GRAIN = 16  # padded extents are multiples of this
WORKSPACE = 6 * 8  # bytes of the host's memory for each element of a that is split into digits
WORD_BYTES = 8  # of an element in a host-device transfer
DEVICE_BYTES = 2 * DIGITS + WORD_BYTES  # of device memory for each element of b
SPLITTER = 2.0**27 + 1  # splits a float64 significand into halves (Dekker, Numer. Math. 18, 224 (1971))


def schwarz_bounds(integrals: np.ndarray) -> np.ndarray:
    """Cauchy-Schwarz bounds Q of integrals: ``|(mn|rs)| <= Q[m, n] Q[r, s]``.

    Parameters
    ----------
    integrals : (nao, nao, nao, nao), (naux, nao, nao) or (naux, nao (nao + 1) / 2) array_like
        Real integrals: (mn|rs) in Hartree, or density-fitted ones in Hartree^(1/2), in the forms that `ao2mo` accepts.

    Returns
    -------
    (nao, nao) ndarray
        float64 square roots of (mn|mn), in Hartree^(1/2), rounded upward so that they remain bounds.

    Raises
    ------
    TypeError
        If the integrals are complex or not numeric.
    ValueError
        If the shape is none of these, or if a diagonal integral (mn|mn) is negative by more than rounding.

    References
    ----------
    .. [1] M. Haeser and R. Ahlrichs, J. Comput. Chem. 10, 104 (1989).

    Examples
    --------
    >>> import numpy as np
    >>> from trnpy.chem import schwarz_bounds
    >>> q = schwarz_bounds([[[2.0, -1.0], [-1.0, 3.0]]])  # one auxiliary function, two atomic orbitals
    >>> np.round(q, 6)
    array([[2., 1.],
           [1., 3.]])
    """
    g = real_array("integrals", integrals, "(nao, nao, nao, nao), (naux, nao, nao) or (naux, npair)", 2, 3, 4)
    if g.ndim == 4:
        if len(set(g.shape)) > 1:
            raise ValueError(f"integrals has shape {g.shape}: expected four equal extents")
        diagonal = np.einsum("mnmn->mn", g)
        rounding = len(g) * np.finfo(REAL).eps * np.abs(diagonal).max(initial=0.0)
        if (diagonal < -rounding).any():
            raise ValueError(f"a diagonal integral (mn|mn) is {diagonal.min():.3g}: expected none below zero")
        return np.asarray(np.nextafter(np.sqrt(np.maximum(diagonal, 0.0)), np.inf))
    if g.ndim == 3 and g.shape[1] != g.shape[2]:
        raise ValueError(f"integrals has shape {g.shape}: expected (naux, nao, nao)")
    squares = unpacked(np.einsum("Lp,Lp->p", *[g.reshape(len(g), -1)] * 2)[None]) if g.ndim == 2 else None
    total = np.einsum("Lmn,Lmn->mn", g, g) if squares is None else squares[0]
    # Rounding may make a sum of naux squares too small, by naux eps / 2 of itself.
    return np.asarray(np.nextafter(np.sqrt(total) * (1 + len(g) * np.finfo(REAL).eps), np.inf))


def _exceeds(q_left: np.ndarray, q_right: np.ndarray, threshold: float) -> np.ndarray:
    """Whether q_left[i] q_right[j] > threshold for the exact products: (m, n) bool."""
    return _exceeds_each(q_left[:, None], q_right, threshold)


def _exceeds_each(x: np.ndarray, y: np.ndarray, threshold: float) -> np.ndarray:
    """Whether x y > threshold for the exact products; x and y broadcast.

    Rounding is monotonic: the rounded product decides unless it equals the threshold.
    """
    with np.errstate(over="ignore", under="ignore"):
        products = x * y
    exceeds: np.ndarray = products > threshold
    where = np.nonzero(products == threshold)
    if not len(where[0]):
        return exceeds
    x, y = (np.broadcast_to(q, products.shape)[where] for q in (x, y))
    if threshold == 0:  # the product underflowed, or a factor is zero
        exceeds[where] = (x > 0) & (y > 0)
    else:
        (x, ex), (y, ey), (t, et) = np.frexp(x), np.frexp(y), np.frexp(threshold)
        product, rest = _exact_product(x, y)
        # The subtraction is exact by Sterbenz's lemma: both numbers are nearly equal.
        exceeds[where] = (product - np.ldexp(t, et - ex - ey)) + rest > 0
    return exceeds


def _kept(q_left: np.ndarray, sorted_right: np.ndarray, threshold: float) -> np.ndarray:
    """For each bound of ``q_left`` the number of its products with descending ``sorted_right`` above the threshold."""
    low, high = np.zeros(len(q_left), np.intp), np.full(len(q_left), len(sorted_right), np.intp)
    while (low < high).any():
        middle = (low + high) // 2
        open_ = low < high
        above = open_ & _exceeds_each(q_left, sorted_right[np.minimum(middle, len(sorted_right) - 1)], threshold)
        low, high = np.where(above, middle + 1, low), np.where(open_ & ~above, middle, high)
    return low


def _exact_product(x: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """x y rounded, and its exact rounding error (Dekker). x and y are significands, so nothing overflows."""
    product = x * y
    (xh, xl), (yh, yl) = _halves(x), _halves(y)
    rest: np.ndarray = ((xh * yh - product) + xh * yl + xl * yh) + xl * yl
    return product, rest


def _halves(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Two numbers of at most 26 bits whose sum is x."""
    high: np.ndarray = SPLITTER * x - (SPLITTER * x - x)
    return high, x - high


def _bounds(name: str, given: Any) -> np.ndarray:
    """Bounds (n,) in float64; ValueError unless all are finite and none is negative."""
    q = real_array(name, given, "one bound each", 1)
    if not (np.isfinite(q).all() and (q >= 0).all()):
        raise ValueError(f"{name} has values from {q.min()} to {q.max()}: expected finite bounds, none negative")
    return q


def _threshold(threshold: float) -> float:
    if not (np.isfinite(threshold) and threshold >= 0):
        raise ValueError(f"threshold={threshold!r}: expected a finite number from 0 upward")
    return float(threshold)


def screened_pairs(
    q_left: np.ndarray, q_right: np.ndarray, threshold: float, *, memory: float = MEMORY
) -> tuple[np.ndarray, np.ndarray]:
    """Indices of all pairs whose bound q_left[i] q_right[j] exceeds a threshold.

    Parameters
    ----------
    q_left, q_right : (m,) and (n,) array_like
        Finite bounds in Hartree^(1/2), none negative, such as those of `schwarz_bounds`, ravelled.
    threshold : float
        Finite and not negative, in Hartree.
    memory : float, optional
        Bytes of workspace. The result needs additional memory.

    Returns
    -------
    i, j : (npairs,) ndarray of intp
        Indices into `q_left` and `q_right`, in row-major order.

    Raises
    ------
    TypeError
        If bounds are complex or not numeric.
    ValueError
        If bounds or the threshold are negative or not finite, or if bounds are not one-dimensional.

    Notes
    -----
    Products are compared as real numbers: rounding never drops a pair whose bound exceeds the threshold.

    Examples
    --------
    >>> from trnpy.chem import screened_pairs
    >>> i, j = screened_pairs([1.0, 0.1], [1.0, 0.01], threshold=0.05)
    >>> i, j
    (array([0, 1]), array([0, 0]))
    """
    left, right = _bounds("q_left", q_left), _bounds("q_right", q_right)
    threshold = _threshold(threshold)
    step = max(1, int(memory // (2 * REAL.itemsize * max(len(right), 1))))
    parts = [
        np.argwhere(_exceeds(left[i : i + step], right, threshold)) + np.array((i, 0))
        for i in range(0, len(left), step)
    ]
    pairs = np.concatenate([np.empty((0, 2), np.intp), *parts])
    return pairs[:, 0], pairs[:, 1]


def _screened_pairs_naive(q_left: np.ndarray, q_right: np.ndarray, threshold: float) -> list[tuple[int, int]]:
    """`screened_pairs` in rational arithmetic, one pair at a time, for tests."""
    from fractions import Fraction

    return [
        (i, j)
        for i, x in enumerate(q_left)
        for j, y in enumerate(q_right)
        if Fraction(float(x)) * Fraction(float(y)) > Fraction(float(threshold))
    ]


def _screened(
    a: Any, b: Any, threshold: float, q_left: Any, q_right: Any
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, float]:
    """The operands of `screened_spmm` in float64, with bounds; raises its errors."""
    a, b = real_array("a", a, "(m, k)", 2), real_array("b", b, "(k, n)", 2)
    if a.shape[1] != b.shape[0]:
        raise ValueError(f"a {a.shape} and b {b.shape}: expected (m, k) and (k, n)")
    if not (np.isfinite(a).all() and np.isfinite(b).all()):
        raise ValueError("a or b has infs or NaNs: expected finite elements, which bounds require")
    if (q_left is None) != (q_right is None):
        raise ValueError("one of q_left and q_right is given: expected both or neither")
    if q_left is None:
        # |a_ij| = sqrt|a_ij| sqrt|a_ij|. Bound the first root by the largest of the row, the second by the column's.
        size = np.abs(a)
        q_left, q_right = (
            np.nextafter(np.sqrt(size.max(axis, initial=0.0)), np.inf) * (size.max(axis, initial=0.0) > 0)
            for axis in (1, 0)
        )
    left, right = _bounds("q_left", q_left), _bounds("q_right", q_right)
    if (len(left), len(right)) != a.shape:
        raise ValueError(f"{len(left)} q_left and {len(right)} q_right for a {a.shape}: expected one each")
    return a, b, left, right, _threshold(threshold)


def _counts(q_left: np.ndarray, q_right: np.ndarray, threshold: float) -> np.ndarray:
    """The number of columns that each row keeps, descending because both are sorted by descending bounds."""
    return _kept(-np.sort(-q_left), -np.sort(-q_right), threshold).astype(np.int32)


def _orders(q_left: np.ndarray, q_right: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Rows and columns in descending order of bounds; each row keeps its first columns."""
    return np.argsort(-q_left, kind="stable"), np.argsort(-q_right, kind="stable")


def _staircase(
    a: np.ndarray, b: np.ndarray, orders: tuple[np.ndarray, np.ndarray], counts: np.ndarray, product: Product
) -> np.ndarray:
    """The screened product as dense products of ROWS rows."""
    rows, columns = orders
    sorted_b, result = b[columns], np.zeros((len(a), b.shape[1]), like=b)
    for start in track(range(0, int(np.count_nonzero(counts)), ROWS), "screened product"):
        some = slice(start, start + ROWS)
        width = int(counts[start])
        kept = np.arange(width) < counts[some, None]
        part = np.where(kept, a[np.ix_(rows[some], columns[:width])], 0.0)
        result[rows[some]] = product(part, sorted_b[:width], None)
    return result


def _by_kernel(
    engine: Engine, a: np.ndarray, b: np.ndarray, orders: tuple[np.ndarray, np.ndarray], counts: np.ndarray, exact: bool
) -> np.ndarray:
    """The screened product in the kernel schwarz_screened_spmm; one launch computes the rows that fit MEMORY bytes."""
    result = np.zeros((len(a), b.shape[1]), like=b)
    some = int(np.count_nonzero(counts))
    if not some:
        return result
    rows, columns = orders[0][:some], orders[1][: int(counts[0])]
    wide = _padded_extent(b.shape[1])
    right = _operand(engine, b[columns], (_depth(len(columns)), wide), 0, exact)
    words = for_digits(DIGITS, engine.machine).words
    for start, stop, deep in track(list(_launches(counts[:some], wide)), "screened product"):
        block, met = rows[start:stop], columns[:deep]
        height = _padded_extent(len(block))
        left = _operand(engine, a[np.ix_(block, met)], (height, deep), 1, exact)
        kept = np.zeros((1, height), np.float32)
        kept[0, : len(block)] = counts[start:stop]
        tiles = {"m_tiles": KERNEL_ROWS // TILE, "k_tiles": KERNEL_STEP // (2 * TILE)}
        out = engine.get(engine.kernel("schwarz_screened_spmm", left[0], right[0], kept, words=words, **tiles))
        if exact:
            result[block] = digits.assemble(out[:, : len(block), : b.shape[1]], DIGITS, left[1], right[1])
        else:
            result[block] = out[: len(block), : b.shape[1]]
    return result


def _launches(counts: np.ndarray, wide: int) -> Iterator[tuple[int, int, int]]:
    """Rows of each launch and the columns of a that they need: blocks of rows that keep about equally many columns."""
    start = 0
    while start < len(counts):
        deep = _depth(int(counts[start]))
        most = min(int(MEMORY // (WORKSPACE * deep)), LARGEST // (DIGITS * max(deep, wide)))
        most = most // KERNEL_ROWS * KERNEL_ROWS or max(most, 1)  # whole blocks of the kernel, if at least one fits
        stop = start + min(KERNEL_ROWS, most)
        while stop < min(start + most, len(counts)) and _depth(int(counts[stop])) == deep:
            stop += KERNEL_ROWS
        yield start, min(stop, len(counts)), deep
        start = stop


def _depth(k: int) -> int:
    """``k`` columns rounded up to a shape bucket: powers of two, and halfway between."""
    steps = -(-k // KERNEL_STEP)
    half = 1 << max((steps - 1).bit_length() - 2, 0)
    return -(-steps // half) * half * KERNEL_STEP


def _padded_extent(n: int) -> int:
    """``n`` rows or columns rounded up to a shape bucket."""
    return rung(-(-n // GRAIN)) * GRAIN


def _operand(engine: Engine, x: np.ndarray, shape: tuple[int, int], axis: int, exact: bool) -> tuple[Held, np.ndarray]:
    """A matrix on the device with ``axis``, which is summed over, first: digits and exponents, or float32 numbers."""
    if not exact:
        numbers = np.zeros(shape, np.float32, like=x)
        with np.errstate(over="ignore"):  # the check of the result finds an infinity
            numbers[: x.shape[0], : x.shape[1]] = x
        return engine.hold(numbers.T if axis == 1 else numbers), np.empty(0)
    sent, places, shift = digits.link_bytes(x, DIGITS, axis)
    raw = np.full((*shape, 8), digits.OFFSET, np.uint8, like=x)
    raw[: x.shape[0], : x.shape[1]] = sent
    flat = raw.reshape(shape[0], -1)
    held: Held = engine.kernel("digits_split", flat, width=8, places=places, turned=axis == 1)
    return held, shift


@record(kw_only=True)
class ScreenedProduct(Problem):
    """a b without the elements of a whose bounds are small."""

    unproven: ClassVar[str] = ""
    q_left: np.ndarray
    q_right: np.ndarray
    threshold: float
    counts: bytes  # of ``_counts``: part of the cache key of dry runs

    def run(self, engine: Engine) -> np.ndarray:
        a, b = self.arrays
        orders, counts = _orders(self.q_left, self.q_right), np.frombuffer(self.counts, np.int32)
        form = engine.format(REAL)
        if form in (BY_DIGITS, "float32") and _one_operand(engine, b.shape):
            return _by_kernel(engine, a, b, orders, counts, exact=form == BY_DIGITS)
        return _staircase(a, b, orders, counts, checked_product(engine))

    def error(self, result: np.ndarray) -> float:
        """|C w - A' (B w)| for random signs w, relative to the norms; A' has the elements that the screening keeps."""
        a, b = self.arrays
        signs = probe(b.shape[1], REAL)
        exact = np.where(_exceeds(self.q_left, self.q_right, self.threshold), a, 0.0) @ (b @ signs)
        return relative(norm(result @ signs - exact), norm(a) * norm(b))


def _prepare(a: Any, b: Any, threshold: float, *, q_left: Any = None, q_right: Any = None) -> Problem:
    a, b, left, right, threshold = _screened(a, b, threshold, q_left, q_right)
    if a.size == 0 or b.size == 0:
        raise Unsupported(Reason.LAYOUT, "an operand is empty")
    counts = _counts(left, right, threshold)
    widths = counts[::ROWS]  # number of columns that each block of rows keeps
    steps = int(np.count_nonzero(widths))
    if not steps:
        raise Unsupported(Reason.VALUE, f"no element exceeds threshold {threshold:g}")
    rows, n, total = min(ROWS, len(a)), b.shape[1], int(widths.sum())
    cost = Cost(
        "matmul", cube(rows, n, total / steps), 2.0 * rows * n * total, 8 * int(widths[0]) * (steps * rows + n),
        8 * steps * rows * n,
    )  # fmt: skip
    return ScreenedProduct((a, b), REAL, cost, q_left=left, q_right=right, threshold=threshold, counts=counts.tobytes())


def _one_operand(engine: Engine, shape: tuple[int, int]) -> bool:
    """Whether all of b (k, n) fits in one launch, which the kernel requires. `_staircase` has no such limit."""
    depth = _depth(shape[0])
    elements = depth * _padded_extent(shape[1])
    return (
        depth <= min(LONGEST_K, longest_k(DIGITS))
        and elements * WORD_BYTES <= LARGEST
        and elements * DEVICE_BYTES <= engine.room
    )


@row(_prepare)
def screened_spmm(
    a: np.ndarray,
    b: np.ndarray,
    threshold: float,
    *,
    q_left: np.ndarray | None = None,
    q_right: np.ndarray | None = None,
) -> np.ndarray:
    """Matrix product that leaves out elements of the left factor with small bounds.

    Parameters
    ----------
    a : (m, k) array_like
        Real and finite. Element a[i, j] is left out if q_left[i] q_right[j] is at most `threshold`.
    b : (k, n) array_like
        Real and finite. Both factors are converted to float64.
    threshold : float
        Finite and not negative, in the unit of `a` (Hartree). 0 leaves out only elements whose bound is zero.
    q_left, q_right : (m,) and (k,) array_like, optional
        Bounds with ``|a[i, j]| <= q_left[i] q_right[j]``, such as those of `schwarz_bounds`, ravelled. The default is
        the root of the largest magnitude of each row and of each column, which is always a bound.

    Returns
    -------
    (m, n) ndarray
        The product in float64.

    Raises
    ------
    TypeError
        If an array is complex or not numeric.
    ValueError
        If shapes do not fit, if only one of the bounds is given, if bounds or the threshold are negative, or if a
        number is not finite.

    Notes
    -----
    Bounds are compared as real numbers: if they hold, no element larger than the threshold is left out [1]_. Rows are
    sorted by their bounds and multiplied 256 at a time, each block with the columns that any of its rows keeps. On a
    device an element is accurate to 2^-52 sqrt(k) times the largest elements of its row of `a` and its column of `b`.

    References
    ----------
    .. [1] M. Haeser and R. Ahlrichs, J. Comput. Chem. 10, 104 (1989).

    Examples
    --------
    >>> import numpy as np
    >>> from trnpy.chem import screened_spmm
    >>> a = np.array([[4.0, 1.0], [1.0, 0.01]])
    >>> screened_spmm(a, np.eye(2), threshold=1.5)  # bounds 4, 2, 2, 1
    array([[4., 1.],
           [1., 0.]])
    """
    a, b, left, right, threshold = _screened(a, b, threshold, q_left, q_right)
    return _staircase(a, b, _orders(left, right), _counts(left, right, threshold), host_product)


def _screened_spmm_naive(
    a: np.ndarray, b: np.ndarray, threshold: float, q_left: np.ndarray, q_right: np.ndarray
) -> np.ndarray:
    """`screened_spmm` with a mask from rational arithmetic, for tests."""
    mask = np.zeros(a.shape, bool)
    for pair in _screened_pairs_naive(q_left, q_right, threshold):
        mask[pair] = True
    return np.asarray(np.where(mask, a, 0.0) @ b)
