"""Eigenpairs of a sparse symmetric matrix by block Lanczos: products of many columns, basis orthogonalised in full."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from trnpy._call.dispatch import Reason, Unsupported
from trnpy._engine import lapack
from trnpy._engine.engines import Engine

COLUMNS = 8  # of a block at least: as many products take a device as long as one
BASIS = 4  # times the vectors that a restart keeps
CYCLES = 60  # restarts, after which ARPACK is asked
FOUND = 1e-8  # of a column, that must lie outside of the basis for it to hold a direction
ROUNDING = 50.0  # eps of the norm of A: below it a residual is rounding: 20 measured after ten cycles

Product = Callable[[np.ndarray], np.ndarray]


def _beyond(engine: Engine, basis: np.ndarray, w: np.ndarray) -> np.ndarray:
    """Orthonormal columns that span what of ``w`` (n, b) lies outside of ``basis`` (n, p).

    Twice is enough, for what the first time leaves; what it does not leave is rounding.
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
    """(values (k,) ascending, vectors (n, k)) of the k eigenvalues ``which``: LM, LA or SA; start (n, b).

    A thick restart keeps the best Ritz vectors and goes on with their residuals (Wu & Simon, SIAM J. Matrix Anal. 22
    (2000) 602). Unsupported where CYCLES of them do not reach |A v - t v| <= tol |t|, or rounding.
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
        # evr's vectors are orthogonal to 5e-14 only, which the basis would never get rid of.
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
