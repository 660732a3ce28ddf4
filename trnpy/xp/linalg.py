"""The linear algebra of the array API standard: the accelerated functions of numpy.linalg, recorded."""

from __future__ import annotations

import builtins
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from trnpy._call.dispatch import accelerated
from trnpy._call.rows import rows as rows_of
from trnpy.xp import _rules
from trnpy.xp._array import Array, _host, wrapped
from trnpy.xp._common import array, like, node_of, plain, view
from trnpy.xp._graph import record
from trnpy.xp._products import matmul, tensordot, vecdot
from trnpy.xp._rules import Shape
from trnpy.xp._shapes import matrix_transpose

NUMPY_OPS = rows_of("numpy.linalg")

__all__ = [
    "cholesky", "cross", "det", "diagonal", "eigh", "eigvalsh", "inv", "matmul", "matrix_norm", "matrix_power",
    "matrix_rank", "matrix_transpose", "outer", "pinv", "qr", "slogdet", "solve", "svd", "svdvals", "tensordot",
    "trace", "vecdot", "vector_norm",
]  # fmt: skip
_ROWS = {op.name.rpartition(".")[2]: accelerated(op) for op in NUMPY_OPS}


class EighResult(NamedTuple):
    eigenvalues: Array
    eigenvectors: Array


class QRResult(NamedTuple):
    Q: Array
    R: Array


class SlogdetResult(NamedTuple):
    sign: Array
    logabsdet: Array


class SVDResult(NamedTuple):
    U: Array
    S: Array
    Vh: Array


def _matrices(x: Any, function: Callable[..., Any], square: bool = True, **options: Any) -> Any:
    """The node of a stack of matrices; raises NumPy's error for other operands."""
    node = node_of(x)
    if len(node.shape) < 2 or (square and node.shape[-1] != node.shape[-2]):
        least = tuple([builtins.min(n, 1 + (i > 0)) for i, n in enumerate(node.shape)])
        function(np.zeros(least, node.dtype), **options)
        raise np.linalg.LinAlgError(f"{node.shape} is no stack of matrices that {function.__name__} takes")
    return node


def _one(name: str, node: Any, shape: Shape, **options: Any) -> Array:
    """The result of a numpy.linalg function that returns one array."""
    function = _ROWS.get(name) or getattr(np.linalg, name)
    if 0 in node.shape:
        return array(_rules.at_once(function, node, **options))
    return array(record(function, (node,), options, shape, _rules.probed(function, node, **options)))


def _several(name: str, node: Any, shapes: Sequence[Shape], **options: Any) -> tuple[Array, ...]:
    function = _ROWS[name]
    if 0 in node.shape:
        return tuple([array(x) for x in _rules.at_once(function, node, **options)])
    dtypes = _rules.probed(function, node, **options)
    found = _rules.members(function, (node,), shapes, dtypes, **options)
    return tuple([array(x) for x in found])


def _lower(x: np.ndarray) -> np.ndarray:
    return _ROWS["cholesky"](x)  # type: ignore[no-any-return]


def _upper(x: np.ndarray) -> np.ndarray:
    return np.conj(np.matrix_transpose(_ROWS["cholesky"](x)))  # type: ignore[no-any-return]


@like(np.linalg.cholesky)
def cholesky(x: Array, /, *, upper: bool = False) -> Array:
    node = _matrices(x, np.linalg.cholesky)
    return array(_rules.same_shape(_upper if upper else _lower, node))


@like(np.linalg.inv)
def inv(x: Array, /) -> Array:
    return _one("inv", node := _matrices(x, np.linalg.inv), node.shape)


@like(np.linalg.det)
def det(x: Array, /) -> Array:
    return _one("det", node := _matrices(x, np.linalg.det), node.shape[:-2])


@like(np.linalg.slogdet)
def slogdet(x: Array, /) -> SlogdetResult:
    node = _matrices(x, np.linalg.slogdet)
    return SlogdetResult(*_several("slogdet", node, (node.shape[:-2],) * 2))


@like(np.linalg.eigh)
def eigh(x: Array, /) -> EighResult:
    node = _matrices(x, np.linalg.eigh)
    return EighResult(*_several("eigh", node, (node.shape[:-1], node.shape)))


@like(np.linalg.eigvalsh)
def eigvalsh(x: Array, /) -> Array:
    return _one("eigvalsh", node := _matrices(x, np.linalg.eigvalsh), node.shape[:-1])


