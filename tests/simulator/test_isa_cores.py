"""Tests of cores that meet: the core group, sendrecv and core_barrier."""

import numpy as np
import pytest

from nkisim import isa as nisa
from nkisim import language as nl
from nkisim.chip.core_threads import CoreDeadlock, CoreGroup
from nkisim.chip.errors import SimulatorError
from nkisim.run.launch import Kernel, run
from tests.simulator.tiles import filled, refused


@pytest.mark.parametrize("seed", [None, 0, 1, 2])
@pytest.mark.parametrize("size", [1, 2, 5])
def test_every_member_receives_what_all_brought(size, seed):
    group = CoreGroup(size, seed)

    def body(rank):
        rounds = []
        for step in range(3):
            rounds.append(group.exchange(rank, tuple(range(size)), "all", (rank, step)))
        return rounds

    expected = [[(rank, step) for rank in range(size)] for step in range(3)]
    assert group.run([lambda rank=rank: body(rank) for rank in range(size)]) == [expected] * size


def test_cores_run_one_at_a_time_so_a_run_is_reproducible():
    def log_of(seed):
        group, log = CoreGroup(3, seed), []

        def body(rank):
            for step in range(4):
                log.append((rank, step))
                group.exchange(rank, (0, 1, 2), "x", None)

        group.run([lambda rank=rank: body(rank) for rank in range(3)])
        return log

    assert log_of(None) == log_of(None) and log_of(7) == log_of(7)
    assert len({tuple(log_of(seed)) for seed in range(5)}) > 1  # a seed shuffles the order


def test_waiting_for_each_other_on_different_pipes_is_a_deadlock():
    group = CoreGroup(2)
    bodies = [lambda rank=rank: group.exchange(rank, (0, 1), "sendrecv", None, pipe=rank) for rank in range(2)]
    with pytest.raises(CoreDeadlock, match=r"deadlock: core 0 waits in sendrecv .*; core 1 waits in sendrecv"):
        group.run(bodies)


def test_waiting_for_a_core_that_has_ended_is_a_deadlock():
    group = CoreGroup(2)
    with pytest.raises(CoreDeadlock, match="deadlock: core 0 waits in barrier"):
        group.run([lambda: group.exchange(0, (0, 1), "barrier", None), lambda: None])


def test_the_error_of_a_core_is_not_hidden_by_those_who_wait_for_it():
    group = CoreGroup(3)

    def failing():
        raise SimulatorError("the cause")

    with pytest.raises(SimulatorError, match="the cause"):
        group.run([lambda: group.exchange(0, (0, 2), "b", None), lambda: None, failing])


def test_different_instructions_do_not_meet():
    group = CoreGroup(2)
    with pytest.raises(
        SimulatorError, match="meet in different instructions: all_reduce on core 0, all_gather on core 1"
    ):
        group.run(
            [lambda: group.exchange(0, (0, 1), "all_reduce", 1), lambda: group.exchange(1, (0, 1), "all_gather", 1)]
        )


# --- sendrecv and core_barrier --------------------------------------------------------------------------


def swap(x):
    """Each core sends its half of x + core number, and stores what the other sent."""
    core = nl.program_id(0)
    out = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm)
    mine, other = nl.load(x[core]), nl.ndarray(x[core].shape, x.dtype)
    nisa.sendrecv(src=mine, dst=other, send_to_rank=1 - core, recv_from_rank=1 - core, pipe_id=0)
    nl.store(out[core], other)
    return out


@pytest.mark.parametrize("mode", ["run", "reorder"])
@pytest.mark.parametrize("dtype", [np.float32, np.int32, np.uint8])
def test_sendrecv_swaps_tiles(mode, dtype):
    x = np.arange(2 * 4 * 6).reshape(2, 4, 6).astype(dtype)
    found = run(Kernel(swap, lnc=2), (x,), mode=mode).outputs
    assert np.array_equal(found, x[::-1])
    run(Kernel(swap, lnc=2), (x,), mode="trace")


@pytest.mark.parametrize("mode", ["run", "reorder"])
def test_a_barrier_makes_the_other_cores_half_visible(mode):
    def kernel(x):
        core = nl.program_id(0)
        shared = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm)
        out = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm)
        nl.store(shared[core], nl.load(x[core]))
        nisa.core_barrier(data=shared, cores=(0, 1))
        nl.store(out[core], nl.load(shared[1 - core]))
        return out

    x = np.arange(2 * 4 * 6, dtype=np.float32).reshape(2, 4, 6)
    assert np.array_equal(run(Kernel(kernel, lnc=2), (x,), mode=mode).outputs, x[::-1])


