"""The proof of products of one matrix with many blocks of few columns: what it needs of the matrix is computed once.

A is large beside B and C = A B, so that the proof of one product (``products``) takes as long as the product does on
the host. Here W^T A is kept, and W^T C is compared with (W^T A) B, column by column. W has two columns: errors of a
column that cancel at a tolerance t pass with probability (t / d)^2 at most, d the largest of them, as where rows are
compared, too.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np

from trnpy._engine.handles import Source
from trnpy._engine.proof import products
from trnpy._engine.proof.products import CERTIFIED, DEVIATIONS, DOUBLE, TERMS, Wrong
from trnpy._engine.proof.weights import PROBES
from trnpy._engine.stand_ins import priced

FEWEST_ROWS = 4  # of A for each column of B: with more columns the proof of the whole product costs little more


@dataclass(slots=True)
class Kept:
    """Random weights W (PROBES, m) of the rows of A (m, k), W^T A, and the sizes of its rows that tolerances need."""

    a: np.ndarray  # wide
    weights: np.ndarray
    length: np.ndarray  # (PROBES, 1): of the weights times the lengths of the rows
    largest: np.ndarray  # (PROBES, 1): the same of the largest element of each row
    sums: dict[int, np.ndarray] = field(default_factory=dict)  # by the terms that one call of BLAS sums

    def of(self, terms: int) -> np.ndarray:
        """W^T A (PROBES, k)."""
        if terms not in self.sums:
            turned = self.a.T
            self.sums[terms] = np.stack([products._times(turned, w, terms) for w in self.weights])
        return self.sums[terms]


@priced("proof", lambda a: (a.size, (None,)))
def kept(a: np.ndarray) -> Kept | None:
    """What proofs need of real a (m, k), which must not change; None in a dry run."""
    with np.errstate(all="ignore"):
        a = products._wide(a)
        rows = products.lengths(a)
        weights = np.stack([products._weights(np.zeros(0), rows, False) for _ in range(PROBES)])
        sizes = (rows, np.abs(a).max(axis=-1, initial=0.0))
        length, largest = (np.sqrt(np.square(weights * size).sum(axis=-1, keepdims=True)) for size in sizes)
        found = Kept(a, weights, length, largest)
        found.of(TERMS[0])
    return found


def prove_kept(a: Source, b: Source, c: np.ndarray, digits: int | None = None) -> None:
    """The proof of C = A B for operands that an engine keeps; of few columns or rows by what the other keeps."""
    if a.shape[0] * FEWEST_ROWS <= b.shape[1]:
        a, b, c = b.T, a.T, c.T
    if b.shape[1] * FEWEST_ROWS > a.shape[0]:
        products.prove(a.values, b.values, c, digits=digits)
        return
    if a.turned not in a.store.proofs:
        a.store.proofs[a.turned] = kept(a.values)
    prove(a.store.proofs[a.turned], a.values, b.values, c, digits)


def prove(of: Kept | None, a: np.ndarray, b: np.ndarray, c: np.ndarray, digits: int | None = None) -> None:
    """Wrong unless c (m, n) = a b for the matrix a that ``of`` is of; Refused if it may have overflowed."""
    error = excess(of, b, c, digits)
    if error <= 1:
        return
    if not math.isfinite(error):
        products.prove(a, b, c, digits=digits)
    raise Wrong(f"the {c.dtype} product {' x '.join(map(str, c.shape))} is wrong by {error:.2g} tolerances")


@priced("proof", lambda of, b, c, digits=None: (PROBES * (b.size + c.size), (0.0,)))
def excess(of: Kept | None, b: np.ndarray, c: np.ndarray, digits: int | None = None) -> float:
    """The largest error of a column of c in tolerances (``products.excess``)."""
    assert of is not None
    with np.errstate(all="ignore"):
        b, c = products._wide(b), products._wide(c)
        columns = products.lengths(b.T)
        allowed = _tolerance(of, b, columns, digits)
        for terms in TERMS:  # the weights are the same: others would give a wrong result a second chance
            sums, error = of.of(terms), 0.0
            for w, s, t in zip(of.weights, sums, allowed, strict=True):
                difference = products._times(c.T, w, terms) - products._times(b.T, s, terms)
                error = products.max_nan(error, np.max(np.abs(difference) / t))
            if error <= 1:
                break
    return error


def _tolerance(of: Kept, b: np.ndarray, columns: np.ndarray, digits: int | None) -> np.ndarray:
    """(PROBES, n): as of the columns in ``products``."""
    unit, tiny = float(np.finfo(DOUBLE).eps) / 2, products._tiny(False)
    size = np.sqrt(np.square(of.weights).sum(axis=-1, keepdims=True))
    floor = DEVIATIONS * (len(b) + 2) * tiny * (size * (1 + columns) + 2 * math.sqrt(len(of.a)))
    found = CERTIFIED * unit * of.length * columns + floor
    if digits is not None:
        cut = products.cut_unit(len(b), digits)
        found = found + cut * of.largest * np.abs(b).max(axis=0, initial=0.0)
    return np.asarray(found)
