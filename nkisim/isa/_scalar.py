"""ScalarEngine: activation functions with scale, bias and an optional sum over the free dimensions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from nkisim.chip.context import current, hardware, note
from nkisim.chip.dtypes import STORAGE, Array
from nkisim.chip.operators import ALU, Activation
from nkisim.chip.tensor import NkiTensor
from nkisim.isa import _checks as check
from nkisim.isa._accumulators import check_command, issue_running
from nkisim.isa._enums import reduce_cmd as Command
from nkisim.isa._lanes import rows, scalar

__all__ = ["activate2", "activation", "activation_reduce"]

BIAS_DTYPES = frozenset(STORAGE) - {"tfloat32"}
ACTIVATION_COMMANDS = (Command.idle, Command.reset, Command.reduce, Command.reset_reduce)
REDUCING = (Command.reduce, Command.reset_reduce)
ACTIVATE2_PAIRS = frozenset(
    {
        ("multiply", "add"),
        ("multiply", "subtract"),
        ("multiply", "bypass"),
        ("add", "bypass"),
        ("subtract", "bypass"),
        ("bypass", "bypass"),
    }
)
ACTIVATE2_REDUCTIONS = ("add", "maximum", "minimum", "abs_max", "abs_min")


def activation(
    dst: NkiTensor,
    op: Any,
    data: NkiTensor,
    bias: Any = None,
    scale: Any = 1.0,
    reduce_op: Any = None,
    reduce_res: NkiTensor | None = None,
    reduce_cmd: Command = Command.idle,
    name: str | None = None,
) -> Any:
    """``dst = op(data * scale + bias)`` in float32; optionally sums each partition into the registers.

    scale: float32 number or (P, 1) tile. bias: number (on trn1 only for nl.copy) or (P, 1) tile of any dtype except
    tfloat32. reduce_res (P, 1) receives the registers after the instruction.
    """
    return _activation("activation", dst, op, data, bias, scale, reduce_op, reduce_res, reduce_cmd, name)


def activation_reduce(
    dst: NkiTensor,
    op: Any,
    data: NkiTensor,
    reduce_op: Any,
    reduce_res: NkiTensor | None,
    bias: Any = None,
    scale: Any = 1.0,
    name: str | None = None,
) -> Any:
    """``activation`` with reduce_cmd.reset_reduce: ``reduce_res = sum(op(data * scale + bias))`` (P, 1)."""
    reset_reduce = Command.reset_reduce
    return _activation("activation_reduce", dst, op, data, bias, scale, reduce_op, reduce_res, reset_reduce, name)


def _activation(
    this: str,
    dst: NkiTensor,
    op: Any,
    data: NkiTensor,
    bias: Any,
    scale: Any,
    reduce_op: Any,
    reduce_res: NkiTensor | None,
    cmd: Command,
    name: str | None,
) -> Any:
    check.on_chip(this, dst=dst, data=data)
    check.same_size(this, dst, data=data)
    function = _function(this, op)
    reads = {"data": data}
    if check.scalar_operand(this, "scale", scale, data.shape[0]):
        reads["scale"] = scale
    if bias is not None:
        _check_bias(this, function, bias, data)
        if isinstance(bias, NkiTensor):
            reads["bias"] = bias
    if reduce_op is not None:
        check.one_of(this, "reduce_op", reduce_op, ("add",), 29)
    check_command(this, cmd, ACTIVATION_COMMANDS)
    if cmd in REDUCING and reduce_op is None:
        check.refuse(this, f"reduce_cmd.{cmd.name} without reduce_op; reduce_op=nl.add is needed", 29)

    warn = current().domains == "warn"

    def evaluate() -> Array:
        x = rows(data)
        if isinstance(scale, NkiTensor) or scale != 1.0:
            x = x * scalar(scale)
        return apply(this, function, x if bias is None else x + scalar(bias), function.compute, warn)

    options = {"op": function.name, "table": function.table}
    if cmd in REDUCING:
        options["reduce_cmd"] = cmd.name
    return issue_running("scalar", this, dst, data, evaluate, ALU["add"], cmd, reduce_res, reads, options, name)


def _function(this: str, op: Any) -> Activation:
    function = check.activation_function(this, op)
    if function.name == "prelu":
        check.refuse(this, "op=nl.prelu has a parameter, which only activate2 passes (trn3)", 30)
    return function


def _check_bias(this: str, function: Activation, bias: Any, data: NkiTensor) -> None:
    is_tile = check.scalar_operand(this, "bias", bias, data.shape[0], BIAS_DTYPES)
    if hardware().generation > 2:
        return
    if function.name == "copy":  # on trn1 its bias must be a number; all others need a tile (docs/hardware.md)
        if is_tile:
            check.refuse(this, "op=nl.copy takes no tile as bias on trn1 (NCC_IBVF043); a number is needed", 30)
        return
    if not is_tile:
        check.refuse(this, f"bias is the number {bias!r}; on trn1 a ({data.shape[0]}, 1) tile is needed", 30)
    if function.name == "reciprocal":
        check.refuse(this, "op=nl.reciprocal takes no bias on trn1", 30)


def apply(this: str, function: Activation, x: Array, compute: Callable[[Array], Array], warn: bool) -> Array:
    """``compute(x)``; if ``warn``, the documented extrapolation outside the fitted range."""
    outside = check_domain(this, function, x, warn) if function.bounded else None
    y = compute(x)
    if outside is None or function.extrapolate is None:
        return y
    return np.where(outside, function.extrapolate(x), y)


def check_domain(this: str, function: Activation, x: Array, warn: bool = False) -> Array | None:
    """Refuse input outside the fitted range of a function or, if ``warn``, note it and return its mask.

    After a read of uninitialised memory, the first run holds NaN there and the second run other numbers (launch.py).
    Each run then ignores inputs that such memory may have caused.
    """
    if function.covers(x):
        return None
    outside, launch = function.outside(x), current().launch
    if launch.garbage:
        outside &= np.isnan(x) if launch.other else ~np.isnan(x)
        if not outside.any():
            return None
    place = np.unravel_index(int(outside.argmax()), outside.shape)
    reach = f"{'|x| in ' if function.symmetric else ''}[{function.low:g}, {function.high:g}]"
    message = (
        f"op=nl.{function.name} of {x[place]:g} at partition {place[0]}, element {place[1]}: the valid input range is "
        f"{reach}, outside it the result is garbage"
    )
    if not warn:
        check.refuse(this, message, 33)
    note(33, f"{this}: {message}")
    return outside


# --- trn3 -----------------------------------------------------------------------------------------------


def activate2(
    dst: NkiTensor,
    op: Any,
    data: NkiTensor,
    imm0: Any,
    imm1: Any,
    op0: Any,
    op1: Any,
    relu_param: Any = 0.0,
    reverse0: bool = False,
    reverse1: bool = False,
    reduce_op: Any = None,
    reduce_res: NkiTensor | None = None,
    reduce_cmd: Command = Command.idle,
    name: str | None = None,
) -> Any:
    """``dst = op((data op0 imm0) op1 imm1)`` on trn3, optionally reduced over each partition.

    imm0, imm1 and relu_param are numbers or (P, 1) tiles; (op0, op1) is one of six documented pairs.
    """
    this = "activate2"
    check.needs_generation(this, 4)
    check.on_chip(this, dst=dst, data=data)
    check.same_size(this, dst, data=data)
    function = check.activation_function(this, op)
    pair = (check.operator_name(this, "op0", op0), check.operator_name(this, "op1", op1))
    if pair not in ACTIVATE2_PAIRS:
        check.refuse(this, f"(op0, op1) = {pair}; one of {sorted(ACTIVATE2_PAIRS)} is needed", 28)
    reads = {"data": data}
    for role, value, step, reverse in (("imm0", imm0, pair[0], reverse0), ("imm1", imm1, pair[1], reverse1)):
        if check.scalar_operand(this, role, value, data.shape[0], None):
            reads[role] = value
        if reverse and step == "bypass":
            check.refuse(this, f"reverse{role[-1]}=True needs op{role[-1]}; it is nl.bypass", 28)
    if isinstance(imm0, NkiTensor) and isinstance(imm1, NkiTensor):
        check.same_dtype(this, imm0, 28, imm1=imm1)
    if check.scalar_operand(this, "relu_param", relu_param, data.shape[0], None):
        reads["relu_param"] = relu_param
    reduction = ALU["add"]
    if reduce_op is not None:
        reduction = check.one_of(this, "reduce_op", reduce_op, ACTIVATE2_REDUCTIONS, 29)
    check_command(this, reduce_cmd, ACTIVATION_COMMANDS)
    if reduce_cmd in REDUCING and reduce_op is None:
        check.refuse(this, f"reduce_cmd.{reduce_cmd.name} without reduce_op", 29)

    warn = current().domains == "warn"

    def compute(x: Array) -> Array:
        return np.where(x >= 0, x, scalar(relu_param) * x) if function.name == "prelu" else function.compute(x)

    def evaluate() -> Array:
        x = rows(data)
        for step, value, reverse in ((pair[0], imm0, reverse0), (pair[1], imm1, reverse1)):
            if step != "bypass":
                alu = ALU[step]
                x = alu.compute(scalar(value), x) if reverse else alu.compute(x, scalar(value))
        return apply(this, function, x, compute, warn)

    options = {"op": function.name, "op0": pair[0], "op1": pair[1], "table": function.table}
    return issue_running("scalar", this, dst, data, evaluate, reduction, reduce_cmd, reduce_res, reads, options, name)
