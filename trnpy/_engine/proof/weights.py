"""Random test vectors, new in every call: a wrong result that one call misses is found by the next."""

from __future__ import annotations

import numpy as np

PROBES = 2  # columns of weights for checks of whole matrices


def weights(*shape: int) -> np.ndarray:
    """Numbers between 1/2 and 3/2 with random sign.

    One wrong element is always detected, because no weight is small. Errors of a row that cancel to a tolerance t pass
    with probability at most t over the largest of them, because the density of a weight is at most 1/2.
    """
    generator = np.random.default_rng()
    signs = generator.integers(0, 2, shape) * 2.0 - 1.0
    return np.asarray(signs * generator.uniform(0.5, 1.5, shape))


def probe(rows: int, dtype: np.dtype) -> np.ndarray:
    """Weights (rows, PROBES) in ``dtype``: a check multiplies a matrix by them in O(n^2)."""
    return weights(rows, PROBES).astype(dtype)
