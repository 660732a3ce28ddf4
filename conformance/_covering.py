"""Which tests execute which lines of a package: one stored map for each file of tests, made once.

``python -m conformance._covering ROOT PACKAGE FILE TESTS`` runs the file TESTS and writes its map to FILE.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

Map = dict[str, Any]  # "sources": a hash by file; "tests": seconds, and lines by file, by test function


def stored(root: Path, package: str, tests: Iterable[Path], folder: Path) -> list[Map]:
    """The maps of these files of tests; those that are not in ``folder``, or older than their file, are made."""
    maps = []
    for path in tests:
        name = re.sub(r"\W+", "-", str(path.relative_to(root)))
        file = folder / f"{name}-{_digest(path)}.json"
        if not file.exists():
            folder.mkdir(parents=True, exist_ok=True)
            print(f"mapping {path.relative_to(root)}", flush=True)
            command = [sys.executable, "-m", "conformance._covering", str(root), package, str(file), str(path)]
            here = str(Path(__file__).parents[1])
            paths = os.pathsep.join([str(root), here])
            subprocess.run(command, cwd=root, env={**os.environ, "PYTHONPATH": paths}, stdout=subprocess.DEVNULL)
        if file.exists():
            maps.append(json.loads(file.read_text()))
    return maps


def covering(maps: Iterable[Map], root: Path, file: str, first: int, last: int) -> list[tuple[float, str]]:
    """Seconds and names of the tests that execute a line of ``file`` from ``first`` to ``last``, the fastest first.

    Those that execute any line of it, if the file has changed since the map was made, or if no test executes these
    lines: some run at the import, and some in functions whose files are renamed.
    """
    there, touching, digest = [], [], _digest(root / file)
    for found in maps:
        same = found["sources"].get(file) == digest
        for name, test in found["tests"].items():
            lines = test["lines"].get(file)
            if lines:
                touching.append((test["seconds"], name))
                if same and any(first <= line <= last for line in lines):
                    there.append((test["seconds"], name))
    return sorted(there or touching)


def _digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()[:16]


class Mapper:
    """A plugin of pytest that gives each test function a context of its own."""

    def __init__(self, coverage: Any) -> None:
        self.coverage = coverage
        self.seconds: dict[str, float] = {}

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Any:
        name, started = item.nodeid.partition("[")[0], time.perf_counter()
        self.coverage.switch_context(name)
        try:
            return (yield)
        finally:
            self.seconds[name] = self.seconds.get(name, 0.0) + time.perf_counter() - started
            self.coverage.switch_context("between tests")


def main(arguments: list[str]) -> None:
    import coverage

    root, package, file, tests = Path(arguments[0]), arguments[1], Path(arguments[2]), arguments[3]
    measured = coverage.Coverage(data_file=None, source=[str(root / package)])
    mapper = Mapper(measured)
    measured.start()
    pytest.main(["-q", "-p", "no:cacheprovider", "-p", "no:xdist", tests], [mapper])
    measured.stop()
    data = measured.get_data()
    sources = {name: str(Path(name).relative_to(root)) for name in data.measured_files()}
    lines: dict[str, dict[str, list[int]]] = {name: {} for name in mapper.seconds}
    for path, relative in sources.items():
        for line, contexts in data.contexts_by_lineno(path).items():
            for context in contexts:
                if context in lines:
                    lines[context].setdefault(relative, []).append(line)
    found = {
        "sources": {relative: _digest(Path(path)) for path, relative in sources.items()},
        "tests": {name: {"seconds": round(s, 3), "lines": lines[name]} for name, s in mapper.seconds.items()},
    }
    unfinished = file.with_suffix(".part")
    unfinished.write_text(json.dumps(found))
    unfinished.replace(file)


if __name__ == "__main__":
    main(sys.argv[1:])
