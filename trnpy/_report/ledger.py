"""The record of accelerated calls: what ran where, why, and for how long.

Three kinds of seconds are never mixed: *measured* (with the clock, wherever the call ran), *predicted* (for the host,
from its rates) and *modelled* (for a device, from published figures).
"""

from __future__ import annotations

import contextlib
import heapq
import math
import os
import sys
import time
from collections import deque
from collections.abc import Iterator
from threading import get_ident
from types import FrameType
from typing import IO, TYPE_CHECKING, Any

from trnpy._base.locks import Lock
from trnpy._base.processors import Processor, waited_s
from trnpy._nki.instances import INSTANCES, Instance, hardware_of
from trnpy._report.comparisons import Comparisons
from trnpy._report.files import write
from trnpy._report.program_lines import DIRECT
from trnpy._report.sampler import UNPATCHED, Samples, Unrouted, watch
from trnpy._report.sites import SITES as SITES
from trnpy._report.sites import UNKNOWN, Site, Sites
from trnpy._report.small_calls import Call, SmallCalls
from trnpy._report.tally import KEY, Tally, detail, merged, of_small, ran_on, reason
from trnpy._settings.policy import Attention, current_policy

if TYPE_CHECKING:
    from trnpy._engine.health import Health
    from trnpy._report.reasons import Decision
    from trnpy._report.run_record import Rank
    from trnpy._report.what_if import WhatIf

LIBRARIES = DIRECT  # the caller of a function is the first frame outside these packages
FOLD = 256  # calls are summed in batches of this size
EVENTS = 1000  # number of longest calls that are kept individually for the timeline: under 1 MB
# If all threads of the process together wait more than this many seconds per second for processors, other work is
# assumed: 0.01 to 0.03 on an idle machine, 0.8 with one thread and 1.6 with two if each processor runs a busy process.
CROWDED = 0.1
LOOK_S = 0.5  # seconds between two readings of the waiting times, each of which reads a file per thread: 20 us
OVERLAPS = 256  # number of finished calls that are remembered, to find the part of an enclosing call that they cover


