"""Tests of rules that a run relaxes: noted, passed over, or followed to the outputs."""

import numpy as np
import pytest

from nkisim import isa as nisa
from nkisim import language as nl
from nkisim.chip.errors import SimulatorError
from nkisim.hardware import MACHINES
from nkisim.run.launch import Kernel, simulate
from tests.simulator.kernels import on_chip, refusal, run, to_hbm, values


def padded(x, columns):
    """x doubled in a tile one column wider, of which the first ``columns`` leave."""
    tile = nl.ndarray((x.shape[0], x.shape[1] + 1), x.dtype)
    nisa.dma_copy(dst=tile[:, : x.shape[1]], src=x)
    nisa.tensor_scalar(dst=tile, data=tile, op0=nl.multiply, operand0=2.0)
    return to_hbm(tile[:, :columns])


@pytest.mark.parametrize("mode", ["run", "reorder"])
def test_garbage_that_reaches_no_output_is_no_error_when_it_is_followed(mode):
    x = values((4, 6))
    refusal(padded, x, 6, rule=16)
    np.testing.assert_array_equal(simulate(padded, mode=mode, rules={16: "propagate"})(x, 6), 2 * x)
    with pytest.raises(SimulatorError, match=r"output 0 at \[0, 6\] depends on memory .* nan or 64") as caught:
        simulate(padded, mode=mode, rules={16: "propagate"})(x, 7)
    assert caught.value.rule == 16


def test_garbage_in_an_argument_is_found_and_arguments_are_written_once():
    def kernel(x, reach):
        tile = nl.ndarray((4, 7), x.dtype)
        nisa.dma_copy(dst=tile[:, :6], src=x)
        nisa.tensor_scalar(dst=tile, data=tile, op0=nl.add, operand0=1.0)
        nisa.dma_copy(dst=x, src=tile[:, reach : reach + 6])

    x = values((4, 6))
    expected = x + 1
    simulate(kernel, rules={16: "propagate"})(x, 0)
    np.testing.assert_array_equal(x, expected)
    with pytest.raises(SimulatorError, match="argument 0 at"):
        simulate(kernel, rules={16: "propagate"})(values((4, 6)), 1)


def test_garbage_integers_are_followed_too():
    def kernel(columns):
        tile = nl.ndarray((4, 8), nl.int32)
        nisa.memset(dst=tile[:, :4], value=3)
        return to_hbm(tile[:, :columns])

    np.testing.assert_array_equal(simulate(kernel, rules={16: "propagate"})(4), np.full((4, 4), 3))
    with pytest.raises(SimulatorError, match="depends on memory"):
        simulate(kernel, rules={16: "propagate"})(5)


@pytest.mark.parametrize(("mode", "notes"), [("warn", 1), ("off", 0)])
def test_a_relaxed_rule_is_noted_or_passed_over(mode, notes):
    def kernel(a, b):
        left, right = on_chip(a), on_chip(b)
        bank = nl.ndarray((4, 8), nl.float32, buffer=nl.psum)
        nisa.memset(dst=bank, value=1.0)
        nisa.nc_matmul(dst=bank, stationary=left, moving=right, accumulate=True)
        tile = nl.ndarray((4, 8), nl.float32)
        nisa.tensor_copy(dst=tile, src=bank)
        return to_hbm(tile)

    a, b = values((4, 4)), values((4, 8))
    refusal(kernel, a, b, rule=24)
    result = simulate(kernel, rules={24: mode}).run(a, b)
    np.testing.assert_allclose(result.outputs, 1 + a.T @ b, rtol=1e-5, atol=1e-6)
    assert len(result.trace.notes) == notes


def test_a_kernel_may_call_a_compiled_one_where_that_is_passed_over():
    inner = Kernel(lambda x: to_hbm(on_chip(x)))
    x = values((4, 4))
    refusal(lambda x: inner(x), x, rule=5)
    np.testing.assert_array_equal(simulate(lambda x: inner(x), rules={5: "off"})(x), x)


def test_sbuf_beyond_the_chip_is_priced_as_a_spill_where_that_is_passed_over():
    limit = MACHINES["trn2"].sbuf_bytes_per_partition
    count = limit // 4096 + 2

    def kernel(x):
        tiles = [nl.ndarray((128, 1024), nl.float32) for _ in range(count)]
        for tile in tiles:
            nisa.memset(dst=tile, value=1.0)
        for tile in tiles:
            nisa.tensor_copy(dst=tile, src=tile)
        return x

    x = values((4, 4))
    refusal(kernel, x, rule=11)
    (note,) = simulate(kernel, rules={11: "warn"}).run(x).trace.notes
    assert note.rule == 11 and "bytes, at least" in note.message and note.line > 0
    assert f"move {(count * 4096 - limit) * 128 * 2:,} bytes" in note.message


def test_what_cannot_be_relaxed_says_so():
    for rules, message in (({12: "off"}, "rule 12 cannot be relaxed"), ({24: "propagate"}, "expected one of strict")):
        with pytest.raises(SimulatorError, match=message):
            run(lambda x: x, values((4, 4)), rules=rules)


def test_lanes_that_nobody_reads_leave_the_domain_of_no_function():
    def kernel(x, rows):
        tile = nl.ndarray((8, 6), x.dtype)
        nisa.dma_copy(dst=tile[: x.shape[0]], src=x)
        nisa.activation(dst=tile, op=nl.rsqrt, data=tile)
        return to_hbm(tile[:rows])

    x = 1 + values((5, 6)) ** 2
    refusal(kernel, x, 5, rule=16)
    found = simulate(kernel, rules={16: "propagate"})(x, 5)
    np.testing.assert_allclose(found, 1 / np.sqrt(x), rtol=1e-6)
    with pytest.raises(SimulatorError, match=r"output 0 at \[5, 0\] depends on memory"):
        simulate(kernel, rules={16: "propagate"})(x, 6)
    for value in (-1.0, np.nan):  # of data, beside such lanes
        x[2, 3] = value
        with pytest.raises(SimulatorError, match=f"nl.rsqrt of {value:g} at partition 2, element 3") as caught:
            simulate(kernel, rules={16: "propagate"})(x, 5)
        assert caught.value.rule == 33


@pytest.mark.parametrize("buffer", [nl.sbuf, nl.psum])
@pytest.mark.parametrize("whole", [True, False], ids=["one tensor", "several"])
def test_memory_beyond_the_target_is_passed_over_where_that_is_asked_for(buffer, whole):
    def kernel(x):
        limit = MACHINES["trn2"].sbuf_bytes_per_partition if buffer == nl.sbuf else 16 * 1024
        columns, count = (limit // 4 + 8, 1) if whole else (511, limit // 2044 + 1)
        tiles = [nl.ndarray((x.shape[0], columns), nl.float32, buffer=buffer) for _ in range(count)]
        for tile in tiles:
            nisa.tensor_copy(dst=tile[:, -6:], src=on_chip(x))
        total = on_chip(x)
        for tile in tiles:
            nisa.tensor_tensor(dst=total, data1=total, data2=tile[:, -6:], op=nl.add)
        return to_hbm(total)

    x = values((4, 6))
    refusal(kernel, x, rule=11)
    for mode, notes in (("warn", 1), ("off", 0)):
        result = simulate(kernel, rules={11: mode}).run(x)
        assert [n.rule for n in result.trace.notes].count(11) >= notes
        assert notes or not result.trace.notes
        assert np.isfinite(result.outputs).all() and abs(result.outputs).sum() > abs(x).sum()
