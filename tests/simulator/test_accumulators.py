"""Tests of the accumulator registers: chains over instructions, what ends a chain, and what is refused."""

import numpy as np
import pytest

from nkisim import isa as nisa
from nkisim import language as nl
from nkisim.chip.errors import SimulatorError
from nkisim.run.launch import Kernel, run
from tests.simulator.tiles import (
    filled,
    refused,
    same,
)

RESET, REDUCE, LOAD, IDLE = (
    getattr(nisa.reduce_cmd, name) for name in ("reset_reduce", "reduce", "load_reduce", "idle")
)


def chain(steps, target="trn2"):
    """tensor_scalar_reduce on x * 1, by (reduce_op, reduce_cmd, reduce_init); the last one's reduce_res."""

    def kernel(x):
        data, res = nl.load(x), nl.ndarray((x.shape[0], 1), nl.float32)
        dst = nl.ndarray(data.shape, data.dtype)
        for i, (op, cmd, init) in enumerate(steps):
            nisa.tensor_scalar_reduce(
                dst=dst, data=data, op0=nl.multiply, operand0=1.0, reduce_op=op, reduce_cmd=cmd, reduce_init=init,
                reduce_res=res if i == len(steps) - 1 else None,
            )  # fmt: skip
        out = nl.ndarray(res.shape, res.dtype, buffer=nl.shared_hbm)
        nl.store(out, res)
        return out

    x = np.arange(1, 13, dtype=np.float32).reshape(3, 4)
    return run(Kernel(kernel), (x,), target=target).outputs, x


def test_chains_reduce_over_instructions():
    found, x = chain([(nl.add, RESET, None), (nl.add, REDUCE, None), (nl.add, REDUCE, None)])
    same(found, 3 * x.sum(1, keepdims=True))
    found, x = chain([(nl.maximum, LOAD, 100.0)])
    assert np.all(found == 100)
    found, x = chain([(nl.multiply, RESET, None), (nl.add, RESET, None)])
    same(found, x.sum(1, keepdims=True))


@pytest.mark.parametrize(
    ("steps", "match"),
    [
        ([(nl.add, REDUCE, None)], "none is open"),
        ([(nl.add, RESET, None), (nl.maximum, REDUCE, None)], "keeps its operator"),
        ([(nl.add, LOAD, None)], "load_reduce, and only it"),
        ([(nl.add, RESET, 1.0)], "load_reduce, and only it"),
        ([(nl.add, IDLE, None)], "is needed"),
        ([(nl.subtract, RESET, None)], "reduce_op=nl.subtract"),
    ],
)
def test_chain_planted_bugs_are_refused(steps, match):
    with pytest.raises(SimulatorError, match=match) as caught:
        chain(steps)
    assert caught.value.rule == 29


def test_an_idle_instruction_of_the_family_ends_the_chain():
    def body():
        x, res = filled((4, 8)), nl.ndarray((4, 1), nl.float32)
        add = {"op0": nl.add, "operand0": 0.0, "reduce_op": nl.maximum}
        nisa.tensor_scalar_reduce(dst=x, data=x, **add)
        nisa.select_reduce(dst=x, predicate=filled((4, 8), "uint8"), on_true=x, on_false=0.0)
        nisa.tensor_scalar_reduce(dst=x, data=x, **add, reduce_cmd=REDUCE, reduce_res=res)

    refused(body, "none is open", 29)
