"""Tests of the cost model on traces written by hand: clocks, hazards, queues, throttle, memory reuse."""

import time
from dataclasses import replace

import numpy as np
import pytest

from nkisim.chip.record import Instruction, Loop, Trace
from nkisim.hardware import (
    COMPILE_S,
    COMPILE_S_PER_INSTRUCTION,
    COMPILE_S_PER_LOOPED,
    COMPILE_S_PER_REGION,
    MACHINES,
    TRN1,
    TRN2,
)
from nkisim.price.cost import barrier_s, compile_s, price, rows, schedules
from nkisim.price.dependencies import dependencies
from nkisim.price.durations import compute_duration, product_columns, tensor_duration, transfer
from nkisim.price.loops import REFETCHED, entries, loops_s, pieces, turn_s
from nkisim.price.schedule import covered, schedule
from tests.simulator.hand_made import Script, matmul

SEMAPHORE = TRN2.timing.semaphore_s


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


def test_an_instruction_waits_for_the_one_whose_result_it_reads():
    script = Script()
    a, b, c = (script.tile((128, 512)) for _ in range(3))
    script.add("tensor_copy", "vector", (a.operand("src"),), (b.operand("dst"),))
    script.add("activation", "scalar", (b.operand("data"),), (c.operand("dst"),))
    plan = schedule(script.trace(), TRN2)
    assert plan.start[1] == pytest.approx(plan.end[0] + SEMAPHORE, rel=1e-12)


def test_a_write_waits_for_earlier_readers_of_any_part_of_its_tile_but_of_no_other_tile():
    script = Script()
    a, b, c = (script.tile((128, 512)) for _ in range(3))
    script.add("tensor_copy", "vector", (a.operand("src"),), (b.operand("dst"),))
    script.add("activation", "scalar", (c.operand("data"),), (a.operand("dst"),))
    plan = schedule(script.trace(), TRN2)
    assert plan.start[1] >= plan.end[0]
    script = Script()
    a, b, c = (script.tile((128, 512)) for _ in range(3))
    low, high = slice(0, 256), slice(256, 512)
    script.add("tensor_copy", "vector", (a.operand("src", None, low),), (b.operand("dst", None, low),))
    script.add("activation", "scalar", (c.operand("data", None, high),), (a.operand("dst", None, high),))
    script.add("activation", "scalar", (c.operand("data", None, high),), (script.tile((128, 512)).operand("dst"),))
    script.instructions.append(script.instructions.pop(1))  # the one of a tile of its own first
    plan = schedule(script.trace(), TRN2)
    assert plan.start[1] == 0 and plan.start[2] >= plan.end[0]  # one semaphore a tile, whatever part of it


