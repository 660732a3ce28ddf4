"""The kernels of nki/examples: the inputs of each, and a NumPy reference of its result."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from conformance.nki._outcome import Array, Outcome, launch
from nkisim.chip.errors import SimulatorError
from nkisim.lint.linter import lint_file
from nkisim.run.loader import load_kernel

RNG = np.random.default_rng(20260821)


@dataclass(frozen=True)
class Example:
    """One kernel of an example file, with our inputs and our reference."""

    file: str  # below nki/examples
    kernel: str
    arguments: tuple[Any, ...]
    reference: Callable[..., Any] | None
    options: dict[str, Any] = field(default_factory=dict)
    tolerance: float = 1e-5
    refused: bool = False  # the documentation shows it as wrong


def normal(*shape: int, dtype: Any = np.float32) -> Array:
    return RNG.standard_normal(shape).astype(dtype)


def product(at: Array, b: Array) -> Array:
    return at.astype(np.float64).T @ b.astype(np.float64)


def transposed_rows(x: Array, shape: tuple[int, int]) -> Array:
    return x.reshape(len(x), *shape).transpose(0, 2, 1).reshape(x.shape)


def pooled(x: Array, size: int, how: Callable[..., Array]) -> Array:
    c, h, w = x.shape
    return how(x.reshape(c, h // size, size, w // size, size), axis=(2, 4))


def state_space(delta: Array, u: Array, a: Array, b: Array, c: Array) -> Array:
    """Sum over states s of c_s h_s, with h_s(t) = exp(delta a_s) h_s(t - 1) + delta u b_s."""
    batches, channels, length = delta.shape
    out = np.zeros((batches, channels, length))
    h = np.zeros((batches, channels, a.shape[1]))
    for t in range(length):
        d = delta[:, :, t, None].astype(np.float64)
        h = np.exp(d * a) * h + d * u[:, :, t, None] * b[:, None, :, t]
        out[:, :, t] = np.sum(h * c[:, None, :, t], axis=2)
    return out


MATMUL = "matrix_multiplication/matrix_multiplication_nki_kernels.py"
MAMBA = "fused_mamba/mamba_nki_kernels.py"
SEQUENCE = (
    np.abs(normal(1, 128, 512)) * 0.1,
    normal(1, 128, 512),
    -np.abs(normal(128, 4)),
    normal(1, 4, 512),
    normal(1, 4, 512),
)
SQUARE = (normal(512, 256), normal(512, 1024))

EXAMPLES = (
    Example(MATMUL, "nki_matmul_basic_", (normal(128, 64), normal(128, 512)), product, tolerance=1e-4),
    Example(MATMUL, "nki_matmul_tiled_", SQUARE, product, tolerance=1e-4),
    Example(MATMUL, "nki_matmul_hoist_load_", SQUARE, product, tolerance=1e-4),
    Example(MATMUL, "nki_matmul_block_free_dimension_", SQUARE, product, tolerance=1e-4),
    Example(
        MATMUL,
        "nki_matmul_fully_optimized_",
        SQUARE,
        product,
        {"TILES_IN_BLOCK_M": 2, "TILES_IN_BLOCK_N": 2, "TILES_IN_BLOCK_K": 2},
        tolerance=1e-4,
    ),
    Example("tensor_addition/tensor_addition_nki_kernels.py", "nki_tensor_add", (normal(256, 1024),) * 2, np.add),
    Example(
        "transpose2d/transpose2d_nki_kernels.py",
        "tensor_transpose2D_kernel_",
        (np.arange(60, dtype=np.int8).reshape(5, 12), (3, 4)),
        transposed_rows,
    ),
    Example(
        "average_pool2d/average_pool2d_nki_kernels.py",
        "tensor_avgpool_kernel",
        (np.arange(72, dtype=np.float16).reshape(2, 6, 6), 2),
        lambda x, n: pooled(x.astype(np.float32), n, np.mean),
        tolerance=1e-3,
    ),
    Example(MAMBA, "mamba_v1", SEQUENCE, state_space, tolerance=1e-4),
    Example(MAMBA, "mamba_v2", SEQUENCE, state_space, tolerance=1e-4),
    Example(MAMBA, "mamba_v3", SEQUENCE, state_space, tolerance=1e-4),
    Example(
        "getting_started_baremetal.py",
        "nki_tensor_add_kernel",
        (normal(4, 3, dtype=np.float16),) * 2,
        np.add,
        tolerance=1e-3,
    ),
    Example(
        "getting_started_torch.py",
        "nki_tensor_add_kernel",
        (normal(4, 3, dtype=np.float16),) * 2,
        np.add,
        tolerance=1e-3,
    ),
    Example(
        "getting_started_jax.py", "nki_tensor_add_kernel", (normal(4, 3, dtype=np.float16),) * 2, np.add, tolerance=1e-3
    ),
    Example("layout-pass.py", "tensor_exp_kernel_", (normal(128, 512),), np.exp, tolerance=1e-4),
    Example("layout-violation.py", "tensor_exp_kernel_", (normal(256, 512),), None, refused=True),
    Example("index-case-1.py", "tensor_split_kernel_", (normal(4, 6),), lambda x: (x[:, ::2], x[:, 1::2])),
    Example("index-case-3.py", "tensor_maxpool_kernel_", (normal(2, 6, 6), 2), lambda x, n: pooled(x, n, np.max)),
    Example("simulate/nki_simulate_example.py", "add_kernel", (normal(128, 512),) * 2, np.add),
)

LEFT_OUT = {
    "layout-loop.py": "legacy dialect: decorated with torch_neuronx.nki_jit, and uses a name it never assigns",
    "layout-dynamic-loop.py": "not Python as printed: a parenthesis is never closed",
}


def examples(root: Path) -> Iterator[Outcome]:
    """Run every example; a file that is not in the table is reported."""
    folder = root / "examples"
    for example in EXAMPLES:
        yield _run(folder, example)
    for name, reason in LEFT_OUT.items():
        if (folder / name).is_file():
            yield Outcome(f"examples/{name}", False, None, 0, 0, reason, left_out=True)
    known = {e.file for e in EXAMPLES} | set(LEFT_OUT)
    for path in sorted(folder.rglob("*.py")):
        place = str(path.relative_to(folder))
        if place not in known and "@nki.jit" in path.read_text():
            yield Outcome(f"examples/{place}", False, None, 0, 0, "new here: it has no reference in this table yet")


def _run(folder: Path, example: Example) -> Outcome:
    path = folder / example.file
    name = f"{example.file}:{example.kernel}"
    if not path.is_file():
        return Outcome(name, False, None, 0, 0, "not in this checkout", left_out=True)
    findings = lint_file(path, example.kernel)
    try:
        kernel = load_kernel(path, example.kernel)
    except ModuleNotFoundError as error:
        return Outcome(name, False, None, 0, 0, f"needs {error.name}, which is not installed here", left_out=True)
    except SimulatorError as error:
        return Outcome(name, False, None, 0, 0, str(error), example.refused)
    return launch(
        name,
        kernel,
        example.arguments,
        example.reference,
        options=example.options,
        tolerance=example.tolerance,
        refused=example.refused,
        findings=findings,
    )
