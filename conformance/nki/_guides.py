"""Whole kernels printed in the guides: the inputs of each, and a NumPy reference of its result."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
from ml_dtypes import bfloat16

from conformance.nki._blocks import HEADER, blocks, parsed
from conformance.nki._examples import normal, product
from conformance.nki._outcome import Array, Outcome, Whole, whole

PAIR = (normal(128, 512), normal(128, 512))
THREE = (normal(128, 64), normal(128, 64), normal(128, 64))
SQUARE = (normal(512, 512), normal(512, 1024))
BLOCKS = {"TILES_IN_BLOCK_M": 2, "TILES_IN_BLOCK_N": 2, "TILES_IN_BLOCK_K": 2}


def exponentials(*arrays: Array) -> tuple[Array, ...]:
    return tuple(np.exp(a) for a in arrays)


def same(x: Array) -> Array:
    return x


ADD = Whole(PAIR, np.add)
EXP = Whole(THREE, exponentials, tolerance=1e-4)
EVEN_ROWS = Whole((normal(128, 512),), lambda a: a[::2])
PRODUCT = Whole(SQUARE, product, tolerance=1e-4)

# By page; if a page prints a kernel several times, the entries are in order of appearance.
KERNELS: dict[str, dict[str, tuple[Whole, ...]]] = {
    "get-started/nki-language-guide.rst": {
        "nki_tensor_add_kernel": (ADD,),
        "example_kernel": (Whole((normal(512, 512, dtype=np.float16),), None),),
        "relu_kernel": (
            Whole((normal(256, 512), np.zeros((256, 512), np.float32)), lambda x, _: np.maximum(x, 0), changed=1),
        ),
        "scale_kernel": (Whole((normal(256, 512), np.zeros((256, 512), np.float32)), lambda x, _: x / 2, changed=1),),
    },
    "get-started/quickstart-implement-run-kernel.rst": {"nki_tensor_add_kernel": (ADD,)},
    "get-started/about/nki-dma-overview.rst": {
        "tensor_exp_kernel_isa": tuple(
            Whole((normal(*shape, dtype=bfloat16),), lambda x: np.exp(x.astype(np.float32)), tolerance=1e-2)
            for shape in ((4, 4096), (128, 128))
        )
    },
    "deep-dives/nki-aps.rst": {
        "scalar_dynamic_select": (Whole((normal(4, 128, 512),), lambda a: a[3]),),
        "gather_rows": (EVEN_ROWS,),
        "indirect_vector_dynamic_dma": (EVEN_ROWS,),
    },
    "guides/how-to-scheduling-apis.rst": {
        "kernel": (Whole((np.abs(normal(128, 64)) + 1,), lambda t: 1 / t + (t + 1)), EXP),
        "loop": (EXP, EXP),
    },
    "guides/tutorials/kernel-optimization.rst": {
        "matrix_multiply_kernel": (
            Whole((normal(128, 128), normal(128, 512)), product, tolerance=1e-4),
            PRODUCT,
            PRODUCT,
            PRODUCT,
            Whole(SQUARE, product, tolerance=1e-4, options=BLOCKS),
        )
    },
    "migration/index.rst": {
        "indirect_vector_dynamic_dma": (EVEN_ROWS,),
        "sb_blocks_migrated": (Whole((normal(8, 128, 512),), same),) * 2,
    },
}


def guide_kernels(root: Path, scratch: Path) -> Iterator[Outcome]:
    """Run every kernel of the table that this checkout still prints."""
    for page, kernels in KERNELS.items():
        path = root / page
        if not path.is_file():
            continue
        seen = dict.fromkeys(kernels, 0)
        for block in blocks(path):
            for kernel, cases in kernels.items():
                if f"def {kernel}(" not in block.text or not parsed(block.text) or seen[kernel] == len(cases):
                    continue
                case = cases[seen[kernel]]
                seen[kernel] += 1
                file = scratch / f"{path.stem}-{block.line}-{kernel}.py"
                yield whole(f"{path.name}, line {block.line}: {kernel}", kernel, HEADER + block.text, case, file)
