"""Sparse products against scipy.sparse, and attention against NumPy, side by side on the host; ratios required."""

from __future__ import annotations

import argparse
import functools
import time
from collections.abc import Callable, Iterator

import numpy as np
import scipy.sparse

import trnpy.sparse
from benchmarks._measure import gate, header, interleaved
from benchmarks._threads import alone

Case = tuple[str, float, Callable[[], object], Callable[[], object]]  # name, required ratio, SciPy's product, trnpy's
NEVER_SLOWER = 0.98
TURN_S = 5e-3  # at least; a product is repeated for so long before the other's turn
COLUMNS = (64, 128)


def ours(a):
    """``a`` in trnpy's class; the arrays are shared."""
    return getattr(trnpy.sparse, type(a).__name__)(a)


def bsr(rng, n, block, in_row):
    """(n, n) of random blocks, about ``in_row`` in each block row."""
    side = n // block
    pattern = scipy.sparse.random_array((side, side), density=min(in_row / side, 1), rng=rng, format="csr")
    data = rng.standard_normal((pattern.nnz, block, block))
    return scipy.sparse.bsr_array((data, pattern.indices, pattern.indptr), shape=(n, n))


def screened(rng, dimensions, cutoff, functions=24, atoms=340):
    """Overlaps of atoms along a line, or in a cube along a Morton curve: a block for each pair within the cutoff."""
    at = rng.random((atoms, dimensions))
    cells = (at * 16).astype(int)
    bits = ((c >> bit & 1) << (dimensions * bit + axis) for bit in range(4) for axis, c in enumerate(cells.T))
    at = at[np.argsort(sum(bits) if dimensions > 1 else at[:, 0])]
    near = np.linalg.norm(at[:, np.newaxis] - at, axis=2) < cutoff
    a = scipy.sparse.kron(scipy.sparse.csr_array(near.astype(float)), np.ones((functions, functions)), format="csr")
    a.data[:] = rng.standard_normal(a.nnz)
    return a


def arrow(n, width=128):
    a = scipy.sparse.lil_array((n, n))
    a[:width, :] = a[:, :width] = 1.0
    a.setdiag(1.0)
    return a.tocsr()


