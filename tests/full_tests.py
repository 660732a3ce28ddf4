"""The tests of ``full.txt``, which get the mark ``full``: the default run leaves them out.

An entry without a case stands for all cases of a function. ``name: pairwise`` stands for all cases except some in which
each pair of values of two parameters occurs.
"""

from __future__ import annotations

import functools
import itertools
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

LIST = Path(__file__).with_name("full.txt")
PAIRWISE = ": pairwise"
Pair = tuple[tuple[str, str], tuple[str, str]]


@functools.cache
def listed() -> frozenset[str]:
    """The listed tests as pytest names them."""
    found, file = set(), ""
    for line in LIST.read_text().splitlines():
        if line.startswith("tests/"):
            file = line
        elif line.startswith("    "):
            found.add(f"{file}::{line.strip()}")
    return frozenset(found)


def is_listed(name: str) -> bool:
    """Whether the list has a test or its function."""
    return name in listed() or function(name) in listed()


def function(name: str) -> str:
    """The name of a test without its case."""
    return name.partition("[")[0]


def full(cases: Iterable[tuple[str, Mapping[str, Any]]]) -> set[str]:
    """The names of the tests among ``cases``, pairs of name and parameters, that the default run leaves out."""
    cases = list(cases)
    found = {name for name, _ in cases if is_listed(name)}
    covered: dict[str, list[tuple[str, Mapping[str, Any]]]] = defaultdict(list)
    for name, values in cases:
        if function(name) + PAIRWISE in listed() and name not in found:
            covered[function(name)].append((name, values))
    for of_function in covered.values():
        found |= {name for name, _ in of_function} - cover(of_function)
    return found


def cover(cases: Sequence[tuple[str, Mapping[str, Any]]]) -> set[str]:
    """The names of few cases in which each pair of values of two parameters occurs; all if there is one parameter."""
    rest = [(name, _pairs(values)) for name, values in cases]
    left, kept = set().union(*(pairs for _, pairs in rest)), set()
    while left:
        name, pairs = max(rest, key=lambda case: len(case[1] & left))  # the first of the best
        left -= pairs
        kept.add(name)
    return kept or {name for name, _ in cases}


def _pairs(values: Mapping[str, Any]) -> set[Pair]:
    shown = sorted((name, repr(value)) for name, value in values.items())
    return set(itertools.combinations(shown, 2))
