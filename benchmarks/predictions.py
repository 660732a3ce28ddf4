"""Measured over predicted seconds of the host in eleven programs, with the default rates and after ``calibrate``.

A program's ratio is that of the sums over its calls for which there is a prediction. Its calls take the routes that the
rates choose. The machine is calibrated once, before the programs run; of several runs of a program the fastest counts.
The report's verdicts are printed too, with what one core of a device would save of the run (modelled), as the runs had
it; ``--loaded`` keeps every processor busy besides: the verdicts should not change. The sizes are chosen so that no
program is near a threshold of the verdict with one thread or with two: there it would change with the noise of a run.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import operator
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from benchmarks._measure import gate, header
from trnpy._report.units import NOTICEABLE
from trnpy._settings.policy import HYSTERESIS

MEDIAN, WORST = (0.7, 1.4), (0.4, 2.5)  # what is aimed at
ROUNDS = 3
START = "import numpy as np\nimport scipy.linalg as la\nrng = np.random.default_rng(0)\n"
PROGRAMS = {
    "products": """
        a, b = rng.standard_normal((2, 900, 900))
        for _ in range(30):
            a = np.matmul(a, b)
            a /= np.abs(a).max()
    """,
    "products in float32": """
        a, b = rng.standard_normal((2, 2000, 2000)).astype(np.float32)
        for _ in range(6):
            np.dot(a, b.T), np.dot(a.T, b)
    """,
    "cold products": """
        stack = rng.standard_normal((40, 450, 450))
        for k in range(1, 40):
            np.matmul(stack[k - 1], stack[k])
            stack[k] += 1.0
    """,
    "transformation of integrals": """
        ints, c = rng.standard_normal((36, 36, 36, 36)), rng.standard_normal((36, 24))
        for _ in range(4):
            np.einsum("pqrs,pi,qj,rk,sl->ijkl", ints, c, c, c, c, optimize=True)
    """,
    "coulomb and exchange": """
        rows, c = rng.standard_normal((400, 90, 90)), rng.standard_normal((90, 20))
        for _ in range(6):
            half = np.einsum("Pmn,ni->Pmi", rows, c)
            np.einsum("Pmi,Pni->mn", half, half), np.einsum("Pmn,P->mn", rows, np.einsum("Pmn,mn->P", rows, rows[0]))
    """,
    "self-consistent field": """
        f = rng.standard_normal((300, 300))
        s = la.cholesky(f @ f.T + 300 * np.eye(300), lower=True)
        for _ in range(10):
            e, c = la.eigh(f + f.T)
            f = f + 0.01 * np.tensordot(c[:, :50], c[:, :50], axes=(1, 1))
            la.solve_triangular(s, f, lower=True)
    """,
    "gaussian process": """
        x = np.sort(rng.uniform(0, 10, 800))
        for length in np.linspace(0.2, 2, 12):
            k = np.exp(-(((x[:, None] - x) / length) ** 2)) + 0.1 * np.eye(800)
            la.cho_solve(la.cho_factor(k), np.eye(800)[:, :100]), np.linalg.solve(k, np.eye(800)[:, :100])
    """,
    "principal components": """
        x = rng.standard_normal((1000, 250))
        for _ in range(8):
            u, s, v = np.linalg.svd(x - x.mean(0), full_matrices=False)
            q, r = np.linalg.qr(np.dot(u * s, v))
            x = q + 0.1
    """,
    "matrix functions": """
        a = rng.standard_normal((250, 250)) / 16
        for _ in range(4):
            la.expm(a), la.inv(a + 2 * np.eye(250)), la.sqrtm(a @ a.T + np.eye(250)), la.pinv(a)
    """,
    "stacks of small matrices": """
        a = rng.standard_normal((3000, 12, 12))
        s = a @ a.swapaxes(1, 2) + 12 * np.eye(12)
        for _ in range(4):
            np.linalg.inv(s), np.linalg.cholesky(s), np.linalg.eigh(s), np.matmul(s, a), np.einsum("nij,njk->nik", s, a)
    """,
    "complex spectra": """
        h = rng.standard_normal((250, 250)) + 1j * rng.standard_normal((250, 250))
        for _ in range(4):
            e, u = np.linalg.eigh(h + h.conj().T)
            np.matmul(u * e, u.conj().T), la.lu_factor(h)
    """,
}


class Run(NamedTuple):
    """What the report says of one run of a program."""

    took_s: float  # measured, of the calls for which there is a prediction
    ratio: float  # of took_s to the prediction
    each: dict[str, float]  # the ratio of each function
    verdict: str
    saved: tuple[float, float]  # of the run, modelled, at the slow end of the model's interval and at the fast end


def ratios(source: str, folder: pathlib.Path, environment: Mapping[str, str]) -> Run:
    """One run of a program."""
    program, report = folder / "program.py", folder / "report.json"
    program.write_text(START + "\n".join(line[8:] for line in source.splitlines()))
    command = [sys.executable, "-m", "trnpy", "--no-report", "--report", str(report), str(program)]
    subprocess.run(command, env=dict(environment), check=True)
    said = json.loads(report.read_text())
    priced = [t for t in said["by_function"] if t["modelled"]]
    took, predicted = ({}, {})
    for t in priced:
        took[t["op"]] = took.get(t["op"], 0.0) + t["seconds"] * t["modelled"] / t["calls"]
        predicted[t["op"]] = predicted.get(t["op"], 0.0) + t["host_s"]
    total = sum(took.values())
    each = {op: took[op] / predicted[op] for op in took}
    what_if = said["what_if"]
    saved = what_if["least_s"] / what_if["host_s"], what_if["most_s"] / what_if["host_s"]
    return Run(total, total / sum(predicted.values()), each, what_if["verdict"], saved)


@contextlib.contextmanager
def busy() -> Iterator[None]:
    """Every processor has work besides."""
    loops = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(os.cpu_count() or 1)]
    try:
        yield
    finally:
        for loop in loops:
            loop.kill()
            loop.wait()


def show(title: str, found: list[float]) -> None:
    inside = MEDIAN[0] <= statistics.median(found) <= MEDIAN[1], WORST[0] <= min(found), max(found) <= WORST[1]
    print(
        f"{title}: median {statistics.median(found):.2f} (aim {MEDIAN[0]} to {MEDIAN[1]}), from {min(found):.2f} to "
        f"{max(found):.2f} (aim {WORST[0]} to {WORST[1]}){'' if all(inside) else ': MISSED'}"
    )


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks predictions")
    parser.add_argument("--functions", action="store_true", help="also the ratio of each function")
    parser.add_argument("--programs", nargs="*", default=[], help="only these")
    parser.add_argument("--loaded", action="store_true", help="with a busy process on every processor")
    options = parser.parse_args(argv)
    gate("tests/_settings", "tests/_report/test_ledger.py")
    header("seconds on the host, measured over predicted")
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        default = {**os.environ, "XDG_CACHE_HOME": str(folder / "default")}
        calibrated = {**os.environ, "XDG_CACHE_HOME": str(folder / "calibrated")}
        command = [sys.executable, "-m", "trnpy", "calibrate"]
        run = subprocess.run(command, env=calibrated, capture_output=True, text=True, check=True)
        print(*(line for line in run.stdout.splitlines() if line.startswith(("disturbed", "measured"))), "", sep="\n")
        print(f"{'':68}{'saved, modelled':>28}")
        print(f"{'':30}{'measured':>10}{'default rates':>16}{'calibrated':>12}{'at least':>14}{'at most':>14}  verdict")
        found: dict[str, list[float]] = {"default rates": [], "calibrated": []}
        changed = []
        for title, source in PROGRAMS.items():
            if options.programs and title not in options.programs:
                continue
            rounds = [(ratios(source, folder, default), ratios(source, folder, calibrated)) for _ in range(ROUNDS)]
            one, two = (min(runs, key=operator.attrgetter("took_s")) for runs in zip(*rounds, strict=True))
            found["default rates"].append(one.ratio)
            found["calibrated"].append(two.ratio)
            if options.loaded:
                with busy():
                    rounds.append((ratios(source, folder, default), ratios(source, folder, calibrated)))
            runs = [run for pair in rounds for run in pair]
            verdicts = sorted({run.verdict for run in runs})
            changed += [title] if len(verdicts) > 1 else []
            least, most = (
                " to ".join(f"{end(run.saved[k] for run in runs):.0%}" for end in (min, max)) for k in (0, 1)
            )
            figures = f"{one.took_s:8.2f} s{one.ratio:16.2f}{two.ratio:12.2f}{least:>14}{most:>14}"
            print(f"{title:30}{figures}  {', '.join(verdicts)}", flush=True)
            for op in one.each if options.functions else ():
                print(f"    {op:26}{'':10}{one.each[op]:16.2f}{two.each.get(op, float('nan')):12.2f}")
    print()
    for title, values in found.items():
        show(title, values)
    print(
        f"faster: saves more than {NOTICEABLE:.0%} at least; no difference: saves {NOTICEABLE:.0%} at most; "
        f"a call saves nothing unless it is {HYSTERESIS} times faster"
    )
    print(f"programs of more than one verdict: {', '.join(changed) or 'none'}")
    return 0
