"""Reductions over the free dimensions (VectorEngine) and over partitions (GpSimd Engine)."""

from __future__ import annotations

from typing import Any

import numpy as np

from nkisim.chip.context import issue
from nkisim.chip.dtypes import Array
from nkisim.chip.operators import ALU
from nkisim.chip.tensor import NkiTensor
from nkisim.isa import _checks as check
from nkisim.isa._accumulators import check_command, issue_running, reduce_rows
from nkisim.isa._enums import reduce_cmd as Command
from nkisim.isa._lanes import bit_rows, rows, scalar, write_bits

__all__ = ["exponential", "tensor_partition_reduce", "tensor_reduce", "tensor_scalar_reduce"]

RUNNING = (Command.reset_reduce, Command.reduce, Command.load_reduce)
TENSOR_SCALAR_REDUCTIONS = ("add", "multiply", "maximum", "minimum")
EXPONENTIAL_MAX_DIMS = 4
FP8 = ("float8_e4m3", "float8_e5m2")
NARROW_INTEGERS = ("int8", "int16", "uint8", "uint16")
EXPONENTIAL_SRC = frozenset({*FP8, "float16", "bfloat16", "float32", "int32", "uint32", *NARROW_INTEGERS})
EXPONENTIAL_DST = frozenset({*FP8, "float16", "bfloat16", "float32", "tfloat32", "int32", *NARROW_INTEGERS})
EXPONENTIAL_RES = frozenset({*FP8, "float16", "bfloat16", "float32", "tfloat32"})


def tensor_reduce(
    dst: NkiTensor,
    op: Any,
    data: NkiTensor,
    axis: Any,
    negate: bool = False,
    keepdims: bool = False,
    name: str | None = None,
) -> Any:
    """Reduce the last free dimensions ``axis`` of data (P, F...) into dst, in float32 or on bit patterns."""
    this = "tensor_reduce"
    check.on_chip(this, dst=dst, data=data)
    alu = check.reduce_op(this, "op", op)
    axes = _trailing_axes(this, axis, data)
    kept = data.shape[1 : data.ndim - len(axes)]
    expected = (data.shape[0], *kept, *((1,) * len(axes) if keepdims else ()))
    if dst.shape[0] != expected[0] or dst.free_size != int(np.prod(kept, dtype=int)):
        check.refuse(this, f"dst {dst.shape} for data {data.shape} reduced over {axes}; {expected} is needed", 29)
    if alu.kind == "bitvec":
        check.bit_patterns(this, dst=dst, data=data)
        if negate:
            check.refuse(this, f"negate=True with the bit operator nl.{alu.name}; only arithmetic results negate", 28)

    def compute() -> None:
        if alu.kind == "bitvec":
            assert alu.reduce is not None
            patterns = bit_rows(data).reshape(data.shape[0], dst.free_size, -1)
            write_bits(dst, alu.reduce.reduce(patterns, axis=2).reshape(dst.shape))
            return
        values = rows(data).reshape(data.shape[0] * dst.free_size, -1)
        result = reduce_rows(alu, values)
        dst.write(-result if negate else result)

    return issue(this, "vector", {"data": data}, {"dst": dst}, compute, {"op": alu.name}, name)


def _trailing_axes(this: str, axis: Any, data: NkiTensor) -> tuple[int, ...]:
    """The reduced dimensions; refused unless they are the last dimensions and exclude the partitions."""
    axes = (axis,) if isinstance(axis, (int, np.integer)) else axis
    if not isinstance(axes, (tuple, list)) or not axes or not all(isinstance(a, (int, np.integer)) for a in axes):
        check.refuse(this, f"axis={axis!r}; an integer or a tuple of integers is needed", 29)
    found = tuple(sorted(int(a) for a in axes))  # negative axes are not documented
    if 0 in found or found != tuple(range(data.ndim - len(found), data.ndim)):
        check.refuse(
            this,
            f"axis={axis!r} of data {data.shape}; only the last free dimensions reduce, partitions never do "
            "(use nc_matmul with ones)",
            29,
        )
    return found


