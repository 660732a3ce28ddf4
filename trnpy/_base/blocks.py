"""A setting for the length of a ``with`` block, in one thread or task."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from typing import Generic, TypeVar

T = TypeVar("T")


class Blocks(Generic[T]):
    """The open blocks of a context, each of which changes one setting.

    Blocks may end in any order, as those inside generators do: the end of one takes back its own change and leaves
    those of the others.  ``value`` is what holds here, or None where no block is open.
    """

    def __init__(self, name: str) -> None:
        self.value: ContextVar[T | None] = ContextVar(name, default=None)
        self._open: ContextVar[tuple[tuple[T, Callable[[T], T]], ...]] = ContextVar(f"{name}_blocks", default=())

    @contextlib.contextmanager
    def block(self, base: T, change: Callable[[T], T]) -> Iterator[T]:
        """``change`` of what holds here until the block ends; of ``base`` where no block is open."""
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
