"""One frozen row per NeuronCore generation: sizes, clock rates, throughput, host transfers, launch and compile time.

Sources (public AWS documentation unless stated otherwise): ``arch`` = nki/guides/architecture/*_arch.rst of
aws-neuron-sdk (Neuron 2.32); ``dma`` = nki/deep-dives/nki-dma-bandwidth-guide.rst; ``perf`` =
nki/deep-dives/nki_perf_guide.rst; ``overview`` = nki/get-started/about/nki-dma-overview.rst; ``explorer`` =
tools/neuron-explorer/overview-summary-page.rst; ``skills`` = neuron-agentic-development's profiling
examples; ``seed`` = published torch-XLA measurements of trntensor on trn1; ``kiln`` and ``spectral`` = published
measurements on trn1 with NKI 0.6, see docs/hardware.md#status-and-sources.
No time computed from these rows was checked on a Trainium: each is *modelled*.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import NamedTuple

PARTITIONS = 128  # rows of SBUF, PSUM and the systolic array, all generations (arch)
PSUM_BANKS = 8  # per partition, all generations (arch)
PSUM_BANK_BYTES = 2048  # 512 float32 per partition (arch)


class Timing(NamedTuple):
    """Fixed costs inside one NeuronCore, for the cost model of nkisim/price/cost.py.

    Cycles are counted on the engine that the field names. Throttle fields are 0 if nothing is documented.
    """

    matmul_overhead_cycles: int = 9  # 521 cycles for 512 columns on trn2 (skills: matmul profile)
    matmul_latency_cycles: int = 256  # a wavefront crosses 128 rows, then 128 columns
    load_stationary_cycles: int = 32  # 128 rows, four a cycle (perf)
    tensor_sustained: float = 1.0  # fraction of the clock rate that a stream of products reaches
    narrow_factor: float = 1.0  # multiplies the time if fewer than half of the array's rows or columns are used
    float32_wide_passes: float = 4.0  # passes of a product with 512 columns; with 128 columns all need four (arch)
    float32_transpose_passes: float = 2.0  # (arch)
    access_cycles: int = 60  # static SBUF/PSUM access of any compute engine (arch)
    vector_issue_cycles: int = 60  # the part of access_cycles for which the engine's next instruction waits
    scalar_issue_cycles: int = 60
    vector_latency_cycles: int = 100  # until a dependent instruction starts: 200 ns in total for 64 columns (kiln)
    selection_cycles: int = 560  # to find the eight largest, at 512 and at 16384 columns alike (kiln)
    scalar_latency_cycles: int = 204  # the same on ScalarEngine: dependent activations start 264 apart (perf)
    accumulator_cycles: int = 64  # reading ScalarEngine's reduction register (arch)
    gpsimd_start_cycles: int = 150  # the GpSimd formulas of the 2.26 isa documentation
    table_load_s: float = 1.3e-6  # switching activation tables (overview)
    semaphore_s: float = 80e-9  # one engine waits for another: 60 to 100 ns in profiles of Neuron 2.26
    dma_start_s: float = 0.74e-6  # trigger to first descriptor (overview)
    dma_wait_s: float = 0.56e-6  # added if the transfer waits for an engine: 1.3 us from semaphore to start (dma)
    dma_floor_s: float = 0.8e-6  # first descriptor to consumer: 4 KiB to 128 KiB all take this (overview, figure 1)
    dma_stagger_s: float = 15.5e-9  # from one queue of a transfer to the next: 16 start in 233 ns (overview, figure 3)
    descriptor_generation_s: float = 0.0  # DGE time of one DMA instruction
    software_dge_s: float = 1.3e-6  # GpSimd time per DMA at a run-time address: 1 to 1.4 us (kiln)
    software_descriptor_s: float = 12e-9  # GpSimd time per descriptor: 11 to 15 ns (kiln)
    pool_trigger_s: float = 0.0  # GpSimd time per other DMA if GpSimd issues all of them; otherwise 0
    power_of_two_factor: float = 1.0  # multiplies the transfer time if the row stride in HBM is a power of two bytes
    dma_written_bytes: int = 0  # transfers are slower if more is in use per partition; 0: no such limit is known
    dma_written_factor: float = 1.0  # multiplies the transfer time beyond dma_written_bytes
    throttle_window_s: float = 0.0  # TensorEngine is throttled if it was busy for less than the fraction below
    throttle_utilisation: float = 0.5
    throttle_factor: float = 2.0
    turn_barrier_s: float = 1.4e-6  # per iteration of a device loop: all engines wait for one another (kiln)
    turn_drain_s: float = 3e-6  # added per 16 KiB of instructions if the iteration moves data (kiln, spectral)
    turn_restart_s: float = 25e-6  # at most (kiln)
    region_s: float = 20e-6  # each time a loop is entered: 10 to 30 us, measured with zero iterations (kiln)
    hop_s: float = 1.5e-6  # one ring step of a collective: 1-2 us
    group_barrier_s: float = 0.15e-3  # once per launch if the program has collectives of two ranks (kiln)
    group_doubling_s: float = 0.6e-3  # added for each doubling of the ranks (kiln)
    one_at_a_time: bool = False  # exclusive access: Vector or Scalar engine on PSUM, Vector or GpSimd on SBUF (arch)
    kernel_floor_s: float = 16e-6  # device time before the first and after the last instruction (deltanet)


USUAL = Timing()


@dataclass(eq=False)  # compared by identity: caches of decisions use it as a key
class Hardware:
    """Capabilities of one NeuronCore and the cost of reaching it from the host."""

    name: str
    generation: int
    cores_per_chip: int
    sbuf_bytes_per_partition: int  # usable by kernels: tile_size.sbuf_fmax_bytes
    tensor_hz: float
    vector_hz: float
    scalar_hz: float
    gpsimd_hz: float
    flops_per_s: Mapping[str, float]  # TensorEngine peak of one core, by input dtype
    hbm_bytes: int  # per core
    hbm_bytes_per_s: float  # per core, sustained by 16 DMA engines
    dma_bytes_per_s: float  # one of the 16 DMA engines
    dma_descriptor_s: float  # fixed cost of one descriptor
    link_bytes_per_s: float  # host to device
    unlink_bytes_per_s: float  # device to host
    peer_bytes_per_s: float  # from one core to others in a collective, each way
    launch_s: float  # host call of one kernel until the device has answered
    timing: Timing = USUAL
    overlaps: bool = False  # transfers overlap with launches, as documented by the runtime, not by the chip

    @property
    def float64_flops_per_s(self) -> float:
        """Rate of float64-accurate products of 28 bfloat16 passes (Ozaki scheme I, seven 8-bit integer slices)."""
        return self.flops_per_s["bfloat16"] / FLOAT64_PASSES


FLOAT64_PASSES = 28  # pairs i + j <= 6 of seven 8-bit slices: as accurate as dgemm on scaled data
# 90 % of the modelled times are within this factor of held-out measurements (python -m benchmarks nki-model, 2026-11,
# trn1). Every modelled time is printed with this interval.
ERROR_FACTOR = 1.45
EFFICIENCY = 0.77  # of TensorE peak, measured for a 2048^2 float32 kernel on trn1 (seed)

GIB = 1024**3


def interval(seconds: float, factor: float = ERROR_FACTOR) -> tuple[float, float]:
    """The ends of the interval around a modelled time."""
    return seconds / factor, seconds * factor


def between(seconds: float, factor: float = ERROR_FACTOR) -> str:
    """The interval of a modelled time in words: ``0.0031 to 0.0065 s``."""
    low, high = interval(seconds, factor)
    return f"{low:.2g} to {high:.2g} s"


TIMING_GEN2 = Timing(
    tensor_sustained=0.875,  # 2.45 G columns/s (kiln)
    narrow_factor=1.65,  # 1.4 to 1.9 for one row or eight columns (kiln)
    float32_wide_passes=5.4,  # 1150 ns for 512 columns (kiln), 192 to 233 for 128; Fourier transforms (spectral)
    float32_transpose_passes=4.0,  # no transpose mode before trn2 (arch); 208 ns for 128 columns (kiln)
    vector_issue_cycles=30,  # 25 to 50 ns from one instruction to the next (kiln)
    scalar_issue_cycles=22,
    pool_trigger_s=46e-9,  # no hardware generator, so GpSimd issues every DMA (kiln, spectral); 64 cycles: a guess
    one_at_a_time=True,  # (arch); not on trn2
    power_of_two_factor=1.5,  # streams of 3.18 us a tile, steps of 5.2 ms at 64^3 and 20.4 ms at 128^3 (spectral)
    dma_written_bytes=96 * 1024,  # (spectral)
    dma_written_factor=4.0,  # (spectral)
    group_barrier_s=26e-6,  # (kiln)
    group_doubling_s=1.27e-3,  # 2.45, 3.76, 5.10 ms for 8, 16, 32 ranks (kiln)
)
TIMING_GEN3 = Timing(
    descriptor_generation_s=600e-9,  # one DGE-based DMA instruction (arch, trainium2)
    throttle_window_s=3e-6,  # half speed for ~3 us after work begins, or if busy below 50 % over ~3 us (explorer)
)

TRN1 = Hardware(
    name="trn1",
    generation=2,
    cores_per_chip=2,
    sbuf_bytes_per_partition=180_224,
    tensor_hz=2.8e9,
    vector_hz=1.12e9,
    scalar_hz=1.4e9,
    gpsimd_hz=1.4e9,
    flops_per_s=MappingProxyType({"bfloat16": 92e12, "float16": 92e12, "float32": 23e12}),  # arch
    hbm_bytes=16 * GIB,  # 32 GiB a chip, two cores (arch)
    hbm_bytes_per_s=264e9,  # kiln: 261 to 264 sustained, 272 while active
    dma_bytes_per_s=18e9,  # perf: 32 KiB on one engine in 1 810 ns
    dma_descriptor_s=20e-9,
    link_bytes_per_s=7.3e9,  # kiln: 18.45 MB in 2.53 ms
    unlink_bytes_per_s=6.1e9,  # kiln: 18.45 MB in 3.01 ms
    peer_bytes_per_s=26.6e9,  # spectral: 25.7 to 27.5 in an exchange of 32 ranks of another program
    launch_s=0.14e-3,  # kiln: 137-145 us for an empty graph until the answer; 94 us if launches are queued
    timing=TIMING_GEN2,
)

TRN2 = Hardware(
    name="trn2",
    generation=3,
    cores_per_chip=8,
    sbuf_bytes_per_partition=212_984,
    tensor_hz=2.4e9,
    vector_hz=0.96e9,
    scalar_hz=1.2e9,
    gpsimd_hz=1.2e9,
    flops_per_s=MappingProxyType({"bfloat16": 79e12, "float16": 79e12, "float32": 20e12}),  # arch
    hbm_bytes=12 * GIB,  # 96 GiB a chip, eight cores (arch)
    hbm_bytes_per_s=368e9,  # dma: 16 x 23 B/ns
    dma_bytes_per_s=25.2e9,  # fitted to 1 KiB at 259 and 4 KiB at 354 GB/s a core; predicts 2 KiB at 315
    dma_descriptor_s=22.6e-9,
    link_bytes_per_s=7.3e9,  # trn1's: nothing published
    unlink_bytes_per_s=6.1e9,
    peer_bytes_per_s=22.2e9,  # modelled: trn1's fraction (26.6 of 192) of 1.28 TB/s per chip (trainium2)
    launch_s=0.14e-3,  # kiln: 0.13-0.14 ms
    timing=TIMING_GEN3,
)

TRN3 = Hardware(
    name="trn3",
    generation=4,
    cores_per_chip=8,
    sbuf_bytes_per_partition=245_752,
    tensor_hz=2.4e9,
    vector_hz=1.2e9,
    scalar_hz=1.2e9,
    gpsimd_hz=1.2e9,
    flops_per_s=MappingProxyType({"bfloat16": 79e12, "float16": 79e12, "float32": 20e12}),  # arch
    hbm_bytes=18 * GIB,  # 144 GiB a chip, eight cores (arch)
    hbm_bytes_per_s=528e9,  # dma: 16 x 33 B/ns
    dma_bytes_per_s=36e9,  # extrapolated from trn2 by the ratio of sustained rates
    dma_descriptor_s=20e-9,
    link_bytes_per_s=7.3e9,  # trn1's: nothing published
    unlink_bytes_per_s=6.1e9,
    peer_bytes_per_s=44.3e9,  # modelled in the same way from 2.56 TB/s per chip (trainium3)
    launch_s=0.14e-3,
    timing=TIMING_GEN3,  # explorer and arch give the same figures for trn3
)

MACHINES: Mapping[str, Hardware] = MappingProxyType({m.name: m for m in (TRN1, TRN2, TRN3)})

# Fit to compile times of NKI 0.6 on trn1 (docs/launches.md#compile-cost): each is within a factor of 1.4 of the fit.
COMPILE_S = 2.0
COMPILE_S_PER_INSTRUCTION = 0.28e-3  # straight-line code: 9,000 instructions in 4.7 s, 51,600 in 15 s
COMPILE_S_PER_REGION = 10.0  # 41 small loops compiled in 455 to 494 s
COMPILE_S_PER_LOOPED = 0.9e-3  # added for an instruction inside a loop


def compiling_s(instructions: int, regions: int, looped: int) -> float:
    """Seconds to compile ``instructions``, of which ``looped`` are inside ``regions`` device loops."""
    straight_s = COMPILE_S + instructions * COMPILE_S_PER_INSTRUCTION
    return straight_s + regions * COMPILE_S_PER_REGION + looped * COMPILE_S_PER_LOOPED
