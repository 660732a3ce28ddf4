"""Lint of NKI kernels: the documented rules on the source, and on a traced run when shapes are given."""

from __future__ import annotations

import dataclasses
import traceback
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from trnpy._nki.simulator.context import Mode
from trnpy._nki.simulator.errors import SimulatorError
from trnpy._nki.simulator.launch import run
from trnpy._nki.simulator.lint_source import lint_source
from trnpy._nki.simulator.lint_trace import from_error, lint_trace
from trnpy._nki.simulator.rules import DECIDED_ELSEWHERE, RULES, Finding

__all__ = ["DECIDED_ELSEWHERE", "RULES", "Finding", "errors", "lint_file", "lint_launch", "lint_source", "lint_trace"]


def lint_file(path: Path, kernel: str | None = None) -> tuple[Finding, ...]:
    """Findings that the text of ``path`` decides; see lint_source."""
    return lint_source(path.read_text(), str(path), kernel)


def lint_launch(
    kernel: Any, args: tuple[Any, ...], kwargs: dict[str, Any] | None = None, target: str = "trn2", mode: Mode = "run"
) -> tuple[Finding, ...]:
    """Findings of one simulated launch: what the simulator refused, or the rules on its trace.

    A refusal ends the run, so it is the only finding; correct it and look again.
    """
    try:
        result = run(kernel, args, kwargs, target=target, mode=mode)
    except SimulatorError as error:
        found = from_error(error)
        seen = {frame.f_code.co_filename for frame, _ in traceback.walk_tb(error.__traceback__)}
        if found.line and (found.file in seen or error.__cause__):
            return (found,)
        # Refused before or after the kernel's own statements ran: name the kernel.
        own = getattr(kernel, "function", kernel).__code__
        return (dataclasses.replace(found, file=own.co_filename, line=own.co_firstlineno),)
    return lint_trace(result.traces)


def errors(findings: Iterable[Finding]) -> tuple[Finding, ...]:
    """Those that keep a kernel from running on the device."""
    return tuple(f for f in findings if f.severity == "E")
