"""The lint rules: the subject of each, its source, the passes that decide it, and the front ends that enforce it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal

from nkisim.chip.dialects import DIALECTS, PARSER, Dialect, shown

Severity = Literal["E", "W"]
Pass = Literal["source", "trace", "run", "environment"]

# Documents of the public repository aws-neuron/aws-neuron-sdk (Neuron 2.32, NKI 0.6).
GUIDE = "nki/get-started/nki-language-guide.rst"
MIGRATION = "nki/migration/index.rst"
LOOPS = "nki/deep-dives/nki-dynamic-loops.rst"
VIEWS = "nki/deep-dives/nki-aps.rst"
DGE = "nki/deep-dives/nki-dge.rst"
DMA = "nki/get-started/about/nki-dma-overview.rst"
PERF = "nki/deep-dives/nki_perf_guide.rst"
ARCH = "nki/guides/architecture/trainium_inferentia2_arch.rst"
SIMULATOR = "nki/guides/nki_simulator.rst"
LNC = "nki/get-started/about/lnc.rst"
DTYPES = "nki/api/nki.api.shared.rst"
ISA = "nki/api/nki/isa/__init__.py"
LANGUAGE = "nki/api/nki/language/__init__.py"
NOTES = "release-notes/components/nki.rst"
FLAGS = "compiler/neuronx-cc/faq.rst"
# The open source of the parsing front end.
PARSING = "leanprover/KLR: KLR/NKI/Simplify.lean"
# Notes of users who ran kernels on trn1 and trn2 with NKI 0.6.
KILN = "foxl-ai/kiln: docs/neuron-notes.md"
DNS = "aws-samples/sample-spectral-dns-on-aws-neuron: docs/neuron-rules.md"


@dataclass(frozen=True, slots=True)
class Rule:
    """One documented way in which a kernel passes a permissive simulator and fails on the device."""

    number: int
    subject: str
    source: str  # path in aws-neuron-sdk
    passes: tuple[Pass, ...]  # the passes that decide it; "run": the simulator refuses during execution
    dialects: tuple[Dialect, ...] = DIALECTS  # front ends that enforce it; some findings hold for fewer


@dataclass(frozen=True, slots=True, order=True)
class Finding:
    """One violation: its place, its severity, one sentence, and the source of the rule."""

    file: str
    line: int
    rule: int
    severity: Severity
    message: str
    dialects: tuple[Dialect, ...] = DIALECTS

    @property
    def source(self) -> str:
        return RULES[self.rule].source if self.rule in RULES else SIMULATOR

    def __str__(self) -> str:
        code = f"{self.severity}{self.rule:02d}"
        return f"{self.file}:{self.line}: {code} {shown(self.dialects)}{self.message} [{self.source}]"


def _rule(number: int, subject: str, source: str, *passes: Pass, nki: tuple[Dialect, ...] = DIALECTS) -> Rule:
    return Rule(number, subject, source, passes, nki)


RULES: Mapping[int, Rule] = MappingProxyType(
    {
        r.number: r
        for r in (
            _rule(1, "Python that the parser does not support", PARSING, "source", nki=(PARSER,)),
            _rule(2, "signature or operator the compiler rejects", MIGRATION, "source"),
            _rule(3, "host library inside a kernel", MIGRATION, "source", "run"),
            _rule(4, "kernel that is not a pure function of its arguments", GUIDE, "source"),
            _rule(5, "compiled kernel called from a kernel", MIGRATION, "source", "run"),
            _rule(6, "loop form, or a register where only compile-time values go", LOOPS, "source", "run"),
            _rule(7, "contents of a device loop", LANGUAGE, "source", "run"),
            _rule(8, "value outside int32 and float32", GUIDE, "source", nki=(PARSER,)),
            _rule(9, "unrolled size and recompilation", LOOPS, "source", "trace"),
            _rule(10, "name removed or deprecated", NOTES, "source", "run"),
            _rule(11, "on-chip memory beyond the target", ARCH, "trace", "run"),
            _rule(12, "partition and access-pattern limits", ARCH, "run"),
            _rule(13, "two SBUF operands on different partitions", ARCH, "run"),
            _rule(14, "raw access pattern", VIEWS, "source", "run"),
            _rule(15, "outputs of a kernel", LANGUAGE, "source", "run"),
            _rule(16, "read of uninitialised on-chip memory", SIMULATOR, "run"),
            _rule(17, "operands of one instruction that overlap", ISA, "trace"),
            _rule(18, "operands of a DMA", ISA, "run"),
            _rule(19, "gather and scatter by index", ISA, "run"),
            _rule(20, "scatter whose indices repeat", ISA, "run"),
            _rule(21, "DMA transpose", ISA, "run"),
            _rule(22, "DMA that moves little per descriptor", DMA, "trace"),
            _rule(23, "matrix product operands", ISA, "run"),
            _rule(24, "accumulation in PSUM", ISA, "trace", "run"),
            _rule(25, "transpose on an engine", ISA, "run"),
            _rule(26, "one-zero hint on other data", ISA, "run"),
            _rule(27, "buffers of an elementwise instruction", ISA, "run"),
            _rule(28, "broadcast, operand tiles and operator classes", ISA, "run"),
            _rule(29, "reductions", ISA, "run"),
            _rule(30, "instruction absent on the target", ISA, "run"),
            _rule(31, "memset value", MIGRATION, "run"),
            _rule(32, "integers through float32 engines", DTYPES, "run"),
            _rule(33, "activation outside its domain", DTYPES, "run"),
            _rule(34, "nki.language function without hardware behind it", LANGUAGE, "source", "run"),
            _rule(35, "activation tables switched in a loop", PERF, "trace"),
            _rule(36, "selection, predication and top-8 instructions", ISA, "run"),
            _rule(37, "two cores and the launch grid", LNC, "source", "trace", "run", "environment"),
            _rule(38, "target left to its default", SIMULATOR, "source"),
            _rule(39, "framework route around the kernel", FLAGS, "source", "environment"),
            _rule(40, "PSUM of a device loop made outside it", f"{KILN} (NCC_IBIR092)", "run"),
            _rule(41, "on-chip operand at a run-time offset", f"{KILN} (NCC_IBIR829, NCC_IBIR040)", "run"),
            _rule(42, "two sums of products in one PSUM tensor", f"{KILN} (probe_psum_interleave)", "run"),
            _rule(43, "accumulate=None on PSUM that was read", KILN, "run"),
            _rule(44, "DMA that a device loop cannot hold", f"{KILN} (NCC_IGCA103, NCC_ISQI001)", "run"),
            _rule(45, "HBM tensor beyond 2 GiB", f"{DNS} (rule 10)", "run"),
            _rule(46, "device loop inside a device loop", "aws-neuron/aws-neuron-sdk#1346 (NCC_ICFG018)", "run"),
            _rule(47, "trip count beyond 32 bits", "nki/api/nki/language/__init__.py (fori_loop, 2.33)", "run"),
            _rule(48, "more activation functions than a core holds", f"{KILN} (NCC_INLA001)", "run"),
            _rule(49, "SBUF placed by hand beside SBUF that is not", f"{KILN} (NCC_EGCA111)", "run"),
            _rule(50, "instruction that trn1 has no encoding for", f"{KILN} (NCC_IXCG863, NCC_INLA001)", "run"),
            _rule(51, "collective on inputs or outputs of the kernel", f"{KILN} (NCC_IBIR428)", "run"),
            _rule(52, "HBM tensor that nothing is stored to", f"{KILN} (NCC_IGCA090)", "run"),
            _rule(53, "scatter of two cores that hangs, races or writes too much", KILN, "run"),
            _rule(54, "device loops that differ between cores", "aws-neuron/aws-neuron-sdk#1388 (NCC_IXGM002)", "run"),
            _rule(55, "gather beyond the row that an index names", KILN, "run"),
            _rule(56, "float8_e4m3fn before trn3", f"{KILN} (NCC_EVRF051)", "run"),
            _rule(57, "device loop that the compiler may unroll: its bounds are constant", KILN, "run"),
            _rule(58, "buffer that two collectives use", f"{DNS} (rule 2)", "run"),
        )
    }
)

DECIDED_ELSEWHERE: Mapping[int, str] = MappingProxyType(
    {
        16: "only execution knows which bytes were written: the simulator's shadow mask refuses the read",
        26: "a hint is checked against the values of a simulated run; other inputs remain unchecked",
        32: "only the magnitudes of a simulated run are checked; a larger input may occur elsewhere",
        33: "domains are checked on the values of the simulated run; the error of the approximation is not modelled",
        37: "NEURON_LOGICAL_NC_CONFIG is set on the instance; there `lint --environment` compares it with the grid",
        39: "calls through a framework are found only in the file itself (flags, NumPy arrays in a loop); "
        "on the instance `lint --environment` checks NEURON_CC_FLAGS for --auto-cast=none",
    }
)
"""For each rule that no static pass can decide: the missing knowledge, and the pass that decides instead."""
