"""Odd polynomials whose composition is nearly the sign function on [-1, -l] and [l, 1]."""

from __future__ import annotations

import functools

import numpy as np

HEADROOM = 1.002  # times the upper end of each interval: larger rounding errors would grow thirteenfold in a step
NEAR = 0.05  # to 1: closer, the fixed Newton-Schulz quintic is as good as the best one
NEWTON_SCHULZ = (15 / 8, -10 / 8, 3 / 8)  # reduces an error e to 2.5 e^3: Higham, Functions of Matrices, sec. 8.3
ENOUGH = 1e-7  # error of the composition, for float32
EXCHANGES = 100  # limit for Remez's algorithm, which needs about a dozen
POLISH = np.array([NEWTON_SCHULZ] * 2, np.float32)  # makes columns orthonormal if they are orthonormal to 5 %


@functools.lru_cache(maxsize=256)
def sign_coefficients(octaves: int) -> np.ndarray:
    """Coefficients (steps, 3) float32, steps even, of polynomials whose composition is sign(x) for |x| >= 2^-octaves.

    p(x) = c0 x + c1 x^3 + c2 x^5 for |x| <= 1, each optimal for the interval that the previous steps map to: Amsel et
    al., "The Polar Express", arXiv 2505.16932, thm 3.1; Nakatsukasa & Freund, SIAM Rev. 58 (2016), for the principle.
    """
    low, high = 2.0**-octaves, 1.0
    steps = []
    while max(1 - low, high - 1) > NEAR:
        coefficients, error = best_quintic(low, HEADROOM * high)
        steps.append(coefficients)
        low, high = 1 - error, 1 + error
    error = max(1 - low, high - 1)
    while error > ENOUGH or len(steps) % 2:
        steps.append(NEWTON_SCHULZ)
        error = 2.5 * error**3
    return np.array(steps, np.float32)


def best_quintic(low: float, high: float) -> tuple[tuple[float, float, float], float]:
    """Coefficients of x, x^3, x^5 that minimise the largest |1 - p| on [low, high], and that error, by Remez."""
    inner = (3 * low + high) / 4, (low + 3 * high) / 4
    error = np.inf
    for _ in range(EXCHANGES):
        x = np.array([low, *inner, high])
        system = np.stack([x, x**3, x**5, [1, -1, 1, -1]], axis=1)
        a, b, c, deviation = (float(v) for v in np.linalg.solve(system, np.ones(4)))
        root = np.sqrt(9 * b * b - 20 * a * c)
        inner = tuple(sorted(np.sqrt((-3 * b + s * root) / (10 * c)) for s in (-1, 1)))
        if abs(abs(deviation) - error) <= 1e-15:
            break
        error = abs(deviation)
    return (a, b, c), abs(deviation)
