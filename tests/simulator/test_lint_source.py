"""Tests of the lint rules that the source of a kernel decides: planted bugs, their twins, and the call tree."""

from pathlib import Path

import pytest

from nkisim.lint.linter import lint_file, lint_source
from nkisim.lint.rules import RULES
from tests.simulator.lint_launches import assert_found_in_the_source, assert_the_twin_passes_and_runs
from tests.simulator.planted import CLEAN, HEAD, SOURCE, Planted

OTHERS = [p for p in SOURCE if p.rule not in (6, 7, 9, 10, 14, 34, 37, 38, 39)]  # see test_lint_calls.py


@pytest.mark.parametrize("planted", OTHERS, ids=lambda p: p.id)
def test_a_bug_in_the_source_is_found_where_it_is_and_only_there(planted: Planted):
    assert_found_in_the_source(planted)


@pytest.mark.parametrize("planted", OTHERS, ids=lambda p: p.id)
def test_the_twin_of_a_bug_in_the_source_passes_and_runs_with_every_front_end(planted: Planted, tmp_path):
    assert_the_twin_passes_and_runs(planted, tmp_path)


def test_a_clean_kernel_gives_no_finding_at_all():
    assert lint_source(HEAD + CLEAN, "kernel.py") == ()


def test_a_finding_is_one_line_with_place_rule_and_source():
    (finding,) = lint_source(HEAD + CLEAN.replace("range(at", "nl.affine_range(at"), "kernel.py")
    assert str(finding).startswith("kernel.py:")
    assert ": W06 " in str(finding)
    assert str(finding).endswith(f"[{RULES[6].source}]")
    assert "\n" not in str(finding)


def test_functions_that_no_kernel_reaches_are_host_code():
    text = HEAD + CLEAN + "\ndef host(x):\n    return [np.sqrt(v) for v in x if v is not None]\n"
    assert lint_source(text, "kernel.py") == ()


def test_a_file_without_kernel_is_an_error_that_says_what_is_expected():
    with pytest.raises(ValueError, match=r"decorated with nki\.jit"):
        lint_source("def f(x):\n    return x\n", "kernel.py")
    with pytest.raises(ValueError, match="no function 'g'"):
        lint_source("def f(x):\n    return x\n", "kernel.py", "g")


@pytest.mark.parametrize(
    ("imported", "call"),
    [
        ("from helpers import half", "half(4)"),
        ("import helpers", "helpers.half(4)"),
        ("from .helpers import half", "half(4)"),
        ("from . import helpers", "helpers.half(4)"),
        ("import helpers as h", "h.half(4)"),
    ],
)
def test_the_call_tree_goes_into_the_files_beside(tmp_path, imported, call):
    (tmp_path / "helpers.py").write_text(
        "import math\n\n\ndef half(n):\n    return math.ceil(n / 2)\n\n\ndef unused(x):\n    return x is x\n"
    )
    path = tmp_path / "kernel.py"
    path.write_text(f"{imported}\n{HEAD}\n{CLEAN}".replace("    return out\n", f"    n = {call}\n    return out\n", 1))
    (finding,) = lint_file(path)
    assert (Path(finding.file).name, finding.line, finding.rule) == ("helpers.py", 5, 3)


def test_recursion_through_two_files_is_found(tmp_path):
    (tmp_path / "other.py").write_text("from kernel import again\n\n\ndef further(n):\n    return again(n)\n")
    path = tmp_path / "kernel.py"
    helper = "from other import further\n\n\ndef again(n):\n    return further(n - 1)\n"
    path.write_text(f"{helper}{HEAD}{CLEAN}".replace("    return out\n", "    n = again(2)\n    return out\n", 1))
    assert {(Path(f.file).name, f.rule) for f in lint_file(path)} == {("kernel.py", 1), ("other.py", 1)}
