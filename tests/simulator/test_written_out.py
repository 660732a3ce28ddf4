"""Loops with constant bounds are priced both ways: as device loops, and as Python's range writes them out."""

import dataclasses

import numpy as np
import pytest

from nkisim.hardware import compiling_s
from nkisim.price import written_out
from nkisim.price.cost import price, rows
from nkisim.run.launch import Specification, run
from nkisim.run.loader import load_kernel
from tests.simulator.planted import HEAD

BODY = """
    out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
    total = nl.ndarray((128, 512), dtype=nl.float32, buffer=nl.sbuf)
    nisa.memset(dst=total, value=0.0)
    scratch = nl.ndarray((128, 512), dtype=nl.float32, buffer=nl.private_hbm)
    nisa.dma_copy(dst=scratch, src=x)
{loops}
    nisa.dma_copy(dst=out, src=total)
    return out
"""
STEP = """
t = nl.ndarray((128, 512), dtype=nl.float32, buffer=nl.sbuf)
nisa.dma_copy(dst=t, src=scratch)
u = nl.ndarray((128, 512), dtype=nl.float32, buffer=nl.sbuf)
nisa.activation(dst=u, op=nl.exp, data=t)
nisa.tensor_tensor(dst=total, data1=total, data2=u, op=nl.add)
"""


def indented(text: str, by: int) -> str:
    return "\n".join(" " * by + line if line else line for line in text.split("\n"))


def device(bound: str, body: str, name: str = "step", by: int = 4) -> str:
    return indented(f"def {name}(i):{indented(body, 4)}\nnl.fori_loop(0, {bound}, {name})\n", by)


def python(bound: str, body: str, by: int = 4) -> str:
    return indented(f"for _ in range({bound}):{indented(body, 4)}", by)


@pytest.fixture
def traced(tmp_path):
    def of(loops: str, mode: str = "trace"):
        path = tmp_path / "kernel.py"
        path.write_text(HEAD + "\n@nki.jit\ndef kernel(x):" + BODY.format(loops=loops))
        x = Specification((128, 512)) if mode == "trace" else np.zeros((128, 512), np.float32)
        return run(load_kernel(path, "kernel"), (x,), mode=mode).trace

    return of


def same(cost):
    return {f.name: getattr(cost, f.name) for f in dataclasses.fields(cost) if f.name != "looped"}


@pytest.mark.parametrize("mode", ["trace", "run"])
@pytest.mark.parametrize("turns", [0, 1, 9])
def test_written_out_it_costs_what_pythons_range_costs(traced, turns, mode):
    loop, flat = price(traced(device(str(turns), STEP), mode)), price(traced(python(str(turns), STEP), mode))
    assert same(loop) == same(flat) and flat.looped is None


def test_as_a_device_loop_it_costs_what_a_bound_in_a_register_costs(traced):
    cost, other = price(traced(device("9", STEP))), price(traced(device("nisa.register_alloc(9)", STEP)))
    assert same(cost.looped) == same(other) and other.looped is None
    assert other.device_s > 1.5 * cost.device_s and other.compile_s > cost.compile_s


def test_the_interval_that_is_printed_holds_both(traced):
    cost = price(traced(device("9", STEP)))
    low, high = cost.interval("device_s")
    assert low < cost.device_s < cost.looped.device_s < high
    assert cost.as_json()["device_interval_s"] == [low, high]
    table = dict(rows(cost))
    assert " written out, " in table["with loops of constant bounds"]
    assert "with loops of constant bounds" not in dict(rows(cost.looped))


def test_nested_loops_are_written_out_from_inside(traced):
    nested = device("3", "\n" + device("4", STEP, "inner", 0), "outer")
    flat = python("3", "\n" + python("4", STEP, 0))
    assert same(price(traced(nested))) == same(price(traced(flat)))


def test_inside_a_loop_that_stays_it_is_written_out_in_its_body(traced):
    mixed = device("nisa.register_alloc(3)", "\n" + device("4", STEP, "inner", 0), "outer")
    flat = device("nisa.register_alloc(3)", "\n" + python("4", STEP, 0), "outer")
    assert same(price(traced(mixed))) == same(price(traced(flat)))
    stays = device("3", "\n" + device("nisa.register_alloc(4)", STEP, "inner", 0), "outer")
    cost = price(traced(stays))
    assert same(cost) == same(cost.looped)  # a loop with a device loop in it is not written out


def test_of_a_long_loop_groups_of_turns_are_written_out_and_all_of_it_is_compiled(traced, monkeypatch):
    whole = price(traced(device("400", STEP)))
    monkeypatch.setattr(written_out, "MOST", 300)  # 100 turns
    cost = price(traced(device("400", STEP)))
    assert cost.compiled == whole.compiled == 3 * 400 + 3
    assert cost.compile_s == whole.compile_s == compiling_s(1203, 0, 0)
    assert whole.device_s < cost.device_s < 1.2 * whole.device_s  # four times nothing overlaps
