"""The rows of QR factors and of least squares."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from trnpy._call import guards
from trnpy._call.dispatch import Op, Problem, Reason, Unsupported
from trnpy._engine import lapack
from trnpy._engine.engines import HOST, Engine
from trnpy._engine.precision import probe
from trnpy._engine.stand_ins import usual
from trnpy._host import stacks
from trnpy.linalg import _qr, _routes, _triangular
from trnpy.linalg._matrices import SMALL, matrices, norm, sizes, stack_size, tolerance, useful, worst
from trnpy.linalg._panels import BLOCK, adjoint, svdvals

TALL = 4  # rows a column: from here two passes over A^H A are fewer and larger products than reflectors
GAP = 2.0  # between a tolerance and the singular values that are beyond doubt above it
QrResult = type(np.linalg.qr(np.eye(1)))

# --- QR ---------------------------------------------------------------------------------------------------------------

# What NumPy calls SciPy's modes; "q" is the columns of Q: "full" m, "economic" k.
NUMPY_MODES = {"reduced": "economic", "complete": "full", "r": "r", "raw": "raw"}


@dataclass(frozen=True, slots=True)
class Orthogonal:
    """A = Q R before it is what the caller asked for; Q by its columns, its reflectors, or neither of them."""

    r: np.ndarray
    q: np.ndarray | None = None
    packed: np.ndarray | None = None
    blocks: tuple[np.ndarray, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Qr(Problem):
    """Of matrices a (..., m, n) by Householder reflectors, or by Cholesky of A^H A where they are tall."""

    mode: str  # SciPy's
    columns: int  # of Q; 0 without it
    tall: bool

    def run(self, engine: Engine) -> Orthogonal:
        (a,), columns = self.arrays, self.columns
        guards.finite(a)
        a = a.astype(self.dtype, copy=False)
        if self.tall:
            q, r = _tall(a, engine)
            return Orthogonal(r, q if columns else None)
        packed, blocks = _qr.householder(a, engine)
        rows = a.shape[-2] if self.mode == "full" else min(a.shape[-2:])
        r = np.triu(packed)[..., :rows, :]
        if not columns:
            return Orthogonal(r, None, packed, tuple(blocks))
        return Orthogonal(r, _qr.form_q(packed, blocks, columns, engine))

    def error(self, result: Any) -> float:
        """|A - Q R| / |A| and |Q^H Q - I| of an Orthogonal; the reference's own results are not measured."""
        if not isinstance(result, Orthogonal):
            return 0.0
        (a,) = self.arrays
        v = probe(a.shape[-1], self.dtype)
        av, rv = a @ v, result.r @ v
        if result.q is not None:
            w = probe(result.q.shape[-1], self.dtype)
            qw = result.q @ w
            return max(worst(av - result.q @ rv, sizes(a), v), worst(adjoint(result.q) @ qw - w, 1.0, w))
        if result.packed is None:
            return worst(adjoint(a) @ av - adjoint(result.r) @ rv, sizes(a) ** 2, v)
        turned = av.astype(self.dtype)
        _qr.reflect(result.packed, list(result.blocks), turned, HOST)
        turned[..., : rv.shape[-2], :] -= rv
        return worst(turned, sizes(a), v)


class ScipyQr(Qr):
    __slots__ = ()

    def deliver(self, result: Orthogonal) -> Any:
        if self.mode == "raw":
            return (np.asfortranarray(result.packed), _tau(result)), result.r  # for LAPACK, as it left them
        if self.mode == "r":
            m, n = self.arrays[0].shape[-2:]
            r = np.zeros((*result.r.shape[:-2], m, n), result.r.dtype)
            r[..., : result.r.shape[-2], :] = result.r
            return r
        return result.q, result.r


class NumpyQr(Qr):
    __slots__ = ()

    def deliver(self, result: Orthogonal) -> Any:
        if self.mode == "raw":
            assert result.packed is not None
            return result.packed.T, _tau(result)
        assert self.mode == "r" or result.q is not None
        return result.r if result.q is None else QrResult(result.q, result.r)


def prepare_qr(
    a: Any, overwrite_a: Any = False, lwork: Any = None, mode: Any = "full", pivoting: Any = False,
    check_finite: Any = True,
) -> Problem:  # fmt: skip
    if lwork is not None or pivoting:
        raise Unsupported(Reason.PARAM, f"lwork={lwork!r}, pivoting={pivoting!r}: the host's")
    if not isinstance(mode, str) or mode not in ("full", "qr", "r", "economic", "raw"):
        raise Unsupported(Reason.PARAM, f"mode={mode!r}")
    if _routes.is_stack(a) and min(a.shape[-2:]) <= BLOCK and mode != "raw":
        return _routes.stack("qr", (a,), stacks.qr, mode)
    return ScipyQr.of(_qr_problem(a, "full" if mode == "qr" else mode))


def prepare_numpy_qr(a: Any, mode: Any = "reduced") -> Problem:
    if not isinstance(mode, str) or mode not in NUMPY_MODES:
        raise Unsupported(Reason.PARAM, f"mode={mode!r}")
    return NumpyQr.of(_qr_problem(a, NUMPY_MODES[mode]))


def _qr_problem(a: Any, mode: str) -> Qr:
    a = matrices(a)
    dtype, (m, n) = guards.floating(a), a.shape[-2:]
    if a.ndim > 2 and mode == "raw":
        raise Unsupported(Reason.PARAM, "stacks with mode='raw'")
    k = min(m, n)
    columns = {"full": m, "economic": k}.get(mode, 0)
    tall = a.ndim == 2 and m >= TALL * n and mode in ("economic", "r")
    flops = (2.0 * m * n * k - 2 / 3 * k**3) * (2 if columns else 1)
    size = (float(m) * n * k) ** (1 / 3)
    cost = useful("qr", size, flops, (a,), dtype, stack_size(a) * (m * columns + k * n))
    return Qr((a,), dtype, cost, mode=mode, columns=columns, tall=tall)