def tensor_partition_reduce(dst: NkiTensor, op: Any, data: NkiTensor, name: str | None = None) -> Any:
    """Reduce data (P, F...) over its partitions into dst (1, F...) on GpSimd Engine."""
    this = "tensor_partition_reduce"
    check.on_chip(this, dst=dst, data=data)
    check.sbuf_only(this, dst=dst, data=data)
    average = check.operator_name(this, "op", op) == "average"
    alu = None if average else check.one_of(this, "op", op, ("add", "maximum", "bitwise_or", "bitwise_and"))
    if dst.shape[0] != 1 or dst.free_size != data.free_size:
        check.refuse(this, f"dst {dst.shape} for data {data.shape}; (1, {data.free_size}) is needed", 29)
    if alu is not None and alu.kind == "bitvec":
        check.bit_patterns(this, dst=dst, data=data)

    def compute() -> None:
        if alu is None:
            dst.write(np.add.reduce(rows(data), axis=0, keepdims=True) / np.float32(data.shape[0]))
            return
        assert alu.reduce is not None
        if alu.kind == "bitvec":
            write_bits(dst, alu.reduce.reduce(bit_rows(data), axis=0).reshape(dst.shape))
        else:
            dst.write(alu.reduce.reduce(rows(data), axis=0, keepdims=True))

    options = {"op": "average" if alu is None else alu.name}
    return issue(this, "gpsimd", {"data": data}, {"dst": dst}, compute, options, name)


# --- elementwise, with a running reduction ------------------------------------------------------------------


def tensor_scalar_reduce(
    dst: NkiTensor,
    data: NkiTensor,
    op0: Any,
    operand0: Any,
    reduce_op: Any,
    reduce_res: NkiTensor | None = None,
    reverse0: bool = False,
    reduce_cmd: Command = Command.reset_reduce,
    reduce_init: Any = None,
    reduce_res_negate: bool = False,
    name: str | None = None,
) -> Any:
    """``dst = data op0 operand0`` and ``reduce_res = reduce_op(dst)`` over each partition (P, 1)."""
    this = "tensor_scalar_reduce"
    check.on_chip(this, dst=dst, data=data)
    check.same_size(this, dst, data=data)
    alu = check.vector_op(this, "op0", op0, unary=True)
    if reverse0:
        check.refuse(this, "reverse0=True is documented as not supported yet", 28)
    reads = {"data": data}
    if alu.unary:
        if operand0 is not None and (isinstance(operand0, NkiTensor) or operand0 != 0):
            check.refuse(this, f"operand0 is {operand0!r} for the unary nl.{alu.name}; None or 0 is needed", 28)
        operand0 = 0
    elif check.scalar_operand(this, "operand0", operand0, data.shape[0]):
        reads["operand0"] = operand0
    reduction = check.one_of(this, "reduce_op", reduce_op, TENSOR_SCALAR_REDUCTIONS, 29)
    check_command(this, reduce_cmd, RUNNING)

    def evaluate() -> Array:
        return alu.compute(rows(data), scalar(operand0))

    options = {"op0": alu.name, "op": reduction.name}
    return issue_running(
        "vector", this, dst, data, evaluate, reduction, reduce_cmd, reduce_res, reads, options, name,
        init=reduce_init, negate=reduce_res_negate,
    )  # fmt: skip


def exponential(
    dst: NkiTensor,
    src: NkiTensor,
    max_value: Any = 0.0,
    reduce_res: NkiTensor | None = None,
    reduce_cmd: Command = Command.idle,
    reduce_init: Any = 0.0,
    name: str | None = None,
) -> Any:
    """``dst = exp(src - max_value)`` on VectorEngine of trn3, optionally summed over each partition."""
    this = "exponential"
    check.needs_generation(this, 4)
    check.on_chip(this, dst=dst, src=src)
    check.same_size(this, dst, src=src)
    for role, tile in (("dst", dst), ("src", src)):
        if tile.ndim > EXPONENTIAL_MAX_DIMS:
            check.refuse(this, f"{role} has {tile.ndim} dimensions; at most {EXPONENTIAL_MAX_DIMS} are allowed", 12)
    check.dtype_in(this, EXPONENTIAL_DST, dst=dst)
    check.dtype_in(this, EXPONENTIAL_SRC, src=src)
    if reduce_res is not None:
        check.on_chip(this, reduce_res=reduce_res)
        check.dtype_in(this, EXPONENTIAL_RES, reduce_res=reduce_res)
    reads = {"src": src}
    if check.scalar_operand(this, "max_value", max_value, src.shape[0]):
        reads["max_value"] = max_value
    check_command(this, reduce_cmd, (Command.idle, *RUNNING))
    unset = not isinstance(reduce_init, NkiTensor) and reduce_init == 0.0
    init = None if unset and reduce_cmd is not Command.load_reduce else reduce_init

    def evaluate() -> Array:
        result: Array = np.exp(rows(src) - scalar(max_value))
        return result

    add = ALU["add"]
    return issue_running(
        "vector", this, dst, src, evaluate, add, reduce_cmd, reduce_res, reads, {"op": "exp"}, name, init=init
    )
