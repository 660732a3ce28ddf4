"""Long tests have a mark and stay out of the default run; a long test without a mark fails where that is asked for."""

import os
import re
import subprocess
import sys
from pathlib import Path

from full_tests import LIST, is_full, listed

ROOT = Path(__file__).parents[1]
LONG = """
import cpu_limit, pytest
cpu_limit.LIMIT_S = 0.1
def spin():
    began = cpu_limit.used_s()
    while cpu_limit.used_s() < began + 0.2: pass
def test_long(): spin()
@pytest.mark.full
def test_of_the_full_run(): spin()
@pytest.mark.slow
def test_slow(): spin()
def test_short(): pass
"""


def test_every_entry_names_a_test_that_exists():
    missing = []
    for entry in sorted(listed()):
        file, *names = entry.partition("[")[0].split("::")
        text = (ROOT / file).read_text() if (ROOT / file).exists() else ""
        if not re.search(rf"^\s*(async )?def {names[-1]}\b|^{names[0]} = ", text, re.M) and "runTest" not in names:
            missing.append(entry)
    assert not missing
    assert len(listed()) > 100 and LIST.read_text().isascii()


def test_a_function_stands_for_its_cases_and_a_case_for_itself():
    whole = next(entry for entry in listed() if "[" not in entry)
    case = next(entry for entry in listed() if "[" in entry and entry.partition("[")[0] not in listed())
    assert is_full(f"{whole}[any case]") and is_full(case)
    assert not is_full(case.partition("[")[0]) and not is_full(f"{case.partition('[')[0]}[any case]")


def test_listed_tests_are_not_collected_by_default_and_are_with_the_mark():
    case = next(entry for entry in sorted(listed()) if entry.startswith("tests/_einsum/"))
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "--collect-only",
        "-p",
        "no:cacheprovider",
        case.partition("::")[0],
    ]

    def collected(*more):
        return subprocess.run([*command, *more], cwd=ROOT, capture_output=True, text=True).stdout

    assert case not in collected() and case in collected("-m", "full")


def test_a_long_test_without_a_mark_is_refused(tmp_path):
    (tmp_path / "test_planted.py").write_text(LONG)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "cpu_limit", "-p", "no:cacheprovider", "test_planted.py"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "tests")}
    run = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert re.search(r"used 0\.\d CPU seconds: list it in tests/full\.txt", run.stdout), run.stdout
    assert "1 failed, 3 passed" in run.stdout and "FAILED test_planted.py::test_long" in run.stdout
