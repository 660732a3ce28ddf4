"""Several simulated cores, each with a program, that meet in barriers, exchanges and collectives.

Each core is a thread. Only one runs at a time, until it waits for another. Runs are therefore reproducible, and a
deadlock is detected at once.
"""

from __future__ import annotations

import contextvars
import random
import threading
from collections import defaultdict
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from nkisim.chip.errors import SimulatorError

T = TypeVar("T")


@dataclass(slots=True)
class _Meeting:
    """One rendezvous: the payload of each member, and the number of members that have left."""

    signature: Hashable
    first: int  # the member that arrived first
    payloads: dict[int, Any] = field(default_factory=dict)
    taken: int = 0


class CoreGroup:
    """``size`` cores, numbered from 0; ``seed`` makes the choice of the next core to run random."""

    def __init__(self, size: int, seed: int | None = None) -> None:
        self.size = size
        self._random = None if seed is None else random.Random(seed)
        self._condition = threading.Condition()
        self._ready: set[int] = set(range(size))
        self._waiting: dict[int, str] = {}  # core -> description of its wait
        self._turn: int | None = None
        self._deadlock: str | None = None
        self._meetings: dict[tuple[Hashable, int], _Meeting] = {}
        self._rounds: defaultdict[tuple[Hashable, int], int] = defaultdict(int)

    def run(self, bodies: Sequence[Callable[[], T]]) -> list[T]:
        """Run one body per core to its end; the first error of any core is raised here."""
        results: list[Any] = [None] * self.size
        errors: dict[int, BaseException] = {}

        def core(rank: int, body: Callable[[], T]) -> None:
            with self._condition:
                self._condition.wait_for(lambda: self._turn == rank)
            try:
                results[rank] = body()
            except BaseException as error:  # raised below, in the thread that waits for all cores
                errors[rank] = error
            finally:
                with self._condition:
                    self._ready.discard(rank)
                    self._pass_turn()

        threads = [
            threading.Thread(target=contextvars.copy_context().run, args=(core, rank, body), daemon=True)
            for rank, body in enumerate(bodies)
        ]
        for thread in threads:
            thread.start()
        with self._condition:
            self._pass_turn()
        for thread in threads:
            thread.join()
        if errors:
            # A core that waits for a failed core also fails: report the cause, not this consequence.
            causes = [error for error in errors.values() if not isinstance(error, CoreDeadlock)]
            raise (causes or list(errors.values()))[0]
        return results

    def exchange(
        self, rank: int, members: tuple[int, ...], signature: Hashable, payload: T, pipe: Hashable = 0
    ) -> list[T]:
        """Wait until every member has brought its payload; returns all payloads, in the order of members.

        Calls on one ``pipe`` between the same members are matched in program order, and must agree
        on ``signature`` (the instruction and all properties that must be equal on every core).
        """
        place = (members, pipe)
        with self._condition:
            key = (place, self._rounds[place, rank])
            self._rounds[place, rank] += 1
            meeting = self._meetings.setdefault(key, _Meeting(signature, rank))
            if meeting.signature != signature:
                raise SimulatorError(
                    f"cores {meeting.first} and {rank} meet in different instructions: {meeting.signature} on core "
                    f"{meeting.first}, {signature} on core {rank}; every member must issue the same one"
                )
            meeting.payloads[rank] = payload
            if len(meeting.payloads) == len(members):
                self._ready.update(members)
                for member in members:
                    self._waiting.pop(member, None)
            else:
                self._ready.discard(rank)
                self._waiting[rank] = f"{signature} with cores {members}"
                self._pass_turn()
                self._condition.wait_for(lambda: self._turn == rank)
                if self._waiting.pop(rank, None) is not None:
                    raise CoreDeadlock(self._deadlock or "")
            meeting.taken += 1
            if meeting.taken == len(members):
                del self._meetings[key]
            return [meeting.payloads[member] for member in members]

    def _pass_turn(self) -> None:
        """Let another core run; if none is ready, wake the waiting cores one by one to fail."""
        if self._ready:
            ready = sorted(self._ready)
            self._turn = self._random.choice(ready) if self._random else ready[0]
        elif self._waiting:
            if self._deadlock is None:
                self._deadlock = "deadlock: " + "; ".join(
                    f"core {rank} waits in {what}" for rank, what in sorted(self._waiting.items())
                )
            self._turn = min(self._waiting)
        self._condition.notify_all()


class CoreDeadlock(SimulatorError):
    """Cores wait for each other, or for a core whose program has ended."""
