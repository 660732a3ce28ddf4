"""The results of the self-tests in probes.py, in NumPy, on hardware that behaves as trnpy assumes."""

from __future__ import annotations

import numpy as np


def exact_sums(a, b):  # type: ignore[no-untyped-def]
    """Sums of integers below 2^24, exactly."""
    return (a.astype(np.float64).T @ b.astype(np.float64)).astype(np.float32)


def float32_products(a, b):  # type: ignore[no-untyped-def]
    """Products of one term each, rounded once."""
    return (a.astype(np.float64).T @ b.astype(np.float64)).astype(np.float32)


def rounding(x):  # type: ignore[no-untyped-def]
    """The nearest integer, of two the even one."""
    return np.tile(np.rint(x), (2, 1))


def integer_sums(x, y):  # type: ignore[no-untyped-def]
    """Integers beyond 2^24, exactly."""
    return x + y


def byte_reads(x, width):  # type: ignore[no-untyped-def]
    """Balanced digits."""
    return np.tile(x[:, ::width].astype(np.float32) - 128, (2, 1))


def denormals(x):  # type: ignore[no-untyped-def]
    """Numbers below the smallest normal one are kept."""
    return np.tile(x, (2, 1))


def remainders(x):  # type: ignore[no-untyped-def]
    """Exact, in [-128, 128]."""
    return (x.astype(np.float64) - 256 * np.rint(x.astype(np.float64) / 256)).astype(np.float32)


def transposes(x):  # type: ignore[no-untyped-def]
    """The transpose, bit for bit."""
    return x.T.copy()


def repeated_rows(x, at):  # type: ignore[no-untyped-def]
    """The same numbers on every partition."""
    start = int(at[0, 0])
    return np.tile(x.reshape(-1)[start : start + x.shape[1]], (x.shape[0], 1))


def register_offsets(x):  # type: ignore[no-untyped-def]
    """Every row in its place."""
    return x.copy()


def sums_of_loops(a, b):  # type: ignore[no-untyped-def]
    """Twice each product, from either loop."""
    left, right = a.reshape(-1, 128, 128).astype(np.float32), b.astype(np.float32)
    return np.tile((2 * left.transpose(0, 2, 1) @ right).reshape(len(a), -1), (2, 1))
