"""The same operations over MPI: ``mpiexec -n 3 python -m pytest -m mpi``, and programs that end early."""

import json
import os
import pty
import shutil
import signal
import subprocess
import sys
import textwrap
import threading
import time

import numpy as np
import pytest

from trnpy import dist

mpi = pytest.mark.mpi
BIG = 300_000  # elements above the size from which sums take two messages


@mpi
def test_linear_algebra_over_mpi_has_the_result_of_one_rank():
    rng = np.random.default_rng(0)
    a, tall, b = rng.standard_normal((300, 300)), rng.standard_normal((500, 20)), rng.standard_normal((300, 2))
    s = a @ a.T + 300 * np.eye(300)
    q, r = dist.linalg.qr(dist.scatter(tall))
    np.testing.assert_allclose(dist.gather(q) @ r, tall, rtol=0, atol=1e-13)
    low = dist.gather(dist.linalg.cholesky(dist.scatter(s)))
    np.testing.assert_allclose(low, np.linalg.cholesky(s), rtol=0, atol=1e-12)
    for matrix, kind in ((a, "gen"), (s, "pos")):
        x = dist.linalg.solve(dist.scatter(matrix, 1), b, kind)
        np.testing.assert_allclose(matrix @ x, b, rtol=0, atol=1e-10)
    np.testing.assert_allclose(dist.linalg.eigh(dist.scatter(s))[0], np.linalg.eigvalsh(s), rtol=0, atol=1e-9)


@mpi
@pytest.mark.parametrize("n", [0, 1, 100, BIG])
@pytest.mark.parametrize("dtype", ["?", "i4", "f4", "f8", "c16"])
def test_operations_over_mpi_have_the_result_of_one_rank(n, dtype):
    c = dist.comm()
    arrays = [np.random.default_rng(r).integers(0, 9, n).astype(dtype) for r in range(c.size)]
    mine = arrays[c.rank]
    total = arrays[0]
    for a in arrays[1:]:
        total = total + a
    np.testing.assert_array_equal(c.allreduce(mine), total)
    np.testing.assert_array_equal(c.allgather(c.reduce_scatter(mine)), total)
    np.testing.assert_array_equal(c.allgather(mine), np.concatenate(arrays))
    for x, source in zip(c.alltoall([mine] * c.size), arrays, strict=True):
        np.testing.assert_array_equal(x, source)
    for root in range(c.size):
        np.testing.assert_array_equal(c.bcast(mine if c.rank == root else None, root), arrays[root])


@mpi
def test_arrays_arrive_while_a_rank_computes(monkeypatch):
    from trnpy.dist import _mpi

    begin, arrived = _mpi.beside, []

    def noted(work):
        arrived.append(threading.Event())

        def noting():
            found = work()
            arrived[-1].set()
            return found

        return begin(noting)

    c = dist.comm()
    blocks = [np.random.default_rng((c.rank, to)).standard_normal((9, 10**5 + to)) for to in range(c.size)]
    before = c.sent
    expected, once = c.exchanged(blocks, "turn"), c.sent - before
    monkeypatch.setattr(_mpi, "beside", noted)
    found = c.exchanging(blocks, "turn")
    assert float(c.allreduce(1.0)) == c.size  # ranks meet in other calls meanwhile
    if c.size > 1:
        assert arrived[0].wait(60)  # nobody has asked for the arrays
        assert c.sent - before >= 2 * once > 0
    for x, y in zip(found(), expected, strict=True):
        np.testing.assert_array_equal(x, y)


def product(reproducible, axes):
    a, b = np.random.default_rng(4).standard_normal((2, 37, 200, 30))
    parts = [dist.scatter(x, axis) for x, axis in zip((a, b), axes, strict=True)]
    return dist.einsum("Pij,Pkj->ik", *parts, axis=None, reproducible=reproducible)


@mpi
@pytest.mark.parametrize("axes", [(0, 0), (1, 1), (0, 2)])
def test_products_over_mpi_have_the_bits_of_threads(axes):
    c = dist.comm()
    found, again = product(False, axes), product(False, axes)
    assert found.tobytes() == again.tobytes()
    assert len({x.tobytes() for x in c.allgather(found[None])}) == 1
    fixed = product(True, axes)
    c.barrier()
    assert [x.tobytes() for x in dist.threads(c.size, product, False, axes)] == [found.tobytes()] * c.size
    assert dist.threads(1, product, True, axes)[0].tobytes() == fixed.tobytes()
    np.testing.assert_allclose(fixed, found, rtol=0, atol=1e-10)


@mpi
@pytest.mark.parametrize("memory", [0, 1e12])
def test_sharded_products_over_mpi(memory):
    a, b = np.random.default_rng(5).integers(-9, 9, (2, 61, 61)).astype(float)
    for i, j in ((0, 0), (0, 1), (1, 0), (1, 1)):
        for axis in ("kept", None, 0, 1):
            found = dist.matmul(dist.scatter(a, i), dist.scatter(b, j), axis=axis, memory=memory)
            np.testing.assert_array_equal(dist.gather(found), a @ b)


