"""The rows of scipy.linalg with another route on the host and no device path: SciPy's options, one function each."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import scipy.linalg as reference

from trnpy import _guards
from trnpy._dispatch import Op, Problem, Reason, Unsupported
from trnpy.linalg import _routes, _stacks

SMALL = 64 * 64  # elements, as for the rows with a device path
QR_MODES = ("full", "qr", "economic", "r")


def _refuse(reason: bool, what: str) -> None:
    if reason:
        raise Unsupported(Reason.PARAM, what)


def prepare_qr(
    a: Any, overwrite_a: Any = False, lwork: Any = None, mode: Any = "full", pivoting: Any = False,
    check_finite: Any = True,
) -> Problem:  # fmt: skip
    _refuse(lwork is not None or bool(pivoting), f"lwork={lwork!r}, pivoting={pivoting!r}")
    _refuse(not isinstance(mode, str) or mode not in QR_MODES, f"mode={mode!r}")
    return _routes.stack("qr", (a,), _stacks.qr, mode)


def prepare_inv(
    a: Any, overwrite_a: Any = False, check_finite: Any = True, *, assume_a: Any = None, lower: Any = False
) -> Problem:
    _refuse(not (assume_a is None or assume_a in ("gen", "general")), f"assume_a={assume_a!r}")
    return _routes.stack("inv", (a,), _stacks.inv)


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


def _tolerance(name: str, value: Any) -> float | None:
    if value is None:
        return None
    _refuse(not isinstance(value, (int, float)) or not 0 <= value < math.inf, f"{name}={value!r}")
    return float(value)


def prepare_pinv(
    a: Any, *, atol: Any = None, rtol: Any = None, return_rank: Any = False, check_finite: Any = True
) -> Problem:
    options = _tolerance("atol", atol), _tolerance("rtol", rtol), bool(return_rank)
    return _routes.stack("pinv", (a,), _stacks.pinv, *options)


def prepare_pinvh(
    a: Any, atol: Any = None, rtol: Any = None, lower: Any = True, return_rank: Any = False, check_finite: Any = True
) -> Problem:
    options = _tolerance("atol", atol), _tolerance("rtol", rtol), bool(return_rank)
    return _routes.stack("pinvh", (a,), _stacks.pinvh, bool(lower), *options)


def prepare_lstsq(
    a: Any, b: Any, cond: Any = None, overwrite_a: Any = False, overwrite_b: Any = False, check_finite: Any = True,
    lapack_driver: Any = None,
) -> Problem:  # fmt: skip
    # An attribute SciPy documents and its stubs do not know; users may set it.
    driver = getattr(reference.lstsq, "default_lapack_driver") if lapack_driver is None else lapack_driver  # noqa: B009
    _refuse(not isinstance(driver, str) or driver != "gelsd", f"lapack_driver={driver!r}")
    a, b = _guards.array(a), _guards.array(b)
    if a.ndim < 3 or b.ndim == 0 or (b.ndim > 2 and b.shape[:-2] != a.shape[:-2]):
        raise Unsupported(Reason.LAYOUT, f"matrices {a.shape} and right-hand sides {b.shape}")
    _refuse(b.shape[max(b.ndim - 2, 0)] != a.shape[-2], f"shapes {a.shape} and {b.shape} do not match")
    return _routes.stack("lstsq", (a, b), _stacks.lstsq, _tolerance("cond", cond))


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
    _row("qr", prepare_qr, _routes.stacked("qr")),
    _row("inv", prepare_inv, _routes.stacked("inv")),
    _row("svd", prepare_svd, _routes.stacked("svd")),
    _row("svdvals", prepare_svdvals, _routes.stacked("svdvals")),
    _row("pinv", prepare_pinv, _routes.stacked("pinv")),
    _row("pinvh", prepare_pinvh, _routes.stacked("pinvh")),
    _row("lstsq", prepare_lstsq, _routes.stacked("lstsq")),
    _row("sqrtm", prepare_sqrtm, _routes.positive("sqrtm")),
    _row("logm", prepare_logm, _routes.positive("logm")),
    _row("fractional_matrix_power", prepare_fractional_matrix_power, _routes.positive("fractional_matrix_power")),
)
