"""The enumerations of nki.isa."""

from nkisim.chip.names import (
    dge_mode,
    dma_engine,
    engine,
    matmul_perf_mode,
    nc_version,
    oob_mode,
    reduce_cmd,
)

__all__ = [
    "dge_mode", "dma_engine", "engine", "gpsimd_engine", "matmul_perf_mode", "nc_version", "oob_mode", "reduce_cmd",
    "scalar_engine", "tensor_engine", "unknown_engine", "vector_engine",
]  # fmt: skip

# Deprecated names of 0.6, still documented.
tensor_engine, vector_engine, scalar_engine = engine.tensor, engine.vector, engine.scalar
gpsimd_engine, unknown_engine = engine.gpsimd, engine.unknown
