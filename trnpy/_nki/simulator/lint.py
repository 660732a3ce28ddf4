"""Lint of NKI kernels: the documented rules on the source, and on a traced run when shapes are given."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from trnpy._nki.simulator.lint_trace import lint_trace

from trnpy._nki.simulator.lint_source import lint_source
from trnpy._nki.simulator.rules import DECIDED_ELSEWHERE, RULES, Finding

__all__ = ["DECIDED_ELSEWHERE", "RULES", "Finding", "errors", "lint_file", "lint_source", "lint_trace"]


def lint_file(path: Path, kernel: str | None = None) -> tuple[Finding, ...]:
    """Findings that the text of ``path`` decides; see lint_source."""
    return lint_source(path.read_text(), str(path), kernel)


def errors(findings: Iterable[Finding]) -> tuple[Finding, ...]:
    """Those that keep a kernel from running on the device."""
    return tuple(f for f in findings if f.severity == "E")
