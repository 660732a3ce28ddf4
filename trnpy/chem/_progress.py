"""Progress of loops that take more than a few seconds, shown by the first rank if standard error is a terminal."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Sequence
from typing import TypeVar

from trnpy._base.ranks_env import first
from trnpy.dist._launch import terminal

T = TypeVar("T")
PATIENCE_S = 2.0  # shorter loops show nothing
INTERVAL_S = 0.2  # between updates of the line that is shown if rich is not installed


def track(items: Sequence[T], what: str) -> Iterator[T]:
    """Yield ``items``; after PATIENCE_S show the number of finished items on a terminal. ``what`` names the loop."""
    started = time.perf_counter()
    for done, item in enumerate(items):
        if time.perf_counter() - started >= PATIENCE_S:
            yield from _shown(items, done, what) if first() and terminal() else items[done:]
            return
        yield item


def _shown(items: Sequence[T], done: int, what: str) -> Iterator[T]:
    """Yield ``items[done:]`` under a progress bar, which is removed at the end."""
    try:
        from rich.console import Console
        from rich.progress import Progress
    except ImportError:
        yield from _counted(items, done, what)
        return
    if not sys.stderr.isatty():  # mpiexec forwards the output, but rich needs a terminal
        yield from _counted(items, done, what)
        return
    with Progress(console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task(what, total=len(items), completed=done)
        for item in items[done:]:
            yield item
            progress.advance(task)


def _counted(items: Sequence[T], done: int, what: str) -> Iterator[T]:
    """Yield ``items[done:]`` and rewrite one line of text; used without rich."""
    shown = 0.0
    for count, item in enumerate(items[done:], done):
        if time.perf_counter() - shown >= INTERVAL_S:
            shown = time.perf_counter()
            print(f"\r{what}: {count} of {len(items)}", end="", file=sys.stderr, flush=True)
        yield item
    print("\r\x1b[K", end="", file=sys.stderr, flush=True)
