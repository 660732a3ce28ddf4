"""Lint of NKI kernels: documented rules, applied to the source and, if shapes are given, to a simulated launch."""

from __future__ import annotations

import dataclasses
import traceback
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from nkisim.chip.context import Mode
from nkisim.chip.dialects import DEFAULT, DIALECTS, SEVEN, Dialect
from nkisim.chip.errors import SimulatorError
from nkisim.lint.rules import DECIDED_ELSEWHERE, RULES, Finding
from nkisim.lint.source import lint_source
from nkisim.lint.trace import BANK_TAKER, from_error, lint_trace
from nkisim.run.launch import machine, run

DEFAULT_LNC = 2  # default of neuronx-cc from trn2 on (NKI 0.7 migration guide)

__all__ = [
    "DECIDED_ELSEWHERE",
    "RULES",
    "Finding",
    "environment",
    "errors",
    "lint_file",
    "lint_launch",
    "lint_source",
    "lint_trace",
]


def lint_file(path: Path, kernel: str | None = None, nki: tuple[Dialect, ...] = DIALECTS) -> tuple[Finding, ...]:
    """Findings from the text of ``path`` alone; see lint_source."""
    return lint_source(path.read_text(), str(path), kernel, nki)


def lint_launch(
    kernel: Any,
    args: tuple[Any, ...],
    kwargs: dict[str, Any] | None = None,
    target: str = "trn2",
    mode: Mode = "run",
    nki: Dialect = DEFAULT,
) -> tuple[Finding, ...]:
    """Findings of one simulated launch: the simulator's refusal, or findings on the trace.

    A refusal ends the run and is then the only finding. Correct it and run the lint again.
    """
    try:
        result = run(kernel, args, kwargs, target=target, mode=mode, nki=nki)
    except SimulatorError as error:
        found = from_error(error)
        seen = {frame.f_code.co_filename for frame, _ in traceback.walk_tb(error.__traceback__)}
        if found.line and (found.file in seen or error.__cause__):
            return (found,)
        # Refused before or after the kernel's own statements: use the kernel's first line.
        own = getattr(kernel, "function", kernel).__code__
        return (dataclasses.replace(found, file=own.co_filename, line=own.co_firstlineno),)
    return lint_trace(result.traces)


def environment(
    variables: Mapping[str, str], lnc: int = 1, target: str = "trn2", nki: tuple[Dialect, ...] = (DEFAULT,)
) -> tuple[Finding, ...]:
    """Findings on the environment variables, for a launch on ``lnc`` cores of ``target``: rules 11, 37 and 39."""
    found = []
    cores = variables.get("NEURON_LOGICAL_NC_CONFIG")
    if cores is None and lnc != DEFAULT_LNC and machine(target).generation > 2 and SEVEN in nki:
        message = (
            f"NCC_EVRF066: the kernel is for LNC {lnc}, neuronx-cc compiles for {DEFAULT_LNC} on {target}: set "
            f"NEURON_LOGICAL_NC_CONFIG={lnc} or --lnc {lnc}"
        )
        found.append(Finding("environment", 0, 37, "E", message, (SEVEN,)))
    if cores is not None and cores != str(lnc):
        message = f"NEURON_LOGICAL_NC_CONFIG={cores}, but the launch uses {lnc}; the two must be equal"
        found.append(Finding("environment", 0, 37, "E", message))
    if "--auto-cast=none" not in variables.get("NEURON_CC_FLAGS", "").replace("--auto-cast none", "--auto-cast=none"):
        message = "NEURON_CC_FLAGS lacks --auto-cast=none: float32 products outside kernels become bf16"
        found.append(Finding("environment", 0, 39, "W", message))
    if BANK_TAKER in variables:
        found.append(Finding("environment", 0, 11, "W", f"{BANK_TAKER} occupies one of the PSUM banks"))
    return tuple(sorted(found))


def errors(findings: Iterable[Finding]) -> tuple[Finding, ...]:
    """The findings that keep a kernel from running on the device."""
    return tuple(f for f in findings if f.severity == "E")
