"""Recorded calls one by one, and counters of small ones: all that recording takes before calls are added up."""

from __future__ import annotations

import math
import sys
from operator import length_hint
from typing import TYPE_CHECKING, NamedTuple, Protocol

if TYPE_CHECKING:
    from trnpy._report.reasons import Decision

NOTHING_CALLED = "no accelerated function was called by name: nothing to say of a device"
EXACT = 17  # the first small calls of a line, which are all timed; later ones are sampled
BRIEF_S = 50e-6  # small calls that take longer are all timed: reading the clock takes a hundredth of that
STRIDE = 61  # one of so many brief calls of a line is timed; a prime, so that alternating calls are all sampled


class Call(NamedTuple):
    """One call of an accelerated function, with its measured time."""

    decision: Decision
    started: float  # perf_counter seconds
    seconds: float  # measured, wherever it ran
    file: str
    line: int
    thread: int


class Site(Protocol):
    """A line of the program."""

    file: str
    line: int


class SmallCalls:
    """The small calls of one function from one line: all are counted; of brief ones every STRIDE-th is timed.

    Valid under the activation and the policy it was made for, while ``ledger`` is the open ledger's list of these.
    ``count`` is consumed by one at each call, which no other thread can come between. ``library``: the line is not the
    caller's own, but that of the program which called NumPy or SciPy. ``place``: the caller's; two places with one
    counter would each take samples out of the other's turn.
    """

    __slots__ = (
        *("activation", "count", "decision", "every", "least_s", "ledger", "library", "place", "policy", "sampled"),
        *("sampled_s", "site", "timed", "timed_s"),
    )

    def __init__(
        self,
        site: Site,
        decision: Decision,
        activation: object,
        policy: object,
        ledger: object,
        library: bool,
        place: Site | None,
    ) -> None:
        self.site, self.decision, self.activation, self.policy, self.ledger = site, decision, activation, policy, ledger
        self.library, self.place = library, place
        self.count = iter(range(sys.maxsize))
        self.every = 1
        self.least_s = math.inf  # of the first: of a call that another thread interrupted the clock says too much
        self.timed, self.timed_s = 0, 0.0  # while every call was
        self.sampled, self.sampled_s = 0, 0.0  # from then on

    def add(self, seconds: float) -> None:
        """Add the time of one timed call."""
        if self.every > 1:
            self.sampled, self.sampled_s = self.sampled + 1, self.sampled_s + seconds
            return
        self.timed, self.timed_s = self.timed + 1, self.timed_s + seconds
        self.least_s = min(self.least_s, seconds)
        if self.timed == EXACT and self.least_s < BRIEF_S:
            self.every = STRIDE

    @property
    def calls(self) -> int:
        """How many there were."""
        return sys.maxsize - length_hint(self.count)
