"""The NumPy reference implementation of cg_iterations.py, and the limits of its operands."""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

import numpy as np

TILE = 128
ITEMS = 128  # tiles of one turn
TOGETHER = 16  # tiles of one transfer
TURNS = 32  # of one product: 512 MiB of tiles
BLOCKS = 1024  # block rows: seven vectors with this number of columns fit in SBUF
TURN_STEPS = 160  # instructions of a turn, 128 tiles
VECTOR_STEPS = 32  # other instructions of an iteration


def check(tiles: np.ndarray, column_of: np.ndarray, row_of: np.ndarray, first_row: np.ndarray, x: np.ndarray) -> None:
    """Raise ValueError, with the reason, for operands that the kernel does not support."""
    turns = first_row.shape[-1]
    if tiles.shape != (turns * ITEMS // TOGETHER * TILE, TOGETHER * TILE) or tiles.dtype.name != "float32":
        raise ValueError(f"tiles {tiles.dtype}{tiles.shape}: expected float32 (turns 1024, 2048), {turns} turns")
    if first_row.shape != (1, turns) or not 0 < turns <= TURNS or {column_of.shape, row_of.shape} != {(ITEMS, turns)}:
        raise ValueError(f"{first_row.shape}, {column_of.shape}: expected (1, turns), (128, turns), at most {TURNS}")
    if x.shape[0] != TILE or x.dtype.name != "float32" or not 0 < x.shape[1] <= BLOCKS:
        raise ValueError(f"vector {x.dtype}{x.shape}: expected float32 (128, blocks), at most {BLOCKS}")


def operator(
    tiles: np.ndarray, column_of: np.ndarray, row_of: np.ndarray, first_row: np.ndarray
) -> Callable[[np.ndarray], np.ndarray]:
    """x -> A x on vectors (128, R), tile by tile in their dtype."""
    each = tiles.reshape(-1, TILE, TOGETHER, TILE).transpose(0, 2, 1, 3).reshape(-1, TILE, TILE)
    column, row = column_of.T.ravel(), (row_of + first_row).T.ravel().astype(int)
    used = np.flatnonzero(row_of.T.ravel() >= 0)

    def times(x: np.ndarray) -> np.ndarray:
        blocks = x.reshape(-1, TILE)
        out = np.zeros_like(blocks)
        for j in used.tolist():
            out[row[j]] += each[j].T @ blocks[column[j]]
        return out.reshape(x.shape)

    return times


def preconditioner(m: tuple[np.ndarray | None, ...], x: np.ndarray) -> Callable[[np.ndarray], np.ndarray]:
    """r -> M r on vectors like ``x``; the identity without M."""
    if m[0] is None:
        return lambda r: r
    given = cast("tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]", m)
    check(*given, x)
    return operator(*given)


def cg_iterations(  # type: ignore[no-untyped-def]
    tiles, column_of, row_of, first_row, x, r, p, rho, limit, m_tiles=None, m_column_of=None, m_row_of=None,
    m_first_row=None, most=32,
):  # fmt: skip
    """(x, r, p, rho, history): textbook conjugate gradients (Golub & Van Loan, 4th ed., 11.3.3 and 11.5.2)."""
    check(tiles, column_of, row_of, first_row, x)
    times = operator(tiles, column_of, row_of, first_row)
    inverse = preconditioner((m_tiles, m_column_of, m_row_of, m_first_row), x)
    x, r, p, size = x.copy(), r.copy(), p.copy(), rho[0, 0]
    history = np.zeros((1, most), np.float32)
    with np.errstate(all="ignore"):
        for step in range(most):
            if size > limit[0, 0]:
                q = times(p)
                alpha = size / np.sum(p * q, dtype=x.dtype)
                x += alpha * p
                r -= alpha * q
                z = inverse(r)
                following = np.sum(r * z, dtype=x.dtype)
                p = z + following / size * p
                size = following
            else:
                p = inverse(r).copy()
            history[0, step] = size
    return x, r, p, np.full((TILE, 1), size, np.float32), history
