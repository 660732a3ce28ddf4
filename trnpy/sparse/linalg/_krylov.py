"""Sparse linear systems: iterations in float32 on an engine, refined with float64 residuals on the host."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
from scipy import sparse

from trnpy._base.records import record
from trnpy._call.dispatch import Reason, Unsupported
from trnpy._engine.abstract_arrays import priced, usual
from trnpy._engine.engines import Engine, Held
from trnpy._engine.residency import fingerprint
from trnpy._nki.kernels.solves.cg_iterations_reference import (
    BLOCKS,
    ITEMS,
    TOGETHER,
    TURN_STEPS,
    TURNS,
    VECTOR_STEPS,
)
from trnpy._nki.kernels.solves.gmres_steps_reference import BASIS_STEPS, ELEMENTS
from trnpy.sparse._device import Source, kept, padded
from trnpy.sparse._tiles import TILE, compressed, rung, tiling

PROGRAM = 40_000  # instructions of a kernel: it compiles in 13 s
STEPS = 32  # most steps of conjugate gradients in one launch: Laplacians take 10 to 20 (docs/sparse.md#sparse-solvers)
CYCLE = 32  # most steps of GMRES in one launch
INNER = 1e-5  # relative residual that float32 reaches unless the matrix is too ill-conditioned
# A refinement that leaves more than this fraction of the residual ends the solve. Conjugate gradients run to INNER, or
# gain nothing if float32 is not accurate enough; one of many GMRES cycles may gain little.
GAIN, CYCLE_GAIN = 0.5, 0.9
# The number of steps is not known before a solve, so dry runs assume these. Laplacians of 40,000 unknowns need 200 to
# 750 steps in float32, and 3 to 7 residuals (docs/sparse.md#sparse-solvers).
USUAL_TURNS, USUAL_STEPS = 4, 3 * STEPS

Vector = np.ndarray
# (scaled right-hand side, fraction of its norm to reach, steps left) -> the solution, and the steps taken
Inner = Callable[[Vector, float, int], tuple[Vector, int]]
Scales = Callable[[Any], tuple[Vector, Vector]]  # of a matrix: L and R


@record(eq=False)
class Operator:
    """L A R in float32 in the kernels' layout, and a preconditioner; L and R are diagonal."""

    matrix: Any  # A in CSR and float64, for residuals
    left: np.ndarray  # (n,)
    right: np.ndarray  # (n,)
    arrays: tuple[Held, ...]  # tiles, column_of, row_of, first_row
    blocks: int  # of vectors
    turns: int  # iterations of the device loop in one product
    inverse: tuple[Held, ...] = ()  # the same for the preconditioner
    preconditioned: Callable[[Vector], Vector] = lambda r: r  # multiplies by the preconditioner, in float64


def _powers(x: np.ndarray) -> np.ndarray:
    """The powers of two whose exponents are nearest to log2(x), for positive x."""
    return np.asarray(np.exp2(np.rint(np.log2(x))))


def _scales_price(matrix: Any, passes: int = 4) -> tuple[float, tuple[Any, ...]]:
    """The cost of scales of the diagonal."""
    n = (matrix.shape[0],), np.dtype(np.float64)
    return passes * matrix.data.nbytes, (n, n)


def _rows_price(matrix: Any) -> tuple[float, tuple[Any, ...]]:
    """The cost of scales of rows and columns, for which SciPy copies the matrix several times."""
    return _scales_price(matrix, 24)


@priced("", _scales_price)
def of_diagonal(matrix: Any) -> tuple[np.ndarray, np.ndarray]:
    """Scales that bring the diagonal near one, so that conjugate gradients do not depend on units."""
    diagonal = matrix.diagonal()
    if not (diagonal > 0).all():
        raise Unsupported(Reason.VALUE, "not positive definite: the diagonal is not positive")
    scale = _powers(1 / np.sqrt(diagonal))
    return scale, scale


@priced("", _rows_price)
def of_rows(matrix: Any) -> tuple[np.ndarray, np.ndarray]:
    """Scales that bring the largest element of each row near one, and then that of each column."""
    largest = np.abs(matrix).max(axis=1).toarray().ravel()
    if not largest.all():
        raise Unsupported(Reason.VALUE, "singular: a row of zeros")
    left = _powers(1 / largest)
    return left, _of_columns(sparse.diags_array(left) @ matrix)


def by_root(diagonal: Vector) -> Scales:
    """Scales that include a diagonal preconditioner in conjugate gradients, up to a power of two."""

    @priced("", _scales_price)
    def scales(matrix: Any) -> tuple[Vector, Vector]:
        root, largest = np.sqrt(diagonal), np.sqrt(np.abs(matrix.diagonal())).max()
        if not ((diagonal > 0).all() and largest > 0):
            raise Unsupported(Reason.VALUE, "the matrix or the preconditioner is not positive definite")
        root = root / _powers(root.max() * largest)
        return root, root

    return scales


