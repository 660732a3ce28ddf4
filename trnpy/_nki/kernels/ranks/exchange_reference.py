"""The NumPy reference implementation of exchange.py, for all ranks at once, and the limits of its operands."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType

import numpy as np

# Sizes of groups of consecutive ranks in which collectives ran: all_to_all in four chips of inf2, and on all of
# trn1.32xlarge (spectral, rules 4 and 5; 12 and 16 on inf2, and strided groups on trn1, were refused at load); other
# collectives on trn2.48xlarge (kiln). Nothing is published about trn3.
RANKS: Mapping[str, tuple[int, ...]] = MappingProxyType(
    {"trn1": (1, 2, 4, 8, 32), "trn2": (1, 2, 4, 8, 16, 32, 64), "trn3": ()}
)
LARGEST = 2**29  # words of a rank: byte offsets are 32-bit integers


def check(rows: np.ndarray, ranks: int, machine: str) -> None:
    """Raise ValueError, with the reason, for operands that the kernel does not support."""
    if ranks not in RANKS[machine]:
        allowed = ", ".join(map(str, RANKS[machine])) or "none"
        raise ValueError(f"a group of {ranks} NeuronCores: on {machine} groups ran with {allowed}")
    if rows.dtype != np.int32 or rows.ndim != 2 or rows.shape[0] != ranks or not 0 < rows.size <= LARGEST:
        raise ValueError(f"{rows.dtype} of {rows.shape}: expected ({ranks}, words) int32, of at most {LARGEST} words")


def exchange(rows: Sequence[np.ndarray]) -> list[np.ndarray]:
    """The rows that each rank receives from all ranks."""
    return list(np.stack(rows).swapaxes(0, 1))
