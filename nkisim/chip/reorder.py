"""Reorder mode: queued instructions execute in a random order that respects every dependency."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from nkisim.chip.record import Region

WINDOW = 256  # number of queued instructions; it also bounds the memory for their tiles


@dataclass(slots=True, eq=False)
class Pending:
    """An issued instruction that has not been executed, and its predecessors."""

    execute: Callable[[], None]
    after: list[Pending] = field(default_factory=list)
    done: bool = False


class Scheduler:
    """Executes instructions in a random order. As in the cost model, recorded regions that overlap are dependencies.
    If a result changes with the order, an instruction uses memory outside its operands' regions."""

    def __init__(self, rng: np.random.Generator) -> None:
        self._rng = rng
        self._window: list[Pending] = []
        self._touched: defaultdict[int, list[tuple[Pending, Region, bool]]] = defaultdict(list)
        self._state: dict[str, Pending] = {}
        self._ordered: Pending | None = None

    def add(
        self,
        execute: Callable[[], None],
        reads: Sequence[Region],
        writes: Sequence[Region],
        state: str | None,
        ordered: bool,
    ) -> Pending:
        """Queue an instruction behind the instructions it depends on."""
        pending = Pending(execute)
        for regions, writing in ((reads, False), (writes, True)):
            for region in regions:
                for earlier, other, written in self._touched[region.storage]:
                    if (writing or written) and earlier is not pending and overlap(region, other):
                        pending.after.append(earlier)
        for regions, writing in ((reads, False), (writes, True)):
            for region in regions:
                self._touched[region.storage].append((pending, region, writing))
        if state is not None:
            if state in self._state:
                pending.after.append(self._state[state])
            self._state[state] = pending
        if ordered:
            if self._ordered is not None:
                pending.after.append(self._ordered)
            self._ordered = pending
        self._window.append(pending)
        if len(self._window) >= WINDOW:
            self.flush()
        return pending

    def flush(self) -> None:
        """Execute all queued instructions."""
        window, self._window = self._window, []
        self._touched.clear()
        self._state.clear()
        self._ordered = None
        while window:
            ready = [p for p in window if all(earlier.done for earlier in p.after)]
            chosen = ready[int(self._rng.integers(len(ready)))]
            chosen.execute()
            chosen.done = True
            window.remove(chosen)


def overlap(a: Region, b: Region) -> bool:
    """Whether the hulls of two regions of one storage share a byte."""
    return (
        a.start < b.stop
        and b.start < a.stop
        and a.partitions[0] < b.partitions[1]
        and b.partitions[0] < a.partitions[1]
    )
