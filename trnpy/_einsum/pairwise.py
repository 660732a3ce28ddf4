"""numpy.einsum on the host by products of matrices: the route where NumPy loops, and the shortest way to either."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any, Final, TypeVar, cast

import numpy as np

from trnpy._call import guards
from trnpy._call.dispatch import Problem, Reason, Route, Unsupported, _trace, decide
from trnpy._einsum import grammar
from trnpy._einsum.grammar import THIN, WITHOUT_BLAS
from trnpy._einsum.plan import GREEDY, Plan, contract, costed
from trnpy._einsum.product import c_einsum, on_host
from trnpy._engine.engines import HOST, at_rest
from trnpy._report import ledger
from trnpy._settings.host_rates import HostRates, current_rates
from trnpy._settings.policy import Attention, Policy, current_policy, settled_policy
from trnpy._settings.policy import Process as policy_process

NAME = "pairwise products"
LOOP_SMALL = 45_000  # multiply-adds: 15 us of NumPy's loop, as long as a route takes
SMALL = 400_000  # elements of one operand times those of the other, of which the loop takes an eighth at most: 15 us
ROUTE_S = 6e-6  # of the call's own making
SAMPLE = 8  # elements of an operand that are looked at for their magnitude, each a line of cache
LONG_FLOPS = 4e5  # 100 us of NumPy's loop: from there a look of 2 us is taken before one product, not after it
SPARE = 256 * 2**20  # bytes that a result on the way may take even where the operands are smaller
REPAIRED = 0.1  # of the results that may be computed twice: a route is chosen where it saves a sixth
CAST = 2**17  # elements of two vectors from which BLAS is faster than NumPy's loop although it needs a copy of one
ANSWERS = 4096  # kinds of calls that are remembered, of which a program has few
F = TypeVar("F", bound=Callable[..., Any])


def route(
    p: Plan, arrays: tuple[np.ndarray, ...], dtype: np.dtype, scalar: bool = True, order: str = "K"
) -> Route | None:
    """NumPy's einsum loops over all labels unless told to optimize; products of matrices, by BLAS, do not.

    None where the loop is the only product, or a thin one, or the sum of few elements that BLAS would need a copy of,
    and where a result on the way takes more memory than a caller of a loop has a reason to expect.
    """
    if all(step.loops for step in p.steps):
        return None
    if len(p.steps) == 1:
        (step,) = p.steps
        few = step.vector and not step.result and step.extents[1] < CAST
        if (step.blas_size < THIN and not step.vector) or (few and any(a.dtype != dtype for a in arrays)):
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
    products where a look at the operands can tell.  Those of a few rows and columns are computed once more, and those
    of one product that come from infs and NaNs alone are the same in any order.
    """
    # Beside stacks and vectors, which empty the caches and are soon done, the look takes 4 % of the product.
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
    """Unsupported where what is looked at of the operands has infs or NaNs, or products that may overflow."""
    if not math.prod(map(_norm, arrays)) < _largest(dtype.char):
        raise Unsupported(Reason.VALUE, "infs, NaNs, or sums that may overflow")


def _in_any_order(p: Plan, arrays: Sequence[np.ndarray], dtype: np.dtype) -> bool:
    """Whether infs and NaNs of the result come from operands alone: real ones of one product, too small to overflow.

    Of complex numbers BLAS multiplies the result by 1 + 0i, which makes NaNs of infs.
    """
    if not _one_product(p) or dtype.kind == "c":
        return False
    bound = float(p.steps[0].extents[1])
    for a in arrays:
        sizes = np.abs(a.astype(dtype, copy=False))  # the least of integers has no absolute value among them
        bound *= float(sizes.max(initial=0, where=np.isfinite(sizes)))
    return bound < _largest(dtype.char)


def _one_product(p: Plan) -> bool:
    """Whether operands are multiplied as they are: no diagonals or sums of them, no product of products."""
    return len(p.steps) == 1 and all(taken.index is None and taken.subscripts is None for taken in p.taken)


