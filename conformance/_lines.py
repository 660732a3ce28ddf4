"""Which lines of trnpy's functions a run executes, by ``sys.monitoring`` (Python 3.12): each line costs one event."""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import CodeType
from typing import Any

import trnpy

ROOT = Path(trnpy.__file__).parent
FOLDERS = ("linalg", "sparse", "_einsum", "_host", "_engine", "_nki/kernels")
HELD = "linalg"  # the folder of which --least-lines asks for a share


def functions(code: CodeType) -> Iterator[CodeType]:
    """The code of the functions in ``code``; a class body is no function, for it runs when its module is imported."""
    for inner in code.co_consts:
        if isinstance(inner, CodeType):
            if inner.co_flags & inspect.CO_OPTIMIZED:
                yield inner
            yield from functions(inner)


def lines_of(path: Path) -> set[int]:
    """The lines of the functions in a file, without the lines of ``def``."""
    inner = functions(compile(path.read_text(), str(path), "exec"))
    return {line for code in inner for *_, line in code.co_lines() if line and line != code.co_firstlineno}


class Lines:
    """The executed lines by file, from ``watch`` on."""

    def __init__(self, rows: Mapping[str, Any], least: float | None = None) -> None:
        self.rows, self.least = rows, least
        self.run: dict[str, set[int]] = {}
        self._known: dict[Path, set[int]] = {}

    def watch(self) -> None:
        if sys.version_info < (3, 12):
            return
        monitoring = sys.monitoring
        inside = f"{ROOT}/"

        def executed(code: CodeType, line: int) -> Any:
            if code.co_filename.startswith(inside):
                self.run.setdefault(code.co_filename, set()).add(line)
            return monitoring.DISABLE  # this line has no more events

        monitoring.use_tool_id(monitoring.COVERAGE_ID, "conformance")
        monitoring.register_callback(monitoring.COVERAGE_ID, monitoring.events.LINE, executed)
        monitoring.set_events(monitoring.COVERAGE_ID, monitoring.events.LINE)

    def counts(self, *paths: Path) -> tuple[int, int]:
        """Executed lines of functions in these files, and all lines."""
        run = every = 0
        for path in paths:
            if path not in self._known:
                self._known[path] = lines_of(path)
            known = self._known[path]
            run, every = run + len(known & self.run.get(str(path), set())), every + len(known)
        return run, every

    def of_row(self, name: str) -> str:
        """The share of lines executed in the module of a row's algorithm."""
        op = getattr(self.rows.get(name), "__trnpy_op__", None)
        if op is None or not self.run:
            return "-"
        prepare = op.prepare.func if isinstance(op.prepare, functools.partial) else inspect.unwrap(op.prepare)
        module = sys.modules.get(prepare.__module__)
        return "-" if module is None else percent(*self.counts(Path(str(module.__file__))))

    def table(self) -> Iterator[str]:
        """A line for each folder."""
        if not self.run:
            yield "lines executed: not counted, which takes Python 3.12"
            return
        for folder in FOLDERS:
            run, every = self.counts(*sorted((ROOT / folder).rglob("*.py")))
            yield f"lines executed in {folder}/: {run} of {every}, {percent(run, every)}"
        if self.too_few:
            yield f"fewer than {self.least:g} % of {HELD}/"

    @property
    def too_few(self) -> bool:
        run, every = self.counts(*sorted((ROOT / HELD).rglob("*.py")))
        return self.least is not None and bool(self.run) and 100 * run < self.least * every


def percent(run: int, every: int) -> str:
    return f"{100 * run / max(every, 1):.0f}%"
