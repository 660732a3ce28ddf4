"""Engines that share a memory's port use it one after the other on trn1, and at the same time on later chips."""

import itertools

import pytest

from nkisim.hardware import TRN1, TRN2
from nkisim.price.durations import compute_duration
from nkisim.price.schedule import schedule
from tests.simulator.hand_made import Script


def spans(machine, buffer, *engines):
    """When each of 20 instructions of each engine, on a tile of its own, keeps its engine busy; by start."""
    script = Script(machine.name)
    ours = {e: script.tile((128, 512), "float32", buffer) for e in engines}
    for _ in range(20):
        for engine, tile in ours.items():
            script.add("tensor_scalar", engine, (tile.operand("data"),), (tile.operand("dst"),))
    trace = script.trace()
    starts = schedule(trace, machine).start
    return sorted((a, a + compute_duration(x, machine).busy_s) for a, x in zip(starts, trace.instructions, strict=True))


@pytest.mark.parametrize(("machine", "in_turn"), [(TRN1, True), (TRN2, False)])
@pytest.mark.parametrize(
    ("buffer", "engines", "shared"),
    [("psum", ("vector", "scalar"), True), ("sbuf", ("vector", "gpsimd"), True), ("sbuf", ("vector", "scalar"), False)],
)
def test_vector_and_scalar_engine_use_psum_in_turn_on_trn1_only(machine, in_turn, buffer, engines, shared):
    """NeuronCore-v2: VectorE and ScalarE not PSUM, VectorE and GpSimdE not SBUF in parallel; lifted on v3 (arch)."""
    gaps = [after - end for (_, end), (after, _) in itertools.pairwise(spans(machine, buffer, *engines))]
    alone = all(gap > -1e-12 for gap in gaps)
    assert alone == (in_turn and shared)
    assert not alone or max(gaps) >= machine.timing.semaphore_s * (1 - 1e-9)  # from one engine to the other
