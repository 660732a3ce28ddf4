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
SIZES = (100, 300, 1000, 2000)
OPERATIONS = "operations"  # the unit of LAPACK's routines, which take half as long in float32
PASS = "pass"  # over matrices, by functions that read each element a few times and are not measured one by one
BESIDE = "beside "  # precedes the name of a step in another thread, while operands are sent and the device computes


class Step(NamedTuple):
    """One step of the host, and its default rate."""

    unit: str
    rates: tuple[tuple[int, float], ...]  # (order, units per second): see STEPS


# Rates are those of one thread of an EPYC (2026-11), the means of OpenBLAS's kernels for Haswell and for SkylakeX: only
# LAPACK's steps differ. A size is the order of the matrix that has as many elements as the first argument
# (``order_of``), or as is copied.
STEPS: Mapping[str, Step] = MappingProxyType(
    {
        "split": Step("elements", ((100, 6.2e7), (300, 2.4e8), (1000, 3.3e8), (2000, 2.5e8))),
        "magnitudes": Step("elements", ((100, 1e8), (300, 3.5e8), (1000, 4.3e8), (2000, 4.2e8))),
        "combine": Step("elements", ((173, 1.1e8), (520, 2.9e8), (1732, 3.5e8), (3464, 3.6e8))),
        "symmetric combine": Step("elements", ((222, 2.7e7), (665, 3.7e7), (1536, 6.9e7), (2804, 7.6e7))),
        "integer split": Step("elements", ((100, 4.3e8), (300, 1.5e9), (1000, 2.2e9), (2000, 2.1e9))),
        "integer combine": Step("elements", ((141, 3.3e8), (424, 7.6e8), (1414, 6.9e8), (2828, 3.4e8))),
        "equilibrate": Step("elements", ((100, 1.9e8), (300, 5.1e8), (1000, 4.4e8), (2000, 3.1e8))),
        "proof": Step("elements", ((100, 7.9e7), (300, 4.3e8), (1000, 1.1e9), (2000, 9.6e8))),
        "digits proof": Step("elements", ((100, 7.5e7), (300, 3.6e8), (1000, 6e8), (2000, 4.7e8))),
        "proof of result": Step("elements", ((100, 1e8), (300, 5.4e8), (1000, 1.2e9), (2000, 1.5e9))),
        "single proof": Step("elements", ((100, 8.5e7), (300, 5.2e8), (1000, 1.5e9), (2000, 1.9e9))),
        "single proof of result": Step("elements", ((100, 9e7), (300, 5.8e8), (1000, 1.8e9), (2000, 2.4e9))),
        "complex proof": Step("elements", ((100, 1.5e8), (300, 6.5e8), (1000, 7.5e8), (2000, 5.9e8))),
        "complex proof of result": Step("elements", ((100, 1.7e8), (300, 8e8), (1000, 1.3e9), (2000, 1.3e9))),
        "integer proof": Step("elements", ((100, 1.6e8), (300, 4.1e8), (1000, 4.3e8), (2000, 4e8))),
        "kept proof": Step("elements", ((35, 3.7e7), (105, 2.4e8), (354, 1.3e9), (707, 1.9e9))),
        "fingerprint": Step("bytes", ((100, 8.6e8), (300, 3.8e9), (1000, 5.8e9), (2000, 6e9))),
        "copy": Step("bytes", ((128, 1.9e10), (256, 6.5e10), (1024, 3.9e10), (2048, 3.3e10))),
        PASS: Step("bytes", ((100, 3.9e9), (300, 9e9), (1000, 8.7e9), (2000, 4.7e9))),
        "turned copy": Step("bytes", ((128, 1.1e10), (512, 2.4e10), (1024, 2e10), (2048, 1.9e10))),
        "largest entry": Step("elements", ((100, 2.7e8), (300, 1.5e9), (1000, 2.7e9), (2000, 2.6e9))),
        "norm bounds": Step("elements", ((100, 2.1e8), (300, 8.3e8), (1000, 1.3e9), (2000, 1.4e9))),
        "Rayleigh quotients": Step("elements", ((100, 1.3e8), (300, 7.1e8), (1000, 1.3e9), (2000, 1.3e9))),
        "residual columns": Step("elements", ((100, 1.1e8), (300, 4.3e8), (1000, 5.5e8), (2000, 5.7e8))),
        "added correction": Step("elements", ((100, 4.3e8), (300, 2.4e9), (1000, 3e9), (2000, 1.8e9))),
        "corrections": Step("elements", ((100, 6.4e7), (300, 2.7e8), (1000, 4.7e8), (2000, 5e8))),
        "rotations": Step("elements", ((100, 7e7), (300, 1.6e8), (1000, 2.3e8), (2000, 2.4e8))),
        "orthonormalization": Step("elements", ((100, 2e8), (300, 9.7e8), (1000, 1.2e9), (2000, 1.1e9))),
        "sums of rows": Step("elements", ((100, 2.4e8), (300, 1.1e9), (1000, 2e9), (2000, 2.1e9))),
        "uniform": Step("numbers", ((100, 1.4e8), (300, 6.7e8), (1000, 1.2e9), (2000, 1.2e9))),
        "random": Step("numbers", ((71, 5.3e7), (212, 1.1e8), (707, 1.2e8), (1414, 1.2e8))),
        "lu panel": Step(OPERATIONS, ((113, 9.5e9), (196, 2.2e10), (358, 2.6e10), (506, 2.3e10))),
        "qr panel": Step(OPERATIONS, ((113, 1.1e10), (196, 2.2e10), (358, 2.3e10), (506, 2.2e10))),
        "triangular inverse": Step(OPERATIONS, ((100, 3.1e9), (128, 4.2e9))),
        "panel substitution": Step(OPERATIONS, ((128, 2e10),)),
        "condition": Step("elements", ((100, 2.3e8), (300, 6.6e8), (1000, 5.5e8), (2000, 4.3e8))),
        "sorted": Step("elements", ((100, 2.4e7), (300, 2.8e7), (1000, 3.3e7), (2000, 3e7))),
        "grouped": Step("elements", ((100, 7.4e7), (300, 1.2e8), (1000, 1.5e8), (2000, 1.6e8))),
    }
)  # fmt: skip

INCOMING = frozenset({"split", "magnitudes", "integer split", "equilibrate"})  # conversions of operands
PROOFS = frozenset(name for name in STEPS if "proof" in name)
OUTGOING = PROOFS | {"combine", "symmetric combine", "integer combine", "fingerprint"}
# Steps that another thread may do while kernels run.
HIDDEN = PROOFS - {"integer proof", "kept proof"} | {"copy", "turned copy", PASS}
INCREASE = 2.0  # neighbouring sizes of copies are counted as one if they differ by less


def order_of(shape: tuple[int, ...]) -> int:
    """The order of the square matrix with as many elements."""
    return max(round(math.sqrt(math.prod(shape))), 1)


def order_of_copy(nbytes: float) -> int:
    """The order of the float64 matrix whose copy moves as many bytes, as a power of two."""
    return int(INCREASE ** round(math.log(math.sqrt(max(nbytes, 16) / 16), INCREASE)))
