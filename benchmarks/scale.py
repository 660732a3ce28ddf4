"""DF-MP2, J and K, and a matrix product over 1, 2 and 4 ranks: seconds against as many threads of BLAS, and bytes.

Strong scaling keeps the problem, weak scaling the work of a rank. Efficiency is the time of one process with as many
threads over that of the ranks, which have one thread each. Bytes are counted, and must be those of the model. Then
times on 1 to 16 chips of one instance, and on 1 to 16 instances, all modelled.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from benchmarks import _threads
from trnpy._nki.instances import INSTANCES
from trnpy._report.scaling import HEIGHT, WIDTH, Curve, Load, picture, points

RANKS = (1, 2, 4)
TURNS = 2  # launches of ranks and of threads, one after the other, so that other programs disturb both alike
REPEATS = 3  # runs in a launch, of which the first fills caches
GOAL = 0.85  # of the speed of as many threads
MOST_BYTES = 5e8  # of the memory of a rank
INSTANCE = "trn2.48xlarge"  # of the modelled times
# Modelled: occupied and virtual orbitals, auxiliary functions (60 atoms, triple zeta), and rows of a product.
LARGE = (180, 1320, 3000)
ROWS = 16384
FEW = 12  # orbitals, or auxiliary functions, whose modelled time is scaled up: pages never written take no memory
Case = Callable[[int], tuple[Callable[[], object], float]]


def main(argv: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks scale", description=__doc__)
    parser.add_argument(
        "--turns", type=int, default=TURNS, help="launches, of which the fastest run counts (default %(default)s)"
    )
    parser.add_argument("--modelled", action="store_true", help="only what is modelled")
    parser.add_argument("--picture", metavar="FILE", help="only the curves of what is modelled, as SVG")
    options = parser.parse_args(argv)
    if options.picture:
        style = "<style>text{font:12px system-ui,sans-serif;fill:#223}.rule,.frame{fill:none;stroke:#bbc}</style>"
        drawn = picture(curves(), INSTANCES[INSTANCE].chips)
        box = (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" height="{HEIGHT}">'
        )
        white = f'<rect width="{WIDTH}" height="{HEIGHT}" fill="#fff"/>'
        Path(options.picture).write_text(f"{box}{style}{white}{drawn}</svg>\n")
        return 0
    wrong = 0 if options.modelled else measured(options.turns)
    modelled()
    return wrong


# --- Measured ---------------------------------------------------------------------------------------------------------


def measured(turns: int) -> int:
    """Print a row for each case and number of ranks; 1 if a rank sends other bytes than the model says."""
    print(f"{os.cpu_count()} processors, load {os.getloadavg()[0]:.1f}; seconds, the fastest of {turns * REPEATS}")
    print(f"{'':14}{'scaling':9}{'ranks':>6}{'ranks':>9}{'threads':>9}{'efficiency':>12}{'sent':>12}{'modelled':>12}")
    wrong = rows = reached = 0
    for name in CASES:
        for scaling in ("strong", "weak"):
            for ranks in RANKS:
                size = 1 if scaling == "strong" else ranks
                if scaling == "weak" and ranks == 1:
                    continue
                runs = [(_run(name, size, ranks, 1), _run(name, size, 1, ranks)) for _ in range(turns)]
                ours, threads = (min(run[i]["seconds"] for run in runs) for i in (0, 1))
                sent, model = runs[0][0]["sent"], runs[0][0]["modelled"]
                differs = abs(sent - model) > 1e-9 * model
                wrong |= differs
                rows, reached = rows + 1, reached + (threads >= GOAL * ours)
                notes = " differs" * differs + " below the goal" * (threads < GOAL * ours)
                print(f"{name:14}{scaling:9}{ranks:6d}{ours:9.3f}{threads:9.3f}{threads / ours:11.0%} ", end="")
                print(f"{sent / 1e6:9.3f} MB{model / 1e6:9.3f} MB{notes}", flush=True)
    print(f"{reached} of {rows} rows have {GOAL:.0%} or more of the speed of as many threads")
    return int(wrong)


def _run(name: str, size: int, ranks: int, threads: int) -> dict[str, float]:
    """One process of this file for each rank."""
    from trnpy.dist._launch import mpiexec

    start = [mpiexec(), "-n", str(ranks)] if ranks > 1 else []
    command = [*start, sys.executable, "-m", "benchmarks.scale", name, str(size)]
    found = subprocess.run(command, env=_threads.environment(str(threads)), capture_output=True, text=True, check=False)
    if found.returncode:
        raise SystemExit(f"{' '.join(command)}: {found.stderr}")
    result: dict[str, float] = json.loads(found.stdout)
    return result


def rank(name: str, size: int) -> None:
    """Time one case a few times on this rank; the first rank prints the fastest time, each that of the slowest rank."""
    from trnpy import dist

    comm = dist.comm()
    run, model = CASES[name](size)
    fastest, sent = math.inf, 0
    for _ in range(REPEATS):
        comm.barrier()
        before, started = comm.sent, time.perf_counter()
        run()
        seconds, sent = time.perf_counter() - started, comm.sent - before
        fastest = min(fastest, float(comm.allreduce(seconds, "max")))
    mean = int(comm.allreduce(sent)) / comm.size
    if comm.rank == 0:
        print(json.dumps({"seconds": fastest, "sent": mean, "modelled": model}))


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


def curves() -> list[Curve]:
    """DF-MP2, J and K, and products of float64 matrices on the cores of chips and instances, one rank on each core."""
    instance = INSTANCES[INSTANCE]
    loads = {"DF-MP2": modelled_mp2(), "J and K": modelled_jk(), "A B": modelled_gemm(), "A B grid": modelled_grid()}
    return [Curve(name, points(instance, strong), points(instance, weak)) for name, (strong, weak) in loads.items()]


def one_core_s(function: Callable[..., object], *arguments: object, **options: object) -> float:
    """Modelled seconds of a call on one NeuronCore."""
    import trnpy

    with trnpy.policy(device="null", machine=INSTANCES[INSTANCE].generation):
        seconds = trnpy.explain(function, *arguments, **options).device_s
    assert seconds is not None
    return seconds


def modelled_mp2() -> tuple[Load, Load]:
    """Pairs of orbitals that are there already, as `trnpy.chem._mp2_ranks` forms them."""
    import numpy as np

    from trnpy.chem import dfmp2_energy

    occ, vir, aux = LARGE
    pair_s = one_core_s(dfmp2_energy, np.zeros((FEW, vir, aux)), np.zeros(FEW), np.zeros(vir)) / (FEW * (FEW + 1))

    def load(n: Callable[[int], float]) -> Load:
        def work_s(ranks: int) -> float:
            each, busy = math.ceil(n(ranks) / ranks), min(ranks, n(ranks))  # ranks beyond the orbitals have no pairs
            return pair_s * min(n(ranks) * (n(ranks) + 1), each * (each + 1) + each * each * (busy - 1))

        def sent(ranks: int) -> float:
            busy = min(ranks, round(n(ranks)))
            return 8.0 * n(ranks) * vir * aux / busy * ((ranks - 1) / ranks + busy // 2)

        return Load(work_s, sent, lambda ranks: 1 + min(ranks, n(ranks)) // 2)

    cores = INSTANCES[INSTANCE].hardware.cores_per_chip
    return load(lambda ranks: occ), load(lambda ranks: occ * (ranks / cores) ** 0.5)


def modelled_jk() -> tuple[Load, Load]:
    """J and K of one density, each rank with a range of the auxiliary functions."""
    import numpy as np

    from trnpy.chem import _jk_ranks, build_jk_df

    occ, vir, aux = LARGE
    nao = occ + vir
    b, dm, c = np.zeros((FEW, nao, nao)), np.zeros((nao, nao)), np.zeros((nao, occ))
    function_s = one_core_s(build_jk_df, b, dm, orbitals=c) / FEW
    cores = INSTANCES[INSTANCE].hardware.cores_per_chip
    sent = lambda ranks: _jk_ranks.sent_bytes(nao, ranks)  # noqa: E731
    strong = Load(lambda ranks: function_s * math.ceil(aux / ranks), sent, lambda ranks: 1)
    return strong, Load(lambda ranks: function_s * math.ceil(aux / cores), sent, lambda ranks: 1)


def modelled_gemm() -> tuple[Load, Load]:
    """A product whose left operand and result are cut by rows, and whose right one is gathered."""
    cores, row_s = INSTANCES[INSTANCE].hardware.cores_per_chip, modelled_row_s()
    sent = lambda ranks: 8.0 * ROWS * ROWS * (ranks - 1) / ranks  # noqa: E731
    strong = Load(lambda ranks: row_s * ROWS / ranks, sent, lambda ranks: 1)
    return strong, Load(lambda ranks: row_s * ROWS / cores, sent, lambda ranks: 1)


def modelled_grid() -> tuple[Load, Load]:
    """The same product, cut alike, in which each rank computes a block of the result: the plan of trnpy.dist."""
    cores, row_s = INSTANCES[INSTANCE].hardware.cores_per_chip, modelled_row_s()
    strong = Load(lambda ranks: row_s * ROWS / ranks, lambda ranks: grid_bytes(ROWS, ranks), lambda ranks: 3)
    weak = Load(
        lambda ranks: row_s * ROWS / cores, lambda ranks: grid_bytes(ROWS * ranks // cores, ranks), lambda ranks: 3
    )
    return strong, weak


def modelled_row_s() -> float:
    """Seconds of a row of the product on one core."""
    import numpy as np

    import trnpy

    n = ROWS // INSTANCES[INSTANCE].hardware.cores_per_chip
    return one_core_s(trnpy.matmul, np.zeros((n, ROWS)), np.zeros((ROWS, ROWS))) / n


def grid_bytes(rows: int, ranks: int) -> float:
    """Bytes that a rank sends on the best grid: A (rows, ROWS) by rows, B (ROWS, ROWS) by columns, result by rows."""
    from trnpy.dist import _grids
    from trnpy.dist._collectives import even

    sizes = {"i": rows, "j": ROWS, "k": ROWS}
    edges = {c: even(n, ranks) for c, n in sizes.items()}
    has = {
        "ij": _grids.pieces((rows, ROWS), 0, edges["i"]), "jk": _grids.pieces((ROWS, ROWS), 1, edges["k"]),
        "ik": _grids.pieces((rows, ROWS), 0, edges["i"]),
    }  # fmt: skip
    return 8.0 * min(
        sum(
            _grids.received(pieces, grid.blocks(labels, [sizes[c] for c in labels], sizes))
            for labels, pieces in has.items()
        )
        for grid in _grids.grids(["ij", "jk"], "ik", edges, ranks)
    )


def modelled() -> None:
    """Print seconds of large programs over chips and instances, and the share of communication."""
    occ, vir, aux = LARGE
    print(
        f"\n{INSTANCE}, one rank on each NeuronCore (modelled): DF-MP2 and J and K of {occ} occupied and {vir} virtual"
    )
    print(f"orbitals, {aux} auxiliary functions, integrals there; A B of {ROWS} rows of float64")
    print(f"{'':9}{'instances':>10}{'chips':>6}{'work s':>10}{'transfers s':>13}{'share':>7}{'faster':>9}{'weak':>6}")
    for found in curves():
        for p, faster, weak in zip(found.strong, found.speedups, found.efficiencies, strict=True):
            share = p.moved_s / p.seconds
            print(f"{found.name:9}{p.instances:10d}{p.chips:6d}{p.work_s:10.3g}{p.moved_s:13.3g}{share:7.0%}", end="")
            print(f"{faster:9.3g}{weak:6.0%}")


if __name__ == "__main__":
    rank(sys.argv[1], int(sys.argv[2]))
