"""Tests of the lint: every rule catches the bug planted for it, and the same kernel without the bug passes."""

import pytest

from nkisim.chip.dialects import DIALECTS
from nkisim.lint.linter import errors, lint_file
from nkisim.lint.rules import DECIDED_ELSEWHERE, RULES
from tests.simulator.lint_launches import assert_found_in_a_launch, launched
from tests.simulator.planted import SOURCE, Planted
from tests.simulator.planted_backend import BACKEND
from tests.simulator.planted_engines import ENGINES
from tests.simulator.planted_runs import MEMORY
from trnpy._nki.kernels import FOLDER

OWN = sorted(p for p in FOLDER.rglob("[a-z]*.py") if "@nki.jit" in p.read_text())


@pytest.mark.parametrize("path", OWN, ids=lambda p: p.stem)
def test_our_own_kernels_have_no_error_in_their_source(path):
    assert errors(lint_file(path)) == ()


def test_there_are_58_rules_each_with_a_source_a_pass_and_the_front_ends_it_holds_for():
    assert sorted(RULES) == list(range(1, 59))
    assert all(rule.source and rule.passes and set(rule.dialects) <= set(DIALECTS) for rule in RULES.values())
    assert set(DECIDED_ELSEWHERE) <= set(RULES)


RUNS = (*MEMORY, *ENGINES, *BACKEND)


@pytest.mark.parametrize(
    "planted", [p for p in (*MEMORY, *ENGINES) if "trace" not in RULES[p.rule].passes], ids=lambda p: p.id
)
def test_a_bug_that_a_launch_shows_is_found_at_its_line_and_its_twin_passes(planted: Planted, tmp_path):
    assert_found_in_a_launch(planted, tmp_path)


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
