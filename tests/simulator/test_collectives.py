"""Tests of nki.collectives between simulated ranks, against NumPy over the list of inputs."""

from functools import partial

import numpy as np
import pytest

from nkisim import collectives as nccl
from nkisim import isa as nisa
from nkisim import language as nl
from nkisim.chip.errors import SimulatorError
from nkisim.chip.replicas import run_ranks as run_strictly
from nkisim.run.launch import Kernel
from tests.simulator.tiles import sample

MODES = ("run", "reorder")
run_ranks = partial(run_strictly, rules={51: "off"})  # collectives of most kernels here take inputs and outputs
OPS = {"add": np.add, "maximum": np.maximum, "minimum": np.minimum}


def collective(call, shape, buffer="hbm"):
    """A kernel of one collective: ``call(src, dst)`` on HBM tensors, or on SBUF tiles."""

    def kernel(x):
        out = nl.ndarray(shape, x.dtype, buffer=nl.shared_hbm)
        if buffer == "hbm":
            call(x, out)
        else:
            dst = nl.ndarray(shape, x.dtype)
            call(nl.load(x), dst)
            nl.store(out, dst)
        return out

    return kernel


def outputs(kernel, inputs, **settings):
    return [result.outputs for result in run_ranks(Kernel(kernel), [(x,) for x in inputs], **settings)]


def ranks(n, shape=(4, 6), dtype=np.float32):
    return [sample(shape, dtype, seed) for seed in range(n)]


def groups(n):
    """Two groups of n / 2, the second one not in order."""
    half = n // 2
    return [list(range(half)), list(range(n - 1, half - 1, -1))]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("buffer", ["hbm", "sbuf"])
@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("dtype", [np.float32, np.int32])
def test_all_reduce(mode, buffer, op, dtype):
    inputs, group = ranks(4, dtype=dtype), nccl.ReplicaGroup(groups(4))
    kernel = collective(lambda x, y: nccl.all_reduce([x], [y], group, getattr(nl, op)), (4, 6), buffer)
    found = outputs(kernel, inputs, mode=mode)
    for members in groups(4):
        expected = OPS[op].reduce([inputs[r] for r in members])
        for rank in members:
            assert np.array_equal(found[rank], expected)


@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize("target", ["trn1", "trn2"])
@pytest.mark.parametrize("n", [2, 4, 8, 32])
def test_as_many_ranks_as_an_instance_has_in_any_order(n, target, seed):
    """All rules hold: operands are staged in memory of their own, and each buffer serves one collective."""
    group = np.random.default_rng(n).permutation(n).tolist()
    every = nccl.ReplicaGroup([group])

    def kernel(x):
        results = []
        for shape, call in (
            (x.shape, lambda s, d: nccl.all_reduce([s], [d], every, nl.add)),
            ((n * 32, 3), lambda s, d: nccl.all_gather([s], [d], every, 0)),
            ((32 // n, 3), lambda s, d: nccl.reduce_scatter([s], [d], every, 0, nl.add)),
            (x.shape, lambda s, d: nccl.all_to_all([s], [d], every, 0)),
        ):
            sent, found = (nl.ndarray(k, x.dtype, buffer=nl.private_hbm) for k in (x.shape, shape))
            out = nl.ndarray(shape, x.dtype, buffer=nl.shared_hbm)
            nisa.dma_copy(dst=sent, src=x)
            call(sent, found)
            nisa.dma_copy(dst=out, src=found)
            results.append(out)
        return tuple(results)

    inputs = ranks(n, (32, 3), np.int32)
    whole = np.stack([inputs[r] for r in group])
    found = run_strictly(Kernel(kernel), [(x,) for x in inputs], mode="reorder", seed=seed, target=target)
    for place, rank in enumerate(group):
        summed, gathered, scattered, exchanged = found[rank].outputs
        np.testing.assert_array_equal(summed, whole.sum(axis=0))
        np.testing.assert_array_equal(gathered, np.concatenate(whole))
        np.testing.assert_array_equal(scattered, np.split(whole.sum(axis=0), n)[place])
        np.testing.assert_array_equal(exchanged, np.concatenate([np.split(x, n)[place] for x in whole]))


@pytest.mark.parametrize(("buffer", "dim"), [("hbm", 0), ("sbuf", 0), ("sbuf", 1)])
def test_all_gather_follows_the_order_of_the_group(buffer, dim):
    inputs, group = ranks(4), nccl.ReplicaGroup(groups(4))
    shape = (8, 6) if dim == 0 else (4, 12)
    found = outputs(collective(lambda x, y: nccl.all_gather([x], [y], group, dim), shape, buffer), inputs)
    for members in groups(4):
        for rank in members:
            assert np.array_equal(found[rank], np.concatenate([inputs[r] for r in members], dim))


@pytest.mark.parametrize("buffer", ["hbm", "sbuf"])
def test_reduce_scatter_gives_each_rank_its_piece(buffer):
    inputs, group = ranks(4, (8, 6)), nccl.ReplicaGroup(groups(4))
    found = outputs(collective(lambda x, y: nccl.reduce_scatter([x], [y], group, 0, nl.add), (4, 6), buffer), inputs)
    for members in groups(4):
        total = np.add.reduce([inputs[r] for r in members])
        for place, rank in enumerate(members):
            assert np.array_equal(found[rank], np.split(total, 2)[place])


def test_all_to_all_transposes_pieces():
    inputs, group = ranks(4, (8, 3)), nccl.ReplicaGroup([[0, 1, 2, 3]])
    found = outputs(collective(lambda x, y: nccl.all_to_all([x], [y], group, 0), (8, 3)), inputs)
    for rank in range(4):
        assert np.array_equal(found[rank], np.concatenate([np.split(x, 4)[rank] for x in inputs]))


def test_several_hbm_tensors_in_one_call():
    def kernel(x):
        outs = [nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm) for _ in range(2)]
        nccl.all_reduce([x, x], outs, nccl.ReplicaGroup([[0, 1]]), nl.add)
        return tuple(outs)

    inputs = ranks(2)
    for result in outputs(kernel, inputs):
        assert all(np.array_equal(y, inputs[0] + inputs[1]) for y in result)


@pytest.mark.parametrize("mode", MODES)
def test_collective_permute_moves_along_the_pairs(mode):
    inputs = ranks(4)

    def kernel(x):
        out = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm)
        nl.store(out, nl.zeros(x.shape, x.dtype))
        nccl.collective_permute([x], [out], [(0, 2), (2, 0), (1, 1)])
        return out

    found = outputs(kernel, inputs, mode=mode)
    expected = [inputs[2], inputs[1], inputs[0], np.zeros_like(inputs[3])]
    assert all(np.array_equal(a, b) for a, b in zip(found, expected, strict=True))


