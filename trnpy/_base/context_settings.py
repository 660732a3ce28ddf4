"""Settings that hold inside a ``with`` block or a decorated function, in one thread or task."""

from __future__ import annotations

import contextlib
import functools
import inspect
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from typing import Any, Generic, ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")


class Blocks(Generic[T]):
    """The open blocks of one setting in a context.

    Blocks may end in any order, as in generators: the end of a block undoes only its own change. ``value`` holds the
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
        try:
            try:
                self._open.set((*self._open.get(), mine))
                self.value.set(inside)
                yield inside
            finally:
                self._close(mine)
        finally:  # again, because an interrupt may end the first attempt at any line
            self._close(mine)

    def _close(self, mine: tuple[T, Callable[[T], T]]) -> None:
        """Take the change of this block back, if it is still there."""
        opened = self._open.get()
        left = tuple(block for block in opened if block is not mine)
        if len(left) < len(opened):
            self.value.set(functools.reduce(lambda value, block: block[1](value), left, left[0][0]) if left else None)
            self._open.set(left)


class Block:
    """A context manager, and a decorator of functions and coroutine functions."""

    def __init__(self, make: Callable[[], contextlib.AbstractContextManager[None]]) -> None:
        self._make = make
        self._open: contextlib.AbstractContextManager[None] | None = None

    def __enter__(self) -> None:
        if self._open is not None:
            raise RuntimeError("this block is already open: make another one")
        self._open = self._make()
        try:
            self._open.__enter__()
        except BaseException:
            self._open = None
            raise

    def __exit__(self, *raised: Any) -> None:
        block, self._open = self._open, None
        if block is not None:
            block.__exit__(*raised)

    def __call__(self, function: Callable[P, R]) -> Callable[P, R]:
        if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
            raise TypeError(f"{function.__qualname__} is a generator: open the block inside it instead")
        if inspect.iscoroutinefunction(function):

            @functools.wraps(function)
            async def coroutine(*args: P.args, **kwargs: P.kwargs) -> Any:
                with self._make():
                    return await function(*args, **kwargs)

            return coroutine  # type: ignore[return-value]  # R is its coroutine

        @functools.wraps(function)
        def call(*args: P.args, **kwargs: P.kwargs) -> R:
            with self._make():
                return function(*args, **kwargs)

        return call
