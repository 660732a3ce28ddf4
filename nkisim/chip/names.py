"""The enumerations of nki.language and nki.isa, under their documented names and values."""

from __future__ import annotations

from enum import Enum, IntEnum


class MemoryRegion(Enum):
    """The memory of a tensor."""

    sbuf = "sbuf"
    psum = "psum"
    private_hbm = "private_hbm"
    shared_hbm = "shared_hbm"


class engine(Enum):
    """The engines of a NeuronCore."""

    unknown = 0
    tensor = 1
    scalar = 2
    gpsimd = 3
    dma = 4
    vector = 5
    sync = 6


class reduce_cmd(Enum):
    """The effect of an instruction on the engine's accumulator registers."""

    idle = 0
    reset = 1
    reduce = 2
    reset_reduce = 3
    load_reduce = 4


class dge_mode(Enum):
    """The unit that generates the descriptors of a DMA."""

    unknown = 0
    swdge = 1
    hwdge = 2
    none = 3


class oob_mode(Enum):
    """The effect of an out-of-bounds run-time index on a DMA."""

    error = 0
    skip = 1


class matmul_perf_mode(Enum):
    """double_row multiplies two fp8 pairs per cycle."""

    none = "none"
    double_row = "double_row"


class nc_version(IntEnum):
    """NeuronCore generations, ordered because kernels compare them."""

    gen2 = 2
    gen3 = 3
    gen4 = 4


class dma_engine(Enum):
    """Transport of nisa.sendrecv."""

    dma = 1
    gpsimd_dma = 2
