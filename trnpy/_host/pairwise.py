"""The route of numpy.einsum on the host: matrix products replace NumPy's loop."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from trnpy._call import guards
from trnpy._call.dispatch import Reason, Route, Unsupported
from trnpy._call.fast_path import LIMITS
from trnpy._einsum.grammar import Shapes
from trnpy._einsum.plan import GREEDY, Plan, contract, plan
from trnpy._einsum.product import c_einsum, on_host
from trnpy._engine.engines import HOST
from trnpy._settings.host_rates import HostRates

if TYPE_CHECKING:
    from trnpy._einsum.plan import Contraction

NAME = "pairwise products"
SMALL = LIMITS["numpy.einsum"].product  # of the operands' sizes, at most eight times the loop's multiply-adds
ROUTE_S = 4e-6  # overhead of a call
SAMPLE = 8  # elements of an operand whose magnitude is sampled; each costs a cache line
LONG_FLOPS = 4e5  # 100 us of NumPy's loop: above, the sample (2 us) is taken before one product, not after it
SPARE = 256 * 2**20  # bytes that an intermediate result may always use; more only if the operands are larger
REPAIRED = 0.1  # largest share of results computed twice; a route is chosen only if it saves a sixth
Orders = tuple[tuple[int, ...] | None, ...]  # of the axes of each operand


def route(problem: Contraction) -> Route | None:
    """The route through matrix products (BLAS). Without ``optimize``, NumPy's einsum loops over all labels.

    None if an intermediate result needs more memory than a caller of the loop would expect.
    """
    if problem.cost.kind != "einsum" or problem.out is not None or problem.order == "F":
        return None
    arrays, dtype = problem.arrays, problem.dtype
    orders = tuple([_in_memory(a) for a in arrays])
    p = _arranged(problem.plan, orders, tuple([a.shape for a in arrays]))
    largest = max((math.prod(step.shape) for step in p.steps[:-1]), default=0) * dtype.itemsize
    if largest > max(SPARE, sum(a.nbytes for a in arrays)):
        return None
    products = functools.partial(_products, p, dtype, problem.scalar, problem.order)

    def again(*operands: Any, **options: Any) -> Any:
        given = [a for a in operands if type(a) is np.ndarray]
        return products(_turned(given, orders))

    strides = tuple([a.strides for a in _turned(arrays, orders)])
    chars = "".join([a.dtype.char for a in arrays])
    seconds, run = functools.partial(_seconds, p, dtype, strides, chars), functools.partial(again, *arrays)
    flops = (4.0 if dtype.kind == "c" else 1.0) * p.product_flops
    return Route(NAME, seconds, run, again=again, flops=flops)


def _in_memory(a: np.ndarray) -> tuple[int, ...] | None:
    """The axes of ``a`` in memory order, which BLAS reads without a copy; None if they already are in that order."""
    if a.flags.c_contiguous:
        return None
    axes = sorted(range(a.ndim), key=lambda axis: -abs(a.strides[axis]))
    return None if axes == [*range(a.ndim)] else tuple(axes)


def _turned(arrays: Sequence[np.ndarray], orders: Orders) -> list[np.ndarray]:
    return [a if axes is None else a.transpose(axes) for a, axes in zip(arrays, orders, strict=True)]


@functools.lru_cache(maxsize=4096)
def _arranged(p: Plan, orders: Orders, shapes: Shapes) -> Plan:
    """The host's plan of the same contraction for operands whose axes are in these ``orders``."""
    if not any(orders) and len(orders) < 3:
        return p
    inputs, turned = [], []
    for labels, shape, axes in zip(p.inputs, shapes, orders, strict=True):
        order = range(len(labels)) if axes is None else axes
        inputs.append("".join([labels[axis] for axis in order]))
        turned.append(tuple([shape[axis] for axis in order]))
    return plan(tuple(inputs), p.output, tuple(turned), GREEDY, host=True)


@functools.lru_cache(maxsize=4096)
def _seconds(p: Plan, dtype: np.dtype, strides: Shapes, chars: str, rates: HostRates) -> float:
    return p.host_s(rates, dtype, strides, chars) + ROUTE_S


