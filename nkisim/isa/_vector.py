"""Elementwise instructions of VectorEngine, some of which also run on GpSimd and Scalar Engine."""

from __future__ import annotations

from typing import Any

import numpy as np

from nkisim.chip.context import hardware, issue
from nkisim.chip.dtypes import INTEGERS, Array
from nkisim.chip.operators import AluOp
from nkisim.chip.record import Engine as EngineName
from nkisim.chip.tensor import NkiTensor
from nkisim.isa import _checks as check
from nkisim.isa._enums import engine as Engine
from nkisim.isa._lanes import bit_rows, raw_rows, rows, scalar, values, write_bits, write_integers

__all__ = ["reciprocal", "scalar_tensor_tensor", "tensor_scalar", "tensor_tensor"]

SCALAR_ENGINE_PAIRS = frozenset({("multiply", "add"), ("multiply", None), ("add", None)})
"""The operators that ScalarEngine of trn2 executes in tensor_scalar (nki.isa.tensor_scalar)."""


def tensor_tensor(
    dst: NkiTensor,
    data1: NkiTensor,
    data2: NkiTensor,
    op: Any,
    engine: Engine = Engine.unknown,
    name: str | None = None,
) -> Any:
    """``dst = data1 op data2`` on tiles (P, F...), elementwise and without broadcasting.

    Arithmetic is float32, but exact on GpSimd Engine if all tiles are int32 or uint32.
    """
    this = "tensor_tensor"
    check.on_chip(this, dst=dst, data1=data1, data2=data2)
    check.same_size(this, dst, data1=data1, data2=data2)
    alu = check.alu_op(this, "op", op)
    if alu.unary:
        check.refuse(this, f"op=nl.{alu.name} takes one operand; a binary operator is needed", 28)
    tiles = {"dst": dst, "data1": data1, "data2": data2}
    integers = all(tile.dtype in check.INT32 for tile in tiles.values())
    where = _tensor_tensor_engine(this, alu, engine, integers, tiles)
    if where == "gpsimd" and hardware().generation < 3 and not integers and not alu.gpsimd_only:
        check.refuse(this, "NCC_IXCG965: on trn1 GpSimd Engine adds no floating-point tiles; use vector", 30)
    check.not_both_psum(this, "data1", data1, "data2", data2)
    check.same_start(this, "data1", data1, "data2", data2)
    if alu.kind == "bitvec":
        check.bit_patterns(this, **tiles)

        def compute() -> None:
            write_bits(dst, _bitwise(this, alu, bit_rows(data1), bit_rows(data2)))

    elif integers and where == "gpsimd" and alu.name != "power":

        def compute() -> None:
            exact = alu.compute(raw_rows(data1).astype(np.int64), raw_rows(data2).astype(np.int64))
            write_integers(this, dst, exact)

    else:

        def compute() -> None:
            if data1.shape == data2.shape == dst.shape:
                dst.write(alu.compute(values(data1), values(data2)))
            else:
                dst.write(alu.compute(rows(data1), rows(data2)))

    return issue(this, where, {"data1": data1, "data2": data2}, {"dst": dst}, compute, {"op": alu.name}, name)


def _tensor_tensor_engine(
    this: str, alu: AluOp, engine: Engine, integers: bool, tiles: dict[str, NkiTensor]
) -> EngineName:
    """The executing engine: GpSimd for power and 32-bit integers, otherwise VectorEngine."""
    if alu.kind == "bitvec":
        return check.one_engine(this, engine, ("vector",), "vector")
    if alu.gpsimd_only:
        where = check.one_engine(this, engine, ("gpsimd",), "gpsimd")
    else:
        in_sbuf = all(tile.storage.buffer == "sbuf" for tile in tiles.values())
        where = check.one_engine(this, engine, ("vector", "gpsimd"), "gpsimd" if integers and in_sbuf else "vector")
    if where == "gpsimd":
        check.sbuf_only(this, **tiles)
    return where


def _bitwise(this: str, alu: AluOp, a: Array, b: Array) -> Array:
    """A bit operator on unsigned bit patterns; refuses shifts by the width or more (no documented result)."""
    if alu.name in ("left_shift", "right_shift"):
        width = 8 * a.dtype.itemsize
        amount = np.asarray(b)
        if amount.size and int(amount.max()) >= width:
            check.refuse(this, f"nl.{alu.name} by {int(amount.max())} of {width}-bit elements; less is needed", 28)
    return alu.compute(a, b)


# --- tensor and scalar ----------------------------------------------------------------------------------


