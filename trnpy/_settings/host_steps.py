"""The steps of the host between launches, in one list: the unit and the default rate of each.

A dry run counts amounts by step and size. ``python -m trnpy calibrate`` measures the rates with the functions
themselves (``_cli/step_workloads``), at the sizes and in the layouts in which algorithms call them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple

# Orders of the matrices with which rates are measured: no powers of two, whose strides make transposed copies slower.
SIZES = (250, 1000, 2000)
BESIDE = "beside "  # precedes the name of a step in another thread, while operands are sent and the device computes


class Step(NamedTuple):
    """One step of the host, and its default rate."""

    unit: str
    rates: tuple[tuple[int, float], ...]  # (order, units per second): one thread of an EPYC with AVX-512 (2026-11)


# A size is the order of the matrix that has as many elements as the first argument (``order_of``), or as is copied.
STEPS: Mapping[str, Step] = MappingProxyType(
    {
        "split": Step("elements", ((250, 1.2e8), (1000, 3e8), (2000, 2.4e8))),
        "magnitudes": Step("elements", ((250, 1.5e8), (1000, 3.9e8), (2000, 4.1e8))),
        "combine": Step("elements", ((500, 1.3e8), (2000, 2.4e8), (4000, 2.6e8))),
        "integer split": Step("elements", ((250, 4.4e8), (1000, 2e9), (2000, 2e9))),
        "integer combine": Step("elements", ((354, 2.7e8), (1414, 6.7e8), (2828, 3e8))),
        "equilibrate": Step("elements", ((250, 2.5e8), (1000, 4.7e8), (2000, 2.8e8))),
        "proof": Step("elements", ((250, 1.7e8), (1000, 1.1e9), (2000, 8.9e8))),
        "proof of result": Step("elements", ((250, 1.7e8), (1000, 9.1e8), (2000, 1.2e9))),
        "single proof": Step("elements", ((250, 1.7e8), (1000, 5.5e8), (2000, 5.2e8))),
        "single proof of result": Step("elements", ((250, 1.7e8), (1000, 7.9e8), (2000, 9.1e8))),
        "complex proof": Step("elements", ((250, 3.3e8), (1000, 6.3e8), (2000, 6.1e8))),
        "complex proof of result": Step("elements", ((250, 3.4e8), (1000, 1.1e9), (2000, 1.2e9))),
        "integer proof": Step("elements", ((250, 2.9e8), (1000, 4e8), (2000, 4e8))),
        "kept proof": Step("elements", ((88, 9.7e7), (354, 6.5e8), (707, 1.4e9))),
        "fingerprint": Step("bytes", ((250, 2e9), (1000, 5.1e9), (2000, 5.7e9))),
        "copy": Step("bytes", ((256, 1.9e10), (1024, 2.6e10), (2048, 3.1e10))),
        "turned copy": Step("bytes", ((256, 1.4e10), (1024, 1.7e10), (2048, 1.9e10))),
        "largest entry": Step("elements", ((250, 3.5e8), (1000, 1.7e9), (2000, 2.4e9))),
        "norm bounds": Step("elements", ((250, 2.6e8), (1000, 1e9), (2000, 1.3e9))),
        "Rayleigh quotients": Step("elements", ((250, 2e8), (1000, 1.1e9), (2000, 1.4e9))),
        "residual columns": Step("elements", ((250, 1.7e8), (1000, 4.8e8), (2000, 6e8))),
        "added correction": Step("elements", ((250, 5.5e8), (1000, 1.4e9), (2000, 1.8e9))),
        "corrections": Step("elements", ((250, 1.4e8), (1000, 3.3e8), (2000, 4.6e8))),
        "rotations": Step("elements", ((250, 9.4e7), (1000, 1.7e8), (2000, 2.1e8))),
        "orthonormalization": Step("elements", ((250, 3.2e8), (1000, 8.1e8), (2000, 1.1e9))),
        "sums of rows": Step("elements", ((250, 4.2e8), (1000, 1.5e9), (2000, 2e9))),
        "uniform": Step("numbers", ((250, 2e8), (1000, 9.6e8), (2000, 1.2e9))),
        "random": Step("numbers", ((177, 7.1e7), (707, 1.2e8), (1414, 1.2e8))),
        "lu panel": Step("operations", ((179, 1.4e10), (358, 2e10), (506, 2.1e10))),
        "qr panel": Step("operations", ((179, 1.3e10), (358, 1.6e10), (506, 1.7e10))),
        "triangular inverse": Step("operations", ((128, 2.2e9),)),
        "panel substitution": Step("operations", ((128, 1.1e10),)),
        "condition": Step("elements", ((250, 2.5e8), (1000, 4.5e8), (2000, 4.1e8))),
        "sorted": Step("elements", ((250, 2.1e7), (1000, 2.7e7), (2000, 2.7e7))),
        "grouped": Step("elements", ((250, 8.2e7), (1000, 1.1e8), (2000, 1.4e8))),
    }
)  # fmt: skip

INCOMING = frozenset({"split", "magnitudes", "integer split", "equilibrate"})  # conversions of operands
PROOFS = frozenset(
    {"proof", "single proof", "complex proof", "proof of result", "single proof of result", "complex proof of result"}
)  # fmt: skip
OUTGOING = PROOFS | {"combine", "integer combine", "integer proof", "kept proof", "fingerprint"}
HIDDEN = PROOFS | {"copy", "turned copy"}  # steps that another thread may do while kernels run
INCREASE = 2.0  # neighbouring sizes of copies are counted as one if they differ by less


def order_of(shape: tuple[int, ...]) -> int:
    """The order of the square matrix with as many elements."""
    return max(round(math.sqrt(math.prod(shape))), 1)


def order_of_copy(nbytes: float) -> int:
    """The order of the float64 matrix whose copy moves as many bytes, as a power of two."""
    return int(INCREASE ** round(math.log(math.sqrt(max(nbytes, 16) / 16), INCREASE)))
