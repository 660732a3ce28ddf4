"""Locks that a forked child finds free, with what they guard whole."""

from __future__ import annotations

import itertools
import os
import threading
import time
import weakref
from types import TracebackType
from typing import ClassVar

WAIT_S = 1.0  # of a fork, for all locks together: a lock may be held while a device computes


class Lock:
    """A re-entrant lock: a signal handler may call what its own thread is in the middle of.

    A fork copies only the thread that forks, so that thread takes every lock first: no other one is then inside.  A
    lock that it does not get within WAIT_S is a new one in the child, where what it guards may be half changed.
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
    """Every lock of this process, and those that the fork under way has taken."""

    numbers = itertools.count()
    locks: ClassVar[weakref.WeakValueDictionary[int, Lock]] = weakref.WeakValueDictionary()
    one = threading.RLock()  # fork at a time
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
    _in_parent()  # the child's only thread owns what the parent's took


if hasattr(os, "register_at_fork"):  # Windows has no fork
    os.register_at_fork(before=_before, after_in_parent=_in_parent, after_in_child=_in_child)
