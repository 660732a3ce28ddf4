"""Tests of the schedule: in-order engines, the queues of DMA, the clock's throttle, tables, and ranks that meet."""

import numpy as np
import pytest

from nkisim.hardware import (
    TRN1,
    TRN2,
)
from nkisim.price.cost import barrier_s, price, schedules
from nkisim.price.durations import transfer
from nkisim.price.schedule import covered, schedule
from tests.simulator.hand_made import Script, matmul


def products(count: int, gap: float = 0.0, dtype: str = "bfloat16", columns: int = 512, target: str = "trn2") -> Script:
    script = Script(target)
    left, right = script.tile((128, 128), dtype), script.tile((128, columns), dtype)
    for _ in range(count):
        bank = script.tile((128, columns), "float32", "psum")
        script.product(bank.operand("dst"), left.operand("stationary"), right.operand("moving"))
    return script


def test_a_stream_of_products_costs_one_cycle_per_column_and_pass_once_warm():
    many, more = (schedule(products(n).trace(), TRN2).total_s for n in (100, 200))
    assert (more - many) * TRN2.tensor_hz == pytest.approx(100 * 521, rel=1e-6)
    many, more = (schedule(products(n, dtype="float32").trace(), TRN2).total_s for n in (100, 200))
    assert (more - many) * TRN2.tensor_hz == pytest.approx(100 * 2057, rel=1e-6)


def test_the_first_three_microseconds_run_at_half_speed_where_that_is_documented():
    window = TRN2.timing.throttle_window_s
    assert schedule(products(100).trace(), TRN2).throttled_s == pytest.approx(window / 2, rel=0.1)
    assert schedule(products(100, target="trn1").trace(), TRN1).throttled_s == 0


def test_a_starved_tensor_engine_stays_throttled():
    cost = price(matmul(256, 1024, 1024))
    ideal = cost.engine_instructions["tensor"] * 521 / TRN2.tensor_hz
    assert cost.throttled_s == pytest.approx(ideal, rel=0.2)


