"""One frozen row per NeuronCore generation: sizes, clocks, rates, link and launch, each with its source.

Sources, all public AWS documentation unless said: ``arch`` = nki/guides/architecture/*_arch.rst of
aws-neuron-sdk (Neuron 2.32); ``dma`` = nki/deep-dives/nki-dma-bandwidth-guide.rst; ``perf`` =
nki/deep-dives/nki_perf_guide.rst; ``overview`` = nki/get-started/about/nki-dma-overview.rst; ``explorer`` =
tools/neuron-explorer/overview-summary-page.rst; ``skills`` = neuron-agentic-development's profiling
examples; ``seed`` = published torch-XLA measurements of trntensor on trn1; ``kiln`` and ``spectral`` = published
measurements on trn1 with NKI 0.6, see docs/hardware.md#status-and-sources.
No Trainium has run trnpy: every time computed from these rows is a *model*.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

PARTITIONS = 128  # rows of SBUF, PSUM and the systolic array, all generations (arch)
PSUM_BANKS = 8  # per partition, all generations (arch)
PSUM_BANK_BYTES = 2048  # 512 float32 per partition (arch)


@dataclass(frozen=True, slots=True)
class Timing:
    """Fixed costs inside one NeuronCore, for the cost model of trnpy/_nki/simulator/cost.py.

    Cycles are those of the engine named; throttle fields are 0 where nothing is documented.
    """

    matmul_overhead_cycles: int = 9  # 521 cycles for 512 columns on trn2 (skills: matmul profile)
    matmul_latency_cycles: int = 256  # a wavefront crosses 128 rows, then 128 columns
    load_stationary_cycles: int = 32  # 128 rows, four a cycle (perf)
    access_cycles: int = 60  # static SBUF/PSUM access of any compute engine (arch)
    vector_latency_cycles: int = 40  # with access_cycles the 100 a dependent instruction pays (arch)
    scalar_latency_cycles: int = 204  # the same on ScalarEngine: dependent activations start 264 apart (perf)
    accumulator_cycles: int = 64  # reading ScalarEngine's reduction register (arch)
    gpsimd_start_cycles: int = 150  # the GpSimd formulas of the 2.26 isa documentation
    table_load_s: float = 1.3e-6  # switching activation tables (overview)
    semaphore_s: float = 80e-9  # one engine waiting for another: 60-100 ns, from profiles of the 2.26 era
    dma_start_s: float = 0.74e-6  # trigger to first descriptor (overview)
    dma_wait_s: float = 0.56e-6  # more when a compute engine is waited for: 1.3 us semaphore to start (dma)
    dma_floor_s: float = 0.8e-6  # first descriptor to consumer: 4 KiB to 128 KiB all take this (overview, figure 1)
    dma_stagger_s: float = 15.5e-9  # from one queue of a transfer to the next: 16 start in 233 ns (overview, figure 3)
    descriptor_generation_s: float = 0.0  # DGE time of one DMA instruction
    software_dge_s: float = 1e-6  # GpSimd time of one indirect DMA; undocumented, a guess
    software_descriptor_s: float = 10e-9  # and of each of its descriptors; undocumented, a guess
    throttle_window_s: float = 0.0  # TensorEngine runs throttled while busy less than the fraction over this window
    throttle_utilisation: float = 0.5
    throttle_factor: float = 2.0
    float32_transpose_passes: int = 2  # (arch)
    hop_s: float = 1.5e-6  # one ring step of a collective: 1-2 us
    kernel_floor_s: float = 13e-6  # on the device before and after the first and last instruction: 13-15 us


@dataclass(frozen=True, slots=True, eq=False)  # told apart by identity: decisions are cached by it
class Hardware:
    """What one NeuronCore can do, and what it costs to reach it from the host."""

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
    hbm_bytes_per_s: float  # per core, what 16 DMA engines sustain
    dma_bytes_per_s: float  # one of the 16 DMA engines
    dma_descriptor_s: float  # fixed cost of one descriptor
    link_bytes_per_s: float  # host to device
    unlink_bytes_per_s: float  # device to host
    launch_s: float  # host call of one kernel until the device has answered
    timing: Timing = Timing()

    @property
    def float64_flops_per_s(self) -> float:
        """Products of float64 accuracy: 28 bf16 passes each (Ozaki scheme I, 8-bit digits, 7 slices)."""
        return self.flops_per_s["bfloat16"] / FLOAT64_PASSES


FLOAT64_PASSES = 28  # pairs i + j <= 6 of seven 8-bit digits: as accurate as dgemm on scaled data
EFFICIENCY = 0.77  # of TensorE peak, measured for a 2048^2 float32 kernel on trn1 (seed)

GIB = 1024**3

TIMING_GEN3 = Timing(
    descriptor_generation_s=600e-9,  # one DGE-based DMA instruction (arch, trainium2)
    throttle_window_s=3e-6,  # half speed for ~3 us after work begins or below 50 % over ~3 us (explorer)
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
    hbm_bytes_per_s=272e9,  # dma: 16 x 17 B/ns
    dma_bytes_per_s=18e9,  # perf: 32 KiB on one engine in 1 810 ns
    dma_descriptor_s=20e-9,
    link_bytes_per_s=7.3e9,  # kiln: 18.45 MB in 2.53 ms
    unlink_bytes_per_s=6.1e9,  # kiln: 18.45 MB in 3.01 ms
    launch_s=0.14e-3,  # kiln: 137-145 us for an empty graph, answered; 94 us where launches are queued
    timing=Timing(float32_transpose_passes=4),  # no transpose mode before trn2 (arch)
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
    link_bytes_per_s=7.3e9,  # as trn1: nothing published
    unlink_bytes_per_s=6.1e9,
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
    link_bytes_per_s=7.3e9,  # as trn1: nothing published
    unlink_bytes_per_s=6.1e9,
    launch_s=0.14e-3,
    timing=TIMING_GEN3,  # explorer and arch say the same of trn3
)

MACHINES: Mapping[str, Hardware] = MappingProxyType({m.name: m for m in (TRN1, TRN2, TRN3)})
