"""Coulomb and exchange matrices from density-fitted integrals.

Weigend, Phys. Chem. Chem. Phys. 4, 4285 (2002).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from trnpy._base.records import record
from trnpy._call import guards
from trnpy._call.dispatch import Cost, Problem, Reason, Unsupported
from trnpy._engine.engines import Engine
from trnpy.chem import _fitted
from trnpy.chem._ao2mo import _triangle, unpacked
from trnpy.chem._progress import track
from trnpy.chem._rows import (
    MEMORY,
    REAL,
    STACK,
    Product,
    checked_gram,
    checked_product,
    cube,
    host_product,
    norm,
    real_array,
    relative,
    row,
    stack_size,
)

COPIES = 3  # arrays of at most (nao, nao) elements in memory for each matrix: itself, a product, a reordered copy
Orbitals = Sequence[np.ndarray] | None
JK = tuple[np.ndarray | None, np.ndarray | None]


def _checked(b: Any, dm: Any, orbitals: Any) -> tuple[np.ndarray, np.ndarray, tuple[np.ndarray, ...] | None]:
    """Integrals, densities (n, nao, nao) and the orbitals of each density; raises the errors of `build_jk_df`."""
    expected = "(naux, nao, nao) or (naux, nao (nao + 1) / 2)"
    b = real_array("b", b, expected, 2, 3)
    nao = _triangle(b.shape[1]) if b.ndim == 2 else b.shape[2]
    if b.ndim == 3 and b.shape[1] != nao:
        raise ValueError(f"b has shape {b.shape}: expected {expected}")
    densities = real_array("dm", dm, f"({nao}, {nao}) or (n, {nao}, {nao})", 2, 3)
    if densities.shape[-2:] != (nao, nao):
        raise ValueError(f"dm has shape {densities.shape}: expected ({nao}, {nao}) or (n, {nao}, {nao})")
    densities = densities.reshape(math.prod(densities.shape[:-2]), nao, nao)
    if orbitals is None:
        return b, densities, None
    given = [orbitals] if isinstance(orbitals, np.ndarray) and orbitals.ndim == 2 else list(orbitals)
    if len(given) != len(densities):
        raise ValueError(f"{len(given)} sets of orbitals for {len(densities)} densities: expected one each")
    sets = tuple(real_array("orbitals", c, f"({nao}, nocc)", 2) for c in given)
    for c in sets:
        if len(c) != nao:
            raise ValueError(f"orbitals have {len(c)} rows: expected nao = {nao}")
    return b, densities, sets


def _exchange(
    b: np.ndarray, densities: np.ndarray, orbitals: tuple[np.ndarray, ...] | None, memory: float, product: Product,
    gram: Callable[[np.ndarray], np.ndarray], most: float = math.inf,
) -> np.ndarray:  # fmt: skip
    """K of each density, (n, nao, nao): the sum over L of B_L D B_L.

    With orbitals, D = C C^T, each term is (B_L C) (B_L C)^T, which needs nao / nocc times fewer operations.
    """
    nao = densities.shape[-1]
    k = np.zeros_like(densities)
    step = stack_size(nao, COPIES, memory, most)
    for start in track(range(0, len(b), step), "DF exchange"):
        stack = unpacked(b[start : start + step])
        for n, density in enumerate(densities):
            if orbitals is None:
                half = product(density, stack, None)  # (L, mu, nu): D B_L
                rows = len(stack) * nao
                k[n] += product(stack.transpose(1, 0, 2).reshape(nao, rows), half.reshape(rows, nao), None)
            elif orbitals[n].shape[1]:
                half = product(orbitals[n].T, stack.swapaxes(1, 2), None)  # (L, i, mu)
                half = half.reshape(len(stack) * half.shape[1], nao)
                k[n] += gram(half.T)
    return k


@record(kw_only=True)
class FittedMatrices(Problem):
    """J and K of density matrices (n, nao, nao)."""

    b: np.ndarray
    densities: np.ndarray
    sets: tuple[np.ndarray, ...] | None  # the orbitals of each density
    with_j: bool
    memory: float
    shape: tuple[int, ...]  # of both results
    missing: int | None = None  # returned in place of J if the caller does not want J

    def run(self, engine: Engine) -> Any:
        """J, K and their error from kernels; otherwise K from products on the engine and J from the host."""
        b, densities = self.b, self.densities
        guards.finite(densities, *(self.sets or ()))
        found = _fitted.by_kernels(engine, b, densities, self.sets, self.with_j, self.memory)
        if found is not None:
            return found
        guards.finite(b)
        k = _exchange(b, densities, self.sets, self.memory, checked_product(engine), checked_gram(engine))
        return _fitted.coulomb(b, densities) if self.with_j else None, k

    def deliver(self, result: Any) -> tuple[Any, Any]:
        j, k = (self.missing if x is None else x.reshape(self.shape) for x in result[:2])
        return j, k

    def error(self, result: Any) -> float:
        """The kernels' own error, or |K w - sum over L of B_L D B_L w| for random signs w, relative to the norms."""
        if isinstance(result, _fitted.Matrices):
            return result.wrong
        b, densities = self.b, self.densities
        nao = densities.shape[-1]
        k = np.asarray(result[1]).reshape(densities.shape)
        signs = np.random.default_rng(nao).choice((-1.0, 1.0), nao)
        step = stack_size(nao, COPIES, self.memory)
        exact = np.zeros(densities.shape[:2])
        for start in range(0, len(b), step):
            stack = unpacked(b[start : start + step])
            seen = stack @ signs  # (L, nao)
            for n, density in enumerate(densities):
                exact[n] += np.einsum("Lmn,Ln->m", stack, seen @ density.T, optimize=True)
        return relative(norm(k @ signs - exact), norm(b) * norm(densities) * norm(b))


