"""Ranks on simulated NeuronCores: every operation has the bits of threads, by launches of one program, at a price."""

import numpy as np
import pytest

from trnpy import dist
from trnpy.dist import _core_transport

ROW = 64  # bytes: most operations take several launches


def operations():
    """The bytes of what every collective operation returns on this rank."""
    c = dist.comm()
    rng = np.random.default_rng(c.rank)
    many = rng.standard_normal(3 * c.size) * 10.0 ** rng.integers(-9, 9, 3 * c.size)
    ragged = rng.integers(0, 9, (c.rank % 3, 2)).astype("i2")
    c.barrier()
    found = [
        c.bcast(many[:5] if c.rank == c.size - 1 else None, c.size - 1), c.allreduce(many), c.allreduce(many, "max"),
        c.allreduce(np.float32(rng.random())), c.allgather(ragged), c.reduce_scatter(many),
        *c.alltoall([ragged[: n % 2] for n in range(c.size)]), c.allgather(np.empty(0)), c.allreduce(c.rank + 1j),
    ]  # fmt: skip
    return [x.tobytes() for x in found], c.sent


@pytest.mark.parametrize("seed", [None, 0, 1])
@pytest.mark.parametrize(("cores", "machine"), [(n, m) for n in (1, 2, 4, 8, 32) for m in ("trn1", "trn2")])
def test_every_operation_has_the_bits_and_the_bytes_of_threads(cores, machine, seed):
    assert dist.cores(cores, operations, machine=machine, row=8 * ROW, seed=seed) == dist.threads(cores, operations)


def test_products_over_cores_are_those_of_one_rank():
    a, b = np.arange(30.0).reshape(5, 6), np.arange(42.0).reshape(6, 7)

    def program():
        x, y = dist.scatter(a, 0), dist.scatter(b, 1)
        np.testing.assert_array_equal(dist.gather(x @ y), a @ b)
        np.testing.assert_array_equal(dist.einsum("ij,jk->", x, y, axis=None), (a @ b).sum())

    dist.cores(4, program, row=ROW)


def test_all_launches_are_of_one_program_with_every_rule_in_force(monkeypatch):
    launched, run_ranks = [], _core_transport.run_ranks

    def watched(kernel, arguments, **options):
        launched.append(
            (kernel.__name__, {(rows.shape, rows.dtype.name, group) for rows, group in arguments}, {*options})
        )
        return run_ranks(kernel, arguments, **options)

    monkeypatch.setattr(_core_transport, "run_ranks", watched)
    dist.cores(4, operations, row=ROW)
    assert len(launched) > 8
    assert all(
        x == ("exchange", {((4, ROW // 4), "int32", (0, 1, 2, 3))}, {"target", "mode", "seed"}) for x in launched
    )


def test_each_launch_has_its_price():
    def program():
        c, seconds = dist.comm(), []
        for n in (0, ROW // 8, 2 * ROW):
            before = c.modelled_s
            c.allgather(np.zeros(n))
            seconds.append(c.modelled_s - before)
        return seconds

    found = dist.cores(8, program, row=ROW)
    assert all(one == found[0] for one in found)
    none, once, often = found[0]
    assert none == 0 and often == pytest.approx(16 * once, rel=1e-12)
    assert 1.35e-3 < once < 2e-3  # the barrier of 8 cores, and a launch
    assert dist.threads(2, lambda: dist.comm().modelled_s) == [0.0, 0.0]


def test_faults_end_all_cores():
    def different():
        (dist.comm().barrier if dist.comm().rank else dist.comm().allreduce)(*[1.0][dist.comm().rank :])

    with pytest.raises(dist.MismatchedCalls, match="rank 1: barrier"):
        dist.cores(2, different)
    with pytest.raises(ZeroDivisionError):
        dist.cores(2, lambda: 1 / dist.comm().rank and dist.comm().barrier())
    with pytest.raises(ValueError, match="a group of 3 NeuronCores: on trn2 groups ran with 1, 2, 4, 8, 16, 32, 64"):
        dist.cores(3, operations)
