"""Recorded calls one by one, and counters of small ones: all that recording takes before calls are added up."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator
from itertools import cycle, repeat
from operator import length_hint
from typing import TYPE_CHECKING, NamedTuple, Protocol

if TYPE_CHECKING:
    from trnpy._call.reasons import Decision

NOTHING_CALLED = "no accelerated function was called by name: nothing to say of a device"
HOT = 4000  # calls of a line, from which on the small calls of its function are counted by samples
EXACT = 17  # the first small calls of a line, which are all timed; later ones are sampled
BRIEF_S = 50e-6  # small calls that take longer are all timed: reading the clock takes a hundredth of that
STRIDE = 61  # one of so many brief calls is timed; a prime, so that alternating calls are all sampled


def _lengths() -> Iterator[int]:
    """Numbers from 0 to 2 (STRIDE - 1) in an order that no loop of a program has; their mean is STRIDE - 1."""
    x = 1
    for _ in range(4093):
        x = x * 1103515245 + 12345 & 0x7FFFFFFF  # the generator of the C standard's example
        yield (x >> 16) % (2 * STRIDE - 1)


LENGTHS = cycle(tuple(_lengths()))  # one after another, also for several threads


def unlisted() -> Iterator[bool]:
    """True for each of some calls that count for no line."""
    return repeat(True, next(LENGTHS))


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

    From HOT calls on the function's calls are sampled: of STRIDE calls one is looked at, on average. It is counted for
    its line and timed, and those up to the next one count for its line, too. Their number is random, so that each line
    gets its share, whatever the order of lines.

    Valid under the activation and the policy it was made for, while ``ledger`` is the open ledger's list of these.
    ``count`` is consumed by one at each call, which no other thread can come between. ``library``: the line is not the
    caller's own, but that of the program which called NumPy or SciPy.
    """

    __slots__ = (
        *("activation", "count", "decision", "every", "least_s", "ledger", "library", "policy", "sampled"),
        *("sampled_s", "site", "timed", "timed_s", "_length", "_over", "_passed"),
    )

    def __init__(
        self, site: Site, decision: Decision, activation: object, policy: object, ledger: object, library: bool
    ) -> None:
        self.site, self.decision, self.activation, self.policy, self.ledger = site, decision, activation, policy, ledger
        self.library = library
        self.count = iter(range(sys.maxsize))
        self.every = 1
        self.least_s = math.inf  # of the first: of a call that another thread interrupted the clock says too much
        self.timed, self.timed_s = 0, 0.0  # while every call was
        self.sampled, self.sampled_s = 0, 0.0  # from then on
        self._passed = 0  # calls that were not looked at, before those that ``_over`` counts
        self._length, self._over = 0, repeat(True, 0)

    def add(self, seconds: float) -> None:
        """Add the time of one timed call."""
        if self.every > 1:
            self.sampled, self.sampled_s = self.sampled + 1, self.sampled_s + seconds
            return
        self.timed, self.timed_s = self.timed + 1, self.timed_s + seconds
        self.least_s = min(self.least_s, seconds)
        if self.timed == EXACT and self.least_s < BRIEF_S:
            self.every = STRIDE

    def pass_over(self) -> Iterator[bool]:
        """True for each of the calls up to the next one that is looked at."""
        self._passed, self._length = self.passed, next(LENGTHS)
        self._over = repeat(True, self._length)
        return self._over

    @property
    def passed(self) -> int:
        """How many calls were not looked at."""
        return self._passed + self._length - length_hint(self._over)

    @property
    def calls(self) -> int:
        """How many calls there were."""
        return sys.maxsize - length_hint(self.count) + self.passed
