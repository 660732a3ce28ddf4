"""NumPy's products as contractions of labelled arrays. NumPy computes the calls that are refused here."""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy import einsum_path, ndarray, outer, vdot

from trnpy._call import guards
from trnpy._call.cache_key import kind_of
from trnpy._call.dispatch import Op, Problem, Reason, Unsupported
from trnpy._call.fast_path import PRODUCTS
from trnpy._call.namespace import rows
from trnpy._einsum import grammar
from trnpy._einsum.grammar import LETTERS
from trnpy._einsum.plan import GREEDY, Contraction, Order, costed

# NumPy's original functions, bound before patching.
_numpy_einsum, _numpy_einsum_path = np.einsum, np.einsum_path

EVERY = "?bBhHiIlLqQefdFD"  # characters of the dtypes whose products a device computes
SINGLE_SIGNIFICAND = 24  # bits of float32: a device sums fewer than 2^24 products of integers exactly


def _problem(
    inputs: Sequence[str],
    output: str,
    operands: Sequence[Any],
    out: Any = None,
    optimize: grammar.Optimize = GREEDY,
    loops: bool = False,
    scalar: bool = True,
    order: Order = "C",
    exact: bool = False,
    dtype: np.dtype | None = None,
    shape: tuple[int, ...] | None = None,
) -> Contraction:
    """The contraction ``inputs -> output``; ``loops`` if the original function would not plan it.

    ``order`` of the result: C as in all functions except einsum, F, or K for any.
    ``exact``: whether integers and float16 are multiplied too, as NumPy's loops do.
    ``dtype`` of the product if it differs from the operands'.
    """
    arrays = tuple([guards.array(a) for a in operands])
    looped = False
    if dtype is not None:
        dtype = guards.floating(np.empty(0, dtype))
    else:
        dtype = np.result_type(*arrays)
        # NumPy has no BLAS for these dtypes; it multiplies int64 with uint64 in float64.
        looped = exact and out is None and (dtype.kind in "iub" or dtype.char == "e")
        if not looped:
            dtype = guards.floating(*arrays)
    for a in arrays:
        if a.size == 0:
            raise Unsupported(Reason.LAYOUT, "an operand is empty")
    shapes, sizes = tuple([a.shape for a in arrays]), tuple([a.itemsize for a in arrays])
    looping = (tuple([a.strides for a in arrays]), "".join([a.dtype.char for a in arrays])) if loops else ()
    p, cost = costed(tuple(inputs), output, shapes, sizes, dtype, optimize, *looping)
    if out is not None:
        guards.output(out, p.shape(), dtype, arrays)
    if looped:
        if dtype.kind in "iub" and (p.terms.bit_length() > SINGLE_SIGNIFICAND or not p.output):
            raise Unsupported(Reason.LAYOUT, f"sums of {p.terms} integers")
        # NumPy's float16 loop takes at least as long as that of integers: 0.5 and 0.8 GF/s,
        # docs/products.md#integers. Beside its terms, an element of the result takes as long as a copy of 8 bytes.
        cost = replace(cost, kind="integer", units=0.0, moved=cost.moved + 8.0 * math.prod(p.shape()))
        return Contraction(arrays, dtype, cost, plan=p, scalar=scalar, order=order)
    return Contraction(arrays, dtype, cost, plan=p, out=out, scalar=scalar, order=order, shape=shape)


def prepare_einsum(
    *operands: Any, out: Any = None, optimize: Any = False, dtype: Any = None, order: Any = "K", casting: Any = "safe",
    **kwargs: Any,
) -> Contraction:  # fmt: skip
    if kwargs or order not in ("K", "A", "C", "F"):
        raise Unsupported(Reason.PARAM, f"order {order!r}, options {', '.join(kwargs) or 'none'}")
    if optimize is False:  # NumPy's loop reads subclasses that do not override it as plain arrays
        operands = tuple([guards.plain(a) for a in operands])
    inputs, output, arrays = grammar.parse(operands)
    if order == "A":
        order = "F" if all(a.flags.f_contiguous for a in arrays) else "C"
    search, loops = _search(optimize, len(arrays))
    subscripts = f"{','.join(inputs)}->{output}"
    exact = len(arrays) == 2 and order == "K"
    target = None if dtype is None else np.dtype(dtype)
    kinds = {a.dtype.kind for a in arrays}
    if not loops and len(kinds) > 1 and not kinds.isdisjoint("iub"):
        # A plan of NumPy computes each step in the dtype of its operands, but its loop converts all operands first.
        raise Unsupported(Reason.DTYPE, "integers mixed with other dtypes in a planned contraction may wrap around")
    scalar = bool(loops or output) or _is_scalar(subscripts, tuple([a.shape for a in arrays]), _hashable(optimize))
    problem = _problem(inputs, output, arrays, out, search, loops, scalar, order, exact, target)
    # If a cast may lose digits, NumPy casts or raises its own error.
    if not all(np.can_cast(a.dtype, problem.dtype, rule) for a in arrays for rule in {"safe", casting}):
        raise Unsupported(Reason.PARAM, f"casting={casting!r} to {problem.dtype}")
    return problem


