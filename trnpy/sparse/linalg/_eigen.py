"""Eigenpairs of a sparse symmetric matrix by block Lanczos with full orthogonalisation."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from trnpy._call.dispatch import Reason, Unsupported
from trnpy._engine import lapack
from trnpy._engine.engines import Engine

COLUMNS = 8  # least width of a block: a device multiplies 8 columns in the time of one
BASIS = 4  # size of the basis, in multiples of the vectors that a restart keeps
CYCLES = 60  # restarts, after which the call goes to ARPACK
FOUND = 1e-8  # part of a unit column that must lie outside the basis for the column to extend it
ROUNDING = 50.0  # residuals below this times eps |A| are rounding errors (20 measured after ten cycles)

Product = Callable[[np.ndarray], np.ndarray]


def _beyond(engine: Engine, basis: np.ndarray, w: np.ndarray) -> np.ndarray:
    """Orthonormal columns that span the part of ``w`` (n, b) outside ``basis`` (n, p).

    Gram-Schmidt runs twice, which is enough; the second run drops columns that were only rounding errors.
    """
    size = np.linalg.norm(w, axis=0)
    w = w[:, size > 0] / size[size > 0]
    for left in (FOUND, 0.5):
        if not w.shape[1]:
            break
        w = w - engine.matmul(basis, engine.matmul(basis.T, w)) if basis.shape[1] else w
        q, r = lapack.qr(w, mode="economic", check_finite=False)
        w = q[:, np.abs(np.diagonal(r)) > left]
    return np.ascontiguousarray(w)


def block_lanczos(
    engine: Engine, product: Product, start: np.ndarray, k: int, which: str, tol: float
) -> tuple[np.ndarray, np.ndarray]:
    """The k eigenvalues ``which`` (LM, LA or SA), ascending, and eigenvectors (n, k), from a start (n, b).

    A thick restart keeps the best Ritz vectors and continues with their residuals (Wu and Simon, SIAM J. Matrix Anal.
    Appl. 22, 602 (2000)). Raises Unsupported if CYCLES restarts do not reach |A v - t v| <= max(tol |t|, rounding).
    """
    n, keep = start.shape[0], k + start.shape[1]
    most = min(n, max(BASIS * keep, keep + 2 * start.shape[1]))
    basis, images = start[:, :0], start[:, :0]
    block = _beyond(engine, basis, start)
    eps = float(np.finfo(start.dtype).eps)
    for _ in range(CYCLES):
        while block.shape[1] and basis.shape[1] < most:
            block = block[:, : most - basis.shape[1]]
            image = product(block)
            basis, images = np.hstack([basis, block]), np.hstack([images, image])
            block = _beyond(engine, basis, image)
        h = engine.matmul(basis.T, images)
        # Eigenvectors of evr are orthogonal to 5e-14 only, an error that the basis would keep.
        values, s = lapack.eigh((h + h.T) / 2, driver="evd", check_finite=False)
        order = np.argsort({"LM": -np.abs(values), "LA": -values, "SA": values}[which], kind="stable")[:keep]
        values = values[order]
        basis, images = engine.matmul(basis, s[:, order]), engine.matmul(images, s[:, order])
        residual = images - basis * values
        size = np.linalg.norm(residual[:, :k], axis=0)
        allowed = np.maximum(max(tol, eps) * np.abs(values[:k]), ROUNDING * eps * np.abs(values).max())
        if (size <= allowed).all():
            ascending = np.argsort(values[:k])
            return values[ascending], basis[:, ascending]
        open_pairs = np.flatnonzero(np.linalg.norm(residual, axis=0) > eps)[: start.shape[1]]
        block = _beyond(engine, basis, residual[:, open_pairs])
    raise Unsupported(Reason.ACCURACY, f"{CYCLES} cycles leave residuals of {size.max():.2g}")
