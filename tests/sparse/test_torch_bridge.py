"""The bridge to torch: imported by itself alone, with torch's gradients."""

import sys

import numpy as np
import pytest
import scipy.sparse

import trnpy
import trnpy.sparse


def dense(mask):
    return (mask.toarray() if scipy.sparse.issparse(mask) else np.asarray(mask)) != 0


def test_torch_is_imported_by_the_bridge_alone():
    assert "torch_bridge" not in vars(trnpy.sparse) or "torch" in sys.modules


def test_the_bridge_has_torchs_gradients():
    torch = pytest.importorskip("torch", reason="torch is not installed: the bridge is for those who have it")
    from trnpy.sparse import torch_bridge

    rng = np.random.default_rng(3)

    def variable(*shape):
        return torch.tensor(rng.standard_normal(shape), requires_grad=True)

    mask = trnpy.sparse.local_mask(9, 2, causal=True)
    sparse = trnpy.sparse.csr_array(scipy.sparse.random_array((7, 9), density=0.4, rng=rng))
    q, k, v = variable(2, 9, 4), variable(2, 9, 4), variable(2, 9, 3)
    assert torch.autograd.gradcheck(lambda *x: torch_bridge.masked_attention(*x, mask, 0.3), (q, k, v))
    product = lambda a, b: torch_bridge.block_mask_matmul(a, b, mask).values()  # noqa: E731
    assert torch.autograd.gradcheck(product, (variable(9, 5), variable(5, 9)))
    assert torch.autograd.gradcheck(lambda x: torch_bridge.matmul(sparse, x), (variable(9, 2),))
    for form in ("csr", "csc", "coo"):
        plain = sparse.asformat(form)
        for shape in ((9,), (9, 2)):
            call = lambda values, x, plain=plain: torch_bridge.matmul(plain, x, values)  # noqa: E731
            assert torch.autograd.gradcheck(call, (variable(plain.nnz), variable(*shape)))
    bias = torch.zeros(9, 9, dtype=torch.float64).masked_fill(torch.tensor(~dense(mask)), -torch.inf)
    expected = torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=bias, scale=0.3)
    torch.testing.assert_close(torch_bridge.masked_attention(q, k, v, mask, 0.3), expected)


def test_the_bridge_has_gradients_of_blocks_and_of_solutions():
    """Central differences in float64, of every stored element; symmetric where conjugate gradients need it."""
    torch = pytest.importorskip("torch", reason="torch is not installed: the bridge is for those who have it")
    from trnpy.sparse import torch_bridge

    rng = np.random.default_rng(4)

    def variable(*shape):
        return torch.tensor(rng.standard_normal(shape), requires_grad=True)

    blocks = scipy.sparse.bsr_array((rng.standard_normal((4, 2, 3)), [0, 2, 1, 2], [0, 2, 2, 4]), shape=(6, 9))
    for columns in ((9,), (9, 2)):
        call = lambda values, x: torch_bridge.matmul(blocks, x, values)  # noqa: E731
        assert torch.autograd.gradcheck(call, (variable(4, 2, 3), variable(*columns)))
    with pytest.raises(ValueError, match=r"values \(4,\): expected bsr elements \(4, 2, 3\)"):
        torch_bridge.matmul(blocks, variable(9), variable(4))
    for form in ("dok", "lil", "dia"):  # whose ``data`` are not their elements
        with pytest.raises(ValueError, match=rf"values for a {form} matrix: expected csr, csc, bsr or coo"):
            torch_bridge.matmul(blocks.asformat(form), variable(9), variable(4))

    half = scipy.sparse.random_array((8, 8), density=0.3, rng=rng)
    base = (half @ half.T + 4 * scipy.sparse.eye_array(8)).tocsr()
    base.sort_indices()
    change = scipy.sparse.csr_array((np.arange(1.0, base.nnz + 1), base.indices, base.indptr), shape=base.shape)
    mirrored = torch.tensor(change.T.tocsr().data.astype(int) - 1)  # the place of each element's mirror image
    jacobi = scipy.sparse.diags_array(1 / base.diagonal())

    def solved(values, b):
        return torch_bridge.cg(base, b, (values + values[mirrored]) / 2, rtol=1e-13, M=jacobi)

    values = torch.tensor(base.data, requires_grad=True)
    assert torch.autograd.gradcheck(solved, (values, variable(8)))
    with np.errstate(all="ignore"), pytest.raises(RuntimeError, match="cg did not reach"):
        torch_bridge.cg(base, variable(8), rtol=0.0)
