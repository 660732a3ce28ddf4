"""One frozen row per EC2 instance with Trainium: chips, vCPUs, memory, network and price, each dated.

Sizes: AWS's instance tables as Karpenter generates them, 2026-07-20, unless a comment says otherwise. Prices: Linux,
us-east-1. A price that is not public is None: no price is estimated.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple

from nkisim.hardware import GIB, MACHINES, Hardware


class Rent(NamedTuple):
    """Dollars an hour of one instance: kind of price, date and source."""

    usd_per_h: float
    kind: str
    dated: str
    source: str


class Instance(NamedTuple):
    """One size of instance."""

    name: str
    generation: str  # of its chips: a name in MACHINES
    chips: int
    vcpus: int | None  # None: not published
    memory_gib: int | None
    network_gbit_per_s: float | None
    rent: Rent | None

    @property
    def hardware(self) -> Hardware:
        return MACHINES[self.generation]

    @property
    def cores(self) -> int:
        """Physical NeuronCores."""
        return self.chips * self.hardware.cores_per_chip

    @property
    def hbm_gib(self) -> int:
        return self.cores * self.hardware.hbm_bytes // GIB

    @property
    def host_cores(self) -> int | None:
        """Cores of its processors: an Intel or AMD vCPU is half of one."""
        return None if self.vcpus is None else self.vcpus // 2

    def __str__(self) -> str:
        def known(value: float | None, unit: str) -> str:
            return f"{unit} not published" if value is None else f"{value:,g} {unit}"

        rent, chips = self.rent, f"{self.chips} chip{'s' * (self.chips > 1)}"
        price = "price not public" if rent is None else f"${rent.usd_per_h:,.2f} an hour ({rent.kind}, {rent.dated})"
        return (
            f"{self.name}: {chips} with {self.cores} physical NeuronCores (LNC 1) and {self.hbm_gib:,} GiB, "
            f"{known(self.vcpus, 'vCPUs')}, {known(self.memory_gib, 'GiB of host memory')}, "
            f"{known(self.network_gbit_per_s, 'Gbit/s of network')}; {price}"
        )


TABLE = "AWS's price list as in Karpenter's table"
PAGE = "AWS's page of Capacity Blocks, as read by a third party"
_ROWS = (
    Instance("trn1.2xlarge", "trn1", 1, 8, 32, 3.1, Rent(1.34375, "on demand", "2026-07-20", TABLE)),
    Instance("trn1.32xlarge", "trn1", 16, 128, 512, 800, Rent(21.50, "on demand", "2026-07-20", TABLE)),
    Instance("trn1n.32xlarge", "trn1", 16, 128, 512, 1600, Rent(24.78, "on demand", "2026-07-20", TABLE)),
    # Users report 124 GiB; the network is not known.
    Instance("trn2.3xlarge", "trn2", 1, 12, 124, None, Rent(2.235, "Capacity Block", "2026-05-21", PAGE)),
    Instance("trn2.48xlarge", "trn2", 16, 192, 2048, 3200, Rent(35.7608, "Capacity Block", "2026-10-09", PAGE)),
    Instance("trn2u.48xlarge", "trn2", 16, 192, 2048, 3200, None),
    Instance("trn3pd98.3xlarge", "trn3", 1, None, None, None, None),  # named by users, not by AWS's tables
)
INSTANCES: Mapping[str, Instance] = MappingProxyType({row.name: row for row in _ROWS})


def hardware_of(machine: str) -> Hardware:
    """The NeuronCore of a generation or of an instance, by name."""
    return INSTANCES[machine].hardware if machine in INSTANCES else MACHINES[machine]
