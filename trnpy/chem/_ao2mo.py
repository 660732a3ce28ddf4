"""Electron-repulsion integrals from atomic to molecular orbitals, three- and four-index."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from trnpy._base.records import record
from trnpy._call import guards
from trnpy._call.dispatch import Cost, Problem, Reason, Unsupported
from trnpy._engine.abstract_arrays import priced
from trnpy._engine.engines import Engine
from trnpy.chem._progress import track
from trnpy.chem._rows import (
    MEMORY,
    REAL,
    STACK,
    Product,
    Transform,
    checked_product,
    cube,
    host_product,
    norm,
    real_array,
    relative,
    row,
    stack_size,
)
from trnpy.chem._transform import by_kernel

COPIES = 3  # arrays of at most (nao, nao) elements in memory for each matrix: unpacked, half transformed, transformed
Coefficients = tuple[np.ndarray, np.ndarray]  # (nao, nleft), (nao, nright)


def _triangle(packed: int) -> int:
    """The nao whose lower triangle has ``packed`` elements; ValueError if there is none."""
    nao = int(((8 * packed + 1) ** 0.5 - 1) / 2)
    if nao * (nao + 1) // 2 != packed:
        raise ValueError(f"{packed} columns are no lower triangle: expected nao (nao + 1) / 2")
    return nao


def _unpacked_price(b: np.ndarray) -> tuple[float, tuple[Any, ...]]:
    if b.ndim == 3:
        return 0.0, (b,)
    nao = _triangle(b.shape[1])
    return b.nbytes + len(b) * nao * nao * REAL.itemsize, (((len(b), nao, nao), b.dtype),)


@priced("", _unpacked_price)
def unpacked(b: np.ndarray) -> np.ndarray:
    """Symmetric matrices (n, nao, nao) from lower triangles (n, nao (nao + 1) / 2), packed row by row as in PySCF.

    A three-dimensional array is returned as it is.
    """
    if b.ndim == 3:
        return b
    nao = _triangle(b.shape[1])
    m, n = np.indices((nao, nao)).reshape(2, -1)
    high, low = np.maximum(m, n), np.minimum(m, n)
    return np.asarray(np.take(b, high * (high + 1) // 2 + low, axis=1)).reshape(len(b), nao, nao)


def _checked(integrals: Any, c_left: Any, c_right: Any, ket: Any) -> tuple[np.ndarray, Coefficients, Coefficients]:
    """The integrals and the coefficients of the bra and the ket, in float64; raises the errors of `ao2mo`."""
    expected = "(naux, nao, nao), (naux, nao (nao + 1) / 2) or (nao, nao, nao, nao)"
    g = real_array("integrals", integrals, expected, 2, 3, 4)
    nao = _triangle(g.shape[1]) if g.ndim == 2 else g.shape[-1]
    if g.ndim > 2 and set(g.shape[1 if g.ndim == 3 else 0 :]) != {nao}:
        raise ValueError(f"integrals has shape {g.shape}: expected {expected}")
    if ket is not None and g.ndim != 4:
        raise ValueError(f"ket orbitals with integrals of shape {g.shape}: three-index integrals have no ket")
    if ket is not None and len(ket) != 2:
        raise ValueError(f"ket has {len(ket)} entries: expected (c_left, c_right)")
    named = zip(("c_left", "c_right", "ket[0]", "ket[1]"), (c_left, c_right, *(ket or (c_left, c_right))), strict=True)
    c = []
    for name, given in named:
        c.append(real_array(name, given, f"({nao}, norbitals)", 2))
        if len(c[-1]) != nao:
            raise ValueError(f"{name} has {len(c[-1])} rows: expected nao = {nao}")
    return g, (c[0], c[1]), (c[2], c[3])


def _by_products(product: Product, memory: float, most: float = math.inf) -> Transform:
    """Both half transformations as products of at most ``most`` matrices (nao, nao) at a time."""

    def run(stack: np.ndarray, left: np.ndarray, right: np.ndarray) -> np.ndarray:
        half = product(left.T, stack, None)  # (n, i, nu)
        return product(right.T, half.transpose(1, 2, 0), None)  # (i, j, n): BLAS reads each (nu, n) without a copy

    return Transform(run, lambda left, right: stack_size(len(left), COPIES, memory, most))


def _transformed(g: np.ndarray, left: np.ndarray, right: np.ndarray, transform: Transform) -> np.ndarray:
    """Transform ``g`` (n, nao, nao), or packed triangles, to (nleft, nright, n), a stack of matrices at a time."""
    nleft, nright = left.shape[1], right.shape[1]
    if nleft > nright:  # transforming to the smaller set first needs fewer operations in both steps
        return _transformed(g.swapaxes(1, 2) if g.ndim == 3 else g, right, left, transform).swapaxes(0, 1)
    out = np.empty_like(g, order="C", shape=(nleft, nright, len(g)))
    step = transform.matrices(left, right)
    for start in track(range(0, len(g), step), "AO to MO"):
        out[:, :, start : start + step] = transform.run(unpacked(g[start : start + step]), left, right)
    return out


def _both(g: np.ndarray, bra: Coefficients, ket: Coefficients, transform: Transform) -> np.ndarray:
    """Transform the pair mn of three-index integrals, or first rs and then mn of four-index ones."""
    if g.ndim < 4:
        return _transformed(g, *bra, transform)
    nao = len(g)
    # (k, l, mn), then (i, j, kl): the last index of the first result becomes the first of the second operand.
    half = _transformed(g.reshape(nao * nao, nao, nao), *ket, transform)
    half = half.astype(REAL, order="C", copy=False).reshape(math.prod(half.shape[:2]), nao, nao)
    shape = bra[0].shape[1], bra[1].shape[1], ket[0].shape[1], ket[1].shape[1]
    return _transformed(half, *bra, transform).reshape(shape)


@record(kw_only=True)
class OrbitalTransform(Problem):
    """The integrals and the coefficients of the bra and the ket; the ket is used for four-index integrals only."""

    g: np.ndarray
    bra: Coefficients
    ket: Coefficients
    memory: float

    def run(self, engine: Engine) -> np.ndarray:
        guards.finite(*self.arrays)
        transform = by_kernel(engine, self.memory) or _by_products(checked_product(engine), self.memory)
        return _both(self.g, self.bra, self.ket, transform).astype(REAL, order="C", copy=False)

    def error(self, result: np.ndarray) -> float:
        """Backward error: result against integrals, both contracted with random signs, relative to their norms."""
        g, bra, ket = self.g, self.bra, self.ket
        generator = np.random.default_rng(len(bra[0]))
        signs = [generator.choice((-1.0, 1.0), n) for n in result.shape]
        p, q = bra[0] @ signs[0], bra[1] @ signs[1]
        scale = norm(p) * norm(q)
        if g.ndim == 4:
            r, s = ket[0] @ signs[2], ket[1] @ signs[3]
            scale *= norm(r) * norm(s)
            exact, ours = p @ (g @ s @ r) @ q, ((result @ signs[3] @ signs[2]) @ signs[1]) @ signs[0]
        else:
            if g.ndim == 2:
                rows, columns = np.tril_indices(len(p))
                weights = p[rows] * q[columns] + q[rows] * p[columns]
                each = g @ np.where(rows == columns, weights / 2, weights)
            else:
                each = g @ q @ p
            exact, ours = each @ signs[2], signs[0] @ (result @ signs[2]) @ signs[1]
        return relative(float(abs(ours - exact)), scale * norm(g))


def _prepare(integrals: Any, c_left: Any, c_right: Any, ket: Any = None, *, memory: float = MEMORY) -> Problem:
    g, bra, ket = _checked(integrals, c_left, c_right, ket)
    if g.size == 0 or any(c.size == 0 for c in (*bra, *ket)):
        raise Unsupported(Reason.LAYOUT, "an operand is empty")
    nao = len(bra[0])
    stages = [(len(g), bra)] if g.ndim < 4 else [(nao * nao, ket), (ket[0].shape[1] * ket[1].shape[1], bra)]
    flops, results = 0, 0
    for n, pair in stages:
        few, many = sorted(c.shape[1] for c in pair)
        flops += 2 * n * nao * few * (nao + many)
        results = 8 * n * few * many
    few = min(c.shape[1] for c in bra)
    cost = Cost("matmul", cube(nao, few, nao), float(flops), g.nbytes, results)
    return OrbitalTransform((g, *bra, *ket), REAL, cost, g=g, bra=bra, ket=ket, memory=memory)


@row(_prepare)
def ao2mo(
    integrals: np.ndarray,
    c_left: np.ndarray,
    c_right: np.ndarray,
    ket: tuple[np.ndarray, np.ndarray] | None = None,
    *,
    memory: float = MEMORY,
) -> np.ndarray:
    """Transform electron-repulsion integrals from atomic to molecular orbitals.

    Parameters
    ----------
    integrals : (naux, nao, nao), (naux, nao (nao + 1) / 2) or (nao, nao, nao, nao) array_like
        Real integrals: density-fitted (L|mn) in Hartree^(1/2), the same as lower triangles packed row by row, or
        (mn|rs) in Hartree. They are converted to float64.
    c_left, c_right : (nao, nleft) and (nao, nright) array_like
        Real coefficients of the orbitals that replace m and n.
    ket : pair of (nao, nket_left) and (nao, nket_right) array_like, optional
        Coefficients of the orbitals that replace r and s in (mn|rs). The default is (c_left, c_right).
    memory : float, optional
        Bytes of workspace. The result and half-transformed four-index integrals need additional memory.

    Returns
    -------
    (nleft, nright, naux) or (nleft, nright, nket_left, nket_right) ndarray
        C-contiguous float64 integrals in the unit of `integrals`. `dfmp2_energy` accepts the three-index form.

    Raises
    ------
    TypeError
        If an array is complex or not numeric.
    ValueError
        If shapes do not fit, if `ket` is given with three-index integrals, or if one matrix exceeds `memory`.

    Notes
    -----
    Each index pair needs two matrix products, the smaller one first: O(nao^4 norbitals) operations for (mn|rs) [1]_.
    On a device each matrix (nao, nao) has one exponent, so errors are relative to its largest integral.

    References
    ----------
    .. [1] C. F. Bender, J. Comput. Phys. 9, 547 (1972).

    Examples
    --------
    >>> import numpy as np
    >>> from trnpy.chem import ao2mo
    >>> integrals = np.array([[[2.0, 1.0], [1.0, 3.0]]])  # one auxiliary function, two atomic orbitals
    >>> c = np.array([[1.0], [1.0]])  # one orbital: the sum of both
    >>> ao2mo(integrals, c, c)
    array([[[7.]]])
    """
    g, bra, ket = _checked(integrals, c_left, c_right, ket)
    return np.ascontiguousarray(_both(g, bra, ket, _by_products(host_product, memory, STACK)))


def _ao2mo_naive(integrals: np.ndarray, c_left: np.ndarray, c_right: np.ndarray, ket: Any = None) -> np.ndarray:
    """`ao2mo` from the defining sum over all atomic orbitals at once, for tests."""
    if integrals.ndim < 4:
        return np.asarray(np.einsum("Lmn,mi,na->iaL", unpacked(integrals), c_left, c_right))
    r, s = ket if ket is not None else (c_left, c_right)
    return np.asarray(np.einsum("mnrs,mi,nj,rk,sl->ijkl", integrals, c_left, c_right, r, s))
