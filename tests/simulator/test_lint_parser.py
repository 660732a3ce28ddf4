"""Tests of what the parsing front end refuses: its words, signatures and decorators, and twins that it takes."""

import pytest

from nkisim.chip.dialects import DIALECTS, PARSER, TRACERS
from nkisim.lint.linter import errors, lint_source
from tests.simulator.planted import HEAD, body
from tests.simulator.planted_parser import PARSER as REFUSED
from tests.simulator.planted_parser import SIGNATURES

TOP = "import functools\n" + HEAD + "\n\ndef turn(i, t):\n    nisa.tensor_copy(dst=t, src=t)\n"


def refused(text: str, nki=DIALECTS) -> tuple:
    return errors(lint_source(TOP + text, "kernel.py", "kernel", nki))


@pytest.mark.parametrize(("name", "wrong", "words", "right"), REFUSED, ids=[r[0] for r in REFUSED])
def test_the_parser_refuses_in_its_own_words_what_a_tracer_takes(name, wrong, words, right):
    found = refused(body(*wrong))
    assert any(words in f.message for f in found), found
    assert {(f.dialects, f.rule) for f in found} == {((PARSER,), 1)}
    assert refused(body(*wrong), TRACERS) == ()
    assert refused(body(*right)) == ()


@pytest.mark.parametrize(("name", "text", "words", "right"), SIGNATURES, ids=[r[0] for r in SIGNATURES])
def test_the_parser_refuses_signatures_and_decorators(name, text, words, right):
    assert any(words in f.message for f in refused(text, (PARSER,)))
    assert refused(text, TRACERS) == ()
    assert refused(right) == ()
