"""Products and attention at the positions of a mask: as of dense matrices, gradients as by differences."""

import tracemalloc

import numpy as np
import pytest
import scipy.sparse
from hypothesis import given, settings
from hypothesis import strategies as st

import trnpy
import trnpy.sparse
from trnpy.sparse import _masks

FORMATS = ("csr", "csc", "coo", "bsr", "lil", "dia", "dok")
EPS = np.finfo(float).eps
# Of one head: nothing but the diagonal, a causal window, a window both ways, blocks of which some are full and some
# ragged, a whole lower triangle, a mask with rows of which nothing is marked.
MASKS = {
    "diagonal": lambda n: trnpy.sparse.local_mask(n, 0),
    "causal window": lambda n: trnpy.sparse.local_mask(n, 5, causal=True),
    "window": lambda n: trnpy.sparse.local_mask(n, 130),
    "causal": lambda n: np.tril(np.ones((n, n), bool)),
    "ragged blocks": lambda n: scipy.sparse.block_diag([scipy.sparse.csr_array(np.ones(2 * (min(50, n),)))] * 9, "csr")[
        :n, :n
    ],
    "with empty rows": lambda n: scipy.sparse.csr_array(np.arange(n)[:, np.newaxis] % 3 * np.ones(n) > 1),
}


def dense(mask):
    return (mask.toarray() if scipy.sparse.issparse(mask) else np.asarray(mask)) != 0


def dense_attention(q, k, v, mask, scale):
    scores = np.where(dense(mask), scale * q @ k.swapaxes(-1, -2), -np.inf)
    with np.errstate(invalid="ignore"):
        e = np.nan_to_num(np.exp(scores - scores.max(axis=-1, keepdims=True)))
    total = e.sum(axis=-1, keepdims=True)
    return (e / np.where(total, total, 1)) @ v


@pytest.mark.filterwarnings("ignore:Constructing a DIA matrix")
@settings(max_examples=60, deadline=None)
@given(
    st.integers(0, 2**32),
    st.sampled_from((0, 1, 5, 127, 128, 129, 300)),
    st.sampled_from((0, 1, 7, 129, 260)),
    st.sampled_from((0, 1, 33)),
    st.sampled_from((0.0, 0.003, 0.1, 1.0)),
    st.sampled_from(FORMATS),
    st.sampled_from(("f4", "f8", "c16", "i8")),
)
def test_the_product_is_the_dense_one_at_the_mask(seed, m, n, k, density, layout, dtype):
    rng = np.random.default_rng(seed)
    a, b = (10 * rng.standard_normal(shape) for shape in ((m, k), (k, n)))
    a, b = a.astype(dtype), b.astype(dtype)
    marked = rng.random((m, n)) < density
    mask = getattr(trnpy.sparse, f"{layout}_array")(scipy.sparse.csr_array(marked))
    result = trnpy.sparse.block_mask_matmul(a, b, mask)
    assert isinstance(result, trnpy.sparse.csr_array) and result.dtype == np.result_type(a, b)
    assert result.has_canonical_format
    assert np.array_equal(result.indptr, np.concatenate([[0], np.cumsum(marked.sum(axis=1))]))
    assert np.array_equal(result.indices, np.nonzero(marked)[1])
    bound = 2 * (k + 1) * np.finfo(dtype if dtype != "i8" else "f8").eps * (np.abs(a) @ np.abs(b))
    assert (np.abs(result.toarray() - np.where(marked, a @ b, 0)) <= bound).all()


def test_what_the_mask_stores_as_zero_is_not_marked_and_duplicates_count_once():
    mask = scipy.sparse.coo_array(([True, True, False, np.True_], ([0, 0, 1, 2], [1, 1, 1, 0])), shape=(3, 2))
    kept = mask.copy()
    result = trnpy.sparse.block_mask_matmul(np.ones((3, 4)), np.ones((4, 2)), mask)
    assert result.nnz == 2 and result.toarray().tolist() == [[0, 4], [0, 0], [4, 0]]
    assert np.array_equal(mask.data, kept.data) and np.array_equal(mask.coords, kept.coords)


@pytest.mark.parametrize("mask", [np.ones((3, 3)), np.ones((2, 4)), np.ones(3)])
def test_shapes_that_do_not_match(mask):
    with pytest.raises(ValueError, match="mask"):
        trnpy.sparse.block_mask_matmul(np.ones((3, 5)), np.ones((5, 4)), mask)


def test_products_of_full_blocks_are_decided_like_any_other():
    mask = scipy.sparse.block_diag([scipy.sparse.coo_array(np.ones((128, 128)))] * 2)
    a = np.random.default_rng(0).standard_normal((256, 200))
    with trnpy.trace() as log, trnpy.policy(force=True):
        trnpy.sparse.block_mask_matmul(a, a.T, mask)
    assert [(d.op, d.on_device) for d in log] == [("numpy.matmul", True)] * 2


def test_memory_is_of_the_mask_and_not_of_the_matrix():
    n = 20_000
    q = np.random.default_rng(0).standard_normal((n, 16))
    mask = trnpy.sparse.local_mask(n, 4)
    tracemalloc.start()
    trnpy.sparse.masked_attention(q, q, q, mask)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < n * n * 8 / 50


