"""Eigenproblems in pieces by the ScaLAPACK that a program has loaded: that of MKL, preloaded beside MPICH."""

import os
import pathlib
import subprocess
import sys

import numpy as np
import pytest

from trnpy import dist
from trnpy.dist import linalg
from trnpy.dist._spectral import ACCEPTED

LIBRARIES = pathlib.Path(sys.prefix, "lib")
MPIEXEC = pathlib.Path(sys.executable).with_name("mpiexec")
PROGRAM = """
import numpy as np
from trnpy import dist
from trnpy.dist import linalg
c, used, found = dist.comm(), [], linalg.eigenvectors
linalg.eigenvectors = lambda a: (used.append(found(a)), used[-1])[1]
for n in (2, 129, 300):
    for dtype in "fdFD":
        rng = np.random.default_rng(n)
        a, b = rng.standard_normal((2, n, n)) + (1j * rng.standard_normal((2, n, n)) if dtype in "FD" else 0)
        a, b = (a + a.conj().T).astype(dtype), (b @ b.conj().T + n * np.eye(n)).astype(dtype)
        for pencil in (False, True):
            memory = 4 * (n // 2) ** 2 * a.itemsize
            w, v = dist.linalg.eigh(dist.scatter(a), dist.scatter(b) if pencil else None, memory=memory)
            x, b_x = dist.gather(v), (b if pencil else np.eye(n)) @ dist.gather(v)
            unit = n * np.finfo(dtype).eps
            wrong = np.linalg.norm(a @ x - b_x * w) / np.linalg.norm(a) / unit, np.linalg.norm(x.conj().T @ b_x - np.eye(n)) / unit
            if c.rank == 0:
                print(len(used), sum(v is not None for v in used), *wrong, flush=True)
            used.clear()
"""


def run(tmp_path, ranks, integers):
    """Calls, those that ScaLAPACK computed, residual and orthogonality in n eps, of each eigenproblem."""
    names = ["core", "sequential", f"intel_{integers}", f"blacs_intelmpi_{integers}", f"scalapack_{integers}"]
    found = [next(iter(sorted(LIBRARIES.glob(f"libmkl_{name}.so*"))), None) for name in names]
    if None in found or not MPIEXEC.exists():
        pytest.skip("no ScaLAPACK: pip install mkl mpich mpi4py")
    if "PMI_SIZE" in os.environ:
        pytest.skip("this pytest is a rank itself")
    file = tmp_path / "program.py"
    file.write_text(PROGRAM)
    preloaded = ":".join(map(str, [LIBRARIES / "libmpi.so.12", *found]))
    command = [MPIEXEC, "-n", str(ranks), "-genv", "LD_PRELOAD", preloaded, sys.executable, file]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert ended.returncode == 0, ended.stderr
    rows = np.array([line.split() for line in ended.stdout.splitlines()], float)
    assert rows.shape == (24, 4)
    return rows.T


@pytest.mark.parametrize("ranks", [2, 3])
def test_scalapack_computes_where_the_program_has_loaded_it(tmp_path, ranks):
    calls, by_scalapack, residual, orthogonality = run(tmp_path, ranks, "lp64")
    assert calls.tolist() == by_scalapack.tolist() == [1, 2] * 12  # a pencil is two problems
    assert residual.max() <= ACCEPTED and orthogonality.max() <= ACCEPTED


def test_a_library_with_long_integers_is_left_alone(tmp_path):
    calls, by_scalapack, residual, orthogonality = run(tmp_path, 2, "ilp64")
    assert calls.all() and not by_scalapack.any()
    assert residual.max() <= ACCEPTED and orthogonality.max() <= ACCEPTED


def test_vectors_that_are_wrong_are_not_taken(monkeypatch):
    """They are checked as those of our own algorithm are, which then computes."""
    a = np.random.default_rng(0).standard_normal((60, 60))
    a, asked = a + a.T, []

    def wrong(x):
        v = np.linalg.eigh(a)[1]
        v[3, 7] += 1e-9
        asked.append(x.comm.rank)
        return dist.scatter(v)

    monkeypatch.setattr(linalg, "eigenvectors", wrong)
    w, v = dist.threads(2, lambda: [dist.gather(x) for x in linalg.eigh(dist.scatter(a), memory=4 * 30**2 * 8)])[0]
    assert sorted(asked) == [0, 1]
    assert np.linalg.norm(a @ v - v * w) <= ACCEPTED * 60 * 2.0**-52 * np.linalg.norm(a)
