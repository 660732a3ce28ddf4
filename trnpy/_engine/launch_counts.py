"""The counts of a dry run, and the seconds that the cost model predicts for them."""

from __future__ import annotations

import numpy as np

from nkisim.hardware import EFFICIENCY, Hardware
from trnpy._base.records import record
from trnpy._engine.time_parts import Parts
from trnpy._settings.host_rates import HostRates
from trnpy._settings.host_steps import BESIDE, INCOMING, OUTGOING, STEPS


@record()
class Tally:
    """The sums of a dry run."""

    launches: tuple[tuple[str, int], ...]  # the number of launches of each kernel
    products: tuple[tuple[str, float], ...]  # real operations by the format that TensorE multiplies
    bytes_in: int
    bytes_out: int
    host: tuple[tuple[tuple[str, int, str], float], ...]  # amounts of host steps by (kind, size, dtype)
    cores: int = 1  # that computed products; bytes and launches are totals, products are those of the busiest core
    hidden: tuple[float, float] = (0.0, 0.0)  # of bytes in and bytes out, while kernels run

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

    def host_s(self, rates: HostRates) -> dict[str, float]:
        """Predicted seconds of the host by kind of step; kinds that start with BESIDE run in another thread."""
        found: dict[str, float] = {}
        for (kind, size, char), amount in self.host:
            name = kind.removeprefix(BESIDE)
            predict = rates.step_s if name in STEPS else rates.seconds
            found[kind] = found.get(kind, 0.0) + predict(name, size, amount, np.dtype(char))
        return found

    def parts(self, hardware: Hardware, rates: HostRates) -> Parts:
        """Modelled seconds of the device path, by component."""
        incoming = outgoing = beside = steps = 0.0
        for kind, seconds in self.host_s(rates).items():
            if kind.startswith(BESIDE):
                beside += seconds
            elif kind in INCOMING:
                incoming += seconds
            elif kind in OUTGOING:
                outgoing += seconds
            else:
                steps += seconds
        launch_s, engine_s = self.launched * hardware.launch_s, self.engine_s(hardware)
        # The engine hides transfers, in sequence, and the work of one host core that follows them.
        sent_s = min(self.hidden[0] / hardware.link_bytes_per_s, engine_s)
        fetched_s = min(self.hidden[1] / hardware.unlink_bytes_per_s, engine_s - sent_s)
        send_s = self.bytes_in / hardware.link_bytes_per_s - sent_s
        fetch_s = self.bytes_out / hardware.unlink_bytes_per_s - fetched_s
        outgoing += max(beside + fetched_s - launch_s - send_s - engine_s, 0.0)
        return Parts(launch_s, send_s, fetch_s, incoming, outgoing, engine_s, steps)

    def seconds(self, hardware: Hardware, rates: HostRates) -> float:
        """Modelled seconds of the device path."""
        return sum(self.parts(hardware, rates))
