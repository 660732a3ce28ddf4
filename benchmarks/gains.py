"""The table of docs/baselines.md: what a user gains today on a CPU, and where trnpy does nothing.

python -m benchmarks gains [--write] [--one-thread] [--rows WORD ...]

Each row compares the function of NumPy or SciPy with trnpy's, with one thread of BLAS and with the libraries' own
choice (``--one-thread`` where other work disturbs the threads of BLAS). ``--write`` puts the table into the page, with
the date and the machine.
"""

from __future__ import annotations

import argparse
import datetime
import functools
import itertools
import json
import operator
import os
import pathlib
import platform
import re
import subprocess
import sys
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import scipy.linalg
import scipy.sparse

import trnpy
import trnpy.linalg
import trnpy.sparse
from benchmarks import _threads
from benchmarks._measure import gate, libraries, paired
from benchmarks._processes import KEPT_PAGES
from trnpy._call.dispatch import accelerated
from trnpy._call.rows import rows as rows_of
from trnpy._settings.host_rates import machine_id
from trnpy.chem import dfmp2_energy

PAGE = pathlib.Path(__file__).parent.parent / "docs" / "baselines.md"
BEGIN, END = "<!-- python -m benchmarks gains --write -->\n", "<!-- end of gains -->\n"
ROW_S, GAIN = 0.3, 1.1
INVERSE = next(accelerated(op) for op in rows_of("numpy.linalg") if op.name == "numpy.linalg.inv")
Pair = tuple[str, Callable[[], Any], Callable[[], Any]]


def normal(*shape: int) -> np.ndarray:
    return np.random.default_rng(shape).standard_normal(shape)


def definite(*shape: int) -> np.ndarray:
    a = normal(*shape, shape[-1])
    a = a @ a.swapaxes(-1, -2) / shape[-1]
    return np.asarray((a + a.swapaxes(-1, -2)) / 2 + np.eye(shape[-1]))


def einsums() -> Iterator[Pair]:
    for subscripts, *shapes in (
        ("ij,jk->ik", (300, 300), (300, 300)),
        ("ijab,klab->ijkl", (12, 12, 40, 40), (12, 12, 40, 40)),
        ("bij,bjk->bik", (200, 24, 24), (200, 24, 24)),
        ("pqrs,pi,qj->ijrs", (24, 24, 24, 24), (24, 10), (24, 10)),
        ("ij,ij->", (400, 400), (400, 400)),
        ("iajb,iajb,iajb->", *[(20, 60, 20, 60)] * 3),
        ("abc,abc,abc->a", *[(60, 100, 120)] * 3),
    ):
        operands = [normal(*shape) for shape in shapes]
        yield (
            f"`einsum('{subscripts}')`, {', '.join(' x '.join(map(str, shape)) for shape in shapes[:2])}",
            functools.partial(np.einsum, subscripts, *operands),
            functools.partial(trnpy.einsum, subscripts, *operands),
        )
    a, b = normal(200, 24, 24), normal(200, 24, 24)
    planned = [functools.partial(module.einsum, "bij,bjk->bik", a, b, optimize=True) for module in (np, trnpy)]
    yield "`einsum(optimize=True)`, `bij,bjk->bik`, 200 x 24 x 24", planned[0], planned[1]


def products() -> Iterator[Pair]:
    for count, n in ((200, 20), (1000, 16)):
        lefts, rights = list(normal(count, n, n)), list(normal(count, n, n) + 1)
        pairs = list(zip(lefts, rights, strict=True))
        calls = [("ij,jk->ik", *pair) for pair in pairs]
        yield (
            f"`multi_einsum` of {count} products {n} x {n}, a list of `x @ y`",
            lambda pairs=pairs: [x @ y for x, y in pairs],
            functools.partial(trnpy.multi_einsum, calls),
        )
    rng = np.random.default_rng(0)
    for what, make in (
        ("int64, small values, 32 x 32", lambda: rng.integers(-9, 9, (32, 32))),
        ("int64, small values, 64 x 64", lambda: rng.integers(-9, 9, (64, 64))),
        ("int64, small values, 400 x 400", lambda: rng.integers(-9, 9, (400, 400))),
        ("int64, full range, 400 x 400", lambda: rng.integers(-(2**62), 2**62, (400, 400))),
        ("float16, 64 x 64", lambda: rng.standard_normal((64, 64)).astype("e")),
        ("float16, 300 x 300", lambda: rng.standard_normal((300, 300)).astype("e")),
        ("bool, 1 % true, 400 x 400", lambda: rng.random((400, 400)) < 0.01),
        ("float64, 500 x 500", lambda: rng.standard_normal((500, 500))),
    ):
        a, b = make(), make()
        yield f"`matmul`, {what}", functools.partial(np.matmul, a, b), functools.partial(trnpy.matmul, a, b)


