"""cg and gmres: steps in float32 on an engine, then refinement; or SciPy's iteration with the engine's products."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from scipy import sparse
from scipy.sparse import linalg as scipy_linalg

from trnpy._base.conventions import uncounted
from trnpy._base.records import record
from trnpy._call import guards
from trnpy._call.dispatch import Cost, Op, Problem, Reason, Unsupported
from trnpy._call.fast_path import ITERATED
from trnpy._engine.abstract_arrays import StandIn, priced, usual
from trnpy._engine.engines import Engine, at_rest
from trnpy._engine.residency import fingerprint
from trnpy._settings.policy import current_policy
from trnpy.sparse._matmul import NO_DEVICE, is_sparse, whole_blocks
from trnpy.sparse._outline import PATTERNED
from trnpy.sparse._tiles import compressed
from trnpy.sparse.linalg import _krylov
from trnpy.sparse.linalg._operator_products import (
    Product,
    Raised,
    delivered,
    dry_options,
    iterated,
    product_of,
    square,
)

# The number of iterations is not known before a solve, so cost estimates assume these. Laplacians of 40,000 unknowns
# need 120 to 390 on the host (docs/sparse.md#sparse-solvers).
ITERATIONS = 200
PRODUCT_LAUNCHES = 2  # fewest of one product
RESTART = 20  # SciPy's default
CALLBACK_TYPES = (None, "x", "pr_norm", "legacy")
SQUARABLE = float(np.finfo(np.float64).tiny) ** 0.5  # the square of a longer residual is a normal number


@record(kw_only=True)
class System(Problem):
    """A x = b by conjugate gradients, or by GMRES that restarts every ``length`` steps."""

    a: Any
    b: np.ndarray
    x0: np.ndarray | None
    m: Any  # an approximate inverse of A: its diagonal, a sparse matrix or None
    rtol: float
    atol: float
    steps: int  # largest total number
    gmres: bool = False
    length: int = 0

    def outlined(self) -> tuple[Any, ...] | None:
        steps = max(min(self.length, _krylov.CYCLE), 1) if self.gmres else _krylov.STEPS
        launches = _krylov.USUAL_TURNS * _krylov.USUAL_STEPS // steps
        if dry_options(self, launches) is None or self.dtype.kind != "c":
            return dry_options(self, launches)
        real = {name: real_form(x) for name in ("a", "m") if is_sparse(x := getattr(self, name))}
        return dry_options(self, launches, **real)

    def run(self, engine: Engine) -> tuple[np.ndarray, int]:
        """A complex system is solved as the real system of its stacked real and imaginary parts."""
        m = self.m
        guards.finite(*(v for v in (self.b, self.x0, *self.arrays) if v is not None))
        guards.finite(*(() if m is None else (m,) if _is_diagonal(m) else (compressed(m).data,)))
        b = self.b.astype(self.dtype, order="C", copy=False)
        if not usual(b.any(), True):  # SciPy then returns zeros and ignores x0
            return b.copy(), 0
        if not SQUARABLE < float(usual(np.linalg.norm(b), 1.0)) * (self.rtol or 1.0) < math.inf:
            raise Unsupported(Reason.VALUE, "squares of residuals underflow or overflow")
        if not self._target(b) > 0:
            raise Unsupported(Reason.PARAM, "no residual is small enough")
        x = np.zeros_like(b) if self.x0 is None else self.x0.astype(self.dtype, order="C")
        a, parts = self.a, 1
        if self.dtype.kind == "c":
            a, b, x, parts = real_form(a), b.view(np.float64), x.view(np.float64), 2
            m = m if m is None else (m[:, np.newaxis] * np.ones(parts)).ravel() if _is_diagonal(m) else real_form(m)
        op = self._operator(engine, a, m)
        if self.gmres:
            most = _krylov.cycle(op, self.length * parts)
            inner, gain, turns = _krylov.gmres_cycles(engine, op, most), _krylov.CYCLE_GAIN, _krylov.usual_cycles(most)
        else:
            inner, gain, turns = _krylov.conjugate_gradients(engine, op), _krylov.GAIN, _krylov.USUAL_TURNS
        steps = self.steps * (parts if self.gmres else 1)
        return _krylov.refine(op, b, x, self._target(b), steps, inner, gain, turns).view(self.dtype), 0

    def _operator(self, engine: Engine, a: Any, m: Any) -> _krylov.Operator:
        """``a`` with its preconditioner. A diagonal one is included in the scales."""
        if _is_diagonal(m):
            scales = _krylov.by_rows(m) if self.gmres else _krylov.by_root(m)
            return _krylov.operator(engine, a, scales, (self.gmres, fingerprint(m)))
        op = _krylov.operator(engine, a, _krylov.of_rows if self.gmres else _krylov.of_diagonal, (self.gmres,))
        return op if m is None else _krylov.preconditioned(engine, op, m, not self.gmres)

    def _target(self, b: np.ndarray) -> float:
        return max(self.atol, self.rtol * float(usual(np.linalg.norm(b), 1.0)))

    def error(self, result: tuple[np.ndarray, int]) -> float:
        """0 if the residual is at most the requested one, as SciPy promises; otherwise infinity."""
        x, info = result
        if info:  # SciPy computed this result and reports that it did not converge
            return 0.0
        size = float(np.linalg.norm(self.b - compressed(self.a, self.dtype) @ x))
        rounding = 1 + 1e-6  # this residual is summed in a different order than the solver's
        return 0.0 if size <= rounding * self._target(self.b) else math.inf


def _is_diagonal(m: Any) -> bool:
    """Whether ``m`` is the diagonal of a preconditioner, not a matrix."""
    return isinstance(m, (np.ndarray, StandIn))


@priced("", lambda a: (12 * a.data.nbytes, (a,)))
def real_form(a: Any) -> Any:
    """The real matrix (2n, 2n) that multiplies stacked real and imaginary parts as ``a`` does."""
    return (sparse.kron(a.real, np.eye(2)) + sparse.kron(a.imag, [[0.0, -1.0], [1.0, 0.0]])).tocsr()


@record(kw_only=True)
class Iteration(Problem):
    """SciPy's iteration with the engine's products with A: for callbacks and any preconditioner."""

    a: Any
    b: np.ndarray
    solver: str
    options: tuple[tuple[str, Any], ...]

    def outlined(self) -> tuple[Any, ...] | None:
        return dry_options(self, PRODUCT_LAUNCHES * ITERATIONS, options=())

    @uncounted
    def run(self, engine: Engine) -> Any:
        product = product_of(self.a, self.dtype, engine)
        if isinstance(self.b, StandIn):  # SciPy's iteration cannot run without values; it is mostly products
            x = np.zeros_like(self.b, dtype=self.dtype)
            for _ in range(ITERATIONS):
                product(x)
            return x, 0

        @uncounted
        def solved(proved: Product) -> Any:
            a: Any = scipy_linalg.LinearOperator(self.a.shape, dtype=self.a.dtype, matvec=proved)
            return getattr(scipy_linalg, self.solver)(a, self.b, **dict(self.options))

        return iterated(solved, product)

    def error(self, result: Any) -> float:
        """How far the residual of a converged x exceeds SciPy's promise, over |A| |x| + |b|; 0 for any other x."""
        if isinstance(result, Raised) or result[1]:
            return 0.0
        x, options = result[0], dict(self.options)
        plain = compressed(self.a, self.dtype)
        with np.errstate(all="ignore"):
            size, right = float(np.linalg.norm(self.b - plain @ x)), float(np.linalg.norm(self.b))
            excess = size - max(options["atol"], options["rtol"] * right)
            scale = float(np.linalg.norm(abs(plain) @ np.abs(x))) + right
        return 0.0 if excess <= 0 else excess / scale

    def deliver(self, result: Any) -> Any:
        return delivered(result)