@like(np.linalg.qr)
def qr(x: Array, /, *, mode: str = "reduced") -> QRResult:
    if mode not in ("reduced", "complete"):
        raise ValueError(f"mode {mode!r}: expected 'reduced' or 'complete'")
    node = _matrices(x, np.linalg.qr, square=False)
    *stack, m, n = node.shape
    k = m if mode == "complete" else builtins.min(m, n)
    return QRResult(*_several("qr", node, ((*stack, m, k), (*stack, k, n)), mode=mode))


@like(np.linalg.svd)
def svd(x: Array, /, *, full_matrices: bool = True) -> SVDResult:
    node = _matrices(x, np.linalg.svd, square=False)
    *stack, m, n = node.shape
    k = builtins.min(m, n)
    left, right = ((m, m), (n, n)) if full_matrices else ((m, k), (k, n))
    shapes = ((*stack, *left), (*stack, k), (*stack, *right))
    return SVDResult(*_several("svd", node, shapes, full_matrices=full_matrices))


@like(np.linalg.svdvals)
def svdvals(x: Array, /) -> Array:
    node = _matrices(x, np.linalg.svdvals, square=False)
    return _one("svdvals", node, (*node.shape[:-2], builtins.min(node.shape[-2:])))


@like(np.linalg.pinv)
def pinv(x: Array, /, *, rtol: Any = None) -> Array:
    node = _matrices(x, np.linalg.pinv, square=False)
    *stack, m, n = node.shape
    if rtol is None:
        return _one("pinv", node, (*stack, n, m))
    return array(_rules.at_once(_ROWS["pinv"], node, rtol=_host(rtol)))


@like(np.linalg.matrix_power)
def matrix_power(x: Array, n: int, /) -> Array:
    return _one("matrix_power", node := _matrices(x, np.linalg.matrix_power, n=n), node.shape, n=n)


@like(np.linalg.matrix_rank)
def matrix_rank(x: Array, /, *, rtol: Any = None) -> Array:
    node = node_of(x)
    if len(node.shape) < 2:
        raise np.linalg.LinAlgError("a matrix or a stack of matrices has two dimensions or more")
    return array(_rules.at_once(np.linalg.matrix_rank, node, rtol=_host(rtol)))


@like(np.linalg.matrix_norm)
def matrix_norm(x: Array, /, *, keepdims: bool = False, ord: Any = "fro") -> Array:
    return array(_rules.at_once(np.linalg.matrix_norm, node_of(x), keepdims=keepdims, ord=ord))


@like(np.linalg.vector_norm)
def vector_norm(x: Array, /, *, axis: Any = None, keepdims: bool = False, ord: Any = 2) -> Array:
    return array(_rules.reduced(np.linalg.vector_norm, node_of(x), axis, keepdims, ord=ord))


@like(np.linalg.trace)
def trace(x: Array, /, *, offset: int = 0, dtype: Any = None) -> Array:
    return array(_rules.at_once(np.linalg.trace, node_of(x), offset=offset, dtype=dtype))


@like(np.linalg.diagonal)
def diagonal(x: Array, /, *, offset: int = 0) -> Array:
    return view(np.linalg.diagonal, x, offset=offset)


@like(np.linalg.outer)
def outer(x1: Array, x2: Array, /) -> Array:
    a, b = node_of(x1), node_of(x2)
    shape = (a.shape[0], b.shape[0]) if len(a.shape) == len(b.shape) == 1 else None
    return array(_rules.product(np.linalg.outer, a, b, shape))


@like(np.linalg.cross)
def cross(x1: Array, x2: Array, /, *, axis: int = -1) -> Array:
    return array(_rules.at_once(np.linalg.cross, node_of(x1), node_of(x2), axis=axis))


@like(np.linalg.solve)
def solve(x1: Array, x2: Array, /) -> Array:
    a, b = _matrices(x1, np.linalg.inv), node_of(x2)
    if len(b.shape) == 1:
        shape: Shape | None = (*a.shape[:-2], *b.shape) if b.shape == a.shape[-1:] else None
    else:
        shape = _rules.matmul_shape(a.shape, b.shape)
    if shape is None or 0 in a.shape or 0 in b.shape:
        return wrapped(np.linalg.solve(*plain((x1, x2))))  # type: ignore[no-any-return]
    dtype = _rules.probed(np.linalg.solve, a, b)
    return array(record(_ROWS["solve"], (a, b), {}, shape, dtype))
