"""numpy.einsum on the host by products of matrices: the route where NumPy loops, and the shortest way to either."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any, TypeVar, cast

import numpy as np

from trnpy import _einsum, _guards, _report
from trnpy._calibration import HostRates, current_rates
from trnpy._contraction import GREEDY, THIN, Plan, contract, costed
from trnpy._dispatch import Problem, Reason, Route, Unsupported, _trace, decide
from trnpy._engine import HOST, at_rest
from trnpy._policy import Policy, current_policy

# NumPy's own, bound before anything is patched.
_numpy_einsum = np.einsum
try:
    # What numpy.einsum calls for plain arrays without options, after as long as a small contraction takes.
    from numpy._core.multiarray import c_einsum
except ImportError:  # a NumPy that keeps it elsewhere
    c_einsum = np.einsum

NAME = "pairwise products"
LOOP_SMALL = 45_000  # multiply-adds: 15 us of NumPy's loop, as long as a route takes
SMALL = 400_000  # elements of one operand times those of the other, of which the loop takes an eighth at most: 15 us
ROUTE_S = 6e-6  # of the call's own making
SAMPLE = 32  # elements of an operand that are looked at for their magnitude, each a line of cache
SPARE = 256 * 2**20  # bytes that a result on the way may take even where the operands are smaller
REPAIRED = 0.02  # of the results that may be computed twice
F = TypeVar("F", bound=Callable[..., Any])


def route(
    p: Plan, arrays: tuple[np.ndarray, ...], dtype: np.dtype, scalar: bool = True, order: str = "K"
) -> Route | None:
    """NumPy's einsum loops over all labels unless told to optimize; products of matrices, by BLAS, do not.

    None where the loop is the only product, or one of a matrix and a vector, which moves as much memory, and where
    a result on the way takes more memory than a caller of a loop has a reason to expect.
    """
    if all(step.loops for step in p.steps) or (len(p.steps) == 1 and p.steps[0].blas_size < THIN):
        return None
    largest = max((math.prod(step.shape) for step in p.steps[:-1]), default=0) * dtype.itemsize
    if largest > max(SPARE, sum(a.nbytes for a in arrays)):
        return None
    return Route(
        NAME, functools.partial(_seconds, p, dtype), functools.partial(_products, p, dtype, scalar, arrays, order)
    )


@functools.lru_cache(maxsize=4096)
def _seconds(p: Plan, dtype: np.dtype, rates: HostRates) -> float:
    return p.host_s(rates, dtype) + ROUTE_S


def _products(p: Plan, dtype: np.dtype, scalar: bool, arrays: Sequence[np.ndarray], order: str = "K") -> Any:
    """The contraction by BLAS, with no warning: NumPy's loop has none.

    Infs and NaNs are the loop's to give, for sums in another order overflow elsewhere: Unsupported, before the
    products where a look at the operands can tell.  Those of a few rows and columns are computed once more.
    """
    # No sum of one product exceeds the product of norms, which where the result is larger take less time than it.
    proven = len(p.steps) == 1 and sum([a.size for a in arrays]) < math.prod(p.steps[0].shape)
    if not math.prod([_norm(a, proven) for a in arrays]) < _largest(dtype.char):
        raise Unsupported(Reason.VALUE, "infs, NaNs, or sums that may overflow")
    with np.errstate(all="ignore"):
        c = contract(p, arrays, dtype, (HOST,) * len(p.steps))
    # A finite sum has finite terms, and takes a fraction of a look at each.
    if not proven and not np.isfinite(c_einsum("i->", c.ravel("K"))) and (bad := ~np.isfinite(c)).any():
        _repair(p, arrays, dtype, c, bad)
    if order == "C":
        c = np.ascontiguousarray(c) if c.ndim else c
    return c[()] if scalar and not c.ndim else c


@functools.cache
def _largest(char: str) -> float:
    return float(np.finfo(np.dtype(char)).max)


def _norm(a: np.ndarray, whole: bool) -> float:
    """The Frobenius norm of ``a`` or of SAMPLE elements; infinite or NaN where one of them is, or nearly overflows."""
    if whole:
        some = a.ravel("K")
    elif a.flags.forc:
        some = a.ravel("K")[:: a.size // SAMPLE | 1]  # odd: a power of two would stay in one column
    else:
        some = a[tuple([slice(None, None, math.ceil(n / SAMPLE ** (1 / a.ndim))) for n in a.shape])]
    return math.sqrt(np.vdot(some, some).real)


def _repair(p: Plan, arrays: Sequence[np.ndarray], dtype: np.dtype, c: np.ndarray, bad: np.ndarray) -> None:
    """NumPy's loop over the smallest box of results that holds all ``bad`` ones; Unsupported where it is large."""
    box = [np.flatnonzero(bad.any(axis=tuple(j for j in range(c.ndim) if j != i))) for i in range(c.ndim)]
    if math.prod(map(len, box)) > REPAIRED * c.size:
        raise Unsupported(Reason.VALUE, "infs or NaNs")
    chosen = dict(zip(p.output, box, strict=True))
    some = [
        a[np.ix_(*(chosen[x] if n > 1 and x in chosen else np.arange(n) for x, n in zip(labels, a.shape, strict=True)))]
        for labels, a in zip(p.inputs, arrays, strict=True)
    ]
    c[np.ix_(*box)] = c_einsum(p.subscripts, *some, dtype=dtype)


