"""The routes of scipy.linalg.pinvh: stacks, and divide and conquer for one matrix; SciPy uses QR iterations."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from trnpy._call import guards
from trnpy._call.decisions import Problem, Route
from trnpy._call.host_table import HostRoute
from trnpy._engine import lapack
from trnpy._host import positive, stack_routes, tridiagonal
from trnpy._host.stack_routes import ROUTE_S, seconds_of
from trnpy._report.reasons import Reason, Unsupported
from trnpy._settings.host_rates import FLOPS, HostRates
from trnpy._settings.tile import length
from trnpy.linalg._matrices import NEAR, real

LEAST = length(88)  # rows: 1.2 to 1.5 times SciPy's speed at 90, 2 to 3.8 times at 256 (AMD EPYC, 2026-11-28)


def look_pinvh(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    a = args[0] if args else kwargs.get("a")
    if type(a) is not np.ndarray:
        return False
    if a.ndim == 2:
        return a.shape[0] == a.shape[1] >= LEAST and a.dtype.char in "fdFD" and a.dtype.isnative
    return _look_stacked(args, kwargs) is True


_look_stacked = stack_routes.stacked("pinvh")
_of_stacks = stack_routes.routed(stack_routes.pinvh)


def of_one(problem: Any) -> Route:
    """The route for one Hermitian (n, n)."""
    (a,), dtype = problem.arrays, problem.dtype
    n = len(a)
    cube = real(dtype) * float(n) ** 3

    def seconds(rates: HostRates) -> float:
        vectors = seconds_of(rates, "eigh evd", n, FLOPS["eigh"] * cube, dtype)
        return vectors + seconds_of(rates, "matmul", n, 2 * cube, dtype) + ROUTE_S

    def run() -> Any:
        return _inverse(a, problem.lower, problem.atol, problem.rtol, problem.return_rank)

    return Route("eigenvectors by divide and conquer", seconds, run)


def _inverse(a: np.ndarray, lower: bool, atol: float | None, rtol: float | None, return_rank: bool) -> Any:
    """The pseudo-inverse of a (n, n), of which one triangle is read, and its rank if ``return_rank``."""
    if not guards.all_finite(a):
        raise Unsupported(Reason.VALUE, "infs or NaNs")
    try:
        if a.dtype.kind == "f" and len(a) >= positive.BY_STEPS:
            w, q = tridiagonal.eigh(a, lower, a.dtype)
        else:
            w, q = lapack.eigh(a, lower=lower, driver="evd", check_finite=False)
    except (lapack.LinAlgError, tridiagonal.OutOfRange) as why:
        raise Unsupported(Reason.VALUE, str(why)) from why
    info, sizes = np.finfo(w.dtype), np.abs(w)
    relative = len(a) * float(info.eps) if rtol is None else rtol
    threshold = (atol or 0.0) + float(sizes.max()) * relative
    kept = sizes > threshold
    if ((sizes > threshold / NEAR) & (sizes < threshold * NEAR)).any():
        raise Unsupported(Reason.VALUE, "an eigenvalue near the threshold")
    if not (kept.any() and float(sizes[kept].min()) > 4 * float(info.tiny)):
        raise Unsupported(Reason.VALUE, "a rank of zero, or reciprocals that overflow")
    rank = int(np.count_nonzero(kept))
    if rank < len(a):
        w, q = w[kept], np.asfortranarray(q[:, kept])
    x = positive.scaled_product(q, 1 / w)
    return (x, rank) if return_rank else x


def prepare(row: Callable[..., Problem], a: Any, *options: Any, **named: Any) -> Problem:
    if a.ndim > 2:
        return _of_stacks(row, a, *options, **named)
    problem = row(a, *options, **named)
    return replace(problem, route=of_one(problem))


ROUTES = {"scipy.linalg.pinvh": HostRoute(look_pinvh, prepare, fixed=stack_routes.fixed("pinvh"))}
