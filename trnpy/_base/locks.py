"""Locks that are free in a forked child, with consistent data behind them."""

from __future__ import annotations

import itertools
import os
import threading
import time
import weakref
from types import TracebackType
from typing import ClassVar

WAIT_S = 1.0  # for which a fork waits for all locks together; a lock may be held while a device computes


class Lock:
    """A re-entrant lock, because a signal handler may enter code that its own thread is executing.

    A fork copies only the forking thread. That thread takes every lock first, so that no other thread is inside one. A
    lock that it cannot get within WAIT_S is new in the child, where the data behind it may be half changed.
    """

    __slots__ = ("__weakref__", "_lock")

    def __init__(self) -> None:
        self._lock = threading.RLock()
        _Fork.locks[next(_Fork.numbers)] = self

    def __enter__(self) -> None:
        self._lock.acquire()

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._lock.release()


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
    _Fork.taken = tuple(k for k in _living() if k._lock.acquire(timeout=max(deadline - time.monotonic(), 0)))


def _in_parent() -> None:
    taken, _Fork.taken = _Fork.taken, ()
    for lock in taken:
        lock._lock.release()
    _Fork.one.release()


def _in_child() -> None:
    for lock in {*_living()} - {*_Fork.taken}:
        lock._lock = threading.RLock()
    _in_parent()  # the child's only thread owns the locks that the forking thread acquired


if hasattr(os, "register_at_fork"):  # Windows has no fork
    os.register_at_fork(before=_before, after_in_parent=_in_parent, after_in_child=_in_child)
