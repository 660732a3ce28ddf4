"""Eigenpairs of a sparse symmetric matrix by block Lanczos; the host reorthogonalises every block in full."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from trnpy._call.dispatch import Reason, Unsupported
from trnpy._engine import lapack
from trnpy._engine.abstract_arrays import operations, priced, usual

COLUMNS = 8  # smallest width of a block: a device multiplies 8 columns in the time of one
BASIS = 4  # size of the basis, in multiples of the vectors that a restart keeps
CYCLES = 60  # largest number of restarts, after which ARPACK runs
FOUND = 1e-8  # fraction of a unit column that must lie outside the basis for the column to extend it
ROUNDING = 50.0  # residuals below this times eps |A| are rounding errors (20 measured after ten cycles)

USUAL_CYCLES = 7  # default estimate of restarts: some 40 products with A for six eigenpairs

Product = Callable[[np.ndarray], np.ndarray]


def _beyond(basis: np.ndarray, w: np.ndarray) -> np.ndarray:
    """Orthonormal columns that span the part of ``w`` (n, b) outside ``basis`` (n, p).

    Gram-Schmidt runs twice, which suffices; the second run drops columns that were only rounding errors.
    """
    size = np.linalg.norm(w, axis=0)
    some = usual(size > 0, np.ones(w.shape[1], bool))
    w = w[:, some] / size[some]
    for left in (FOUND, 0.5):
        if not w.shape[1]:
            break
        w = w - basis @ (basis.T @ w) if basis.shape[1] else w
        q, r = _qr(w)
        w = q[:, usual(np.abs(np.diagonal(r)) > left, np.ones(w.shape[1], bool))]
    return w.astype(w.dtype, order="C", copy=False)


@priced("qr", lambda w: (operations(4 * len(w) * w.shape[1] ** 2, w.dtype),
                         ((w.shape, w.dtype), (w.shape[1:] * 2, w.dtype))))  # fmt: skip
def _qr(w: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    q, r = lapack.qr(w, mode="economic", check_finite=False)
    return q, r


@priced("eigh", lambda h: (operations(9 * len(h) ** 3, h.dtype), ((h.shape[1:], h.dtype), (h.shape, h.dtype))))
def _eigh(h: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    # Eigenvectors of evr are orthogonal only to 5e-14, an error that the basis would keep.
    values, vectors = lapack.eigh(h, driver="evd", check_finite=False)
    return values, vectors


def wanted(values: np.ndarray, which: str) -> np.ndarray:
    """The order of ``values`` that puts those selected by ``which`` (LM, LA or SA) first."""
    return np.argsort({"LM": -np.abs(values), "LA": -values, "SA": values}[which], kind="stable")


def block_lanczos(product: Product, start: np.ndarray, k: int, which: str, tol: float) -> tuple[np.ndarray, np.ndarray]:
    """The k eigenvalues ``which`` (LM, LA or SA), ascending, and eigenvectors (n, k), from a start block (n, b).

    A thick restart keeps the best Ritz vectors and continues with their residuals (Wu and Simon, SIAM J. Matrix Anal.
    Appl. 22, 602 (2000)). Raises Unsupported if CYCLES restarts do not reach |A v - t v| <= max(tol |t|, rounding).
    """
    n, keep = start.shape[0], k + start.shape[1]
    most = min(n, max(BASIS * keep, keep + 2 * start.shape[1]))
    basis, images = start[:, :0], start[:, :0]
    block = _beyond(basis, start)
    eps = float(np.finfo(start.dtype).eps)
    for cycle in range(1, CYCLES + 1):
        while block.shape[1] and basis.shape[1] < most:
            block = block[:, : most - basis.shape[1]]
            image = product(block)
            basis, images = np.hstack([basis, block]), np.hstack([images, image])
            block = _beyond(basis, image)
        h = basis.T @ images
        values, s = _eigh((h + h.T) / 2)
        order = wanted(values, which)[:keep]
        values = values[order]
        basis, images = basis @ s[:, order], images @ s[:, order]
        residual = images - basis * values
        size = np.linalg.norm(residual[:, :k], axis=0)
        allowed = np.maximum(max(tol, eps) * np.abs(values[:k]), ROUNDING * eps * np.abs(values).max())
        if usual((size <= allowed).all(), cycle == USUAL_CYCLES):
            ascending = np.argsort(values[:k])
            return values[ascending], basis[:, ascending]
        is_open = usual(np.linalg.norm(residual, axis=0) > eps, np.ones(residual.shape[1], bool))
        open_pairs = np.flatnonzero(is_open)[: start.shape[1]]
        block = _beyond(basis, residual[:, open_pairs])
    raise Unsupported(Reason.ACCURACY, f"{CYCLES} cycles leave residuals of {size.max():.2g}")
