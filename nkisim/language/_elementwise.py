"""The elementwise functions of nki.language: each is one or a few instructions into a new SBUF tile.

The functions are also operators of instructions (``op=nl.add``), which identify an operator by its name.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from nkisim import isa
from nkisim.chip.errors import SimulatorError
from nkisim.chip.names import MemoryRegion
from nkisim.chip.tensor import NkiTensor
from nkisim.hardware import PSUM_BANK_BYTES
from nkisim.language._creation import copy, full, ndarray

BINARY = (
    "add", "subtract", "multiply", "maximum", "minimum", "abs_max", "abs_min", "equal", "not_equal", "less",
    "less_equal", "greater", "greater_equal", "bitwise_and", "bitwise_or", "bitwise_xor", "left_shift",
    "right_shift", "logical_and", "logical_or", "logical_xor",
)  # fmt: skip
ACTIVATION = (
    "exp", "log", "sqrt", "tanh", "sigmoid", "relu", "gelu", "gelu_apprx_sigmoid", "gelu_apprx_tanh", "gelu_dx",
    "gelu_apprx_sigmoid_dx", "silu", "silu_dx", "softplus", "mish", "erf", "erf_dx", "arctan", "square", "sign", "abs",
)  # fmt: skip
NO_HARDWARE = {
    "divide": "multiply by nl.reciprocal",
    "mod": "no engine computes it",
    "fmod": "no engine computes it",
}
MATMUL_COLUMNS = PSUM_BANK_BYTES // 4  # in one product: a PSUM bank of float32

__all__ = [
    *BINARY, *ACTIVATION, *NO_HARDWARE, "broadcast_to", "ceil", "cos", "dropout", "expand_dims", "floor",
    "gather_flattened", "invert", "logical_not", "matmul", "negative", "power", "reciprocal", "rsqrt", "sin", "tan",
    "transpose", "trunc", "where",
]  # fmt: skip


def _binary(name: str) -> Callable[..., Any]:
    def function(x: Any, y: Any, dtype: Any = None) -> NkiTensor:
        return _apply(function, x, y, dtype)

    function.__name__ = function.__qualname__ = name
    return function


def _apply(op: Any, x: Any, y: Any, dtype: Any) -> NkiTensor:
    """``x op y`` of two tiles, or of a tile and a number on either side."""
    name = op.__name__
    if not isinstance(x, NkiTensor) and not isinstance(y, NkiTensor):
        raise SimulatorError(f"nl.{name}({x!r}, {y!r}): at least one operand must be a tile")
    if isinstance(x, NkiTensor) and isinstance(y, NkiTensor):
        dst = ndarray(x.shape, dtype or x.dtype)
        if x.shape == y.shape:
            isa.tensor_tensor(dst=dst, data1=x, data2=y, op=op)
        elif name in ("abs_max", "abs_min") and y.shape == (x.shape[0], 1):
            isa.tensor_scalar(dst=dst, data=x, op0=op, operand0=y)
        else:
            raise SimulatorError(f"nl.{name}: shapes {x.shape} and {y.shape} differ; nothing is broadcast", rule=28)
        return dst
    tile, number, reverse = (x, y, False) if isinstance(x, NkiTensor) else (y, x, True)
    dst = ndarray(tile.shape, dtype or tile.dtype)
    isa.tensor_scalar(dst=dst, data=tile, op0=op, operand0=number, reverse0=reverse)
    return dst


def _activation(name: str) -> Callable[..., Any]:
    def function(x: NkiTensor, dtype: Any = None) -> NkiTensor:
        dst = ndarray(x.shape, dtype or x.dtype)
        # A tile of zeros: trn1 does not accept a constant bias.
        isa.activation(dst=dst, op=function, data=x, bias=full((x.shape[0], 1), 0.0, "float32"))
        return dst

    function.__name__ = function.__qualname__ = name
    return function


def _absent(name: str, instead: str) -> Callable[..., Any]:
    def function(x: Any, y: Any, dtype: Any = None) -> Any:
        raise SimulatorError(f"nl.{name} has no instruction on the device: {instead}", rule=34)

    function.__name__ = function.__qualname__ = name
    return function


globals().update({name: _binary(name) for name in BINARY})
globals().update({name: _activation(name) for name in ACTIVATION})
globals().update({name: _absent(name, instead) for name, instead in NO_HARDWARE.items()})
OPERATORS: dict[str, Any] = globals()


def power(x: Any, y: Any, dtype: Any = None) -> NkiTensor:
    """x to the power y; both are tiles, because the device does not support a constant exponent."""
    if not isinstance(x, NkiTensor) or not isinstance(y, NkiTensor):
        raise SimulatorError("nl.power needs two tiles: a constant exponent is not supported", rule=34)
    return _apply(power, x, y, dtype)


def reciprocal(x: NkiTensor, dtype: Any = None) -> NkiTensor:
    dst = ndarray(x.shape, dtype or x.dtype)
    isa.reciprocal(dst=dst, data=x)
    return dst


def rsqrt(x: NkiTensor, dtype: Any = None) -> NkiTensor:
    """1/sqrt(x) on GpSimd Engine, which does not reach PSUM."""
    if x.storage.buffer == "psum":
        raise SimulatorError("nl.rsqrt: GpSimd Engine does not reach PSUM; copy x to SBUF", rule=34)
    dst = ndarray(x.shape, dtype or x.dtype)
    isa.tensor_scalar(dst=dst, data=x, op0=rsqrt, operand0=0.0, engine=isa.engine.gpsimd)
    return dst


def negative(x: NkiTensor, dtype: Any = None) -> NkiTensor:
    dst = ndarray(x.shape, dtype or x.dtype)
    isa.tensor_scalar(dst=dst, data=x, op0=OPERATORS["multiply"], operand0=-1.0)
    return dst


def invert(x: NkiTensor, dtype: Any = None) -> NkiTensor:
    """Bitwise not, computed as exclusive or with all ones."""
    dst = ndarray(x.shape, dtype or x.dtype)
    isa.tensor_scalar(dst=dst, data=x, op0=OPERATORS["bitwise_xor"], operand0=2 ** (8 * x.itemsize) - 1)
    return dst


def logical_not(x: NkiTensor, dtype: Any = None) -> NkiTensor:
    """Exclusive or with 1, for tiles of zeros and ones."""
    return _apply(OPERATORS["logical_xor"], x, 1.0, dtype)


def _nearest(x: NkiTensor) -> NkiTensor:
    """x rounded to the nearest integer by the cast to int32."""
    whole = ndarray(x.shape, "int32")
    isa.tensor_copy(dst=whole, src=x)
    return copy(whole, "float32")


def floor(x: NkiTensor, dtype: Any = None) -> NkiTensor:
    """Largest integer not above x, for |x| < 2^31: the nearest one, less 1 if that is above x."""
    nearest = _nearest(x)
    wide = copy(x, "float32")
    return _apply(OPERATORS["subtract"], nearest, _apply(OPERATORS["greater"], nearest, wide, None), dtype or x.dtype)


def ceil(x: NkiTensor, dtype: Any = None) -> NkiTensor:
    """Smallest integer not below x, for |x| < 2^31."""
    nearest = _nearest(x)
    wide = copy(x, "float32")
    return _apply(OPERATORS["add"], nearest, _apply(OPERATORS["less"], nearest, wide, None), dtype or x.dtype)


def trunc(x: NkiTensor, dtype: Any = None) -> NkiTensor:
    """x rounded towards zero, for |x| < 2^31."""
    wide = copy(x, "float32")
    return _apply(OPERATORS["multiply"], floor(OPERATORS["abs"](wide)), OPERATORS["sign"](wide), dtype or x.dtype)


def _reduced_sine(x: NkiTensor, shift: float, dtype: Any) -> NkiTensor:
    """sin(x + shift), after subtracting the nearest multiple of 2 pi: the table covers only [-pi, pi]."""
    wide = ndarray(x.shape, "float32")
    isa.tensor_scalar(dst=wide, data=x, op0=OPERATORS["add"], operand0=shift)
    turns = ndarray(x.shape, "float32")
    isa.tensor_scalar(dst=turns, data=wide, op0=OPERATORS["multiply"], operand0=1 / (2 * math.pi))
    turns = _nearest(turns)
    angle = ndarray(x.shape, "float32")
    isa.scalar_tensor_tensor(
        dst=angle, data=turns, op0=OPERATORS["multiply"], operand0=-2 * math.pi, op1=OPERATORS["add"], operand1=wide
    )
    limit = 3.1415925  # the float32 just below pi
    isa.tensor_scalar(
        dst=angle, data=angle, op0=OPERATORS["minimum"], operand0=limit, op1=OPERATORS["maximum"], operand1=-limit
    )
    dst = ndarray(x.shape, dtype or x.dtype)
    isa.activation(dst=dst, op=sin, data=angle, bias=full((x.shape[0], 1), 0.0, "float32"))
    return dst


def sin(x: NkiTensor, dtype: Any = None) -> NkiTensor:
    """Sine with range reduction in float32."""
    return _reduced_sine(x, 0.0, dtype)


def cos(x: NkiTensor, dtype: Any = None) -> NkiTensor:
    """Cosine with range reduction in float32."""
    return _reduced_sine(x, math.pi / 2, dtype)


def tan(x: NkiTensor, dtype: Any = None) -> NkiTensor:
    """Sine over cosine."""
    return _apply(OPERATORS["multiply"], sin(x, "float32"), reciprocal(cos(x, "float32")), dtype or x.dtype)


def where(condition: NkiTensor, x: NkiTensor, y: NkiTensor, dtype: Any = None) -> NkiTensor:
    """x where the condition is not zero, otherwise y."""
    predicate = _apply(OPERATORS["not_equal"], condition, 0.0, "uint8")
    dst = copy(y, dtype or x.dtype)
    isa.tensor_copy_predicated(dst=dst, src=copy(x, dst.dtype), predicate=predicate)
    return dst


def dropout(x: NkiTensor, rate: Any, dtype: Any = None) -> NkiTensor:
    """x with elements zeroed at random."""
    dst = ndarray(x.shape, x.dtype)
    isa.dropout(dst=dst, data=x, prob=rate)
    return dst if dtype is None else copy(dst, dtype)


def expand_dims(x: NkiTensor, axis: int) -> NkiTensor:
    return x.expand_dim(axis)


def broadcast_to(x: NkiTensor, shape: tuple[int, ...], dtype: Any = None) -> NkiTensor:
    """x repeated to a shape of the same rank: a view for free dimensions, a product with ones for partitions.

    From one partition to many the result is in PSUM if it fits a bank, otherwise in SBUF.
    """
    if len(shape) != x.ndim or any(n not in (m, 1) for n, m in zip(x.shape, shape, strict=False)):
        raise SimulatorError(f"nl.broadcast_to: {x.shape} to {tuple(shape)}: same rank, sizes equal or 1 before")
    if x.shape[0] != shape[0]:
        x = _spread(x, shape[0])
    for dim in range(1, x.ndim):
        if x.shape[dim] != shape[dim]:
            x = x.broadcast(dim, shape[dim])
    return x if dtype is None or dtype == x.dtype else copy(x, dtype)


def _spread(x: NkiTensor, partitions: int) -> NkiTensor:
    """A tile of one partition repeated on many: ones (1, partitions)^T @ x."""
    if x.storage.buffer != "sbuf":
        x = copy(x)
    row = x.reshape((1, x.free_size))
    ones = ndarray((1, partitions), x.dtype)
    isa.memset(dst=ones, value=1.0, engine=isa.engine.gpsimd)  # VectorEngine would finish earlier instructions first
    columns = row.shape[1]
    total = ndarray((partitions, columns), x.dtype) if columns > MATMUL_COLUMNS else None
    result = total
    for start in range(0, columns, MATMUL_COLUMNS):
        part = row[:, start : min(start + MATMUL_COLUMNS, columns)]
        product = ndarray((partitions, part.shape[1]), "float32", MemoryRegion.psum)
        isa.nc_matmul(dst=product, stationary=ones, moving=part, is_stationary_onezero=True, accumulate=False)
        if total is None:
            result = product
        else:
            isa.tensor_copy(dst=total[:, start : start + part.shape[1]], src=product)
    assert result is not None
    return result.reshape((partitions, *x.shape[1:]))


def transpose(x: NkiTensor, dtype: Any = None) -> NkiTensor:
    """The transpose of a 2-d tile, in PSUM."""
    if x.ndim != 2:
        raise SimulatorError(f"nl.transpose: {x.shape} is not 2-d")
    dst = ndarray((x.shape[1], x.shape[0]), x.dtype, MemoryRegion.psum)
    isa.nc_transpose(dst=dst, data=x)
    return dst if dtype is None or dtype == x.dtype else copy(dst, dtype)


def matmul(x: NkiTensor, y: NkiTensor, transpose_x: bool = False) -> NkiTensor:
    """x^T @ y of SBUF tiles, in PSUM; transpose_x=True is required."""
    if not transpose_x:
        raise SimulatorError("nl.matmul: only transpose_x=True is supported on the device", rule=34)
    dst = ndarray((x.free_size, y.free_size), "float32", MemoryRegion.psum)
    isa.nc_matmul(dst=dst, stationary=x, moving=y, accumulate=False)
    return dst


def gather_flattened(data: NkiTensor, indices: NkiTensor, axis: int = 0, dtype: Any = None) -> NkiTensor:
    """Elements of each partition of data at the indices of the same partition."""
    if axis not in (0, 1, -1):
        raise SimulatorError(f"nl.gather_flattened: axis {axis}; only the free dimension can be gathered")
    dst = ndarray(indices.shape, data.dtype)
    isa.nc_n_gather(dst=dst, data=data, indices=indices)
    return dst if dtype is None else copy(dst, dtype)