def _tall(a: np.ndarray, engine: Engine) -> tuple[np.ndarray, np.ndarray]:
    try:
        return _qr.cholesky_qr(a, engine)
    except _qr.NotOrthogonal as why:
        raise Unsupported(Reason.ACCURACY, str(why)) from why


def _tau(result: Orthogonal) -> np.ndarray:
    return np.concatenate([t.diagonal() for t in result.blocks])


# --- Least squares ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class LeastSquares(Problem):
    """For a matrix of many rows and of full rank."""

    cond: float | None
    driver: str  # SciPy's; "numpy" is numpy.linalg

    def run(self, engine: Engine) -> tuple[Any, ...]:
        """x, residues, rank and singular values, as the drivers of ``driver`` return them."""
        a, b = self.arrays
        guards.finite(a, b)
        a, b = a.astype(self.dtype, copy=False), b.astype(self.dtype, copy=False)
        columns = b.reshape(len(b), -1)
        q, r = _tall(a, engine)
        s = svdvals(r)
        least = GAP * max(self.cond or 0.0, len(a) * float(np.finfo(self.dtype).eps))
        if not usual(s[-1] > least * s[0], True):
            raise Unsupported(Reason.VALUE, "not of full rank beyond doubt")
        x = _triangular.solve(r, engine.matmul(adjoint(q), columns), engine, lower=False)
        left = columns - engine.matmul(a, x)
        residues = (np.abs(left) ** 2).sum(axis=0)
        x = x.reshape(-1, *b.shape[1:])
        rank = len(s)
        if self.driver == "numpy":
            return x, residues, np.int32(rank), s
        if self.driver == "gelsy":
            return x, np.array([], x.dtype), rank, None
        return x, residues[0] if b.ndim == 1 else residues, rank, s

    def error(self, result: Any) -> float:
        """|A^H (b - A x)| / |A| over the size of the residual and of A x: zero for the exact minimum."""
        a, b = self.arrays
        x = np.asarray(result[0])
        left = b - a @ x
        scale = norm(a) * (norm(left) + norm(a) * norm(x))
        return norm(adjoint(a) @ left) / scale if scale else 0.0


def prepare_lstsq(
    a: Any, b: Any, cond: Any = None, overwrite_a: Any = False, overwrite_b: Any = False, check_finite: Any = True,
    lapack_driver: Any = None,
) -> Problem:  # fmt: skip
    # An attribute SciPy documents and its stubs do not know; users may set it.
    driver = getattr(lapack.linalg.lstsq, "default_lapack_driver") if lapack_driver is None else lapack_driver  # noqa: B009
    if not isinstance(driver, str) or driver not in ("gelsd", "gelss", "gelsy"):
        raise Unsupported(Reason.PARAM, f"lapack_driver={driver!r}")
    a, b, cond = guards.array(a), guards.array(b), tolerance("cond", cond)
    if a.ndim == 2:
        return _least_squares(a, b, cond, driver)
    if driver != "gelsd":
        raise Unsupported(Reason.PARAM, f"stacks with lapack_driver={driver!r}")
    if a.ndim < 3 or b.ndim == 0 or (b.ndim > 2 and b.shape[:-2] != a.shape[:-2]):
        raise Unsupported(Reason.LAYOUT, f"matrices {a.shape} and right-hand sides {b.shape}")
    if b.shape[max(b.ndim - 2, 0)] != a.shape[-2]:
        raise Unsupported(Reason.PARAM, f"shapes {a.shape} and {b.shape} do not match")
    return _routes.stack("lstsq", (a, b), stacks.lstsq, cond)


def prepare_numpy_lstsq(a: Any, b: Any, rcond: Any = None) -> Problem:
    a, b = guards.array(a), guards.array(b)
    if rcond is None:
        rcond = float(np.finfo(np.float64).eps) * max(a.shape, default=1)
    return _least_squares(a, b, None if rcond == -1 else tolerance("rcond", rcond), "numpy")


def _least_squares(a: np.ndarray, b: np.ndarray, cond: float | None, driver: str) -> Problem:
    if a.ndim != 2 or a.size == 0 or len(a) < TALL * a.shape[1]:
        raise Unsupported(Reason.LAYOUT, f"shape {a.shape} is not one matrix of {TALL} rows a column or more")
    if b.ndim not in (1, 2) or len(b) != len(a) or b.size == 0:
        raise Unsupported(Reason.LAYOUT, f"matrix {a.shape} and right-hand sides {b.shape}")
    guards.floating(a)
    guards.floating(b)
    dtype, (m, n), k = guards.floating(a, b), a.shape, b.size // len(b)
    cost = useful("qr", (float(m) * n * n) ** (1 / 3), 2.0 * m * n * (n + k), (a, b), dtype, n * k)
    return LeastSquares((a, b), dtype, cost, cond=cond, driver=driver)


def orthogonal_ops() -> tuple[Op, ...]:
    return (
        Op("scipy.linalg.qr", lapack.linalg.qr, prepare_qr, small=SMALL, look=_routes.stacked("qr"), dry=True),
        Op("scipy.linalg.lstsq", lapack.linalg.lstsq, prepare_lstsq, small=SMALL,
           look=_routes.stacked("lstsq"), dry=True),
    )  # fmt: skip


NUMPY_ORTHOGONAL_OPS = (
    Op("numpy.linalg.qr", np.linalg.qr, prepare_numpy_qr, small=SMALL, dry=True),
    Op("numpy.linalg.lstsq", np.linalg.lstsq, prepare_numpy_lstsq, small=SMALL, dry=True),
)
