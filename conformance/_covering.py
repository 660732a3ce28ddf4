"""Which tests execute which lines of a package: one stored map for each file of tests, made when it is needed.

``python -m conformance._covering ROOT PACKAGE FILE TESTS`` runs the file TESTS and writes its map to FILE.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Protocol

import pytest

Map = dict[str, Any]  # "sources": a hash by file; "tests": seconds, and lines by file, by test function
# Threads of OpenBLAS that wait for each other use several times the processor time of one, by which tests are limited.
ONE_THREAD = {"OPENBLAS_NUM_THREADS": "1"}
NOTHING: Map = {"sources": {}, "tests": {}}


class Place(Protocol):
    """Some lines of a file."""

    @property
    def file(self) -> str: ...
    @property
    def line(self) -> int: ...
    @property
    def last_line(self) -> int: ...


class Maps:
    """The maps of files of tests. Each map that ``folder`` lacks, or that is older than its file, is made on demand."""

    def __init__(self, root: Path, package: str, folder: Path) -> None:
        self.root, self.package, self.folder = root, package, folder
        self._known: dict[Path, Map] = {}

    def of(self, tests: Iterable[Path]) -> list[Map]:
        """The maps of these files."""
        return [self._one(path) for path in tests]

    def have(self, tests: Iterable[Path]) -> bool:
        """Whether all these maps have been made."""
        return all(self._stored(path).exists() for path in tests)

    def _stored(self, path: Path) -> Path:
        name = re.sub(r"\W+", "-", str(path.relative_to(self.root)))
        return self.folder / f"{name}-{_digest(path)}.json"

    def _one(self, path: Path) -> Map:
        if path not in self._known:
            file = self._stored(path)
            if not file.exists():
                self._make(path, file)
            self._known[path] = json.loads(file.read_text()) if file.exists() else NOTHING
        return self._known[path]

    def _make(self, path: Path, file: Path) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        print(f"mapping {path.relative_to(self.root)}", flush=True)
        command = [sys.executable, "-m", "conformance._covering", str(self.root), self.package, str(file), str(path)]
        paths = os.pathsep.join([str(self.root), str(Path(__file__).parents[1])])
        environment = {**ONE_THREAD, **os.environ, "PYTHONPATH": paths}
        subprocess.run(command, cwd=self.root, env=environment, stdout=subprocess.DEVNULL)


def covering(maps: Iterable[Map], root: Path, at: Place, touching: bool = True) -> list[tuple[float, str]]:
    """Seconds and names of the tests that execute a line of ``at``, the fastest first.

    If no test does, or if the file has changed since the map was made: with ``touching``, the tests that execute any
    line of the file. Some lines run at the import, and some in functions whose files are renamed.
    """
    there, near, digest = [], [], _digest(root / at.file)
    for found in maps:
        same = found["sources"].get(at.file) == digest
        for name, test in found["tests"].items():
            lines = test["lines"].get(at.file)
            if lines:
                near.append((test["seconds"], name))
                if same and any(at.line <= line <= at.last_line for line in lines):
                    there.append((test["seconds"], name))
    return sorted(there or (near if touching else []))


def _digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()[:16]


def _processor_s() -> float:
    """Processor time of this process and of those that it waited for: other load does not change it."""
    return sum(os.times()[:4])


class Mapper:
    """A plugin of pytest that gives each test function a context of its own."""

    def __init__(self, coverage: Any) -> None:
        self.coverage = coverage
        self.seconds: dict[str, float] = {}

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Any:
        name, started = item.nodeid.partition("[")[0], _processor_s()
        self.coverage.switch_context(name)
        try:
            return (yield)
        finally:
            self.seconds[name] = self.seconds.get(name, 0.0) + _processor_s() - started
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
