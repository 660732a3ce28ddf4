"""trnpy.xp.linalg: the identities of factorizations, the standard's shapes and names, and the errors of NumPy."""

import numpy as np
import pytest

from trnpy import xp

RNG = np.random.default_rng(0)
EPS = np.finfo("f8").eps
pytestmark = pytest.mark.usefixtures("computed_at_once_and_recorded")


def general(*shape):
    return RNG.standard_normal(shape)


def definite(n, stack=()):
    a = general(*stack, n, n)
    return a @ np.swapaxes(a, -1, -2) + n * np.eye(n)


@pytest.mark.parametrize("stack", [(), (3,)])
def test_either_factor_of_cholesky_gives_the_matrix(stack):
    a = definite(9, stack)
    lower, upper = (np.asarray(xp.linalg.cholesky(xp.asarray(a), upper=u)) for u in (False, True))
    assert (np.tril(lower) == lower).all() and (np.triu(upper) == upper).all()
    np.testing.assert_allclose(lower @ np.swapaxes(lower, -1, -2), a, rtol=0, atol=30 * EPS * np.abs(a).max())
    np.testing.assert_allclose(np.swapaxes(upper, -1, -2), lower, rtol=0, atol=30 * EPS * np.abs(lower).max())


def test_named_results_have_the_fields_of_the_standard():
    a = xp.asarray(definite(5))
    assert xp.linalg.eigh(a)._fields == ("eigenvalues", "eigenvectors")
    assert xp.linalg.qr(a)._fields == ("Q", "R")
    assert xp.linalg.svd(a)._fields == ("U", "S", "Vh")
    assert xp.linalg.slogdet(a)._fields == ("sign", "logabsdet")


@pytest.mark.parametrize("shape", [(7, 4), (4, 7), (2, 5, 3)])
@pytest.mark.parametrize("mode", ["reduced", "complete"])
def test_factors_of_qr_are_orthonormal_and_triangular(shape, mode):
    a = general(*shape)
    q, r = map(np.asarray, xp.linalg.qr(xp.asarray(a), mode=mode))
    assert q.shape[-1] == (min(shape[-2:]) if mode == "reduced" else shape[-2])
    np.testing.assert_allclose(q @ r, a, rtol=0, atol=50 * EPS * np.abs(a).max())
    np.testing.assert_allclose(np.swapaxes(q, -1, -2) @ q - np.eye(q.shape[-1]), 0.0, rtol=0, atol=50 * EPS)


@pytest.mark.parametrize("full", [True, False])
def test_singular_vectors_give_the_matrix_in_descending_order(full):
    a = general(6, 4)
    u, s, vh = map(np.asarray, xp.linalg.svd(xp.asarray(a), full_matrices=full))
    assert u.shape == ((6, 6) if full else (6, 4)) and (np.diff(s) <= 0).all()
    np.testing.assert_allclose((u[:, :4] * s) @ vh, a, rtol=0, atol=50 * EPS * s[0])
    np.testing.assert_allclose(np.asarray(xp.linalg.svdvals(xp.asarray(a))), s, rtol=0, atol=50 * EPS * s[0])


def test_norms_of_matrices_and_vectors_are_numpys():
    a = general(3, 4, 5)
    for order in ("fro", "nuc", 1, -1, 2, -2, np.inf):
        found = np.asarray(xp.linalg.matrix_norm(xp.asarray(a), ord=order, keepdims=True))
        np.testing.assert_allclose(found, np.linalg.matrix_norm(a, ord=order, keepdims=True), rtol=50 * EPS)
    np.testing.assert_allclose(np.asarray(xp.linalg.vector_norm(xp.asarray(a))), np.sqrt((a * a).sum()), rtol=50 * EPS)


def test_a_right_hand_side_of_one_dimension_is_a_vector():
    a, b = definite(6), general(6)
    x = np.asarray(xp.linalg.solve(xp.asarray(a), xp.asarray(b)))
    assert x.shape == (6,)
    np.testing.assert_allclose(a @ x, b, rtol=0, atol=100 * EPS * np.abs(a).max() * np.abs(x).max())


def test_what_is_no_square_matrix_is_refused_when_it_is_recorded():
    for name in ("inv", "det", "eigh", "cholesky"):
        with pytest.raises(np.linalg.LinAlgError, match="square"):
            getattr(xp.linalg, name)(xp.asarray(general(3, 4)))
    with pytest.raises(np.linalg.LinAlgError, match="two dimensions or more"):  # NumPy accepts a vector
        xp.linalg.matrix_rank(xp.ones(3))


@pytest.mark.parametrize("count", [0, 2])
def test_factors_of_a_stack_are_arrays(count):
    stack = xp.asarray(np.stack([definite(3)] * 2)[:count])
    for name in ("slogdet", "eigh", "qr", "svd"):
        assert {type(x) for x in getattr(xp.linalg, name)(stack)} == {type(stack)}


def test_the_shape_of_a_product_over_axes_is_a_tuple():
    x, y = xp.asarray(general(2, 3, 4)), xp.asarray(general(4, 3, 5))
    assert xp.tensordot(x, y, axes=1).shape == (2, 3, 3, 5)
    assert xp.tensordot(x, y, axes=((1, 2), (1, 0))).shape == (2, 5)