def by_rows(diagonal: Vector) -> Scales:
    """Scales that include a diagonal preconditioner in GMRES, up to a power of two, and bring columns near one."""

    @priced("", _rows_price)
    def scales(matrix: Any) -> tuple[Vector, Vector]:
        largest = np.abs(diagonal).max()
        if not largest:
            raise Unsupported(Reason.VALUE, "the preconditioner is zero")
        left = diagonal / _powers(largest)
        return left, _of_columns(sparse.diags_array(left) @ matrix)

    return scales


def _of_columns(matrix: Any) -> Vector:
    """Scales that bring the largest element of each column near one."""
    across = np.abs(matrix).max(axis=0).toarray().ravel()
    if not across.all():
        raise Unsupported(Reason.VALUE, "singular: a column of zeros")
    return _powers(1 / across)


def operator(engine: Engine, a: Any, scales: Scales, form: tuple[Any, ...]) -> Operator:
    """``a`` (n, n) in the kernels' layout. The engine caches it, as ``form``, until it changes."""
    source = Source.of(a, np.dtype(np.float64))

    def make() -> tuple[Any, ...]:
        matrix = compressed(a, np.dtype(np.float64))
        left, right = scales(matrix)
        return matrix, left, right, *_held(engine, matrix, left, right)

    return Operator(*kept(engine, source, ("krylov", *form, source.turned), make))


