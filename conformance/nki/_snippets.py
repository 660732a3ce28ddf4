"""Docstring examples and guide snippets: inputs for their free names, and references for their results."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from ml_dtypes import bfloat16
from scipy import special

from conformance.nki._blocks import HEADER, Block, as_kernel, blocks, claims, free_names, parsed
from conformance.nki._examples import normal, product
from conformance.nki._outcome import Array, Outcome, Whole, compare, whole
from nkisim.chip.errors import SimulatorError
from nkisim.lint.linter import errors, lint_source, lint_trace
from nkisim.run.launch import run
from nkisim.run.loader import load_kernel


def indices(count: int, below: int, columns: int = 1) -> Array:
    return np.random.default_rng(7).permutation(below)[: count * columns].reshape(count, columns).astype(np.uint32)


def column_major(idx: Array) -> Array:
    return idx.T.reshape(-1).astype(np.int64)


def gelu(x: Array) -> Array:
    return np.asarray(0.5 * x * (1 + special.erf(x / np.sqrt(2))))


def scattered(values: Array, idx: Array, output: Array) -> Array:
    result = output.copy()
    result[idx[:, 0]] = values
    return result


def nonzero(x: Array) -> Array:
    """Indices of the nonzero elements of the only row, then -1, last their number."""
    found = np.flatnonzero(x[0])
    return np.concatenate([found, np.full(x.shape[1] - found.size, -1), [found.size]])[None]


def top(x: Array) -> tuple[Array, Array]:
    """The 8 largest of the first 42 elements, ascending; element i is in partition i % 16. In every partition."""
    flat = x.astype(np.float32).T.reshape(-1)[:42]
    order = np.argsort(flat)[-8:]
    return np.tile(flat[order], (16, 1)), np.tile(order, (16, 1))


STORES_TWO = """

@nki.jit
def driver(x):
    stored = []
    for tile in topk_kernel(x):
        out = nl.ndarray(tile.shape, dtype=tile.dtype, buffer=nl.shared_hbm)
        nisa.dma_copy(dst=out, src=tile)
        stored.append(out)
    return stored[0], stored[1]
