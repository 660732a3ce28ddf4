"""The commands that run suites of others on trnpy.xp: what they report, and what they must notice."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from conformance.arrays import report

ROOT = Path(__file__).parents[1]
CONFTEST = """
def pytest_addoption(parser):
    parser.addoption("--disable-deadline", action="store_true")
"""
# A suite of the form of array-api-tests.
TESTS = """
import importlib, os
import pytest
xp = importlib.import_module(os.environ["ARRAY_API_TESTS_MODULE"])
def test_sum():
    assert float(xp.sum(xp.asarray([1.0, 2.0]))) == 3.0
def test_of_trnpy_only():
    assert xp.__name__ != "trnpy.xp", "not for trnpy"
def test_of_none():
    raise ValueError("of no library")
@pytest.mark.skip(reason="no reason")
def test_skipped():
    pass
"""
FILE = "array_api_tests/test_it.py"
LISTED = """
- {{reason: a reason, error: {error!r}, modes: [unforced], versions: {{numpy: ">=2.0"}}, tests: [{test}]}}
"""


def conformance(*arguments: str) -> tuple[int, str]:
    run = subprocess.run(
        [sys.executable, "-m", "conformance", *arguments],
        cwd=ROOT, capture_output=True, text=True, timeout=300, env=os.environ | {"OPENBLAS_NUM_THREADS": "1"},
    )  # fmt: skip
    return run.returncode, run.stdout + run.stderr


@pytest.fixture
def source(tmp_path: Path) -> Path:
    folder = tmp_path / "array-api-tests"
    (folder / "array_api_tests").mkdir(parents=True)
    (folder / "array-api" / "spec").mkdir(parents=True)
    (folder / "conftest.py").write_text(CONFTEST)
    (folder / "pytest.ini").write_text("[pytest]\n")
    (folder / "array_api_tests" / "test_it.py").write_text(TESTS)
    return folder


def listed(folder: Path, *entries: tuple[str, str]) -> str:
    path = folder / "listed.yaml"
    path.write_text("".join(LISTED.format(test=f"{FILE}::{test}", error=error) for test, error in entries))
    return f"--listed={path}"


def test_a_failure_is_reported_with_what_array_api_strict_does(source: Path) -> None:
    pytest.importorskip("array_api_strict")
    code, output = conformance("array-api", f"--source={source}", listed(source))
    assert code == 1, output
    assert [line.split() for line in output.splitlines() if line.startswith(("trnpy.xp  ", "array_api_strict  "))] == [
        ["trnpy.xp", "1", "2", "0", "0", "1"], ["array_api_strict", "1", "1", "0", "0", "1"],
    ]  # fmt: skip
    assert "1 of 2 failures are failures of array_api_strict, too" in output
    assert "failed, 1 tests (array_api_strict: passed): array_api_tests/test_it.py::test_of_trnpy_only" in output
    assert (
        "failed, 1 tests (array_api_strict: failed): array_api_tests/test_it.py::test_of_none\n    ValueError" in output
    )
    assert "skipped, 1 tests, of which array_api_strict passes 0: no reason" in output


def test_listed_failures_are_no_error(source: Path) -> None:
    entries = ("test_of_trnpy_only", "not for trnpy"), ("test_of_none", "of no library")
    code, output = conformance("array-api", f"--source={source}", listed(source, *entries))
    assert code == 0, output
    assert "listed, 2 tests, of which array_api_strict passes 1: a reason" in output


@pytest.mark.parametrize(
    ("test", "error", "code", "message"),
    [
        ("test_sum", "", 1, "XPASS(strict)"),
        ("test_gone", "", 4, "listed failures match no test"),
        ("test_of_none", "another", 1, "not the listed 'another'"),
    ],
)
def test_a_stale_entry_is_an_error(source: Path, test: str, error: str, code: int, message: str) -> None:
    found, output = conformance("array-api", f"--source={source}", listed(source, (test, error)))
    assert found == code, output
    assert message in output


def test_without_a_checkout_the_command_prints_how_to_get_one(tmp_path: Path) -> None:
    code, output = conformance("array-api", f"--source={tmp_path}")
    assert code == 1
    assert "git clone --recurse-submodules https://github.com/data-apis/array-api-tests" in output


def test_a_checkout_without_its_submodule_is_named(source: Path) -> None:
    (source / "array-api" / "spec").rmdir()
    code, output = conformance("array-api", f"--source={source}")
    assert code == 1 and "submodule update --init" in output


@pytest.mark.parametrize(
    ("suite", "package", "tests", "least"),
    [
        ("scipy-array-api", "scipy", ["scipy/cluster/tests/test_vq.py"], 20),
        ("scikit-learn", "sklearn", ["sklearn/model_selection/tests/test_split.py", "-k", "array_api"], 2),
    ],
)
def test_a_sample_of_an_installed_suite_passes_on_trnpy(suite: str, package: str, tests: list[str], least: int) -> None:
    pytest.importorskip(package, reason=f"{package} is not installed")
    code, output = conformance(suite, *tests)
    assert code == 0, output
    counts = next(line.split()[1:] for line in output.splitlines() if line.startswith("trnpy.xp  "))
    assert int(counts[0]) >= least and counts[1] == "0", output


def test_a_report_counts_each_outcome_once() -> None:
    outcomes = {"a": ("passed", ""), "b": ("failed", "bad"), "c": ("skipped", "slow"), "d": ("xfailed", "it")}
    text = "\n".join(report(outcomes, {"b": ("failed", "ValueError")}, "trnpy.xp"))
    assert "1 of 1 failures are failures of array_api_strict, too" in text
    assert "skipped, 1 tests, of which array_api_strict passes 0: slow" in text
    assert "expected to fail by the suite, 1 tests, of which array_api_strict passes 0: it" in text