def power_law(rng, n):
    degree = np.minimum((rng.pareto(1.3, n) + 1) * 3, n // 2).astype(int)
    rows = np.repeat(np.arange(n), degree)
    columns = (rng.pareto(1.0, len(rows)) * 200).astype(int) % n
    return scipy.sparse.csr_array((np.ones(len(rows)), (rows, columns)), shape=(n, n))


def products(name: str, asked: float, a, x) -> Case:
    mine = ours(a)
    return name, asked, lambda: a @ x, lambda: mine @ x


def block_cases(rng) -> Iterator[Case]:
    for block, asked in ((8, NEVER_SLOWER), (16, 3.0), (32, 5.0), (64, 8.0), (128, 10.0)):
        n = 64 * min(block, 64) if block > 8 else 2048  # a larger one would only cost time, SciPy's
        a = bsr(rng, n, block, 8)
        for m in COLUMNS:
            yield products(f"BSR {block} x dense {m}", asked, a, rng.standard_normal((n, m)))
        yield products(f"BSR {block} x dense 16", NEVER_SLOWER, a, rng.standard_normal((n, 16)))
        left, mine = rng.standard_normal((64, n)), ours(a)
        yield f"dense 64 x BSR {block}", NEVER_SLOWER, lambda a=a, x=left: x @ a, lambda a=mine, x=left: x @ a
        yield products(f"BSR {block} x vector", NEVER_SLOWER, a, rng.standard_normal(n))
    for block, asked in ((16, NEVER_SLOWER), (32, 4.0), (64, 8.0), (128, NEVER_SLOWER)):
        a = bsr(rng, 24 * block, block, 8)
        yield products(f"BSR {block} x BSR {block}", asked, a, ours(a))
    for block in (32, 64):
        a = bsr(rng, 8192, block, 8).tocsr()
        mine, size = ours(a), (block, block)
        yield f"CSR to BSR {block}", NEVER_SLOWER, lambda a=a, s=size: a.tobsr(s), lambda a=mine, s=size: a.tobsr(s)


def sparse_blocks(rng) -> Iterator[Case]:
    """One block in twenty is stored: X is read about as often as it is long."""
    for block, asked in ((16, 3.0), (32, 4.0), (64, 8.0), (128, 10.0)):
        a = bsr(rng, 4096, block, 0.05 * 4096 / block)
        yield products(f"5 % of blocks of {block} x dense 64", asked, a, rng.standard_normal((4096, 64)))


def dense_attention(q, k, v, mask):
    scores = np.where(mask, (q @ k.T) * float(q.shape[1]) ** -0.5, -np.inf)
    scores -= scores.max(axis=1, keepdims=True)
    np.exp(scores, out=scores)
    return scores / scores.sum(axis=1, keepdims=True) @ v


def attention_cases(rng) -> Iterator[Case]:
    """Against NumPy's attention over all elements, with the mask in the form that NumPy uses."""
    n, attention = 1024, trnpy.sparse.masked_attention
    held = rng.random((8, 8)) < 0.3
    np.fill_diagonal(held, True)
    masks = {
        "causal": trnpy.sparse.local_mask(n, n, causal=True),
        "within 128": trnpy.sparse.local_mask(n, 128),
        "within 16": trnpy.sparse.local_mask(n, 16),
        "of blocks": scipy.sparse.csr_array(np.kron(held, np.ones((128, 128), bool))),
    }
    for dtype in ("f8", "f4"):
        q, k, v = rng.standard_normal((3, n, 64)).astype(dtype)
        for what, mask in masks.items():
            theirs = functools.partial(dense_attention, q, k, v, mask.toarray())
            yield f"attention {dtype} {what}", 1.0, theirs, functools.partial(attention, q, k, v, mask)


def structured_cases(rng) -> Iterator[Case]:
    """No analysis is kept between products, so every figure includes that of the first product."""
    diagonal = scipy.sparse.block_diag([rng.standard_normal((s, s)) for s in rng.integers(20, 400, 40)], format="csr")
    for name, a, asked in (
        ("screened chain", screened(rng, 1, 0.05), 2.0),
        ("block-diagonal", diagonal, 2.0),
        ("screened cluster", screened(rng, 3, 0.25), NEVER_SLOWER),
    ):
        for m in COLUMNS:
            x = rng.standard_normal((a.shape[0], m))
            yield products(f"{name} x dense {m}", asked, a, x)
        yield products(f"{name}, transposed", NEVER_SLOWER, a.T, x)
        left, mine = np.ascontiguousarray(x.T), ours(a)
        yield f"dense x {name}", NEVER_SLOWER, lambda a=a, x=left: x @ a, lambda a=mine, x=left: x @ a


def other_cases(rng) -> Iterator[Case]:
    n = 8192
    random = scipy.sparse.random_array((n, n), density=0.004, rng=rng, format="csr")
    for name, a in (("random", random), ("power law", power_law(rng, n)), ("arrow", arrow(n))):
        for m in (8, 64):
            yield products(f"{name} x dense {m}", NEVER_SLOWER, a, rng.standard_normal((n, m)))
        yield products(f"{name} x vector", NEVER_SLOWER, a, rng.standard_normal(n))
        yield products(f"{name}, CSC, x dense 64", NEVER_SLOWER, a.tocsc(), rng.standard_normal((n, 64)))
    narrow = scipy.sparse.random_array((1024, 1024), density=0.1, rng=rng, format="csr")
    yield products("a tenth filled x dense 32", NEVER_SLOWER, narrow, rng.standard_normal((1024, 32)))
    small = scipy.sparse.random_array((n, n), density=0.0005, rng=rng, format="csr")
    yield products("random x random", NEVER_SLOWER, small, small)
    for n in (1000, 100, 4):
        for layout in ("csr", "bsr", "coo"):
            a = scipy.sparse.random_array((n, n), density=max(0.01, 1 / n), rng=rng, format=layout)
            yield products(f"{n} x {n} {layout} x vector", NEVER_SLOWER, a, rng.standard_normal(n))
            yield products(f"{n} x {n} {layout} x dense 16", NEVER_SLOWER, a, rng.standard_normal((n, 16)))


def measure(
    asked: float, theirs: Callable[[], object], mine: Callable[[], object], rounds: int, clock: Callable[[], float]
) -> dict[str, float]:
    """Medians of SciPy's product and trnpy's; a loss is measured three times before it counts.

    A turn is as long as SciPy's product takes, so that both products follow a like amount of the other's work: after
    50 ms of SciPy's product the next one takes a seventh more, whatever is in the caches.
    """
    calls, best = {"SciPy": theirs, "trnpy": mine}, {"SciPy": 0.0, "trnpy": 1.0}
    start = time.perf_counter()
    theirs()
    turn_s = max(time.perf_counter() - start, TURN_S)
    for attempt in range(3):
        found = interleaved(calls, rounds * (1 + attempt), turn_s, clock)
        best = max(best, found, key=lambda seconds: seconds["SciPy"] / seconds["trnpy"])
        if best["SciPy"] >= asked * best["trnpy"]:
            break
    return best


def main(argv: list[str]) -> int:
    p = argparse.ArgumentParser(prog="python -m benchmarks sparse", description=__doc__)
    p.add_argument("--rounds", type=int, default=11, help="turns of each pair (default 11)")
    p.add_argument("--only", default="", help="cases whose name holds this")
    options = p.parse_args(argv)
    gate("tests/sparse")
    header("sparse products over SciPy's")
    # With one thread, processor time does not include other processes.
    clock = time.thread_time if alone() else time.perf_counter
    print(f"{'':34}{'SciPy':>12}{'ratio':>8}{'asked':>8}{'extra':>12}")
    below = 0
    for cases in (block_cases, sparse_blocks, attention_cases, structured_cases, other_cases):
        for name, asked, theirs, mine in cases(np.random.default_rng(0)):
            if options.only not in name:
                continue
            seconds = measure(asked, theirs, mine, options.rounds, clock)
            ratio, extra = seconds["SciPy"] / seconds["trnpy"], (seconds["trnpy"] - seconds["SciPy"]) * 1e6
            short = ratio < asked
            below += short
            mark = f"{extra:+9.1f} us   below" if short else ""
            print(f"{name:34}{seconds['SciPy'] * 1e6:9.0f} us{ratio:8.2f}{asked:8.2f}{mark}", flush=True)
    print(f"\n{below} ratios below the required ones")
    return int(bool(below))
