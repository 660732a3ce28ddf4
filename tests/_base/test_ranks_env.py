"""What launchers say of the processes that they start, by their variables, without MPI."""

import os
import subprocess
import sys

import pytest

from trnpy._base.ranks_env import LAUNCHERS, first, launched

WORK = "import numpy as np, trnpy; trnpy.matmul(np.eye(200), np.eye(200))"
NAMES = {*LAUNCHERS, *LAUNCHERS.values()}


@pytest.fixture(autouse=True)
def no_launcher(monkeypatch):
    for name in NAMES:
        monkeypatch.delenv(name, raising=False)


@pytest.mark.parametrize(
    ("variables", "processes", "is_first"),
    [
        ({}, 1, True),
        ({"PMI_SIZE": "4", "PMI_RANK": "0"}, 4, True),
        ({"OMPI_COMM_WORLD_SIZE": "4", "OMPI_COMM_WORLD_RANK": "1"}, 4, False),
        ({"SLURM_STEP_NUM_TASKS": "2", "SLURM_PROCID": "1"}, 2, False),
        # mpiexec starts a process on each of two hosts with srun, which start four ranks each.
        ({"SLURM_STEP_NUM_TASKS": "2", "SLURM_PROCID": "0", "PMI_SIZE": "8", "PMI_RANK": "3"}, 8, False),
        ({"PMI_SIZE": "none"}, 1, True),
    ],
)
def test_the_launcher_with_the_most_processes_counts(monkeypatch, variables, processes, is_first):
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert (launched(), first()) == (processes, is_first)


def said(program, **variables):
    """Standard error of a program that a launcher has started."""
    ended = subprocess.run(
        [sys.executable, "-c", program], env={**os.environ, **variables}, capture_output=True, text=True, check=False
    )
    assert ended.returncode == 0, ended.stderr
    return ended.stderr


@pytest.mark.parametrize(("size", "rank"), LAUNCHERS.items())
def test_the_first_of_several_processes_says_once_that_they_shared_no_work(size, rank):
    found = said(WORK, **{size: "4", rank: "0"})
    assert found.count("\n") == 1 and found.startswith("trnpy: 4 processes ran this program, and none used trnpy.dist")
    assert said(WORK, **{size: "4", rank: "3"}) == said(WORK, **{size: "1", rank: "0"}) == ""


@pytest.mark.parametrize(
    "program",
    [
        "import trnpy",
        f"{WORK}; import sys; sys.modules['mpi4py.MPI'] = None",  # as after an import of mpi4py
        f"{WORK}; import sys; sys.stderr = None",
        # The notice is registered in the first process; its fork ends as Python does, too.
        f"{WORK}; import os, sys; process = os.fork(); process and (os.waitpid(process, 0), os._exit(0)); sys.exit()",
    ],
    ids=["no call", "mpi4py", "no stderr", "fork"],
)
def test_others_say_nothing(program):
    assert said(program, PMI_SIZE="4", PMI_RANK="0") == ""


def test_workers_of_multiprocessing_say_nothing(tmp_path):
    file = tmp_path / "program.py"
    file.write_text(
        f"""if 1:
    import multiprocessing
    def work(n):
        {WORK}
    if __name__ == "__main__":
        with multiprocessing.get_context("spawn").Pool(1) as pool:
            pool.map(work, [0])
            pool.close()
            pool.join()
"""
    )
    environment = {**os.environ, "PMI_SIZE": "4", "PMI_RANK": "0"}
    ended = subprocess.run([sys.executable, file], env=environment, capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stderr) == (0, "")
