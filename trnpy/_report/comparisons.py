"""Host routes beside the reference: a sample of calls made again by the reference, each with its time."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from trnpy._base.records import record
from trnpy._report.small_calls import STRIDE

if TYPE_CHECKING:
    from trnpy._report.reasons import Decision

FIRST = 3  # calls of a function by one route, which are all compared; of later ones one of STRIDE is


@record(frozen=False)
class Comparison:
    """The calls of one function by one route."""

    function: str
    route: str
    calls: int = 0
    compared: int = 0
    route_s: float = 0.0  # measured, of the compared calls
    reference_s: float = 0.0

    @property
    def gain(self) -> float:
        """How many times faster the route was."""
        return self.reference_s / self.route_s if self.route_s > 0 else 1.0


class Comparisons:
    """What a ledger has compared. ``wanted``: whether it compares at all."""

    def __init__(self, wanted: bool) -> None:
        self.wanted = wanted
        self.found: dict[tuple[str, str], Comparison] = {}

    @property
    def seconds(self) -> float:
        """The time that the reference took."""
        return sum(c.reference_s for c in self.found.values())

    def compare(
        self, decision: Decision, seconds: float, reference: Callable[..., Any], args: Any, kwargs: Mapping[str, Any]
    ) -> None:
        """Run the reference beside a call that took ``seconds`` by a route, if it is one of the sample."""
        key = decision.op, decision.route
        comparison = self.found.setdefault(key, Comparison(*key))
        comparison.calls += 1
        if (comparison.calls > FIRST and comparison.calls % STRIDE) or _writes(kwargs):
            return
        started = time.perf_counter()
        reference(*args, **kwargs)
        comparison.reference_s += time.perf_counter() - started
        comparison.route_s += seconds
        comparison.compared += 1

    def absorb(self, other: Comparisons) -> None:
        """Add what ``other`` has compared."""
        for key, theirs in other.found.items():
            ours = self.found.setdefault(key, Comparison(*key))
            for name in ("calls", "compared", "route_s", "reference_s"):
                setattr(ours, name, getattr(ours, name) + getattr(theirs, name))


def _writes(kwargs: Mapping[str, Any]) -> bool:
    """Whether a second call might find other operands than the first: it may write into the caller's arrays."""
    return any(value is not None and value is not False for name, value in kwargs.items() if _overwrites(name))


def _overwrites(name: str) -> bool:
    return name == "out" or name.startswith("overwrite")
