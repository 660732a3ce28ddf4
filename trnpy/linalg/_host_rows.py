"""The rows of scipy.linalg with another route on the host and no device path: SciPy's options, one function each."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import scipy.linalg as reference

from trnpy._dispatch import Op, Problem, Reason, Unsupported
from trnpy.linalg import _routes, _stacks
from trnpy.linalg._matrices import SMALL, tolerance


def _refuse(reason: bool, what: str) -> None:
    if reason:
        raise Unsupported(Reason.PARAM, what)


def prepare_svd(
    a: Any, full_matrices: Any = True, compute_uv: Any = True, overwrite_a: Any = False, check_finite: Any = True,
    lapack_driver: Any = "gesdd",
) -> Problem:  # fmt: skip
    _refuse(not isinstance(lapack_driver, str) or lapack_driver != "gesdd", f"lapack_driver={lapack_driver!r}")
    if not compute_uv:
        return _routes.stack("svdvals", (a,), _stacks.svdvals)
    return _routes.stack("svd", (a,), _stacks.svd, bool(full_matrices))


def prepare_svdvals(a: Any, overwrite_a: Any = False, check_finite: Any = True) -> Problem:
    return _routes.stack("svdvals", (a,), _stacks.svdvals)


def prepare_pinv(
    a: Any, *, atol: Any = None, rtol: Any = None, return_rank: Any = False, check_finite: Any = True
) -> Problem:
    options = tolerance("atol", atol), tolerance("rtol", rtol), bool(return_rank)
    return _routes.stack("pinv", (a,), _stacks.pinv, *options)


def prepare_pinvh(
    a: Any, atol: Any = None, rtol: Any = None, lower: Any = True, return_rank: Any = False, check_finite: Any = True
) -> Problem:
    options = tolerance("atol", atol), tolerance("rtol", rtol), bool(return_rank)
    return _routes.stack("pinvh", (a,), _stacks.pinvh, bool(lower), *options)


def _no_options(options: tuple[Any, ...], named: dict[str, Any]) -> None:
    _refuse(bool(options or named), f"options {', '.join([*map(repr, options), *named])}")


def prepare_sqrtm(A: Any, *options: Any, **named: Any) -> Problem:
    _no_options(options, named)
    return _routes.of_positive("sqrtm", A, np.sqrt)


def prepare_logm(A: Any, *options: Any, **named: Any) -> Problem:
    _no_options(options, named)
    return _routes.of_positive("logm", A, np.log)


def prepare_fractional_matrix_power(A: Any, t: Any) -> Problem:
    real = isinstance(t, (int, float)) and math.isfinite(t)
    _refuse(not real or t == int(t), f"t={t!r}: an integer is for products, not for eigenvectors")
    return _routes.of_positive("fractional_matrix_power", A, lambda w: w**t)


def _row(name: str, prepare: Any, look: _routes.Look) -> Op:
    host_only = _routes.host_only
    return Op(f"scipy.linalg.{name}", getattr(reference, name), prepare, host_only, host_only, SMALL, routed=look)


HOST_OPS = (
    _row("svd", prepare_svd, _routes.stacked("svd")),
    _row("svdvals", prepare_svdvals, _routes.stacked("svdvals")),
    _row("pinv", prepare_pinv, _routes.stacked("pinv")),
    _row("pinvh", prepare_pinvh, _routes.stacked("pinvh")),
    _row("sqrtm", prepare_sqrtm, _routes.positive("sqrtm")),
    _row("logm", prepare_logm, _routes.positive("logm")),
    _row("fractional_matrix_power", prepare_fractional_matrix_power, _routes.positive("fractional_matrix_power")),
)
