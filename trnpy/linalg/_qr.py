"""QR by Householder reflectors or, for tall matrices, by Cholesky factors of A^H A."""

from __future__ import annotations

from typing import Any

import numpy as np

from trnpy._base.records import record
from trnpy._call import guards
from trnpy._call.dispatch import Problem, Reason, Unsupported
from trnpy._engine import lapack
from trnpy._engine.abstract_arrays import usual
from trnpy._engine.engines import HOST, Engine
from trnpy._engine.proof.weights import probe
from trnpy.linalg import _lapack_panels, _triangular
from trnpy.linalg._cholesky import cholesky
from trnpy.linalg._lapack_panels import BLOCK, adjoint, split
from trnpy.linalg._matrices import SMALL, in_double, matrices, sizes, stack_size, useful, worst
from trnpy.linalg._reference_forms import numpy_function, scipy_function

# Reflectors per block. Q of 2000 columns is 1.6 times as far from orthogonal as LAPACK's; with one block, 2.7 times.
WIDTH = 4 * BLOCK
TALL = 4  # rows per column from which two passes over A^H A are fewer and larger products than reflectors
PASSES = 4  # of CholeskyQR: two for a condition number up to 1e8, three after a shift, and one spare
USUAL_PASSES = 2
NEARLY = 5 / 64  # limit for |Q^H Q - I|: one more pass then reaches rounding (Yamamoto et al., ETNA 44, 2015, thm. 3.2)
SHIFT = 11.0  # times (m n + n (n + 1)) u |A|^2 (Fukaya et al., SIAM J. Sci. Comput. 42, A477, 2020)


class NotOrthogonal(ArithmeticError):
    """CholeskyQR did not reach orthogonal columns: the matrix is nearly rank-deficient."""


def householder(a: np.ndarray, engine: Engine) -> tuple[np.ndarray, list[np.ndarray]]:
    """R above V, packed (..., m, n), and diagonal blocks T (..., k, k), k <= WIDTH, of min(m, n) rows in total.

    A = Q R, Q the product of I - V T V^H over the blocks.  Elmroth & Gustavson, IBM J. Res. Dev. 44, 605 (2000).
    """
    packed = a.copy()
    return packed, _factor(packed, engine)


def _factor(a: np.ndarray, engine: Engine) -> list[np.ndarray]:
    k = min(a.shape[-2:])
    if k <= BLOCK:
        a[...], t = _lapack_panels.qr(a)
        return [t]
    h = split(k, WIDTH if k > WIDTH else BLOCK)
    left, right = a[..., :h], a[..., h:]
    first = _factor(left, engine)
    reflect(left, first, right, engine)
    second = _factor(right[..., h:, :], engine)
    if k > WIDTH:
        return first + second
    (t1,), (t2,) = first, second
    overlap = engine.matmul(adjoint(reflectors(left)[..., h:, :]), reflectors(right[..., h:, :])[..., : k - h])
    t = np.zeros_like(a, order="C", shape=(*a.shape[:-2], k, k))
    t[..., :h, :h], t[..., h:, h:] = t1, t2
    t[..., :h, h:] = -engine.matmul(t1, engine.matmul(overlap, t2))
    return [t]


def reflect(packed: np.ndarray, blocks: list[np.ndarray], c: np.ndarray, engine: Engine) -> None:
    """Replace C (..., m, k) by Q^H C, with Q from ``householder``."""
    start = 0
    for t in blocks:
        width = t.shape[-1]
        v, rest = reflectors(packed[..., start:, start : start + width]), c[..., start:, :]
        rest -= engine.matmul(v, engine.matmul(adjoint(t), engine.matmul(adjoint(v), rest)))
        start += width


def reflectors(packed: np.ndarray) -> np.ndarray:
    """V (..., m, k), unit lower trapezoidal, from below the diagonal of (..., m, n)."""
    v = np.tril(packed[..., : min(packed.shape[-2:])], -1)
    diagonal = np.arange(v.shape[-1])
    v[..., diagonal, diagonal] = 1
    return v


def form_q(packed: np.ndarray, blocks: list[np.ndarray], columns: int, engine: Engine) -> np.ndarray:
    """The first ``columns`` columns of Q, (..., m, columns), at least as many as there are reflectors."""
    m, start = packed.shape[-2], sum(t.shape[-1] for t in blocks)
    q = np.broadcast_to(np.eye(m, columns, dtype=packed.dtype, like=packed), (*packed.shape[:-2], m, columns)).copy()
    for t in reversed(blocks):
        start -= t.shape[-1]
        v, rest = reflectors(packed[..., start:, start : start + t.shape[-1]]), q[..., start:, start:]
        rest -= engine.matmul(v, engine.matmul(t, engine.matmul(adjoint(v), rest)))
    return q


