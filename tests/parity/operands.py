"""Matrices and right-hand sides of a case, as generators of several rows take them."""

from __future__ import annotations

import numpy as np

from parity.cases import FLOATS

MATRICES = (*FLOATS, *FLOATS, *FLOATS, "i8", "u1", "b1")


def square(case, which=0):
    return case.finish(case.general(case.sizes[0], case.sizes[0], which), which)


def definite(case, spoilt=""):
    """A definite matrix in the case's layout, one triangle of which may hold other numbers."""
    return case.finish(spoilt_by(case.definite(case.sizes[0]), spoilt))


def spoilt_by(a, spoilt):
    if spoilt == "upper":
        return np.tril(a) + 3 * np.triu(a, 1)
    return np.triu(a) + 3 * np.tril(a, -1) if spoilt == "lower" else a


def sides(case, n, vector=True):
    """Right-hand sides (..., n, k), or one (n,)."""
    k = case.sizes[2]
    b = case.normal(n, k, which=1)
    return case.finish(b, 1) if case.batch or not vector or k % 3 else _vector(case.finish(b[:, :1], 1))


def _vector(b):
    return b[:, 0] if b.shape[-1] else np.zeros(len(b), b.dtype)


def columns(x, like):
    """x as a block of columns, if it is a vector as the right-hand side ``like`` is."""
    return x[..., np.newaxis] if np.ndim(like) == 1 else x
