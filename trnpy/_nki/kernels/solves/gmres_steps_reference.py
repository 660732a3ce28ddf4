"""The NumPy reference implementation of gmres_steps.py, and the limits of its operands."""

from __future__ import annotations

import numpy as np

from trnpy._nki.kernels.solves import cg_iterations_reference
from trnpy._nki.kernels.solves.cg_iterations_reference import operator, preconditioner

TILE = 128
ELEMENTS = 12 * 1024  # of a partition in each of the two bases, steps times block rows
BASIS_STEPS = 8  # instructions for each earlier step
SHRINKS = 0.81
SMALLEST = np.float32(1e-35)


def check(
    tiles: np.ndarray, column_of: np.ndarray, row_of: np.ndarray, first_row: np.ndarray, r: np.ndarray, most: int
) -> None:
    """Raise ValueError, with the reason, for operands that the kernel does not support."""
    cg_iterations_reference.check(tiles, column_of, row_of, first_row, r)
    if not 0 < most * r.shape[1] <= ELEMENTS or most > TILE:
        raise ValueError(f"{most} steps of {r.shape[1]} block rows: expected at most {TILE}, {ELEMENTS} in all")


def gmres_steps(  # type: ignore[no-untyped-def]
    tiles, column_of, row_of, first_row, r, limit, m_tiles=None, m_column_of=None, m_row_of=None, m_first_row=None,
    most=20,
):  # fmt: skip
    """(x, r, history): orthogonal images q = A p, of directions that are residuals or the last q."""
    check(tiles, column_of, row_of, first_row, r, most)
    times = operator(tiles, column_of, row_of, first_row)
    inverse = preconditioner((m_tiles, m_column_of, m_row_of, m_first_row), r)
    r, x, last, shrinks = r.copy(), np.zeros_like(r), np.zeros_like(r), True
    images: list[np.ndarray] = []
    directions: list[np.ndarray] = []
    history = np.zeros((1, most), np.float32)
    size = np.sum(r * r, dtype=r.dtype)
    for step in range(most):
        if size > limit[0, 0]:
            p = (r if shrinks else last).copy()
            q = inverse(times(p))
            for _ in range(2):
                shares = [np.sum(i * q, dtype=r.dtype) / max(np.sum(i * i, dtype=r.dtype), SMALLEST) for i in images]
                for share, image, direction in zip(shares, images, directions, strict=True):
                    q -= share * image
                    p -= share * direction
            share = np.sum(q * r, dtype=r.dtype) / max(np.sum(q * q, dtype=r.dtype), SMALLEST)
            x += share * p
            r -= share * q
            images.append(q)
            directions.append(p)
            last, before = q, size
            size = np.sum(r * r, dtype=r.dtype)
            shrinks = bool(np.float32(SHRINKS) * before > size)
        history[0, step] = size
    return x, r, history