class Ledger:
    """All accelerated calls between opening and closing, in bounded memory. Any thread may add calls or read them.

    ``profile()`` opens one. ``print_report(ledger)``, ``ledger.to_json(path)`` and ``ledger.to_html(path)`` also work
    while it is open. Times are ``perf_counter`` seconds. ``title`` names the run in the report.
    """

    __slots__ = (
        *("title", "opened", "closed", "began", "_pending", "_lock", "_sites", "site", "_tallies"),
        *("_waits", "_longest", "_shortest_kept_s", "_kept", "covered_s", "covered_cpu_s", "_recent", "_forgotten"),
        *("_until", "_cpu"),
        *("small", "samples", "comparisons", "engines", "instance", "ranks", "operands"),
    )

    def __init__(self, title: str = "", opened: float | None = None, measure_routes: bool = False) -> None:
        self.title = title
        self.instance: Instance | None = None  # the run is also compared with this instance
        self.ranks: list[Rank] = []  # if the run has several ranks; this ledger belongs to the first
        self.opened = time.perf_counter() if opened is None else opened
        self.closed: float | None = None
        self.began = time.time()  # seconds since 1970, for display
        self._pending: deque[tuple[Decision, float, float, Site, int, float, float]] = deque()
        # The time of the last reading by ``_crowded``, the waiting time of threads until then, and the result.
        self._waits: tuple[float, float, bool | None] = self.opened, waited_s(), None
        self._cpu = Processor()
        self._lock = Lock()  # a signal handler may call in the middle of _fold
        self._sites = Sites()
        self.site = self._sites.of  # the program's line that a frame belongs to
        self._tallies: dict[tuple[str | int, ...], Tally] = {}
        self._longest: list[tuple[float, int, Call]] = []  # a heap of at most EVENTS calls
        self._shortest_kept_s = -math.inf
        self._kept = 0
        self.covered_s = self.covered_cpu_s = 0.0
        self._recent: deque[tuple[float, float]] = deque()  # disjoint (start, end), ascending
        self._forgotten = -math.inf  # the end of the last interval that was dropped from _recent
        self._until = -math.inf  # the end of the last interval in _recent
        self.small: dict[tuple[int, ...], SmallCalls] = {}  # one for each line, decision, activation and policy
        self.samples = Samples()  # of work that patches do not reach
        self.comparisons = Comparisons(measure_routes)
        self.engines: dict[str, Health] = {}  # engines that calls requested, by name
        self.operands: Any = None  # a Cache that counts uses of operands if there is no engine

    def add(
        self, decision: Decision, started: float, seconds: float, frame: FrameType | None, ran_s: float = math.inf,
        cpu_s: float | None = None,
    ) -> None:  # fmt: skip
        """Record one call, for the program's line that made it.

        ran_s: the part of ``seconds`` in which the calling thread had a processor. cpu_s: the processor time of all
        threads of the process meanwhile; None if it was not measured.
        """
        cpu_s = seconds if cpu_s is None else cpu_s
        self._pending.append((decision, started, seconds, self.site(frame), get_ident(), ran_s, cpu_s))
        if len(self._pending) >= FOLD:
            self._fold()

    def small_calls(
        self, decision: Decision, frame: FrameType, activation: object, policy: object
    ) -> SmallCalls | None:
        """The counter for small calls of one function from ``frame``; None if there are SITES counters already.

        A library's calls are recorded for the program's line that called the library. This line can change from call to
        call, so there is one counter for each such line and each instruction of the library.
        """
        with self._lock:
            site = self.site(frame)
            place = self._sites.known.get((id(frame.f_code), frame.f_lasti))  # None if there are SITES already
            library = bool(site.through) or site.code is not frame.f_code
            key = (id(site), id(place), id(decision), id(activation), id(policy)) if library else (len(self.small),)
            if key not in self.small:
                if len(self.small) >= SITES:
                    return None
                self.small[key] = SmallCalls(site, decision, activation, policy, self.small, library, place)
            return self.small[key]

    def timed(self, small: SmallCalls, started: float, seconds: float) -> None:
        """Add the time of a small call."""
        with self._lock:
            small.add(seconds)
            if seconds > self._shortest_kept_s:
                self._keep(Call(small.decision, started, seconds, small.site.file, small.site.line, get_ident()))

    def small_tallies(self) -> list[Tally]:
        tallies = [of_small(small, self._cpu.share) for small in list(self.small.values())]
        return [t for t in tallies if t.calls]

    def _fold(self) -> None:
        """Add pending calls to the tallies, in batches, because a lock for each call would cost more."""
        with self._lock:
            crowded = bool(self._pending) and self._crowded()
            batch = list(self._pending)  # keeps decisions alive, so that their ids are different
            fastest: dict[int, float] = {}  # seconds; the key is the id of the decision
            for decision, _, seconds, _, _, ran_s, _ in batch:
                fastest[id(decision)] = min(fastest.get(id(decision), math.inf), seconds, ran_s)
            while True:
                try:
                    decision, started, seconds, site, thread, ran_s, cpu_s = self._pending.popleft()
                except IndexError:
                    break
                tally = site.tally if site.decision is decision else self._tally(decision, site)
                tally.calls += 1
                tally.timed += 1
                tally.seconds += seconds
                tally.cpu_s += cpu_s
                if seconds > tally.longest_s:
                    tally.longest_s, tally.detail = seconds, detail(decision)
                if decision.model_reason == "no_device":
                    tally.unmodelled += 1
                    tally.unmodelled_s += seconds
                if decision.device_s is not None:
                    tally.price(decision, seconds, ran_s, crowded, fastest.get(id(decision), math.inf))
                if decision.launches:
                    tally.launch(decision.launches)
                ended, before_s = started + seconds, self.covered_s
                if started >= self._until:
                    self.covered_s += seconds
                    self._recent.append((started, ended))
                    self._until = ended
                else:
                    self._overlap(started, ended)
                self.covered_cpu_s += cpu_s * (self.covered_s - before_s) / seconds if seconds else 0.0
                if seconds > self._shortest_kept_s:
                    self._keep(Call(decision, started, seconds, site.file, site.line, thread))
            while len(self._recent) > OVERLAPS:
                self._forgotten = self._recent.popleft()[1]

    def _crowded(self) -> bool:
        """Whether threads of this process waited for processors in the last LOOK_S or since the ledger was opened."""
        last, before, crowded = self._waits
        now = time.perf_counter()
        if crowded is None or now - last > LOOK_S:
            waited = waited_s()
            crowded = waited - before > CROWDED * (now - last)
            self._waits = now, waited, crowded
        return crowded

    def _tally(self, decision: Decision, site: Site) -> Tally:
        where = (site.file, site.line, site.through) if len(self._tallies) < SITES else (*UNKNOWN, "")
        key = (decision.op, ran_on(decision), reason(decision), decision.machine, *where)
        tally = self._tallies.get(key)
        if tally is None:
            tally = self._tallies[key] = Tally(*key)
        site.decision, site.tally = decision, tally
        return tally

    def _overlap(self, start: float, end: float) -> None:
        """Add the part of [start, end] that no recorded call covers yet: calls nest, and threads run in parallel."""
        recent, later = self._recent, []
        start = max(start, self._forgotten)  # earlier intervals are unknown; omitting them counts no time twice
        if start >= end:
            return
        while recent and recent[-1][1] >= start:
            first, last = recent.pop()
            if first > end:  # another thread has recorded a later call already
                later.append((first, last))
                continue
            self.covered_s -= last - first
            start, end = min(start, first), max(end, last)
        self.covered_s += end - start
        recent.extend([(start, end), *reversed(later)])
        self._until = recent[-1][1]

    def _keep(self, call: Call) -> None:
        self._kept += 1
        if len(self._longest) < EVENTS:
            heapq.heappush(self._longest, (call.seconds, self._kept, call))
        else:
            heapq.heapreplace(self._longest, (call.seconds, self._kept, call))
        if len(self._longest) == EVENTS:
            self._shortest_kept_s = self._longest[0][0]

    def absorb(self, inner: Ledger) -> None:
        """Add the calls of ``inner``, which was opened while this ledger was open."""
        inner._fold()
        with self._lock, inner._lock:
            small = inner.small_tallies()
            for tally in (*inner._tallies.values(), *small):
                self._tallies.setdefault(tally.key, Tally(*tally.key)).absorb(tally)
            for _, _, call in inner._longest:
                if call.seconds > self._shortest_kept_s:
                    self._keep(call)
            self.covered_s += inner.covered_s + sum(t.seconds for t in small)
            self.covered_cpu_s += inner.covered_cpu_s + sum(t.cpu_s for t in small)
            self.samples.absorb(inner.samples)
            self.comparisons.absorb(inner.comparisons)
            self.engines |= inner.engines

    @property
    def calls(self) -> list[Call]:
        """The EVENTS longest calls, in the order of their start."""
        self._fold()
        with self._lock:
            return sorted((call for _, _, call in self._longest), key=lambda call: call.started)

    @property
    def tallies(self) -> list[Tally]:
        """All records, summed by function, place, reason, machine and line of the program."""
        self._fold()
        with self._lock:
            found = merged((*self._tallies.values(), *self.small_tallies()), *KEY)
        return [t.without_gain() for t in found]

    def by_function(self) -> list[Tally]:
        """One tally for each function, place and reason; longest measured time first."""
        return merged(self.tallies, "op", "ran_on", "reason", "machine")

    def by_line(self) -> list[Tally]:
        """One tally for each line of the program, function, place and reason; longest measured time first."""
        return merged(self.tallies, "op", "ran_on", "reason", "machine", "file", "line", "through")

    def missed(self) -> list[Tally]:
        """Lines with calls on the host for which a device would be HYSTERESIS times faster (modelled), by gain.

        ``won`` counts calls for which it beats the undisturbed host time. ``doubted`` counts calls for which it beats
        only the measured time: this host took longer than predicted, or than for the fastest such call.
        """
        lines = (t for t in self.by_line() if t.won or t.doubted)
        return sorted(lines, key=lambda t: t.won_device_s + t.doubted_device_s - t.won_s - t.doubted_s)

    def regret(self) -> list[Tally]:
        """Lines whose calls on the device path were slower than the host (predicted), largest loss first."""
        return sorted((t for t in self.by_line() if t.lost), key=lambda t: t.lost_host_s - t.lost_s)

    def unrouted(self) -> list[Unrouted]:
        """Lines with work that patches do not reach, found by sampling, longest time first.

        A small call that passes the compiled gate looks unpatched in a sample, but its line has a tally of the function
        and is left out.
        """
        seen = {(t.op, t.file, t.line) for t in self.tallies}
        return [u for u in self.samples.found() if u.kind != UNPATCHED or (u.function, u.file, u.line) not in seen]

    @property
    def elapsed_s(self) -> float:
        """Seconds from opening to closing or until now, except the time for comparisons of CPU fast paths."""
        closed = time.perf_counter() if self.closed is None else self.closed
        return closed - self.opened - self.comparisons.seconds

    @property
    def cpu_s(self) -> float:
        """Processor seconds of all threads from opening to closing or until now."""
        return self._cpu.seconds

    @property
    def accelerated_cpu_s(self) -> float:
        """Processor seconds in which at least one accelerated function was running."""
        self._fold()
        return self.covered_cpu_s + sum(t.cpu_s for t in self.small_tallies())

    @property
    def waited_s(self) -> float:
        """Seconds that the thread which opened the ledger has waited for a processor."""
        return self._cpu.waited_s

    @property
    def machine(self) -> str:
        """The machine of the modelled seconds; if there are several, the one with the most calls."""
        named = [t for t in self.tallies if t.machine]
        if named:
            return max(merged(named, "machine"), key=lambda t: t.calls).machine
        return hardware_of(current_policy().machine).name

    def what_if(self) -> WhatIf:
        """The times of this run without a device and with ``machine``."""
        from trnpy._report.what_if import predicted

        return predicted(self)

    def __repr__(self) -> str:
        from trnpy._report.brief import brief

        return brief(self)

    def details(self) -> str:
        """The full report as text: every function and line, with measured, predicted and modelled times."""
        from trnpy._report.text import plain

        return plain(self)

    def _repr_html_(self) -> str:
        from trnpy._report.html_table import frame
        from trnpy._report.page import page

        return frame(page(self), "trnpy report")

    def to_dict(self) -> dict[str, Any]:
        """The whole report in JSON types. ``schema`` names the layout; all times are in seconds."""
        from trnpy._report.document import document

        return document(self)

    def to_json(self, target: str | os.PathLike[str] | IO[str]) -> None:
        """Write ``to_dict()`` to a path, replacing the file in one step, or to an open text file."""
        import json

        text = json.dumps(self.to_dict(), indent=1) + "\n"
        if isinstance(target, (str, os.PathLike)):
            write(target, text)
        else:
            target.write(text)

    def to_html(self, path: str | os.PathLike[str]) -> None:
        """Write one self-contained HTML page, replacing the file in one step."""
        from trnpy._report.page import page

        write(path, page(self))


