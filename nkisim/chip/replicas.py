"""Runs one kernel on several ranks. Each has its own memory; nki.collectives moves data between ranks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from functools import partial
from typing import Any

from nkisim.chip.context import DEFAULT_TARGET, Mode
from nkisim.chip.core_threads import CoreGroup
from nkisim.chip.strictness import Strictness
from nkisim.run.launch import Result, run


@dataclass(frozen=True, slots=True)
class World:
    """All ranks, and the rank of this thread."""

    ranks: CoreGroup
    rank: int

    @property
    def size(self) -> int:
        return self.ranks.size


_WORLD: ContextVar[World | None] = ContextVar("world", default=None)


def world() -> World:
    """The ranks of the current run; a kernel launched alone is rank 0 of 1."""
    return _WORLD.get() or World(CoreGroup(1), 0)


def run_ranks(
    kernel: Any,
    arguments: Sequence[tuple[Any, ...]],
    *,
    target: str = DEFAULT_TARGET,
    mode: Mode = "run",
    seed: int = 0,
    rules: Mapping[int, Strictness] | None = None,
) -> list[Result]:
    """Run a kernel as ranks 0, 1, ...: once for each element of ``arguments``, a tuple of positional arguments.

    Only collectives move data between ranks. Raises the first SimulatorError of any rank, including a
    deadlock (ranks wait for each other).
    """
    ranks = CoreGroup(len(arguments), seed if mode == "reorder" else None)

    def body(rank: int, args: tuple[Any, ...]) -> Result:
        token = _WORLD.set(World(ranks, rank))
        try:
            return run(kernel, args, target=target, mode=mode, seed=seed, rules=rules)
        finally:
            _WORLD.reset(token)

    return ranks.run([partial(body, rank, args) for rank, args in enumerate(arguments)])
