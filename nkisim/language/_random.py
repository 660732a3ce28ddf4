"""Random numbers from VectorEngine's generator."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from nkisim import isa
from nkisim.chip.names import MemoryRegion
from nkisim.chip.tensor import NkiTensor
from nkisim.language._creation import ndarray
from nkisim.language._elementwise import OPERATORS

__all__ = ["rand", "random_seed"]

RANDOM_BITS = 24  # random bits of a float32 in [0, 1)


def random_seed(seed: NkiTensor) -> None:
    """Seed the generator of VectorEngine with a (1, 1) tile."""
    isa.set_rng_seed(src_seeds=seed)


def rand(shape: Sequence[int], dtype: Any, buffer: MemoryRegion = MemoryRegion.sbuf, name: str = "") -> NkiTensor:
    """Uniform values in [0, 1): 24 random bits each, scaled."""
    bits = ndarray(shape, "uint32")
    isa.rng(dst=bits)
    isa.tensor_scalar(dst=bits, data=bits, op0=OPERATORS["right_shift"], operand0=32 - RANDOM_BITS)
    tensor = ndarray(shape, dtype, buffer, name)
    isa.tensor_scalar(dst=tensor, data=bits, op0=OPERATORS["multiply"], operand0=2.0**-RANDOM_BITS)
    return tensor
