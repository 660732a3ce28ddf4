"""Eight chains of operations on ``trnpy.Array`` against NumPy's arrays, from 10 to 10^7 numbers.

A ratio is NumPy's time over that of Arrays: above 1, Arrays are faster. Every result is compared with NumPy's before it
is timed. The last table has the chains and sizes at which Arrays lose. jax and torch, where they are installed, compute
the same chains on the CPU; jax has no arrays that are written in place. The exit code is 1 if a ratio is below its
limit.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import math
from collections.abc import Callable
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import numpy as np

import trnpy
from benchmarks._measure import gate, header, paired
from nkisim.table import print_table
from trnpy import xp

SIZES = tuple(10**k for k in range(1, 8))
LIMITS = {2: 0.7, 3: 0.7, 4: 0.9, 5: 1.0, 6: 1.0, 7: 1.0}  # least ratio to NumPy, by the power of ten of the size
SHOWN = 0.005  # ratios are printed and compared to two digits
COLUMNS = 10
ADDITIONS, UPDATES, SWEEPS = 100, 10, 4
MOST_ROWS = 1000  # of a matrix: Newton-Schulz of more takes seconds, in which nothing but BLAS counts


def elementwise(np: Any, x: Any, y: Any) -> Any:
    """Six functions of one element of each operand."""
    return ((x * y + x) * 0.5 - y) / (y + 2.0)


def reduction(np: Any, x: Any, y: Any) -> Any:
    """A sum of all."""
    return np.sum(x)


def additions(np: Any, x: Any, y: Any) -> Any:
    """x + y + ... + y."""
    for _ in range(ADDITIONS):
        x = x + y
    return x


def newton_schulz(np: Any, x: Any, y: Any) -> Any:
    """X <- 1.5 X - 0.5 X X^T X, twice."""
    for _ in range(2):
        x = 1.5 * x - 0.5 * (x @ x.T) @ x
    return x


def standardized(np: Any, x: Any, y: Any) -> Any:
    """Columns of mean 0 and standard deviation 1."""
    centred = x - np.mean(x, axis=0)
    return centred / np.sqrt(np.mean(centred * centred, axis=0) + 1e-3)


def softmax(np: Any, x: Any, y: Any) -> Any:
    """Of each row."""
    e = np.exp(x - np.amax(x, axis=1, keepdims=True))
    return e / np.sum(e, axis=1, keepdims=True)


def momentum(np: Any, x: Any, y: Any) -> Any:
    """Steps in place, as an optimizer makes."""
    x, v = x + 0.0, y * 0.0
    for _ in range(UPDATES):
        v *= 0.9
        v += y
        x -= 0.01 * v
    return x


def diffusion(np: Any, x: Any, y: Any) -> Any:
    """Sweeps over the inner elements, which are a view that is written."""
    x = x + 0.0
    for _ in range(SWEEPS):
        x[1:-1] += 0.25 * (x[:-2] - 2.0 * x[1:-1] + x[2:])
    return x


@dataclass(frozen=True, slots=True)
class Chain:
    name: str
    call: Callable[..., Any]
    square: bool = False
    columns: int = 0
    writes: bool = False

    def shape(self, size: int) -> tuple[int, ...]:
        if self.square:
            return (max(math.isqrt(size), 1),) * 2
        return (size // self.columns, self.columns) if self.columns else (size,)


CHAINS = (
    Chain("six elementwise", elementwise), Chain("sum", reduction), Chain(f"{ADDITIONS} additions", additions),
    Chain("Newton-Schulz", newton_schulz, square=True), Chain("standardize", standardized, columns=COLUMNS),
    Chain("softmax", softmax, columns=COLUMNS), Chain("momentum, in place", momentum, writes=True),
    Chain("diffusion, slices", diffusion, writes=True),
)  # fmt: skip


class Namespace:
    """trnpy.xp and what else the chains call by NumPy's name."""

    mean, sqrt, exp, sum, amax = xp.mean, xp.sqrt, xp.exp, xp.sum, xp.max


def _trnpy(a: np.ndarray) -> Any:
    return trnpy.asarray(a).block_until_ready()


def _others() -> dict[str, tuple[ModuleType, Callable[[np.ndarray], Any]]]:
    """jax and torch, if they are there: the namespace, and how an array is made."""
    found: dict[str, Any] = {}
    if importlib.util.find_spec("jax"):
        jax = importlib.import_module("jax")
        jax.config.update("jax_enable_x64", True)
        found["jax"] = jax.numpy, jax.numpy.asarray
    if importlib.util.find_spec("torch"):
        torch = importlib.import_module("torch")
        found["torch"] = torch, torch.from_numpy
    return found


def _ready(x: Any) -> Any:
    return x.block_until_ready() if hasattr(x, "block_until_ready") else x


def measured(chain: Chain, size: int, namespace: Any, make: Callable[[np.ndarray], Any]) -> float | None:
    """NumPy's time over another's; None if the chain is not measured there."""
    shape = chain.shape(size)
    if chain.square and shape[0] > MOST_ROWS:
        return None
    rng = np.random.default_rng(size)
    a, b = (rng.uniform(0.5, 1.0, shape) / (shape[0] if chain.square else 1) for _ in range(2))
    x, y = make(a), make(b)
    expected, eps = chain.call(np, a, b), np.finfo(float).eps
    result = np.asarray(_ready(chain.call(namespace, x, y)))
    scale = float(np.abs(expected).max())
    np.testing.assert_allclose(result, expected, rtol=0, atol=16 * math.sqrt(size + 1) * eps * scale)
    found = paired(lambda: chain.call(np, a, b), lambda: _ready(chain.call(namespace, x, y)))
    assert found is not None
    return 1 / found[1]


def _table(name: str, namespace: Any, make: Callable[[np.ndarray], Any], sizes: tuple[int, ...]) -> list[str]:
    """Print the ratios of one library, and return lines of those below the limits."""
    lines, losses = [], []
    for chain in CHAINS:
        ratios = [None if chain.writes and name == "jax" else measured(chain, n, namespace, make) for n in sizes]
        lines.append((chain.name, *("-" if r is None else f"{r:.2f}" for r in ratios)))
        for n, ratio in zip(sizes, ratios, strict=True):
            limit = LIMITS.get(round(math.log10(n)), 0.0)
            if ratio is not None and ratio < limit - SHOWN:
                losses.append(f"{chain.name}, {n:,} numbers: {ratio:.2f}, at least {limit} is asked")
    heads = ("chain", *(f"10^{round(math.log10(n))}" for n in sizes))
    print_table(f"NumPy's time over that of {name}", heads, lines)
    return losses


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks arrays", description=__doc__)
    parser.add_argument("--largest", type=float, default=SIZES[-1], help="numbers of the largest arrays (1e7)")
    parser.add_argument("--no-gate", action="store_true", help="without the tests of Arrays")
    options = parser.parse_args(argv)
    if not options.no_gate:
        gate("tests/xp/test_views.py", "tests/xp/test_programs.py")
    header("Arrays against NumPy")
    sizes = tuple(n for n in SIZES if n <= options.largest)
    losses = _table("trnpy", Namespace, _trnpy, sizes)
    for name, (namespace, make) in _others().items():
        _table(name, namespace, make, sizes)
    print("\n".join(losses) if losses else "no ratio of trnpy is below its limit")
    return int(bool(losses))