@pytest.mark.parametrize("n", [1, 127, 128, 129, 200])
@pytest.mark.parametrize("kind", MASKS)
def test_attention_is_the_dense_softmax_of_what_the_mask_marks(kind, n):
    rng = np.random.default_rng(n)
    q, k, v = rng.standard_normal((2, 3, n, 16)), rng.standard_normal((2, 3, n, 16)), rng.standard_normal((2, 3, n, 9))
    mask = MASKS[kind](n)
    for scale in (None, 0.7):
        expected = dense_attention(q, k, v, mask, 0.25 if scale is None else scale)
        np.testing.assert_allclose(
            trnpy.sparse.masked_attention(q, k, v, mask, scale), expected, rtol=0, atol=n * 100 * EPS
        )


@pytest.mark.parametrize("fullest", [0, np.inf])
def test_attention_by_boxes_and_by_marked_elements_is_the_same(fullest, monkeypatch):
    """Of a window, and of a few columns that all rows see: boxes of columns apart, and a row that sees nothing."""
    monkeypatch.setattr(_masks, "FULLEST", fullest)
    n = 600
    mask = dense(trnpy.sparse.local_mask(n, 20))
    mask[:, 3:9] = True
    mask[200] = False
    q, k, v = np.random.default_rng(2).standard_normal((3, n, 16))
    calls = []
    by_boxes = _masks._Attention._by_boxes
    monkeypatch.setattr(_masks._Attention, "_by_boxes", lambda *args: calls.append(0) or by_boxes(*args))
    found = trnpy.sparse.masked_attention(q, k, v, mask)
    assert len(calls) == (fullest > 0)
    np.testing.assert_allclose(found, dense_attention(q, k, v, mask, 0.25), rtol=0, atol=100 * n * EPS)


@pytest.mark.parametrize("value", [np.inf, -np.inf, np.nan])
def test_what_no_row_attends_to_may_be_infinite(value):
    n = 300
    mask = np.tril(np.ones((n, n), bool))
    mask[:, 5] = False
    q, k, v = np.random.default_rng(3).standard_normal((3, n, 8))
    expected = dense_attention(q, k, v, mask, 8**-0.5)
    v[5] = value
    np.testing.assert_allclose(trnpy.sparse.masked_attention(q, k, v, mask), expected, rtol=0, atol=100 * n * EPS)


@pytest.mark.parametrize("kind", MASKS)
def test_gradients_of_attention_are_those_of_differences(kind):
    rng = np.random.default_rng(1)
    m = n = 60
    q, k, v, g = (rng.standard_normal((n, 5)) for _ in range(4))
    mask = MASKS[kind](n)
    found = trnpy.sparse.masked_attention_gradients(q, k, v, mask, g, 0.4)
    h = 1e-6
    for which in range(3):
        direction = rng.standard_normal((m, 5))
        steps = [
            (g * trnpy.sparse.masked_attention(*moved, mask, 0.4)).sum()
            for sign in (1, -1)
            for moved in [[x + sign * h * direction * (i == which) for i, x in enumerate((q, k, v))]]
        ]
        # Central differences: h^2 of truncation, eps / h of rounding.
        assert abs((steps[0] - steps[1]) / (2 * h) - (found[which] * direction).sum()) < 1e-7


@pytest.mark.parametrize("dtype", ["f8", "c16"])
def test_gradients_of_the_product_are_those_of_differences(dtype):
    rng = np.random.default_rng(2)

    def random(*shape):
        x = rng.standard_normal(shape)
        return x + 1j * rng.standard_normal(shape) if dtype == "c16" else x

    a, b, mask = random(140, 6), random(6, 150), rng.random((140, 150)) < 0.2
    weights = mask * random(140, 150)
    da, db = trnpy.sparse.block_mask_matmul_gradients(a, b, scipy.sparse.csr_array(weights))
    for gradient, moved in ((da, lambda u: (a + u, b)), (db, lambda u: (a, b + u))):
        u = random(*gradient.shape)
        values = [
            (weights.conj() * trnpy.sparse.block_mask_matmul(*moved(t * u), mask).toarray()).sum().real for t in (1, -1)
        ]
        assert abs((values[0] - values[1]) / 2 - (gradient.conj() * u).sum().real) < 1e-10 * abs(weights).sum()


def test_attention_says_what_it_cannot_take():
    x, mask = np.ones((4, 2)), np.eye(4)
    with pytest.raises(TypeError, match="expected real floating dtypes"):
        trnpy.sparse.masked_attention(x * 1j, x, x, mask)
    with pytest.raises(ValueError, match=r"expected \(\.\.\., m, d\)"):
        trnpy.sparse.masked_attention(x, np.ones((4, 3)), x, mask)
    with pytest.raises(ValueError, match="mask"):
        trnpy.sparse.masked_attention(x, x, x, np.eye(3))
    with pytest.raises(ValueError, match="expected neither negative"):
        trnpy.sparse.local_mask(3, -1)
    with pytest.raises(ValueError, match="of a result"):
        trnpy.sparse.masked_attention_gradients(x, x, x, mask, np.ones((4, 3)))


def test_local_masks():
    distance = np.arange(7) - np.arange(7)[:, np.newaxis]
    assert np.array_equal(trnpy.sparse.local_mask(7, 2).toarray(), abs(distance) <= 2)
    assert np.array_equal(trnpy.sparse.local_mask(7, 2, causal=True).toarray(), (distance <= 0) & (distance >= -2))
    assert trnpy.sparse.local_mask(3, 100).toarray().all() and trnpy.sparse.local_mask(0, 1).shape == (0, 0)


def test_operands_may_be_lists():
    a, b, mask = [[1.0, 2.0], [3.0, 4.0]], [[0.0, 1.0], [1.0, 0.0]], [[1, 0], [1, 1]]
    found = trnpy.sparse.block_mask_matmul(a, b, mask).toarray()
    np.testing.assert_array_equal(found, np.matmul(a, b) * mask)
