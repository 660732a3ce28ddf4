"""Exact integer products in float64 BLAS, and float16 products in float32 BLAS; NumPy uses slow loops for both."""

from __future__ import annotations

import functools
import importlib
import math
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from trnpy._call import guards
from trnpy._call.decisions import Route
from trnpy._einsum.plan import contract
from trnpy._engine.engines import HOST
from trnpy._host.pairwise import ROUTE_S
from trnpy._report.reasons import Reason, Unsupported
from trnpy._settings.host_rates import HostRates, current_rates
from trnpy._settings.policy import HYSTERESIS
from trnpy._settings.tile import volume

if TYPE_CHECKING:
    from trnpy._einsum.plan import Contraction, Plan

# A digit is an integer slice (Ozaki splitting).
CONVERSIONS = 1  # passes over memory for each digit: splitting, conversion and summation mostly stay in the cache

Product = Callable[[np.ndarray, np.ndarray], np.ndarray]  # bilinear; sums of k terms

# Seconds of a multiply-add of the compiled loop with AVX2; with AVX-512 a third, without both the double. NumPy's loop
# takes 0.4 ns at 64 x 64 and 0.6 ns at 400 x 400 (AMD EPYC, 2026-11-28).
TERM_S = 0.15e-9
STORED_S, NARROWED_S = 0.8e-9, 1.1e-9  # seconds for an element of the result, and for one of fewer than 64 bits
COMPILED_LEAST = volume(25_000)  # multiply-adds, 10 us of NumPy's loop, from which the compiled loop is called
MATRIX_LEAST = 8**3  # multiply-adds of each matrix of a stack up to which its overhead is larger than NumPy's
UNREAD = volume(64**3)  # multiply-adds up to which it is faster than reading the operands for their largest elements
FEW = 32  # terms up to which it is faster than the conversions of a product in float64
TURNED: Mapping[Any, bool] = {np.matmul: False, np.dot: False, np.inner: True}  # whether the second factor is turned

SIGNIFICAND = 53  # of float64: integer sums below 2^53 are exact in any order
SINGLE_SIGNIFICAND = 24  # of float32

# Multiply-adds: 50 us of NumPy's loop over integers, 100 us over float16 and bools, at least twice the cost of choosing
# a route (AMD EPYC, 2026-11).
LEAST_OF_INTEGERS = volume(100_000)
LONG = volume(27_000_000)  # multiply-adds from which full-range int64 products pay: gain 1.2 at 300 rows, 1.5 at 400
SUMMED = 4  # a route that sums first has at most this part of the loop's operations left
LEAST: Mapping[str, int] = {"e": volume(30_000), "?": volume(300_000)}


def least(dtype: np.dtype) -> int:
    """Multiply-adds of ``dtype`` from which NumPy's loop takes longer than choosing a route."""
    return LEAST.get(dtype.char, LEAST_OF_INTEGERS)


@functools.cache
def without_lapack() -> Any:
    """The compiled part; None without a C compiler. Its functions of integers need no SciPy."""
    try:
        return importlib.import_module("trnpy._host._stacks")
    except ImportError:
        return None


def in_c(product: Product, a: np.ndarray, b: np.ndarray) -> bool:
    """Whether the compiled loop computes ``product(a, b)``: of two matrices of integers, or of two stacks by matmul."""
    if a.ndim != b.ndim or a.dtype.kind not in "iu" or b.dtype.kind not in "iu" or product not in TURNED:
        return False
    alike = a.ndim == 2 or (a.ndim == 3 and product is np.matmul and len(a) == len(b))
    return alike and without_lapack() is not None


def _in_c(product: Product, a: np.ndarray, b: np.ndarray, dtype: np.dtype) -> np.ndarray:
    """The matrix product modulo the width of ``dtype``, of matrices for which ``in_c`` holds."""
    b = b.T if TURNED[product] else b
    left, right = (x.astype(np.int64, "C", copy=False).view(np.uint64) for x in (a, b))
    c = np.empty((*a.shape[:-1], b.shape[-1]), dtype if dtype.itemsize == 8 else np.int64)
    without_lapack().multiply(left, right, c.view(np.uint64))
    return c.astype(dtype, copy=False)


def promising(a: np.ndarray, b: np.ndarray) -> bool:
    """Whether a few elements suggest that a route pays; for integers near the range of int64 only large products do."""
    if a.dtype.itemsize + b.dtype.itemsize < 8 or a.size * b.size > LONG * max(b.shape):
        return True
    return bool(_seen(a) * _seen(b) * max(b.shape) < 2**SIGNIFICAND)


