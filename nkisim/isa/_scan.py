"""Running operations of VectorEngine along the free dimension: scans and cumulative reductions."""

from __future__ import annotations

from typing import Any

import numpy as np

from nkisim.chip.context import issue
from nkisim.chip.dtypes import Array
from nkisim.chip.operators import ALU, AluOp
from nkisim.chip.tensor import NkiTensor
from nkisim.isa import _checks as check
from nkisim.isa._accumulators import accumulators, check_command
from nkisim.isa._enums import reduce_cmd as Command
from nkisim.isa._lanes import rows, scalar
from nkisim.isa._reduce import RUNNING

__all__ = ["tensor_scalar_cumulative", "tensor_tensor_scan"]

CUMULATIVE_OPS = ("add", "subtract", "multiply", "maximum", "minimum")
CUMULATIVE_DTYPES = frozenset(
    {
        "bfloat16", "float16", "float32", "uint8", "uint16", "int8", "int16",
        "float8_e4m3", "float8_e4m3fn", "float8_e5m2",
    }
)  # fmt: skip


def tensor_tensor_scan(
    dst: NkiTensor,
    data0: NkiTensor,
    data1: NkiTensor,
    initial: Any,
    op0: Any,
    op1: Any,
    reverse0: bool = False,
    reverse1: bool = False,
    name: str | None = None,
) -> Any:
    """``r[i] = op1(op0(data0[i], r[i-1]), data1[i])`` along each partition, ``r[-1] = initial``, in float32.

    initial: a number or a (P, 1) tile. reverse0 and reverse1 swap the operands of op0 and op1.
    """
    this = "tensor_tensor_scan"
    check.on_chip(this, dst=dst, data0=data0, data1=data1)
    check.same_size(this, dst, data0=data0, data1=data1)
    check.not_both_psum(this, "data0", data0, "data1", data1)
    check.same_start(this, "data0", data0, "data1", data1)
    first, second = check.vector_op(this, "op0", op0), check.vector_op(this, "op1", op1)
    reads = {"data0": data0, "data1": data1}
    if check.scalar_operand(this, "initial", initial, data0.shape[0], None):
        reads["initial"] = initial

    def compute() -> None:
        dst.write(scan(rows(data0), rows(data1), scalar(initial), first, second, reverse0, reverse1))

    return issue(this, "vector", reads, {"dst": dst}, compute, {"op0": first.name, "op1": second.name}, name)


def scan(
    data0: Array,
    data1: Array,
    initial: Any,
    first: AluOp,
    second: AluOp,
    reverse0: bool = False,
    reverse1: bool = False,
) -> Array:
    """The recurrence over rows (P, N), one column at a time in float32.

    Columns are first made contiguous, so that a step is two NumPy calls on P numbers.
    """
    a, b = np.ascontiguousarray(data0.T), np.ascontiguousarray(data1.T)
    result = np.empty(a.shape, np.float32)
    state: Array = np.broadcast_to(np.asarray(initial, np.float32).reshape(-1), a.shape[1:])
    if isinstance(first.compute, np.ufunc) and isinstance(second.compute, np.ufunc) and not (reverse0 or reverse1):
        product = np.empty(a.shape[1:], np.float32)
        for a_i, b_i, out in zip(a, b, result, strict=True):
            first.compute(a_i, state, out=product)
            second.compute(product, b_i, out=out)
            state = out
        return result.T
    for i in range(len(a)):
        inner = first.compute(state, a[i]) if reverse0 else first.compute(a[i], state)
        result[i] = state = second.compute(b[i], inner) if reverse1 else second.compute(inner, b[i])
    return result.T


def tensor_scalar_cumulative(
    dst: NkiTensor,
    src: NkiTensor,
    op0: Any,
    op1: Any,
    imm0: Any,
    imm1: Any = None,
    reduce_cmd: Command = Command.reset_reduce,
    name: str | None = None,
) -> Any:
    """``register = op1(op0(src[i], imm0), register); dst[i] = register`` along each partition, in float32.

    The register starts at the identity of op1, at imm1 (load_reduce), or at its value from the chain (reduce).
    """
    this = "tensor_scalar_cumulative"
    check.on_chip(this, dst=dst, src=src)
    check.same_size(this, dst, src=src)
    check.dtype_in(this, CUMULATIVE_DTYPES, 32, dst=dst, src=src)
    alu = check.vector_op(this, "op0", op0)
    running = check.one_of(this, "op1", op1, CUMULATIVE_OPS, 29)
    reads = {"src": src}
    for role, value in (("imm0", imm0), ("imm1", imm1)):
        if value is not None and check.scalar_operand(this, role, value, src.shape[0]):
            reads[role] = value
    if imm0 is None:
        check.refuse(this, "imm0 is None; a number or a (P, 1) tile is needed", 28)
    check_command(this, reduce_cmd, RUNNING)
    if (reduce_cmd is Command.load_reduce) != (imm1 is not None):
        check.refuse(this, f"reduce_cmd.{reduce_cmd.name} with imm1={imm1!r}; load_reduce, and only it, needs imm1", 29)
    registers, lanes = accumulators("vector"), src.partitions
    registers.begin(this, reduce_cmd, running, src)

    def compute() -> None:
        held = registers.values[slice(*lanes)]
        start = held if reduce_cmd is Command.reduce else running.identity if imm1 is None else scalar(imm1)
        values = alu.compute(rows(src), scalar(imm0))
        result = cumulate(running, values, start)
        dst.write(result)
        held[...] = result[:, -1:]

    options = {"op0": alu.name, "op1": running.name}
    return issue(this, "vector", reads, {"dst": dst}, compute, options, name, state="vector accumulators")


def cumulate(op: AluOp, values: Array, start: Any) -> Array:
    """Every partial result of ``register = op(value, register)`` along rows (P, N)."""
    if op.name == "subtract":  # does not commute: value - register
        zeros = np.broadcast_to(np.float32(0), values.shape)
        return scan(values, zeros, start, op, ALU["add"])
    extended = np.empty((values.shape[0], values.shape[1] + 1), np.float32)
    extended[:, :1] = start
    extended[:, 1:] = values
    assert op.reduce is not None
    result: Array = op.reduce.accumulate(extended, axis=1)
    return result[:, 1:]
