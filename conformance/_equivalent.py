"""Mutations that change no result, by what they change, and why no test can kill them.

A reason that begins with "speed: " is of one that changes the time only.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

from conformance._draw import Mutation

# Options whose loss changes no result, wherever they are given.
OPTIONS: Mapping[str, str] = MappingProxyType(
    {
        "copy=False": "speed: an array is copied that need not be",
        "check_finite=False": "speed: the same elements are tested twice",
        "strict=True": "zip's own assertion: the caller has made sequences of the same length",
    }
)
# Functions of two arguments in either order.
SYMMETRIC = frozenset(
    {"array_equal", "broadcast_shapes", "hypot", "math.gcd", "max", "maximum", "may_share_memory", "min", "minimum",
     "promote_types", "result_type", "shares_memory"}
)  # fmt: skip
LIST = Path(__file__).with_name("equivalent.txt")  # reasons, and below each the names of mutations, indented


def listed(text: str) -> dict[str, str]:
    """The reason of each mutation in a list."""
    found, why = {}, ""
    for line in text.splitlines():
        if line.startswith("    "):
            found[line.strip()] = why
        elif line:
            why = line
    return found


EQUIVALENT: Mapping[str, str] = MappingProxyType(listed(LIST.read_text()))


def reason(mutation: Mutation, known: Mapping[str, str] = EQUIVALENT) -> str:
    """Why no test can kill ``mutation``; "" if one could."""
    if mutation.kind == "option ignored":
        old, new = (re.sub(r"\s|,(?=\s*\))", "", code) for code in (mutation.old, mutation.new))
        for option, why in OPTIONS.items():
            if old.replace(f",{option}", "") == new and (option != "strict=True" or old.startswith("zip(")):
                return why
    if mutation.kind == "option ignored" and mutation.old.startswith("functools.lru_cache("):
        return "speed: how many results are remembered"
    if mutation.kind == "constant" and mutation.new == "(2 * 0.0)":
        return "twice zero is zero"
    if mutation.kind == "arguments exchanged" and mutation.old.partition("(")[0].removeprefix("np.") in SYMMETRIC:
        return "the function is symmetric in its arguments"
    return known.get(mutation.name, "")
