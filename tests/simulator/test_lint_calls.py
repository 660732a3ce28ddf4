"""Tests of the lint rules on which NKI names a kernel calls and how: planted bugs and their twins."""

import pytest

from tests.simulator.lint_launches import assert_found_in_the_source, assert_the_twin_passes_and_runs
from tests.simulator.planted import SOURCE, Planted

CALLS = [p for p in SOURCE if p.rule in (6, 7, 9, 10, 14, 34, 37, 38, 39)]


def test_every_rule_on_calls_has_a_planted_bug():
    assert {p.rule for p in CALLS} == {6, 7, 9, 10, 14, 34, 37, 38, 39}


@pytest.mark.parametrize("planted", CALLS, ids=lambda p: p.id)
def test_a_call_is_found_where_it_is_and_only_there(planted: Planted):
    assert_found_in_the_source(planted)


@pytest.mark.parametrize("planted", CALLS, ids=lambda p: p.id)
def test_the_twin_of_a_call_passes_and_runs_with_every_front_end(planted: Planted, tmp_path):
    assert_the_twin_passes_and_runs(planted, tmp_path)