@pytest.mark.parametrize("mode", MODES)
def test_a_ring_of_implicit_permutes_visits_every_rank(mode):
    """All-gather written by hand: each step sends on what arrived, at the place its owner's rank says."""
    n = 4

    def kernel(x):
        group = nccl.ReplicaGroup([list(range(n))])
        out = nl.ndarray((n, *x.shape), x.dtype, buffer=nl.shared_hbm)
        held = x
        for step in range(n):
            owner = nccl.collective_permute_implicit_current_processing_rank_id(step, group)
            nl.store(out.select(0, owner), nl.load(held))
            if step < n - 1:
                arrived = nl.ndarray(x.shape, x.dtype, buffer=nl.private_hbm)
                nccl.collective_permute_implicit([[held]], [[arrived]], group)
                held = arrived
        return out

    inputs = ranks(n)
    for found in outputs(kernel, inputs, mode=mode):
        assert np.array_equal(found, np.stack(inputs))


def test_implicit_permute_with_reduction_sends_the_result_to_the_successor():
    def kernel(x):
        out = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm)
        nccl.collective_permute_implicit_reduce([[x]], [[x]], [[out]], nccl.ReplicaGroup([[0, 1, 2]]), nl.add)
        return out

    inputs = ranks(3)
    for rank, found in enumerate(outputs(kernel, inputs)):
        assert np.array_equal(found, 2 * inputs[rank - 1])


def test_two_channels_move_two_tensors():
    def kernel(x):
        outs = [nl.ndarray(x[i].shape, x.dtype, buffer=nl.shared_hbm) for i in range(2)]
        group = nccl.ReplicaGroup([[0, 1]])
        nccl.collective_permute_implicit([[x[0]], [x[1]]], [[o] for o in outs], group, channel_ids=[0, 1])
        return tuple(outs)

    inputs = ranks(2, (2, 4, 6))
    for rank, found in enumerate(outputs(kernel, inputs)):
        assert all(np.array_equal(found[i], inputs[1 - rank][i]) for i in range(2))


def test_rank_id_is_a_register():
    def kernel(x):
        out = nl.ndarray((1, 1), nl.int32, buffer=nl.shared_hbm)
        tile = nl.ndarray((1, 1), nl.int32)
        nisa.register_store(tile, nccl.rank_id())
        nl.store(out, tile)
        return out

    assert [int(out[0, 0]) for out in outputs(kernel, ranks(3))] == [0, 1, 2]
    with pytest.raises(SimulatorError, match="a register has no value"):
        outputs(lambda x: nccl.rank_id() + 1, ranks(1))


