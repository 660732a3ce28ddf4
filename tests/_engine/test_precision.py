"""Norms that checks of results rest on: of any scale and dtype, in what is computed and in what is refused."""

import numpy as np
import pytest
from doubles import FaultyEngine

import trnpy
from trnpy import Reason
from trnpy._engine.engines import engine
from trnpy._engine.precision import norms

EXPONENTS = {"f4": (-120, -100, -70, 0, 70, 110), "f8": (-1015, -900, -520, 0, 520, 1000)}


@pytest.mark.parametrize("complex_", [False, True])
@pytest.mark.parametrize(("dtype", "exponent"), [(d, e) for d, several in EXPONENTS.items() for e in several])
def test_norms_scale_with_their_matrices(dtype, exponent, complex_):
    whole = np.random.default_rng(0).integers(-9, 9, (3, 4, 5)).astype(dtype)  # exact at every scale
    a = np.ldexp(whole, exponent)
    expected = np.sqrt((whole.astype("f8") ** 2).sum(axis=(1, 2)))
    if complex_:
        a, expected = a + 1j * a, expected * np.sqrt(2)
    tolerance = 8 * np.finfo(dtype).eps
    np.testing.assert_allclose(np.ldexp(norms(a, (-2, -1)), -exponent), expected, rtol=tolerance)
    np.testing.assert_allclose(np.ldexp(norms(a), -exponent), np.linalg.norm(expected), rtol=tolerance)


def test_norms_of_nothing_of_infinities_and_of_nans():
    assert norms(np.zeros((0, 3))) == norms(np.zeros((2, 3), "f4")) == 0
    assert norms(np.array([1, -np.inf])) == np.inf and np.isnan(norms(np.array([1, np.nan])))


class Doubled(FaultyEngine):
    """Every product is twice what it should be."""

    def answer(self, a, b):
        return 2 * np.matmul(a, b)


@pytest.mark.parametrize(("dtype", "scale"), [("f4", 1.0), ("f4", 2.0**-80), ("f8", 2.0**-560), ("c16", 2.0**-560)])
@pytest.mark.parametrize("name", ["cholesky", "solve", "inv", "lu", "det"])
def test_a_wrong_product_is_noticed_at_any_scale(name, dtype, scale):
    m = np.random.default_rng(1).standard_normal((330, 330))
    a = ((m @ m.T + 330 * np.eye(330)) * scale).astype(dtype)  # still positive definite after a wrong update
    operands = ((m * scale).astype(dtype), a[:, :3]) if name == "solve" else (a,)
    warned = pytest.warns(trnpy.NkiFallbackWarning, match="wrong by|backward error")
    with engine(Doubled("wrong")), trnpy.policy(force=True), trnpy.trace() as log, warned:
        getattr(trnpy.linalg, name)(*operands)
    assert [d.reason for d in log] == [Reason.ACCURACY]