def test_slices_of_one_tile_make_a_slower_ring_than_tiles():
    def seconds(tiles):
        script = Script()
        whole = [script.tile((128, 512 * 4 // tiles)) for _ in range(tiles)]
        source = script.tile((128, 512))
        for t in range(64):
            width = 512 * 4 // tiles
            first = 512 * (t % 4) % width
            here = whole[t % tiles], slice(first, first + 512)
            script.add("activation", "scalar", (source.operand("data"),), (here[0].operand("dst", None, here[1]),))
            done = script.tile((128, 512))
            script.add("tensor_copy", "vector", (here[0].operand("src", None, here[1]),), (done.operand("dst"),))
        return schedule(script.trace(), TRN1).total_s

    assert seconds(1) > 1.5 * seconds(4)


def test_engines_fill_parts_of_a_tile_side_by_side_and_a_part_is_read_once_it_is_written():
    script = Script()
    a, b, tile = (script.tile((128, 512)) for _ in range(3))
    low, high = slice(0, 256), slice(256, 512)
    script.add("tensor_copy", "vector", (a.operand("src", None, low),), (tile.operand("dst", None, low),))
    script.add("activation", "scalar", (b.operand("data"),), (tile.operand("dst", None, high),))
    script.add("tensor_copy", "gpsimd", (tile.operand("src", None, low),), (script.tile((128, 256)).operand("dst"),))
    script.add("tensor_copy", "gpsimd", (tile.operand("src"),), (script.tile((128, 512)).operand("dst"),))
    plan = schedule(script.trace(), TRN2)
    assert plan.start[0] == plan.start[1] - TRN2.timing.table_load_s * plan.table_loads == 0
    assert plan.start[2] == pytest.approx(plan.end[0] + SEMAPHORE, rel=1e-12) and plan.start[2] < plan.end[1]
    assert plan.start[3] >= max(plan.end[:2])


def test_every_engine_that_writes_waits_for_the_reads_of_a_tile_not_only_the_first_of_them():
    script = Script()
    tile, other = script.tile((128, 512)), script.tile((128, 64))
    parts = [slice(64 * t, 64 * t + 64) for t in range(3)]
    script.add("tensor_copy", "gpsimd", (tile.operand("src"),), (script.tile((128, 512)).operand("dst"),))
    for part, engine in zip(parts, ("vector", "scalar", "vector"), strict=True):
        script.add("tensor_copy", engine, (other.operand("src"),), (tile.operand("dst", None, part),))
    plan = schedule(script.trace(), TRN2)
    assert min(plan.start[1:]) >= plan.end[0]


def test_within_an_engine_parts_of_a_tile_do_not_wait_for_each_other():
    script = Script()
    tile, source = script.tile((128, 4096)), script.tile((128, 64))
    for t in range(64):
        part = slice(64 * t, 64 * t + 64)
        script.add("tensor_copy", "vector", (source.operand("src"),), (tile.operand("dst", None, part),))
    assert schedule(script.trace(), TRN1).total_s == pytest.approx(5.84e-6, rel=0.1)  # kiln, trn1


@pytest.mark.parametrize(
    "rows, depth, columns, dtype, ns",
    [(128, 128, 512, "bfloat16", 219), (128, 128, 128, "bfloat16", 48), (128, 128, 512, "float32", 1150),
     (128, 128, 128, "float32", 192), (128, 1, 128, "float32", 233), (1, 128, 512, "bfloat16", 373),
     (128, 8, 512, "bfloat16", 421)],
)  # fmt: skip
def test_products_take_their_measured_times_on_trn1(rows, depth, columns, dtype, ns):
    script = Script("trn1")
    left, right = script.tile((rows, depth), dtype), script.tile((rows, columns), dtype)
    bank = script.tile((depth, columns), "float32", "psum")
    script.product(bank.operand("dst"), left.operand("stationary"), right.operand("moving"))
    assert tensor_duration(script.instructions[0], TRN1).busy_s == pytest.approx(ns * 1e-9, rel=0.25)


def test_wide_float32_products_take_more_passes_on_trn1():
    def passes(columns, machine):
        script = Script(machine.name)
        left, right, bank = (script.tile((128, n)) for n in (128, columns, columns))
        script.product(bank.operand("dst"), left.operand("stationary"), right.operand("moving"))
        return product_columns(script.instructions[0], machine)[3]

    assert [passes(n, TRN2) for n in (64, 128, 320, 512)] == [4.0] * 4
    assert [passes(n, TRN1) for n in (64, 128)] == [4.0] * 2
    assert passes(320, TRN1) == pytest.approx(4.7, rel=1e-14) and passes(512, TRN1) == pytest.approx(5.4, rel=1e-14)


def test_two_tiles_of_different_types_cost_a_copy_more():
    """387 ns were measured for 128 columns on trn1, 240 of which take operands of one type by the same formula."""

    def busy_s(other, machine=TRN1, buffer="sbuf"):
        script = Script("trn1")
        one, two, out = script.tile((128, 128)), script.tile((128, 128), other, buffer), script.tile((128, 128))
        script.add("tensor_tensor", "vector", (one.operand("data1"), two.operand("data2")), (out.operand("dst"),))
        script.add("tensor_copy", "vector", (one.operand("src"),), (out.operand("dst"),))
        alone, copy = (compute_duration(x, machine).busy_s for x in script.instructions)
        return alone, copy

    (mixed, copy), (same, _) = busy_s("bfloat16"), busy_s("float32")
    assert mixed == pytest.approx(same + copy, rel=1e-12) and mixed == pytest.approx(387e-9, rel=0.05)
    assert busy_s("bfloat16", buffer="psum") == busy_s("float32", buffer="psum")
    assert busy_s("int32") == busy_s("float32")  # not measured


@pytest.mark.parametrize("width, times", [(1, 1.68), (2, 1.64), (8, 2.09), (32, 3.0), (512, 1.42)])
def test_gathers_of_short_rows_take_longer_with_their_bytes(width, times):
    """Microseconds of one of many, of 128 rows of ``width`` float32, on trn1 (kiln)."""
    script = Script("trn1")
    table = script.tile((4096, width), "float32", "hbm")
    for _ in range(3):
        tile = script.tile((128, width))
        read = (table.operand("src", slice(0, 128)),)
        script.add("dma_copy", "dma", read, (tile.operand("dst"),), dge="swdge", indirect=True)
    starts = np.array(schedule(script.trace(), TRN1).start)
    np.testing.assert_allclose(np.diff(starts), times * 1e-6, rtol=0.25)


@pytest.mark.parametrize(
    "pitch, factor, stored",
    [(4096, 1.5, 1), (4096 + 128, 1, 1), (512, 1, 1), (8192, 1.5, 1.5), (2**20, 1.5, 1.5)],
)
def test_rows_a_power_of_two_apart_take_half_as_long_again_on_trn1(pitch, factor, stored):
    def seconds(machine, pitch, store=False):
        script = Script()
        rows = script.tile((128, pitch), "float32", "hbm").operand("src", None, slice(0, 512))
        tile = script.tile((128, 512)).operand("dst")
        script.copy(*((rows, tile) if store else (tile, rows)))
        return transfer(script.instructions[0], machine).engine_s

    assert TRN1.timing.power_of_two_factor == 1.5 and TRN2.timing.power_of_two_factor == 1
    even = replace(TRN1, timing=TRN1.timing._replace(power_of_two_factor=1))
    assert seconds(TRN1, pitch) == pytest.approx(factor * seconds(even, pitch), rel=1e-12)
    assert seconds(TRN1, pitch, True) == pytest.approx(stored * seconds(even, pitch, True), rel=1e-12)


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


def test_tiles_beyond_the_memory_wait_for_the_ones_they_replace():
    few, banks = products(8), products(9)
    for script in (few, banks):
        for index, tile in enumerate(t for t in script.tiles if t.buffer == "psum"):
            out = script.tile((128, 512))
            script.instructions.insert(
                2 * index + 1,
                Instruction("tensor_copy", "vector", "k.py", 1, (tile.operand("src"),), (out.operand("dst"),)),
            )
    plan = schedule(banks.trace(), TRN2)
    ninth = 16
    assert banks.trace().instructions[ninth].opcode == "nc_matmul"
    assert plan.start[ninth] >= plan.end[1] + SEMAPHORE  # the ninth bank is the first one again


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


def test_strided_rows_cost_a_descriptor_per_element():
    script = Script()
    column = script.tile((4096, 512), "float32", "hbm").operand("src", slice(0, 128), slice(0, 1))
    script.copy(script.tile((128, 1), "float32").operand("dst"), column)
    assert transfer(script.instructions[0], TRN2).descriptor_bytes == 4


@pytest.mark.parametrize(
    ("opcode", "engine", "dtype", "source", "per_element"),
    [
        ("tensor_copy", "vector", "bfloat16", "sbuf", 0.25),  # performance modes of 16 bits (trainium2_arch.rst)
        ("tensor_copy", "vector", "bfloat16", "psum", 0.5),
        ("tensor_copy", "vector", "float32", "sbuf", 1),
        ("tensor_copy", "scalar", "bfloat16", "sbuf", 1),
        ("tensor_tensor", "vector", "bfloat16", "sbuf", 1),
        ("tensor_tensor", "vector", "float32", "sbuf", 2),  # both inputs through one port
        ("tensor_tensor", "vector", "float32", "psum", 1),
    ],
)
def test_an_element_takes_its_documented_cycles(opcode, engine, dtype, source, per_element):
    def seconds(columns, **options):
        script = Script()
        operands = [script.tile((128, columns), dtype, b).operand(r) for r, b in (("data1", source), ("dst", "sbuf"))]
        script.add(opcode, engine, (operands[0],), (operands[1],), **options)
        return compute_duration(script.instructions[0], TRN2).busy_s

    hz = TRN2.vector_hz if engine == "vector" else TRN2.scalar_hz
    assert (seconds(1024) - seconds(512)) * hz == pytest.approx(512 * per_element, rel=1e-12)
    assert (seconds(512, reduce_res=True) - seconds(512)) * hz == pytest.approx(
        TRN2.timing.accumulator_cycles, rel=1e-12
    )


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


def loop_trace(executions: int | None, moves: bool = False, body: int = 2) -> Trace:
    """A vector operation, ``body`` in a loop (or as many loads of 128 x 512), and one after it."""
    script = Script()
    tile, source = script.tile((128, 512)), script.tile((128, 512), "float32", "hbm")
    for place in range(body + 2):
        if moves and 1 <= place <= body:
            script.copy(tile.operand("dst"), source.operand("src"))
        else:
            script.add("tensor_copy", "vector", (tile.operand("src"),), (tile.operand("dst"),))
    trace = script.trace()
    loops = (Loop(1, 1 + body, executions, "k.py", 2),)
    return Trace(trace.kernel, "trn2", trace.instructions, trace.allocations, loops=loops)


def alone_s(executions: int) -> float:
    """Of one turn of that loop, without what a loop costs."""
    found, _ = (schedule(p.trace, TRN2).total_s for p in pieces(loop_trace(executions))[1:])
    return found


def test_a_turn_of_a_loop_costs_its_body_and_a_barrier_and_compiles_once():
    once, often = price(loop_trace(1)), price(loop_trace(1001))
    assert often.instructions == 2 + 2 * 1001
    assert often.compiled == once.compiled == 4 and often.compile_s == once.compile_s
    turn = alone_s(1) + TRN2.timing.turn_barrier_s
    assert often.device_s - once.device_s == pytest.approx(1000 * turn, rel=1e-9)
    unrolled = price(Trace("k", "trn2", loop_trace(1).instructions, loop_trace(1).allocations))
    assert once.device_s - unrolled.device_s >= TRN2.timing.region_s  # entering costs, and nothing overlaps


def test_a_turn_that_moves_data_drains_the_queues_and_fetches_its_instructions_again():
    timing = TRN2.timing

    def turn(body):
        trace = loop_trace(1, True, body)
        return turn_s(trace.loops[0], trace, TRN2)

    assert turn(2) == pytest.approx(timing.turn_barrier_s + timing.turn_drain_s * 2 / REFETCHED, rel=1e-12)
    assert turn(2 * REFETCHED) == pytest.approx(timing.turn_barrier_s + 2 * timing.turn_drain_s, rel=1e-12)
    assert turn(100 * REFETCHED) == pytest.approx(timing.turn_barrier_s + timing.turn_restart_s, rel=1e-12)


def test_nothing_of_a_turn_overlaps_with_the_next_so_loads_before_the_loop_are_faster_than_loads_in_it():
    turns = 50
    looped = price(loop_trace(turns, True)).device_s
    script = Script()
    source = script.tile((128, 512), "float32", "hbm")
    for _ in range(2 * turns):
        script.copy(script.tile((128, 512)).operand("dst"), source.operand("src"))
    assert looped > 3 * price(script.trace()).device_s  # one after the other in turns, side by side without


def test_a_loop_of_unknown_length_counts_one_turn():
    assert price(loop_trace(None)).device_s == price(loop_trace(1)).device_s


def test_nested_loops_execute_the_inner_body_once_per_outer_turn():
    trace = loop_trace(1)
    loops = (Loop(0, 4, 3, "k.py", 1), Loop(1, 3, 15, "k.py", 2))
    nested = Trace("k", "trn2", trace.instructions, trace.allocations, loops=loops)
    assert [(p.first, len(p.trace.instructions), p.executions) for p in pieces(nested)] == [
        (0, 1, 3),
        (1, 2, 15),
        (3, 1, 3),
    ]
    assert [entries(x, loops) for x in loops] == [1, 3]
    timing = TRN2.timing
    assert loops_s(nested, TRN2) == pytest.approx(18 * timing.turn_barrier_s + 4 * timing.region_s, rel=1e-12)


def test_a_tile_from_before_a_loop_keeps_its_memory_in_it():
    script = Script()
    kept = script.tile((128, 40_000))
    small = [script.tile((128, 2048)) for _ in range(16)]
    script.add("memset", "vector", (), (kept.operand("dst"),))
    for tile in small:
        script.add("memset", "vector", (), (tile.operand("dst"),))
    script.add("tensor_copy", "vector", (kept.operand("src"),), (small[-1].operand("dst", None, slice(0, 1)),))
    trace = script.trace()
    looped = Trace("k", "trn2", trace.instructions, trace.allocations, loops=(Loop(1, 17, 5, "k.py", 2),))
    body = pieces(looped)[1].trace
    assert next(a for a in body.allocations if a.storage == kept.storage).first < 0
    waits = dependencies(body, TRN2)
    assert any(waits)  # 160 000 bytes are taken: the last small ones take the place of the first


def test_compiling_costs_regions_and_what_is_in_them():
    plain = price(Trace("k", "trn2", loop_trace(1).instructions, loop_trace(1).allocations)).compile_s
    assert plain == pytest.approx(COMPILE_S + 4 * COMPILE_S_PER_INSTRUCTION, rel=1e-12)
    assert price(loop_trace(9)).compile_s - plain == pytest.approx(
        COMPILE_S_PER_REGION + 2 * COMPILE_S_PER_LOOPED, rel=1e-12
    )


# The published compile times of docs/hardware.md#compile-cost: instructions, regions, seconds.
COMPILED = [
    (9_000, 0, 4.7),
    (51_600, 0, 15),
    (106_000, 3, 131),
    (168_000, 5, 262),
    (266_000, 9, 555),
    (51_600, 41, 475),
]


@pytest.mark.parametrize("instructions, regions, published", COMPILED)
def test_compile_times_are_within_a_third_of_the_published_ones(instructions, regions, published):
    one = loop_trace(1).instructions[0]
    each = instructions // max(1, regions)
    loops = tuple(Loop(i * each, (i + 1) * each, 2, "k.py", i) for i in range(regions))
    trace = Trace("k", "trn1", (one,) * instructions, (), loops=loops)
    assert compile_s(trace) == pytest.approx(published, rel=0.35)


def test_bytes_and_utilisation_are_those_of_the_operands():
    cost = price(matmul(256, 1024, 512))
    loads = 2 * 2 * 4 * (128 * 128 + 128 * 512) * 2
    assert cost.hbm_bytes == loads + 256 * 1024 * 2
    assert cost.flops == 2 * 256 * 1024 * 512
    assert cost.tensor_utilisation == pytest.approx(
        cost.flops / cost.device_s / (2 * 128 * 128 * TRN2.tensor_hz), rel=1e-12
    )
    assert 0 < cost.busy("tensor") < cost.busy("dma") <= 1


@pytest.mark.slow
def test_8192_products_are_priced_in_well_under_two_seconds():
    trace = matmul(4096, 4096, 4096)
    began = time.process_time()
    cost = price(trace)
    assert time.process_time() - began < 1.2
    assert cost.engine_instructions["tensor"] == 8192


@pytest.mark.parametrize("target", MACHINES)
def test_every_target_has_a_price_and_the_word_modelled(target):
    cost = price(matmul(128, 512, 256, target=target))
    assert cost.as_json()["modelled"] is True
    assert cost.device_s > MACHINES[target].timing.kernel_floor_s
    assert any("modelled" in label for label, _ in rows(cost))


def test_a_collective_adds_the_hops_of_its_ring_and_the_bytes_on_its_links():
    def end(opcode, **options):
        script = Script()
        a, b = script.tile((1024,), "float32", "hbm"), script.tile((1024,), "float32", "hbm")
        script.add(opcode, "dma", (a.operand("src"),), (b.operand("dst"),), **options)
        return schedule(script.trace(), TRN2).total_s

    alone, hop, link = end("dma_copy"), TRN2.timing.hop_s, 4096 / TRN2.peer_bytes_per_s
    assert end("all_reduce", ranks=4) == pytest.approx(alone + 6 * (hop + link / 4), rel=1e-12)
    assert end("all_gather", ranks=4) == pytest.approx(alone + 3 * (hop + link / 4), rel=1e-12)
    assert end("collective_permute", ranks=4) == pytest.approx(alone + hop + link, rel=1e-12)
    assert end("all_reduce", ranks=1) == pytest.approx(alone, rel=1e-12)


def test_covered_counts_overlaps_once():
    assert covered([(0, 2), (1, 3), (5, 6), (5, 5.5)]) == 4


@pytest.mark.parametrize("seed", range(20))
def test_no_conflicting_instructions_overlap_in_time_in_random_programs(seed):
    rng = np.random.default_rng(seed)
    script = Script()
    tiles = [script.tile((128, 512)) for _ in range(3)] + [script.tile((256, 512), "float32", "hbm") for _ in range(2)]

    def box(role):
        tile = tiles[rng.integers(len(tiles))]
        rows = np.sort(rng.choice(np.arange(0, tile.shape[0] + 1, 32), 2, replace=False))
        columns = np.sort(rng.choice(np.arange(0, 513, 64), 2, replace=False))
        return tile.operand(role, slice(*rows.tolist()), slice(*columns.tolist()))

    touched = []
    for _ in range(60):
        engine = ("vector", "scalar", "gpsimd", "dma")[rng.integers(4)]
        source, target = box("src"), box("dst")
        script.add("dma_copy" if engine == "dma" else "tensor_copy", engine, (source,), (target,))
        touched.append((source, target))
    plan, met = schedule(script.trace(), TRN2), 0
    for later, (source, target) in enumerate(touched):
        for earlier, (read, written) in enumerate(touched[:later]):
            if meet(source, written) or meet(target, read) or meet(target, written):
                if written_only(touched, target) and meet(target, written):
                    continue
                assert plan.start[later] >= plan.end[earlier] - 1e-12, (earlier, later)
                met += 1
    assert met > len(touched)


def meet(a, b):
    """Whether two boxes share an element, by rows and columns."""
    if a.region.storage != b.region.storage:
        return False

    def span(o):
        if o.region.buffer != "hbm":
            return (*o.region.partitions, o.region.start, o.region.stop)
        row, column = divmod(o.region.start, o.strides[0] * 4)
        return row, row + o.shape[0], column, column + o.shape[1] * 4

    p, q = span(a), span(b)
    return p[0] < q[1] and q[0] < p[1] and p[2] < q[3] and q[2] < p[3]


def written_only(touched, target):
    """HBM that nothing reads orders nothing: two writes to it are a matter for the lint."""
    storage = target.region.storage
    return target.region.buffer == "hbm" and all(read.region.storage != storage for read, _ in touched)


def test_side_by_side_columns_of_hbm_are_independent_and_the_same_columns_are_not():
    def second_start(columns):
        script = Script()
        scratch = script.tile((128, 1024), "float32", "hbm")
        a, b = script.tile((128, 512)), script.tile((128, 512))
        script.copy(scratch.operand("dst", None, slice(0, 512)), a.operand("src"))
        script.copy(b.operand("dst"), scratch.operand("src", None, columns))
        plan = schedule(script.trace(), TRN2)
        return plan.start[1]

    beside, across = second_start(slice(512, 1024)), second_start(slice(256, 768))
    assert across - beside >= TRN2.timing.dma_start_s * 0.99  # a dependent transfer is triggered after the other's end


@pytest.mark.slow
def test_thousands_of_regions_of_one_tensor_are_searched_quickly():
    script = Script()
    matrix = script.tile((8192, 8192), "float32", "hbm")
    tile = script.tile((128, 128))
    for i in range(64):
        for j in range(64):
            here = slice(128 * i, 128 * i + 128), slice(128 * j, 128 * j + 128)
            script.copy(tile.operand("dst"), matrix.operand("src", *here))
            script.copy(matrix.operand("dst", *here), tile.operand("src"))
    trace = script.trace()
    began = time.process_time()
    price(trace)
    assert time.process_time() - began < 3


def test_topk_costs_its_documented_four_cycles_an_element():
    script = Script()
    source, values = script.tile((16, 3), "bfloat16"), script.tile((16, 8), "bfloat16")
    script.add("topk", "gpsimd", (source.operand("src"),), (values.operand("val_dst"),), n=42)
    assert schedule(script.trace(), TRN2).total_s * TRN2.gpsimd_hz == pytest.approx(4 * 42 + 8, rel=1e-12)