"""
HALF = np.float16  # dma_transpose with indices moves two-byte types

KERNELS = {
    "indirect_gather_kernel": Whole((normal(300, 64), indices(128, 300)), lambda x, i: x[i[:, 0]]),
    "indirect_scatter_kernel": Whole((normal(128, 64), indices(128, 300), np.zeros((300, 64), np.float32)), scattered),
    "nc_matmul_accumulate_kernel": Whole((normal(512, 128), normal(512, 512)), product, tolerance=1e-4),
    "gather_transpose_kernel": Whole((normal(256, 128, dtype=HALF), indices(128, 256)), lambda x, i: x[i[:, 0]].T),
    "gather_transpose_2d_kernel": Whole(
        (normal(512, 128, dtype=HALF), indices(128, 512, 2)), lambda x, i: x[column_major(i)].T
    ),
    "gather_transpose_4d_kernel": Whole(
        (normal(512, 1, 3, 64, dtype=HALF), indices(128, 512, 2)),
        lambda x, i: x[column_major(i)].transpose(3, 1, 2, 0),
    ),
    "nonzero_with_count_kernel": Whole((np.array([[0, 5, 7, 0, 0, 2, 0, 0]], np.int32),), nonzero),
    "topk_kernel": Whole(
        (np.random.default_rng(5).permutation(48).reshape(16, 3).astype(bfloat16),), top, driver=STORES_TWO
    ),
    "activate2_scale_bias_kernel": Whole((normal(128, 256),), lambda x: gelu(2 * x + 0.5), "trn3", 1e-4),
}


@dataclass(frozen=True)
class Open:
    """Values for the free names of a snippet, and the expected results in some of them."""

    inputs: dict[str, Any]
    results: dict[str, Callable[[dict[str, Any]], Array]]
    target: str = "trn2"


def square_of(name: str) -> Callable[[dict[str, Any]], Array]:
    return lambda given: given[name] ** 2


TILE = (128, 512)
SQUARING = Open({"input_tensor": normal(*TILE), "out_tensor": np.zeros(TILE, np.float32)},
                {"out_tensor": square_of("input_tensor")})  # fmt: skip

OPEN = {
    "affine_range": SQUARING,
    "sequential_range": SQUARING,
    "static_range": SQUARING,
    "dynamic_range": SQUARING,
    "VirtualRegister": SQUARING,
    "abs_max": Open({}, {}, "trn3"),
    "abs_min": Open({}, {}, "trn3"),
    "copy": Open({"x_tensor": normal(128, 64), "y_tensor": normal(128, 256)}, {}),
    "gather_flattened": Open(
        {
            "data_tensor": normal(*TILE),
            "indices_tensor": np.random.default_rng(3).integers(0, 512, TILE).astype(np.uint32),
            "actual_tensor": np.zeros(TILE, np.float32),
        },
        {"actual_tensor": lambda g: np.take_along_axis(g["data_tensor"], g["indices_tensor"].astype(np.int64), 1)},
    ),
    "fori_loop": Open(
        {
            "ub_input": np.full((1, 1), 5, np.int32),
            "N": 16,
            "data": normal(1, 16),
            "output": np.zeros((1, 16), np.float32),
        },
        {"output": lambda g: np.where(np.arange(16) < 5, g["data"], 0)},
    ),
    "while_loop": Open({"data": normal(1, 1), "count_input": np.full((1, 1), 3, np.int32)}, {}),
    "shared_identity_matrix": Open(
        {"expected_tensor": np.eye(128, dtype=np.float32), "actual_tensor": np.zeros((128, 128), np.float32)},
        {"actual_tensor": lambda g: g["expected_tensor"]},
    ),
    "__getitem__": Open({"i": 8}, {}),
}

LEFT_OUT = {
    "register_alloc": "fragment: names a tensor that only the prose describes",
    "ap": "fragment: the second pattern takes an index that the block does not define",
}

GUIDES = ("get-started/nki-language-guide.rst", "deep-dives/nki-aps.rst")
WRONG_AS_DOCUMENTED = "The following is illegal"


def docstrings(root: Path, scratch: Path) -> Iterator[Outcome]:
    """Every example block in the docstrings of nki.isa and nki.language."""
    for module in ("isa", "language"):
        for block in blocks(root / "api" / "nki" / module / "__init__.py"):
            name = f"nki.{module}.{block.owner}, line {block.line}"
            if block.defines and parsed(block.text) and "nisa." in block.text and block.owner not in OPEN:
                yield _whole(name, block, scratch)
            elif parsed(block.text) and "nl." in block.text:
                yield _open(name, block, scratch)


def _whole(name: str, block: Block, scratch: Path) -> Outcome:
    kernel = str(block.defines)
    known = KERNELS.get(kernel)
    if known is None:
        return Outcome(name, False, None, 0, 0, "new here: it has no reference yet")
    lines = (line for line in block.text.split("\n") if line.strip() != "import pytest")
    return whole(name, kernel, HEADER + "\n" + "\n".join(lines), known, scratch / f"{kernel}.py")


def _open(name: str, block: Block, scratch: Path) -> Outcome:
    given = OPEN.get(block.owner, Open({}, {}))
    names = free_names(block.text)
    missing = [n for n in names if n not in given.inputs]
    if re.search(r"=\s*\.\.\.|^\s*\.\.\.$", block.text, re.MULTILINE):
        missing.append("...")
    if missing:
        reason = LEFT_OUT.get(block.owner, f"fragment: {', '.join(missing)} not defined in the block")
        return Outcome(name, False, None, 0, 0, reason, left_out=True)
    inputs = {n: given.inputs[n].copy() if isinstance(given.inputs[n], np.ndarray) else given.inputs[n] for n in names}
    outcome = _snippet(name, block.text, inputs, scratch / f"open{block.line}.py", target=given.target)
    for result, wanted in given.results.items():
        if outcome.runs and result in inputs:
            matches, remark = compare(inputs[result], wanted({**given.inputs, **inputs}), 1e-6)
            return Outcome(name, True, matches, outcome.lint_errors, outcome.lint_warnings, remark)
    return outcome


def _snippet(
    name: str, text: str, inputs: dict[str, Any], path: Path, refused: bool = False, target: str = "trn2"
) -> Outcome:
    """Run a block as the body of a kernel; a claim that fails is a mismatch, anything else a refusal."""
    path.write_text(as_kernel(text, list(inputs)))
    findings = lint_source(path.read_text(), path.name, "snippet")
    serious = len(errors(findings))
    stated = True if claims(text) else None
    try:
        result = run(load_kernel(path, "snippet"), tuple(inputs.values()), target=target)
    except SimulatorError as error:
        if isinstance(error.__cause__, AssertionError):
            return Outcome(name, True, False, serious, len(findings) - serious, str(error.__cause__))
        return Outcome(name, False, None, serious, len(findings) - serious, str(error), refused)
    found = set(findings) | set(lint_trace(result.traces))
    serious = len(errors(found))
    return Outcome(name, True, stated, serious, len(found) - serious, "", refused)


def guides(root: Path, scratch: Path) -> Iterator[Outcome]:
    """Blocks of the guides that build views and say what they look like; later blocks see earlier names."""
    for guide in GUIDES:
        earlier = ""
        for block in blocks(root / guide):
            if not parsed(block.text) or "=" not in block.text or "@nki.jit" in block.text or "def " in block.text:
                continue
            name = f"{Path(guide).name}, line {block.line}"
            refused = WRONG_AS_DOCUMENTED in block.text
            text = block.text
            if free_names(text) and "t = nl.ndarray" in earlier:
                text = f"{earlier}\n{text}"
            if free_names(text) or not (claims(text) or refused):
                continue
            if not refused:
                earlier = text if "nl.ndarray" in text else earlier
            yield _snippet(name, text, {}, scratch / f"guide{block.line}.py", refused)
