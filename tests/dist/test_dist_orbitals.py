"""AO to MO and the ladder of CCSD over ranks: the result of one rank, and the bytes that are said to be sent."""

import numpy as np
import pytest

from trnpy import dist
from trnpy.chem import ao2mo, sharded_ao2mo, sharded_ladder

NAO, NAUX, NOCC, NVIR = 7, 11, 3, 5
EPS = np.finfo(float).eps


def arrays():
    generator = np.random.default_rng(0)
    b = generator.standard_normal((NAUX, NAO, NAO))
    t2 = generator.standard_normal((NOCC, NOCC, NVIR, NVIR))
    return b + b.swapaxes(1, 2), t2, generator.standard_normal((NAO, NOCC)), generator.standard_normal((NAO, NVIR))


def transformed(axis, packed):
    b, _, left, right = arrays()
    given = b[:, *np.tril_indices(NAO)] if packed else b
    c = dist.comm()
    own = left if c.rank == 0 else -left  # signs of orbitals differ by rank
    found = sharded_ao2mo(dist.scatter(given), own, right, axis=axis)
    assert found.axis == axis
    return dist.gather(found)


@pytest.mark.parametrize("ranks", [1, 2, 3, 13])
@pytest.mark.parametrize("axis", [0, 1, 2])
def test_integrals_are_those_of_one_rank(ranks, axis):
    b, _, left, right = arrays()
    expected = ao2mo(b, left, right)
    for packed in (False, True):
        for found in dist.threads(ranks, transformed, axis, packed):
            np.testing.assert_allclose(found, expected, rtol=0, atol=50 * EPS * abs(expected).max())


def ladder(axes, memory):
    b, t2, _, _ = arrays()
    b = b[:, :NVIR, :NVIR]
    c = dist.comm()
    t, b = dist.scatter(t2, axes[0]), dist.scatter(b, axes[1])
    before = c.sent
    found = sharded_ladder(t, b, memory=memory)
    sent = c.sent - before
    assert (found.axis, found.edges) == (t.axis, t.edges)
    return dist.gather(found), sent


@pytest.mark.parametrize("ranks", [1, 2, 3, 4, 7])
@pytest.mark.parametrize("axes", [(0, 0), (2, 1), (3, 2)])
@pytest.mark.parametrize("memory", [1, 1e9])
def test_the_ladder_is_that_of_one_rank(ranks, axes, memory):
    b, t2, _, _ = arrays()
    b = b[:, :NVIR, :NVIR]
    expected = np.einsum("ijcd,Lac,Lbd->ijab", t2, b, b, optimize=True)
    for found, _ in dist.threads(ranks, ladder, axes, memory):
        np.testing.assert_allclose(found, expected, rtol=0, atol=200 * EPS * abs(expected).max())


def test_the_ladder_sends_what_it_says():
    p, amplitudes, b = 5, 8 * NOCC**2 * NVIR**2, 8 * NAUX * NVIR**2
    found = dist.threads(p, ladder, (2, 1), 1e9)
    assert sum(sent for _, sent in found) / p == pytest.approx((p - 1) / p * (amplitudes + b), rel=1e-12)


def test_shapes_that_do_not_fit_are_named():
    with pytest.raises(ValueError, match=r"t2 \(2, 2, 3, 3\) and b \(4, 5, 5\): expected"):
        sharded_ladder(dist.scatter(np.ones((2, 2, 3, 3))), dist.scatter(np.ones((4, 5, 5))))


@pytest.mark.mpi
def test_both_over_mpi():
    b, t2, left, right = arrays()
    np.testing.assert_allclose(transformed(0, True), ao2mo(b, left, right), rtol=0, atol=1e-12)
    b = b[:, :NVIR, :NVIR]
    expected = np.einsum("ijcd,Lac,Lbd->ijab", t2, b, b, optimize=True)
    found, again = ladder((0, 0), 1)[0], ladder((0, 0), 1)[0]
    np.testing.assert_allclose(found, expected, rtol=0, atol=200 * EPS * abs(expected).max())
    assert found.tobytes() == again.tobytes()