# --- preparing --------------------------------------------------------------------------------------------------------


def _prepared(a: Any, b: Any, x0: Any, m: Any, solver: str, cycle: int, own: dict[str, Any], **options: Any) -> Problem:
    """The problem of a system; ``own`` are options that only SciPy's own iteration supports."""
    most = _count("maxiter", options["maxiter"])
    dtype = square(a)
    for v in (b,) if x0 is None else (b, x0):
        if type(v) is not np.ndarray or v.shape != (a.shape[0],) or v.dtype.kind not in "iufc":
            raise Unsupported(Reason.LAYOUT, f"a right-hand side or x0 of type {type(v).__name__}, not one vector")
    wide = np.result_type(dtype, b)
    if dtype.char not in "fdFD" or wide.char.lower() != dtype.char.lower():
        raise Unsupported(Reason.DTYPE, f"dtypes {dtype} and {b.dtype} have no device path")
    if x0 is not None and np.result_type(wide, x0) != wide:
        raise Unsupported(Reason.DTYPE, f"x0 of {x0.dtype} for {wide}")
    rtol, atol = float(options["rtol"]), float(options["atol"])
    real, n = (4.0 if wide.kind == "c" else 1.0), a.shape[0]
    stored = m.nnz if is_sparse(m) else 0
    cost = Cost("csr", 1, ITERATIONS * real * (2.0 * (a.nnz + stored) + 12.0 * n), a.nnz * 12 + b.nbytes, b.nbytes)
    if at_rest(current_policy()):
        return Problem((), wide, cost, on_device=False, refusal=NO_DEVICE)
    base = Problem((b, a.data) if a.format in PATTERNED else (b,), wide, cost)
    own = {name: value for name, value in own.items() if value is not None}
    known, inverse = _preconditioner(m, n, wide)
    if own or not known or dtype.char in "fF":
        given = {"x0": x0, "M": m, **options, "rtol": rtol, "atol": atol} | own
        return Iteration.of(base, a=a, b=b, solver=solver, options=tuple(given.items()))
    steps = (most or 10 * n) * max(cycle, 1)
    return System.of(
        base, a=a, b=b, x0=x0, m=inverse, rtol=rtol, atol=atol, steps=steps, gmres=bool(cycle), length=cycle
    )