def _seen(a: np.ndarray) -> int:
    """The largest of four elements of a; 0 for an empty array."""
    return max([abs(a.item(a.size * i // 4)) for i in range(4)]) if a.size else 0


def route(problem: Contraction, product: Product) -> Route:
    """Exact ``product`` of the operands of ``problem``, which are integers or bools.

    If only products of few digits pay, the predicted cost is for these, and the route refuses larger values.
    """
    p, arrays, dtype, cost = problem.plan, problem.arrays, problem.dtype, problem.cost
    k, elements = p.terms, math.prod(p.shape())
    size = sum(a.size for a in arrays) + elements
    whole = 1 if dtype.kind == "b" else passes(8 * dtype.itemsize, k)
    real = np.dtype(np.float32 if dtype.kind == "b" else np.float64)
    looped = in_c(product, *arrays)
    # Numbers, because a cached decision keeps what ``again`` refers to.
    copied = 4.0 * sum(a.size for a in arrays if a.dtype.itemsize < 8 or not a.flags.c_contiguous)

    def by(count: int, rates: HostRates) -> float:
        if looped:
            stored = elements * (STORED_S if dtype.itemsize == 8 else NARROWED_S)
            return TERM_S * elements * k + stored + copied / rates.copy_bytes_per_s + ROUTE_S
        converted = float(real.itemsize) * count * size * CONVERSIONS / rates.copy_bytes_per_s
        return count * rates.seconds("matmul", cost.n, cost.flops, real) + converted + ROUTE_S

    def pays(count: int, rates: HostRates) -> bool:
        return by(count, rates) * HYSTERESIS <= cost.host_s(rates, dtype)

    def seconds(rates: HostRates) -> float:
        return by(whole if pays(whole, rates) else 1, rates)

    def again(a: np.ndarray, b: np.ndarray) -> Any:
        rates = current_rates()
        if dtype.kind == "b":
            if not loops_long(a, b, k):
                raise Unsupported(Reason.VALUE, "so many elements are true that NumPy's loop soon meets a pair")
        elif not pays(whole, rates) and largest_sum(a, b, k) >= 2**SIGNIFICAND:
            raise Unsupported(Reason.VALUE, "values so large that products of digits take longer")
        return exact(product, a, b, k, dtype)

    return Route("exact float64 products", seconds, lambda: again(*arrays), again=again)


def sums_first(p: Plan, char: str) -> bool:
    """Whether most of the loop over integers or bools is for labels of one operand, which can be summed before it."""
    multiplied = len(p.steps) == 1 and char != "e"
    return multiplied and p.loop_flops > 2 * least(np.dtype(char)) and SUMMED * p.product_flops <= p.loop_flops


def summed_route(problem: Contraction, plain: bool) -> Route:
    """Labels that only one operand has are summed before the product, which is exact modulo the width of the dtype.

    ``plain``: the call has only subscripts and arrays as arguments.
    """
    p, dtype, cost, order, scalar = problem.plan, problem.dtype, problem.cost, problem.order, problem.scalar
    flops = p.product_flops + sum(a.size for a in problem.arrays)

    def seconds(rates: HostRates) -> float:
        return rates.seconds("integer", cost.n, flops, dtype) + ROUTE_S

    def again(subscripts: str, *arrays: np.ndarray) -> Any:
        result = contract(p, arrays, dtype, (HOST,))
        result = result.astype(dtype, order=order, copy=not result.flags.writeable)
        return result[()] if scalar else result

    return Route("sums before products", seconds, lambda: again("", *problem.arrays), again=again if plain else None)


def half_route(problem: Contraction, product: Product) -> Route:
    """Float16 products. NumPy's loop sums in float32 and rounds once; float32 BLAS does the same."""
    arrays, cost, single, dtype, scalar = (
        problem.arrays,
        problem.cost,
        np.dtype(np.float32),
        problem.dtype,
        problem.scalar,
    )
    moved = single.itemsize * (sum(a.size for a in arrays) + math.prod(problem.plan.shape()))

    def seconds(rates: HostRates) -> float:
        converted = moved * CONVERSIONS / rates.copy_bytes_per_s
        return rates.seconds("matmul", cost.n, cost.flops, single) + converted + ROUTE_S

    def again(a: np.ndarray, b: np.ndarray) -> Any:
        with np.errstate(all="ignore"):  # if there is a warning to give, NumPy's loop runs and gives it
            found = np.asarray(product(a.astype(single), b.astype(single)))
            result = found.astype(dtype)
        if not guards.all_finite(found) or not guards.all_finite(result):
            raise Unsupported(Reason.VALUE, "infs or NaNs, or a sum that overflows")
        if np.geterr()["under"] != "ignore" and (np.abs(found)[found != 0] < np.finfo(result.dtype).tiny).any():
            raise Unsupported(Reason.VALUE, "a result that underflows")
        return result[()] if scalar else result

    return Route("float32 products", seconds, lambda: again(*arrays), again=again)


def digit_bits(k: int) -> int:
    """Bits w of balanced digits, |d| <= 2^(w-1), such that sums of k of their products are exact in float64."""
    return (SIGNIFICAND - max(k - 1, 1).bit_length()) // 2 + 1


def passes(bits: int, k: int) -> int:
    """Number of float64 products in one exact product modulo 2^bits of operands that use all their bits."""
    digits = -(-bits // digit_bits(k))
    return digits * (digits + 1) // 2


def exact(product: Product, a: np.ndarray, b: np.ndarray, k: int, dtype: np.dtype) -> np.ndarray:
    """``product(a, b)`` of integers or bools, sums of k terms, wrapped to ``dtype`` like NumPy's own loops.

    If no sum can reach 2^53 (2^24), one float64 (float32) product suffices. Otherwise the compiled loop multiplies two
    matrices; other operands are split into digits, which are multiplied modulo the width of ``dtype``.
    """
    if dtype.kind == "b":
        return np.asarray(product(a.astype(np.float32), b.astype(np.float32)) != 0)
    looped = in_c(product, a, b)
    if looped and a.ndim == 2 and (k <= FEW or a.size * b.size <= UNREAD * k):
        return _in_c(product, a, b, dtype)
    largest = largest_sum(a, b, k)
    if largest < 2**SIGNIFICAND:
        real = np.float32 if largest < 2**SINGLE_SIGNIFICAND else np.float64
        return np.asarray(product(a.astype(real), b.astype(real))).astype(np.int64).astype(dtype)
    if looped:
        return _in_c(product, a, b, dtype)
    bits, w = 8 * dtype.itemsize, digit_bits(k)
    left, right = (_digits(m.astype(dtype), w, bits) for m in (a, b))
    total = None
    for i, high in enumerate(left):
        for j, low in enumerate(right):
            if w * (i + j) >= bits:
                continue
            term = np.asarray(product(high, low)).astype(np.int64).view(np.uint64) << np.uint64(w * (i + j))
            total = term if total is None else total + term
    assert total is not None  # the product of the lowest digits is always computed
    return total.astype(dtype)


# Seconds of NumPy's loop over bools: per element of the result, per pair that it reads, and per element at whose end
# the processor does not expect the loop to end (AMD EPYC, 2026-11-28: within a factor of 2 for 3 to 1000 terms).
ELEMENT_S, PAIR_S, SURPRISE_S = 1e-9, 0.28e-9, 8e-9
# Seconds of a product in float32 for the same: per element and term, per term if the result has fewer than THIN rows or
# columns, and per element that is converted (SkylakeX and Haswell kernels: within a factor of 1.5).
REAL_ELEMENT_S, REAL_TERM_S, THIN_TERM_S, CONVERTED_S = 0.5e-9, 0.02e-9, 0.05e-9, 0.25e-9
THIN = 16
SURE = 1.5  # how many times faster the product in float32 must be, because both times are rough
SAMPLE = 2**10  # elements read to estimate the share of true elements


def any_s(a: np.ndarray, b: np.ndarray, k: int, elements: int) -> float:
    """Predicted seconds of NumPy's product of bools: ``elements`` sums of k terms, each up to its first true term.

    A loop that ends in the middle costs more than its pairs, unless nearly every first pair is true.
    """
    both = share(a) * share(b)  # the probability that a pair is true
    ends = 1 - (1 - both) ** k
    return elements * (ELEMENT_S + PAIR_S * (ends / both if both else k) + SURPRISE_S * ends * (1 - both))


def loops_long(a: np.ndarray, b: np.ndarray, k: int) -> bool:
    """Whether NumPy's product of bools with sums of k terms takes longer than a product in float32."""
    stack = len(a) if a.ndim == b.ndim == 3 and len(a) == len(b) else 1  # whose length is in both sizes
    elements = a.size * b.size // (k * k * stack)
    thin = elements * k < THIN * max(a.size, b.size)
    real_s = elements * (REAL_ELEMENT_S + (THIN_TERM_S if thin else REAL_TERM_S) * k) + CONVERTED_S * (a.size + b.size)
    return any_s(a, b, k, elements) > SURE * real_s


def share(a: np.ndarray) -> float:
    """The share of true elements, from a sample of at most 2 SAMPLE."""
    flat = a.ravel("K") if a.flags.forc else a.flat  # no copy
    seen = flat[:: max(a.size // SAMPLE | 1, 1)]  # an odd step: a power of two would stay in one column
    return float(np.count_nonzero(seen)) / seen.size


def largest_sum(a: np.ndarray, b: np.ndarray, k: int) -> int:
    """A bound for sums of k products; dtypes of few bits give one that is small enough without reading the operands."""
    bound = 2 ** (8 * (a.dtype.itemsize + b.dtype.itemsize)) * k
    return bound if bound < 2**SINGLE_SIGNIFICAND else _magnitude(a) * _magnitude(b) * k


def _magnitude(a: np.ndarray) -> int:
    """max |a| as a Python integer, so the most negative value does not wrap around."""
    return max(int(a.max()), -int(a.min()))


def _digits(a: np.ndarray, w: int, bits: int) -> list[np.ndarray]:
    """Balanced digits of a, lowest first, in float64: a = sum of d_i 2^(w i) modulo 2^bits; zero top digits dropped."""
    rest = a.astype(np.uint64).view(np.int64)
    half = np.int64(1 << (w - 1))
    digits: list[np.ndarray] = []
    while w * len(digits) < bits:
        d = ((rest + half) & np.int64((1 << w) - 1)) - half
        digits.append(d.astype(np.float64))
        rest = (rest - d) >> np.int64(w)
        if not rest.any():
            break
    return digits
