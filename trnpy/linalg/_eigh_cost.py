"""What each method of eigh asks of a device and leaves to the host, from sizes alone."""

from __future__ import annotations

import functools
import math

import numpy as np

from trnpy._call.dispatch import Cost
from trnpy._nki.hardware import FLOAT64_PASSES
from trnpy._nki.kernels.spectra.jacobi_sweep_reference import HALF
from trnpy._nki.kernels.spectra.polynomial_sign_reference import LONGEST
from trnpy._settings.host_rates import FLOPS
from trnpy.linalg._divide import LEAF, LEAVES
from trnpy.linalg._routes import real

FLOAT32_PASSES = 4  # of TensorE in bf16's time: its peak in float32 is a quarter
# Of a separated spectrum, three iterations (docs/numerics.md#divide-and-conquer), in passes of n x n products and
# n x n arrays:
# A X, X^H A X, half of X^H X, X E at 5, 5, 5 and 3 digits, then at 7, 7, 7 and 4, then 7, 7, 7 and 5; A X at 7.
REFINE_PASSES = (15 + 15 + 9 + 6) + (28 + 28 + 16 + 10) + (28 + 28 + 16 + 15) + 28
REFINE_IN, REFINE_OUT = 14, 12  # X by columns and by rows, A X and E of each, A, the last X; four products of each
REFINE_LAUNCHES = 28  # those arrays into digits, and those products
REFINE_COMPLEX_LAUNCHES = 77  # real and imaginary parts of the arrays, and 4 M of the products
REFINE_HOST = 4000  # bytes an element, as of copies: 0.4 us for digits in NumPy and 35 passes (benchmarks eigh)
# Of one split of n rows into halves: twelve steps of three products for the sign, half of that and a quarter for
# the bases with their projections and the matrices in them.
SPLIT_FLOPS = 110.0  # n^3
SPLIT_LAUNCHES = 3
SPLIT_IN, SPLIT_OUT = 1.5, 0.5  # float32 n x n arrays: H and a random block; the matrices in the halves
JACOBI_SWEEPS = 7
JACOBI_PAIR = 2.9e9  # operations of float64 products that take the 1.33 ms of a pair of blocks of 64, modelled on trn2
SPLIT_HOST = 100  # bytes an element: shifts, norms, a random block of half the size


@functools.lru_cache(maxsize=1024)  # as long as a small call
def methods(n: int, dtype: np.dtype, kind: str, useful: float, extra: float = 0.0) -> tuple[tuple[str, Cost], ...]:
    """(method, cost) of eigenpairs of order n, float64 or complex128; ``extra``: products and solves besides."""
    cube, square = real(dtype) * float(n) ** 3, dtype.itemsize * n * n
    complex_ = dtype.kind == "c"
    refined = {
        "products": 2.0 * REFINE_PASSES / FLOAT64_PASSES * cube + extra,
        "bytes_in": REFINE_IN * square,
        "bytes_out": REFINE_OUT * square * (2 if complex_ else 1),
        "launches": REFINE_COMPLEX_LAUNCHES if complex_ else REFINE_LAUNCHES,
        "host_bytes": REFINE_HOST * n * n * (2.0 if complex_ else 1.0),
        "host_flops": 0.0,
    }
    start = refined | {"host_flops": FLOPS["eigh"] * cube / 2}  # in float32
    found = {"start": start}
    if not complex_:
        pairs = (n // HALF + 1) * n // (2 * HALF) + 1
        sweeps = {"products": refined["products"] + JACOBI_SWEEPS * pairs * JACOBI_PAIR}
        sweeps["launches"] = refined["launches"] + JACOBI_SWEEPS
        sweeps["bytes_out"] = refined["bytes_out"] + 4.0 * JACOBI_SWEEPS * n * n
        found["jacobi"] = refined | sweeps
    if (2 * n if complex_ else n) <= LONGEST:
        added = _divided(n, complex_)
        found["divide"] = {key: value + added[key] for key, value in refined.items()}
    return tuple(
        (
            name,
            Cost(
                kind, n, useful, int(c["bytes_in"]), int(c["bytes_out"]), c["products"], c["host_flops"],
                int(c["launches"]), c["host_bytes"],
            ),
        )
        for name, c in found.items()
    )  # fmt: skip


def _divided(n: int, complex_: bool) -> dict[str, float]:
    """Divide and conquer of a spectrum that halves evenly: what it adds to the refinement."""
    m = 2 * n if complex_ else n  # rows of the real matrix that stands for a
    levels = max(math.ceil(math.log2(n / max(LEAF, n // LEAVES))), 0)
    splits = 2**levels - 1
    flops = sum(SPLIT_FLOPS * m**3 / 4**level for level in range(levels))  # 2^level of a 2^level-th
    arrays = sum(4.0 * m * m / 2**level for level in range(levels))
    leaves = FLOPS["eigh"] * real(np.dtype("D" if complex_ else "d")) * float(n) ** 3 / 4**levels / 2
    return {
        "products": flops * FLOAT32_PASSES / FLOAT64_PASSES,
        "bytes_in": SPLIT_IN * arrays + (4.0 * m * n if levels else 0.0),
        "bytes_out": SPLIT_OUT * arrays + (4.0 * m * n if levels else 0.0),
        "launches": SPLIT_LAUNCHES * splits + 2 * max(splits - 1, 0) + (splits + 1 if splits else 0),
        "host_bytes": SPLIT_HOST * arrays / 4.0,
        "host_flops": leaves,
    }
