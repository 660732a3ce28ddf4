"""Routes of NumPy's products: matrix products in BLAS replace NumPy's loops over elements."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy import ndarray

from trnpy._call import guards
from trnpy._call.decisions import Problem
from trnpy._call.fast_path import LIMITS
from trnpy._call.guards import c_einsum
from trnpy._call.host_table import HostRoute, Look
from trnpy._einsum import grammar
from trnpy._einsum.grammar import WITHOUT_BLAS, Shapes
from trnpy._einsum.plan import GREEDY, Plan, plan
from trnpy._einsum.product import extent
from trnpy._host import integer, pairwise
from trnpy._host.pairwise import SMALL
from trnpy._report.reasons import Unsupported
from trnpy._settings.host_rates import HostRates

if TYPE_CHECKING:
    from trnpy._einsum.plan import Contraction

# NumPy's own, bound before anything is patched.
_einsum, _tensordot = np.einsum, np.tensordot
_DOT = np.dot
_PRODUCTS: dict[str, Callable[..., Any]] = {"matmul": np.matmul, "dot": _DOT, "inner": np.inner}

Args = tuple[Any, ...]
Kwargs = dict[str, Any]
Fixed = Callable[[Args, Kwargs], bool]
EXACT = frozenset(WITHOUT_BLAS)
MATRIX_S = 0.15e-6  # overhead of each BLAS call that NumPy's matmul makes for a stack
INTEGER_SMALL = LIMITS["numpy.matmul"].product  # of the operands' sizes, up to which no route is considered


def _without_blas(a: Any, b: Any) -> bool:
    """Whether NumPy multiplies ``a`` and ``b`` in a loop that is long enough to consider a route."""
    if type(b) is not ndarray or type(a) is not ndarray or b.dtype.char not in WITHOUT_BLAS:
        return False
    if b.ndim == 0:
        return False
    terms = a.shape[-1] if a.ndim and a.shape[-1] in b.shape else max(b.shape)
    if a.size * b.size <= max(INTEGER_SMALL, integer.least(b.dtype) * terms):
        return False
    if b.dtype.char != "?" or a.dtype.char != "?":
        return a.dtype.kind not in "iu" or b.dtype.kind not in "iu" or integer.promising(a, b)
    return integer.loops_long(a, b, terms)


def _in_c(product: integer.Product, args: Args) -> bool:
    """Whether the compiled loop multiplies the first two of ``args``, which are integers, whatever their values are."""
    return len(args) > 1 and type(args[0]) is type(args[1]) is ndarray and integer.in_c(product, args[0], args[1])


def _long_in_c(a: ndarray, b: ndarray) -> bool:
    """Whether the compiled loop pays for two matrices or two stacks."""
    stacked = len(a) if a.ndim == 3 else 1  # whose length is in both sizes
    enough = a.size * b.size > integer.COMPILED_LEAST * a.shape[-1] * stacked
    return bool(enough and a.shape[-2] * b.size > integer.MATRIX_LEAST * stacked)


def _of_integers(product: integer.Product) -> tuple[Look, Fixed]:
    """``_look`` and ``_fixed`` of matmul, dot or inner."""

    def look(args: Args, kwargs: Kwargs) -> bool:
        return _long_in_c(*args[:2]) if _in_c(product, args) else _look(args, kwargs)

    return look, lambda args, kwargs: _in_c(product, args) or _fixed(args, kwargs)


@functools.lru_cache(maxsize=4096)
def _of_matrices(subscripts: str) -> integer.Product | None:
    """NumPy's function for the product of two matrices that ``subscripts`` denote; None if they denote another one."""
    inputs, arrow, output = subscripts.replace(" ", "").partition("->")
    a, _, b = inputs.partition(",")
    if len(a) != 2 or len(b) != 2 or len({*a, *b}) != 3 or not (a + b).isalpha():
        return None
    output = output if arrow else "".join(sorted({*a} ^ {*b}))
    if a[1] == b[0] and output == a[0] + b[1]:
        return _DOT
    return np.inner if a[1] == b[1] and output == a[0] + b[0] else None


def _einsum_in_c(args: Args) -> integer.Product | None:
    """The product of two matrices of integers that an einsum without options denotes, if the compiled loop does it."""
    if len(args) != 3 or type(args[0]) is not str or (product := _of_matrices(args[0])) is None:
        return None
    if not _in_c(product, args[1:]):
        return None
    terms = args[2].shape[1 if integer.TURNED[product] else 0]  # einsum repeats an axis of length one
    return product if args[1].shape[1] == terms else None


