"""Tests of the cost model on traces written by hand: clocks, hazards, queues, throttle, memory reuse."""

import time

import pytest

from nkisim.chip.record import Loop, Trace
from nkisim.hardware import (
    COMPILE_S,
    COMPILE_S_PER_INSTRUCTION,
    COMPILE_S_PER_LOOPED,
    COMPILE_S_PER_REGION,
    MACHINES,
    TRN2,
)
from nkisim.price.cost import compile_s, price, rows
from nkisim.price.loops import REFETCHED, entries, loops_s, pieces, turn_s
from nkisim.price.schedule import schedule
from tests.simulator.hand_made import Script, matmul


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


def test_compiling_costs_regions_and_what_is_in_them():
    plain = price(Trace("k", "trn2", loop_trace(1).instructions, loop_trace(1).allocations)).compile_s
    assert plain == pytest.approx(COMPILE_S + 4 * COMPILE_S_PER_INSTRUCTION, rel=1e-12)
    assert price(loop_trace(9)).compile_s - plain == pytest.approx(
        COMPILE_S_PER_REGION + 2 * COMPILE_S_PER_LOOPED, rel=1e-12
    )


# The published compile times of docs/launches.md#compile-cost: instructions, regions, seconds.
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
