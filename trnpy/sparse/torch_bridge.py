"""The products of masks and of sparse matrices for torch: tensors in and out, with gradients. Imports torch."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from scipy import sparse

from trnpy.sparse import _masks
from trnpy.sparse._classes import adopt


def block_mask_matmul(a: torch.Tensor, b: torch.Tensor, mask: Any) -> torch.Tensor:
    """trnpy.sparse.block_mask_matmul of tensors on the CPU: a coalesced COO tensor (m, n); differentiable in both."""
    pattern = _masks._pattern(mask)
    values = _MaskedProduct.apply(a, b, pattern)
    positions = torch.from_numpy(np.stack([_masks._rows(pattern), pattern.indices]).astype(np.int64))
    return torch.sparse_coo_tensor(positions, values, pattern.shape, is_coalesced=True, check_invariants=True)


def masked_attention(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: Any, scale: float | None = None
) -> torch.Tensor:
    """trnpy.sparse.masked_attention of tensors on the CPU; differentiable in q, k and v."""
    result: torch.Tensor = _Attended.apply(q, k, v, mask, scale)
    return result


def matmul(a: Any, x: torch.Tensor) -> torch.Tensor:
    """a @ x for a constant sparse ``a`` (m, n), SciPy's or trnpy's, and x (n,) or (n, k); differentiable in x."""
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
