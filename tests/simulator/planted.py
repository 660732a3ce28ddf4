"""One small kernel per lint rule with one planted bug, and beside it the same kernel with the bug mended."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from nkisim.chip.dialects import Dialect
from nkisim.lint.rules import RULES

HEAD = """
import enum
import math
import os
import random
import time
import numpy as np
import nki
import nki.collectives as ncc
import nki.isa as nisa
import nki.language as nl
"""
TARGETS = ("trn1", "trn2", "trn3")


@dataclass(frozen=True)
class Planted:
    """A kernel with one bug, the rule that must name it, what to launch it with if it takes a launch, and its twin."""

    rule: int
    severity: str
    text: str  # the kernel's source, without imports
    right: str  # the smallest change of it that is legal
    args: tuple[Any, ...] | None = None  # None: the source alone shows it
    note: str = ""
    targets: tuple[str, ...] = TARGETS  # on which the rule holds
    lnc: int = 1
    nki: tuple[Dialect, ...] = ()  # front ends for which it holds; empty: those of the rule
    right_args: tuple[Any, ...] | None = None  # of the twin, where the arrays are the bug
    right_lnc: int | None = None  # of the twin, where the cores are

    @property
    def id(self) -> str:
        return f"{self.severity}{self.rule:02d}-{self.note or 'plain'}".replace(" ", "-")

    @property
    def dialects(self) -> tuple[Dialect, ...]:
        return self.nki or RULES[self.rule].dialects


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


def inside(rule: int, severity: str, note: str, wrong: tuple[str, ...], right: tuple[str, ...]) -> Planted:
    """A bug in lines of the kernel above."""
    return Planted(rule, severity, body(*wrong), body(*right), note=note)


def outside(rule: int, severity: str, note: str, wrong: str, right: str) -> Planted:
    """A bug that more than those lines shows."""
    return Planted(rule, severity, wrong, right, note=note)


def given(text: str, parameters: str) -> str:
    return text.replace("(x)", f"({parameters})")


HALVES = """
@nki.jit
def kernel(x):
    out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
    core = nl.program_id(0)
    t = nl.ndarray((4, 8), dtype=x.dtype, buffer=nl.sbuf)
    nisa.dma_copy(dst=t, src=x[4 * core : 4 * core + 4, :])
    nisa.dma_copy(dst=out[4 * core : 4 * core + 4, :], src=t)
    {barrier}
    return out
