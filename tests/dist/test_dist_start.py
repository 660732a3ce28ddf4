"""The communicator of a process: processes that do not know of each other, and threads that stand for ranks."""

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from tests.dist.test_dist_mpi import mpiexec
from trnpy import dist
from trnpy.dist._start import Room, Thread

ALONE = (
    "trnpy: 3 processes ran this program, and none used trnpy.dist or mpi4py: "
    "unless it divides its work by other means, each did all of it\n"
)


WORK = "import numpy as np, trnpy; trnpy.matmul(np.eye(200), np.eye(200))"


@pytest.mark.parametrize("options", [(), ("-m", "trnpy", "--no-report")], ids=["alone", "under the runner"])
def test_processes_that_do_not_know_of_each_other_are_noticed(tmp_path, options):
    ended = mpiexec(tmp_path, WORK, options=options)
    assert (ended.returncode, ended.stderr) == (0, ALONE)
    for uses in ("from trnpy import dist; dist.comm()", "from mpi4py import MPI"):
        used = mpiexec(tmp_path, f"{WORK}\n{uses}", options=options)
        assert (used.returncode, used.stderr) == (0, "")
    assert mpiexec(tmp_path, WORK, ranks=1, options=options).stderr == ""


def test_processes_of_another_mpi_are_refused(tmp_path):
    """They were four ranks 0 of 1, each with all the work."""
    pytest.importorskip("mpi4py", reason="MPI needs mpi4py, which is not installed")
    usual = {name: value for name, value in os.environ.items() if not name.startswith(("PMI_", "OMPI_", "SLURM_"))}
    command = [sys.executable, "-c", "from trnpy import dist; dist.comm()"]
    step = {"SLURM_STEP_NUM_TASKS": "4", "SLURM_PROCID": "2"}  # of srun without MPI
    ended = subprocess.run(command, env=usual | step, capture_output=True, text=True, timeout=60, check=False)
    assert ended.returncode == 1 and "RuntimeError: 4 processes were started, but the " in ended.stderr


@pytest.mark.parametrize("victim", [0, 1, 2])
def test_an_exception_in_one_rank_is_raised_and_no_other_waits(victim):
    def program():
        c = dist.comm()
        if c.rank == victim:
            raise ZeroDivisionError("mine")
        c.barrier()

    with pytest.raises(ZeroDivisionError, match="mine") as caught:
        dist.threads(3, program)
    assert caught.value.__notes__ == [f"on rank {victim} of 3"]


def test_threads_are_no_world_and_receive_copies():
    """A library that works with MPI's processes is not for threads, and a sender may write its blocks afterwards."""
    room = Room(2, 20.0)
    ranks, sent = [Thread(room, rank) for rank in range(2)], [[np.zeros(3), np.ones(3)] for _ in range(2)]
    assert not any(rank.world for rank in ranks)
    with ThreadPoolExecutor(2) as pool:
        received = list(pool.map(lambda rank, blocks: rank.alltoall(blocks, (3, 3)), ranks, sent))
    for rank, blocks in enumerate(received):
        assert [block.tolist() for block in blocks] == [[rank] * 3] * 2
        assert not any(np.shares_memory(block, x) for block in blocks for x in (*sent[0], *sent[1]))
