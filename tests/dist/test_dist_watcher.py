"""The process beside each rank: faults, killed ranks and late ones end all ranks with one message."""

import subprocess
import sys
import time

import numpy as np
import pytest

from tests.dist.test_dist_mpi import BEGIN, mpiexec
from trnpy.chem._checkpoint import read
from trnpy.dist._watcher import Closings

FAULTS = {
    "an exception": ("raise ValueError('boom')", "rank {victim} of 3 ended the run: ValueError: boom"),
    "kill": ("os.kill(os.getpid(), signal.SIGKILL)", "rank {victim} of 3 ended the run: its process was killed"),
    "stop": ("os.kill(os.getpid(), signal.SIGSTOP)", "rank {victim} of 3 ended the run: its process"),
    "a hang": ("time.sleep(1000)", "waited 2 s for rank {victim}, whose last call was allreduce"),
    "an early end": ("sys.exit(0)", "rank {victim}: end of the program"),
    "another call": ("c.barrier()", "rank {victim}: barrier at "),
    "another dtype": ("c.allreduce(np.zeros(5, 'f4'))", "rank {victim}: allreduce (sum) of <f4 (5,)"),
}


@pytest.mark.parametrize("victim", [0, 1, 2])
@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_in_one_rank_ends_all_with_one_message(tmp_path, fault, victim):
    code, said = FAULTS[fault]
    ended = mpiexec(tmp_path, BEGIN.format(victim=victim, fault=code, timeout=2 if fault == "a hang" else None))
    assert ended.returncode != 0
    assert said.format(victim=victim) in ended.stderr
    assert ended.stderr.count("trnpy.dist: ") == 1
    assert "program.py:" in ended.stderr


BEFORE = """
import os, signal, sys, time
if os.environ.get("PMI_RANK", os.environ.get("OMPI_COMM_WORLD_RANK")) == "{victim}":
    {fault}
from trnpy import dist
dist.comm(timeout={timeout}).allreduce(1)
"""


EARLY = {
    "an exception": ("raise ValueError('boom')", "rank {victim} of 3 ended the run: its process has ended; rank "),
    "an end": ("sys.exit(0)", "rank {victim} of 3 ended the run: its process has ended; rank "),
    "stop": ("os.kill(os.getpid(), signal.SIGSTOP)", "rank {victim} of 3 ended the run: its process is stopped"),
    "a hang": ("time.sleep(1000)", "of 3 ended the run: it waited 2 s for ranks that have not called trnpy.dist.comm"),
}


@pytest.mark.skipif(sys.platform != "linux", reason="ranks that have not begun are seen in /proc")
@pytest.mark.parametrize("victim", [0, 2])
@pytest.mark.parametrize("fault", EARLY)
def test_a_fault_before_the_first_call_ends_all_with_one_message(tmp_path, fault, victim):
    """MPI waits for all ranks when it begins: the others waited for ever, and no watcher knew of any rank."""
    code, said = EARLY[fault]
    started = time.monotonic()
    program = BEFORE.format(victim=victim, fault=code, timeout=2 if fault == "a hang" else None)
    ended = mpiexec(tmp_path, program)
    assert ended.returncode != 0 and time.monotonic() - started < 20
    assert said.format(victim=victim) in ended.stderr
    assert ended.stderr.count("trnpy.dist: ") == 1
    assert "program.py:6" in ended.stderr


def test_a_rank_that_begins_late_is_waited_for(tmp_path):
    ended = mpiexec(tmp_path, BEFORE.format(victim=1, fault="time.sleep(3)", timeout=None))
    assert (ended.returncode, ended.stderr) == (0, "")


LATE = """
import pathlib
from trnpy.dist import _watcher
source = pathlib.Path(_watcher.__file__).read_text()
late = pathlib.Path({folder!r}, "late_watcher.py")
late.write_text(source.replace("\\ndef watch(", "\\ntime.sleep(0.5)\\ndef watch("))
_watcher.__file__ = str(late)
"""


@pytest.mark.parametrize("victim", [0, 1, 2])
def test_the_killed_rank_is_named_although_watchers_start_late(tmp_path, victim):
    """The launcher kills the others at once; watchers that began after that saw all of them dead."""
    code, said = FAULTS["kill"]
    late = LATE.format(folder=str(tmp_path))
    ended = mpiexec(tmp_path, late + BEGIN.format(victim=victim, fault=code, timeout=None))
    assert said.format(victim=victim) in ended.stderr
    assert ended.stderr.count("trnpy.dist: ") == 1


CLOSED = """
import fcntl, os, pathlib, signal, sys
from trnpy.dist._watched import Watched
watched = Watched(None)
watched.show(sys.argv[1], 0, 1)
other = fcntl.fcntl(os.open(sys.argv[1] + "/1.page", os.O_CREAT | os.O_WRONLY), fcntl.F_DUPFD, 500)
print("shown", flush=True)
sys.stdin.readline()
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="the order of deaths is known on Linux alone")
def test_of_the_files_of_a_killed_rank_the_page_is_closed_first(tmp_path):
    """So whoever learns of a death by a closed connection, as launchers do, learns of it after the watchers."""
    command = [sys.executable, "-c", CLOSED, str(tmp_path / "pages")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as rank:
        assert rank.stdout.readline() == "shown\n"
        closings = Closings(str(tmp_path / "pages"), [0, 1])
        assert closings.read() == []
        rank.communicate("now\n")
    assert closings.read() == [0, 1]


@pytest.mark.slow
@pytest.mark.parametrize("fault", [*FAULTS, "a full disk", *(f"{fault} before the first call" for fault in EARLY)])
def test_twenty_runs_of_a_fault_all_end(tmp_path, fault, capsys):
    took = []
    for run in range(20):
        started = time.monotonic()
        if fault == "a full disk":
            test_a_full_disk_ends_all_and_what_was_kept_stays(tmp_path / str(run), run % 3)
        elif fault not in FAULTS:
            early = fault.removesuffix(" before the first call")
            test_a_fault_before_the_first_call_ends_all_with_one_message(tmp_path / str(run), early, run % 3)
        else:
            test_a_fault_in_one_rank_ends_all_with_one_message(tmp_path / str(run), fault, run % 3)
        took.append(time.monotonic() - started)
    with capsys.disabled():
        print(f"\n{fault}: {len(took)} runs, {min(took):.1f} to {max(took):.1f} s")


FULL = """
import resource
from pathlib import Path
import numpy as np
from trnpy import dist
from trnpy.chem._checkpoint import Checkpoint
c = dist.comm()
kept = Checkpoint(Path({folder!r}), "energies", every_s=0)
kept.write(c, np.full((2, 99, 99), c.rank))
c.barrier()
if c.rank == {victim}:
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, resource.RLIM_INFINITY))
kept.write(c, np.full((2, 99, 99), c.rank + 10))
c.barrier()
"""


@pytest.mark.parametrize("victim", [0, 1, 2])
def test_a_full_disk_ends_all_and_what_was_kept_stays(tmp_path, victim):
    ended = mpiexec(tmp_path, FULL.format(folder=str(tmp_path / "kept"), victim=victim))
    assert (
        f"rank {victim} of 3 ended the run: OSError: [Errno 27] File too large; its last call was barrier at "
        in ended.stderr
    )
    assert ended.stderr.count("trnpy.dist: ") == 1
    for rank in range(3):
        pairs = read(tmp_path / "kept" / f"pairs-{rank}.npz", np.array("energies"))["pairs"]
        assert pairs.shape == (2, 99, 99) and pairs.min() == pairs.max() in (
            {rank} if rank == victim else {rank, rank + 10}
        )
