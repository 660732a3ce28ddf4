"""Products with masks and sparse matrices, and linear solves, for torch tensors with gradients. Imports torch."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from scipy import sparse

from trnpy._einsum.rows import matmul as _matmul
from trnpy.sparse import _masks, linalg
from trnpy.sparse._classes import adopt
from trnpy.sparse._matmul import _with_values
from trnpy.sparse._outline import PATTERNED


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
    """Attention of tensors in which each row attends only to the positions of a mask, differentiable in q, k and v.

    Parameters
    ----------
    q, k, v : (..., m, d), (..., n, d) and (..., n, e) torch.Tensor
        Queries, keys and values of real floating dtypes, on the CPU.
    mask : (m, n) sparse array, sparse matrix or array_like
        Nonzero where a query attends to a key; the same for all leading dimensions.
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


def matmul(a: Any, x: torch.Tensor, values: torch.Tensor | None = None) -> torch.Tensor:
    """Product of a sparse matrix and a tensor, differentiable in the tensor and in the matrix's stored elements.

    Parameters
    ----------
    a : (m, n) sparse array or sparse matrix
        The left factor, of SciPy's or trnpy's classes.
    x : (n,) or (n, k) torch.Tensor
        The right factor, on the CPU.
    values : torch.Tensor, optional
        Replaces ``a.data`` and has its shape: for BSR the blocks, (blocks, r, c). It is differentiated, and `a` must be
        BSR, COO, CSC or CSR.

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
    >>> x = torch.tensor([1.0, 10.0], dtype=torch.float64)
    >>> torch_bridge.matmul(a, x)
    tensor([20.,  3.], dtype=torch.float64)
    >>> values = torch.tensor([2.0, 3.0], dtype=torch.float64, requires_grad=True)
    >>> torch_bridge.matmul(a, x, values).sum().backward()
    >>> values.grad
    tensor([10.,  1.], dtype=torch.float64)
    """
    result: torch.Tensor = _SparseProduct.apply(_checked(a, values), x, values)
    return result


def cg(
    a: Any, b: torch.Tensor, values: torch.Tensor | None = None, *, rtol: float = 1e-10, M: Any = None
) -> torch.Tensor:
    """Solution of a sparse Hermitian positive definite system, differentiable in both its sides.

    Gradients are those of the exact solution: the backward pass solves one more system with the same matrix.

    Parameters
    ----------
    a : (n, n) sparse array or sparse matrix
        Hermitian positive definite.
    b : (n,) torch.Tensor
        Right-hand side, on the CPU.
    values : torch.Tensor, optional
        Replaces ``a.data`` and has its shape. Each element has a gradient of its own, also where two must be equal for
        the matrix to be Hermitian.
    rtol : float
        Residual over the norm of the right-hand side, in both passes.
    M : (n, n) sparse array, sparse matrix, array_like or LinearOperator, optional
        Preconditioner, as of `scipy.sparse.linalg.cg`. It is not differentiated.

    Returns
    -------
    (n,) torch.Tensor
        The solution.

    Raises
    ------
    ValueError
        If shapes do not match.
    RuntimeError
        If conjugate gradients do not converge.

    Examples
    --------
    >>> import scipy.sparse, torch
    >>> from trnpy.sparse import torch_bridge
    >>> a = scipy.sparse.csr_array([[4.0, 0.0], [0.0, 2.0]])
    >>> b = torch.tensor([4.0, 6.0], dtype=torch.float64, requires_grad=True)
    >>> x = torch_bridge.cg(a, b)
    >>> x.sum().backward()
    >>> x.detach(), b.grad
    (tensor([1., 3.], dtype=torch.float64), tensor([0.2500, 0.5000], dtype=torch.float64))
    """
    result: torch.Tensor = _Solved.apply(_checked(a, values), b, values, rtol, M)
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
    def forward(ctx: Any, a: Any, x: torch.Tensor, values: torch.Tensor | None) -> torch.Tensor:
        ctx.a = a if values is None else _with_values(a, _array(values))
        ctx.save_for_backward(x)
        return torch.from_numpy(np.ascontiguousarray(ctx.a @ _array(x)))

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[None, torch.Tensor, torch.Tensor | None]:
        (g,), (x,) = gradients, ctx.saved_tensors
        _, right, elements = ctx.needs_input_grad
        dx = _tensor(ctx.a.conj().T @ _array(g), x) if right else None
        return None, dx, _tensor(_at_elements(ctx.a, _array(g), _array(x)), x) if elements else None


class _Solved(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, a: Any, b: torch.Tensor, values: torch.Tensor | None, rtol: float, M: Any) -> torch.Tensor:
        ctx.a = a if values is None else _with_values(a, _array(values))
        ctx.rtol, ctx.M = rtol, M
        x = torch.from_numpy(_solution(ctx.a, _array(b), rtol, M))
        ctx.save_for_backward(x)
        return x

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        """A dx = db - dA x, so b has the gradient y of A^H y = g, and A has the gradient - y x^H."""
        (g,), (x,) = gradients, ctx.saved_tensors
        y = _solution(ctx.a, _array(g), ctx.rtol, ctx.M)
        _, right, elements, *_ = ctx.needs_input_grad
        values = _tensor(-_at_elements(ctx.a, y, _array(x)), x) if elements else None
        return None, _tensor(y, x) if right else None, values, None, None


def _solution(a: Any, b: np.ndarray, rtol: float, m: Any) -> np.ndarray:
    x, info = linalg.cg(a, b, rtol=rtol, M=m)
    if info:
        raise RuntimeError(f"cg did not reach a relative residual of {rtol:.3g} in {info} iterations")
    return np.ascontiguousarray(x)


def _checked(a: Any, values: torch.Tensor | None) -> Any:
    """``a`` as one of trnpy's classes; ValueError if ``values`` does not fit its elements."""
    if values is not None and a.format not in PATTERNED:
        raise ValueError(f"values for a {a.format} matrix: expected {', '.join(PATTERNED[:-1])} or {PATTERNED[-1]}")
    if values is not None and tuple(values.shape) != a.data.shape:
        raise ValueError(f"values {tuple(values.shape)}: expected {a.format} elements {a.data.shape}")
    return adopt(a)


def _at_elements(a: Any, left: np.ndarray, right: np.ndarray) -> np.ndarray:
    """left right^H at the stored elements of ``a``, in their shape; both operands are (n,) or (n, k)."""
    left, right = left.reshape(len(left), -1), right.reshape(len(right), -1).conj()
    if a.format == "bsr":
        r, c = a.blocksize
        row = np.repeat(np.arange(len(a.indptr) - 1), np.diff(a.indptr))
        blocks = left.reshape(-1, r, left.shape[1])[row], right.reshape(-1, c, right.shape[1])[a.indices]
        found: np.ndarray = _matmul(blocks[0], blocks[1].swapaxes(1, 2))
        return found
    row, column = a.tocoo(copy=False).coords
    return np.asarray(np.einsum("ek,ek->e", left[row], right[column]))
