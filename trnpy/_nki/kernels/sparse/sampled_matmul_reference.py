"""What sampled_matmul.py computes, in NumPy, and the limits it is checked against."""

from __future__ import annotations

import numpy as np

TILE = 128
TURN = 4  # tiles a turn of the kernel's loop
DEEPEST = 2048  # K of one launch: its loop is written out
SLOTS = 4096  # tiles of one launch


def check(a: np.ndarray, b: np.ndarray, left_at: np.ndarray, right_at: np.ndarray) -> None:
    """ValueError says what the kernel does not take."""
    if a.ndim != 2 or b.ndim != 2 or a.shape[0] != b.shape[0] or not 0 < a.shape[0] <= DEEPEST:
        raise ValueError(f"operands {a.shape} and {b.shape}: expected (K, M) and (K, N), K at most {DEEPEST}")
    if a.dtype != b.dtype or a.dtype.name not in ("float32", "bfloat16"):
        raise ValueError(f"operands {a.dtype} and {b.dtype}: expected float32 or bfloat16")
    if left_at.shape != right_at.shape or left_at.shape[0] != 1 or left_at.shape[1] % TURN or left_at.shape[1] > SLOTS:
        raise ValueError(f"places {left_at.shape}, {right_at.shape}: expected (1, T), T in fours, at most {SLOTS}")
    if max(a.size, b.size) >= 2**31 or max(left_at.max() + TILE - a.shape[1], right_at.max() + TILE - b.shape[1]) > 0:
        raise ValueError(f"operands {a.shape} and {b.shape}: expected every tile to lie inside")


def sampled_matmul(a, b, left_at, right_at, masks=None, mask_at=None):  # type: ignore[no-untyped-def]
    """Tiles (T 128, 128) of (A B)^T in float32, times their masks."""
    check(a, b, left_at, right_at)
    x, y = a.astype(np.float32), b.astype(np.float32)
    tiles = [y[:, j : j + TILE].T @ x[:, i : i + TILE] for i, j in zip(left_at[0], right_at[0], strict=True)]
    c = np.stack(tiles)
    if masks is not None:
        c *= masks.reshape(-1, TILE, TILE)[mask_at[0] // TILE**2]
    return c.reshape(-1, TILE)
