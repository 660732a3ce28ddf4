"""The check of eigenvalues: all of them, with vectors. The ones a caller wants are selected afterwards.

n orthonormal vectors with small residuals verify all n eigenvalues (Weyl): a missing or exchanged eigenvalue cannot
pass, but it could if only the wanted eigenvalues were checked.
"""

from __future__ import annotations

import numpy as np

from trnpy._engine.precision import norms
from trnpy._engine.proof.weights import probe


def error(a: np.ndarray, b: np.ndarray | None, kind: int, w: np.ndarray, x: np.ndarray) -> float:
    """The error of eigenvalues w (n,) and vectors x (n, n) of a Hermitian a, or of a pair of SciPy's type ``kind``.

    The largest of the residual and of the distance from orthonormal vectors, each over the norms of its terms, with
    random test vectors; infinity if the values are not in ascending order.
    """
    if not np.isfinite(w).all() or (np.diff(w) < 0).any():
        return np.inf
    v = probe(len(w), x.dtype)
    xv, xwv = x @ v, x @ (w[:, np.newaxis] * v)
    size, length = norms(a), norms(v)
    if b is None:
        residual = _over(a @ xv - xwv, size * length)
        return max(_over(x.conj().T @ xv - v, length), residual)
    left, right = {1: (a @ xv, b @ xwv), 2: (a @ (b @ xv), xwv), 3: (b @ (a @ xv), xwv)}[kind]
    other, width = norms(b), norms(x)
    scale = size + other * np.abs(w).max() if kind == 1 else size * other
    if kind == 3:  # X^H B^-1 X = I is equivalent to X X^H = B
        orthogonality = _over(x @ (x.conj().T @ v) - b @ v, width**2 * length)
    else:
        orthogonality = _over(x.conj().T @ (b @ xv) - v, other * width**2 * length)
    return max(orthogonality, _over(left - right, scale * width * length))


def _over(x: np.ndarray, scale: float) -> float:
    size = float(norms(x))
    return size / float(scale) if scale else size