# --- pieces of run-time size -----------------------------------------------------------------------------------------


def variable(call, size):
    """The whole dst, filled with -1 before, and the received counts; each physical core has its own."""

    def kernel(x, counts):
        n = counts.shape[1]
        dst = nl.ndarray((1, size), x.dtype, buffer=nl.private_hbm)
        nl.store(dst, nl.full((1, size), -1.0, x.dtype))
        table = nl.ndarray((3, n), nl.uint32, buffer=nl.private_hbm)
        nl.store(table[0:2], nl.load(counts))
        call([x], [dst], nccl.ReplicaGroup([list(range(n))]), table)
        out, received = nl.ndarray((1, size), x.dtype, buffer=nl.shared_hbm), hbm((1, n), "uint32")
        if nl.program_id(0) == 0:
            nl.store(out, nl.load(dst))
            nl.store(received, nl.load(table[2:3]))
        return out, received

    return kernel


def test_all_to_all_v_sends_chunks_of_run_time_size():
    n, slot = 3, 5
    x = [np.arange(12, dtype=np.float32) + 100 * r for r in range(n)]
    counts = [np.array([[(r + s) % 4 for s in range(n)], [3 * s for s in range(n)]], np.uint32) for r in range(n)]
    kernel = variable(nccl.all_to_all_v, n * slot)
    for rank, result in enumerate(run_ranks(Kernel(kernel), list(zip(x, counts, strict=True)))):
        expected, received = np.full(n * slot, -1, np.float32), []
        for s in range(n):
            count, start = (int(v) for v in counts[s][:, rank])
            expected[s * slot : s * slot + count] = x[s][start : start + count]
            received.append(count)
        assert np.array_equal(result.outputs[0][0], expected) and result.outputs[1].tolist() == [received]


def test_all_gather_v_broadcasts_one_chunk_per_rank_under_lnc2():
    n, slot = 4, 6
    x = [np.arange(8, dtype=np.float32) + 100 * r for r in range(n)]
    counts = [np.array([[r + 1, 9, 9, 9], [r, 9, 9, 9]], np.uint32) for r in range(n)]
    kernel = variable(nccl.all_gather_v, n * slot)
    for result in run_ranks(Kernel(kernel, lnc=2), list(zip(x, counts, strict=True))):
        expected = np.full(n * slot, -1, np.float32)
        for s in range(n):
            expected[s * slot : s * slot + s + 1] = x[s][s : 2 * s + 1]
        assert np.array_equal(result.outputs[0][0], expected) and result.outputs[1].tolist() == [[1, 2, 3, 4]]


def test_chunks_that_do_not_fit_are_refused():
    x, counts = np.zeros(12, np.float32), np.array([[4], [0]], np.uint32)
    with pytest.raises(SimulatorError, match="has room for 3"):
        run_ranks(Kernel(variable(nccl.all_to_all_v, 3)), [(x, counts)])
    with pytest.raises(SimulatorError, match=r"elements 10 to 14 .* leave src of 12"):
        run_ranks(Kernel(variable(nccl.all_to_all_v, 9)), [(x, np.array([[4], [10]], np.uint32))])


# --- refusals -------------------------------------------------------------------------------------------


def hbm(shape=(4, 6), dtype="float32"):
    return nl.ndarray(shape, dtype, buffer=nl.shared_hbm)


ONE = nccl.ReplicaGroup([[0]])


