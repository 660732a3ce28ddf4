"""Blocks in turns of a device loop give what the same blocks give one after another, bit for bit."""

import ml_dtypes
import numpy as np
import pytest

from nkisim.run.launch import run
from nkisim.run.loader import load_kernel
from trnpy._nki.kernels import located, source

PLACES = np.arange(15, dtype=np.int32)[np.newaxis] % 5
BF16 = np.dtype(ml_dtypes.bfloat16)


def numbers(*shape):
    return np.random.default_rng(shape).standard_normal(shape).astype("f4")


def integers(dtype, *shape):
    return np.random.default_rng(shape).integers(-100, 101, shape).astype(dtype)


def short_programs(name, turn):
    """The kernel ``name``, loaded for itself, whose programs may have no blocks without a loop."""
    kernel = load_kernel(source(name), located(name)[1])
    names = kernel.function.__globals__
    shared = vars(names["blocks"]) if "blocks" in names else names["walk"].__globals__
    shared.update(STRAIGHT=0, TURN=turn)
    return kernel


@pytest.mark.parametrize("several", [False, True], ids=["one block a turn", "several blocks a turn"])
@pytest.mark.parametrize(
    "name, operands, settings, turn",
    [
        ("matmul", (numbers(650, 200), numbers(200, 700)), {"m_tiles": 1, "n_tiles": 1, "k_tiles": 1}, 45),
        ("abs_bound", (abs(numbers(650, 200)).astype(BF16), abs(numbers(200, 700)).astype(BF16)), {"m_tiles": 1}, 45),
        ("batched_matmul", (numbers(70, 40, 30), numbers(70, 30, 20)), {}, 300),
        ("batched_matmul", (numbers(3, 600, 30), numbers(3, 30, 20)), {"m_tiles": 1}, 20),
        ("axpby", (numbers(1700, 130), numbers(1700, 130)), {}, 45),
        ("transpose", (numbers(700, 900),), {"m_tiles": 1, "n_tiles": 1}, 20),
        ("float64_matmul", (integers(BF16, 3, 100, 700), integers(BF16, 3, 100, 600)), {"words": 2, "m_tiles": 1}, 100),
        ("float64_matmul", (integers(BF16, 3, 100, 1100),), {"words": 2, "m_tiles": 1, "halved": True}, 200),
        (
            "bsr_spmm",
            (numbers(640, 128), numbers(384, 40), PLACES * 128 * 128, PLACES % 3 * 128 * 40),
            {"length": 3},
            25,
        ),
        (
            "csr_spmm",
            (numbers(128, 12), integers("f4", 128, 12), abs(integers("i4", 128, 12)), numbers(101, 600)),
            {"length": 2},
            40,
        ),
        (
            "schwarz_screened_spmm",
            (numbers(256, 300), numbers(256, 60), 100 + abs(integers("f4", 1, 300))),
            {"m_tiles": 1},
            40,
        ),
        ("trsm", (np.tril(numbers(300, 300)) + 20 * np.eye(300, dtype="f4"), numbers(300, 2100)), {"tiles": 1}, 25),
    ],
    ids=lambda x: x if isinstance(x, str) else "",
)
def test_turns_of_a_loop_give_the_same(name, operands, settings, turn, several):
    straight = run(load_kernel(source(name), located(name)[1]), operands, settings)
    looped = run(short_programs(name, turn if several else 1), operands, settings)
    assert looped.trace.loops and not straight.trace.loops
    np.testing.assert_array_equal(looped.outputs, straight.outputs)
