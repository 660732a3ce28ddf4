"""The tests of ``full.txt``, which get the mark ``full``: they use more than half a CPU second."""

from __future__ import annotations

import functools
from pathlib import Path

LIST = Path(__file__).with_name("full.txt")


@functools.cache
def listed() -> frozenset[str]:
    """The listed tests as pytest names them; a function without a case stands for all of its cases."""
    found, file = set(), ""
    for line in LIST.read_text().splitlines():
        if line.startswith("tests/"):
            file = line
        elif line.startswith("    "):
            found.add(f"{file}::{line.strip()}")
    return frozenset(found)


def is_full(nodeid: str) -> bool:
    """Whether a test is listed."""
    return nodeid in listed() or nodeid.partition("[")[0] in listed()