def _hashable(optimize: Any) -> Any:
    return tuple(map(_hashable, optimize)) if isinstance(optimize, (list, tuple)) else optimize


@functools.lru_cache(maxsize=4096)
def _is_scalar(subscripts: str, shapes: grammar.Shapes, optimize: Any) -> bool:
    """Whether NumPy's planned contraction to a number returns a scalar or, like matmul, a zero-dimensional array.

    Versions of NumPy differ, so NumPy computes the contraction with one or two elements along each axis.
    """
    zeros = [np.broadcast_to(0.0, shape) for shape in shapes]
    path = _numpy_einsum_path(subscripts, *zeros, optimize=optimize)[0]
    small = [np.zeros([min(n, 2) for n in shape]) for shape in shapes]
    return not isinstance(_numpy_einsum(subscripts, *small, optimize=path), np.ndarray)


def _search(optimize: Any, operands: int) -> tuple[str | tuple[tuple[int, ...], ...], bool]:
    """opt_einsum's search for NumPy's ``optimize``, and whether NumPy itself would loop without a plan."""
    if isinstance(optimize, bool) or optimize is None:
        return GREEDY, optimize is False  # NumPy plans for any other value, even a single step
    if isinstance(optimize, (list, tuple)) and len(optimize) == 2 and isinstance(optimize[1], (int, float)):
        optimize = optimize[0]  # the second item, a limit on intermediates, is not used
    if isinstance(optimize, str) and optimize in ("greedy", "optimal"):
        return optimize, False
    if isinstance(optimize, (list, tuple)) and optimize and optimize[0] == "einsum_path":
        path = tuple(tuple(operator.index(i) for i in step) for step in optimize[1:])
        left = operands
        for step in path:
            if not step or len(set(step)) != len(step) or not all(0 <= i < left for i in step):
                raise Unsupported(Reason.PARAM, f"path step {step} of {left} operands")
            left -= len(step) - 1
        if left != 1:
            raise Unsupported(Reason.PARAM, "the path does not contract every operand")
        return path, False
    raise Unsupported(Reason.PARAM, f"optimize={optimize!r}")


def prepare_matmul(x1: Any, x2: Any, /, out: Any = None, **kwargs: Any) -> Problem:
    if kwargs:
        raise Unsupported(Reason.PARAM, f"options {', '.join(kwargs)}")
    a, b = guards.array(x1), guards.array(x2)
    if not 0 < a.ndim < 20 or not 0 < b.ndim < 20:
        raise Unsupported(Reason.LAYOUT, f"operands of {a.ndim} and {b.ndim} dimensions")
    stacked = max(a.ndim, b.ndim) - 2
    batch = LETTERS[: max(stacked, 0)]
    la = "k" if a.ndim == 1 else batch[len(batch) - (a.ndim - 2) :] + "mk"
    lb = "k" if b.ndim == 1 else batch[len(batch) - (b.ndim - 2) :] + "kn"
    if a.shape[-1] != b.shape[-2 if b.ndim > 1 else -1]:
        raise Unsupported(Reason.PARAM, f"shapes {a.shape} and {b.shape} do not match")
    output = batch + ("m" if a.ndim > 1 else "") + ("n" if b.ndim > 1 else "")
    if isinstance(out, tuple):
        (out,) = out
    return _problem((la, lb), output, (a, b), out, exact=True)


def prepare_dot(a: Any, b: Any, out: Any = None) -> Problem:
    a, b = guards.array(a, mapped=False), guards.array(b, mapped=False)  # NumPy's result is a memory map, too
    if out is not None and a.ndim == b.ndim == 1:
        raise Unsupported(Reason.LAYOUT, "zero-dimensional out: NumPy also returns a number")
    return _sum_of_products(a, b, (a.ndim - 1,), (max(b.ndim - 2, 0),), out)


def prepare_inner(a: Any, b: Any, /) -> Problem:
    a, b = guards.array(a, mapped=False), guards.array(b, mapped=False)
    return _sum_of_products(a, b, (a.ndim - 1,), (b.ndim - 1,))


