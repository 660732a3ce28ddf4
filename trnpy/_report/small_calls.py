"""The records of single calls, and the counters of small ones: the data before calls are summed."""

from __future__ import annotations

import math
import sys
from operator import length_hint
from typing import TYPE_CHECKING, NamedTuple, Protocol

import numpy as np

if TYPE_CHECKING:
    from trnpy._report.reasons import Decision

NOTHING_CALLED = "no accelerated function was called by name, so there is no device prediction"
EXACT = 17  # this many small calls of a line are all timed; later ones are sampled
BRIEF_S = 50e-6  # small calls that take longer are all timed: reading the clock takes a hundredth of that
STRIDE = 251  # every STRIDE-th brief call of a line is timed; a prime, so that alternating calls are all sampled
LIBRARY_STRIDE = 7  # likewise for other small calls of libraries, each of which would take 5 us to find the line


class Call(NamedTuple):
    """One call of an accelerated function, with its measured time."""

    decision: Decision
    started: float  # perf_counter seconds
    seconds: float  # measured, wherever it ran
    file: str
    line: int
    thread: int


class Site(Protocol):
    """A line of the program, and the library's line through which it made its calls, as ``file:line``."""

    file: str
    line: int
    through: str


class SmallCalls:
    """The small calls of one function from one line: all are counted; every STRIDE-th of the brief ones is timed.

    A counter is valid under the activation and the policy it was made for, while ``ledger`` is the open ledger's list
    of counters. Each call advances ``count``, which is atomic, or the compiled gate adds it to ``passed``. ``library``:
    the line is not the caller's, but the program's line that called NumPy or SciPy. ``place`` is the caller's place:
    two places with one counter would disturb each other's sampling.
    """

    __slots__ = (
        *("activation", "count", "decision", "every", "least_s", "ledger", "library", "passed", "place", "policy"),
        *("sampled", "sampled_s", "site", "timed", "timed_s"),
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
        self.count, self.passed = iter(range(sys.maxsize)), np.zeros(1, np.int64)
        self.every = 1
        self.least_s = math.inf  # of the first calls: another thread may interrupt a call and lengthen its time
        self.timed, self.timed_s = 0, 0.0  # calls while every one was timed
        self.sampled, self.sampled_s = 0, 0.0  # calls timed since then

    def add(self, seconds: float) -> None:
        """Add the time of one timed call."""
        if self.every > 1:
            self.sampled, self.sampled_s = self.sampled + 1, self.sampled_s + seconds
            return
        self.timed, self.timed_s = self.timed + 1, self.timed_s + seconds
        self.least_s = min(self.least_s, seconds)
        if self.timed == EXACT:
            self.every = STRIDE if self.least_s < BRIEF_S else LIBRARY_STRIDE if self.library else 1

    @property
    def calls(self) -> int:
        """The number of calls."""
        return sys.maxsize - length_hint(self.count) + int(self.passed[0])
