"""Rows of scipy.sparse.linalg: solvers that keep their matrix on the engine while they iterate."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from scipy.sparse import linalg as scipy_linalg

from trnpy._base.conventions import uncounted
from trnpy._call import guards
from trnpy._call.dispatch import Cost, Op, Problem, Reason, Unsupported
from trnpy._engine.engines import Engine, at_rest
from trnpy._engine.stand_ins import StandIn, priced, usual
from trnpy._settings.policy import current_policy
from trnpy.sparse._device import tiled
from trnpy.sparse._ops import NO_DEVICE, is_sparse
from trnpy.sparse._outline import PATTERNED, host_s, launch_pays, outlined
from trnpy.sparse._tiles import compressed
from trnpy.sparse.linalg import _eigen, _krylov

# The number of iterations is not known before a solve, so prices assume these. Laplacians of 40,000 unknowns take
# 120 to 390 on the host (docs/numerics.md#sparse-solvers).
ITERATIONS = 200
BLOCK_PRODUCTS = 40  # assumed products of A with a block, for eigenvalues
RESTART = 20  # SciPy's default
SQUARABLE = float(np.finfo(np.float64).tiny) ** 0.5  # the square of a longer residual is a normal number


def _sparse_system(a: Any, b: Any, x0: Any, options: dict[str, Any]) -> np.dtype:
    """The dtype of the system, float64; Unsupported unless ``a`` is square and sparse, and the vectors fit it."""
    refused = [name for name, value in options.items() if value is not None]
    if refused:
        raise Unsupported(Reason.PARAM, f"options {', '.join(refused)}")
    dtype = _square(a)
    for v in (b, x0):
        if v is not None and (type(v) is not np.ndarray or v.shape != (a.shape[0],) or v.dtype.kind not in "iuf"):
            raise Unsupported(Reason.LAYOUT, f"a right-hand side or x0 of type {type(v).__name__}, not one vector")
    if dtype != np.float64 or np.result_type(dtype, b) != dtype:
        raise Unsupported(Reason.DTYPE, f"dtypes {dtype} and {b.dtype}: the device path is float64's")
    return dtype


def _square(a: Any) -> np.dtype:
    if not is_sparse(a):
        raise Unsupported(Reason.LAYOUT, f"{type(a).__name__} is not a sparse matrix")
    if not a.dtype.isnative:
        raise Unsupported(Reason.DTYPE, f"dtype {a.dtype} has no device path")
    if a.ndim != 2 or a.shape[0] != a.shape[1] or not a.shape[0] or not a.nnz:
        raise Unsupported(Reason.LAYOUT, f"shape {a.shape} with {a.nnz} elements is not one non-empty square matrix")
    dtype: np.dtype = a.dtype
    return dtype


@dataclass(frozen=True, slots=True, kw_only=True)
class System(Problem):
    """A x = b by conjugate gradients, or by GMRES that restarts every ``length`` steps."""

    a: Any
    b: np.ndarray
    x0: np.ndarray | None
    rtol: float
    atol: float
    steps: int  # at most, in all
    gmres: bool = False
    length: int = 0

    def outlined(self) -> tuple[Any, ...] | None:
        steps = max(min(self.length, _krylov.CYCLE), 1) if self.gmres else _krylov.STEPS
        launches = _krylov.USUAL_TURNS * _krylov.USUAL_STEPS // steps
        return _outlined(self, launches)

    def run(self, engine: Engine) -> tuple[np.ndarray, int]:
        guards.finite(*(v for v in (self.b, self.x0, *self.arrays) if v is not None))
        b = self.b.astype(np.float64, copy=False)
        if not usual(b.any(), True):  # SciPy returns zeros then and ignores x0
            return b.copy(), 0
        if not SQUARABLE < float(usual(np.linalg.norm(b), 1.0)) * (self.rtol or 1.0) < math.inf:
            raise Unsupported(Reason.VALUE, "squares of residuals underflow or overflow")
        if self.steps < 1 or not self._target(b) > 0:
            raise Unsupported(Reason.PARAM, "no step is allowed, or no residual is small enough")
        x = np.zeros_like(b) if self.x0 is None else self.x0.astype(np.float64)
        op = _krylov.operator(engine, self.a, _krylov.of_rows if self.gmres else _krylov.of_diagonal)
        if self.gmres:
            most = _krylov.cycle(op, self.length)
            inner, gain, turns = _krylov.gmres_cycles(engine, op, most), _krylov.CYCLE_GAIN, _krylov.usual_cycles(most)
        else:
            inner, gain, turns = _krylov.conjugate_gradients(engine, op), _krylov.GAIN, _krylov.USUAL_TURNS
        return _krylov.refine(op, b, x, self._target(b), self.steps, inner, gain, turns), 0

    def _target(self, b: np.ndarray) -> float:
        return max(self.atol, self.rtol * float(usual(np.linalg.norm(b), 1.0)))

    def error(self, result: tuple[np.ndarray, int]) -> float:
        """0 if the residual is at most what the caller asked for, as SciPy promises; else infinity."""
        x, info = result
        if info:  # SciPy computed this result, and reports that it did not converge
            return 0.0
        size = float(np.linalg.norm(self.b - compressed(self.a, self.dtype) @ x))
        rounding = 1 + 1e-6  # this residual is summed in another order than the solver's
        return 0.0 if size <= rounding * self._target(self.b) else math.inf


def _outlined(problem: Problem, launches: int) -> tuple[Any, ...] | None:
    """The options of a dry run; None if so many launches alone take longer than the host."""
    if not launch_pays(host_s(problem.cost, problem.dtype), launches):
        return None
    return outlined([getattr(problem, name) for name in problem.option_names()])


def _priced(a: Any, b: np.ndarray) -> Problem:
    """What a system takes."""
    dtype, flops = np.dtype(np.float64), ITERATIONS * (2.0 * a.nnz + 12.0 * a.shape[0])
    cost = Cost("csr", 1, flops, a.nnz * 12 + b.nbytes, b.nbytes)
    if at_rest(current_policy()):
        return Problem((), dtype, cost, on_device=False, refusal=NO_DEVICE)
    return Problem((b, a.data) if a.format in PATTERNED else (b,), dtype, cost)


def prepare_cg(
    A: Any, b: Any, x0: Any = None, *, rtol: float = 1e-5, atol: float = 0.0, maxiter: Any = None, M: Any = None,
    callback: Any = None,
) -> Problem:  # fmt: skip
    _sparse_system(A, b, x0, {"M": M, "callback": callback})
    steps = 10 * A.shape[0] if maxiter is None else int(maxiter)
    return System.of(_priced(A, b), a=A, b=b, x0=x0, rtol=float(rtol), atol=float(atol), steps=steps)


def prepare_gmres(
    A: Any, b: Any, x0: Any = None, *, rtol: float = 1e-5, atol: float = 0.0, restart: Any = None, maxiter: Any = None,
    M: Any = None, callback: Any = None, callback_type: Any = None,
) -> Problem:  # fmt: skip
    _sparse_system(A, b, x0, {"M": M, "callback": callback, "callback_type": callback_type})
    length = RESTART if restart is None else int(restart)
    cycles = 10 * A.shape[0] if maxiter is None else int(maxiter)
    return System.of(
        _priced(A, b), a=A, b=b, x0=x0, rtol=float(rtol), atol=float(atol), steps=cycles * length, gmres=True,
        length=length,
    )  # fmt: skip


# --- eigenvalues ------------------------------------------------------------------------------------------------------


def _product(a: Any, dtype: np.dtype, engine: Engine) -> Callable[[np.ndarray], np.ndarray]:
    """A X by ``engine`` for finite A and X."""

    def product(x: np.ndarray) -> np.ndarray:
        c = tiled(engine, a, x.astype(dtype, order="C", copy=False))
        guards.finite(c)
        return c

    return product


@priced("", lambda plain: (8 * plain.data.nbytes, (True,)))
def _is_hermitian(plain: Any) -> bool:
    return not abs(plain - plain.conj().T).max() > 0


@priced("random", lambda plain, columns: (plain.shape[0] * columns, (((plain.shape[0], columns), plain.dtype),)))
def _start(plain: Any, columns: int) -> np.ndarray:
    """Random columns, the same for each matrix of one order."""
    n = plain.shape[0]
    return np.random.default_rng(n).standard_normal((n, columns)).astype(plain.dtype)


@dataclass(frozen=True, slots=True, kw_only=True)
class Lanczos(Problem):
    """Some eigenpairs of a real symmetric matrix by block Lanczos."""

    unproven: ClassVar[str] = "that no wanted eigenvalue is missing"
    a: Any
    k: int
    which: str
    tol: float
    vectors: bool

    def outlined(self) -> tuple[Any, ...] | None:
        return _outlined(self, BLOCK_PRODUCTS)

    def run(self, engine: Engine) -> Any:
        plain = compressed(self.a, self.dtype)
        guards.finite(plain.data)
        if not _is_hermitian(plain):
            raise Unsupported(Reason.VALUE, "not exactly Hermitian")
        k = self.k
        start = _start(plain, min(max(k, _eigen.COLUMNS), plain.shape[0] // 4))
        product = _product(self.a, self.dtype, engine)
        values, found = _eigen.block_lanczos(engine, product, start, k, self.which, self.tol)
        return (values, found) if self.vectors else values

    def unique(self, result: Any) -> Any:
        return ()  # within the tolerance of the call

    def error(self, result: Any) -> float:
        """The larger of the eigenpairs' worst residual beyond ``tol`` and their error of orthonormality.

        Of eigenvalues alone only finiteness is checked.
        """
        if not self.vectors:
            return 0.0 if np.isfinite(result).all() else math.inf
        values, found = result
        scale = float(np.abs(values).max()) or 1.0
        residual = np.abs(compressed(self.a, self.dtype) @ found - found * values).max() / scale
        gram = np.abs(found.conj().T @ found - np.eye(len(values))).max()
        return float(max(max(residual - self.tol, 0.0), gram))


@dataclass(frozen=True, slots=True, kw_only=True)
class Lobpcg(Problem):
    """SciPy's iteration, which is one of blocks already, with its products with A on the engine."""

    unproven: ClassVar[str] = "that no wanted eigenvalue is missing"
    a: Any
    x: np.ndarray
    b: Any
    options: tuple[Any, ...]  # of SciPy's, from M on

    def outlined(self) -> tuple[Any, ...] | None:
        return _outlined(self, BLOCK_PRODUCTS)

    @uncounted
    def run(self, engine: Engine) -> Any:
        guards.finite(compressed(self.a).data, self.x)
        if isinstance(self.x, StandIn):  # SciPy's iteration does not run dry: products take most of its time
            for _ in range(BLOCK_PRODUCTS):
                _product(self.a, self.dtype, engine)(self.x)
            return None
        # SciPy orthonormalizes X where it is, and may have to start again.
        return scipy_linalg.lobpcg(_product(self.a, self.dtype, engine), self.x.copy(), self.b, *self.options)

    def error(self, result: Any) -> float:
        """Of the values what they differ from the vectors' Rayleigh quotients, by the norm of A."""
        b, values, found = self.b, np.asarray(result[0]), np.asarray(result[1])
        plain = compressed(self.a, self.dtype)
        image = found if b is None else b(found) if callable(b) else b @ found
        below = np.einsum("ij,ij->j", found.conj(), image).real
        quotients = np.einsum("ij,ij->j", found.conj(), plain @ found).real / below
        scale = float(np.abs(plain).sum(axis=1).max()) or 1.0
        return float(np.abs(quotients - values).max() / scale)