def prepare_tensordot(a: Any, b: Any, axes: Any = 2) -> Problem:
    a, b = guards.array(a), guards.array(b)
    try:
        axes_a, axes_b = axes
    except TypeError:
        count = operator.index(axes)
        axes_a, axes_b = range(a.ndim - count, a.ndim), range(count)
    listed = [[x] if isinstance(x, (int, np.integer)) else list(x) for x in (axes_a, axes_b)]
    pairs = [tuple(operator.index(i) for i in x) for x in listed]
    return _sum_of_products(a, b, pairs[0], pairs[1], scalar=False)


def _sum_of_products(
    a: np.ndarray,
    b: np.ndarray,
    axes_a: Sequence[int],
    axes_b: Sequence[int],
    out: Any = None,
    scalar: bool = True,
) -> Problem:
    """The contraction over pairs of axes; the remaining axes of ``a`` come before those of ``b``."""
    if not 0 < a.ndim + b.ndim <= len(LETTERS) or a.ndim == 0 or b.ndim == 0:
        raise Unsupported(Reason.LAYOUT, f"operands of {a.ndim} and {b.ndim} dimensions")
    axes_a, axes_b = [i + a.ndim * (i < 0) for i in axes_a], [i + b.ndim * (i < 0) for i in axes_b]
    in_range = all(0 <= i < a.ndim for i in axes_a) and all(0 <= i < b.ndim for i in axes_b)
    if not in_range or len(set(axes_a)) != len(axes_a) or len(set(axes_b)) != len(axes_b) or len(axes_a) != len(axes_b):
        raise Unsupported(Reason.PARAM, f"axes {axes_a} and {axes_b} do not pair up")
    if any(a.shape[i] != b.shape[j] for i, j in zip(axes_a, axes_b, strict=True)):
        raise Unsupported(Reason.PARAM, f"shapes {a.shape} and {b.shape} do not match")
    la = LETTERS[: a.ndim]
    lb = list(LETTERS[a.ndim : a.ndim + b.ndim])
    for i, j in zip(axes_a, axes_b, strict=True):
        lb[j] = la[i]
    output = "".join(c for c in la if c not in lb) + "".join(c for c in lb if c not in la)
    return _problem((la, "".join(lb)), output, (a, b), out, scalar=scalar, exact=True)


def prepare_kron(a: Any, b: Any) -> Problem:
    a, b = guards.array(a), guards.array(b)
    if a.ndim != 2 or b.ndim != 2:
        raise Unsupported(Reason.LAYOUT, f"operands of {a.ndim} and {b.ndim} dimensions")
    return _problem(("ac", "bd"), "abcd", (a, b), shape=(len(a) * len(b), a.shape[1] * b.shape[1]))


def _kind(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The cache key of a call from its operands, without ``out`` and ``order``."""
    return kind_of(args, kwargs) if len(args) < 3 else None


def _kind_tensordot(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The kind of a call by its operands and the values of its axes, which are no arrays."""
    axes = args[2] if len(args) > 2 else kwargs.get("axes", 2)
    return kind_of(args, kwargs) if len(args) < 4 and _of_integers(axes) else None


def _of_integers(axes: Any) -> bool:
    return type(axes) is int or (type(axes) in (tuple, list) and all(map(_of_integers, axes)))


def _kind_einsum(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    operands = args[1:] if type(args[0]) is str else args[: len(args) // 2 * 2 : 2]
    if kwargs.get("order") == "A" or not all(type(a) is ndarray for a in operands):
        return None
    kind = kind_of(args, kwargs)
    # NumPy's loop over all labels is up to 20 times slower in one order of memory than in another.
    return kind if kind is None or "optimize" in kwargs else (*kind, *[a.strides for a in operands])


def _row(name: str, reference: Callable[..., Any], prepare: Callable[..., Problem]) -> Op:
    kind = {"einsum": _kind_einsum, "tensordot": _kind_tensordot}.get(name, _kind)
    return Op(f"numpy.{name}", reference, prepare, small=PRODUCTS, kind=kind, dtypes=EVERY)


OPS = (
    _row("matmul", np.matmul, prepare_matmul),
    _row("dot", np.dot, prepare_dot),
    _row("inner", np.inner, prepare_inner),
    _row("tensordot", np.tensordot, prepare_tensordot),
    _row("einsum", np.einsum, prepare_einsum),
    Op("numpy.kron", np.kron, prepare_kron, small=PRODUCTS),
)

matmul, dot, inner, tensordot, einsum, kron = rows(OPS, "trnpy").values()

__all__ = ["OPS", "dot", "einsum", "einsum_path", "inner", "kron", "matmul", "outer", "tensordot", "vdot"]
