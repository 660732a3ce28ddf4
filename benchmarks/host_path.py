"""Without a device no decision makes a call slower: trnpy on the host over the original, for calls from 100 us.

This includes calls of which a route looks at the values and leaves them to SciPy: stacks of which all, half, a tenth
or one of the matrices are ill-conditioned (1e10), singular to working precision (1e16, where SciPy warns), triangular,
or not positive definite.
"""

from __future__ import annotations

import functools
import warnings
from functools import partial

import numpy as np
import scipy.linalg

import trnpy
import trnpy.linalg
from benchmarks._measure import gate, header, measured, paired

LIMIT = 1.02
STACKS = ((64, 4), (128, 4), (1000, 4), (3000, 4), (200, 12), (60, 64))
SHARES = {"all": 1.0, "half": 0.5, "a tenth": 0.1, "one": 0.0}
SIZES = (64, 128, 256, 512, 1024)
FROM_S = 100e-6


def specials(n: int, rng: np.random.Generator):
    """(name, symmetric matrix) whose tridiagonal form splits into blocks, or nearly."""
    for share in (0.01, 0.1, 0.5):
        b = rng.standard_normal((n, max(1, int(share * n))))
        yield f"rank {share:g} n", b @ b.T
    yield "diagonal", np.diag(rng.standard_normal(n))
    x = np.linspace(0, 1, n)
    yield "gaussian kernel", np.exp(-10 * (x - x[:, np.newaxis]) ** 2)


