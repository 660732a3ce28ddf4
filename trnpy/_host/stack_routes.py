"""The route of stacks of small matrices: which stacks, what it costs, and each function's options."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from trnpy._base import conventions
from trnpy._base.records import record
from trnpy._call import guards
from trnpy._call.decisions import Cost, Problem, Route
from trnpy._call.host_table import HostRoute, Look
from trnpy._call.reasons import Reason, Unsupported
from trnpy._engine import lapack
from trnpy._host import stacks
from trnpy._settings.host_rates import FLOPS, HostRates
from trnpy.linalg._matrices import real, refuse, tolerance

Prepare = Callable[..., Problem]

ROUTE_S = 10e-6  # of deciding and of the route's own checks, measured on 4 x 4 calls (benchmarks/linalg)


@functools.lru_cache(maxsize=1024)  # interpolating takes as long as a small call
def seconds_of(rates: HostRates, kind: str, n: float, flops: float, dtype: np.dtype) -> float:
    return rates.seconds(kind, n, flops, dtype)


@record()
class Stacked:
    """A function whose stacks NumPy computes faster than SciPy; bounds measured by benchmarks/linalg, two-fold safe."""

    least: int  # elements of the stack: below, SciPy's loop is done before a route is chosen
    largest: int  # rows or columns: from there both spend their time in the same LAPACK
    matrices: int = 1  # of which one is looked at for its condition: that has to be a hundredth of the call
    compiled: bool = False  # worth it beside a compiled loop of SciPy's, too: 1.18 has more of them than 1.17

    def worth_a_look(self, a: np.ndarray) -> bool:
        enough = a.size >= self.least and max(a.shape[-2:]) <= self.largest
        return enough and a.size >= self.matrices * a.shape[-1] * a.shape[-2]


STACKED: Mapping[str, Stacked] = {
    "cholesky": Stacked(128, 32),
    "qr": Stacked(64, 32),
    "eigh": Stacked(64, 128),
    "eigvalsh": Stacked(64, 32),
    "inv": Stacked(16000, 4, compiled=True),
    "svd": Stacked(64, 12),
    "svdvals": Stacked(64, 32),
    "pinv": Stacked(64, 16, 128),
    "pinvh": Stacked(64, 128, 128),
    "lstsq": Stacked(64, 12, 192),
}


@functools.cache
def pays(name: str) -> bool:
    """Whether NumPy computes stacks faster than the installed SciPy."""
    return STACKED[name].compiled or conventions.loops(getattr(lapack.linalg, name))


def stacked(name: str) -> Look:
    """A look for a stack worth deciding about."""
    row, judge = STACKED[name], stacks.SAMPLED.get(name)

    def look(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
        a = args[0] if args else kwargs.get("a")
        if type(a) is not np.ndarray or a.ndim < 3 or not pays(name) or not row.worth_a_look(a):
            return False
        return judge is None or stacks.promising(judge, a)

    return look


def stack(name: str, arrays: tuple[np.ndarray, ...], run: Callable[..., Any], *options: Any) -> Problem:
    """``name`` of a stack arrays[0] (..., m, n), with ``run(*arrays, *options)`` as the route; no device path."""
    arrays = tuple(guards.array(a) for a in arrays)
    a = arrays[0]
    if a.ndim < 3 or arrays[-1].size == 0 or not STACKED[name].worth_a_look(a) or not pays(name):
        raise Unsupported(Reason.LAYOUT, f"shape {a.shape} is not a stack of many small matrices")
    for array in arrays:  # one by one: an integer next to a float is SciPy's to convert
        if guards.floating(array).char not in "dD":  # NumPy computes float32 in float64: better, yet not what one
            raise Unsupported(Reason.DTYPE, f"stacks of {array.dtype}")  # matrix of the stack would give
        if not array.dtype.isnative:  # SciPy 1.17's own inv and solve misread it: theirs to answer
            raise Unsupported(Reason.DTYPE, f"byte order of {array.dtype.str}")
    dtype = guards.floating(*arrays)
    m, n = a.shape[-2:]
    if name not in ("qr", "svd", "svdvals", "pinv", "lstsq") and m != n:
        raise Unsupported(Reason.LAYOUT, f"matrices {m} by {n} are not square")
    flops = real(dtype) * FLOPS[name] * (a.size / min(m, n)) * min(m, n) ** 2
    size = (max(m, n) * min(m, n) ** 2) ** (1 / 3)
    cost = Cost(f"stacked {name}", size, flops, sum(x.nbytes for x in arrays), 0)

    def seconds(rates: HostRates) -> float:
        return seconds_of(rates, f"gufunc {name}", size, flops, dtype) + ROUTE_S

    route = Route("numpy.linalg over the stack", seconds, functools.partial(run, *arrays, *options))
    refusal = (Reason.LAYOUT, f"shape {a.shape} is not one matrix")
    return Problem(arrays, dtype, cost, route=route, on_device=False, refusal=refusal)


# --- The options of each function -------------------------------------------------------------------------------------


def _cholesky(_: Prepare, a: Any, lower: Any = False, overwrite_a: Any = False, check_finite: Any = True) -> Problem:
    return stack("cholesky", (a,), stacks.cholesky, bool(lower))


def _qr(
    _: Prepare, a: Any, overwrite_a: Any = False, lwork: Any = None, mode: Any = "full", pivoting: Any = False,
    check_finite: Any = True,
) -> Problem:  # fmt: skip
    refuse(lwork is not None or pivoting, f"lwork={lwork!r}, pivoting={pivoting!r}: the host's")
    refuse(mode not in ("full", "qr", "r", "economic"), f"mode={mode!r}")
    return stack("qr", (a,), stacks.qr, mode)


def eigenpairs(
    _: Prepare, a: Any, b: Any = None, *, lower: Any = True, eigvals_only: Any = False, overwrite_a: Any = False,
    overwrite_b: Any = False, type: Any = 1, check_finite: Any = True, subset_by_index: Any = None,
    subset_by_value: Any = None, driver: Any = None,
) -> Problem:  # fmt: skip
    refuse(type not in (1, 2, 3), f"type={type!r}")
    refuse(not b is driver is subset_by_index is subset_by_value is None, "stacks with b, a driver or a subset")
    run = stacks.eigvalsh if eigvals_only else stacks.eigh
    return stack("eigvalsh" if eigvals_only else "eigh", (a,), run, bool(lower))


def _inv(
    _: Prepare, a: Any, overwrite_a: Any = False, check_finite: Any = True, *, assume_a: Any = None, lower: Any = False
) -> Problem:
    refuse(not (assume_a is None or assume_a in ("gen", "general")), f"stacks with assume_a={assume_a!r}")
    return stack("inv", (a,), stacks.inv)


def _svd(
    _: Prepare, a: Any, full_matrices: Any = True, compute_uv: Any = True, overwrite_a: Any = False,
    check_finite: Any = True, lapack_driver: Any = "gesdd",
) -> Problem:  # fmt: skip
    refuse(not isinstance(lapack_driver, str) or lapack_driver != "gesdd", f"lapack_driver={lapack_driver!r}")
    return stack("svd", (a,), stacks.svd, bool(full_matrices)) if compute_uv else _svdvals(_, a)


def _svdvals(_: Prepare, a: Any, overwrite_a: Any = False, check_finite: Any = True) -> Problem:
    return stack("svdvals", (a,), stacks.svdvals)


def _pinv(
    _: Prepare, a: Any, *, atol: Any = None, rtol: Any = None, return_rank: Any = False, check_finite: Any = True
) -> Problem:
    return stack("pinv", (a,), stacks.pinv, tolerance("atol", atol), tolerance("rtol", rtol), bool(return_rank))


def _pinvh(
    _: Prepare, a: Any, atol: Any = None, rtol: Any = None, lower: Any = True, return_rank: Any = False,
    check_finite: Any = True,
) -> Problem:  # fmt: skip
    options = tolerance("atol", atol), tolerance("rtol", rtol), bool(return_rank)
    return stack("pinvh", (a,), stacks.pinvh, bool(lower), *options)


def _lstsq(
    _: Prepare, a: Any, b: Any, cond: Any = None, overwrite_a: Any = False, overwrite_b: Any = False,
    check_finite: Any = True, lapack_driver: Any = None,
) -> Problem:  # fmt: skip
    driver = getattr(lapack.linalg.lstsq, "default_lapack_driver") if lapack_driver is None else lapack_driver  # noqa: B009
    refuse(driver != "gelsd", f"stacks with lapack_driver={driver!r}")
    a, b = guards.array(a), guards.array(b)
    if b.ndim == 0 or (b.ndim > 2 and b.shape[:-2] != a.shape[:-2]):
        raise Unsupported(Reason.LAYOUT, f"matrices {a.shape} and right-hand sides {b.shape}")
    refuse(b.shape[max(b.ndim - 2, 0)] != a.shape[-2], f"shapes {a.shape} and {b.shape} do not match")
    return stack("lstsq", (a, b), stacks.lstsq, tolerance("cond", cond))


_PREPARE: Mapping[str, Callable[..., Problem]] = {
    "cholesky": _cholesky, "qr": _qr, "eigvalsh": functools.partial(eigenpairs, eigvals_only=True), "inv": _inv,
    "svd": _svd, "svdvals": _svdvals, "pinv": _pinv, "pinvh": _pinvh, "lstsq": _lstsq,
}  # fmt: skip
ROUTES = {f"scipy.linalg.{name}": HostRoute(stacked(name), prepare) for name, prepare in _PREPARE.items()}
