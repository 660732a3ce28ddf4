"""Rows of scipy.sparse.linalg: solvers that keep their matrix on the engine while they iterate."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
from scipy.sparse import linalg as scipy_linalg

from trnpy._base.conventions import uncounted
from trnpy._call import guards
from trnpy._call.dispatch import Cost, Op, Problem, Reason, Unsupported
from trnpy._engine.engines import Engine, at_rest, current_engine
from trnpy._nki.hardware import MACHINES, Hardware
from trnpy._settings.host_rates import current_rates
from trnpy._settings.policy import HYSTERESIS, Policy, current_policy
from trnpy.sparse._blocks import count_blocks
from trnpy.sparse._device import tiled
from trnpy.sparse._offer import flops_of, offer
from trnpy.sparse._ops import NO_DEVICE, is_sparse
from trnpy.sparse._tiles import compressed
from trnpy.sparse.linalg import _eigen, _krylov

# The number of iterations is not known before a solve, so the price assumes these. Laplacians of 40,000 unknowns take
# 120 to 390 in float64, 1.7 to 2 times as many in float32, and 3 to 7 residuals (docs/numerics.md#sparse-solvers).
ITERATIONS, MORE, REFINEMENTS = 200, 1.8, 5
# Modelled seconds of a step for each tile (64 KiB, four to a transfer), and for its dot products and updates.
TILE_S, VECTOR_S = 0.33e-6, 20e-6
BLOCK_PRODUCTS = 40  # assumed products of A with a block, for eigenvalues
RESTART = 20  # SciPy's default


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
    if a.ndim != 2 or a.shape[0] != a.shape[1] or not a.shape[0] or not a.nnz:
        raise Unsupported(Reason.LAYOUT, f"shape {a.shape} with {a.nnz} elements is not one non-empty square matrix")
    dtype: np.dtype = a.dtype
    return dtype


def _machine(policy: Policy) -> Hardware:
    engine = current_engine(policy)
    return (engine.hardware if engine is not None else None) or MACHINES[policy.machine]


def _problem(a: Any, b: np.ndarray, params: tuple[Any, ...], steps: int) -> Problem:
    """The problem of a system that is solved with ``steps`` iterations a launch."""
    n, dtype, policy = a.shape[0], np.dtype(np.float64), current_policy()
    each = 2.0 * a.nnz + 12.0 * n
    cost = Cost("csr", 1, ITERATIONS * each, a.nnz * 12 + b.nbytes, b.nbytes, host_flops=REFINEMENTS * 2.0 * a.nnz)
    if at_rest(policy):
        return Problem((), dtype, cost, on_device=False, refusal=NO_DEVICE)
    hardware = _machine(policy)
    taken = MORE * ITERATIONS
    cost = replace(cost, launches=math.ceil(taken / steps) + REFINEMENTS, products=cost.flops)
    host_s = current_rates().seconds(cost.kind, 1, cost.flops, dtype)
    if policy.force or host_s > HYSTERESIS * cost.launches * hardware.launch_s:
        tiles = count_blocks(a).count
        seconds = taken * (tiles * TILE_S + VECTOR_S)
        cost = replace(
            cost, bytes_in=tiles * 4 * 128**2 + b.nbytes, products=flops_of(seconds, dtype, policy, hardware)
        )
    arrays = (b, a.data) if a.format in ("csr", "csc", "bsr", "coo") else (b,)
    return Problem(arrays, dtype, cost, (a, b, *params))


def prepare_cg(
    A: Any, b: Any, x0: Any = None, *, rtol: float = 1e-5, atol: float = 0.0, maxiter: Any = None, M: Any = None,
    callback: Any = None,
) -> Problem:  # fmt: skip
    _sparse_system(A, b, x0, {"M": M, "callback": callback})
    steps = 10 * A.shape[0] if maxiter is None else int(maxiter)
    return _problem(A, b, (x0, float(rtol), float(atol), steps, _krylov.STEPS), _krylov.STEPS)


def prepare_gmres(
    A: Any, b: Any, x0: Any = None, *, rtol: float = 1e-5, atol: float = 0.0, restart: Any = None, maxiter: Any = None,
    M: Any = None, callback: Any = None, callback_type: Any = None,
) -> Problem:  # fmt: skip
    _sparse_system(A, b, x0, {"M": M, "callback": callback, "callback_type": callback_type})
    length = RESTART if restart is None else int(restart)
    cycles = 10 * A.shape[0] if maxiter is None else int(maxiter)
    return _problem(A, b, (x0, float(rtol), float(atol), cycles * length, length), min(length, _krylov.CYCLE))


def _run_system(problem: Problem, engine: Engine, gmres: bool) -> tuple[np.ndarray, int]:
    a, b, x0, rtol, atol, steps, length = problem.params
    guards.finite(*(v for v in (b, x0, *problem.arrays) if v is not None))
    b = b.astype(np.float64, copy=False)
    if not b.any():  # SciPy returns zeros then and ignores x0
        return b.copy(), 0
    x = np.zeros_like(b) if x0 is None else x0.astype(np.float64)
    op = _krylov.operator(engine, a, _krylov.of_rows if gmres else _krylov.of_diagonal)
    inner = _krylov.gmres_cycles(engine, op, length) if gmres else _krylov.conjugate_gradients(engine, op)
    gain = _krylov.CYCLE_GAIN if gmres else _krylov.GAIN
    return _krylov.refine(op, b, x, _target(b, rtol, atol), steps, inner, gain), 0


def _target(b: np.ndarray, rtol: float, atol: float) -> float:
    return max(atol, rtol * float(np.linalg.norm(b)))


def _system_error(problem: Problem, result: tuple[np.ndarray, int]) -> float:
    """0 if the residual is at most what the caller asked for, as SciPy promises; else infinity."""
    a, b, _, rtol, atol, *_ = problem.params
    x, info = result
    if info:  # SciPy computed this result, and reports that it did not converge
        return 0.0
    size = float(np.linalg.norm(b - compressed(a, problem.dtype) @ x))
    rounding = 1 + 1e-6  # this residual is summed in another order than the solver's
    return 0.0 if size <= rounding * _target(b, rtol, atol) else math.inf


# --- eigenvalues ------------------------------------------------------------------------------------------------------


def _pairs_problem(a: Any, k: int, columns: int, params: tuple[Any, ...]) -> Problem:
    """The problem of eigenpairs by products of A with blocks of ``columns``."""
    dtype, policy = _square(a), current_policy()
    if dtype.char not in "fdFD":
        raise Unsupported(Reason.DTYPE, f"dtype {dtype} has no device path")
    n, real = a.shape[0], 4.0 if dtype.kind == "c" else 1.0
    moved = n * columns * dtype.itemsize
    one = Cost("csr", columns, 2.0 * real * a.nnz * columns, a.nnz * (dtype.itemsize + 4) + moved, moved)
    if at_rest(policy):
        return Problem((), dtype, one, on_device=False, refusal=NO_DEVICE)
    cost, _ = offer(one, a, columns, dtype, policy, current_rates())
    cost = replace(
        cost,
        flops=BLOCK_PRODUCTS * cost.flops,
        bytes_in=cost.bytes_in + (BLOCK_PRODUCTS - 1) * moved,
        bytes_out=BLOCK_PRODUCTS * cost.bytes_out,
        products=BLOCK_PRODUCTS * cost.products,
        launches=BLOCK_PRODUCTS * cost.launches,
    )
    arrays = (a.data,) if a.format in ("csr", "csc", "bsr", "coo") else (np.empty((n, k), dtype),)
    return Problem(arrays, dtype, cost, (a, k, *params))


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
    return _pairs_problem(A, k, max(k, _eigen.COLUMNS), (which, float(tol), bool(return_eigenvectors)))


def _product(a: Any, dtype: np.dtype, engine: Engine) -> Callable[[np.ndarray], np.ndarray]:
    """A X by ``engine`` for finite A and X."""

    def product(x: np.ndarray) -> np.ndarray:
        c = tiled(engine, a, np.ascontiguousarray(x, dtype))
        guards.finite(c)
        return c

    return product


def _run_eigsh(problem: Problem, engine: Engine) -> Any:
    a, k, which, tol, vectors = problem.params
    plain = compressed(a, problem.dtype)
    guards.finite(plain.data)
    if abs(plain - plain.conj().T).max() > 0:
        raise Unsupported(Reason.VALUE, "not exactly Hermitian")
    n, dtype = a.shape[0], problem.dtype
    start = np.random.default_rng(n).standard_normal((n, min(max(k, _eigen.COLUMNS), n // 4))).astype(dtype)
    values, found = _eigen.block_lanczos(engine, _product(a, dtype, engine), start, k, which, tol)
    return (values, found) if vectors else values


def _eigsh_error(problem: Problem, result: Any) -> float:
    """The larger of the eigenpairs' worst residual beyond ``tol`` and their error of orthonormality.

    Of eigenvalues alone only finiteness is checked.
    """
    a, _, _, tol, vectors = problem.params
    if not vectors:
        return 0.0 if np.isfinite(result).all() else math.inf
    values, found = result
    scale = float(np.abs(values).max()) or 1.0
    residual = np.abs(compressed(a, problem.dtype) @ found - found * values).max() / scale
    gram = np.abs(found.conj().T @ found - np.eye(len(values))).max()
    return float(max(max(residual - tol, 0.0), gram))


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
    options = (X, B, M, Y, tol, maxiter, largest, verbosityLevel, retLambdaHistory, retResidualNormsHistory)
    return _pairs_problem(A, X.shape[1], X.shape[1], (*options, restartControl))


@uncounted
def _run_lobpcg(problem: Problem, engine: Engine) -> Any:
    """SciPy's iteration, which is one of blocks already, with its products with A on the engine."""
    a, _, x, *options = problem.params
    guards.finite(compressed(a).data, x)
    # SciPy orthonormalizes X where it is, and may have to start again.
    return scipy_linalg.lobpcg(_product(a, problem.dtype, engine), x.copy(), *options)


