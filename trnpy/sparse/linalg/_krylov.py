"""Sparse linear systems: iterations in float32 on an engine, refined with float64 residuals on the host."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy import sparse

from trnpy._call.dispatch import Reason, Unsupported
from trnpy._engine.engines import Engine, Held
from trnpy._engine.stand_ins import priced, usual
from trnpy._nki.kernels.solves.cg_iterations_reference import BLOCKS
from trnpy._nki.kernels.solves.gmres_steps_reference import ELEMENTS
from trnpy._nki.kernels.sparse.bsr_spmm_reference import SLOTS, bounds_of
from trnpy.sparse._device import Source, kept, padded
from trnpy.sparse._tiles import TILE, compressed, rung, tiling

UNIT = 4  # tiles in half a turn
STEPS = 32  # of conjugate gradients in one launch: Laplacians take 10 to 20 launches (docs/numerics.md#sparse-solvers)
CYCLE = 32  # most steps of GMRES in one launch
INNER = 1e-5  # relative residual that float32 reaches unless the matrix is too ill-conditioned
# A refinement that leaves more than this part of the residual ends the solve. Conjugate gradients run to INNER, or gain
# nothing where float32 is not accurate enough; a cycle of GMRES may be one of many, and may gain little.
GAIN, CYCLE_GAIN = 0.5, 0.9
# How many steps a solve takes is not known before, so dry runs assume these. Laplacians of 40,000 unknowns take 200 to
# 750 steps in float32, and 3 to 7 residuals (docs/numerics.md#sparse-solvers).
USUAL_TURNS, USUAL_STEPS = 4, 3 * STEPS

Vector = np.ndarray
# (scaled right-hand side, square of the norm to reach, steps left) -> the solution, and the steps that were taken
Inner = Callable[[Vector, float, int], tuple[Vector, int]]


@dataclass(frozen=True, slots=True, eq=False)
class Operator:
    """L A R in float32 as kernels read it; L and R are diagonal, of powers of two."""

    matrix: Any  # A in CSR and float64, for residuals
    left: np.ndarray  # (n,)
    right: np.ndarray  # (n,)
    arrays: tuple[Held, ...]  # tiles, left_at, column_of, bounds
    blocks: int


def _powers(x: np.ndarray) -> np.ndarray:
    """The powers of two whose exponents are nearest to log2(x), for positive x."""
    return np.asarray(np.exp2(np.rint(np.log2(x))))


def _scales_price(matrix: Any) -> tuple[float, tuple[Any, ...]]:
    """The price of ``of_diagonal`` and ``of_rows``."""
    n = (matrix.shape[0],), np.dtype(np.float64)
    return 4 * matrix.data.nbytes, (n, n)


@priced("", _scales_price)
def of_diagonal(matrix: Any) -> tuple[np.ndarray, np.ndarray]:
    """Scales that bring the diagonal near one, so that conjugate gradients do not depend on units."""
    diagonal = matrix.diagonal()
    if not (diagonal > 0).all():
        raise Unsupported(Reason.VALUE, "not positive definite: the diagonal is not positive")
    scale = _powers(1 / np.sqrt(diagonal))
    return scale, scale


@priced("", _scales_price)
def of_rows(matrix: Any) -> tuple[np.ndarray, np.ndarray]:
    """Scales that bring the largest element of each row near one, and then that of each column."""
    largest = np.abs(matrix).max(axis=1).toarray().ravel()
    if not largest.all():
        raise Unsupported(Reason.VALUE, "singular: a row of zeros")
    left = _powers(1 / largest)
    across = np.abs(sparse.diags_array(left) @ matrix).max(axis=0).toarray().ravel()
    if not across.all():
        raise Unsupported(Reason.VALUE, "singular: a column of zeros")
    return left, _powers(1 / across)


def operator(engine: Engine, a: Any, scales: Callable[[Any], tuple[np.ndarray, np.ndarray]]) -> Operator:
    """``a`` (n, n) as kernels read it. The engine keeps it until it changes."""
    source = Source.of(a, np.dtype(np.float64))

    def make() -> tuple[Any, ...]:
        matrix = compressed(a, np.dtype(np.float64))
        left, right = scales(matrix)
        t = tiling(matrix)
        blocks = t.blocks[0]
        if blocks > BLOCKS or len(t.row) >= SLOTS:
            raise Unsupported(Reason.LAYOUT, f"{len(t.row)} tiles in {blocks} block rows exceed one launch")
        values = _scaled(matrix, left, right)
        count = rung(len(t.row))
        tiles = padded(t.tiles(values[t.order]), (count,), 0, np.float32).reshape(-1, TILE)
        places = (np.arange(len(t.row)) * TILE**2, t.column)
        slots = [padded(p[np.newaxis], (1, count), 0, np.int32) for p in places]
        bounds = bounds_of(np.searchsorted(t.row, np.arange(blocks + 1)), UNIT)
        return matrix, left, right, tuple(map(engine.hold, (tiles, *slots, bounds))), blocks

    return Operator(*kept(engine, source, ("krylov", scales.__name__, source.turned), make))


@priced("", lambda matrix, *_: (4 * matrix.data.nbytes, ((matrix.data.shape, np.dtype(np.float32)),)))
def _scaled(matrix: Any, left: Vector, right: Vector) -> np.ndarray:
    """The elements of L A R in float32."""
    rows = np.repeat(np.arange(matrix.shape[0]), np.diff(matrix.indptr))
    with np.errstate(all="ignore"):
        return np.asarray((matrix.data * left[rows] * right[matrix.indices]).astype(np.float32))


def _laid(x: np.ndarray, blocks: int) -> np.ndarray:
    """A vector as kernels read it: element 128 c + i is at [i, c]."""
    return padded(x, (blocks * TILE,), 0, np.float32).reshape(blocks, TILE).T.copy()


def _everywhere(value: float) -> np.ndarray:
    """``value`` on every partition: (128, 1) float32."""
    return np.full((TILE, 1), value, np.float32)


def conjugate_gradients(engine: Engine, op: Operator) -> Inner:
    """Conjugate gradients with STEPS iterations a launch, until the residual is small enough."""

    def inner(r: Vector, limit: float, steps: int) -> tuple[Vector, int]:
        right = _laid(r, op.blocks)
        x, p = np.zeros_like(right), right
        rho, done = _everywhere(float(usual(np.sum(right * right), 1.0))), 0
        while done < steps and usual(rho[0, 0] > limit, done < USUAL_STEPS):
            outputs = engine.kernel(
                "cg_iterations", *op.arrays, x, right, p, rho, _everywhere(limit), most=STEPS, unit=UNIT
            )
            x, right, p, rho, _, taken = map(engine.get, outputs)
            done += int(usual(taken[0, 0], STEPS))
        return x.T.ravel()[: len(r)].astype(np.float64), done

    return inner


def cycle(blocks: int, n: int, restart: int) -> int:
    """Steps of one launch of GMRES."""
    return max(min(restart, CYCLE, ELEMENTS // blocks, n), 1)


def gmres_cycles(engine: Engine, op: Operator, restart: int) -> Inner:
    """GMRES with one cycle of at most ``restart`` steps a launch."""
    most = cycle(op.blocks, len(op.left), restart)

    def inner(r: Vector, limit: float, steps: int) -> tuple[Vector, int]:
        right = _laid(r, op.blocks)
        outputs = engine.kernel("gmres_steps", *op.arrays, right, _everywhere(limit), most=most, unit=UNIT)
        x, _, _, taken = map(engine.get, outputs)
        return x.T.ravel()[: len(r)].astype(np.float64), int(usual(taken[0, 0], most))

    return inner


def usual_turns(gmres: bool, most: int) -> int:
    """Refinements that dry runs assume, of ``most`` steps each if these are cycles of GMRES."""
    return -(-USUAL_TURNS * USUAL_STEPS // most) if gmres else USUAL_TURNS


def refine(
    op: Operator, b: Vector, x: Vector, target: float, steps: int, inner: Inner, gain: float, turns: int
) -> Vector:
    """x (n,) with |b - A x| at most ``target``, refined from the given ``x`` in at most ``steps`` inner steps.

    Raises Unsupported if these do not suffice, or if a refinement leaves more than ``gain`` of the residual. A dry run
    takes ``turns`` refinements.
    """
    residual = b - op.matrix @ x
    size = float(usual(np.linalg.norm(residual), 1.0))
    while not size <= target:
        scaled = op.left * residual
        unit = float(np.exp2(np.floor(np.log2(usual(np.abs(scaled).max(), 1.0)))))
        scaled /= unit
        reach = max(0.5 * target / size, INNER)
        limit = float(np.float32(reach * reach * usual(np.sum(scaled * scaled), 1.0)))
        change, taken = inner(scaled, limit, steps)
        steps -= taken
        with np.errstate(all="ignore"):
            x = x + op.right * change * unit
            residual = b - op.matrix @ x
            turns -= 1
            before, size = size, float(usual(np.linalg.norm(residual), gain * size if turns else 0.0))
        if not size <= gain * before or (size > target and steps <= 0) or not taken:
            raise Unsupported(Reason.ACCURACY, f"refinement in float32 stops at a residual of {size:.2g}")
    return x