@functools.lru_cache(maxsize=4096)
def _settled(
    subscripts: str, shapes: _einsum.Shapes, kinds: tuple[type[np.generic], ...], rates: HostRates
) -> Callable[..., Any] | None:
    """What answers every call of such operands while there is no device; None: what other rows do.

    With nothing to force and nothing to refuse all policies decide alike.
    """
    dtypes = tuple(map(np.dtype, kinds))
    operands = tuple([np.broadcast_to(np.zeros((), d), shape) for shape, d in zip(shapes, dtypes, strict=True)])
    if all(d.kind in "iub" for d in dtypes):
        return None
    if _einsum.loops((subscripts, *operands)) <= LOOP_SMALL:
        return c_einsum
    try:
        inputs, output, _ = _einsum.parse((subscripts, *operands))
        dtype = _guards.floating(*operands)
        p, cost = costed(inputs, output, shapes, tuple([d.itemsize for d in dtypes]), dtype, GREEDY, True)
    except Unsupported:
        return c_einsum
    problem = Problem((), dtype, cost, (), route(p, operands, dtype))
    if not decide("numpy.einsum", problem, None, Policy(), rates).route:
        return c_einsum

    def einsum(subscripts: str, *arrays: np.ndarray) -> Any:
        try:
            return _products(p, dtype, True, arrays)
        except Unsupported:
            return c_einsum(subscripts, *arrays)

    return einsum


def shortened(call: F) -> F:
    """``call``, a function that routes einsum, without what it does where nothing is recorded and there is no device.

    Decisions are pure functions of shapes, dtypes, policy and rates: the same calls have the same ones.
    """

    process, log, ndarray = _report.Process, _trace.get, np.ndarray

    @functools.wraps(call)
    def einsum(*operands: Any, **kwargs: Any) -> Any:
        if kwargs or process.ledger is not None or log() is not None:
            return call(*operands, **kwargs)
        policy = current_policy()
        if not at_rest(policy):
            return call(*operands)
        count, size = len(operands), 1
        if count == 2 and type(operands[1]) is ndarray:
            return c_einsum(*operands)
        if count == 3 and type(a := operands[1]) is ndarray and type(b := operands[2]) is ndarray:
            if a.size * b.size <= SMALL or type(operands[0]) is not str:
                return c_einsum(*operands)
        elif count < 3 or type(operands[0]) is not str:
            return call(*operands)
        else:
            for a in operands[1:]:
                if type(a) is not ndarray:
                    return call(*operands)
                size *= a.size
            if size <= SMALL:
                return c_einsum(*operands)
        if policy.fallback == "raise":
            return call(*operands)
        arrays = operands[1:]
        # A dtype's hash takes longer than those of all else; what byte order it has decides nothing.
        shapes, kinds = tuple([a.shape for a in arrays]), tuple([a.dtype.type for a in arrays])
        answer = _settled(operands[0], shapes, kinds, current_rates())
        return call(*operands) if answer is None else answer(*operands)

    return cast(F, einsum)
