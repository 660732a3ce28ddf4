"""Approximate eigenvectors of a real symmetric matrix by sweeps of block Jacobi rotations."""

from __future__ import annotations

import numpy as np

from trnpy._engine import iterations
from trnpy._engine.abstract_arrays import usual
from trnpy._engine.engines import Engine
from trnpy._nki.kernels.spectra.jacobi_sweep_reference import TILE

SWEEPS = 12  # generic spectra need 5 to 7, clustered ones 11: docs/spectra.md#block-jacobi
USUAL_SWEEPS = 7
CONVERGED = 3e-6  # relative to the norm: float32 rotations leave couplings of this size
STALLED = 0.7  # if a sweep reduces small couplings by less than this factor, they are rounding errors
SMALL = 1e-3  # relative to the norm: STALLED applies to couplings below this


def eigenvectors(a: np.ndarray, engine: Engine) -> np.ndarray:
    """Orthonormal eigenvectors (n, n) float32 of real symmetric a (n, n), in order, to float32 accuracy.

    Brent & Luk, SIAM J. Sci. Stat. Comput. 6 (1985). A sweep is one launch. If couplings of a graded matrix remain
    after SWEEPS, the refinement decides whether they are small enough.
    """
    n = len(a)
    rows = -(-n // TILE) * TILE
    # The padding has zero couplings, so it is never rotated together with the matrix.
    padded = np.zeros_like(a, np.float32, order="C", shape=(rows, rows))
    padded[:n, :n] = a
    norm = float(usual(np.linalg.norm(padded), 1.0))
    x, w = engine.put(padded), engine.put(np.eye(rows, dtype=np.float32, like=a))
    left = np.inf
    for sweep in range(1, SWEEPS + 1):
        x, w = iterations.jacobi_sweep(x, w, engine)
        turned = engine.get(x)
        order = np.argsort(turned.diagonal()[:n])
        np.fill_diagonal(turned, 0)
        before, left = left, float(usual(np.linalg.norm(turned), norm if sweep < USUAL_SWEEPS else 0.0))
        if left <= CONVERGED * norm or SMALL * norm >= left > STALLED * before:
            break
    return engine.get(w)[:n, :n][order].T.copy()