def _pairs_priced(a: Any, k: int, columns: int) -> Problem:
    """What eigenpairs take by products of A with blocks of ``columns``."""
    dtype, policy = _square(a), current_policy()
    if dtype.char not in "fdFD":
        raise Unsupported(Reason.DTYPE, f"dtype {dtype} has no device path")
    n, real = a.shape[0], 4.0 if dtype.kind == "c" else 1.0
    moved = BLOCK_PRODUCTS * n * columns * dtype.itemsize
    flops = BLOCK_PRODUCTS * 2.0 * real * a.nnz * columns
    cost = Cost("csr", columns, flops, a.nnz * (dtype.itemsize + 4) + moved, moved)
    if at_rest(policy):
        return Problem((), dtype, cost, on_device=False, refusal=NO_DEVICE)
    return Problem((a.data,) if a.format in PATTERNED else (np.empty((n, k), dtype),), dtype, cost)


def prepare_eigsh(
    A: Any, k: int = 6, M: Any = None, sigma: Any = None, which: str = "LM", v0: Any = None, ncv: Any = None,
    maxiter: Any = None, tol: float = 0, return_eigenvectors: bool = True, Minv: Any = None, OPinv: Any = None,
    mode: str = "normal", rng: Any = None,
) -> Problem:  # fmt: skip
    options = {"M": M, "sigma": sigma, "v0": v0, "ncv": ncv, "maxiter": maxiter, "Minv": Minv, "OPinv": OPinv}
    refused = [name for name, value in (options | {"rng": rng}).items() if value is not None]
    if refused or which not in ("LM", "LA", "SA") or mode != "normal":
        raise Unsupported(Reason.PARAM, f"options {', '.join(refused)}, which={which!r}, mode={mode!r}")
    if _square(A).kind == "c":  # SciPy orders the eigenvalues of complex matrices otherwise
        raise Unsupported(Reason.DTYPE, f"dtype {A.dtype} has no device path")
    if type(k) is not int or not 0 < k < A.shape[0] // 4:
        raise Unsupported(Reason.PARAM, f"k={k} of {A.shape[0]}: a dense solver's")
    return Lanczos.of(
        _pairs_priced(A, k, max(k, _eigen.COLUMNS)),
        a=A,
        k=k,
        which=which,
        tol=float(tol),
        vectors=bool(return_eigenvectors),
    )