class ProcessLedger:
    """The ledgers of this process, for all threads. ``ledger`` records; it is None while nothing is recorded."""

    ledger: Ledger | None = None
    last: Ledger | None = None  # the ledger that was closed last
    opened: tuple[Ledger, ...] = ()  # open ledgers; the last one records
    lock = Lock()  # re-entrant: a signal handler may open a ledger


@contextlib.contextmanager
def profile(title: str = "", *, measure_routes: bool = False) -> Iterator[Ledger]:
    """Record every accelerated call in a block, in all threads.

    Parameters
    ----------
    title : str, optional
        Name of the run in the report.
    measure_routes : bool, optional
        Whether to also run NumPy's or SciPy's function for a sample of the calls that use a CPU fast path.

    Yields
    ------
    Ledger
        The calls. It prints as a short report. ``details()`` is the full one; ``missed()``, ``regret()``,
        ``what_if()``, ``to_json(path)`` and ``to_html(path)`` give more. All times are seconds.

    Notes
    -----
    Blocks nest: the calls of an inner block are also in the ledger of the outer one.

    Examples
    --------
    >>> import numpy as np, trnpy
    >>> a = np.ones((100, 100))
    >>> with trnpy.profile() as ledger:
    ...     b = trnpy.matmul(a, a)
    >>> ledger.what_if().calls
    1
    """
    Attention.asked = True
    ledger = Ledger(title, measure_routes=measure_routes)
    ledger.instance = INSTANCES.get(current_policy().machine)
    try:
        try:
            ProcessLedger.lock.run(_open, ledger)
            watch(_samples)
            yield ledger
        finally:
            ProcessLedger.lock.run(_close, ledger)
    finally:  # again, because an interrupt may end the first attempt at any line
        ProcessLedger.lock.run(_close, ledger)