def tensor_scalar(
    dst: NkiTensor,
    data: NkiTensor,
    op0: Any,
    operand0: Any,
    reverse0: bool = False,
    op1: Any = None,
    operand1: Any = None,
    reverse1: bool = False,
    engine: Engine = Engine.unknown,
    name: str | None = None,
) -> Any:
    """``dst = (data op0 operand0) op1 operand1``; operands are numbers or (P, 1) tiles.

    Arithmetic operators compute in float32 with float32 operands, bit operators with integers.
    """
    this = "tensor_scalar"
    check.on_chip(this, dst=dst, data=data)
    check.same_size(this, dst, data=data)
    if (op1 is None) != (operand1 is None):
        check.refuse(this, f"op1 is {op1!r} and operand1 {operand1!r}; give both or neither", 28)
    first = check.alu_op(this, "op0", op0)
    second = None if op1 is None else check.alu_op(this, "op1", op1, first.kind)
    where = _tensor_scalar_engine(this, first, second, engine)
    reads = {"data": data}
    dtypes = check.FLOAT32 if first.kind == "arithmetic" else INTEGERS
    steps = []
    given = (("operand0", first, operand0, reverse0), ("operand1", second, operand1, reverse1))
    for role, alu, value, reverse in given:
        if alu is not None:
            steps.append((alu, _operand(this, role, alu, value, data, dtypes, reads), reverse))
    if where == "gpsimd":
        check.sbuf_only(this, dst=dst, **reads)
    if first.kind == "bitvec":
        check.bit_patterns(this, dst=dst, **reads)

        def compute() -> None:
            bits = bit_rows(data)
            for alu, value, reverse in steps:
                pattern = _pattern(value, bits)
                bits = _bitwise(this, alu, pattern, bits) if reverse else _bitwise(this, alu, bits, pattern)
            write_bits(dst, bits)

    else:

        def compute() -> None:
            x = rows(data)
            for alu, value, reverse in steps:
                x = alu.compute(scalar(value), x) if reverse else alu.compute(x, scalar(value))
            dst.write(x)

    options = {"op0": first.name, "op1": None if second is None else second.name}
    return issue(this, where, reads, {"dst": dst}, compute, options, name)


def _tensor_scalar_engine(this: str, first: AluOp, second: AluOp | None, engine: Engine) -> EngineName:
    """The engine on which tensor_scalar runs with these operators on this target."""
    names = (first.name, None if second is None else second.name)
    if "power" in names:
        check.refuse(this, "nl.power runs on GpSimd Engine, with constants only for nl.rsqrt; use tensor_tensor", 28)
    if "rsqrt" in names:
        return check.one_engine(this, engine, ("gpsimd",), "gpsimd")
    if engine is not Engine.scalar or first.kind == "bitvec":
        return check.one_engine(this, engine, ("vector",), "vector")
    check.needs_generation(this, 3, "ScalarEngine")
    if hardware().generation == 3 and names not in SCALAR_ENGINE_PAIRS:
        check.refuse(this, f"ScalarEngine of trn2 does multiply-add, multiply and add, not {names}", 30)
    return "scalar"


def _operand(
    this: str, role: str, alu: AluOp, value: Any, data: NkiTensor, dtypes: frozenset[str], reads: dict[str, NkiTensor]
) -> Any:
    """Check one operand, add it to the reads if it is a tile, and return the operand for compute."""
    if alu.unary:
        if value is not None and (isinstance(value, NkiTensor) or value != 0):
            check.refuse(this, f"{role} is {value!r} for the unary nl.{alu.name}; None or 0 is needed", 28)
        return 0
    if check.scalar_operand(this, role, value, data.shape[0], dtypes):
        reads[role] = value
    elif dtypes is not check.FLOAT32:
        bits = 8 * data.itemsize
        check.whole_number(this, role, value, -(2 ** (bits - 1)), 2**bits - 1)
    return value


def _pattern(value: Any, like: Array) -> Array:
    """A bit operand, constant or (P, 1) tile, as unsigned integers of the width of ``like``."""
    if isinstance(value, NkiTensor):
        return bit_rows(value)
    mask = (1 << (8 * like.dtype.itemsize)) - 1
    return np.asarray(int(value) & mask, like.dtype)


def scalar_tensor_tensor(
    dst: NkiTensor,
    data: NkiTensor,
    op0: Any,
    operand0: Any,
    op1: Any,
    operand1: NkiTensor,
    reverse0: bool = False,
    reverse1: bool = False,
    name: str | None = None,
) -> Any:
    """``dst = (data op0 operand0) op1 operand1``, operand0 a number or (P, 1) tile, operand1 a tile like data.

    Computed in float32. Rounding of the intermediate result is undocumented on the hardware; here it is rounded.
    """
    this = "scalar_tensor_tensor"
    check.on_chip(this, dst=dst, data=data, operand1=operand1)
    check.same_size(this, dst, data=data, operand1=operand1)
    check.not_both_psum(this, "data", data, "operand1", operand1)
    check.same_start(this, "data", data, "operand1", operand1)
    first = check.vector_op(this, "op0", op0)
    second = check.vector_op(this, "op1", op1)
    reads = {"data": data, "operand1": operand1}
    if check.scalar_operand(this, "operand0", operand0, data.shape[0], None):
        reads["operand0"] = operand0

    def compute() -> None:
        x, constant, other = rows(data), scalar(operand0), rows(operand1)
        x = first.compute(constant, x) if reverse0 else first.compute(x, constant)
        dst.write(second.compute(other, x) if reverse1 else second.compute(x, other))

    return issue(this, "vector", reads, {"dst": dst}, compute, {"op0": first.name, "op1": second.name}, name)


def reciprocal(dst: NkiTensor, data: NkiTensor, name: str | None = None) -> Any:
    """``dst = 1 / data`` in float32 on VectorEngine; no limit on the range of data is documented."""
    this = "reciprocal"
    check.on_chip(this, dst=dst, data=data)
    check.same_size(this, dst, data=data)

    def compute() -> None:
        dst.write(np.float32(1) / rows(data))

    return issue(this, "vector", {"data": data}, {"dst": dst}, compute, {}, name)
