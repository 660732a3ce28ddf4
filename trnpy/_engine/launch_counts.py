"""The counts of a dry run, and the seconds that the cost model predicts for them."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

import numpy as np

from nkisim.hardware import EFFICIENCY, Hardware
from trnpy._base.records import record
from trnpy._engine.precision import COMBINE_S, FINGERPRINT_BYTES_PER_S, MAGNITUDES_S, SPLIT_S
from trnpy._engine.time_parts import Parts
from trnpy._settings.host_rates import HostRates

# Host seconds: per element of one real part; per element of the three matrices of a checksum test (1.2 to 1.3 ns at
# n = 1024 and 2048, from memory; for integers 2.8 to 3.1); per byte of a fingerprint (docs/digits.md#digits); per
# float32 random number, normal (8.5 ns) or uniform (1.4 ns); and per stored element of a sparse matrix that is sorted
# into tiles (180 to 310 ns) or groups (30 to 50 ns; NumPy 2.4.6, one core of an EPYC with AVX-512).
CONVERSION_S: Mapping[str, float] = MappingProxyType(
    {
        "split": SPLIT_S - MAGNITUDES_S, "magnitudes": MAGNITUDES_S, "combine": COMBINE_S,
        "proof": 1.2e-9, "proof beside": 1.2e-9, "integer proof": 3e-9,
        "fingerprint": 1 / FINGERPRINT_BYTES_PER_S, "random": 8.5e-9, "uniform": 1.4e-9,
        "sorted": 0.25e-6, "grouped": 0.04e-6,
    }
)  # fmt: skip


BESIDE = "proof beside"  # checksums of operands, computed while they are sent and while the device computes
INCOMING = ("split", "magnitudes")  # conversions of operands, which a device-resident operand does not need


@record()
class Tally:
    """The sums of a dry run."""

    launches: tuple[tuple[str, int], ...]  # the number of launches of each kernel
    products: tuple[tuple[str, float], ...]  # real operations by the format that TensorE multiplies
    bytes_in: int
    bytes_out: int
    host: tuple[tuple[tuple[str, int, str], float], ...]  # operations by (kind, size, dtype); elements of conversions
    host_bytes: float  # bytes that the host reads and writes between products
    cores: int = 1  # that computed products; bytes and launches are totals, products are those of the busiest core
    hidden: tuple[float, float, float] = (0.0, 0.0, 0.0)  # of bytes in, bytes out and host_bytes, while kernels run

    @property
    def launched(self) -> int:
        return sum(count for _, count in self.launches)

    def moved_s(self, hardware: Hardware) -> float:
        """Modelled seconds of host-device transfers."""
        return self.bytes_in / hardware.link_bytes_per_s + self.bytes_out / hardware.unlink_bytes_per_s

    def engine_s(self, hardware: Hardware) -> float:
        """Modelled seconds of the products, or of moving their operands in HBM if that takes longer."""
        products = sum(flops / (hardware.flops_per_s[form] * EFFICIENCY) for form, flops in self.products)
        return max(products, (self.bytes_in + self.bytes_out) / hardware.hbm_bytes_per_s)

    def parts(self, hardware: Hardware, rates: HostRates) -> Parts:
        """Modelled seconds of the device path, by component."""
        incoming = outgoing = beside = 0.0
        steps = self.host_bytes / rates.copy_bytes_per_s
        for (kind, size, char), amount in self.host:
            if kind in INCOMING:
                incoming += CONVERSION_S[kind] * amount
            elif kind == BESIDE:
                beside += CONVERSION_S[kind] * amount
            elif kind in CONVERSION_S:
                outgoing += CONVERSION_S[kind] * amount
            else:
                steps += rates.seconds(kind, size, amount, np.dtype(char))
        launch_s, engine_s = self.launched * hardware.launch_s, self.engine_s(hardware)
        # The engine hides transfers, in sequence, and the work of one host core that follows them.
        sent_s = min(self.hidden[0] / hardware.link_bytes_per_s, engine_s)
        fetched_s = min(self.hidden[1] / hardware.unlink_bytes_per_s, engine_s - sent_s)
        send_s = self.bytes_in / hardware.link_bytes_per_s - sent_s
        fetch_s = self.bytes_out / hardware.unlink_bytes_per_s - fetched_s
        copied_s = self.hidden[2] / rates.copy_bytes_per_s
        outgoing += max(beside + copied_s + fetched_s - launch_s - send_s - engine_s, 0.0)
        return Parts(launch_s, send_s, fetch_s, incoming, outgoing, engine_s, steps - copied_s)

    def seconds(self, hardware: Hardware, rates: HostRates) -> float:
        """Modelled seconds of the device path."""
        return sum(self.parts(hardware, rates))
