"""Collective operations of threads that stand for processes: values, bits, bytes sent, and how runs end."""

import os
import time
from types import SimpleNamespace

import numpy as np
import pytest

from trnpy import dist
from trnpy.dist import _collectives

RANKS = (1, 2, 3, 4, 5)
DTYPES = ("?", "i4", "i8", "f2", "f4", "f8", "c8", "c16", ">f8")
BIG = 3000  # float64 elements above the size from which sums take two messages


def values(shape, dtype, seed):
    """Random numbers that depend on ``seed``; sums of a few of them are exact."""
    rng = np.random.default_rng(seed)
    return (rng.integers(-8, 8, shape) + (1j * rng.integers(-8, 8, shape) if "c" in dtype else 0)).astype(dtype)


@pytest.mark.parametrize("shape", [(), (0,), (7,), (3, 4), (BIG,), (0, 5), (2, BIG)])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("ranks", RANKS)
def test_operations_have_the_result_of_one_rank(ranks, dtype, shape):
    arrays = [values(shape, dtype, seed) for seed in range(ranks)]
    total = arrays[0]
    for a in arrays[1:]:
        total = np.add(total, a)

    def program():
        c = dist.comm()
        mine = arrays[c.rank]
        np.testing.assert_array_equal(c.allreduce(mine), total)
        for root in range(ranks):
            sent = c.bcast(mine if c.rank == root else None, root)
            assert sent.dtype == arrays[root].dtype
            np.testing.assert_array_equal(sent, arrays[root])
        for x, source in zip(c.alltoall([mine] * ranks), arrays, strict=True):
            np.testing.assert_array_equal(x, source)
        for axis in range(len(shape)):
            np.testing.assert_array_equal(c.allgather(mine, axis), np.concatenate(arrays, axis))
            part = c.reduce_scatter(mine, axis)
            np.testing.assert_array_equal(c.allgather(part, axis), total)
        c.barrier()

    dist.threads(ranks, program)


@pytest.mark.parametrize("ranks", RANKS)
def test_sums_have_the_same_bits_every_time_and_on_every_rank(ranks):
    rng = np.random.default_rng(1)
    arrays = [rng.standard_normal(BIG) * 10.0 ** rng.integers(-9, 9, BIG) for _ in range(ranks)]

    def program():
        c = dist.comm()
        time.sleep(0.001 * (c.rank * 7 % 5))  # ranks arrive in any order
        both = c.allreduce(arrays[c.rank]), c.allgather(c.reduce_scatter(arrays[c.rank]))
        few = np.concatenate([c.allreduce(x) for x in np.split(arrays[c.rank], 30)])  # in one message, not two
        return {x.tobytes() for x in (*both, few)}

    assert len(set.union(*dist.threads(ranks, program), *dist.threads(ranks, program))) == 1


def test_a_rank_sends_as_many_bytes_as_the_operation_needs():
    n, p = 2**15, 4

    def program():
        c = dist.comm()
        sent = []
        for run in (
            lambda: c.allreduce(np.zeros(n)), lambda: c.reduce_scatter(np.zeros(n)),
            lambda: c.allgather(np.zeros(n // p)), lambda: dist.scatter(np.zeros((n, p)), 0).along(1),
        ):  # fmt: skip
            before = c.sent
            run()
            sent.append(c.sent - before)
        return sent

    whole = 8 * n
    assert dist.threads(p, program)[1] == [whole * 2 * 3 // 4, whole * 3 // 4, whole * 3 // 4, p * whole * 3 // 16]


@pytest.mark.parametrize("victim", [0, 1, 2])
@pytest.mark.parametrize(
    "other",
    [
        lambda c: c.barrier(),
        lambda c: c.bcast(np.zeros(5), 0),
        lambda c: c.allreduce(np.zeros(5, "f4")),
        lambda c: c.allreduce(np.zeros(5), "max"),
        lambda c: c.allreduce(np.zeros((5, 1))),
        lambda c: None,  # the rank ends
    ],
)
def test_ranks_in_different_calls_all_learn_which(victim, other):
    seen = []

    def program():
        c = dist.comm()
        try:
            (other if c.rank == victim else lambda c: c.allreduce(np.zeros(5)))(c)
        except dist.MismatchedCalls as why:
            seen.append(str(why))
            raise

    with pytest.raises(
        dist.MismatchedCalls, match=r"rank \d: allreduce .* at .*test_dist_collectives.py:\d+"
    ) as caught:
        dist.threads(3, program)
    assert f"rank {victim}: " in str(caught.value)
    assert len(set(seen)) <= 1  # the thread that ends first may break the barrier in which others still are


def test_a_rank_waits_no_longer_than_asked():
    late = dist._start.threading.Event()

    def program():
        if dist.comm().rank == 1:
            late.wait(2)
        dist.comm().barrier()

    with pytest.raises(TimeoutError, match="waited 0.05 s"):
        dist.threads(2, program, timeout=0.05)


def test_the_first_rank_works_while_the_others_sleep():
    seen = []

    def program():
        dist.comm().on_first(lambda: seen.append(dist.comm().rank))
        return list(seen)

    assert dist.threads(3, program) == [[0]] * 3
    with pytest.raises(ZeroDivisionError):
        dist.threads(3, lambda: dist.comm().on_first(lambda: 1 / 0))


def test_the_line_of_a_program_is_outside_trnpy_or_else_outside_its_ranks(monkeypatch):
    """Nearest first. The frames of threads and of ``python -m`` belong to no program."""

    def line(*files):
        frame = None
        for number, file in reversed([*enumerate(files, 1)]):
            code = SimpleNamespace(co_filename=file)
            frame = SimpleNamespace(f_code=code, f_lineno=number, f_back=frame)
        monkeypatch.setattr(_collectives, "sys", SimpleNamespace(_getframe=lambda depth: frame))
        return _collectives.line_of_program()

    ours = os.path.dirname(_collectives.FOLDER)
    rank, chem, other = f"{_collectives.FOLDER}/_start.py", f"{ours}/chem/cli.py", f"{ours}/__main__.py"
    assert line(rank, chem, np.__file__, "/home/ada/run.py", "/home/ada/other.py") == "/home/ada/run.py:4"
    assert line(rank, chem, other, "<frozen runpy>") == f"{chem}:2"
    assert line(rank) == ""


@pytest.mark.parametrize("root", [-1, 1])
def test_a_root_that_is_no_rank_is_refused(root):
    with pytest.raises(ValueError, match=f"^root={root}: expected a rank from 0 to 0$"):
        dist.comm().bcast(np.ones(3), root=root)
