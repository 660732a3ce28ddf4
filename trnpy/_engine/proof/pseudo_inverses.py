"""The check of a pseudo-inverse: Penrose's four conditions, with random test vectors."""

from __future__ import annotations

import numpy as np

from trnpy._engine.precision import norms
from trnpy._engine.proof.weights import probe


def error(a: np.ndarray, x: np.ndarray, cut: bool) -> float:
    """The largest error of x (n, m) as the pseudo-inverse of a (m, n) in Penrose's conditions.

    A X A = A, X A X = X, and A X and X A are Hermitian. ``cut``: a tolerance removed some singular values of a, and the
    first condition does not hold.
    """
    size, other = float(norms(a)), float(norms(x))
    v, w = probe(a.shape[1], x.dtype), probe(a.shape[0], x.dtype)
    av, xw = a @ v, x @ w
    xav, axw = x @ av, a @ xw
    both = size * other
    errors = [
        _over(x @ axw - xw, both * other * norms(w)),
        _over(axw - x.conj().T @ (a.conj().T @ w), both * norms(w)),
        _over(xav - a.conj().T @ (x.conj().T @ v), both * norms(v)),
    ]
    if not cut:
        errors.append(_over(a @ xav - av, both * size * norms(v)))
    return float(np.max(errors))


def _over(x: np.ndarray, scale: float) -> float:
    size = float(norms(x))
    return size / float(scale) if scale else size
