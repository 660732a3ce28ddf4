"""The products of masks and of sparse matrices for torch: tensors in and out, with gradients. Imports torch."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from scipy import sparse

from trnpy.sparse import _masks
from trnpy.sparse._classes import adopt


def block_mask_matmul(a: torch.Tensor, b: torch.Tensor, mask: Any) -> torch.Tensor:
    """Elements of a product of tensors at the nonzero positions of a mask, differentiable in both factors.

    Parameters
    ----------
    a, b : (m, k) and (k, n) torch.Tensor
        Dense factors on the CPU.
    mask : (m, n) sparse array, sparse matrix or array_like
        Positions with a nonzero value are computed. It is not differentiated.

    Returns
    -------
    (m, n) torch.Tensor
        Coalesced COO tensor with one stored element for each nonzero of `mask`.

    Raises
    ------
    ValueError
        If shapes do not match.

    Examples
    --------
    >>> import numpy as np, torch
    >>> from trnpy.sparse import torch_bridge
    >>> a = torch.tensor([[1.0, 2.0], [3.0, 4.0]])
    >>> torch_bridge.block_mask_matmul(a, a, np.eye(2)).to_dense()
    tensor([[ 7.,  0.],
            [ 0., 22.]])
    """
    pattern = _masks._pattern(mask)
    values = _MaskedProduct.apply(a, b, pattern)
    positions = torch.from_numpy(np.stack([_masks._rows(pattern), pattern.indices]).astype(np.int64))
    return torch.sparse_coo_tensor(positions, values, pattern.shape, is_coalesced=True, check_invariants=True)


def masked_attention(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: Any, scale: float | None = None
) -> torch.Tensor:
    """Attention of tensors in which each row sees only the positions of a mask, differentiable in q, k and v.

    Parameters
    ----------
    q, k, v : (..., m, d), (..., n, d) and (..., n, e) torch.Tensor
        Queries, keys and values of real floating dtypes, on the CPU.
    mask : (m, n) sparse array, sparse matrix or array_like
        Nonzero where a query sees a key; the same for all leading dimensions.
    scale : float, optional
        Factor of the scores. The default is d^(-1/2).

    Returns
    -------
    (..., m, e) torch.Tensor
        The result of `trnpy.sparse.masked_attention`.

    Raises
    ------
    TypeError
        If a tensor is not of a real floating dtype.
    ValueError
        If shapes do not match.

    Examples
    --------
    >>> import torch
    >>> from trnpy.sparse import local_mask, torch_bridge
    >>> q = k = torch.zeros(3, 2)
    >>> v = torch.tensor([[0.0], [2.0], [4.0]])
    >>> torch_bridge.masked_attention(q, k, v, local_mask(3, 1, causal=True))
    tensor([[0.],
            [1.],
            [3.]])
    """
    result: torch.Tensor = _Attended.apply(q, k, v, mask, scale)
    return result


def matmul(a: Any, x: torch.Tensor) -> torch.Tensor:
    """Product of a constant sparse matrix and a tensor, differentiable in the tensor.

    Parameters
    ----------
    a : (m, n) sparse array or sparse matrix
        The left factor, of SciPy's or trnpy's classes.
    x : (n,) or (n, k) torch.Tensor
        The right factor, on the CPU.

    Returns
    -------
    (m,) or (m, k) torch.Tensor
        The product.

    Raises
    ------
    ValueError
        If shapes do not match.

    Examples
    --------
    >>> import scipy.sparse, torch
    >>> from trnpy.sparse import torch_bridge
    >>> a = scipy.sparse.csr_array([[0.0, 2.0], [3.0, 0.0]])
    >>> torch_bridge.matmul(a, torch.tensor([1.0, 10.0]))
    tensor([20.,  3.])
    """
    result: torch.Tensor = _SparseProduct.apply(adopt(a), x)
    return result


def _array(x: torch.Tensor) -> np.ndarray:
    array: np.ndarray = x.detach().cpu().numpy()
    return array


def _tensor(x: np.ndarray, like: torch.Tensor) -> torch.Tensor:
    return torch.from_numpy(np.ascontiguousarray(x)).to(like.device, like.dtype)


class _MaskedProduct(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, a: torch.Tensor, b: torch.Tensor, pattern: Any) -> torch.Tensor:
        ctx.save_for_backward(a, b)
        ctx.pattern = pattern
        return torch.from_numpy(_masks.block_mask_matmul(_array(a), _array(b), pattern).data)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, None]:
        a, b = ctx.saved_tensors
        pattern = ctx.pattern
        g = sparse.csr_array((_array(gradients[0]), pattern.indices, pattern.indptr), shape=pattern.shape)
        da, db = _masks.block_mask_matmul_gradients(_array(a), _array(b), g)
        return _tensor(da, a), _tensor(db, b), None


class _Attended(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: Any, scale: float | None
    ) -> torch.Tensor:
        ctx.save_for_backward(q, k, v)
        ctx.attention = _masks._Attention(_array(q), _array(k), _array(v), mask, scale)
        return _tensor(ctx.attention.output, q)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        found = ctx.attention.gradients(_array(gradients[0]))
        return (*(_tensor(g, x) for g, x in zip(found, ctx.saved_tensors, strict=True)), None, None)


class _SparseProduct(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, a: Any, x: torch.Tensor) -> torch.Tensor:
        ctx.a = a
        return torch.from_numpy(np.ascontiguousarray(a @ _array(x)))

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[None, torch.Tensor]:
        (g,) = gradients
        return None, _tensor(ctx.a.conj().T @ _array(g), g)