def cholesky_qr(a: np.ndarray, engine: Engine) -> tuple[np.ndarray, np.ndarray]:
    """Q (m, n) with orthonormal columns and upper R (n, n), positive on its diagonal, of a (m, n), m >= n.

    Each pass divides by the Cholesky factor of Q^H Q, shifted if that is not positive definite; |Q^H Q - I| before a
    pass decides whether it is the last. NotOrthogonal if none is. The constants above cite their sources.
    """
    m, n = a.shape
    # Columns are scaled by powers of two, which is exact, so that their products neither overflow nor underflow.
    _, exponents = np.frexp(np.abs(a).max(axis=0))
    q, r = np.ldexp(1.0, -exponents).astype(a.real.dtype) * a, np.eye(n, dtype=a.dtype, like=a)
    unit = float(np.finfo(a.dtype).eps) / 2
    for done in range(1, PASSES + 1):
        g = engine.gram(adjoint(q))
        departure = np.linalg.norm(g - np.eye(n, like=g))
        try:
            l = cholesky(g, engine)
        except lapack.LinAlgError:
            shift = SHIFT * (m * n + n * (n + 1)) * unit * g.diagonal().real.sum()
            try:
                l = cholesky(g + shift * np.eye(n, dtype=a.dtype), engine)
            except lapack.LinAlgError as why:
                raise NotOrthogonal(str(why)) from why
        q = _triangular.solve(l, q, engine, side="right", lower=True, trans="C")
        r = engine.matmul(adjoint(l), r)
        if usual(departure <= NEARLY, done == USUAL_PASSES):
            return q, np.triu(r) * np.ldexp(1.0, exponents).astype(a.real.dtype)
    raise NotOrthogonal(f"columns are not orthogonal after {PASSES} passes")


# --- Rows -------------------------------------------------------------------------------------------------------------

QrResult = type(np.linalg.qr(np.eye(1)))
# SciPy's mode for each of NumPy's.
NUMPY_MODES = {"reduced": "economic", "complete": "full", "r": "r", "raw": "raw"}


@record()
class Orthogonal:
    """A = Q R, from which the caller's result is built; Q as columns, as reflectors, or absent."""

    r: np.ndarray
    q: np.ndarray | None = None
    packed: np.ndarray | None = None
    blocks: tuple[np.ndarray, ...] = ()


@record(kw_only=True)
class Qr(Problem):
    """QR of matrices a (..., m, n), by Householder reflectors or, if ``tall``, by Cholesky factors of A^H A."""

    mode: str  # SciPy's name
    columns: int  # of Q; 0 if Q is not wanted
    tall: bool

    def run(self, engine: Engine) -> Orthogonal:
        (a,), columns = self.arrays, self.columns
        guards.finite(a)
        a = a.astype(self.dtype, copy=False)
        if self.tall:
            q, r = tall_qr(a, engine)
            return Orthogonal(r, q if columns else None)
        packed, blocks = householder(a, engine)
        rows = a.shape[-2] if self.mode == "full" else min(a.shape[-2:])
        r = np.triu(packed)[..., :rows, :]
        if not columns:
            return Orthogonal(r, None, packed, tuple(blocks))
        return Orthogonal(r, form_q(packed, blocks, columns, engine))

    def unique(self, result: Any) -> Any:
        return ()  # rows of R may differ in sign

    def error(self, result: Any) -> float:
        """|A - Q R| / |A| and |Q^H Q - I| of an Orthogonal; 0 for a result of the original function."""
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
        reflect(result.packed, list(result.blocks), turned, HOST)
        turned[..., : rv.shape[-2], :] -= rv
        return worst(turned, sizes(a), v)


class ScipyQr(Qr):
    __slots__ = ()

    def deliver(self, result: Orthogonal) -> Any:
        if self.mode == "raw":
            return (np.asfortranarray(result.packed), _tau(result)), result.r  # in Fortran order, as from LAPACK
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
            return self._laid(result.packed).T, _tau(result)
        r = np.triu(self._laid(result.r))
        return r if result.q is None else QrResult(np.ascontiguousarray(result.q), r)

    def _laid(self, x: np.ndarray) -> np.ndarray:
        """x (..., k, n), the first rows of an array (..., m, n), in the operand's memory order, as in NumPy."""
        rows = np.empty_like(self.arrays[0], x.dtype)[..., : x.shape[-2], :]
        rows[...] = x
        return rows


def prepare_qr(
    a: Any, overwrite_a: Any = False, lwork: Any = None, mode: Any = "full", pivoting: Any = False,
    check_finite: Any = True,
) -> Problem:  # fmt: skip
    if lwork is not None or pivoting:
        raise Unsupported(Reason.PARAM, f"lwork={lwork!r}, pivoting={pivoting!r}: the host's")
    if not isinstance(mode, str) or mode not in ("full", "qr", "r", "economic", "raw"):
        raise Unsupported(Reason.PARAM, f"mode={mode!r}")
    return ScipyQr.of(_qr_problem(a, "full" if mode == "qr" else mode))


def prepare_numpy_qr(a: Any, mode: Any = "reduced") -> Problem:
    if not isinstance(mode, str) or mode not in NUMPY_MODES:
        raise Unsupported(Reason.PARAM, f"mode={mode!r}")
    return NumpyQr.of(in_double(_qr_problem(a, NUMPY_MODES[mode])))


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


def tall_qr(a: np.ndarray, engine: Engine) -> tuple[np.ndarray, np.ndarray]:
    try:
        return cholesky_qr(a, engine)
    except NotOrthogonal as why:
        raise Unsupported(Reason.ACCURACY, str(why)) from why


def _tau(result: Orthogonal) -> np.ndarray:
    return np.concatenate([t.diagonal() for t in result.blocks])


OPS = (
    scipy_function("qr", prepare_qr, small=SMALL),
    numpy_function("qr", prepare_numpy_qr, small=SMALL, order="K"),
)
