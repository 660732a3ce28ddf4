"""DF-MP2, J and K, and a matrix product over 1, 2 and 4 ranks: seconds against as many threads of BLAS, and bytes.

Strong scaling keeps the problem, weak scaling the work of a rank. Efficiency is the time of one process with as many
threads over that of the ranks, which have one thread each. Bytes are counted, and must be those of the model. Then
times of 1 to 64 NeuronCores of one instance, and of 1 to 16 instances, all modelled.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence

from benchmarks import _threads

RANKS = (1, 2, 4)
TURNS = 3
GOAL = 0.85  # of the speed of as many threads
MOST_BYTES = 5e8  # of the memory of a rank
# Links of trn2.48xlarge: NeuronLink 1.28 TB/s a chip of 8 cores, EFA 3.2 Tb/s an instance, about 15 us a message
# (aws.amazon.com/ec2/instance-types/trn2). A rank is a core; 64 of them share an instance.
CORES = 64
LINK_BYTES_PER_S, LINK_S = 1.28e12 / 8, 5e-6
NETWORK_BYTES_PER_S, NETWORK_S = 3.2e12 / 8 / CORES, 15e-6
LARGE = (
    180,
    1320,
    3000,
)  # occupied and virtual orbitals, auxiliary functions of the modelled MP2: 60 atoms, triple zeta
Case = Callable[[int], tuple[Callable[[], object], float]]


def main(argv: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks scale", description=__doc__)
    parser.add_argument("--turns", type=int, default=TURNS, help="of which the fastest counts (default %(default)s)")
    parser.add_argument("--modelled", action="store_true", help="only what is modelled")
    options = parser.parse_args(argv)
    wrong = 0 if options.modelled else measured(options.turns)
    modelled()
    return wrong


# --- Measured ---------------------------------------------------------------------------------------------------------


def measured(turns: int) -> int:
    """Print a row for each case and number of ranks; 1 if a rank sends other bytes than the model says."""
    print(f"{os.cpu_count()} processors, load {os.getloadavg()[0]:.1f}; seconds, the fastest of {turns}")
    print(f"{'':14}{'scaling':9}{'ranks':>6}{'ranks':>9}{'threads':>9}{'efficiency':>12}{'sent':>12}{'modelled':>12}")
    wrong = 0
    for name in CASES:
        for scaling in ("strong", "weak"):
            for ranks in RANKS:
                size = 1 if scaling == "strong" else ranks
                if scaling == "weak" and ranks == 1:
                    continue
                # In turns, so that other programs disturb both alike.
                runs = [(_run(name, size, ranks, 1), _run(name, size, 1, ranks)) for _ in range(turns)]
                ours, threads = (min(run[i]["seconds"] for run in runs) for i in (0, 1))
                sent, model = runs[0][0]["sent"], runs[0][0]["modelled"]
                differs = abs(sent - model) > 1e-9 * model
                wrong |= differs
                notes = " differs" * differs + " below the goal" * (threads < GOAL * ours)
                print(f"{name:14}{scaling:9}{ranks:6d}{ours:9.3f}{threads:9.3f}{threads / ours:11.0%} ", end="")
                print(f"{sent / 1e6:9.3f} MB{model / 1e6:9.3f} MB{notes}", flush=True)
    return int(wrong)


def _run(name: str, size: int, ranks: int, threads: int) -> dict[str, float]:
    """One process of this file for each rank."""
    from trnpy.dist._launch import mpiexec

    start = [mpiexec(), "-n", str(ranks)] if ranks > 1 else []
    command = [*start, sys.executable, "-m", "benchmarks.scale", name, str(size)]
    found = subprocess.run(command, env=_threads.environment(str(threads)), capture_output=True, text=True, check=True)
    result: dict[str, float] = json.loads(found.stdout)
    return result


def rank(name: str, size: int) -> None:
    """Time one case on this rank, after a first time; the first rank prints the seconds of the slowest one."""
    from trnpy import dist

    comm = dist.comm()
    run, model = CASES[name](size)
    run()
    comm.barrier()
    sent, started = comm.sent, time.perf_counter()
    run()
    seconds = time.perf_counter() - started
    sent = comm.sent - sent
    slowest, sent = float(comm.allreduce(seconds, "max")), int(comm.allreduce(sent)) / comm.size
    if comm.rank == 0:
        print(json.dumps({"seconds": slowest, "sent": sent, "modelled": model}))


def mp2(size: int) -> tuple[Callable[[], object], float]:
    import numpy as np

    from trnpy import dist
    from trnpy.chem import _mp2_ranks as over

    occ, vir, aux = round(32 * size**0.5 / 4) * 4, 224, 672
    comm, generator = dist.comm(), np.random.default_rng(0)

    class Same:
        """Integrals that take no time to compute: a few auxiliary functions, again and again."""

        edges = range(0, aux + 1, 8)
        row_bytes = 8 * (occ + vir) ** 2
        unfitted = False
        stack = generator.standard_normal((8, occ + vir, occ + vir))

        def rows(self, first: int, last: int) -> np.ndarray:
            return self.stack[np.arange(first, last) % 8]

        triangles = rows

        def check(self, memory: float) -> None: ...

        def fit(self) -> None: ...

        def fitted(self, b: np.ndarray) -> np.ndarray:
            return b

    c = generator.standard_normal((occ + vir, occ + vir)) / (occ + vir)
    e = np.arange(occ + vir) / 10.0
    orbitals = over.Orbitals((c[:, :occ].copy(),), (c[:, occ:].copy(),), (e[:occ] - 9,), (e[occ:],))

    def run() -> object:
        with tempfile.TemporaryDirectory() as folder:
            share = over.transformed(Same(), orbitals, comm, MOST_BYTES, folder)
            return over.energy(share, orbitals, comm, MOST_BYTES)

    sums = 2 * occ * occ * 8
    return run, over.sent_bytes(orbitals, aux, comm.size) + 2 * sums * (comm.size - 1) / comm.size


def jk(size: int) -> tuple[Callable[[], object], float]:
    import numpy as np

    from trnpy import dist
    from trnpy.chem import _jk_ranks as over

    nao, occ, aux = 300, 40, 1200 * size
    comm, generator = dist.comm(), np.random.default_rng(0)
    mine = aux * (comm.rank + 1) // comm.size - aux * comm.rank // comm.size
    b = generator.standard_normal((mine, nao * (nao + 1) // 2))
    square = np.zeros((mine, nao, nao))
    square[:, *np.tril_indices(nao)] = b
    square[:, *np.triu_indices(nao)] = square.swapaxes(1, 2)[:, *np.triu_indices(nao)]
    c = generator.standard_normal((nao, occ))
    run = lambda: over.matrices(b, c @ c.T, [c], comm, True, True, square)  # noqa: E731
    return run, over.sent_bytes(nao, comm.size)


def gemm(size: int) -> tuple[Callable[[], object], float]:
    import numpy as np

    from trnpy import dist

    n = 2048
    a = dist.scatter(np.random.default_rng(0).standard_normal((n * size, n)))
    b = dist.scatter(np.random.default_rng(1).standard_normal((n, n)))
    return lambda: a @ b, dist.einsum_plan("ij,jk->ik", a, b).bytes


CASES: dict[str, Case] = {"DF-MP2": mp2, "J and K": jk, "A B": gemm}


# --- Modelled ---------------------------------------------------------------------------------------------------------


def modelled() -> None:
    """Print seconds of one large DF-MP2 over cores and instances, and the share of communication."""
    import numpy as np

    import trnpy
    from trnpy.chem import dfmp2_energy

    occ, vir, aux = LARGE
    # All pairs of a few orbitals, on one core; pages that are never written take no memory.
    few = 12
    with trnpy.policy(device="null", machine="trn2"):
        one = trnpy.explain(dfmp2_energy, np.zeros((few, vir, aux)), np.zeros(few), np.zeros(vir)).device_s
    pairs_s = float(np.mean(one)) * occ * (occ + 1) / (few * (few + 1))
    print(
        f"\nDF-MP2 on trn2: {occ} occupied, {vir} virtual orbitals, {aux} auxiliary functions, (ia|L) there (modelled)"
    )
    print(f"{'instances':>10}{'cores':>7}{'pairs s':>11}{'transfers s':>13}{'share':>7}{'efficiency':>12}")
    total = 8.0 * occ * vir * aux
    for ranks in (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024):
        instances = -(-ranks // CORES)
        each, busy = -(-occ // ranks), min(ranks, occ)  # ranks beyond the orbitals have no pairs
        work = pairs_s * min(1.0, (each * (each + 1) + each * each * (busy - 1)) / (occ * (occ + 1)))
        sent = total / busy * ((ranks - 1) / ranks + busy // 2)  # none of one rank
        rate, message = (LINK_BYTES_PER_S, LINK_S) if instances == 1 else (NETWORK_BYTES_PER_S, NETWORK_S)
        moved = sent / rate + message * (ranks - 1 + ranks // 2)
        whole = work + moved
        print(f"{instances:10d}{ranks:7d}{work:11.3g}{moved:13.3g}{moved / whole:7.0%}{pairs_s / ranks / whole:12.0%}")


if __name__ == "__main__":
    rank(sys.argv[1], int(sys.argv[2]))
