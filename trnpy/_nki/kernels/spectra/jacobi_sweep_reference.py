"""The NumPy reference implementation of jacobi_sweep.py, and the limits of its operands."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

HALF = 64
TILE = 2 * HALF
LONGEST = 4096  # rows: offsets of rows are exact in float32 below 2^24


def tournament(players: int) -> list[list[tuple[int, int]]]:
    """Rounds of disjoint pairs of an even number of players in which each meets each once: Brent & Luk 1985."""
    seats = list(range(players))
    rounds = []
    for _ in range(players - 1):
        rounds.append([(min(p), max(p)) for p in zip(seats[::2], seats[1::2], strict=True)])
        seats = [seats[s] for s in moves(players)]
    return rounds


def moves(players: int) -> list[int]:
    """The seat that each seat's next player comes from; the pairs are seats 0 and 1, 2 and 3, ..."""
    last = players - 1
    ends = {0: 0, 2: 1, last: max(last - 1, 1)}
    return [ends.get(s, s - 2 if s % 2 == 0 else s + 2) for s in range(players)]


def order(n: int) -> np.ndarray:
    """(4, pairs) int32: for every pair i, j of blocks of 64 of n rows, round by round: 64 i n, 64 j n, 64 i, 64 j."""
    blocks = n // HALF
    pairs = np.array([p for r in tournament(blocks) for p in r], np.int64).T * HALF
    return np.concatenate([pairs * n, pairs]).astype(np.int32)


def check(a: np.ndarray, w: np.ndarray, order: np.ndarray) -> None:
    """Raise ValueError, with the reason, for operands that the kernel does not support."""
    if a.ndim != 2 or a.shape != w.shape or len(a) != a.shape[1] or len(a) % TILE or not 0 < len(a) <= LONGEST:
        raise ValueError(f"a {a.shape} and w {w.shape}: expected squares of a multiple of {TILE} rows up to {LONGEST}")
    if a.dtype != np.float32 or w.dtype != np.float32 or order.dtype != np.int32 or order.shape[0] != 4:
        raise ValueError(
            f"a {a.dtype}, w {w.dtype}, order {order.dtype} {order.shape}: expected float32, (4, pairs) int32"
        )


def jacobi_sweep(
    a: np.ndarray, w: np.ndarray, order: np.ndarray, product: Callable[..., np.ndarray] = np.matmul
) -> tuple[np.ndarray, np.ndarray]:
    """(J^T a J, J^T w) of symmetric a and of w (N, N): each pair of blocks of 64 rows rotated once."""
    check(a, w, order)
    a, w = a.copy(), w.copy()
    for i, j in order[2:].T:
        pair = np.r_[i : i + HALF, j : j + HALF]
        problem, rotations = _solved(a[np.ix_(pair, pair)])
        a[pair] = product(rotations, a[pair])
        a[:, pair] = a[pair].T
        a[np.ix_(pair, pair)] = problem
        w[pair] = product(rotations, w[pair])
    return a, w


def _solved(m: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """One sweep of rotations of neighbours with Brent and Luk's moves between: Q^T m Q and Q^T."""
    n, given = len(m), m
    q = np.eye(n, dtype=m.dtype)
    seats = moves(n)
    first = np.arange(0, n, 2)
    for _ in range(n - 1):
        k = np.zeros_like(m)
        gap, coupling = m[first + 1, first + 1] - m[first, first], m[first, first + 1]
        root = np.abs(gap) + np.sqrt(gap**2 + 4 * coupling**2)
        t = np.where(gap >= 0, 2, -2) * coupling / np.where(root > 0, root, 1)
        cosine = 1 / np.sqrt(1 + t * t)
        k[first, first] = k[first + 1, first + 1] = cosine
        k[first, first + 1], k[first + 1, first] = t * cosine, -t * cosine
        k = k[:, seats]
        m, q = k.T @ m @ k, k.T @ q
    q = (1.5 * np.eye(n, dtype=m.dtype) - (q @ q.T) / 2) @ q
    return q @ given @ q.T, q
