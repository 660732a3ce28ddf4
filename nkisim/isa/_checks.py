"""Constraints shared by instructions of Vector, Scalar and GpSimd Engine; each function checks one."""

from __future__ import annotations

from collections.abc import Collection
from enum import Enum
from typing import Any, NoReturn, TypeVar, cast

import numpy as np

from nkisim.chip.context import hardware
from nkisim.chip.dtypes import INTEGERS
from nkisim.chip.errors import SimulatorError
from nkisim.chip.operators import ACTIVATIONS, ALIASES, ALU, NO_SUCH_INSTRUCTION, Activation, AluOp, Kind
from nkisim.chip.record import Engine as EngineName
from nkisim.chip.tensor import NkiTensor
from nkisim.isa._enums import engine as Engine

E = TypeVar("E", bound=Enum)
INT32 = frozenset({"int32", "uint32"})
FLOAT32 = frozenset({"float32"})


def refuse(instruction: str, problem: str, rule: int | None = None) -> NoReturn:
    """Raise for a broken constraint, with the argument, the requirement, and the rule's number in rules.RULES."""
    raise SimulatorError(f"{instruction}: {problem}", rule=rule)


def choose(names: Collection[str]) -> str:
    return " or ".join(sorted(names))


# --- the target -----------------------------------------------------------------------------------------


def needs_generation(instruction: str, needed: int, what: str = "the instruction") -> None:
    """Refuse a NeuronCore older than generation ``needed``."""
    if hardware().generation < needed:
        refuse(instruction, f"{what} needs NeuronCore-v{needed} (trn{needed - 1}); the target is {hardware().name}", 30)


def member(instruction: str, role: str, value: Any, kind: type[E]) -> E:
    """A member of an enumeration, given as a member or, as the compiler allows, as its number."""
    if isinstance(value, kind):
        return value
    if isinstance(value, int) and not isinstance(value, bool) and value in {m.value for m in kind}:
        return kind(value)
    names = ", ".join(f"{m.value} {m.name}" for m in kind)
    refuse(instruction, f"{role}={value!r}; a member of nisa.{kind.__name__} is needed: {names}", 10)


def one_engine(instruction: str, engine: Any, allowed: Collection[str], default: EngineName) -> EngineName:
    """The requested engine, if the instruction runs on it; ``default`` for nisa.engine.unknown."""
    engine = member(instruction, "engine", engine, Engine)
    if engine is Engine.unknown:
        return default
    if engine.name not in allowed:
        refuse(instruction, f"engine={engine.name}; {choose(allowed)} is needed on {hardware().name}", 30)
    return cast(EngineName, engine.name)


# --- operands -------------------------------------------------------------------------------------------


def on_chip(instruction: str, **operands: Any) -> None:
    """Refuse operands other than tiles in SBUF and PSUM: compute engines access nothing else."""
    for role, tensor in operands.items():
        if not isinstance(tensor, NkiTensor):
            refuse(instruction, f"{role} is {tensor!r}; a tile in SBUF or PSUM is needed")
        if tensor.storage.buffer == "hbm":
            refuse(instruction, f"{role} is in HBM; copy it to SBUF with nisa.dma_copy first")


def same_size(instruction: str, dst: NkiTensor, **sources: NkiTensor) -> None:
    """Refuse a source whose partitions or elements per partition differ from dst: nothing broadcasts."""
    shape = dst.shape
    for role, source in sources.items():
        if source.shape == shape:
            continue
        if source.shape[0] != shape[0] or source.free_size != dst.free_size:
            refuse(
                instruction,
                f"{role} {source.shape} does not match dst {shape}: the same partitions and elements per partition "
                "are needed; nothing broadcasts, use .broadcast on a free dimension",
                28,
            )


def same_start(instruction: str, a: str, first: NkiTensor, b: str, second: NkiTensor) -> None:
    """Refuse two SBUF inputs with different start partitions: the same lanes read both."""
    if first.storage.buffer == second.storage.buffer == "sbuf" and first.partitions[0] != second.partitions[0]:
        refuse(
            instruction,
            f"{a} starts at partition {first.partitions[0]} and {b} at {second.partitions[0]}; two SBUF inputs must "
            "start at the same one, copy one of them",
            13,
        )


def not_both_psum(instruction: str, a: str, first: NkiTensor, b: str, second: NkiTensor) -> None:
    """Refuse two inputs in PSUM: VectorEngine reads PSUM through one port."""
    if first.storage.buffer == second.storage.buffer == "psum":
        refuse(instruction, f"{a} and {b} are both in PSUM; at most one may be, copy the other to SBUF", 27)


def sbuf_only(instruction: str, **operands: NkiTensor) -> None:
    """Refuse operands outside SBUF: GpSimd Engine cannot access PSUM."""
    for role, tensor in operands.items():
        if tensor.storage.buffer != "sbuf":
            refuse(instruction, f"{role} is in {tensor.storage.buffer.upper()}; GpSimd Engine reaches SBUF only", 27)


def dtype_in(instruction: str, allowed: Collection[str], rule: int | None = None, **operands: NkiTensor) -> None:
    """Refuse an operand whose dtype is not allowed."""
    for role, tensor in operands.items():
        if tensor.dtype not in allowed:
            refuse(instruction, f"{role} is {tensor.dtype}; {choose(allowed)} is needed", rule)


