"""Strictness of each rule in a run: "strict" refuses, "warn" notes, "off" ignores, "propagate" tracks garbage."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Literal, TypeAlias

from nkisim.chip.errors import SimulatorError, source_location
from nkisim.chip.record import Note

if TYPE_CHECKING:
    from nkisim.chip.interfaces import RelaxedRules

Strictness: TypeAlias = Literal["strict", "warn", "off", "propagate"]
BEYOND = 11  # more on-chip memory than the target has
UNINITIALISED = 16
BACKEND = range(40, 59)  # rules of the compiler's backend, mostly undocumented
# A run may continue after breaking these rules: the consequence is known, or the rule concerns only the program.
OPTIONAL: Mapping[int, str] = {
    5: "a compiled kernel called from a kernel runs as a function of it",
    BEYOND: "tensors beyond SBUF are spilled, and PSUM has as many banks as the tensors need",
    UNINITIALISED: "uninitialised data is NaN, or a pattern in integers",
    24: "a product is added to the contents of PSUM",
    27: "both operands are read from PSUM",
    37: "cores run one after the other",
    **dict.fromkeys(BACKEND, "the program runs as ordinary Python"),
}
"""Rules that can be relaxed, and the behaviour of a run that relaxes them."""


def checked(rules: Mapping[int, Strictness] | None) -> dict[int, Strictness]:
    """The rules that a run relaxes; SimulatorError for a rule that cannot be relaxed or an unknown mode."""
    found = dict(rules or {})
    for rule, mode in found.items():
        modes = ("strict", "warn", "off", "propagate") if rule == UNINITIALISED else ("strict", "warn", "off")
        if mode not in modes:
            raise SimulatorError(f"rule {rule}: mode {mode!r}: expected one of {', '.join(modes)}")
        if mode != "strict" and rule not in OPTIONAL:
            names = ", ".join(map(str, OPTIONAL))
            raise SimulatorError(f"rule {rule} cannot be relaxed: no run could continue. Rules that can: {names}")
    return found


def refuse(run: RelaxedRules, rule: int, message: str, file: str | None = None, line: int | None = None) -> None:
    """Raise, note or ignore a violation of ``rule``, according to the settings of the run."""
    mode = run.rules.get(rule, "strict")
    if mode == "strict":
        raise SimulatorError(message, rule=rule, file=file, line=line)
    if mode == "warn":
        doubt(run, rule, message, file, line)


def doubt(run: RelaxedRules, rule: int, message: str, file: str | None = None, line: int | None = None) -> None:
    """Note a doubt or a violation of a relaxed rule, by default at the kernel's current line."""
    place = source_location() if file is None or line is None else (file, line)
    run.notes[Note(*place, rule, message)] = None