def matrices() -> Iterator[Pair]:
    stacked = ["cholesky", "qr", "eigh", "svd", "inv", "solve", "det", "lu", "expm", "eig"]
    single = zip(
        ["eigh", "pinvh", "pinvh", "pinvh", "logm", "sqrtm", "cholesky", "solve", "svd"],
        (500, 256, 512, 1024, 200, 200, 500, 500, 300), strict=True,
    )  # fmt: skip
    stacks = {(1000, 4): stacked, (1000, 16): ["solve", "eig", "pinv", "svd"], (200, 64): [*stacked[:8], "eig"]}
    cases = [(name, shape) for shape, names in stacks.items() for name in names]
    for name, shape in [*cases, *((name, (n,)) for name, n in single)]:
        a = definite(*shape)
        args = (a, a[..., :1] + 1) if name == "solve" else (a,)
        what = " x ".join(map(str, (*shape, shape[-1])))
        pair = [functools.partial(getattr(module, name), *args) for module in (scipy.linalg, trnpy.linalg)]
        yield f"`scipy.linalg.{name}`, {what}, definite", pair[0], pair[1]
    for n, what, make in ((400, "general", normal), (600, "definite", definite), (1000, "general", normal)):
        a = make(*(n, n)[: 1 if make is definite else 2])
        original, ours = functools.partial(np.linalg.inv, a), functools.partial(INVERSE, a)
        yield f"`numpy.linalg.inv`, {n} x {n}, {what}", original, ours
    a = np.asfortranarray(normal(600, 600))
    gemms = [functools.partial(module.dgemm, 1.0, a, a, trans_b=1) for module in (scipy.linalg.blas, trnpy.linalg.blas)]
    yield "`scipy.linalg.blas.dgemm` of A and A^T, 600 x 600", gemms[0], gemms[1]


def sparse() -> Iterator[Pair]:
    for block in (16, 32, 128):
        side = 4096 // block
        pattern = scipy.sparse.random_array((side, side), density=0.05, rng=np.random.default_rng(0), format="csr")
        blocks = normal(pattern.nnz, block, block)
        a = scipy.sparse.bsr_array((blocks, pattern.indices, pattern.indptr), shape=(4096, 4096))
        x, ours = normal(4096, 64), trnpy.sparse.bsr_array(a)
        yield f"BSR of {block} x {block} times dense, 4096 x 64", *times((a, x), (ours, x))
        if block == 32:
            yield "BSR times BSR, 32 x 32", *times((a, a), (ours, ours))
            yield "BSR times vector", *times((a, x[:, 0]), (ours, x[:, 0]))
    a = scipy.sparse.random_array((4096, 4096), density=0.01, rng=np.random.default_rng(0), format="csr")
    ours, x = trnpy.sparse.csr_array(a), normal(4096, 64)
    yield "CSR without structure times dense, 4096 x 64", *times((a, x), (ours, x))


def masks() -> Iterator[Pair]:
    a, b = normal(2048, 64), normal(64, 256)
    for percent in (5, 1):
        mask = scipy.sparse.random_array((2048, 256), density=percent / 100, rng=np.random.default_rng(0), format="coo")
        yield (
            f"`block_mask_matmul`, {percent} % of 2048 x 256, `(A @ B)[rows, columns]`",
            functools.partial(picked, a, b, *mask.coords),
            functools.partial(trnpy.sparse.block_mask_matmul, a, b, mask.tocsr()),
        )


def picked(a: np.ndarray, b: np.ndarray, rows: np.ndarray, columns: np.ndarray) -> np.ndarray:
    return np.asarray((a @ b)[rows, columns])


