"""Long tests have a mark and stay out of the default run; a long test without a mark fails where that is asked for."""

import itertools
import os
import re
import subprocess
import sys
from pathlib import Path

from full_tests import LIST, PAIRWISE, cover, full, listed

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
        file, *names = entry.partition("[")[0].removesuffix(PAIRWISE).split("::")
        text = (ROOT / file).read_text() if (ROOT / file).exists() else ""
        if not re.search(rf"^\s*(async )?def {names[-1]}\b|^{names[0]} = ", text, re.M) and "runTest" not in names:
            missing.append(entry)
    assert not missing
    assert len(listed()) > 100 and LIST.read_text().isascii()


def test_a_function_stands_for_its_cases_and_a_case_for_itself():
    whole = next(entry for entry in sorted(listed()) if "[" not in entry and PAIRWISE not in entry)
    case = next(entry for entry in sorted(listed()) if "[" in entry and entry.partition("[")[0] not in listed())
    function = case.partition("[")[0]
    names = [whole, f"{whole}[any case]", case, function, f"{function}[any case]"]
    assert full((name, {}) for name in names) == {whole, f"{whole}[any case]", case}


def test_each_pair_of_values_occurs_in_a_case_that_is_kept():
    axes = {"n": [1, 2, 3, 4], "dtype": ["f4", "f8"], "lower": [True, False], "order": ["C", "F", "K"]}
    cases = [
        (f"[{i}]", dict(zip(axes, values, strict=True))) for i, values in enumerate(itertools.product(*axes.values()))
    ]
    kept = cover(cases)
    assert 12 <= len(kept) <= 16 < len(cases)
    for a, b in itertools.combinations(axes, 2):
        assert {(values[a], values[b]) for name, values in cases if name in kept} == {
            *itertools.product(axes[a], axes[b])
        }
    assert cover([("[0]", {"n": 1}), ("[1]", {"n": 2})]) == {"[0]", "[1]"}  # one parameter has no pairs


def test_an_entry_keeps_a_cover_of_its_cases():
    entry = next(entry for entry in sorted(listed()) if PAIRWISE in entry).removesuffix(PAIRWISE)
    cases = [(f"{entry}[{i}]", {"n": i // 4, "k": i % 4, "m": i % 2}) for i in range(16)]
    left_out = full(cases)
    assert {name for name, _ in cases} - left_out == cover(cases) and left_out == set()
    more = [(f"{name[:-1]}-{t}]", {**values, "t": t}) for name, values in cases for t in range(3)]
    assert len(full(more)) > 16


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
    (tmp_path / "pytest.ini").write_text("[pytest]\n")  # no settings of a folder above
    command = [sys.executable, "-m", "pytest", "-q", "-p", "cpu_limit", "-p", "no:cacheprovider", "test_planted.py"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "tests")}
    run = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert re.search(r"used 0\.\d CPU seconds: list it in tests/full\.txt", run.stdout), run.stdout
    assert "1 failed, 3 passed" in run.stdout and "FAILED test_planted.py::test_long" in run.stdout
