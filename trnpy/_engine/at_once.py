"""Concurrent work on several cores, with one thread each."""

from __future__ import annotations

import contextvars
from collections.abc import Callable, Sequence
from typing import Protocol, TypeVar


class Core(Protocol):
    """The property of an engine that threads depend on."""

    @property
    def parallel(self) -> bool: ...  # whether it can run in a thread of its own beside the engines of other cores


C = TypeVar("C", bound=Core)
P = TypeVar("P")
T = TypeVar("T")


def each(cores: Sequence[C], work: Callable[[C, int], T]) -> list[T]:
    """Run ``work(core, number)`` for each core, concurrently if they allow it; errors are raised at the end."""
    if len(cores) < 2 or not cores[0].parallel:
        return [work(core, n) for n, core in enumerate(cores)]
    from concurrent.futures import ThreadPoolExecutor  # imported late: one core needs no threads

    with ThreadPoolExecutor(len(cores), "trnpy core") as pool:
        calls = [(contextvars.copy_context(), core, n) for n, core in enumerate(cores)]
        futures = [pool.submit(context.run, work, core, n) for context, core, n in calls]
    return [future.result() for future in futures]


def in_threads(pieces: Sequence[P], work: Callable[[P], T], count: int) -> list[T]:
    """``work`` of each item, in order, with ``count`` threads that get consecutive items each."""
    size = -(-len(pieces) // max(count, 1))
    groups = [pieces[i : i + size] for i in range(0, len(pieces), max(size, 1))]
    if len(groups) < 2:
        return [work(piece) for piece in pieces]
    from concurrent.futures import ThreadPoolExecutor  # imported late, as above

    def some(group: Sequence[P]) -> list[T]:
        return [work(piece) for piece in group]

    with ThreadPoolExecutor(len(groups), "trnpy pass") as pool:
        futures = [pool.submit(contextvars.copy_context().run, some, group) for group in groups]
    return [result for future in futures for result in future.result()]


Beside = Callable[[Callable[[], T]], Callable[[], T]]  # starts work and returns a function that waits for the result


def beside(work: Callable[[], T]) -> Callable[[], T]:
    """Start ``work`` in a new thread. The returned function waits for its result, or raises its exception."""
    import threading  # imported late, as above

    context = contextvars.copy_context()
    outcome: list[T] = []
    failed: list[BaseException] = []

    def run() -> None:
        try:
            outcome.append(context.run(work))
        except BaseException as why:  # raised in the thread that requests the result
            failed.append(why)

    thread = threading.Thread(target=run, name="trnpy beside", daemon=True)
    thread.start()

    def result() -> T:
        thread.join()
        if failed:
            raise failed[0]
        return outcome[0]

    return result


def in_turn(work: Callable[[], T]) -> Callable[[], T]:
    """Do ``work`` immediately, in this thread. The returned function returns its result."""
    outcome = work()
    return lambda: outcome
