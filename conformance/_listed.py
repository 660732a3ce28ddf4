"""Known failures: which tests fail, why, under which versions and in which mode."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

from packaging.specifiers import SpecifierSet

FOLDER = Path(__file__).parent / "listed"
MODES = ("baseline", "patched", "unforced", "forced")


@dataclass(frozen=True, slots=True)
class Entry:
    """Tests that fail for one reason. An id without its ``[parameters]`` stands for all of them."""

    reason: str
    error: re.Pattern[str]  # found in the failure's report; a failure without it is another failure
    modes: tuple[str, ...]  # of MODES; baseline: without trnpy
    versions: tuple[tuple[str, str], ...]  # distribution, specifier: ("scipy", ">=1.17,<1.18")
    tests: tuple[str, ...]
    may_pass: bool  # the last bit of a BLAS kernel decides, or which examples Hypothesis draws

    def applies(self, mode: str, installed: Callable[[str], str] = version) -> bool:
        return mode in self.modes and all(
            SpecifierSet(specifier).contains(installed(package), prereleases=True)
            for package, specifier in self.versions
        )


def load(path: Path, mode: str) -> list[Entry]:
    """Entries of ``path`` that apply to ``mode`` and the installed versions; none if there is no such file."""
    if not path.exists():
        return []
    import yaml  # imported here: conformance nki and neuronx also run without it

    entries = [_entry(path, raw) for raw in yaml.safe_load(path.read_text()) or []]
    return [entry for entry in entries if entry.applies(mode)]


def _entry(path: Path, raw: dict[str, Any]) -> Entry:
    expected = {"reason", "error", "modes", "versions", "tests"}
    if set(raw) - {"may_pass"} != expected:
        raise ValueError(f"{path}: an entry has {sorted(raw)}: expected {sorted(expected)}, and perhaps may_pass")
    modes, versions, tests = raw["modes"], raw["versions"], raw["tests"]
    if not isinstance(modes, list) or not isinstance(versions, dict) or not isinstance(tests, list) or not tests:
        raise ValueError(f"{path}: {raw['reason']!r}: expected lists of modes and tests, and a mapping of versions")
    if not versions or not modes or not set(modes) <= set(MODES):
        raise ValueError(f"{path}: {raw['reason']!r}: expected at least one version condition, and modes of {MODES}")
    return Entry(
        reason=raw["reason"],
        error=re.compile(raw["error"]),
        modes=tuple(modes),
        versions=tuple(versions.items()),
        tests=tuple(tests),
        may_pass=raw.get("may_pass", False),
    )


def match(
    entries: Iterable[Entry], nodeids: Sequence[str], asked: tuple[str, ...]
) -> tuple[dict[str, Entry], list[str]]:
    """The entry for each of ``nodeids`` that is listed, and listed tests that do not exist.

    If only the files, classes or tests in ``asked`` were collected, listed tests outside them are ignored.
    """
    ids: dict[str, list[str]] = {}
    for nodeid in nodeids:
        ids.setdefault(nodeid, []).append(nodeid)
        if "[" in nodeid:
            ids.setdefault(nodeid[: nodeid.index("[")], []).append(nodeid)
    within = tuple(name + end for name in asked for end in ("::", "["))
    listed: dict[str, Entry] = {}
    missing = []
    for entry in entries:
        for test in entry.tests:
            if test in ids:
                listed.update(dict.fromkeys(ids[test], entry))
            elif not asked or test in asked or test.startswith(within):
                missing.append(test)
    return listed, missing