def chemistry() -> Iterator[Pair]:
    for nocc, nvir, naux in ((6, 30, 200), (20, 100, 400)):
        args = normal(nocc, nvir, naux), -2.0 - np.arange(nocc), 1.0 + np.arange(nvir)
        what = f"DF-MP2 energy, {nocc} occupied, {nvir} virtual, a loop over pairs in BLAS"
        yield what, functools.partial(pairs, *args), functools.partial(dfmp2_energy, *args)


def pairs(b: np.ndarray, occupied: np.ndarray, virtual: np.ndarray) -> float:
    """The energy as it is written by hand: one product for each pair of orbitals."""
    energy, above = 0.0, virtual[:, np.newaxis] + virtual
    for i, j in itertools.combinations_with_replacement(range(len(b)), 2):
        v = b[i] @ b[j].T
        t = v / (occupied[i] + occupied[j] - above)
        energy += (1 + (i != j)) * float(2 * np.vdot(t, v) - np.vdot(t, v.T))
    return energy


def times(*pairs: tuple[Any, Any]) -> Iterator[Callable[[], Any]]:
    return (functools.partial(operator.matmul, *pair) for pair in pairs)


def measured(words: list[str]) -> dict[str, float]:
    """Time of the original over trnpy's, by row, in this process."""
    found = {}
    for part in (einsums, products, matrices, sparse, masks, chemistry):
        for name, original, ours in part():
            if words and not any(word in name for word in words):
                continue
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                found[name] = 1 / paired(original, ours, ROW_S)[1]
            print(f"{found[name]:8.2f}  {name}", file=sys.stderr, flush=True)
    return found


def table(words: list[str], threads: tuple[str, ...]) -> str:
    """Markdown: the rows that gain first, then those in which trnpy does nothing, or nothing that shows."""
    found = []
    for number in threads:
        command = [sys.executable, "-m", "benchmarks", "gains", "--threads", number, "--json", "--rows", *words]
        run = subprocess.run(
            command, env=_threads.environment(number) | KEPT_PAGES, stdout=subprocess.PIPE, text=True, check=True
        )
        found.append(json.loads(run.stdout))
    kernel = re.search(r"openblas \S+ (\w+) x", found[0]["libraries"])
    machine = f"{machine_id().partition(',')[0]}, {os.cpu_count()} processors"
    versions = f"Python {platform.python_version()}, NumPy {np.__version__}, SciPy {scipy.__version__}"
    lines = [
        f"Measured {datetime.date.today()} on {machine}, OpenBLAS kernel {kernel[1] if kernel else '-'}, {versions}.",
        "",
        f"| call | {' | '.join('1 thread' if n == '1' else 'all threads' for n in threads)} |",
        "|---" * (1 + len(threads)) + "|",
    ]
    ratios = {name: [one["ratios"][name] for one in found] for name in found[0]["ratios"]}
    for name in sorted(ratios, key=lambda name: max(ratios[name]) < GAIN):
        lines.append(f"| {name} | {' | '.join(map(shown, ratios[name]))} |")
    return "\n".join(lines) + "\n"


def shown(ratio: float) -> str:
    return f"{ratio:.2f}" if ratio < 1.95 else f"{ratio:.1f}" if ratio < 9.95 else f"{ratio:.0f}"


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks gains")
    parser.add_argument("--write", action="store_true", help="replace the table of docs/baselines.md")
    parser.add_argument("--rows", nargs="*", default=[], help="only rows with one of these words")
    parser.add_argument("--one-thread", action="store_true", help="leave out the column of all threads")
    parser.add_argument("--json", action="store_true", help="the ratios of this number of threads")
    options = parser.parse_args(argv)
    if options.json:
        print(json.dumps({"ratios": measured(options.rows), "libraries": libraries()}))
        return 0
    gate("tests/_einsum/test_loop.py")
    text = table(options.rows, ("1",) if options.one_thread else ("1", "unset"))
    print(text)
    if options.write:
        before, _, rest = PAGE.read_text().partition(BEGIN)
        _, _, after = rest.partition(END)
        PAGE.write_text(f"{before}{BEGIN}\n{text}\n{END}{after}")
    return 0