def _prepare(
    b: Any, dm: Any, *, orbitals: Any = None, with_j: bool = True, with_k: bool = True, memory: float = MEMORY
) -> Problem:
    b, densities, sets = _checked(b, dm, orbitals)
    if b.size == 0 or densities.size == 0:
        raise Unsupported(Reason.LAYOUT, "an operand is empty")
    if not with_k:
        raise Unsupported(Reason.MEMORY_BOUND, "J alone reads the integrals twice: 4 flop/byte at best")
    naux, nao = len(b), densities.shape[-1]
    stack_size(nao, COPIES, memory)  # ValueError if not one matrix fits
    widths = [nao] * len(densities) if sets is None else [c.shape[1] for c in sets]
    flops = sum(4.0 * naux * nao * nao * width for width in widths) + 4.0 * b.size * len(densities) * with_j
    results = densities.nbytes * (1 + with_j)
    cost = Cost("matmul", cube(nao, nao, max(max(widths), 1)), flops, b.nbytes + densities.nbytes, results)
    return FittedMatrices(
        (b, densities, *(sets or ())), REAL, cost, b=b, densities=densities, sets=sets, with_j=with_j, memory=memory,
        shape=np.shape(dm),
    )  # fmt: skip


@row(_prepare)
def build_jk_df(
    b: np.ndarray,
    dm: np.ndarray,
    *,
    orbitals: Orbitals | np.ndarray = None,
    with_j: bool = True,
    with_k: bool = True,
    memory: float = MEMORY,
) -> JK:
    """Coulomb and exchange matrices of density matrices from density-fitted integrals.

    Parameters
    ----------
    b : (naux, nao, nao) or (naux, nao (nao + 1) / 2) array_like
        Real integrals with (mn|rs) = sum over L of b[L, m, n] b[L, r, s], in Hartree^(1/2): symmetric matrices, or
        their lower triangles packed row by row, as in PySCF's ``mf.with_df._cderi``.
    dm : (nao, nao) or (n, nao, nao) array_like
        Real density matrices, symmetric or not. They are converted to float64.
    orbitals : (nao, nocc) array_like, or a sequence of n of them, optional
        C with dm = C C^T for each density. With them K needs nao / nocc times fewer operations.
    with_j, with_k : bool, optional
        Which of the two matrices to compute.
    memory : float, optional
        Bytes of workspace for K. `b` and the results need additional memory.

    Returns
    -------
    j, k : ndarray of the shape of `dm`, or None
        J[m, n] = sum over rs of (mn|rs) dm[s, r] and K[m, n] = sum over rs of (mr|sn) dm[r, s], float64, in Hartree.
        None stands for a matrix that was not requested.

    Raises
    ------
    TypeError
        If an array is complex or not numeric.
    ValueError
        If shapes do not fit or one matrix (nao, nao) exceeds `memory`.

    References
    ----------
    .. [1] F. Weigend, Phys. Chem. Chem. Phys. 4, 4285 (2002), eqs. 5-8.

    Examples
    --------
    >>> import numpy as np
    >>> from trnpy.chem import build_jk_df
    >>> b = np.eye(2)[np.newaxis]  # one auxiliary function, two atomic orbitals
    >>> j, k = build_jk_df(b, [[1.0, 0.5], [0.5, 1.0]])
    >>> j
    array([[2., 0.],
           [0., 2.]])
    >>> k
    array([[1. , 0.5],
           [0.5, 1. ]])
    """
    b, densities, sets = _checked(b, dm, orbitals)
    j = _fitted.coulomb(b, densities).reshape(np.shape(dm)) if with_j else None
    if not with_k:
        return j, None
    k = _exchange(b, densities, sets, memory, host_product, lambda a: host_product(a, a.T), STACK)
    return j, k.reshape(np.shape(dm))


def _build_jk_df_naive(b: np.ndarray, dm: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """J and K from the defining sums over all four-index integrals, for tests."""
    full = unpacked(b)
    eri = np.einsum("Lmn,Lrs->mnrs", full, full)
    return np.einsum("mnrs,...sr->...mn", eri, dm), np.einsum("mrsn,...rs->...mn", eri, dm)