def _look(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    return len(args) > 1 and _without_blas(args[0], args[1])


def _look_einsum(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool | Callable[..., Any]:
    """Whether NumPy loops over enough products (at most the product of the sizes) for a route to pay."""
    plain = not kwargs and type(args[0]) is str if args else False
    if plain and len(args) == 3:  # without a loop: most calls
        _, a, b = args
        if type(a) is ndarray and type(b) is ndarray:
            if a.size * b.size <= SMALL:
                return c_einsum
            if not {a.dtype.char, b.dtype.char} <= EXACT:
                return True
            if _einsum_in_c(args) is not None:
                return _long_in_c(a, b)
            return _without_blas(a, b) or _sums_first(args[0], (a.shape, b.shape), b.dtype.char)
    arrays = [a for a in args if type(a) is ndarray]
    if len(arrays) < 2 or math.prod([a.size for a in arrays]) <= SMALL:
        return c_einsum if plain and len(arrays) == len(args) - 1 else False
    if plain and len(arrays) == 3 == len(args) - 1 and _alike(args[0]) and all(a.flags.c_contiguous for a in arrays):
        return c_einsum  # it has a loop for three operands that reads them once; a route would read them more often
    if {a.dtype.char for a in arrays} <= EXACT:  # of two operands only
        return len(arrays) == 2 and _without_blas(*arrays)
    return kwargs.get("optimize", False) is False


@functools.lru_cache(maxsize=4096)
def _alike(subscripts: str) -> bool:
    """Whether all operands have the same labels."""
    return len({*subscripts.partition("->")[0].split(",")}) == 1


def _direct_einsum(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Callable[..., Any] | None:
    plain = not kwargs and args and type(args[0]) is str and all(type(a) is ndarray for a in args[1:])
    return c_einsum if plain else None


def _look_pyscf(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Whether the operands are large enough for NumPy's loop to be slow."""
    sizes = [a.size for a in args if type(a) is ndarray]
    return len(sizes) > 1 and math.prod(sizes) > SMALL


def _exact(problem: Contraction, product: integer.Product, plain: bool = False) -> Contraction:
    """``problem`` with a route if NumPy multiplies its dtypes in a loop; for all others NumPy already calls BLAS.

    ``plain``: the call has only two matrices as arguments, so later calls with the same cache key can reuse its route.
    """
    if problem.cost.kind != "integer":
        return problem
    route = (integer.half_route if problem.dtype.char == "e" else integer.route)(problem, product)
    called_s = MATRIX_S * extent(problem.plan.sizes, problem.plan.steps[0].batch)

    def seconds(rates: HostRates) -> float:
        return route.seconds(rates) + called_s

    return replace(problem, route=replace(route, seconds=seconds, again=route.again if plain else None))


def _product(prepare: Callable[..., Contraction], *args: Any, product: integer.Product, **kwargs: Any) -> Contraction:
    plain = not kwargs and len(args) == 2 and all(type(a) is ndarray and a.ndim == 2 for a in args)
    return _exact(prepare(*args, **kwargs), product, plain)


def _again(problem: Contraction, form: Callable[[Callable[..., Any]], Callable[..., Any]]) -> Contraction:
    """``problem`` with the route's function for later calls in the form of its own function's arguments."""
    route = problem.route
    if route is None or route.again is None:
        return problem
    return replace(problem, route=replace(route, again=form(route.again)))


def _of_tensordot(prepare: Callable[..., Contraction], a: Any, b: Any, axes: Any = 2) -> Contraction:
    if not _is_dot(a, b, axes):
        return _exact(prepare(a, b, axes), functools.partial(_tensordot, axes=axes))
    return _again(_exact(prepare(a, b, axes), _DOT, plain=True), lambda again: lambda a, b, axes: again(a, b))


def _is_dot(a: Any, b: Any, axes: Any = 2) -> bool:
    return type(axes) is int and axes == 1 and type(a) is type(b) is ndarray and a.ndim == b.ndim == 2


def _by_dot(of_dot: Look | Fixed, others: Look | Fixed) -> Callable[[Args, Kwargs], Any]:
    """``of_dot`` if a call of tensordot is a product of two matrices, otherwise ``others``."""

    def chosen(args: Args, kwargs: Kwargs) -> Any:
        axes = args[2] if len(args) > 2 else kwargs.get("axes", 2)
        return (of_dot if len(args) > 1 and _is_dot(args[0], args[1], axes) else others)(args, kwargs)

    return chosen


def _of_einsum(prepare: Callable[..., Contraction], *operands: Any, **kwargs: Any) -> Contraction:
    problem = prepare(*operands, **kwargs)
    if problem.cost.kind == "integer":
        if integer.sums_first(problem.plan, problem.dtype.char) and problem.out is None:
            plain = not kwargs and type(operands[0]) is str
            return replace(problem, route=integer.summed_route(problem, plain))
        if problem.plan.steps[0].loops or not pairwise.one_product(problem.plan):
            return problem
        if not kwargs and (product := _einsum_in_c(operands)) is not None:
            return _again(_exact(problem, product, plain=True), lambda again: lambda subscripts, a, b: again(a, b))
        exact = _exact(problem, functools.partial(_einsum, problem.plan.subscripts, optimize=True))
        if (route := exact.route) is None:
            return exact
        # Unlike NumPy's matmul, its einsum does not warn in products and conversions of float16.
        return replace(exact, route=replace(route, run=functools.partial(guards.QUIET.copy().run, route.run)))
    return replace(problem, route=pairwise.route(problem))


def _of_pyscf(prepare: Callable[..., Any], *args: Any, **kwargs: Any) -> Problem:
    """A product that updates an array, like BLAS's gemm."""
    update = prepare(*args, **kwargs)
    route = pairwise.route(update.product)
    if route is not None:
        found = route.run
        route = replace(route, run=lambda: update.deliver(update.scaled(found())), again=None)
    updated: Problem = replace(update, route=route)
    return updated


def _fixed(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Whether applicability checks read dtypes and shapes only; for integers, whether they are too few for a route."""
    arrays = [a for a in args if type(a) is ndarray]
    if len(arrays) < 2 or not all(a.dtype.kind in "iub" for a in arrays[-2:]):
        return True
    a, b = arrays[-2:]
    return b.ndim == 0 or a.size * b.size <= max(INTEGER_SMALL, integer.least(b.dtype) * max(b.shape))


@functools.lru_cache(maxsize=4096)
def _planned(subscripts: str, shapes: Shapes) -> Plan | None:
    try:
        inputs, output, _ = grammar.parse((subscripts, *[np.broadcast_to(0, shape) for shape in shapes]))
        return plan(inputs, output, shapes, GREEDY)
    except (Unsupported, ValueError):
        return None


def _only_looped(subscripts: str, shapes: Shapes) -> bool:
    """Whether the values of two operands of integers do not decide what computes this contraction."""
    found = _planned(subscripts, shapes)
    return (
        found is None or not found.output or not found.steps or found.steps[0].loops or not pairwise.one_product(found)
    )


def _sums_first(subscripts: str, shapes: Shapes, char: str) -> bool:
    found = _planned(subscripts, shapes)
    return found is not None and integer.sums_first(found, char)


def _fixed_einsum(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    plain = len(args) == 3 and type(args[0]) is str and type(args[1]) is type(args[2]) is ndarray
    operands = sum([type(a) is ndarray for a in args])
    if operands > 2 or _fixed(args, kwargs):
        return True
    matrices = not kwargs and _einsum_in_c(args) is not None
    return matrices or (plain and _only_looped(args[0], (args[1].shape, args[2].shape)))


_look_dot, _fixed_dot = _of_integers(_DOT)
ROUTES = {
    **{
        f"numpy.{name}": HostRoute(look, functools.partial(_product, product=product), fixed=fixed)
        for name, product in _PRODUCTS.items()
        for look, fixed in (_of_integers(product),)
    },
    "numpy.tensordot": HostRoute(_by_dot(_look_dot, _look), _of_tensordot, fixed=_by_dot(_fixed_dot, _fixed)),
    "numpy.einsum": HostRoute(_look_einsum, _of_einsum, direct=_direct_einsum, fixed=_fixed_einsum),
    "pyscf.lib.einsum": HostRoute(_look_pyscf, _of_pyscf),
    "pyscf.lib.contract": HostRoute(_look_pyscf, _of_pyscf),
}
