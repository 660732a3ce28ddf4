"""The instructions of Python code that call functions, and those that loaded the functions."""

from __future__ import annotations

import dis

CALLS = frozenset(code for name, code in dis.opmap.items() if name in ("CALL", "CALL_KW", "PRECALL"))


def callee(steps: list[dis.Instruction], call: int) -> int | None:
    """The index of the instruction that loaded the callee of ``call``; the arguments are above it on the stack."""
    left = (steps[call].arg or 0) + (steps[call].opname == "CALL_KW")
    start = call - (call > 0 and steps[call - 1].opname == "PRECALL") - 1
    for i in range(start, -1, -1):
        if left > 0:
            left -= dis.stack_effect(steps[i].opcode, steps[i].arg, jump=False)
        elif steps[i].opname not in ("PUSH_NULL", "KW_NAMES"):
            return i
    return None
