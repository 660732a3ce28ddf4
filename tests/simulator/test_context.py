"""Tests of the run in progress: instructions without one, unknown ones, recorded edges, and fresh memory."""

import numpy as np
import pytest

from nkisim import isa as nisa
from nkisim import language as nl
from nkisim.chip.errors import SimulatorError
from nkisim.run.launch import simulate
from tests.simulator.kernels import refusal, run, to_hbm, values


def test_an_unknown_instruction_is_named():
    def isa():
        nisa.tensor_copy_dynamic_src(1)

    def language():
        nl.mgrid[0:128]

    refusal(isa, match="nisa.tensor_copy_dynamic_src")
    refusal(language, match="nl.mgrid")


def test_instructions_outside_a_kernel_are_refused():
    with pytest.raises(SimulatorError, match="only inside a kernel"):
        nl.ndarray((2, 2), nl.float32)


def test_depends_on_adds_an_edge():
    def kernel(x):
        first = nisa.dma_copy(dst=nl.ndarray((4, 4), nl.float32), src=x)
        second = nisa.memset(dst=nl.ndarray((4, 4), nl.float32), value=0.0).depends_on(first)
        with pytest.raises(SimulatorError, match="earlier"):
            first.depends_on(second)

    trace = simulate(kernel, mode="reorder").run(values((4, 4))).trace
    assert trace.dependencies == ((1, 0),)


DTYPES = ("float32", "bfloat16", "float8_e4m3", "int32", "uint8")


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("buffer", [nl.sbuf, nl.private_hbm])
def test_fresh_memory_cannot_be_read(dtype, buffer):
    def kernel():
        to_hbm(nl.ndarray((4, 6), dtype, buffer))

    text = refusal(kernel, rule=16)
    assert "dma_copy: src is uninitialised at element [0, 0]" in text and dtype in text


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_first_element_that_was_not_written_is_named(dtype):
    def kernel(x):
        tile = nl.ndarray((4, 6), dtype)
        nisa.dma_copy(dst=tile[:, 0:5], src=x[:, 0:5])
        nisa.dma_copy(dst=tile[0:3, 5], src=x[0:3, 5:6])
        to_hbm(tile)

    text = refusal(kernel, values((4, 6), dtype), rule=16)
    assert "element [3, 5]" in text


def test_fresh_memory_holds_nan_for_whoever_looks():
    def kernel():
        tile = nl.ndarray((2, 2), nl.bfloat16)
        assert np.isnan(tile.array().astype(np.float32)).all()

    run(kernel)