def _loop(lefts: list[np.ndarray], rights: list[np.ndarray]) -> list[np.ndarray]:
    return [a @ b for a, b in zip(lefts, rights, strict=True)]


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
    # Sums that overflow: of one product, and of products of products, where another order of sums must change nothing.
    big = np.full((n, n), 1e200)
    yield "overflow", lambda: np.einsum("ij,jk->ik", big, big), lambda: trnpy.einsum("ij,jk->ik", big, big)
    # NaNs in half of the result, at places that the route does not sample.
    gaps = a.copy()
    gaps[: n // 2, n // 2] = np.nan
    yield "NaNs", lambda: np.einsum("ij,jk->ik", gaps, b), lambda: trnpy.einsum("ij,jk->ik", gaps, b)
    if n <= 64:
        many = [("ij,jk->ik", a[:20, :20].copy(), b[:20, :20].copy())] * 200
        yield "200 einsum of 20", lambda: [np.einsum(*one) for one in many], lambda: trnpy.multi_einsum(many)
        for count, size in ((1000, 4), (1000, 16), (400, n)):
            lefts, rights = (list(rng.standard_normal((count, size, size))) for _ in range(2))
            calls = [("ij,jk->ik", x, y) for x, y in zip(lefts, rights, strict=True)]
            loop = partial(_loop, lefts, rights)
            yield f"{count} x {size} products", loop, partial(trnpy.multi_einsum, calls)
        chain = "ij,jk,kl->il", big, big, a
        yield "chain", lambda: np.einsum(*chain), lambda: trnpy.einsum(*chain)
    yield "cholesky", lambda: scipy.linalg.cholesky(spd), lambda: trnpy.linalg.cholesky(spd)
    yield "solve", lambda: scipy.linalg.solve(a, b), lambda: trnpy.linalg.solve(a, b)
    if n <= 512:
        yield "eigh", lambda: scipy.linalg.eigh(spd), lambda: trnpy.linalg.eigh(spd)
        # Spectra for which divide and conquer is not faster, and others that eigensolvers treat as special.
        for kind, special in specials(n, rng):
            yield f"eigh {kind}", partial(scipy.linalg.eigh, special), partial(trnpy.linalg.eigh, special)
        yield "eigvalsh", lambda: scipy.linalg.eigvalsh(spd), lambda: trnpy.linalg.eigvalsh(spd)


def stack_of(count: int, n: int, condition: float, share: float) -> np.ndarray:
    """(count, n, n), of which the part ``share``, at least one matrix, has that condition number, at random places."""
    rng = np.random.default_rng([count, n])
    a = rng.standard_normal((count, n, n))
    chosen = rng.permutation(count)[: max(int(share * count), 1)]
    left, right = (np.linalg.qr(rng.standard_normal((len(chosen), n, n)))[0] for _ in range(2))
    a[chosen] = (left * np.geomspace(1, 1 / condition, n)) @ right
    return a


def refusals(count: int, n: int):
    """(name, kind of matrices, original, through trnpy) of stacks that routes leave to SciPy, partly or wholly."""
    for condition, what in ((1e10, "ill"), (1e16, "singular")):
        for share, fraction in SHARES.items():
            a = stack_of(count, n, condition, fraction)
            b = a[..., :1].copy()
            for name, args in (("inv", (a,)), ("solve", (a, b)), ("pinv", (a,)), ("lstsq", (a, b))):
                yield name, f"{share} {what}", *pair(name, args)
            yield "pinvh", f"{share} {what}", *pair("pinvh", (a + a.swapaxes(1, 2),))
    triangles = np.triu(stack_of(count, n, 1e2, 0.0) + n * np.eye(n))
    for name in ("inv", "pinv"):
        yield name, "triangular", *pair(name, (triangles,))


def pair(name: str, args: tuple):
    return tuple(functools.partial(getattr(module, name), *args) for module in (scipy.linalg, trnpy.linalg))


def over_stacks() -> int:
    """Print the stacks; returns how many are over LIMIT."""
    print(f"\n{'function':8}{'stack':>14}  {'of which':14}{'SciPy':>12}{'trnpy':>8}")
    over = 0
    for count, n in STACKS:
        for name, what, original, ours in refusals(count, n):
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # both give the same warnings
                try:
                    found = measured(original, ours, LIMIT, FROM_S)
                except np.linalg.LinAlgError:  # a pivot was zero by chance: there is no result and no figure
                    continue
            if found is None:
                continue
            seconds, ratio = found
            over += ratio > LIMIT
            mark = "   over" if ratio > LIMIT else ""
            print(f"{name:8}{count:6} x {n:3}^2  {what:14}{seconds * 1e6:9.0f} us{ratio:8.3f}{mark}", flush=True)
    return over


def over_matrices() -> int:
    """Print single matrices and contractions; returns how many are over LIMIT."""
    print(f"{'function':22}{'n':>6}{'original':>14}{'trnpy':>9}   limit {LIMIT}")
    over = 0
    for n in SIZES:
        for name, original, ours in cases(n):
            found = measured(original, ours, LIMIT, FROM_S)
            if found is None:
                continue
            seconds, ratio = found
            over += ratio > LIMIT
            mark = "   over" if ratio > LIMIT else ""
            print(f"{name:22}{n:6}{seconds * 1e6:11.0f} us{ratio:9.3f}{mark}", flush=True)
    return over


def recorded() -> None:
    """Print what recording the calls costs. It has no limit here, because recording is off by default."""
    print(f"\n{'function':22}{'n':>6}{'original':>14}{'recorded':>10}")
    for n in SIZES:
        for name, original, ours in cases(n):
            with trnpy.trace():
                found = paired(original, ours, from_s=FROM_S)
            if found is not None:
                print(f"{name:22}{n:6}{found[0] * 1e6:11.0f} us{found[1]:10.3f}", flush=True)


def main(argv: list[str]) -> int:
    gate("tests/_call/test_dispatch.py", "tests/_einsum/test_rows.py", "tests/linalg")
    header("host path over the original, no device, nothing recorded and recorded")
    over = over_matrices() + over_stacks()
    recorded()  # last, because calls are slower once something in the process has recorded
    print(f"\n{over} ratios over {LIMIT}")
    return int(bool(over))