def same_dtype(instruction: str, dst: NkiTensor, rule: int | None = None, **sources: NkiTensor) -> None:
    """Refuse different dtypes: instructions that move bits do not cast."""
    for role, source in sources.items():
        if source.dtype != dst.dtype:
            refuse(instruction, f"{role} is {source.dtype} and dst is {dst.dtype}; the same dtype is needed", rule)


def per_partition(instruction: str, role: str, tensor: Any, partitions: int, elements: int = 1) -> None:
    """Refuse a tile whose shape is not (partitions, elements)."""
    on_chip(instruction, **{role: tensor})
    if tensor.shape[0] != partitions or tensor.free_size != elements:
        refuse(instruction, f"{role} has shape {tensor.shape}; ({partitions}, {elements}) is needed", 28)


def scalar_operand(
    instruction: str, role: str, value: Any, partitions: int, dtypes: Collection[str] | None = FLOAT32
) -> bool:
    """Check a compile-time number or a (partitions, 1) tile; returns True for a tile."""
    if isinstance(value, NkiTensor):
        per_partition(instruction, role, value, partitions)
        if dtypes is not None and value.dtype not in dtypes:
            refuse(instruction, f"{role} is {value.dtype}; {choose(dtypes)} is needed", 28)
        return True
    if isinstance(value, bool) or not isinstance(value, (int, float, np.floating, np.integer)):
        refuse(instruction, f"{role} is {value!r}; a number or a ({partitions}, 1) tile is needed", 28)
    return False


def whole_number(instruction: str, role: str, value: Any, low: int = -(2**31), high: int = 2**31 - 1) -> int:
    """A compile-time integer within [low, high]."""
    if isinstance(value, bool) or not isinstance(value, (int, np.integer)) or not low <= value <= high:
        refuse(instruction, f"{role} is {value!r}; an integer from {low} to {high} is needed")
    return int(value)


# --- operators ------------------------------------------------------------------------------------------


LANGUAGE = "nkisim.language"


def operator_name(instruction: str, role: str, op: Any) -> str:
    """The name of an operator given as a function of nki.language (``nl.add``); np.add and strings are refused."""
    name = getattr(op, "__name__", None)
    if not isinstance(name, str) or not (getattr(op, "__module__", None) or "").startswith(LANGUAGE):
        shown = name or op
        refuse(instruction, f"{role} is {shown!r}; an operator of nki.language such as nl.add is needed", 3)
    return name


def alu_op(instruction: str, role: str, op: Any, kind: Kind | None = None) -> AluOp:
    """The operator that a function such as ``nl.add`` names, if this target has it."""
    name = operator_name(instruction, role, op)
    name = ALIASES.get(name, name)
    if name in NO_SUCH_INSTRUCTION:
        refuse(instruction, f"{role}=nl.{name}: no engine has it; {NO_SUCH_INSTRUCTION[name]}", 34)
    found = ALU.get(name)
    if found is None:
        refuse(instruction, f"{role}=nl.{name} is not an operator of nki.api.shared", 28)
    if found.generation > hardware().generation:
        refuse(instruction, f"{role}=nl.{name} needs trn{found.generation - 1}; the target is {hardware().name}", 30)
    if kind is not None and found.kind != kind:
        refuse(instruction, f"{role}=nl.{name} is {found.kind}; an operator of kind {kind} is needed", 28)
    return found


def vector_op(instruction: str, role: str, op: Any, kind: Kind | None = "arithmetic", unary: bool = False) -> AluOp:
    """An operator that VectorEngine executes; a unary one only if allowed."""
    found = alu_op(instruction, role, op, kind)
    if found.gpsimd_only:
        refuse(instruction, f"{role}=nl.{found.name} runs on GpSimd Engine only", 28)
    if found.unary and not unary:
        refuse(instruction, f"{role}=nl.{found.name} takes one operand; a binary operator is needed", 28)
    return found


def reduce_op(instruction: str, role: str, op: Any, kind: Kind | None = None) -> AluOp:
    """A legal reduction operator (last column of the table in nki.api.shared.rst)."""
    found = alu_op(instruction, role, op, kind)
    if found.reduce is None:
        refuse(instruction, f"{role}=nl.{found.name} does not reduce; a legal reduction operator is needed", 28)
    return found


def one_of(instruction: str, role: str, op: Any, allowed: Collection[str], rule: int | None = 28) -> AluOp:
    """An operator among the few that the instruction accepts."""
    found = alu_op(instruction, role, op)
    if found.name not in allowed:
        refuse(instruction, f"{role}=nl.{found.name}; nl.{' or nl.'.join(sorted(allowed))} is needed", rule)
    return found


def activation_function(instruction: str, op: Any) -> Activation:
    """The function that an operator such as ``nl.exp`` names."""
    name = operator_name(instruction, "op", op)
    found = ACTIVATIONS.get(name)
    if found is None:
        refuse(instruction, f"op=nl.{name} is not a function of ScalarEngine (nki.api.shared)", 28)
    return found


def bit_patterns(instruction: str, **operands: NkiTensor) -> None:
    """Refuse operands of different widths or other than integers: bitvec operators do not cast."""
    dtype_in(instruction, INTEGERS, 28, **operands)
    if len({tensor.itemsize for tensor in operands.values()}) > 1:
        found = ", ".join(f"{role} {tensor.dtype}" for role, tensor in operands.items())
        refuse(instruction, f"bit patterns of different widths ({found}); bitvec operators do not cast", 28)
