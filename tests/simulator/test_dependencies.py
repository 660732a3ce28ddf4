"""Tests of the instructions that an instruction waits for: data hazards, parts of tiles, and reuse of memory."""

import time

import numpy as np
import pytest

from nkisim.chip.record import Instruction, Loop, Trace
from nkisim.hardware import (
    TRN1,
    TRN2,
)
from nkisim.price.cost import price
from nkisim.price.dependencies import dependencies
from nkisim.price.loops import pieces
from nkisim.price.schedule import schedule
from tests.simulator.hand_made import Script

SEMAPHORE = TRN2.timing.semaphore_s


def products(count: int, gap: float = 0.0, dtype: str = "bfloat16", columns: int = 512, target: str = "trn2") -> Script:
    script = Script(target)
    left, right = script.tile((128, 128), dtype), script.tile((128, columns), dtype)
    for _ in range(count):
        bank = script.tile((128, columns), "float32", "psum")
        script.product(bank.operand("dst"), left.operand("stationary"), right.operand("moving"))
    return script


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