def _held(engine: Engine, matrix: Any, left: Vector, right: Vector) -> tuple[tuple[Held, ...], int, int]:
    """L A R on the engine, the blocks of its vectors, and the loop iterations of a product."""
    t = tiling(matrix)
    blocks, turns = rung(t.blocks[0]), rung(-(-len(t.row) // ITEMS), 1)
    if blocks > BLOCKS or turns > TURNS:
        raise Unsupported(Reason.LAYOUT, f"{len(t.row)} tiles in {t.blocks[0]} block rows exceed one launch")
    values = _scaled(matrix, left, right)
    tiles = padded(t.tiles(values[t.order]), (turns * ITEMS,), 0, np.float32)
    together = tiles.reshape(-1, TOGETHER, TILE, TILE).transpose(0, 2, 1, 3).reshape(-1, TOGETHER * TILE)
    tables = _turns(t.row, t.column, turns)
    return tuple(map(engine.hold, (together, *tables))), blocks, turns


def preconditioned(engine: Engine, op: Operator, m: Any, symmetric: bool) -> Operator:
    """``op`` with the preconditioner ``m`` (n, n) of A: as M / L for GMRES, as M / (L L) for conjugate gradients."""
    source = Source.of(m, np.dtype(np.float64))

    def make() -> tuple[Any, ...]:
        matrix, right = compressed(m, np.dtype(np.float64)), 1 / op.left
        left = right if symmetric else np.ones_like(right)
        largest = usual(np.abs(_elements(matrix, left, right)).max(initial=0.0), 1.0)
        if not 0 < largest < np.inf:
            raise Unsupported(Reason.VALUE, "the preconditioner is zero, or overflows")
        left = left / _powers(largest)
        arrays, _, turns = _held(engine, matrix, left, right)
        return matrix, left, right, arrays, turns

    form = ("krylov", "preconditioner", symmetric, fingerprint(op.left), source.turned)
    matrix, left, right, arrays, turns = kept(engine, source, form, make)
    return replace(op, turns=op.turns + turns, inverse=arrays, preconditioned=lambda r: left * (matrix @ (right * r)))


def _turns(row: np.ndarray, column: np.ndarray, turns: int) -> tuple[np.ndarray, ...]:
    """(column_of, row_of, first_row) for loop iterations of ITEMS tiles, in the kernels' layout."""
    met, rows = (padded(x, (turns * ITEMS,), 0, np.int32).reshape(turns, ITEMS) for x in (column, row))
    within = (rows - rows[:, :1]).astype(np.float32)
    within.reshape(-1)[len(row) :] = -1
    return met.T.copy(), within.T.copy(), rows[:, :1].T.copy()


@priced("", lambda matrix, *_: (4 * matrix.data.nbytes, ((matrix.data.shape, np.dtype(np.float32)),)))
def _scaled(matrix: Any, left: Vector, right: Vector) -> np.ndarray:
    """The elements of L A R in float32."""
    with np.errstate(all="ignore"):
        return _elements(matrix, left, right).astype(np.float32)


@priced("", lambda matrix, *_: (4 * matrix.data.nbytes, ((matrix.data.shape, np.dtype(np.float64)),)))
def _elements(matrix: Any, left: Vector, right: Vector) -> np.ndarray:
    """The elements of L A R."""
    rows = np.repeat(np.arange(matrix.shape[0]), np.diff(matrix.indptr))
    with np.errstate(all="ignore"):
        return np.asarray(matrix.data * left[rows] * right[matrix.indices])


def _laid(x: np.ndarray, blocks: int) -> np.ndarray:
    """A vector in the kernels' layout."""
    return padded(x, (blocks * TILE,), 0, np.float32).reshape(TILE, blocks)


def _everywhere(value: float) -> np.ndarray:
    """``value`` on every partition: (128, 1) float32."""
    return np.full((TILE, 1), value, np.float32)


def _taken(history: np.ndarray, limit: float) -> int:
    """Steps until the squared norms in ``history`` (1, steps) have fallen to ``limit``."""
    before = int(usual((history[0, :-1] > limit).sum(), history.shape[1] - 1))
    return before + 1


def conjugate_gradients(engine: Engine, op: Operator) -> Inner:
    """Conjugate gradients with at most STEPS iterations a launch, until the residual is small enough."""
    fitting = max(PROGRAM // (op.turns * TURN_STEPS + VECTOR_STEPS), 1)
    most = min(1 << (fitting.bit_length() - 1), STEPS)

    def inner(r: Vector, reach: float, steps: int) -> tuple[Vector, int]:
        right, p = _laid(r, op.blocks), _laid(op.preconditioned(r), op.blocks)
        x = np.zeros_like(right)
        rho, done = _everywhere(float(usual(np.sum(right * p), 1.0))), 0
        limit = reach * reach * rho[0, 0]
        while done < steps and usual(rho[0, 0] > limit, done < USUAL_STEPS):
            outputs = engine.kernel(
                "cg_iterations", *op.arrays, x, right, p, rho, _everywhere(limit), *op.inverse, most=most
            )
            x, right, p, rho, history = map(engine.get, outputs)
            done += _taken(history, limit)
        return x.ravel()[: len(r)].astype(np.float64), done

    return inner


def cycle(op: Operator, restart: int) -> int:
    """Steps of one launch of GMRES that restarts after ``restart`` steps."""
    most = max(min(restart, CYCLE, ELEMENTS // op.blocks, len(op.left)), 1)
    while most > 1 and most * (op.turns * TURN_STEPS + VECTOR_STEPS) + BASIS_STEPS * most**2 // 2 > PROGRAM:
        most -= 1
    return most


def gmres_cycles(engine: Engine, op: Operator, most: int) -> Inner:
    """GMRES with one cycle of at most ``most`` steps a launch."""

    def inner(r: Vector, reach: float, steps: int) -> tuple[Vector, int]:
        right = _laid(op.preconditioned(r), op.blocks)
        limit = float(np.float32(reach * reach * usual(np.sum(right * right), 1.0)))
        outputs = engine.kernel("gmres_steps", *op.arrays, right, _everywhere(limit), *op.inverse, most=most)
        x, _, history = map(engine.get, outputs)
        return x.ravel()[: len(r)].astype(np.float64), _taken(history, limit)

    return inner


def usual_cycles(most: int) -> int:
    """Cycles of ``most`` steps of GMRES that dry runs assume."""
    return -(-USUAL_TURNS * USUAL_STEPS // most)


def refine(
    op: Operator, b: Vector, x: Vector, target: float, steps: int, inner: Inner, gain: float, turns: int
) -> Vector:
    """x (n,) with |b - A x| at most ``target``, refined from the given ``x`` in at most ``steps`` inner steps.

    Raises Unsupported if these do not suffice, or if a refinement leaves more than ``gain`` of the residual. A dry run
    assumes ``turns`` refinements.
    """
    residual = b - op.matrix @ x
    size = float(usual(np.linalg.norm(residual), 1.0))
    while not size <= target:
        scaled = op.left * residual
        unit = float(np.exp2(np.floor(np.log2(usual(np.abs(scaled).max(), 1.0)))))
        scaled /= unit
        reach = max(0.5 * target / size, INNER)
        change, taken = inner(scaled, reach, steps)
        steps -= taken
        with np.errstate(all="ignore"):
            x = x + op.right * change * unit
            residual = b - op.matrix @ x
            turns -= 1
            before, size = size, float(usual(np.linalg.norm(residual), gain * size if turns else 0.0))
        if steps <= 0:  # SciPy would report that it did not converge, or converged at the last step
            raise Unsupported(Reason.ACCURACY, "maxiter allows no more steps in float32")
        if not size <= gain * before or not taken:
            raise Unsupported(Reason.ACCURACY, f"refinement in float32 stops at a residual of {size:.2g}")
    return x
