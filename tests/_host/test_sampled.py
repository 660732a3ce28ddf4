"""Scattered elements of a product, each by a dot product: those of the whole product."""

import numpy as np
import pytest
import scipy.sparse

import trnpy.sparse
from trnpy._host import compiled, sampled

pytestmark = pytest.mark.skipif(compiled.loops() is None, reason="the loops are not compiled here")


@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("dtype", ["f4", "f8", "c16", "i8"])
@pytest.mark.parametrize("k", [0, 1, 15, 16, 33, 256])
@pytest.mark.parametrize("density", [0.0, 0.01, 0.05, 0.3])
def test_elements_are_those_of_the_product(density, k, dtype, order):
    rng = np.random.default_rng(k)
    a, b = (np.asarray(4 * rng.standard_normal(shape), dtype=dtype, order=order) for shape in ((300, k), (k, 200)))
    mask = scipy.sparse.random_array((300, 200), density=density, rng=rng)
    found = trnpy.sparse.block_mask_matmul(a, b, mask)
    expected = (a @ b) * (mask != 0).toarray()
    assert found.dtype == expected.dtype and found.nnz == mask.nnz
    scale = np.abs(a) @ np.abs(b)
    eps = np.finfo(dtype if dtype != "i8" else float).eps
    assert (np.abs(found.toarray() - expected) <= (k + 1) * eps * scale).all()


def test_scattered_positions_only(monkeypatch):
    a, b = np.ones((512, 64)), np.ones((64, 512))
    few = scipy.sparse.random_array((512, 512), density=0.01, rng=np.random.default_rng(0)).tocsr()
    rows = np.repeat(np.arange(512), np.diff(few.indptr))
    np.testing.assert_array_equal(sampled.sampled_products(a, b, rows, few.indices), np.full(few.nnz, 64.0))
    block = np.repeat(np.arange(100), 100), np.tile(np.arange(100), 100)
    assert sampled.sampled_products(a, b, *block) is None  # a block of a 26th of the product


def test_wrong_positions_are_refused():
    loops, a, out = compiled.loops(), np.ones((4, 3)), np.empty(1)
    at = np.zeros(1, np.int32)
    for rows, columns in ((at + 4, at), (at, at - 1)):
        with pytest.raises(IndexError):
            loops.dots(a, a, rows, columns, out)
    for operands in ((a, a[:, :2]), (a, a.astype("f4")), (a, a.T)):
        with pytest.raises(ValueError):
            loops.dots(*operands, at, at, out)
