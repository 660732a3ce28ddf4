"""Matrices of consecutive steps, device-resident while they are needed and fit the memory."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from trnpy._engine.engines import Engine

# Bytes per element of a matrix in the engine's memory, if it was sent and if a step made it. For float64 the first has
# up to 12 transferred bytes, 12 digits in either orientation, and magnitudes; the second also has four words and
# magnitudes (docs/products.md#products-that-stay).
SENT: Mapping[str, int] = {"f": 4, "F": 8, "d": 64, "D": 128}
MADE: Mapping[str, int] = {"f": 4, "F": 8, "d": 20, "D": 40}


class Held:
    """Values by number: first arrays, which are sent when a step needs them, then the results of steps.

    ``uses``: the steps that need each value, in order. If a new value does not fit, the value that is needed last moves
    to the host until then.
    """

    def __init__(self, engine: Engine, arrays: Sequence[np.ndarray], uses: Mapping[int, Sequence[int]]) -> None:
        self._engine = engine
        self._here = dict(enumerate(arrays))
        self._there: dict[int, Any] = {}  # handles
        self._bytes: dict[int, int] = {}  # of each of them
        self._left = {i: list(reversed(steps)) for i, steps in uses.items()}
        self._char = arrays[0].dtype.char

    def operands(self, *numbers: int) -> list[Any]:
        """The handles of a step's operands."""
        for i in numbers:
            if i not in self._there:
                self._bytes[i] = SENT[self._char] * self._here[i].size
                self._fit(self._bytes[i], numbers)
                self._there[i] = self._engine.put(self._here[i], stay=True)
        return [self._there[i] for i in numbers]

    def make_room(self, number: int, shape: tuple[int, ...], *operands: int) -> None:
        """Make room for the result of a step."""
        self._bytes[number] = MADE[self._char] * math.prod(shape)
        self._fit(self._bytes[number], operands)

    def _fit(self, needed: int, operands: Sequence[int]) -> None:
        used = needed + sum(self._bytes[i] for i in self._there)
        while used > self._engine.room and (others := self._there.keys() - {*operands}):
            i = max(others, key=lambda i: self._left[i][-1])
            used -= self._bytes[i]
            handle = self._there.pop(i)
            if i not in self._here:
                self._here[i] = self._engine.get(handle)

    def add(self, number: int, handle: Any, *operands: int) -> None:
        """Keep the result of a step, and drop its operands if no other step needs them."""
        self._there[number] = handle
        for i in operands:
            self._left[i].pop()
            if not self._left[i]:
                self._there.pop(i, None)
                self._here.pop(i, None)

    def read(self, number: int) -> np.ndarray:
        """A value on the host."""
        if number not in self._here:
            self._here[number] = self._engine.get(self._there.pop(number))
        return self._here[number]
