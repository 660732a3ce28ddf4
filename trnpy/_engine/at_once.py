"""Work on several cores at the same time, in a thread for each."""

from __future__ import annotations

import contextvars
from collections.abc import Callable, Sequence
from typing import Protocol, TypeVar


class Core(Protocol):
    """An engine, as far as threads are concerned."""

    @property
    def parallel(self) -> bool: ...  # whether it works beside the engines of other cores, in a thread of its own


C = TypeVar("C", bound=Core)
P = TypeVar("P")
T = TypeVar("T")


def each(cores: Sequence[C], work: Callable[[C, int], T]) -> list[T]:
    """``work(core, number)`` of each core, at the same time if they allow it; errors are raised when all have ended."""
    if len(cores) < 2 or not cores[0].parallel:
        return [work(core, n) for n, core in enumerate(cores)]
    from concurrent.futures import ThreadPoolExecutor  # imported late: one core needs no threads

    with ThreadPoolExecutor(len(cores), "trnpy core") as pool:
        calls = [(contextvars.copy_context(), core, n) for n, core in enumerate(cores)]
        futures = [pool.submit(context.run, work, core, n) for context, core, n in calls]
    return [future.result() for future in futures]


def in_threads(pieces: Sequence[P], work: Callable[[P], T], count: int) -> list[T]:
    """``work`` of each piece, in order: in ``count`` threads, each with pieces that follow one another."""
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


Beside = Callable[[Callable[[], T]], Callable[[], T]]  # starts work; what it returns waits for the result


def beside(work: Callable[[], T]) -> Callable[[], T]:
    """Start ``work`` in a thread of its own. The returned function waits for its result, or raises its error."""
    import threading  # imported late, as above

    context = contextvars.copy_context()
    outcome: list[T] = []
    failed: list[BaseException] = []

    def run() -> None:
        try:
            outcome.append(context.run(work))
        except BaseException as why:  # raised in the thread that asks for the result
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
    """Do ``work`` at once, in this thread. The returned function gives its result."""
    outcome = work()
    return lambda: outcome
