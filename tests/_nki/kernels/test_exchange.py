"""exchange.py against its twin: groups in any order, both modes, limits, the barrier's price, and no finding at all."""

import numpy as np
import pytest

from nkisim.chip.replicas import run_ranks
from nkisim.hardware import ERROR_FACTOR, MACHINES
from nkisim.lint.linter import lint_file
from nkisim.price.cost import barrier_s, price
from nkisim.run.launch import Specification
from trnpy._nki.kernels import source
from trnpy._nki.kernels.ranks import exchange_reference
from trnpy._nki.simulated import kernel

# Seconds of a launch with collectives, by ranks: measured by users (docs/hardware.md).
BARRIERS = {
    "trn1": {2: 26e-6, 8: 2.45e-3, 32: 5.10e-3},
    "trn2": {2: 0.15e-3, 4: 1.04e-3, 8: 1.49e-3, 16: 1.98e-3, 32: 2.54e-3, 64: 2.97e-3},
}


@pytest.mark.parametrize("mode", ["run", "reorder"])
@pytest.mark.parametrize("machine", ["trn1", "trn2"])
@pytest.mark.parametrize("ranks", [1, 2, 4, 8, 32])
def test_each_rank_receives_its_rows_whatever_the_order(ranks, machine, mode):
    group = tuple(np.random.default_rng(ranks).permutation(ranks).tolist())
    rows = [np.random.default_rng(r).integers(-(2**31), 2**31, (ranks, 5), np.int32) for r in range(ranks)]
    found = run_ranks(kernel("exchange"), [(x, group) for x in rows], target=machine, mode=mode, seed=ranks)
    expected = exchange_reference.exchange([rows[r] for r in group])
    for place, rank in enumerate(group):
        np.testing.assert_array_equal(found[rank].outputs, expected[place])
        assert not found[rank].trace.notes


def test_the_source_passes_every_front_end():
    assert lint_file(source("exchange")) == ()


@pytest.mark.parametrize(("machine", "ranks"), [(m, n) for m in BARRIERS for n in BARRIERS[m]])
def test_a_launch_costs_the_barrier_that_was_measured_and_its_bytes(machine, ranks):
    hardware, words = MACHINES[machine], 2**18
    group = tuple(range(ranks))
    arguments = [(Specification((ranks, words), np.int32), group)] * ranks
    trace = run_ranks(kernel("exchange"), arguments, target=machine, mode="trace")[0].trace
    assert 1 / ERROR_FACTOR <= barrier_s(trace, hardware) / BARRIERS[machine][ranks] <= ERROR_FACTOR
    links_s = (ranks - 1) * words * 4 / hardware.peer_bytes_per_s
    copies_s = 6 * ranks * words * 4 / hardware.hbm_bytes_per_s  # before, in and after the collective: read and written
    assert links_s <= price(trace).device_s - barrier_s(trace, hardware) <= 1.2 * (links_s + copies_s) + 1e-3


def test_groups_that_nobody_ran_are_refused():
    for ranks, machine in ((16, "trn1"), (12, "trn1"), (3, "trn2"), (128, "trn2"), (2, "trn3")):
        with pytest.raises(ValueError, match=f"a group of {ranks} NeuronCores: on {machine} groups ran with "):
            exchange_reference.check(np.empty((ranks, 1), np.int32), ranks, machine)
    for bad in (np.empty((2, 3)), np.empty((3, 2), np.int32), np.empty((2, 0), np.int32)):
        with pytest.raises(ValueError, match=r"expected \(2, words\) int32"):
            exchange_reference.check(bad, 2, "trn2")
