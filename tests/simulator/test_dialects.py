"""Tests of the three front ends: what each refuses, in its words, and what it takes."""

import numpy as np
import pytest

from nkisim.chip.dialects import ALL, DIALECTS, PARSER, SEVEN, TRACER, TRACERS, chosen
from nkisim.chip.errors import SimulatorError
from nkisim.chip.registers import NkiScalar
from nkisim.lint.linter import environment, errors, lint_source
from nkisim.run.launch import simulate
from nkisim.run.loader import load_kernel
from tests.simulator.planted import HEAD, body, normal

TOP = "import functools\n" + HEAD + "\n\ndef turn(i, t):\n    nisa.tensor_copy(dst=t, src=t)\n"


def refused(text: str, nki=DIALECTS) -> tuple:
    return errors(lint_source(TOP + text, "kernel.py", "kernel", nki))


@pytest.fixture
def run(tmp_path):
    """Outputs of the kernel in a text, by dialect."""

    def launched(text: str, *arrays, nki=TRACER, **settings):
        path = tmp_path / "kernel.py"
        path.write_text(TOP + text)
        return simulate(load_kernel(path, "kernel"), nki=nki, **settings)(*arrays)

    return launched


def test_a_run_for_the_parser_refuses_before_anything_is_issued_at_the_line_that_it_refuses(run):
    x = normal(8, 8)
    text = body("n = [i for i in range(2)]")
    for nki in TRACERS:
        assert np.array_equal(run(text, x, nki=nki), x)
    with pytest.raises(SimulatorError, match="unsupported expression: a list comprehension") as refusal:
        run(text, x, nki=PARSER)
    assert refusal.value.rule == 1
    assert np.array_equal(run(body(), x, nki=PARSER), x)


def test_dynamic_range_is_gone_in_0_7(run):
    text = body("for i in nl.dynamic_range(2):", "    nisa.tensor_copy(dst=t, src=t)")
    x = normal(8, 8)
    for nki in (PARSER, TRACER):
        assert np.array_equal(run(text, x, nki=nki), x)
        assert refused(text, (nki,)) == ()
    with pytest.raises(SimulatorError, match=r"removed in NKI 0\.7"):
        run(text, x, nki=SEVEN)
    assert {f.dialects for f in refused(text)} == {(SEVEN,)}


def test_while_on_a_register_is_deprecated_by_the_parser_and_a_type_error_of_tracers():
    text = body("r = nisa.register_alloc(1)", "while r:", "    nisa.register_move(r, 0)")
    assert {(f.severity, f.dialects) for f in lint_source(TOP + text, "kernel.py") if f.rule == 6} == {
        ("W", (PARSER,)),
        ("E", TRACERS),
    }


COUNTER = body(
    "flat = x.reshape((64,))",
    "def step(i):",
    "    u = nl.ndarray((1, 8), dtype=nl.float32, buffer=nl.sbuf)",
    "    nisa.dma_copy(dst=u, src=flat.ap(pattern=[[8, 1], [1, 8]], scalar_offset=i * 8, indirect_dim=0))",
    "    to = out.reshape((64,))",
    "    nisa.dma_copy(dst=to.ap(pattern=[[8, 1], [1, 8]], scalar_offset=8 * i, indirect_dim=0), src=u)",
    "nl.fori_loop(0, 8, step)",
)


def test_the_counter_of_a_loop_computes_in_0_7_and_nowhere_else(run):
    x = normal(8, 8)
    assert np.array_equal(run(COUNTER, x, nki=SEVEN), x)
    with pytest.raises(SimulatorError, match="a register has no value"):
        run(COUNTER, x, nki=TRACER)
    assert {f.dialects for f in refused(COUNTER)} == {(PARSER,), (TRACER,)}


def test_a_register_bound_keeps_the_counter_a_register_in_0_7(run):
    text = COUNTER.replace("    nl.fori_loop(0, 8", "    r = nisa.register_alloc(8)\n    nl.fori_loop(0, r")
    with pytest.raises(SimulatorError, match="a register has no value"):
        run(text, normal(8, 8), nki=SEVEN)


SCALARS = """
@nki.jit
def kernel(x):
    out = nl.ndarray((1, 1), dtype=x.dtype, buffer=nl.shared_hbm)
    t = nl.ndarray((1, 1), dtype=x.dtype, buffer=nl.sbuf)
    nisa.dma_copy(dst=t, src=x)
    i = nisa.scalar_load(t)
    nisa.scalar_store(dst=t, value=-(i * 4 + 1 - i))
    nisa.dma_copy(dst=out, src=t)
    return out
"""


