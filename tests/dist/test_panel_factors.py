"""Cholesky and LU factors by panels of columns over ranks: identities in eps, and rows exchanged between panels."""

import numpy as np
import pytest

from tests.dist.test_dist_linalg import DTYPES, definite, eps, norm, pieces, ragged, random
from trnpy import dist
from trnpy.dist import _panel_factors


@pytest.mark.parametrize("ranks", [1, 2, 4])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("n", [1, 2, 127, 128, 129, 300])
def test_factors_and_solutions_of_square_matrices(n, dtype, ranks):
    a, s, b = random(n, n, dtype) + 2 * np.eye(n, dtype=dtype), definite(n, dtype), random(n, 3, dtype)
    bound = 20 * n * eps(a)

    def program():
        for axis in (0, 1):
            edges = ragged(n, ranks, n)
            low = dist.linalg.cholesky(pieces(np.tril(s), axis, edges))  # the lower triangle is read
            assert (low.axis, low.edges) == (axis, tuple(edges))
            whole = dist.gather(low)
            assert not np.triu(whole, 1).any() and norm(whole @ whole.conj().T - s) <= bound * norm(s)
            for matrix, kind in ((a, "gen"), (s, "pos")):
                for sides in (b, b[:, 0]):
                    x = dist.linalg.solve(pieces(matrix, axis, edges), sides, kind)
                    assert x.shape == sides.shape and x.dtype == a.dtype
                    assert norm(matrix @ x - sides) <= bound * (norm(matrix) * norm(x) + norm(sides))
        np.testing.assert_array_equal(x, dist.comm().bcast(x))  # the same bits on every rank

    dist.threads(ranks, program)


def test_rows_are_exchanged_over_panels_and_ranks(monkeypatch):
    monkeypatch.setattr(_panel_factors, "WIDTH", 4)
    a = np.roll(np.eye(23), 7, axis=0) + 1e-14 * random(23, 23)
    b = random(23, 2)
    x = dist.threads(3, lambda: dist.linalg.solve(dist.scatter(a), b))[0]
    np.testing.assert_allclose(x, np.linalg.solve(a, b), rtol=0, atol=1e-13)
