"""The route of BLAS's gemm: a product of a matrix with its own transpose is symmetric."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from trnpy._call.decisions import Problem, Route
from trnpy._call.host_table import HostRoute
from trnpy._engine import lapack
from trnpy._host.stack_routes import ROUTE_S
from trnpy._settings.host_rates import HostRates
from trnpy._settings.tile import area
from trnpy.linalg._matrices import mirror

# Elements: 300 x 300 gains 1.3 to 1.4, 300 x 150 1.1 to 1.2; 377 x 188 of float32 0.86 to 1.4 (Haswell and SkylakeX
# kernels, one thread, 2026-11-28).
SYRK_LEAST = area(300 * 300)


def by_syrk(problem: Any) -> Route | None:
    """A A^T or A^T A: one triangle, at half the operations, is computed and mirrored."""
    (a, b), call, cost, dtype = problem.arrays[:2], problem.call, problem.cost, problem.dtype
    if a is not b or {call.trans, call.trans_b} != {"N", "T"} or call.beta != 0 or problem.c is not None:
        return None

    def seconds(rates: HostRates) -> float:
        mirrored: float = 2 * cost.bytes_out / rates.copy_bytes_per_s  # a triangle with strides, the other without
        return rates.seconds("matmul", cost.n, cost.flops / 2, dtype) + mirrored + ROUTE_S

    def run() -> np.ndarray:
        (syrk,) = lapack.blas.get_blas_funcs(("syrk",), (a,))
        # f2py would copy an array in C order; its transpose is in Fortran order.
        turned = not a.flags.f_contiguous
        c = syrk(call.alpha, a.T if turned else a, trans=(call.trans != "N") != turned, lower=1)
        mirror(c)
        return np.asarray(c)

    return Route("syrk", seconds, run, flops=cost.flops / 2)


def look_gemm(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """One array twice, so large that mirroring costs little."""
    if len(args) < 3 or args[1] is not args[2] or type(args[1]) is not np.ndarray:
        return False
    return args[1].size >= SYRK_LEAST and bool(kwargs.get("trans_a", 0)) != bool(kwargs.get("trans_b", 0))


def prepare(row: Callable[..., Problem], *args: Any, **kwargs: Any) -> Problem:
    problem = row(*args, **kwargs)
    return replace(problem, route=by_syrk(problem))


_GEMM = HostRoute(look_gemm, prepare, fixed=lambda args, kwargs: True)
ROUTES = dict.fromkeys(("scipy.linalg.blas.sgemm", "scipy.linalg.blas.dgemm"), _GEMM)
