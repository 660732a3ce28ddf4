"""One small kernel per lint rule, each with one planted bug; and kernels without any."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

HEAD = """
import math
import os
import random
import time
import numpy as np
import nki
import nki.isa as nisa
import nki.language as nl
"""


@dataclass(frozen=True)
class Planted:
    """A kernel with one bug: the rule that must name it, and what to launch it with, if it takes a launch."""

    rule: int
    severity: str
    text: str  # the kernel's source, without imports
    args: tuple[Any, ...] | None = None  # None: the source alone shows it
    target: str = "trn2"
    lnc: int = 1
    note: str = ""

    @property
    def id(self) -> str:
        return f"{self.severity}{self.rule:02d}-{self.note or 'plain'}".replace(" ", "-")


def body(*lines: str) -> str:
    """A kernel that copies x through SBUF tile t, with the given lines in the middle."""
    middle = "\n".join("    " + line for line in lines)
    return f"""
@nki.jit
def kernel(x):
    out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
    t = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.sbuf)
    nisa.dma_copy(dst=t, src=x)
{middle}
    nisa.dma_copy(dst=out, src=t)
    return out
"""


SOURCE = (
    Planted(1, "E", body("def scale(v):", "    return v"), note="nested def"),
    Planted(1, "E", body("f = lambda v: v"), note="lambda"),
    Planted(1, "E", body("tiles = [t for _ in range(2)]"), note="comprehension"),
    Planted(1, "E", body("try:", "    n = 1", "except ValueError:", "    n = 2"), note="try"),
    Planted(1, "E", body("with open('f'):", "    n = 1"), note="with"),
    Planted(1, "E", body("print(*x.shape)"), note="star call"),
    Planted(1, "E", body("if (n := 2) > 1:", "    n = 3"), note="walrus"),
    Planted(1, "E", body("match x.shape[0]:", "    case 128:", "        n = 1"), note="match"),
    Planted(1, "E", body("import sys"), note="import"),
    Planted(1, "E", "def again(n):\n    return again(n - 1)\n" + body("n = again(3)"), note="recursion"),
    Planted(1, "E", "import functools\n@functools.cache\ndef half(n):\n    return n // 2\n" + body("n = half(4)"),
            note="decorated helper"),
    Planted(1, "E", body("n = 1", "broken ="), note="syntax"),
    Planted(2, "E", body("if t is None:", "    n = 1"), note="is"),
    Planted(1, "E", body().replace("(x)", "(x, *, n=1)"), note="keyword only"),
    Planted(2, "E", body().replace("(x)", "(x, dims=[1, 2])"), note="list default"),
    Planted(1, "E", body("d = [1, 2]", "d[0], d[1] = d[1], d[0]"), note="subscript target"),
    Planted(3, "W", body("n = math.ceil(x.shape[0] / 2)"), note="math"),
    Planted(3, "E", body("n = np.float32(2.0)"), note="numpy"),
    Planted(3, "E", "import neuronxcc.nki.language as old\n" + body(), note="legacy dialect"),
    Planted(3, "E", "def helper(n):\n    return np.prod(n)\n" + body("n = helper(x.shape)"), note="numpy in a helper"),
    Planted(4, "E", "settings = {'n': 2}\n" + body("n = settings['n']"), note="mutable global"),
    Planted(4, "E", body("n = os.environ['N']"), note="environment"),
    Planted(4, "E", body("n = random.random()"), note="random"),
    Planted(4, "E", body("n = time.time()"), note="time"),
    Planted(4, "E", "N = 1\nN = 2\n" + body("n = N"), note="global assigned twice"),
    Planted(5, "E", "@nki.jit\ndef inner(v):\n    return v\n" + body("n = inner(t)"), note="kernel calls kernel"),
    Planted(5, "W", body("nisa.tensor_copy(t, t)"), note="positional"),
    Planted(6, "W", body("for i in nl.affine_range(2):", "    n = i"), note="affine range"),
    Planted(6, "W", body("for i in nl.dynamic_range(2):", "    n = i"), note="dynamic range"),
    Planted(6, "E", body("r = nisa.register_alloc(3)", "while r:", "    n = 1"), note="while register"),
    Planted(6, "E", body("r = nisa.register_alloc(3)", "for i in range(r):", "    n = 1"), note="range register"),
    Planted(6, "E", body("r = nisa.register_alloc(3)", "n = r + 1"), note="register arithmetic"),
    Planted(7, "E", body("kept = []", "def step(i):", "    u = nl.ndarray((1, 1), dtype=nl.float32, buffer=nl.sbuf)",
                         "    kept.append(u)", "nl.fori_loop(0, 4, step)"), note="tensor kept"),
    Planted(7, "E", body("def step(i):", "    nisa.register_move(dst=i, src=i)", "nl.fori_loop(0, 4, step)"),
            note="counter written"),
    Planted(7, "E", body("def step(i):", "    n = 1", "with nl.no_reorder():", "    nl.fori_loop(0, 4, step)"),
            note="no_reorder"),
    Planted(8, "E", body("n = 2 ** 40"), note="integer"),
    Planted(8, "E", body("v = 1e39"), note="float overflow"),
    Planted(8, "W", body("v = 1e-42"), note="subnormal"),
    Planted(8, "W", body("v = 0.1234567890123"), note="digits"),
    Planted(1, "E", body("d = {1: 2}"), note="dictionary key"),
    Planted(8, "E", "class Plain:\n    n = 1\n" + body("p = Plain()"), note="class"),
    Planted(9, "W", body("nisa.tensor_scalar(dst=t, data=t, op0=nl.multiply, operand0=alpha)").replace(
        "(x)", "(x, alpha)"), note="varying scalar"),
    Planted(10, "E", body("nisa.tensor_copy_dynamic_src(dst=t, src=t)"), note="removed name"),
    Planted(10, "E", body("n = nl.tile_size.psum_fmax"), note="deprecated size"),
    Planted(10, "W", body("u = nl.load(x)"), note="load"),
    Planted(10, "E", body("u = nl.ndarray((1, 1), dtype=nl.float32, buffer='sbuf')"), note="string buffer"),
    Planted(10, "E", body("nisa.tensor_copy(dst=t, src=t, engine=5)"), note="integer enum"),
    Planted(10, "W", body().replace("@nki.jit", "@nki.jit(mode='trace')"), note="jit mode"),
    Planted(10, "E", body().replace("@nki.jit", "@nki.jit(platform_target='trn1')"), note="jit target"),
    Planted(14, "W", body("u = t[:, 0:4].ap([[8, 8], [1, 4]])"), note="ap on a view"),
    Planted(15, "E", body().replace("return out", "return out, out"), note="returned twice"),
    Planted(34, "E", body("u = nl.divide(t, t)"), note="divide"),
    Planted(34, "E", body("u = nl.fmod(t, t)"), note="fmod"),
    Planted(34, "E", body("u = nl.power(t, 3)"), note="power"),
    Planted(34, "E", body("u = nl.matmul(t, t)"), note="matmul"),
    Planted(34, "E", body("nisa.rsqrt(dst=t, data=t)"), note="rsqrt"),
    Planted(37, "W", body("if nl.program_id(0) == 0:", "    nisa.core_barrier(t, (0, 1))"), note="barrier in a branch"),
    Planted(37, "E", body() + "\nkernel[3](np.ones((8, 8), np.float32))\n", note="grid"),
    Planted(38, "W", body() + "\nnki.simulate(kernel)(np.ones((8, 8), np.float32))\n", note="default target"),
    Planted(39, "W", body() + "\nfor _ in range(9):\n    kernel(np.ones((8, 8), np.float32))\n", note="in a loop"),
    Planted(39, "W", "import torch_xla\n" + body() + "\nkernel(torch_xla.ones())\n", note="auto-cast"),
)  # fmt: skip

CLEAN = """
ROWS = 128


@nki.jit
def kernel(at, b):
    out = nl.ndarray((at.shape[1], b.shape[1]), dtype=nl.float32, buffer=nl.shared_hbm)
    bank = nl.ndarray((at.shape[1], b.shape[1]), dtype=nl.float32, buffer=nl.psum)
    for k in range(at.shape[0] // ROWS):
        left = fetch(at, k)
        right = fetch(b, k)
        nisa.nc_matmul(dst=bank, stationary=left, moving=right, accumulate=k > 0)
    done = nl.ndarray(bank.shape, dtype=nl.float32, buffer=nl.sbuf)
    nisa.tensor_copy(dst=done, src=bank)
    nisa.dma_copy(dst=out, src=done)
    return out


def fetch(source, k):
    tile = nl.ndarray((ROWS, source.shape[1]), dtype=source.dtype, buffer=nl.sbuf)
    nisa.dma_copy(dst=tile, src=source[k * ROWS : (k + 1) * ROWS, :])
    return tile
"""


def normal(*shape: int, dtype: Any = np.float32, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(dtype)