def _samples() -> Samples | None:
    return ProcessLedger.ledger.samples if ProcessLedger.ledger is not None else None


def _open(ledger: Ledger) -> None:
    ProcessLedger.opened += (ledger,)
    ProcessLedger.ledger = ledger


def _close(ledger: Ledger) -> None:
    """Close ``ledger``, if it is open. Blocks of several threads may end in any order."""
    if not any(opened is ledger for opened in ProcessLedger.opened):
        return
    place = ProcessLedger.opened.index(ledger)
    before, after = ProcessLedger.opened[:place], ProcessLedger.opened[place + 1 :]
    ledger.closed = time.perf_counter()
    ledger._cpu.stop()
    ProcessLedger.ledger, ProcessLedger.last = (before + after)[-1] if before + after else None, ledger
    ProcessLedger.opened = before + after
    # Absorb this ledger first: calls of ledgers opened later reach ``before`` when those are closed.
    if before:
        before[-1].absorb(ledger)
    for later in after:
        ledger.absorb(later)


def report() -> Ledger:
    """Ledger of the open `profile` block, otherwise of the last one closed.

    Returns
    -------
    Ledger
        The calls, printed as a table; empty if nothing was profiled.

    Examples
    --------
    >>> import trnpy
    >>> with trnpy.profile() as ledger:
    ...     trnpy.report() is ledger
    True
    """
    ledger = ProcessLedger.ledger or ProcessLedger.last
    if ledger is None:
        ledger = Ledger()
        ledger.closed = ledger.opened
        ledger._cpu.stop()
    return ledger


def print_report(ledger: Ledger, file: IO[str] | None = None, *, verbose: bool = False) -> None:
    """Print a verdict and the longest lines to ``file`` (default standard error); if ``verbose``, the full report."""
    file = sys.stderr if file is None else file
    if verbose:
        from trnpy._report.text import show

        show(ledger, file)
        return
    print(repr(ledger), file=file)
