"""What cg_iterations.py computes, in NumPy, and the limits it is checked against."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from trnpy._nki.kernels.sparse.bsr_spmm_reference import SLOTS

TILE = 128
BLOCKS = 1024  # block rows: seven vectors of so many columns lie in SBUF


def check(tiles: np.ndarray, left_at: np.ndarray, column_of: np.ndarray, bounds: np.ndarray, x: np.ndarray) -> None:
    """ValueError says what the kernel does not take."""
    if tiles.ndim != 2 or tiles.shape[1] != TILE or tiles.shape[0] % TILE or tiles.dtype.name != "float32":
        raise ValueError(f"tiles {tiles.dtype}{tiles.shape}: expected float32 (T 128, 128)")
    if left_at.shape != column_of.shape or left_at.shape[0] != 1 or left_at.shape[1] > SLOTS:
        raise ValueError(f"places {left_at.shape}, {column_of.shape}: expected (1, slots) of at most {SLOTS}")
    if x.shape != (TILE, bounds.shape[1]) or x.dtype.name != "float32" or x.shape[1] > BLOCKS:
        raise ValueError(f"vector {x.dtype}{x.shape}: expected float32 (128, {bounds.shape[1]}), at most {BLOCKS}")


def operator(
    tiles: np.ndarray, left_at: np.ndarray, column_of: np.ndarray, bounds: np.ndarray
) -> Callable[[np.ndarray], np.ndarray]:
    """x -> A x on vectors (128, R), tile by tile in their dtype."""
    lefts = tiles.reshape(-1, TILE, TILE)

    def times(x: np.ndarray) -> np.ndarray:
        out = np.zeros_like(x)
        for r, (s, e) in enumerate(zip(bounds[0].tolist(), bounds[-1].tolist(), strict=True)):
            for j in range(s, e):
                out[:, r] += lefts[left_at[0, j] // TILE**2].T @ x[:, column_of[0, j]]
        return out

    return times


def cg_iterations(tiles, left_at, column_of, bounds, x, r, p, rho, limit, most=32, unit=4):  # type: ignore[no-untyped-def]
    """(x, r, p, rho, history, done): textbook conjugate gradients (Golub & Van Loan, 4th ed., 11.3.3)."""
    check(tiles, left_at, column_of, bounds, x)
    times = operator(tiles, left_at, column_of, bounds)
    x, r, p, size = x.copy(), r.copy(), p.copy(), rho[0, 0]
    history, done = np.zeros((1, most), np.float32), 0
    with np.errstate(all="ignore"):
        while done < most and size > limit[0, 0]:
            q = times(p)
            alpha = size / np.sum(p * q, dtype=x.dtype)
            x += alpha * p
            r -= alpha * q
            following = np.sum(r * r, dtype=x.dtype)
            p = r + following / size * p
            size = following
            history[0, done] = size
            done += 1
    return x, r, p, np.full((TILE, 1), size, np.float32), history, np.array([[done]], np.int32)
