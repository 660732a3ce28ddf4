"""Tests of what the compiler's backend refuses: each planted bug is found at its line, and its twin passes."""

import pytest

from nkisim.lint.rules import RULES
from tests.simulator.lint_launches import assert_found_in_a_launch
from tests.simulator.planted import Planted
from tests.simulator.planted_backend import BACKEND


@pytest.mark.parametrize("planted", [p for p in BACKEND if "trace" not in RULES[p.rule].passes], ids=lambda p: p.id)
def test_a_bug_that_the_backend_refuses_is_found_at_its_line_and_its_twin_passes(planted: Planted, tmp_path):
    assert_found_in_a_launch(planted, tmp_path)
