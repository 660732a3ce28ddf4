"""The routes of scipy.linalg.eigh: stacks, and divide and conquer for whole real spectra."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from numpy import ndarray

from trnpy._call.decisions import Problem, Route
from trnpy._call.host_table import HostRoute
from trnpy._engine import lapack
from trnpy._host import stack_routes, tridiagonal
from trnpy._host.stack_routes import ROUTE_S, seconds_of
from trnpy._report.reasons import Reason, Unsupported
from trnpy._settings.host_rates import FLOPS, HostRates
from trnpy._settings.tile import length

# Rows from which it is 1.2 to 1.5 times as fast with 1 and 2 threads, Haswell, Zen and SkylakeX kernels (2026-11-28);
# at 80 rows 1.0 to 1.3 times.
EVD_LEAST = length(100)


def look_eigh(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """A stack, or a whole real spectrum with the default driver."""
    a = args[0] if args else kwargs.get("a")
    if type(a) is not ndarray:
        return False
    if a.ndim == 2:
        return len(a) >= EVD_LEAST and a.dtype.char in "df" and len(args) < 2 and kwargs.keys() <= PLAIN
    return _look_stacked_eigh(args, kwargs) is True


_look_stacked_eigh = stack_routes.stacked("eigh")
_of_stacks = stack_routes.routed(stack_routes.eigenpairs)
PLAIN = frozenset(
    {"a", "lower", "overwrite_a", "check_finite", "type"}
)  # leave the default driver and the whole spectrum


def evd(problem: Any) -> Route:
    """All eigenpairs of a real symmetric (n, n) by divide and conquer. MRRR, SciPy's default, is better if complex."""
    (a,), dtype, lower = problem.arrays, problem.dtype, problem.lower
    n = len(a)

    def again(a: ndarray, **named: Any) -> Any:
        try:
            return tridiagonal.eigh(a, lower, dtype)
        except (lapack.LinAlgError, tridiagonal.OutOfRange) as why:
            raise Unsupported(Reason.VALUE, str(why)) from why

    def seconds(rates: HostRates) -> float:
        return seconds_of(rates, "eigh evd", n, FLOPS["eigh"] * n**3, dtype) + ROUTE_S

    return Route("evd", seconds, functools.partial(again, a), again=again)


def prepare(row: Callable[..., Problem], a: Any, *options: Any, **named: Any) -> Problem:
    if a.ndim > 2:
        return _of_stacks(row, a, *options, **named)
    problem = row(a, *options, **named)
    return replace(problem, route=evd(problem))


ROUTES = {"scipy.linalg.eigh": HostRoute(look_eigh, prepare, fixed=stack_routes.fixed("eigh"))}