def _count(name: str, given: Any) -> int | None:
    """``given`` if it is None or a positive integer; otherwise Unsupported, and SciPy interprets it."""
    if given is None:
        return None
    if isinstance(given, bool) or not isinstance(given, (int, np.integer)) or given < 1:
        raise Unsupported(Reason.PARAM, f"{name}={given!r} is not a positive integer")
    return int(given)


def _preconditioner(m: Any, n: int, dtype: np.dtype) -> tuple[bool, Any]:
    """The form in which kernels multiply by ``m``, if they can: its diagonal if it has no more, or a sparse matrix."""
    if m is None:
        return True, None
    if type(m) is np.ndarray and m.shape == (n, n):
        m = sparse.csr_array(m)
    if not is_sparse(m) or m.shape != (n, n) or m.dtype.char not in "dD" or np.result_type(m, dtype) != dtype:
        return False, None
    whole_blocks(m)
    m = m if m.format in PATTERNED else m.tocsr()
    diagonal = m.diagonal()
    if m.dtype.kind != "c" and m.nnz <= n and np.count_nonzero(diagonal) == m.count_nonzero():
        return True, diagonal
    return True, m


def prepare_cg(
    A: Any, b: Any, x0: Any = None, *, rtol: float = 1e-5, atol: float = 0.0, maxiter: Any = None, M: Any = None,
    callback: Any = None,
) -> Problem:  # fmt: skip
    return _prepared(A, b, x0, M, "cg", 0, {"callback": callback}, rtol=rtol, atol=atol, maxiter=maxiter)


def prepare_gmres(
    A: Any, b: Any, x0: Any = None, *, rtol: float = 1e-5, atol: float = 0.0, restart: Any = None, maxiter: Any = None,
    M: Any = None, callback: Any = None, callback_type: Any = None,
) -> Problem:  # fmt: skip
    if callback is not None and callback_type is None:  # SciPy warns of that, and the warning names its caller
        raise Unsupported(Reason.PARAM, "a callback without callback_type")
    own = {"callback": callback, "callback_type": callback_type}
    if callback is None and callback_type in CALLBACK_TYPES:
        own = {}
    length = _count("restart", restart) or RESTART
    return _prepared(A, b, x0, M, "gmres", length, own, rtol=rtol, atol=atol, maxiter=maxiter, restart=restart)


OPS = (
    Op("scipy.sparse.linalg.cg", scipy_linalg.cg, prepare_cg, small=ITERATED),
    Op("scipy.sparse.linalg.gmres", scipy_linalg.gmres, prepare_gmres, small=ITERATED),
)
