"""Tests of the lint: every rule catches the bug planted for it, and the same kernel without the bug passes."""

import itertools
from pathlib import Path

import numpy as np
import pytest

from nkisim.chip.dialects import DIALECTS
from nkisim.lint.linter import errors, lint_file, lint_launch, lint_source
from nkisim.lint.rules import DECIDED_ELSEWHERE, RULES, Finding
from nkisim.run.loader import load_kernel
from tests.simulator.planted import CLEAN, HEAD, SOURCE, Planted, normal
from tests.simulator.planted_backend import BACKEND
from tests.simulator.planted_engines import ENGINES
from tests.simulator.planted_runs import MEMORY
from trnpy._nki.kernels import FOLDER

OWN = sorted(p for p in FOLDER.rglob("[a-z]*.py") if "@nki.jit" in p.read_text())


@pytest.mark.parametrize("planted", SOURCE, ids=lambda p: p.id)
def test_a_bug_in_the_source_is_found_where_it_is_and_only_there(planted: Planted):
    found = lint_source(HEAD + planted.text, "kernel.py")
    assert [f for f in found if (f.rule, f.severity) == (planted.rule, planted.severity)], found
    others = {f.rule for f in errors(found)} - {planted.rule}
    assert not others, found


HOST = ("\nkernel", "nki.simulate")  # code beside the kernel, which a run of the kernel does not need


@pytest.mark.parametrize("planted", SOURCE, ids=lambda p: p.id)
def test_its_twin_passes_and_runs_with_every_front_end(planted: Planted, tmp_path):
    found = lint_source(HEAD + planted.right, "kernel.py")
    assert errors(found) == () and planted.rule not in {f.rule for f in found}
    if not any(words in planted.right for words in HOST):
        for nki in DIALECTS:
            assert errors(launched(planted.right, (normal(8, 8),), planted.lnc, tmp_path, nki=nki)) == ()


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


@pytest.mark.parametrize("path", OWN, ids=lambda p: p.stem)
def test_our_own_kernels_have_no_error_in_their_source(path):
    assert errors(lint_file(path)) == ()


def test_there_are_58_rules_each_with_a_source_a_pass_and_the_front_ends_it_holds_for():
    assert sorted(RULES) == list(range(1, 59))
    assert all(rule.source and rule.passes and set(rule.dialects) <= set(DIALECTS) for rule in RULES.values())
    assert set(DECIDED_ELSEWHERE) <= set(RULES)


def launched(text: str, arrays: tuple, cores: int, folder, **settings) -> tuple[Finding, ...]:
    path = folder / "kernel.py"
    path.write_text(HEAD + text)
    return lint_launch(load_kernel(path, "kernel")[cores], tuple(np.array(a) for a in arrays), **settings)


RUNS = (*MEMORY, *ENGINES, *BACKEND)


@pytest.mark.parametrize("planted", RUNS, ids=lambda p: p.id)
def test_a_bug_that_a_launch_shows_is_found_at_its_line_and_its_twin_passes(planted: Planted, tmp_path):
    """On every machine, and with every front end, for which the rule holds."""
    for target, nki in itertools.product(planted.targets, planted.dialects):
        found = launched(planted.text, planted.args, planted.lnc, tmp_path, target=target, nki=nki)
        assert {(f.rule, f.severity) for f in found} >= {(planted.rule, planted.severity)}, (target, nki, found)
        assert {f.rule for f in errors(found)} <= {planted.rule}
        assert all(f.file.endswith("kernel.py") and f.line > 0 for f in found if f.rule == planted.rule)
        arrays, cores = planted.right_args or planted.args, planted.right_lnc or planted.lnc
        found = launched(planted.right, arrays, cores, tmp_path, target=target, nki=nki)
        assert errors(found) == () and planted.rule not in {f.rule for f in found}, (target, nki, found)


def test_a_bank_taken_by_the_compiler_is_missed_by_a_kernel_that_needs_all_eight(tmp_path, monkeypatch):
    eight = next(p for p in RUNS if p.note == "psum banks")
    assert errors(launched(eight.right, eight.args, 1, tmp_path)) == ()
    monkeypatch.setenv("NKI_DMA_TRANSPOSE_AS_PE_TRANSPOSE", "1")
    assert {f.rule for f in errors(launched(eight.right, eight.args, 1, tmp_path))} == {11}


def test_every_rule_has_a_planted_bug_for_the_pass_that_decides_it():
    by_source, by_launch = {p.rule for p in SOURCE}, {p.rule for p in RUNS}
    assert by_source | by_launch == set(RULES)
    assert by_source == {n for n, rule in RULES.items() if "source" in rule.passes}
    assert by_launch <= {n for n, rule in RULES.items() if {"run", "trace"} & set(rule.passes)}


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
