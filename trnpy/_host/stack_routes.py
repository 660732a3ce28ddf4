"""The routes of stacks of small matrices: the supported stacks, their predicted costs, and each function's options."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from trnpy._base import conventions
from trnpy._base.records import record
from trnpy._call import guards
from trnpy._call.decisions import Cost, Problem, Route
from trnpy._call.host_table import HostRoute, Look
from trnpy._engine import lapack
from trnpy._host import compiled, stacks
from trnpy._report.no_path import SCHUR
from trnpy._report.reasons import Reason, Unsupported
from trnpy._settings.host_rates import FLOPS, HostRates
from trnpy.linalg._matrices import real, refuse, tolerance

Prepare = Callable[..., Problem]
Args = tuple[Any, ...]
Kwargs = dict[str, Any]

ROUTE_S = 10e-6  # overhead of the decision and of the route's checks, measured on 4 x 4 calls (benchmarks/linalg)


@functools.lru_cache(maxsize=1024)  # interpolating takes as long as a small call
def seconds_of(rates: HostRates, kind: str, n: float, flops: float, dtype: np.dtype) -> float:
    return rates.seconds(kind, n, flops, dtype)


@record()
class Stacked:
    """A function whose stacks NumPy computes faster than SciPy; measured bounds (benchmarks/linalg), two-fold safe."""

    least: int  # elements of the stack below which SciPy's loop ends before a route is chosen
    largest: int  # rows or columns from which both spend their time in the same LAPACK
    matrices: int = 1  # least number of matrices, so that testing the condition of one costs 1 % of the call
    compiled: bool = False  # whether it is faster than a compiled loop of SciPy, too: 1.18 has more of them than 1.17

    def worth_a_look(self, a: np.ndarray) -> bool:
        enough = a.size >= self.least and max(a.shape[-2:]) <= self.largest
        return enough and a.size >= self.matrices * a.shape[-1] * a.shape[-2]


STACKED: Mapping[str, Stacked] = {
    "cholesky": Stacked(128, 32),
    "qr": Stacked(64, 80),
    "eigh": Stacked(64, 128),
    "eigvalsh": Stacked(64, 72),
    "inv": Stacked(16000, 4, compiled=True),
    "svd": Stacked(64, 24),
    "svdvals": Stacked(64, 64),
    "pinv": Stacked(64, 24, 128),
    "pinvh": Stacked(64, 128, 128),
    "lstsq": Stacked(64, 16, 192),
}


# The same bounds for the compiled loops, whose only alternative is SciPy.
COMPILED: Mapping[str, Stacked] = {
    "cholesky": Stacked(64, 128),
    "det": Stacked(480, 96),
    "eig": Stacked(64, 36),
    "eigvals": Stacked(64, 36),
    "expm": Stacked(64, 8),
    "inv": Stacked(480, 128),
    "lu": Stacked(320, 96),
    "solve": Stacked(480, 96),
}
# The same for what SciPy computes in compiled loops from 1.18: None where these end as soon (benchmarks/linalg).
AGAINST_LOOPS: Mapping[str, Stacked | None] = {
    "cholesky": None,
    "det": Stacked(4000, 16),
    "eig": None,
    "eigvals": None,
    "expm": Stacked(400, 7),
    "lu": Stacked(4000, 16),
}


@functools.cache
def own(name: str) -> bool:
    """Whether ``name`` is computed by the compiled loops."""
    return name in COMPILED and compiled.loops() is not None


def bounds(name: str) -> Stacked | None:
    """The stacks for which there is a route, with the installed SciPy; None if there are none."""
    if own(name):
        return AGAINST_LOOPS.get(name, COMPILED[name]) if compiled.scipy_loops() else COMPILED[name]
    row = STACKED.get(name)
    return row if row is not None and pays(name) else None


@functools.cache
def pays(name: str) -> bool:
    """Whether NumPy computes stacks faster than the installed SciPy."""
    return STACKED[name].compiled or conventions.loops(getattr(lapack.linalg, name))


def stacked(name: str) -> Look:
    """The applicability check for stacks that may have a route."""

    def look(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
        a = args[0] if args else kwargs.get("A" if name == "expm" else "a")
        if type(a) is not np.ndarray or a.ndim < 3 or a.dtype.char not in "dD":
            return False
        if (row := bounds(name)) is None or not row.worth_a_look(a):
            return False
        judge = None if own(name) else stacks.SAMPLED.get(name)
        return judge is None or stacks.promising(judge, a)

    return look


def fixed(name: str) -> Callable[[tuple[Any, ...], dict[str, Any]], bool]:
    """Whether ``stacked(name)`` reads no elements: only NumPy's functions need a sample of a stack that pays."""

    def reads_none(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
        a = args[0] if args else kwargs.get("a", kwargs.get("A"))
        if type(a) is not np.ndarray or a.ndim < 3 or a.dtype.char not in "dD" or name not in stacks.SAMPLED:
            return True
        return own(name) or (row := bounds(name)) is None or not row.worth_a_look(a)

    return reads_none


class Call(NamedTuple):
    """``name`` of a stack arrays[0] (..., m, n), with ``run(*arrays, *options)`` or the compiled loop of that name."""

    name: str
    arrays: tuple[Any, ...]
    run: Callable[..., Any]
    options: tuple[Any, ...] = ()

    @conventions.uncounted
    def result(self) -> Any:
        run = compiled.RUN[self.name] if own(self.name) else self.run
        return run(*[guards.array(a) for a in self.arrays], *self.options)


def stack(call: Call, again: Callable[..., Any]) -> Problem:
    """The problem of ``call``: a route and no device path. ``again`` runs the route for other arguments."""
    name, arrays = call.name, tuple(guards.array(a) for a in call.arrays)
    a, row = arrays[0], bounds(name)
    if a.ndim < 3 or arrays[-1].size == 0 or row is None or not row.worth_a_look(a):
        raise Unsupported(Reason.LAYOUT, f"shape {a.shape} is not a stack of many small matrices")
    for array in arrays:  # one by one: SciPy must convert an integer next to a float
        if guards.floating(array).char not in "dD":  # NumPy computes float32 in float64: more accurate, but not equal
            raise Unsupported(Reason.DTYPE, f"stacks of {array.dtype}")  # to the result of a single matrix
        if not array.dtype.isnative:  # SciPy 1.17's own inv and solve misread it, and must give their own result
            raise Unsupported(Reason.DTYPE, f"byte order of {array.dtype.str}")
    dtype = guards.floating(*arrays)
    m, n = a.shape[-2:]
    if name not in ("qr", "svd", "svdvals", "pinv", "lstsq", "lu") and m != n:
        raise Unsupported(Reason.LAYOUT, f"matrices {m} by {n} are not square")
    if min(m, n) < 2 and name not in STACKED:
        raise Unsupported(Reason.LAYOUT, f"matrices {m} by {n}: SciPy divides numbers")
    flops = real(dtype) * FLOPS[name] * (a.size / min(m, n)) * min(m, n) ** 2
    size = (max(m, n) * min(m, n) ** 2) ** (1 / 3)
    cost = Cost(f"stacked {name}", size, flops, sum(x.nbytes for x in arrays), 0)

    def looped(rates: HostRates) -> float:
        return seconds_of(rates, f"stacked {name}", size, flops, dtype) / compiled.gain(name, size) + ROUTE_S

    def seconds(rates: HostRates) -> float:
        return seconds_of(rates, f"gufunc {name}", size, flops, dtype) + ROUTE_S

    if own(name):
        route = Route("a compiled loop", looped, call.result, again=again)
    else:
        route = Route("numpy.linalg over the stack", seconds, call.result, again=again)
    alone = name not in ("eig", "eigvals")  # whether the row has a device path for one matrix
    refusal = (Reason.LAYOUT, f"shape {a.shape} is not one matrix") if alone else (Reason.NO_PATH, SCHUR)
    return Problem(arrays, dtype, cost, route=route, on_device=False, refusal=refusal)


Options = Callable[..., Call]  # turns the caller's arguments into a Call; Unsupported if there is no route


def routed(options: Options) -> Callable[..., Problem]:
    """``prepare`` of a route whose row has no device path for stacks."""

    @conventions.uncounted
    def again(*args: Any, **kwargs: Any) -> Any:
        return options(*args, **kwargs).result()

    def prepare(_: Prepare, *args: Any, **kwargs: Any) -> Problem:
        return stack(options(*args, **kwargs), again)

    return prepare


def beside(options: Options) -> Callable[..., Problem]:
    """``prepare`` of a row that itself supports stacks: its problem, if it has one, with the route."""
    alone = routed(options)

    def prepare(row: Prepare, *args: Any, **kwargs: Any) -> Problem:
        try:
            found = alone(row, *args, **kwargs)
        except Unsupported:
            return row(*args, **kwargs)
        try:
            problem = row(*args, **kwargs)
        except Unsupported:
            return found
        return replace(problem, cost=found.cost, route=found.route)

    return prepare


# --- The options of each function -------------------------------------------------------------------------------------


def _cholesky(a: Any, lower: Any = False, overwrite_a: Any = False, check_finite: Any = True) -> Call:
    return Call("cholesky", (a,), stacks.cholesky, (bool(lower),))


def _qr(
    a: Any, overwrite_a: Any = False, lwork: Any = None, mode: Any = "full", pivoting: Any = False,
    check_finite: Any = True,
) -> Call:  # fmt: skip
    refuse(lwork is not None or pivoting, f"lwork={lwork!r}, pivoting={pivoting!r}: the host's")
    refuse(mode not in ("full", "qr", "r", "economic"), f"mode={mode!r}")
    return Call("qr", (a,), stacks.qr, (mode,))


def eigenpairs(
    a: Any, b: Any = None, *, lower: Any = True, eigvals_only: Any = False, overwrite_a: Any = False,
    overwrite_b: Any = False, type: Any = 1, check_finite: Any = True, subset_by_index: Any = None,
    subset_by_value: Any = None, driver: Any = None,
) -> Call:  # fmt: skip
    refuse(type not in (1, 2, 3), f"type={type!r}")
    refuse(not b is driver is subset_by_index is subset_by_value is None, "stacks with b, a driver or a subset")
    run = stacks.eigvalsh if eigvals_only else stacks.eigh
    return Call("eigvalsh" if eigvals_only else "eigh", (a,), run, (bool(lower),))


def _inv(
    a: Any, overwrite_a: Any = False, check_finite: Any = True, *, assume_a: Any = None, lower: Any = False
) -> Call:
    refuse(not (assume_a is None or assume_a in ("gen", "general")), f"stacks with assume_a={assume_a!r}")
    return Call("inv", (a,), stacks.inv)


def _svd(
    a: Any, full_matrices: Any = True, compute_uv: Any = True, overwrite_a: Any = False,
    check_finite: Any = True, lapack_driver: Any = "gesdd",
) -> Call:  # fmt: skip
    refuse(not isinstance(lapack_driver, str) or lapack_driver != "gesdd", f"lapack_driver={lapack_driver!r}")
    return Call("svd", (a,), stacks.svd, (bool(full_matrices),)) if compute_uv else _svdvals(a)


def _svdvals(a: Any, overwrite_a: Any = False, check_finite: Any = True) -> Call:
    return Call("svdvals", (a,), stacks.svdvals)


def _pinv(a: Any, *, atol: Any = None, rtol: Any = None, return_rank: Any = False, check_finite: Any = True) -> Call:
    return Call("pinv", (a,), stacks.pinv, (tolerance("atol", atol), tolerance("rtol", rtol), bool(return_rank)))


def pinvh(
    a: Any, atol: Any = None, rtol: Any = None, lower: Any = True, return_rank: Any = False,
    check_finite: Any = True,
) -> Call:  # fmt: skip
    options = tolerance("atol", atol), tolerance("rtol", rtol), bool(return_rank)
    return Call("pinvh", (a,), stacks.pinvh, (bool(lower), *options))


def _lstsq(
    a: Any, b: Any, cond: Any = None, overwrite_a: Any = False, overwrite_b: Any = False,
    check_finite: Any = True, lapack_driver: Any = None,
) -> Call:  # fmt: skip
    driver = getattr(lapack.linalg.lstsq, "default_lapack_driver") if lapack_driver is None else lapack_driver  # noqa: B009
    refuse(driver != "gelsd", f"stacks with lapack_driver={driver!r}")
    a, b = guards.array(a), guards.array(b)
    if b.ndim == 0 or (b.ndim > 2 and b.shape[:-2] != a.shape[:-2]):
        raise Unsupported(Reason.LAYOUT, f"matrices {a.shape} and right-hand sides {b.shape}")
    refuse(b.shape[max(b.ndim - 2, 0)] != a.shape[-2], f"shapes {a.shape} and {b.shape} do not match")
    return Call("lstsq", (a, b), stacks.lstsq, (tolerance("cond", cond),))


# --- Functions whose stacks only the compiled loops compute, and whose rows have a device path ------------------------


def _det(a: Any, overwrite_a: Any = False, check_finite: Any = True) -> Call:
    return Call("det", (a,), compiled.det)


def _eig(
    a: Any, b: Any = None, left: Any = False, right: Any = True, overwrite_a: Any = False, overwrite_b: Any = False,
    check_finite: Any = True, homogeneous_eigvals: Any = False,
) -> Call:  # fmt: skip
    refuse(b is not None or homogeneous_eigvals, "stacks with b or homogeneous_eigvals")
    refuse(not {left, right} <= {0, 1}, f"left={left!r}, right={right!r}")
    return Call("eig" if left or right else "eigvals", (a,), compiled.eig, (bool(left), bool(right)))


def _eigvals(
    a: Any, b: Any = None, overwrite_a: Any = False, check_finite: Any = True, homogeneous_eigvals: Any = False
) -> Call:
    return _eig(a, b, False, False, homogeneous_eigvals=homogeneous_eigvals)


def _expm(A: Any) -> Call:
    return Call("expm", (A,), compiled.expm)


def _lu(
    a: Any, permute_l: Any = False, overwrite_a: Any = False, check_finite: Any = True, p_indices: Any = False
) -> Call:
    return Call("lu", (a,), compiled.lu, (bool(permute_l), bool(p_indices)))


def _solve(
    a: Any, b: Any, lower: Any = False, overwrite_a: Any = False, overwrite_b: Any = False, check_finite: Any = True,
    assume_a: Any = None, transposed: Any = False,
) -> Call:  # fmt: skip
    known = assume_a is None or (isinstance(assume_a, str) and assume_a in ("gen", "general"))
    refuse(not known or transposed, f"stacks with assume_a={assume_a!r}, transposed={transposed!r}")
    a, b = guards.array(a), guards.array(b)
    if a.ndim < 3 or b.ndim == 0 or (b.ndim > 2 and b.shape[:-2] != a.shape[:-2]):
        raise Unsupported(Reason.LAYOUT, f"matrices {a.shape} and right-hand sides {b.shape}")
    refuse(b.shape[max(b.ndim - 2, 0)] != a.shape[-2], f"shapes {a.shape} and {b.shape} do not match")
    return Call("solve", (a, b), compiled.solve, (assume_a,))


ALONE: Mapping[str, Options] = {
    "cholesky": _cholesky, "qr": _qr, "eigvalsh": functools.partial(eigenpairs, eigvals_only=True),
    "svd": _svd, "svdvals": _svdvals, "pinv": _pinv, "lstsq": _lstsq, "eig": _eig, "eigvals": _eigvals,
}  # fmt: skip
BESIDE: Mapping[str, Options] = {"det": _det, "expm": _expm, "lu": _lu, "solve": _solve}

# --- Matrices that SciPy would overwrite ------------------------------------------------------------------------------

# SciPy 1.17 ends the process where inv or solve overwrites a symmetric indefinite matrix in Fortran order
# (https://github.com/scipy/scipy/issues/26045). inv overwrites its own conversions of other dtypes, too. Both leave a
# matrix in C order as it is. Position of ``overwrite_a`` among the arguments, and whether conversions are overwritten:
OVERWRITING: Mapping[str, tuple[int, bool]] = {"inv": (1, True), "solve": (3, False)}


def _may_be_overwritten(name: str, a: np.ndarray, args: Args, kwargs: Kwargs) -> bool:
    """Whether SciPy overwrites the matrix ``a``, or its conversion, if it is in Fortran order."""
    at, converts = OVERWRITING[name]
    overwrites = args[at] if len(args) > at else kwargs.get("overwrite_a", False)
    return overwrites is not False or (converts and a.dtype.char not in "fdFD")


def _whole(name: str) -> HostRoute:
    """The route of stacks, and SciPy's function of a copy in C order for a matrix that it might overwrite."""
    in_c_order = functools.partial(_in_c_order, name)
    look_stack, reads_no_stack = stacked(name), fixed(name)

    def look(args: Args, kwargs: Kwargs) -> bool | Callable[..., Any]:
        a = args[0] if args else kwargs.get("a")
        if isinstance(a, np.ndarray) and a.ndim == 2:
            in_rows = not a.size or abs(a.strides[0]) >= abs(a.strides[1])
            if in_rows or a[0, -1] not in (a[-1, 0], np.conjugate(a[-1, 0])):  # not symmetric
                return False
            return in_c_order if _may_be_overwritten(name, a, args, kwargs) else False
        return look_stack(args, kwargs)

    def reads_none(args: Args, kwargs: Kwargs) -> bool:
        """Whether the check reads neither elements nor the order of a matrix, which is not part of a cache key."""
        a = args[0] if args else kwargs.get("a")
        if isinstance(a, np.ndarray) and a.ndim == 2:
            return not _may_be_overwritten(name, a, args, kwargs)
        return reads_no_stack(args, kwargs)

    way, options = (routed, _inv) if name == "inv" else (beside, _solve)
    return HostRoute(look, way(options), fixed=reads_none)


@conventions.uncounted
def _in_c_order(name: str, *args: Any, **kwargs: Any) -> Any:
    """SciPy's ``name`` of a copy in C order."""
    function = getattr(lapack, name)
    if args:
        return function(args[0].copy("C"), *args[1:], **kwargs)
    return function(**kwargs | {"a": kwargs["a"].copy("C")})


ROUTES = {
    f"scipy.linalg.{name}": HostRoute(stacked(name), way(options), fixed=fixed(name))
    for way, named in ((routed, ALONE), (beside, BESIDE))
    for name, options in named.items()
}
ROUTES |= {f"scipy.linalg.{name}": _whole(name) for name in OVERWRITING}