def test_without_the_barrier_the_other_cores_half_is_uninitialised():
    def kernel(x):
        core = nl.program_id(0)
        shared = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm)
        nl.store(shared[core], nl.load(x[core]))
        nl.load(shared[1 - core])

    with pytest.raises(SimulatorError, match="uninitialised"):
        run(Kernel(kernel, lnc=2), (np.zeros((2, 4, 6), np.float32),))


@pytest.mark.parametrize("reader", [0, 1])
@pytest.mark.parametrize("ordered", [True, False])
def test_what_one_core_reads_the_other_writes_after_a_barrier_only(reader, ordered):
    def kernel(x):
        shared = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm)
        out = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm)
        if nl.program_id(0) == 0:
            nl.store(shared, nl.load(x))
        nisa.core_barrier(data=shared, cores=(0, 1))
        if nl.program_id(0) == reader:
            nl.store(out, nl.load(shared))
        if ordered:
            nisa.core_barrier(data=shared, cores=(0, 1))
        if nl.program_id(0) != reader:
            nl.store(shared, nl.add(nl.load(x), 1.0))
        return out

    x = np.arange(24, dtype=np.float32).reshape(4, 6)
    if ordered:
        assert np.array_equal(run(Kernel(kernel, lnc=2), (x,)).outputs, x)
        return
    with pytest.raises(SimulatorError, match=r"overlaps what core . (reads|writes), and nothing orders"):
        run(Kernel(kernel, lnc=2), (x,))


def test_cores_with_different_control_flow_deadlock():
    def kernel(x):
        out = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm)
        if nl.program_id(0) == 0:
            nisa.core_barrier(data=out, cores=(0, 1))

    for mode in ("run", "reorder", "trace"):
        with pytest.raises(SimulatorError, match="deadlock: core 0 waits in core_barrier"):
            run(Kernel(kernel, lnc=2), (np.zeros((4, 6), np.float32),), mode=mode)


def test_a_receiver_names_the_core_that_sends_to_it():
    def kernel(x):
        core = nl.program_id(0)
        tile, other = nl.load(x), nl.ndarray(x.shape, x.dtype)
        nisa.sendrecv(src=tile, dst=other, send_to_rank=core, recv_from_rank=1 - core, pipe_id=0)

    with pytest.raises(SimulatorError, match="core 1 receives from core 0, which sends to core 0"):
        run(Kernel(kernel, lnc=2), (np.zeros((4, 6), np.float32),))


def sendrecv(src=(4, 8), dst=(4, 8), dtype="float32", buffer=None, **options):
    settings = {"send_to_rank": 1, "recv_from_rank": 1, "pipe_id": 0} | options
    return lambda: nisa.sendrecv(src=filled(src, dtype, buffer), dst=filled(dst), **settings)


def hbm_tile():
    return nl.ndarray((4, 8), "float32", buffer=nl.shared_hbm)


def barrier(data=None, **options):
    def body():
        made = nl.ndarray((4, 8), "float32", buffer=data or nl.shared_hbm)
        nisa.core_barrier(data=made, **({"cores": (0, 1)} | options))

    return body


@pytest.mark.parametrize(
    ("body", "match", "rule", "target", "lnc"),
    [
        (sendrecv(), "needs NeuronCore-v3", 30, "trn1", 1),
        (sendrecv(), "launch it as kernel.2.", 37, "trn2", 1),
        (sendrecv(buffer=nl.psum), "src is in PSUM", 27, "trn2", 2),
        (lambda: nisa.sendrecv(hbm_tile(), filled((4, 8)), 1, 1, 0), "src is in HBM", None, "trn2", 2),
        (sendrecv(dtype="int32"), "the same dtype", None, "trn2", 2),
        (sendrecv(dst=(4, 9)), "the same shape", None, "trn2", 2),
        (sendrecv(send_to_rank=2), "an integer from 0 to 1", None, "trn2", 2),
        (sendrecv(recv_from_rank=-1), "an integer from 0 to 1", None, "trn2", 2),
        (sendrecv(dma_engine=9), "nisa.dma_engine is needed", 10, "trn2", 2),
        (sendrecv((4, 257), (4, 257), dma_engine=nisa.dma_engine.gpsimd_dma), "gpsimd_dma moves 256", None, "trn2", 2),
        (barrier(), "launch it as kernel.2.", 37, "trn2", 1),
        (barrier(cores=(0,)), "only .0, 1. is supported", 37, "trn2", 2),
        (barrier(data=nl.private_hbm), "nl.shared_hbm is needed", None, "trn2", 2),
        (barrier(engine=nisa.engine.dma), "engine=dma", 30, "trn2", 2),
    ],
)
def test_core_instructions_refuse(body, match, rule, target, lnc):
    refused(body, match, rule, target, lnc)
