"""One line of the conformance table: the outcome for a kernel written by others."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from nkisim.chip.errors import SimulatorError
from nkisim.lint.linter import errors, lint_source, lint_trace
from nkisim.lint.rules import Finding
from nkisim.run.launch import run
from nkisim.run.loader import load_kernel

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Outcome:
    """``matches`` is None if there is nothing to compare. If ``left_out``, the remark says why."""

    kernel: str
    runs: bool
    matches: bool | None
    lint_errors: int
    lint_warnings: int
    remark: str = ""
    expected_refusal: bool = False
    left_out: bool = False

    @property
    def good(self) -> bool:
        """As documented: it ran and matched, or it was refused and the documentation shows it as wrong."""
        if self.left_out:
            return False
        return not self.runs if self.expected_refusal else self.runs and self.matches is not False

    def row(self) -> tuple[str, ...]:
        runs = "refused, as documented" if self.expected_refusal and not self.runs else _word(self.runs)
        if self.left_out:
            runs = "left out"
        lint = f"{self.lint_errors} E, {self.lint_warnings} W"
        return self.kernel, runs, _word(self.matches), lint, self.remark


def _word(value: bool | None) -> str:
    return {True: "yes", False: "NO", None: ""}[value]


@dataclass(frozen=True)
class Whole:
    """A printed kernel that is complete, with our inputs and our reference."""

    arguments: tuple[Any, ...]
    reference: Callable[..., Any] | None  # None: it has no output
    target: str = "trn2"
    tolerance: float = 1e-5
    driver: str = ""  # our kernel, which calls a printed function that is not one
    options: dict[str, Any] = field(default_factory=dict)
    changed: int | None = None  # the argument that is written in place of an output


def whole(name: str, kernel: str, text: str, case: Whole, file: Path) -> Outcome:
    """Write the kernel to ``file``, lint it, run it and compare."""
    file.write_text(text + case.driver)
    try:
        loaded = load_kernel(file, "driver" if case.driver else kernel)
    except Exception as error:  # any exception of the printed file while it is loaded
        return Outcome(name, False, None, 0, 0, f"{type(error).__name__}: {error}")
    return launch(
        name,
        loaded,
        case.arguments,
        case.reference,
        target=case.target,
        options=case.options,
        tolerance=case.tolerance,
        changed=case.changed,
        findings=lint_source(text, file.name, kernel),
    )


def launch(
    name: str,
    kernel: Any,
    arguments: Sequence[Any],
    reference: Callable[..., Any] | None,
    *,
    target: str = "trn2",
    options: dict[str, Any] | None = None,
    tolerance: float = 1e-5,
    refused: bool = False,
    changed: int | None = None,
    findings: Sequence[Finding] = (),
) -> Outcome:
    """Run a kernel on copies of ``arguments`` and compare its outputs with ``reference(*arguments)``."""
    copies = tuple(a.copy() if isinstance(a, np.ndarray) else a for a in arguments)
    try:
        result = run(kernel, copies, options or {}, target=target)
    except SimulatorError as error:
        return _outcome(name, False, None, findings, str(error), refused)
    found = (*findings, *lint_trace(result.traces))
    if reference is None:
        return _outcome(name, True, None, found, "", refused)
    wanted = reference(*arguments)
    matches, remark = compare(result.outputs if changed is None else copies[changed], wanted, tolerance)
    return _outcome(name, True, matches, found, remark, refused)


def compare(got: Any, wanted: Any, tolerance: float) -> tuple[bool, str]:
    """Whether outputs agree in number, shape and value; and the largest difference if they do not."""
    some = got if isinstance(got, tuple) else (got,)
    others = wanted if isinstance(wanted, tuple) else (wanted,)
    if len(some) != len(others):
        return False, f"{len(some)} outputs, {len(others)} are documented"
    for here, there in zip(some, others, strict=True):
        if here.shape != there.shape:
            return False, f"shape {here.shape}, {there.shape} is documented"
        a, b = here.astype(np.float64), np.asarray(there).astype(np.float64)
        if not np.allclose(a, b, rtol=tolerance, atol=tolerance, equal_nan=True):
            return False, f"differs by {np.nanmax(np.abs(a - b)):.3g}"
    return True, ""


def _outcome(
    name: str, runs: bool, matches: bool | None, found: Sequence[Finding], remark: str, refused: bool
) -> Outcome:
    unique = set(found)
    serious = len(errors(unique))
    return Outcome(name, runs, matches, serious, len(unique) - serious, remark, refused)