@pytest.mark.parametrize(
    ("call", "match"),
    [
        (lambda x: nccl.all_reduce([x], [hbm()], ONE, nl.multiply), "op=nl.multiply"),
        (lambda x: nccl.all_reduce([x], [hbm((4, 5))], ONE, nl.add), "dst has shape"),
        (lambda x: nccl.all_reduce([x], [hbm(dtype="int32")], ONE, nl.add), "the same dtype"),
        (lambda x: nccl.all_reduce([x], [nl.ndarray((4, 6), "float32")], ONE, nl.add), "all in HBM or all in SBUF"),
        (lambda x: nccl.all_reduce([nl.load(x)] * 2, [nl.load(x)] * 2, ONE, nl.add), "in HBM only"),
        (lambda x: nccl.all_reduce(x, hbm(), ONE, nl.add), "a list of tensors"),
        (lambda x: nccl.all_reduce([x], [hbm(), hbm()], ONE, nl.add), "as many of each"),
        (lambda x: nccl.all_reduce([x], [hbm()], [[0]], nl.add), "a ReplicaGroup is needed"),
        (lambda x: nccl.all_reduce([x], [hbm()], nccl.ReplicaGroup([[0, 1]]), nl.add), "not launched; there are 1"),
        (lambda x: nccl.all_reduce([x], [hbm()], nccl.ReplicaGroup([[1]]), nl.add), "rank 0 is in no list"),
        (lambda x: nccl.all_reduce([x], [hbm()], ONE, nl.add, priority=1), "priority needs NeuronCore-v4"),
        (lambda x: nccl.ReplicaGroup([[0, 1], [1]]), "names a rank twice"),
        (lambda x: nccl.ReplicaGroup([0, 1]), "a list of lists"),
        (lambda x: nccl.all_gather([x], [hbm()], ONE, 1), "collective_dim is 1"),
        (lambda x: nccl.reduce_scatter([x], [hbm()], ONE, 1, nl.add), "collective_dim is 1"),
        (lambda x: nccl.all_to_all([nl.load(x)], [nl.load(x)], ONE, 0), "only HBM is supported"),
        (lambda x: nccl.collective_permute([nl.load(x)], [nl.load(x)], [(0, 0)]), "only HBM is supported"),
        (lambda x: nccl.collective_permute([x, x], [hbm(), hbm()], [(0, 0)]), "exactly one"),
        (lambda x: nccl.collective_permute([x], [hbm()], [(0, 0), (0, 0)]), "a target twice"),
        (lambda x: nccl.collective_permute([x], [hbm()], [(0, 3)]), "an integer from 0 to 0"),
        (lambda x: nccl.collective_permute_implicit([[x]], [[hbm()]], ONE, [1]), "channel_ids"),
        (lambda x: nccl.collective_permute_implicit([[x, x]], [[hbm(), hbm()]], ONE), "one tensor each"),
        (lambda x: nccl.all_gather_v([x], [hbm()], ONE, hbm((3, 1), "uint32")), "launch the kernel as kernel"),
        (lambda x: nccl.all_gather_v([x], [hbm()], ONE, x, has_rdispls=True), "not supported"),
        (lambda x: nccl.all_to_all_v([x], [hbm()], ONE, hbm((3, 1), "int32")), "a uint32 tensor"),
        (lambda x: nccl.all_to_all_v([x], [hbm()], ONE, hbm((4, 1), "uint32")), r"a contiguous \(3, 1\)"),
        (lambda x: nccl.all_to_all_v([x], [hbm()], ONE, x, has_rdispls=True), "needs NeuronCore-v4"),
        (lambda x: nccl.all_to_all_v([x, x], [hbm(), hbm()], ONE, hbm((3, 1), "uint32")), "exactly one"),
        (lambda x: nccl.all_to_all_v([nl.load(x)], [nl.load(x)], ONE, hbm((3, 1), "uint32")), "only HBM"),
        (lambda x: nccl.all_gather([x], [hbm((8, 6))], ONE, 0), "dst has shape"),
        (lambda x: nccl.all_gather([nl.load(x).reshape((4, 2, 3))], [nl.load(x)], ONE, 0), "take two dimensions"),
        (lambda x: nccl.reduce_scatter([x], [hbm((2, 6))], ONE, 0, nl.add), "dst has shape"),
        (lambda x: nccl.all_to_all([x], [hbm((2, 6))], ONE, 0), "dst has shape"),
        (lambda x: nccl.all_to_all([x], [hbm()], ONE, 1), "collective_dim is 1"),
        (lambda x: nccl.collective_permute([x], [hbm((2, 6))], [(0, 0)]), "dst has shape"),
        (lambda x: nccl.collective_permute([x], [hbm()], []), "pairs are needed"),
        (lambda x: nccl.collective_permute([x], [hbm()], [(0, 0, 0)]), "pairs are needed"),
        (lambda x: nccl.collective_permute_implicit([[x]], [[hbm((2, 6))]], ONE), "dst has shape"),
        (
            lambda x: nccl.collective_permute_implicit_reduce([[x]], [[x]], [[hbm((2, 6))]], ONE, nl.add),
            "dst has shape",
        ),
        (
            lambda x: nccl.collective_permute_implicit_reduce([[x]], [[hbm((2, 6))]], [[hbm()]], ONE, nl.add),
            "has shape",
        ),
        (
            lambda x: nccl.collective_permute_implicit_reduce([[x]], [[hbm(dtype="int32")]], [[hbm()]], ONE, nl.add),
            "the same dtype",
        ),
        (lambda x: nccl.collective_permute_implicit_current_processing_rank_id(0, ONE, 4), "channel_id is 4"),
        (lambda x: nccl.collective_permute_implicit_current_processing_rank_id(-1, ONE), "iteration_id is -1"),
    ],
)
def test_collectives_refuse(call, match):
    with pytest.raises(SimulatorError, match=match):
        outputs(lambda x: call(x) and None, ranks(1))


