"""No decision makes a call slower without a device: trnpy on the host over the original, from 100 us upward."""

from __future__ import annotations

from functools import partial

import numpy as np
import scipy.linalg

import trnpy
import trnpy.linalg
from benchmarks._measure import gate, header, interleaved

LIMIT = 1.02
SIZES = (64, 128, 256, 512, 1024)
FROM_S = 100e-6


def specials(n: int, rng: np.random.Generator):
    """(name, symmetric matrix) whose tridiagonal form falls apart, or nearly."""
    for share in (0.01, 0.1, 0.5):
        b = rng.standard_normal((n, max(1, int(share * n))))
        yield f"rank {share:g} n", b @ b.T
    yield "diagonal", np.diag(rng.standard_normal(n))
    x = np.linspace(0, 1, n)
    yield "gaussian kernel", np.exp(-10 * (x - x[:, np.newaxis]) ** 2)


def cases(n: int):
    """(name, original, through trnpy) at size n."""
    rng = np.random.default_rng(n)
    a, b = rng.standard_normal((n, n)), rng.standard_normal((n, n))
    spd = a @ a.T + n * np.eye(n)
    yield "matmul", lambda: np.matmul(a, b), lambda: trnpy.matmul(a, b)
    yield "dot", lambda: np.dot(a, b), lambda: trnpy.dot(a, b)
    yield "tensordot", lambda: np.tensordot(a, b, 1), lambda: trnpy.tensordot(a, b, 1)
    yield (
        "einsum",
        lambda: np.einsum("ij,kj->ik", a, b, optimize=True),
        lambda: trnpy.einsum("ij,kj->ik", a, b, optimize=True),
    )
    # Sums that overflow: of one product, and of products of products, which another order of sums must not decide.
    big = np.full((n, n), 1e200)
    yield "overflow", lambda: np.einsum("ij,jk->ik", big, big), lambda: trnpy.einsum("ij,jk->ik", big, big)
    if n <= 64:
        chain = "ij,jk,kl->il", big, big, a
        yield "chain", lambda: np.einsum(*chain), lambda: trnpy.einsum(*chain)
    yield "cholesky", lambda: scipy.linalg.cholesky(spd), lambda: trnpy.linalg.cholesky(spd)
    yield "solve", lambda: scipy.linalg.solve(a, b), lambda: trnpy.linalg.solve(a, b)
    if n <= 512:
        yield "eigh", lambda: scipy.linalg.eigh(spd), lambda: trnpy.linalg.eigh(spd)
        # What divide and conquer is no better at, and other spectra that eigensolvers treat as special.
        for kind, special in specials(n, rng):
            yield f"eigh {kind}", partial(scipy.linalg.eigh, special), partial(trnpy.linalg.eigh, special)
        yield "eigvalsh", lambda: scipy.linalg.eigvalsh(spd), lambda: trnpy.linalg.eigvalsh(spd)


def main(argv: list[str]) -> int:
    gate("tests/test_dispatch.py", "tests/test_ops.py", "tests/linalg")
    header("host path over the original, no device, nothing recorded and recorded")
    print(f"{'function':22}{'n':>6}{'original':>14}{'trnpy':>9}{'recorded':>10}   limit {LIMIT}")
    over = 0
    for n in SIZES:
        for name, original, ours in cases(n):

            def recorded(ours=ours):
                with trnpy.trace():
                    return ours()

            # An odd number of rounds and the median: a burst of another process does not decide.
            seconds = interleaved({"original": original, "ours": ours, "recorded": recorded}, rounds=21, target_s=5e-3)
            if seconds["original"] < FROM_S:
                continue
            plain, noted = seconds["ours"] / seconds["original"], seconds["recorded"] / seconds["original"]
            over += plain > LIMIT
            mark = "   over" if plain > LIMIT else ""
            print(f"{name:22}{n:6}{seconds['original'] * 1e6:11.0f} us{plain:9.3f}{noted:10.3f}{mark}")
    print(f"\n{over} ratios over {LIMIT}")
    return int(bool(over))
