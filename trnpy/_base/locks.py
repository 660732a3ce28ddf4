"""Locks that are free in a forked child, with consistent data behind them."""

from __future__ import annotations

import itertools
import os
import threading
import time
import weakref
from _thread import RLock as _RLock
from collections.abc import Callable
from typing import Any, ClassVar, TypeVar

T = TypeVar("T")
WAIT_S = 1.0  # for which a fork waits for all locks together; a lock may be held while a device computes


class Lock(_RLock):  # type: ignore[misc]  # final in the type checker's stubs only
    """A re-entrant lock, because a signal handler may enter code that its own thread is executing.

    A fork copies only the forking thread. That thread takes every lock first, so that no other thread is inside one.
    A lock that it cannot get within WAIT_S is new in the child, where the data behind it may be half changed.
    A ``with`` statement enters and leaves it in C: an interrupt comes before or after, and leaves no lock behind.
    """

    __slots__ = ()

    def __init__(self) -> None:
        _Fork.locks[next(_Fork.numbers)] = self

    def run(self, function: Callable[..., T], *args: Any) -> T:
        """``function(*args)``, with the lock held. On one line: a tracer that raises at a line cannot keep the lock."""
        with self: return function(*args)  # fmt: skip  # noqa: E701


class _Fork:
    """All locks of this process, and those that the current fork has acquired."""

    numbers = itertools.count()
    locks: ClassVar[weakref.WeakValueDictionary[int, Lock]] = weakref.WeakValueDictionary()
    one = threading.RLock()  # held during a fork, so that only one runs at a time
    taken: tuple[Lock, ...] = ()


def _living() -> list[Lock]:
    return [lock for ref in _Fork.locks.valuerefs() if (lock := ref()) is not None]


def _before() -> None:
    _Fork.one.acquire()
    deadline = time.monotonic() + WAIT_S
    _Fork.taken = tuple(k for k in _living() if k.acquire(timeout=max(deadline - time.monotonic(), 0)))


def _in_parent() -> None:
    taken, _Fork.taken = _Fork.taken, ()
    for lock in taken:
        lock.release()
    _Fork.one.release()


def _in_child() -> None:
    for lock in {*_living()} - {*_Fork.taken}:
        lock._at_fork_reinit()  # type: ignore[attr-defined]  # as threading's own locks
    _in_parent()  # the child's only thread owns the locks that the forking thread acquired


if hasattr(os, "register_at_fork"):  # Windows has no fork
    os.register_at_fork(before=_before, after_in_parent=_in_parent, after_in_child=_in_child)