def test_groups_that_the_runtime_of_trn1_does_not_build_are_refused():
    def kernel(x, groups):
        sent, found = (nl.ndarray(x.shape, x.dtype, buffer=nl.private_hbm) for _ in range(2))
        nisa.dma_copy(dst=sent, src=x)
        nccl.all_to_all([sent], [found], nccl.ReplicaGroup(groups), 0)
        out = hbm(x.shape, x.dtype)
        nisa.dma_copy(dst=out, src=found)
        return out

    def run(n, groups, target="trn1"):
        x = np.arange(48, dtype=np.float32).reshape(48, 1)
        run_strictly(Kernel(kernel), [(x, groups)] * n, target=target)

    for n, groups in ((4, ((0, 2), (1, 3))), (12, (tuple(range(12)),)), (16, (tuple(range(16)),))):
        with pytest.raises(SimulatorError, match=r"all_to_all: group \(0, .* on trn1: the runtime builds 2"):
            run(n, groups)
        run(n, groups, "trn2")
    run(4, ((1, 0), (2, 3)))


def test_pieces_must_divide():
    group = nccl.ReplicaGroup([[0, 1, 2]])
    for call in (
        lambda x: nccl.all_to_all([x], [hbm()], group, 0),
        lambda x: nccl.reduce_scatter([x], [x], group, 0, nl.add),
    ):
        with pytest.raises(SimulatorError, match="does not divide into 3 pieces"):
            outputs(lambda x, call=call: call(x) and None, ranks(3))


@pytest.mark.parametrize(
    ("call", "lnc", "match"),
    [
        (lambda x: nccl.all_to_all_v([x], [hbm()], ONE, hbm((3, 1), "uint32")), 1, "only LNC 2 is supported"),
        (lambda x: nccl.all_gather_v([x], [hbm()], ONE, hbm((3, 1), "uint32")), 2, "4 are needed"),
        (lambda x: nccl.all_reduce([x], [hbm()], ONE, nl.add, priority=4), 1, "priority is 4"),
    ],
)
def test_collectives_refuse_on_trn3(call, lnc, match):
    with pytest.raises(SimulatorError, match=match):
        run_ranks(Kernel(lambda x: call(x) and None)[lnc], [(x,) for x in ranks(1)], target="trn3")


def test_ranks_that_issue_different_collectives_are_told_so():
    def kernel(x, op):
        group = nccl.ReplicaGroup([[0, 1]])
        out = hbm()
        nccl.all_reduce([x], [out], group, nl.add if op else nl.maximum)
        return out

    with pytest.raises(SimulatorError, match="cores 0 and 1 meet in different instructions"):
        run_ranks(Kernel(kernel), [(x, i) for i, x in enumerate(ranks(2))])


@pytest.mark.parametrize("mode", ["run", "reorder", "trace"])
def test_a_rank_that_stays_away_is_a_deadlock(mode):
    def kernel(x, joins):
        out = hbm()
        nl.store(out, nl.load(x))
        if joins:
            nccl.all_reduce([x], [out], nccl.ReplicaGroup([[0, 1]]), nl.add)
        return out

    with pytest.raises(SimulatorError, match="deadlock: core 0 waits in"):
        run_ranks(Kernel(kernel), [(x, i == 0) for i, x in enumerate(ranks(2))], mode=mode)


def test_integer_sums_refuse_overflow():
    inputs = [np.full((4, 6), 2**30, np.int32)] * 2
    kernel = collective(lambda x, y: nccl.all_reduce([x], [y], nccl.ReplicaGroup([[0, 1]]), nl.add), (4, 6))
    with pytest.raises(SimulatorError, match="outside int32"):
        outputs(kernel, inputs)


def test_the_deadlock_inside_a_rank_is_reported_not_the_waiting_of_the_others():
    def kernel(x, joins):
        out = hbm()
        if joins:
            mine = nl.ndarray(x.shape, x.dtype, buffer=nl.private_hbm)
            nccl.all_reduce([x], [mine], nccl.ReplicaGroup([[0, 1]]), nl.add)
        elif nl.program_id(0) == 0:
            nisa.core_barrier(data=out, cores=(0, 1))

    with pytest.raises(SimulatorError, match="core 0 waits in core_barrier"):
        run_ranks(Kernel(kernel)[2], [(x, i == 0) for i, x in enumerate(ranks(2))])