@functools.lru_cache(maxsize=4096)
def _multiplier(p: Plan, dtype: np.dtype) -> Callable[..., np.ndarray]:
    """The contraction of a call's operands on the host."""
    if not _one_product(p):
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
    """The Frobenius norm of about SAMPLE elements of ``a``; infinite or NaN where one is."""
    # Odd steps, for a power of two would stay in one column; Python's numbers, for beside operands that empty the
    # caches each of NumPy's calls takes 1.5 us.
    some = map(a.item, range(0, a.size, a.size // SAMPLE | 1))
    return math.hypot(*some) if a.dtype.kind != "c" else math.hypot(*[part for x in some for part in (x.real, x.imag)])


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
    subscripts: str, shapes: grammar.Shapes, kinds: tuple[type[np.generic], ...], rates: HostRates
) -> Callable[..., Any] | None:
    """What answers every call of such operands while there is no device; None: what other rows do.

    With nothing to force and nothing to refuse all policies decide alike.
    """
    dtypes = tuple(map(np.dtype, kinds))
    operands = tuple([np.broadcast_to(np.zeros((), d), shape) for shape, d in zip(shapes, dtypes, strict=True)])
    if all(d.kind in "iub" for d in dtypes):
        return None
    if grammar.loops((subscripts, *operands)) <= LOOP_SMALL:
        return c_einsum
    try:
        inputs, output, _ = grammar.parse((subscripts, *operands))
        dtype = guards.floating(*operands)
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


class _Rest:
    """Under which policy of the process, and with which rates, shapes and dtypes alone gave the ``answers``."""

    policy: Policy | None = None
    rates: HostRates | None = None
    answers: Final[dict[tuple[Any, ...], Callable[..., Any]]] = {}


def shortened(call: F) -> F:
    """``call``, a function that routes einsum, without what it does where nothing is recorded and there is no device.

    Decisions are pure functions of shapes, dtypes, policy and rates: the same calls have the same ones.
    """
    process, attention, rest, answers, rates = policy_process, Attention, _Rest, _Rest.answers, current_rates
    ndarray, reference = np.ndarray, call.__trnpy_op__.reference  # type: ignore[attr-defined]

    @functools.wraps(call)
    def einsum(*operands: Any, **kwargs: Any) -> Any:
        # As few things as can be: beside operands that empty the caches each takes ten times its time.
        if process.policy is not rest.policy or attention.asked or rates() is not rest.rates:
            return _considered(call, operands, kwargs)
        if kwargs:
            last = operands[-1] if operands else None
            plain = type(last) is ndarray and len(operands) == 3 and last.dtype.char not in WITHOUT_BLAS
            return reference(*operands, **kwargs) if plain else _considered(call, operands, kwargs)
        if len(operands) == 2 and type(operands[1]) is ndarray:
            return c_einsum(*operands)
        if len(operands) == 3 and type(operands[0]) is str:
            subscripts, a, b = operands
            if type(a) is ndarray and type(b) is ndarray:
                if a.size * b.size <= SMALL:
                    return c_einsum(subscripts, a, b)
                answer = answers.get((subscripts, a.shape, b.shape, a.dtype.type, b.dtype.type))
                if answer is not None:
                    return answer(subscripts, a, b)
        return _considered(call, operands, kwargs)

    return cast(F, einsum)


def _considered(call: Callable[..., Any], operands: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The contraction by ``call``, or by what is known to answer such calls."""
    policy = current_policy()
    if ledger.Process.ledger is not None or _trace.get() is not None or not at_rest(policy):
        return call(*operands, **kwargs)
    rates = current_rates()
    if policy is settled_policy() and not (_Rest.policy is policy and _Rest.rates is rates):
        _Rest.policy, _Rest.rates = policy, rates
        _Rest.answers.clear()
    if kwargs:
        return call(*operands, **kwargs)
    arrays = operands[1:]
    if len(arrays) == 1 and type(arrays[0]) is np.ndarray:
        return c_einsum(*operands)
    if len(arrays) < 2 or type(operands[0]) is not str or any(type(a) is not np.ndarray for a in arrays):
        return call(*operands)
    if math.prod([a.size for a in arrays]) <= SMALL:
        return c_einsum(*operands)
    if policy.fallback == "raise":
        return call(*operands)
    # A dtype's hash takes longer than those of all else; what byte order it has decides nothing.
    shapes, kinds = tuple([a.shape for a in arrays]), tuple([a.dtype.type for a in arrays])
    answer = _settled(operands[0], shapes, kinds, rates)
    if answer is None:
        return call(*operands)
    if len(arrays) == 2 and policy is settled_policy() and len(_Rest.answers) < ANSWERS:
        _Rest.answers[operands[0], *shapes, *kinds] = answer
    return answer(*operands)
