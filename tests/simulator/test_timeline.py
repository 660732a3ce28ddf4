"""Tests of the Chrome-trace timeline: what Perfetto needs, in order, without overlaps in a lane."""

import itertools
import json

import pytest

from nkisim.hardware import TRN2
from nkisim.price.cost import price, rows
from nkisim.price.schedule import schedule
from nkisim.price.timeline import FIRST_QUEUE, timeline, write_timeline
from tests.simulator.hand_made import Script, matmul


def complete(trace):
    return [e for e in timeline(trace)["traceEvents"] if e["ph"] == "X"]


def test_every_instruction_of_an_engine_is_one_event_at_its_modelled_time():
    trace = matmul(256, 1024, 256)
    plan = schedule(trace, TRN2)
    found = {e["args"]["index"]: e for e in complete(trace) if e["cat"] != "dma"}
    assert set(found) == {i for i, x in enumerate(trace.instructions) if x.engine != "dma"}
    for index, event in found.items():
        assert event["ts"] == plan.start[index] * 1e6
        assert event["name"] == trace.instructions[index].opcode
        assert event["args"]["line"].startswith("kernel.py:")


def test_every_transfer_is_an_event_in_each_queue_that_moves_a_part_of_it():
    trace = matmul(256, 1024, 256)
    plan = schedule(trace, TRN2)
    parts: dict[int, list] = {}
    for event in complete(trace):
        if event["cat"] == "dma":
            parts.setdefault(event["args"]["index"], []).append(event)
    assert set(parts) == {i for i, x in enumerate(trace.instructions) if x.engine == "dma"}
    for index, events in parts.items():
        moved = plan.transfers[index]
        assert [e["tid"] - FIRST_QUEUE for e in events] == list(moved.engines)
        assert min(e["ts"] for e in events) == plan.start[index] * 1e6
        assert max(e["ts"] + e["dur"] for e in events) <= plan.end[index] * 1e6 + 1e-9
        assert ["line" in e["args"] for e in events] == [True] + [False] * (len(events) - 1)


def test_no_two_events_of_a_queue_overlap_and_only_what_is_used_has_a_row_and_a_name():
    events = timeline(matmul(256, 1024, 512))["traceEvents"]
    lanes: dict[int, list[tuple[float, float]]] = {}
    for event in events:
        if event["ph"] == "X" and event["cat"] == "dma":
            lanes.setdefault(event["tid"], []).append((event["ts"], event["ts"] + event["dur"]))
    assert len(lanes) == 16
    for spans in lanes.values():
        assert all(a[1] <= b[0] + 1e-9 for a, b in itertools.pairwise(sorted(spans)))
    named = {e["tid"] for e in events if e["name"] == "thread_name"}
    assert named == {e["tid"] for e in events if e["ph"] == "X"}


def narrow():
    """Two loads of eight partitions, for the first queue, and one of 32 partitions, for four."""
    script = Script()
    source = script.tile((128, 512), "float32", "hbm")
    for height in (8, 8, 32):
        script.copy(script.tile((height, 512)).operand("dst"), source.operand("src", slice(0, height)))
    return script.trace()


def test_a_kernel_of_few_partitions_has_rows_for_the_queues_that_it_uses_in_text_and_file():
    cost = price(narrow())
    assert [n for _, n in cost.queues] == [3, 1, 1, 1] + [0] * 12
    assert sum(s for s, _ in cost.queues) == pytest.approx(cost.dma_queue_s, rel=1e-12)
    lines = [line for line in rows(cost) if line[0].startswith("  queue")]
    assert [name for name, _ in lines] == ["  queue 0", "  queues 1 to 3, each"]
    assert lines[0][1].endswith(" % busy, 3 transfers") and cost.as_json()["queues"][1][1] == 1
    assert {e["tid"] - FIRST_QUEUE for e in complete(narrow())} == {0, 1, 2, 3}


def test_the_file_is_json_and_holds_every_core(tmp_path):
    trace = matmul(128, 512, 128)
    other = type(trace)(trace.kernel, trace.target, trace.instructions, trace.allocations, core=1)
    write_timeline(tmp_path / "out.json", [trace, other])
    read = json.loads((tmp_path / "out.json").read_text())
    assert {e["pid"] for e in read["traceEvents"]} == {0, 1}
    assert read["otherData"]["modelled"] is True
    assert "modelled" in read["traceEvents"][0]["args"]["name"]
