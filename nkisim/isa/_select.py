"""VectorEngine instructions that select one of two values and keep a running maximum of the selection."""

from __future__ import annotations

from typing import Any

import numpy as np

from nkisim.chip.dtypes import FLOATS, STORAGE, Array
from nkisim.chip.operators import ALU
from nkisim.chip.tensor import NkiTensor
from nkisim.isa import _checks as check
from nkisim.isa._accumulators import check_command, issue_running
from nkisim.isa._enums import reduce_cmd as Command
from nkisim.isa._lanes import FLOAT32_EXACT, raw_rows, rows, scalar

__all__ = ["range_select", "select_reduce"]

FP32_MIN = np.finfo(np.float32).min
PREDICATES = frozenset({"int8", "uint8", "int16", "uint16", "bool_"})  # a bool_ is stored as uint8
ON_TRUE = frozenset(STORAGE) - {"tfloat32", "int32", "uint32"}
COMPARISONS = ("equal", "less", "less_equal", "greater", "greater_equal")
COMMANDS = (Command.idle, Command.reset_reduce, Command.reduce)


def select_reduce(
    dst: NkiTensor,
    predicate: NkiTensor,
    on_true: NkiTensor,
    on_false: Any,
    reduce_res: NkiTensor | None = None,
    reduce_cmd: Command = Command.idle,
    reduce_op: Any = None,
    reverse_pred: bool = False,
    name: str | None = None,
) -> Any:
    """``dst = where(predicate, on_true, on_false)``; optionally the maximum of each partition (P, 1).

    predicate: 8- or 16-bit integers; on_false: a number or a (P, 1) tile.
    """
    this = "select_reduce"
    check.on_chip(this, dst=dst, predicate=predicate, on_true=on_true)
    check.same_size(this, dst, predicate=predicate, on_true=on_true)
    check.dtype_in(this, PREDICATES, 36, predicate=predicate)
    check.dtype_in(this, ON_TRUE, 36, on_true=on_true)
    check.not_both_psum(this, "predicate", predicate, "on_true", on_true)
    reads = {"predicate": predicate, "on_true": on_true}
    if check.scalar_operand(this, "on_false", on_false, dst.shape[0], None):
        reads["on_false"] = on_false
    if reduce_res is not None:
        check.on_chip(this, reduce_res=reduce_res)
        check.dtype_in(this, FLOATS, 36, reduce_res=reduce_res)
    _check_maximum(this, reduce_op, reduce_cmd)

    def evaluate() -> Array:
        chosen = raw_rows(predicate) == 0 if reverse_pred else raw_rows(predicate) != 0
        return np.where(chosen, rows(on_true), scalar(on_false))

    maximum = ALU["maximum"]
    return issue_running("vector", this, dst, on_true, evaluate, maximum, reduce_cmd, reduce_res, reads, {}, name)


def range_select(
    dst: NkiTensor,
    on_true_tile: NkiTensor,
    comp_op0: Any,
    comp_op1: Any,
    bound0: NkiTensor,
    bound1: NkiTensor,
    reduce_cmd: Command = Command.reset_reduce,
    reduce_res: NkiTensor | None = None,
    reduce_op: Any = None,
    range_start: int = 0,
    on_false_value: Any = ...,
    name: str | None = None,
) -> Any:
    """on_true_tile where ``comp_op0(i, bound0) and comp_op1(i, bound1)``, ``i = range_start + column``; else FP32_MIN.

    bound0, bound1: float32 (P, 1). The maximum of each partition goes to the registers and, if given,
    to reduce_res (P, 1). trn2 and later.
    """
    this = "range_select"
    check.needs_generation(this, 3)
    check.on_chip(this, dst=dst, on_true_tile=on_true_tile)
    check.same_size(this, dst, on_true_tile=on_true_tile)
    check.dtype_in(this, FLOATS, 28, on_true_tile=on_true_tile)
    first = check.one_of(this, "comp_op0", comp_op0, COMPARISONS)
    second = check.one_of(this, "comp_op1", comp_op1, COMPARISONS)
    for role, bound in (("bound0", bound0), ("bound1", bound1)):
        check.per_partition(this, role, bound, dst.shape[0])
        check.dtype_in(this, check.FLOAT32, 28, **{role: bound})
    check.whole_number(this, "range_start", range_start, 0, FLOAT32_EXACT - dst.free_size)
    if on_false_value is not Ellipsis and on_false_value != FP32_MIN:
        check.refuse(this, f"on_false_value={on_false_value!r}; the hardware needs FP32_MIN ({FP32_MIN:.7e})", 28)
    _check_maximum(this, reduce_op, reduce_cmd)
    reads = {"on_true_tile": on_true_tile, "bound0": bound0, "bound1": bound1}

    def evaluate() -> Array:
        index = np.arange(range_start, range_start + dst.free_size, dtype=np.float32)[None, :]
        inside = first.compute(index, scalar(bound0)) * second.compute(index, scalar(bound1))
        return np.where(inside != 0, rows(on_true_tile), FP32_MIN)

    options = {"op0": first.name, "op1": second.name}
    maximum = ALU["maximum"]
    return issue_running(
        "vector", this, dst, on_true_tile, evaluate, maximum, reduce_cmd, reduce_res, reads, options, name
    )


def _check_maximum(this: str, reduce_op: Any, cmd: Command) -> None:
    """Refuse any reduction except the maximum, the only one that these instructions have."""
    if reduce_op is not None:
        check.one_of(this, "reduce_op", reduce_op, ("maximum",), 29)
    check_command(this, cmd, COMMANDS)