@pytest.mark.parametrize("kilobytes, slow", [(32, False), (88, False), (96, True)])
def test_transfers_slow_down_four_times_once_96_kb_that_they_wrote_must_stay(kilobytes, slow):
    script = Script("trn1")
    source = script.tile((128, 512), "float32", "hbm")
    stay = [script.tile((128, 512)) for _ in range(kilobytes // 2 - 1)]
    for tile in (*stay, script.tile((128, 512))):
        script.copy(tile.operand("dst"), source.operand("src"))
    for tile in stay:
        script.add("tensor_copy", "vector", (tile.operand("src"),), (script.tile((128, 1)).operand("dst"),))
    trace = script.trace()
    ((_, plan),) = schedules(trace, TRN1)
    factor = plan.transfers[0].engine_s / transfer(trace.instructions[0], TRN1).engine_s
    assert factor == pytest.approx(4 if slow else 1, rel=1e-12)


def test_ranks_meet_once_in_a_launch():
    def trace(ranks, machine="trn1"):
        script = Script(machine)
        a, b = script.tile((1024,), "float32", "hbm"), script.tile((1024,), "float32", "hbm")
        script.add("all_reduce", "dma", (a.operand("src"),), (b.operand("dst"),), ranks=ranks)
        return script.trace()

    assert barrier_s(trace(1), TRN1) == 0
    for ranks, published in ((8, 2.45e-3), (16, 3.76e-3), (32, 5.10e-3)):
        assert barrier_s(trace(ranks), TRN1) == pytest.approx(published, rel=0.1)
    for ranks, published in ((2, 0.15e-3), (4, 1.04e-3), (8, 1.49e-3), (16, 1.98e-3), (32, 2.54e-3), (64, 2.97e-3)):
        assert 1 / 1.45 < barrier_s(trace(ranks, "trn2"), TRN2) / published < 1.45


def test_the_engines_of_a_transfer_are_those_of_its_partitions():
    script = Script()
    source = script.tile((4, 4096), "bfloat16", "hbm")
    script.copy(script.tile((4, 4096), "bfloat16").operand("dst"), source.operand("src"))
    moved = transfer(script.instructions[0], TRN2)
    assert len(moved.engines) == 1
    assert moved.engine_s == pytest.approx(1416e-9, rel=0.1)  # dma overview: 32 KiB on one engine
    wide = script.tile((128, 512), "float32")
    matrix = script.tile((4096, 4096), "float32", "hbm")
    script.copy(wide.operand("dst"), matrix.operand("src", slice(0, 128), slice(0, 512)))
    moved = transfer(script.instructions[1], TRN2)
    assert len(moved.engines) == 16
    assert moved.descriptors == 128
    assert moved.descriptor_bytes == 2048
    assert 128 * 2048 / moved.engine_s == pytest.approx(315e9, rel=0.01)  # the matmul tutorial shows 314


def copies(count: int, **options) -> list[tuple[float, float]]:
    """Spans of ``count`` independent loads of 128 x 512 bfloat16 from the rows of a wide matrix."""
    script = Script()
    matrix = script.tile((4096, 4096), "bfloat16", "hbm")
    for i in range(count):
        tile = script.tile((128, 512), "bfloat16")
        here = slice(128 * i, 128 * i + 128), slice(0, 512)
        script.add("dma_copy", "dma", (matrix.operand("src", *here),), (tile.operand("dst"),), **options)
    plan = schedule(script.trace(), TRN2)
    return list(zip(plan.start, plan.end, strict=True))


def test_the_queues_of_a_transfer_start_one_after_another():
    script = Script()
    source = script.tile((128, 4096), "bfloat16", "hbm")
    script.copy(script.tile((128, 4096), "bfloat16").operand("dst"), source.operand("src"))
    plan, moved = schedule(script.trace(), TRN2), transfer(script.instructions[0], TRN2)
    stagger = plan.end[0] - plan.start[0] - moved.engine_s
    assert stagger == pytest.approx(233e-9, rel=0.01)  # dma overview, figure 3: 15 semaphore updates and the load


def test_a_hardware_generator_takes_the_next_transfer_when_the_last_descriptor_is_done():
    timing = TRN2.timing
    starts = np.array(copies(5, dge="hwdge"))[:, 0]
    engine = 8 * (TRN2.dma_descriptor_s + 1024 / TRN2.dma_bytes_per_s)
    np.testing.assert_allclose(np.diff(starts), 15 * timing.dma_stagger_s + engine, rtol=1e-9)
    small = Script()
    matrix = small.tile((4096, 4096), "bfloat16", "hbm")
    for i in range(5):
        here = slice(128 * i, 128 * i + 128), slice(0, 128)
        tile = small.tile((128, 128), "bfloat16")
        small.add("dma_copy", "dma", (matrix.operand("src", *here),), (tile.operand("dst"),), dge="hwdge")
    starts = np.array(schedule(small.trace(), TRN2).start)
    np.testing.assert_allclose(np.diff(starts), timing.descriptor_generation_s, rtol=1e-9)


@pytest.mark.parametrize("dge", ["none", "swdge"])
def test_descriptors_that_lie_ready_keep_the_queues_full(dge):
    starts = np.array(copies(5, dge=dge))[:, 0]
    engine = 8 * (TRN2.dma_descriptor_s + 1024 / TRN2.dma_bytes_per_s)
    np.testing.assert_allclose(np.diff(starts), engine, rtol=1e-9)  # 259 GB/s, as measured over mixed rings


def test_an_indirect_transfer_takes_gpsimd_for_its_descriptors():
    starts = np.array(copies(3, dge="swdge", indirect=True))[:, 0]
    timing = TRN2.timing
    expected = max(timing.software_dge_s, 128 * timing.software_descriptor_s)
    np.testing.assert_allclose(np.diff(starts), expected, rtol=1e-9)


def test_a_transfer_starts_long_after_the_engine_whose_result_it_moves():
    script = Script()
    tile = script.tile((128, 512))
    script.add("memset", "vector", (), (tile.operand("dst"),))
    script.copy(script.tile((128, 512), "float32", "hbm").operand("dst"), tile.operand("src"))
    plan = schedule(script.trace(), TRN2)
    assert plan.start[1] - plan.end[0] == pytest.approx(
        1.3e-6, rel=1e-12
    )  # bandwidth guide: from the semaphore to the start


def test_activation_tables_are_loaded_when_they_change():
    def script(tables):
        here = Script()
        tile = here.tile((128, 64))
        for table in tables:
            here.add("activation", "scalar", (tile.operand("data"),), (tile.operand("dst"),), table=table)
        return schedule(here.trace(), TRN2)

    same, turns = script("aaaa"), script("abab")
    assert (same.table_loads, turns.table_loads) == (1, 4)
    assert turns.total_s - same.total_s == pytest.approx(3 * TRN2.timing.table_load_s, rel=1e-12)


def test_covered_counts_overlaps_once():
    assert covered([(0, 2), (1, 3), (5, 6), (5, 5.5)]) == 4