@mpi
def test_mismatched_calls_over_mpi_are_told_to_every_rank():
    c = dist.comm()
    if c.size == 1:
        return
    with pytest.raises(dist.MismatchedCalls, match=r"rank 0: barrier(.*\n)*.*rank 1: allreduce"):
        c.allreduce(0.0) if c.rank else c.barrier()


@mpi
def test_large_blocks_are_gathered_by_one_message_from_each_rank(monkeypatch):
    """MPICH's Allgatherv took 4 s for 34 MB on 4 ranks of 2 busy processors: 32 KiB at a time round a ring."""
    from trnpy.dist import _mpi

    c, calls = dist.comm(), []
    if c.size == 1:
        return

    class Watched:
        def __getattr__(self, name):
            calls.append(name)
            return getattr(c._transport.comm, name)

    watched = _mpi.Mpi(c._transport._mpi, c._transport.comm)
    watched.comm = Watched()
    for size in (8, _mpi.DIRECT):
        calls.clear()
        found = watched.allgather(np.full(size, c.rank, np.uint8), [size] * c.size)
        np.testing.assert_array_equal(found, np.repeat(np.arange(c.size), size))
        assert calls == (["Allgatherv"] if size == 8 else ["Irecv", "Isend"] * (c.size - 1))


@mpi
def test_ranks_sleep_while_the_first_one_works(monkeypatch):
    c, done, naps = dist.comm(), [], []
    nap = time.sleep
    with monkeypatch.context() as m:
        m.setattr("trnpy.dist._mpi.time.sleep", lambda s: (naps.append(s), nap(s)))
        c.on_first(lambda: (nap(0.2), done.append(True)))
    assert bool(done) == (c.rank == 0) and bool(naps) == (c.rank > 0)
    assert c.allreduce(1) == c.size


# --- Programs that end early: one pytest starts mpiexec ---------------------------------------------------------------

BEGIN = """
import os, signal, sys, time
import numpy as np
from trnpy import dist
c = dist.comm(timeout={timeout})
c.allreduce(np.ones(5))
if c.rank == {victim}:
    {fault}
c.allreduce(np.zeros(5))
"""


def mpiexec(tmp_path, program, ranks=3, options=(), stderr=subprocess.PIPE):
    """Run a program on several ranks; skips where that is not possible."""
    if "PMI_SIZE" in os.environ or "OMPI_COMM_WORLD_SIZE" in os.environ:
        pytest.skip("this pytest is a rank itself")
    pytest.importorskip("mpi4py", reason="MPI needs mpi4py, which is not installed")
    here = os.path.join(os.path.dirname(sys.executable), "mpiexec")
    launcher = here if os.path.exists(here) else shutil.which("mpiexec")
    if launcher is None:
        pytest.skip("no mpiexec: pip install mpich brings one")
    tmp_path.mkdir(exist_ok=True)
    file = tmp_path / "program.py"
    file.write_text(textwrap.dedent(program))
    command = [launcher, "-n", str(ranks), sys.executable, *options, str(file)]
    return subprocess.run(command, stdout=subprocess.PIPE, stderr=stderr, text=True, timeout=60, check=False)


SILENT = """
import os
from trnpy import dist
from trnpy.dist._watched import Watched
Watched.folder = staticmethod(lambda: {pages!r})
c = dist.comm()
pages = len(os.listdir({pages!r}))
print(f"{{c.size}} {{c.allreduce(pages)}}\\n", end="", flush=True)
"""


def test_a_program_over_mpi_ends_in_silence(tmp_path):
    ended = mpiexec(tmp_path, SILENT.format(pages=str(pages := tmp_path / "pages")))
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "3 9\n" * 3, "")
    for _ in range(100):  # the processes beside the ranks end a little later
        if not pages.exists():
            break
        time.sleep(0.1)
    assert not pages.exists()


def test_the_runner_starts_ranks_itself(tmp_path):
    if "PMI_SIZE" in os.environ:
        pytest.skip("this pytest is a rank itself")
    pytest.importorskip("mpi4py", reason="MPI needs mpi4py, which is not installed")
    if not os.path.exists(os.path.join(os.path.dirname(sys.executable), "mpiexec")):
        pytest.skip("no mpiexec: pip install mpich brings one")
    file = tmp_path / "program.py"
    file.write_text(
        "import sys; from trnpy import dist; print(f'{dist.comm().size} {sys.argv[1:]}\\n', end=''); sys.exit(3)"
    )
    command = [sys.executable, "-m", "trnpy", "--no-report", "--ranks", "3", str(file), "--ranks", "5"]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (ended.returncode, ended.stdout) == (3, "3 ['--ranks', '5']\n" * 3), ended.stderr