def test_scalars_are_loaded_computed_and_stored_in_0_7_only(run):
    x = np.array([[7]], np.int32)
    assert run(SCALARS, x, nki=SEVEN) == -22
    with pytest.raises(SimulatorError, match=r"NkiScalar is NKI 0\.7's"):
        run(SCALARS, x, nki=TRACER)


def test_scalars_wrap_and_are_not_compared():
    assert (NkiScalar(100000) * 100000).value == 1410065408
    assert (NkiScalar(2**31 - 1) + 1).value == -(2**31)
    assert (1 - NkiScalar(3)).value == -2
    with pytest.raises(SimulatorError, match="comparison"):
        assert NkiScalar(1) < 2


def test_64_bit_scalars_keep_their_width(run):
    x = np.array([[2**40 + 7]], np.int64)
    assert run(SCALARS, x, nki=SEVEN) == -3 * x[0, 0] - 1
    assert (NkiScalar(2**63 - 1, "int64") + 1).value == -(2**63)
    with pytest.raises(SimulatorError, match="both need one width"):
        assert NkiScalar(1, "int64") + NkiScalar(1)
    with pytest.raises(SimulatorError, match=r"argument 0 is int64, which is NKI 0\.7's"):
        run(SCALARS, x, nki=TRACER)


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("nl.fori_loop(0, i, nothing)", "an int64 scalar cannot be a bound"),
        ("nisa.tensor_copy(dst=t, src=t)", "tensor_copy: src is int64; only dma_copy and scalar_load"),
        ("nisa.scalar_store(dst=w, value=i)", "need one int64"),
        ("nisa.dma_copy(dst=w, src=t)", "are copied, not converted"),
        ("v = w.select(1, i)", "an int64 scalar addresses HBM only"),
    ],
)
def test_64_bit_integers_are_for_scalars_and_copies(run, line, words):
    head = "    w = nl.ndarray((1, 1), dtype=nl.int32, buffer=nl.sbuf)\n"
    text = SCALARS.replace("    nisa.scalar_store", f"{head}    {line}\n    nisa.scalar_store", 1)
    with pytest.raises(SimulatorError, match=words):
        run("def nothing(i):\n    n = 1\n" + text, np.array([[7]], np.int64), nki=SEVEN)


def test_a_64_bit_scalar_addresses_hbm(run):
    text = """
@nki.jit
def kernel(x, at):
    out = nl.ndarray((1, 4), dtype=x.dtype, buffer=nl.shared_hbm)
    t = nl.ndarray((1, 4), dtype=x.dtype, buffer=nl.sbuf)
    i = nisa.scalar_load(at)
    nisa.dma_copy(dst=t, src=x.ap(pattern=[[4, 1], [1, 4]], scalar_offset=i - 1, indirect_dim=0))
    nisa.dma_copy(dst=out, src=t)
    return out
"""
    x = normal(8, 4)
    np.testing.assert_array_equal(run(text, x, np.array([[6]], np.int64), nki=SEVEN), x[5:6])


def test_a_scalar_bounds_a_loop(run):
    text = SCALARS.replace("    nisa.scalar_store", "    nl.fori_loop(0, i, nothing)\n    nisa.scalar_store")
    assert run("def nothing(i):\n    n = 1\n" + text, np.array([[7]], np.int32), nki=SEVEN) == -22


def test_0_7_wants_the_cores_of_kernel_and_compiler_to_agree():
    said = {"NEURON_CC_FLAGS": "--auto-cast=none"}
    (found,) = environment(said, 1, "trn2", (SEVEN,))
    assert "NCC_EVRF066" in found.message
    assert environment({**said, "NEURON_LOGICAL_NC_CONFIG": "1"}, 1, "trn2", (SEVEN,)) == ()
    assert environment(said, 2, "trn2", (SEVEN,)) == environment(said, 1, "trn1", (SEVEN,)) == ()
    assert environment(said, 1, "trn2", (PARSER, TRACER)) == ()


def test_dialects_are_named_one_by_one_or_all():
    assert chosen(ALL) == DIALECTS
    assert chosen("0.7,0.6-parser") == (SEVEN, PARSER)
    with pytest.raises(ValueError, match=r"expected 0\.6-parser, 0\.6-tracer, 0\.7 or all"):
        chosen("0.5")
