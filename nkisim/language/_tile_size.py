"""nl.tile_size: the limits of the target's tiles."""

from __future__ import annotations

from nkisim.chip.context import hardware
from nkisim.hardware import PARTITIONS, PSUM_BANK_BYTES, PSUM_BANKS

FLOAT32_BYTES = 4
STATIONARY_MAX = 128  # columns of the array
BN_STATS_MAX = 512  # elements per partition (nki.isa.bn_stats)
ALIGNMENT = 4  # bytes; the documentation names these attributes without values


class TileSize:
    """Limits of the current target; outside a kernel, limits of trn2."""

    pmax = PARTITIONS
    psum_bank_fmax_bytes = PSUM_BANK_BYTES
    psum_bank_fmax = PSUM_BANK_BYTES // FLOAT32_BYTES
    psum_fmax = psum_bank_fmax
    psum_num_banks = PSUM_BANKS
    gemm_stationary_fmax = STATIONARY_MAX
    gemm_moving_fmax = psum_bank_fmax
    bn_stats_fmax = BN_STATS_MAX
    psum_min_align = ALIGNMENT
    sbuf_min_align = ALIGNMENT

    @property
    def sbuf_fmax_bytes(self) -> int:
        return hardware().sbuf_bytes_per_partition

    @property
    def sbuf_fmax(self) -> int:
        return self.sbuf_fmax_bytes // FLOAT32_BYTES

    @property
    def sbuf_size_bytes(self) -> int:
        return self.sbuf_fmax_bytes * PARTITIONS

    @property
    def total_available_sbuf_size(self) -> int:
        return self.sbuf_fmax_bytes