def over_ranks(tmp_path, program, ranks):
    """A program that trnpy's launcher has started, as its command."""
    if "PMI_SIZE" in os.environ:
        pytest.skip("this pytest is a rank itself")
    pytest.importorskip("mpi4py", reason="MPI needs mpi4py, which is not installed")
    if not os.path.exists(os.path.join(os.path.dirname(sys.executable), "mpiexec")):
        pytest.skip("no mpiexec: pip install mpich brings one")
    file = tmp_path / "program.py"
    file.write_text(textwrap.dedent(program))
    command = [sys.executable, "-m", "trnpy", "--no-report", "--ranks", str(ranks), str(file)]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    return subprocess.Popen(command, text=True, start_new_session=True, **pipes)


CORE = """
import os
from trnpy import dist
from trnpy._nki import device
c = dist.comm()
device.prepare()  # before Neuron's runtime starts
names = "NEURON_RT_VISIBLE_CORES", "NEURON_LOGICAL_NC_CONFIG"
os.write(1, f"{c.rank} {' '.join(os.environ[name] for name in names)} {os.getpid()}\\n".encode())
"""


def test_the_launcher_starts_a_process_for_each_core(tmp_path):
    """Neuron's runtime shows each rank the physical core (LNC 1) with the rank's number, and no other."""
    with over_ranks(tmp_path, CORE, 3) as ended:
        out, error = ended.communicate(timeout=60)
    assert (ended.returncode, error) == (0, "")
    ranks, cores, logical, processes = zip(*sorted(line.split() for line in out.splitlines()), strict=True)
    assert ranks == cores == ("0", "1", "2") and set(logical) == {"1"} and len(set(processes)) == 3


def test_a_process_of_a_core_that_dies_ends_all(tmp_path):
    program = BEGIN.format(victim=1, fault="os.kill(os.getpid(), signal.SIGKILL)", timeout=None)
    with over_ranks(tmp_path, program, 3) as ended:
        _, error = ended.communicate(timeout=60)
    assert ended.returncode != 0
    assert error.count("trnpy.dist: ") == error.count("rank 1 of 3 ended the run: its process was killed") == 1


WAITS = """
import os, time
from trnpy import dist
c = dist.comm()
os.write(1, f"{{os.getpid()}}\\n".encode())
c.barrier()
{work}
c.barrier()
"""


@pytest.mark.skipif(sys.platform != "linux", reason="whether a process runs is read from /proc")
@pytest.mark.parametrize("work", ["time.sleep(100)", "c.rank and time.sleep(100)"], ids=["all work", "one waits"])
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP], ids=lambda number: number.name)
def test_a_signal_that_ends_the_launcher_ends_its_ranks(tmp_path, number, work):
    """A batch system sends SIGTERM to the process that it has started, whose ranks went on without it."""
    started = time.monotonic()
    with over_ranks(tmp_path, WAITS.format(work=work), 2) as ended:
        processes = [int(ended.stdout.readline()) for _ in range(2)]
        time.sleep(0.2)
        ended.send_signal(number)
        _, error = ended.communicate(timeout=60)
    assert ended.returncode == 128 + number and time.monotonic() - started < 30
    assert "subprocess.py" not in error
    while any(map(runs, processes)):
        assert time.monotonic() - started < 30
        time.sleep(0.05)


def runs(process):
    try:
        with open(f"/proc/{process}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] not in "XZ"
    except (FileNotFoundError, ProcessLookupError):
        return False


def test_ranks_have_one_report(tmp_path):
    program = """
    import numpy as np, sys
    from trnpy import dist
    a = np.ones((300, 300))
    np.matmul(a, a)
    dist.comm().allreduce(a)
    """
    options = ("-m", "trnpy", "--report", str(tmp_path / "r.json"), "--html", str(tmp_path / "r.html"))
    ended = mpiexec(tmp_path, program, options=options)
    assert (ended.returncode, ended.stdout) == (0, "")
    assert ended.stderr.count("trnpy: more: ") == ended.stderr.count("trnpy: 3 ranks: ") == 1
    ranks = json.loads((tmp_path / "r.json").read_text())["ranks"]
    assert [r["sent"] for r in ranks] == [4 * 300 * 300 * 8 // 3] * 3
    assert [line["calls"] for r in ranks for line in r["lines"]] == [1] * 3
    assert "<span>rank 2</span>" in (tmp_path / "r.html").read_text()
    ended = mpiexec(
        tmp_path,
        "from mpi4py import MPI\n" + textwrap.dedent(program.replace("dist.comm().allreduce(a)", "")),
        options=("-m", "trnpy"),
    )
    said = " ".join(ended.stderr.split())
    assert said.count("trnpy: more: ") == said.count("what they sent was not seen") == 1


SLOW = """
import time
from trnpy.chem._progress import track
for i in track(range(3), "loop"):
    time.sleep(1.1)
"""


def test_the_first_rank_alone_shows_progress(tmp_path):
    """mpiexec has a terminal, its ranks have pipes."""
    assert "loop" not in mpiexec(tmp_path, SLOW).stderr
    own, other = pty.openpty()
    ended = mpiexec(tmp_path, SLOW, stderr=other)
    assert ended.returncode == 0
    shown = os.read(own, 10_000).decode()
    assert shown.count("loop: 2 of 3") == 1
    os.close(own), os.close(other)
