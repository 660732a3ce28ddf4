"""Settings that hold inside a ``with`` block, in one thread or task."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from typing import Generic, TypeVar

T = TypeVar("T")


class Blocks(Generic[T]):
    """The open blocks of one setting in a context.

    Blocks may end in any order, as in generators: the end of one takes back its own change only. ``value`` holds the
    setting, or None if no block is open.
    """

    def __init__(self, name: str) -> None:
        self.value: ContextVar[T | None] = ContextVar(name, default=None)
        self._open: ContextVar[tuple[tuple[T, Callable[[T], T]], ...]] = ContextVar(f"{name}_blocks", default=())

    @contextlib.contextmanager
    def block(self, base: T, change: Callable[[T], T]) -> Iterator[T]:
        """Apply ``change`` to the current value, or to ``base`` if no block is open, until the block ends."""
        mine = (base, change)
        inside = change(self.value.get() or base)
        self._open.set((*self._open.get(), mine))
        self.value.set(inside)
        try:
            yield inside
        finally:
            left = tuple(block for block in self._open.get() if block is not mine)
            self._open.set(left)
            self.value.set(functools.reduce(lambda value, block: block[1](value), left, left[0][0]) if left else None)