"""
REGISTER = "r = nisa.register_alloc(3)"
STEP = ("def step(i):", "    nisa.tensor_copy(dst=t, src=t)")
DOWN = ("def step(left):", "    following = nisa.register_alloc(0)", "    return following")
ONES = "np.ones((8, 8), np.float32)"
PASS_IT = given(body("n = 2 * n"), "x, n=1")

SOURCE = (
    outside(1, "E", "nested def", body("def scale(v):", "    return v", "n = scale(2)"),
            "def scale(v):\n    return v\n" + body("n = scale(2)")),
    outside(1, "E", "lambda", body("f = lambda v: v", "n = f(2)"), "def f(v):\n    return v\n" + body("n = f(2)")),
    inside(1, "E", "comprehension", ("tiles = [t for _ in range(2)]",),
           ("tiles = []", "for _ in range(2):", "    tiles.append(t)")),
    inside(1, "E", "try", ("try:", "    n = 1", "except ValueError:", "    n = 2"), ("n = 1",)),
    inside(1, "E", "with", ("with open('f'):", "    n = 1"), ("with nl.no_reorder():", "    n = 1")),
    inside(1, "E", "star call", ("n = min(*x.shape)",), ("n = min(x.shape[0], x.shape[1])",)),
    inside(1, "E", "walrus", ("if (n := 2) > 1:", "    n = 3"), ("n = 2", "if n > 1:", "    n = 3")),
    inside(1, "E", "match", ("match x.shape[0]:", "    case 128:", "        n = 1"),
           ("if x.shape[0] == 128:", "    n = 1")),
    outside(1, "E", "import", body("import sys"), "import sys\n" + body()),
    outside(1, "E", "recursion", "def again(n):\n    return again(n - 1)\n" + body("n = again(3)"),
            "def again(n):\n    return n - 1\n" + body("n = again(3)")),
    outside(1, "E", "decorated helper",
            "import functools\n@functools.cache\ndef half(n):\n    return n // 2\n" + body("n = half(4)"),
            "def half(n):\n    return n // 2\n" + body("n = half(4)")),
    inside(1, "E", "syntax", ("n = 1", "broken ="), ("n = 1", "broken = n")),
    inside(1, "E", "dictionary key", ("d = {1: 2}",), ("d = {'1': 2}",)),
    inside(1, "E", "subscript target", ("d = [1, 2]", "d[0], d[1] = d[1], d[0]"),
           ("d = [1, 2]", "first, last = d[1], d[0]")),
    outside(1, "E", "keyword only", given(body(), "x, *, n=1"), given(body(), "x, n=1")),
    inside(2, "E", "is", ("if x.shape is None:", "    n = 1"), ("if x.shape == None:", "    n = 1")),
    outside(2, "E", "list default", given(body(), "x, dims=[1, 2]"), given(body(), "x, dims=(1, 2)")),
    inside(3, "W", "math", ("n = math.ceil(x.shape[0] / 2)",), ("n = (x.shape[0] + 1) // 2",)),
    inside(3, "E", "numpy", ("n = np.float32(2.0)",), ("n = 2.0",)),
    outside(3, "E", "legacy dialect", "import neuronxcc.nki.language as old\n" + body(),
            "import nki.language as old\n" + body()),
    outside(3, "E", "numpy in a helper", "def helper(n):\n    return np.prod(n)\n" + body("n = helper(x.shape)"),
            "def helper(n):\n    return n[0] * n[1]\n" + body("n = helper(x.shape)")),
    outside(4, "E", "mutable global", "settings = {'n': 2}\n" + body("n = settings['n']"),
            "settings = (2, 3)\n" + body("n = settings[0]")),
    outside(4, "E", "environment", body("n = 2 * len(os.environ['PATH'])"), PASS_IT),
    outside(4, "E", "random", body("n = 2 * random.random()"), PASS_IT),
    outside(4, "E", "time", body("n = 2 * time.time()"), PASS_IT),
    outside(4, "E", "global assigned twice", "N = 1\nN = 2\n" + body("n = N"), "N = 2\n" + body("n = N")),
    outside(5, "E", "kernel calls kernel", "@nki.jit\ndef inner(v):\n    return v\n" + body("n = inner(t)"),
            "def inner(v):\n    return v\n" + body("n = inner(t)")),
    inside(5, "W", "positional", ("nisa.tensor_copy(t, t)",), ("nisa.tensor_copy(dst=t, src=t)",)),
    inside(6, "W", "affine range", ("for i in nl.affine_range(2):", "    n = i"), ("for i in range(2):", "    n = i")),
    inside(6, "W", "dynamic range", (REGISTER, "for i in nl.dynamic_range(r):", "    nisa.tensor_copy(dst=t, src=t)"),
           (REGISTER, *STEP, "nl.fori_loop(0, r, step)")),
    inside(6, "E", "while register", (REGISTER, "while r:", "    n = 1"),
           (REGISTER, *DOWN, "nl.while_loop(r, step)")),
    inside(6, "E", "range register", (REGISTER, "for i in range(r):", "    nisa.tensor_copy(dst=t, src=t)"),
           (REGISTER, *STEP, "nl.fori_loop(0, r, step)")),
    inside(6, "E", "register arithmetic", (REGISTER, "n = r + 1"), ("n = 3 + 1", "r = nisa.register_alloc(n)")),
    inside(7, "E", "tensor kept",
           ("kept = []", REGISTER, "def step(i):", "    u = nl.ndarray((1, 1), dtype=nl.float32, buffer=nl.sbuf)",
            "    nisa.memset(dst=u, value=0.0)", "    kept.append(u)", "nl.fori_loop(0, r, step)"),
           ("kept = []", REGISTER, "u = nl.ndarray((1, 1), dtype=nl.float32, buffer=nl.sbuf)", "def step(i):",
            "    nisa.memset(dst=u, value=0.0)", "nl.fori_loop(0, r, step)", "kept.append(u)")),
    inside(7, "E", "counter written", (REGISTER, "def step(i):", "    nisa.register_move(dst=i, src=i)",
                                       "nl.fori_loop(0, r, step)"),
           (REGISTER, "s = nisa.register_alloc(0)", "def step(i):", "    nisa.register_move(dst=s, src=i)",
            "nl.fori_loop(0, r, step)")),
    inside(7, "E", "no_reorder", (REGISTER, *STEP, "with nl.no_reorder():", "    nl.fori_loop(0, r, step)"),
           (REGISTER, STEP[0], "    with nl.no_reorder():", "    " + STEP[1], "nl.fori_loop(0, r, step)")),
    inside(8, "E", "integer", ("n = 2 ** 40",), ("n = 2 ** 30",)),
    inside(8, "E", "float overflow", ("v = 1e39",), ("v = 1e38",)),
    inside(8, "W", "subnormal", ("v = 1e-42",), ("v = 1e-37",)),
    inside(8, "W", "digits", ("v = 0.1234567890123",), ("v = 0.12345679",)),
    outside(8, "E", "class", "class Plain:\n    n = 1\n" + body("p = Plain()"),
            "class Plain(nl.NKIObject):\n    n = 1\n" + body("p = Plain()")),
    outside(9, "W", "varying scalar",
            given(body("nisa.tensor_scalar(dst=t, data=t, op0=nl.multiply, operand0=alpha)"), "x, alpha=2.0"),
            body("alpha = nl.ndarray((x.shape[0], 1), dtype=nl.float32, buffer=nl.sbuf)",
                 "nisa.dma_copy(dst=alpha, src=x[:, 0:1])",
                 "nisa.tensor_scalar(dst=t, data=t, op0=nl.multiply, operand0=alpha)")),
    inside(10, "E", "removed name", ("nisa.tensor_copy_dynamic_src(dst=t, src=t)",),
           ("nisa.tensor_copy(dst=t, src=t)",)),
    inside(10, "E", "deprecated size", ("n = nl.tile_size.psum_fmax",), ("n = nl.tile_size.psum_bank_fmax",)),
    inside(10, "W", "load", ("u = nl.load(x)",),
           ("u = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.sbuf)", "nisa.dma_copy(dst=u, src=x)")),
    inside(10, "E", "string buffer", ("u = nl.ndarray((1, 1), dtype=nl.float32, buffer='sbuf')",),
           ("u = nl.ndarray((1, 1), dtype=nl.float32, buffer=nl.sbuf)",)),
    inside(10, "E", "integer enum", ("nisa.tensor_copy(dst=t, src=t, engine=5)",),
           ("nisa.tensor_copy(dst=t, src=t, engine=nisa.engine.vector)",)),
    outside(10, "W", "jit mode", body().replace("@nki.jit", "@nki.jit(mode='trace')"), body()),
    outside(10, "E", "jit target", body().replace("@nki.jit", "@nki.jit(platform_target='trn1')"), body()),
    inside(14, "W", "ap on a view", ("u = t[:, 0:4].ap([[8, 8], [1, 4]])",), ("u = t.ap([[8, 8], [1, 4]])",)),
    outside(15, "E", "returned twice", body().replace("return out", "return out, out"), body()),
    inside(34, "E", "divide", ("u = nl.divide(t, t)",), ("u = nl.multiply(t, nl.reciprocal(t))",)),
    inside(34, "E", "fmod", ("u = nl.fmod(t, t)",), ("u = nl.subtract(t, nl.trunc(t))",)),
    inside(34, "E", "power", ("u = nl.power(t, 3)",), ("u = nl.multiply(t, nl.multiply(t, t))",)),
    inside(34, "E", "matmul", ("u = nl.matmul(t, t)",), ("u = nl.matmul(t, t, transpose_x=True)",)),
    inside(34, "E", "rsqrt", ("nisa.rsqrt(dst=t, data=t)",), ("nisa.activation(dst=t, op=nl.exp, data=t)",)),
    Planted(37, "W", HALVES.format(barrier="if core == 0:\n        nisa.core_barrier(out, (0, 1))"),
            HALVES.format(barrier="nisa.core_barrier(out, (0, 1))"), note="barrier in a branch", lnc=2),
    outside(37, "E", "grid", f"{body()}\nkernel[3]({ONES})\n", f"{body()}\nkernel[2]({ONES})\n"),
    outside(38, "W", "default target", f"{body()}\nnki.simulate(kernel)({ONES})\n",
            f"os.environ['NEURON_PLATFORM_TARGET_OVERRIDE'] = 'trn2'\n{body()}\nnki.simulate(kernel)({ONES})\n"),
    outside(39, "W", "in a loop", f"{body()}\nfor _ in range(9):\n    kernel({ONES})\n", f"{body()}\nkernel({ONES})\n"),
    outside(39, "W", "auto-cast", f"import torch_xla\n{body()}\nkernel(torch_xla.ones())\n",
            f"import torch_xla\nFLAGS = '--auto-cast=none'\n{body()}\nkernel(torch_xla.ones())\n"),
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