def _lobpcg_error(problem: Problem, result: Any) -> float:
    """Of the values what they differ from the vectors' Rayleigh quotients, by the norm of A."""
    a, _, _, b, *_ = problem.params
    values, found = np.asarray(result[0]), np.asarray(result[1])
    plain = compressed(a, problem.dtype)
    image = found if b is None else b(found) if callable(b) else b @ found
    below = np.einsum("ij,ij->j", found.conj(), image).real
    quotients = np.einsum("ij,ij->j", found.conj(), plain @ found).real / below
    scale = float(np.abs(plain).sum(axis=1).max()) or 1.0
    return float(np.abs(quotients - values).max() / scale)


OPS = (
    Op(
        "scipy.sparse.linalg.cg", scipy_linalg.cg, prepare_cg,
        lambda problem, engine: _run_system(problem, engine, gmres=False), _system_error, 0,
    ),
    Op(
        "scipy.sparse.linalg.gmres", scipy_linalg.gmres, prepare_gmres,
        lambda problem, engine: _run_system(problem, engine, gmres=True), _system_error, 0,
    ),
    Op("scipy.sparse.linalg.eigsh", scipy_linalg.eigsh, prepare_eigsh, _run_eigsh, _eigsh_error, 0),
    Op("scipy.sparse.linalg.lobpcg", scipy_linalg.lobpcg, prepare_lobpcg, _run_lobpcg, _lobpcg_error, 0),
)  # fmt: skip
