"""The three front ends that may compile a kernel; each refuses other constructs.

NKI 0.6 parses the kernel's source by default and traces it on request (NKI_COMPILER_FRONTEND=tracer); NKI 0.7 traces
by default and parses on request (=custom). Tracing runs the kernel as ordinary Python.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal, TypeAlias, cast

Dialect: TypeAlias = Literal["0.6-parser", "0.6-tracer", "0.7"]

PARSER: Dialect = "0.6-parser"
TRACER: Dialect = "0.6-tracer"
SEVEN: Dialect = "0.7"
DIALECTS: tuple[Dialect, ...] = (PARSER, TRACER, SEVEN)
TRACERS: tuple[Dialect, ...] = (TRACER, SEVEN)
DEFAULT: Dialect = TRACER  # the simulator executes Python, as a tracer does
ALL = "all"


def chosen(text: str) -> tuple[Dialect, ...]:
    """The dialects that ``--nki TEXT`` names: one, several separated by commas, or all; ValueError for other text."""
    names = DIALECTS if text == ALL else tuple(text.split(","))
    for name in names:
        if name not in DIALECTS:
            raise ValueError(f"--nki {text!r}: expected {', '.join(DIALECTS)} or {ALL}")
    return cast("tuple[Dialect, ...]", tuple(dict.fromkeys(names)))


def shown(dialects: Iterable[Dialect]) -> str:
    """The dialects in parentheses, for a message; empty if it applies to all of them."""
    found = tuple(d for d in DIALECTS if d in set(dialects))
    return "" if found == DIALECTS else f"({', '.join(found)}) "
