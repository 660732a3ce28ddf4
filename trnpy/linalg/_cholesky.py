"""Right-looking blocked Cholesky: panels on the host, trailing updates by the engine."""

from __future__ import annotations

import numpy as np

from trnpy import _host
from trnpy._engine import Engine

BLOCK = 128  # one PE tile; the host factors a 128-panel in less than a launch takes


def cholesky(a: np.ndarray, engine: Engine, block: int = BLOCK) -> np.ndarray:
    """Lower L with A = L L^H for Hermitian positive-definite a (n, n); _host.LinAlgError when it is not.

    Only the lower triangle of a is read.  Golub & Van Loan, 4th ed., sec. 4.2.6.
    """
    l = np.tril(a)
    n = len(l)
    for j in range(0, n, block):
        here, below = slice(j, min(j + block, n)), slice(min(j + block, n), n)
        l[here, here] = _host.cholesky(l[here, here], lower=True, check_finite=False)
        if below.start == n:
            break
        panel = _host.solve_triangular(l[here, here], l[below, here].conj().T, lower=True, check_finite=False).conj().T
        l[below, here] = panel
        l[below, below] -= np.tril(engine.gram(panel))
    return l
