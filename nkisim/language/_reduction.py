"""The reductions and normalisations of nki.language over trailing free dimensions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from nkisim import isa
from nkisim.chip.errors import SimulatorError
from nkisim.chip.tensor import NkiTensor
from nkisim.language import _elementwise
from nkisim.language._creation import copy, full, ndarray
from nkisim.language._elementwise import OPERATORS

__all__ = ["all", "max", "mean", "min", "prod", "rms_norm", "softmax", "sum", "var"]

Axis = int | Sequence[int]


def _axes(x: NkiTensor, axis: Axis, what: str) -> tuple[int, ...]:
    """Axes to reduce, in order: the last ones, never the partition dimension."""
    given = (axis,) if isinstance(axis, int) else tuple(axis)
    axes = tuple(sorted(a % x.ndim for a in given if -x.ndim <= a < x.ndim))
    if len(axes) != len(given) or axes != tuple(range(x.ndim - len(axes), x.ndim)) or 0 in axes:
        raise SimulatorError(f"nl.{what}: axis {axis} of {x.shape}: only the last free dimensions reduce", rule=29)
    return axes


def _result(x: NkiTensor, axes: tuple[int, ...], keepdims: bool) -> tuple[int, ...]:
    """Shape after the reduction; on chip it keeps at least two dimensions."""
    if keepdims:
        return tuple(1 if dim in axes else n for dim, n in enumerate(x.shape))
    kept = x.shape[: axes[0]]
    return kept if len(kept) > 1 else (*kept, 1)


def _reduction(name: str, operator: str) -> Callable[..., NkiTensor]:
    def function(x: NkiTensor, axis: Axis, dtype: Any = None, keepdims: bool = False) -> NkiTensor:
        axes = _axes(x, axis, name)
        dst = ndarray(_result(x, axes, keepdims), dtype or x.dtype)
        isa.tensor_reduce(dst=dst, op=OPERATORS[operator], data=x, axis=axes, keepdims=keepdims)
        return dst

    function.__name__ = function.__qualname__ = name
    return function


sum = _reduction("sum", "add")
max = _reduction("max", "maximum")
min = _reduction("min", "minimum")
prod = _reduction("prod", "multiply")
all = _reduction("all", "logical_and")


def _count(x: NkiTensor, axes: tuple[int, ...]) -> int:
    size = 1
    for axis in axes:
        size *= x.shape[axis]
    return size


def mean(x: NkiTensor, axis: Axis, dtype: Any = None, keepdims: bool = False) -> NkiTensor:
    """Average; the sum is in float32."""
    axes = _axes(x, axis, "mean")
    total = sum(x, axes, "float32", keepdims)
    dst = ndarray(total.shape, dtype or x.dtype)
    isa.tensor_scalar(dst=dst, data=total, op0=OPERATORS["multiply"], operand0=1.0 / _count(x, axes))
    return dst


def _rows(x: NkiTensor, axes: tuple[int, ...], what: str) -> NkiTensor:
    """x as (P, F), for functions that need one value per partition."""
    if axes[0] != 1:
        raise SimulatorError(f"nl.{what}: axis {axes} of {x.shape}: all free dimensions must be reduced", rule=29)
    return x.reshape((x.shape[0], x.free_size))


def var(x: NkiTensor, axis: Axis, dtype: Any = None, keepdims: bool = False) -> NkiTensor:
    """Mean squared deviation from the mean; the result always keeps its dimensions."""
    axes = _axes(x, axis, "var")
    rows = _rows(x, axes, "var")
    centre = mean(rows, 1, "float32", keepdims=True)
    deviation = ndarray(rows.shape, "float32")
    isa.tensor_scalar(dst=deviation, data=rows, op0=OPERATORS["subtract"], operand0=centre)
    squares = _elementwise._apply(OPERATORS["multiply"], deviation, deviation, "float32")
    return mean(squares, 1, dtype or x.dtype, keepdims=True).reshape(_result(x, axes, True))


def softmax(x: NkiTensor, axis: Axis = -1, dtype: Any = None) -> NkiTensor:
    """exp(x - max) divided by its sum, in float32."""
    rows = _rows(x, _axes(x, axis, "softmax"), "softmax")
    top = max(rows, 1, "float32", keepdims=True)
    shifted = ndarray(rows.shape, "float32")
    isa.tensor_scalar(dst=shifted, data=rows, op0=OPERATORS["subtract"], operand0=top)
    grown = OPERATORS["exp"](shifted)
    scale = _elementwise.reciprocal(sum(grown, 1, "float32", keepdims=True))
    dst = ndarray(x.shape, dtype or x.dtype)
    isa.tensor_scalar(dst=dst.reshape(rows.shape), data=grown, op0=OPERATORS["multiply"], operand0=scale)
    return dst


def rms_norm(
    x: NkiTensor, w: NkiTensor, axis: Axis, n: int, epsilon: float = 1e-6, dtype: Any = None, compute_dtype: Any = None
) -> NkiTensor:
    """x / sqrt(sum(x^2) / n + epsilon) * w."""
    wide = compute_dtype or "float32"
    rows = _rows(x, _axes(x, axis, "rms_norm"), "rms_norm")
    squares = _elementwise._apply(OPERATORS["multiply"], rows, rows, wide)
    total = sum(squares, 1, "float32", keepdims=True)
    isa.tensor_scalar(
        dst=total,
        data=total,
        op0=OPERATORS["multiply"],
        operand0=1.0 / n,
        op1=OPERATORS["add"],
        operand1=float(epsilon),
    )
    root = ndarray(total.shape, "float32")
    isa.activation(dst=root, op=OPERATORS["sqrt"], data=total, bias=full((x.shape[0], 1), 0.0, "float32"))
    scaled = ndarray(rows.shape, wide)
    isa.tensor_scalar(dst=scaled, data=rows, op0=OPERATORS["multiply"], operand0=_elementwise.reciprocal(root))
    weights = w.reshape(rows.shape) if w.dtype == wide else copy(w, wide).reshape(rows.shape)
    dst = ndarray(x.shape, dtype or x.dtype)
    isa.tensor_tensor(dst=dst.reshape(rows.shape), data1=scaled, data2=weights, op=OPERATORS["multiply"])
    return dst
