"""The 128 reduction registers of VectorEngine and of ScalarEngine, and the rules for reduction chains.

Each lane has a float32 register, which keeps its value between instructions. A chain starts with a
reset or a load and continues with ``reduce_cmd.reduce``, the same operator and the same lanes; any
other use of the registers ends it (nki.isa.exponential, nki.isa.activation).
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any, Literal

import numpy as np

from nkisim.chip.context import current, issue, note
from nkisim.chip.dtypes import Array
from nkisim.chip.operators import AluOp
from nkisim.chip.tensor import NkiTensor
from nkisim.hardware import PARTITIONS
from nkisim.isa._checks import choose, per_partition, refuse, scalar_operand
from nkisim.isa._enums import reduce_cmd as Command
from nkisim.isa._lanes import scalar

Lanes = tuple[int, int]  # first partition, one past the last


class Accumulators:
    """Registers of one engine of one core: ``values`` at run time, and the open chain while issuing."""

    __slots__ = ("idle_clobbers", "lanes", "op", "values")

    def __init__(self, idle_clobbers: bool) -> None:
        self.idle_clobbers = idle_clobbers  # on VectorEngine even an idle instruction may change them
        self.values = np.full((PARTITIONS, 1), np.nan, np.float32)
        self.op: str | None = None  # operator of the open chain; None while the contents are unknown
        self.lanes: Lanes = (0, 0)

    def begin(self, instruction: str, cmd: Command, op: AluOp | None, tile: NkiTensor) -> None:
        """Update the chain for one instruction; refuse to continue a chain that is not open."""
        if cmd is Command.idle:
            if self.idle_clobbers:
                self.op = None
            return
        name = "add" if op is None else op.name
        if cmd is not Command.reduce:
            self.op, self.lanes = name, tile.partitions
        elif self.op is None:
            refuse(
                instruction,
                "reduce_cmd.reduce continues a chain, but none is open: begin it with reduce_cmd.reset_reduce, and "
                "let no other instruction use the registers in between",
                29,
            )
        elif (self.op, self.lanes) != (name, tile.partitions):
            refuse(
                instruction,
                f"reduce_cmd.reduce with nl.{name} on partitions {tile.partitions} continues one of nl.{self.op} on "
                f"partitions {self.lanes}; a chain keeps its operator and its lanes",
                29,
            )

    def check_read(self, instruction: str, tile: NkiTensor) -> None:
        """Refuse to read reduce_res unless a chain on the same lanes is open."""
        if self.op is None or self.lanes != tile.partitions:
            refuse(instruction, "reduce_res reads registers that no chain on these partitions has filled", 29)

    def accumulate(self, cmd: Command, op: AluOp, values: Array, start: Any = 0.0, lanes: Lanes = (0, 0)) -> None:
        """Reduce float32 rows (P, N) into the registers; load_reduce loads ``start``."""
        assert op.identity is not None
        held = self.values[slice(*lanes)]
        before = held if cmd is Command.reduce else start if cmd is Command.load_reduce else op.identity
        held[...] = op.compute(np.asarray(before, np.float32), reduce_rows(op, values))


def accumulators(engine: Literal["vector", "scalar"]) -> Accumulators:
    """The registers of an engine of this core."""
    state, name = current().engine_state, f"{engine} accumulators"
    if name not in state:
        state[name] = Accumulators(idle_clobbers=engine == "vector")
    held: Accumulators = state[name]
    return held


def check_command(instruction: str, cmd: Any, allowed: Collection[Command]) -> None:
    """Refuse a command that is not documented for the instruction."""
    if cmd not in allowed:
        shown = getattr(cmd, "name", cmd)
        refuse(instruction, f"reduce_cmd={shown!r}; {choose([each.name for each in allowed])} is needed", 29)


def reduce_rows(op: AluOp, values: Array) -> Array:
    """Rows (P, N) reduced to float32 (P, 1); the order of NaN and numbers is undocumented."""
    if op.name in ("abs_max", "abs_min"):
        magnitude = np.abs(values)
        pick = magnitude.argmax(1) if op.name == "abs_max" else magnitude.argmin(1)
        return np.take_along_axis(values, pick[:, None], 1)
    assert op.reduce is not None
    result: Array = op.reduce.reduce(values, axis=1, keepdims=True)
    if op.name in ("maximum", "minimum") and np.isnan(result).any():
        note(33, f"nl.{op.name} over NaN: the order of NaN and numbers is not documented")
    return result.astype(np.float32, copy=False)


def issue_running(
    engine: Literal["vector", "scalar"],
    this: str,
    dst: NkiTensor,
    data: NkiTensor,
    evaluate: Callable[[], Array],
    reduction: AluOp,
    cmd: Command,
    reduce_res: NkiTensor | None,
    reads: dict[str, Any],
    options: dict[str, Any],
    name: str | None,
    *,
    init: Any = None,
    negate: bool = False,
) -> Any:
    """Issue ``dst = evaluate()``, float32 rows, and reduce it into the registers of the engine.

    load_reduce loads ``init``; reduce_res receives the registers, negated if requested.
    """
    if (cmd is Command.load_reduce) != (init is not None):
        refuse(this, f"reduce_cmd.{cmd.name} with an initial value {init!r}; load_reduce, and only it, needs one", 29)
    if init is not None:
        scalar_operand(this, "reduce_init", init, data.shape[0])
    registers, lanes = accumulators(engine), data.partitions
    registers.begin(this, cmd, reduction, data)
    writes = {"dst": dst}
    if reduce_res is not None:
        per_partition(this, "reduce_res", reduce_res, data.shape[0])
        registers.check_read(this, data)
        writes["reduce_res"] = reduce_res
        options["reduce_res"] = True
    used = registers.idle_clobbers or cmd is not Command.idle or reduce_res is not None

    def compute() -> None:
        start = 0.0 if init is None else scalar(init)
        values = evaluate()
        dst.write(values)
        held = registers.values[slice(*lanes)]
        if cmd is Command.reset:
            held[...] = reduction.identity
        elif cmd is not Command.idle:
            registers.accumulate(cmd, reduction, values, start, lanes)
        if reduce_res is not None:
            reduce_res.write(-held if negate else held)

    state = f"{engine} accumulators" if used else None
    return issue(this, engine, {**reads, "reduce_init": init}, writes, compute, options, name, state=state)