def _products(p: Plan, dtype: np.dtype, scalar: bool, order: str, arrays: Sequence[np.ndarray]) -> Any:
    """The contraction in BLAS, without warnings, because NumPy's loop gives none.

    Sums in another order may overflow in other elements, so NumPy's loop must compute results with infs or NaNs. If a
    sample of the operands shows some, Unsupported is raised before the products. If only a few rows and columns of the
    result have some, the loop computes these again. A single product whose infs and NaNs come from its operands has
    them in any order of summation, so its result is kept.
    """
    # No sample for stacks and vectors: they empty the caches and are so fast that it would add 4 % to their time.
    first = len(p.steps) > 1 or (p.loop_flops > LONG_FLOPS and not p.steps[0].batch and not p.steps[0].vector)
    if first:
        _bounded(arrays, dtype)
    c = guards.QUIET.copy().run(_multiplier(p, dtype), *arrays)
    if not guards.all_finite(c):
        if not first:
            _bounded(arrays, dtype)
        if not _in_any_order(p, arrays, dtype):
            _repair(p, arrays, dtype, c, ~np.isfinite(c))
    if order == "C":
        c = np.ascontiguousarray(c) if c.ndim else c
    return c[()] if scalar and not c.ndim else c


def _bounded(arrays: Sequence[np.ndarray], dtype: np.dtype) -> None:
    """Raise Unsupported if the sample of an operand has infs or NaNs, or if products may overflow."""
    if not math.prod(map(_norm, arrays)) < _largest(dtype.char):
        raise Unsupported(Reason.VALUE, "infs, NaNs, or sums that may overflow")


def _in_any_order(p: Plan, arrays: Sequence[np.ndarray], dtype: np.dtype) -> bool:
    """Whether all infs and NaNs of the result come from the operands: one real product that is too small to overflow.

    For complex numbers BLAS multiplies the result by 1 + 0i, which turns infs into NaNs.
    """
    if not one_product(p) or dtype.kind == "c":
        return False
    bound = float(p.steps[0].extents[1])
    for a in arrays:
        sizes = np.abs(a.astype(dtype, copy=False))  # as floats: the most negative integer has no absolute value
        bound *= float(sizes.max(initial=0, where=np.isfinite(sizes)))
    return bound < _largest(dtype.char)


def one_product(p: Plan) -> bool:
    """Whether the plan is a single product of the operands as given, without diagonals or sums of them."""
    return len(p.steps) == 1 and all(taken.index is None and taken.subscripts is None for taken in p.taken)


@functools.lru_cache(maxsize=4096)
def _multiplier(p: Plan, dtype: np.dtype) -> Callable[..., np.ndarray]:
    """The contraction of a call's operands on the host."""
    if not one_product(p):
        hosts = (HOST,) * len(p.steps)
        return lambda *arrays: contract(p, arrays, dtype, hosts)
    product, axes = on_host(p.steps[0]), p.axes

    def multiply(a: np.ndarray, b: np.ndarray) -> np.ndarray:
        a = a if a.dtype is dtype else a.astype(dtype, copy=False)
        b = b if b.dtype is dtype else b.astype(dtype, copy=False)
        c = product(a, b)
        return c if axes is None else c.transpose(axes)

    return multiply


@functools.cache
def _largest(char: str) -> float:
    return float(np.finfo(np.dtype(char)).max)


def _norm(a: np.ndarray) -> float:
    """The Frobenius norm of about SAMPLE elements of ``a``; infinite or NaN if one of them is."""
    # An odd step, because a power of two would stay in one column. Python's numbers, because after the operands have
    # emptied the caches each call of a NumPy function takes 1.5 us.
    some = map(a.item, range(0, a.size, a.size // SAMPLE | 1))
    return math.hypot(*some) if a.dtype.kind != "c" else math.hypot(*[part for x in some for part in (x.real, x.imag)])


def _repair(p: Plan, arrays: Sequence[np.ndarray], dtype: np.dtype, c: np.ndarray, bad: np.ndarray) -> None:
    """Compute the smallest box with all ``bad`` results again in NumPy's loop; Unsupported if the box is large."""
    box = [np.flatnonzero(bad.any(axis=tuple(j for j in range(c.ndim) if j != i))) for i in range(c.ndim)]
    if math.prod(map(len, box)) > REPAIRED * c.size:
        raise Unsupported(Reason.VALUE, "infs or NaNs")
    chosen = dict(zip(p.output, box, strict=True))
    some = [
        a[np.ix_(*(chosen[x] if n > 1 and x in chosen else np.arange(n) for x, n in zip(labels, a.shape, strict=True)))]
        for labels, a in zip(p.inputs, arrays, strict=True)
    ]
    c[np.ix_(*box)] = c_einsum(p.subscripts, *some, dtype=dtype)
