"""Tests of the Chrome-trace timeline: what Perfetto needs, in order, without overlaps in a lane."""

import itertools
import json

from tests._nki.simulator.hand_made import matmul
from trnpy._nki.hardware import TRN2
from trnpy._nki.simulator.price.schedule import schedule
from trnpy._nki.simulator.price.timeline import timeline, write_timeline


def test_every_instruction_is_one_complete_event_at_its_modelled_time():
    trace = matmul(256, 1024, 256)
    events = timeline(trace)["traceEvents"]
    plan = schedule(trace, TRN2)
    complete = {e["args"]["index"]: e for e in events if e["ph"] == "X"}
    assert set(complete) == set(range(len(trace.instructions)))
    for index, event in complete.items():
        assert event["ts"] == plan.start[index] * 1e6
        assert event["name"] == trace.instructions[index].opcode
        assert event["args"]["line"].startswith("kernel.py:")


def test_no_two_events_of_a_dma_lane_overlap_and_every_lane_has_a_name():
    events = timeline(matmul(256, 1024, 512))["traceEvents"]
    lanes: dict[int, list[tuple[float, float]]] = {}
    for event in events:
        if event["ph"] == "X" and event["cat"] == "dma":
            lanes.setdefault(event["tid"], []).append((event["ts"], event["ts"] + event["dur"]))
    assert len(lanes) > 1
    for spans in lanes.values():
        assert all(a[1] <= b[0] + 1e-9 for a, b in itertools.pairwise(sorted(spans)))
    named = {e["tid"] for e in events if e["name"] == "thread_name"}
    assert named >= {e["tid"] for e in events if e["ph"] == "X"}


def test_the_file_is_json_and_holds_every_core(tmp_path):
    trace = matmul(128, 512, 128)
    other = type(trace)(trace.kernel, trace.target, trace.instructions, trace.allocations, core=1)
    write_timeline(tmp_path / "out.json", [trace, other])
    read = json.loads((tmp_path / "out.json").read_text())
    assert {e["pid"] for e in read["traceEvents"]} == {0, 1}
    assert read["otherData"]["modelled"] is True
    assert "modelled" in read["traceEvents"][0]["args"]["name"]
