"""Tests of the table of machines and of what is computed from a row alone."""

import pytest

from nkisim.hardware import ERROR_FACTOR, FLOAT64_PASSES, MACHINES, between, compiling_s, interval


@pytest.mark.parametrize("machine", MACHINES.values(), ids=lambda m: m.name)
def test_rates_of_a_row_are_consistent(machine):
    assert MACHINES[machine.name] is machine
    assert machine.float64_flops_per_s * FLOAT64_PASSES == pytest.approx(machine.flops_per_s["bfloat16"], rel=1e-15)
    # A product of bfloat16 takes 128 x 128 multiply-adds each cycle, and float32 takes four passes.
    assert machine.flops_per_s["bfloat16"] == pytest.approx(2 * 128 * 128 * machine.tensor_hz, rel=0.01)
    assert machine.flops_per_s["bfloat16"] / machine.flops_per_s["float32"] == pytest.approx(4, rel=0.02)
    assert machine.hbm_bytes_per_s <= 16 * machine.dma_bytes_per_s  # of its 16 DMA engines


def test_machines_are_compared_and_hashed_by_identity():
    rows = list(MACHINES.values())
    assert len(set(rows)) == len(rows) == 3
    assert [m.generation for m in rows] == [2, 3, 4]


def test_an_interval_holds_its_time_in_the_geometric_middle():
    low, high = interval(3.0)
    assert low < 3.0 < high
    assert low * high == pytest.approx(9.0, rel=1e-15) and high / low == pytest.approx(ERROR_FACTOR**2, rel=1e-15)
    assert interval(3.0, 1.0) == (3.0, 3.0)


def test_an_interval_is_printed_with_two_digits_of_each_end():
    assert between(4.5e-3) == "0.0031 to 0.0065 s"
    assert between(0.0) == "0 to 0 s"


def test_instructions_in_a_region_cost_more_to_compile_than_outside_of_it():
    straight, looped = compiling_s(1000, 0, 0), compiling_s(1000, 1, 600)
    assert looped - straight > 10.0  # the region itself
    assert compiling_s(2000, 0, 0) - straight == pytest.approx(straight - compiling_s(0, 0, 0), rel=1e-12)