def prepare_lobpcg(
    A: Any, X: Any, B: Any = None, M: Any = None, Y: Any = None, tol: Any = None, maxiter: Any = None,
    largest: bool = True, verbosityLevel: int = 0, retLambdaHistory: bool = False,
    retResidualNormsHistory: bool = False, restartControl: int = 20,
) -> Problem:  # fmt: skip
    dtype = _square(A)
    if type(X) is not np.ndarray or X.ndim != 2 or X.shape[0] != A.shape[0] or not X.shape[1]:
        raise Unsupported(Reason.LAYOUT, f"X is {type(X).__name__}, not vectors of {A.shape[0]}")
    if X.dtype != dtype or verbosityLevel:
        raise Unsupported(Reason.PARAM, f"X of {X.dtype} for {dtype}, verbosityLevel={verbosityLevel}")
    options = M, Y, tol, maxiter, largest, verbosityLevel, retLambdaHistory, retResidualNormsHistory, restartControl
    return Lobpcg.of(_pairs_priced(A, X.shape[1], X.shape[1]), a=A, x=X, b=B, options=options)


OPS = (
    Op("scipy.sparse.linalg.cg", scipy_linalg.cg, prepare_cg, dtypes="d"),
    Op("scipy.sparse.linalg.gmres", scipy_linalg.gmres, prepare_gmres, dtypes="d"),
    Op("scipy.sparse.linalg.eigsh", scipy_linalg.eigsh, prepare_eigsh, dtypes="fd"),
    Op("scipy.sparse.linalg.lobpcg", scipy_linalg.lobpcg, prepare_lobpcg),
)
