"""The arithmetic of one run in order, so that a program that does not depend on values can run again with others."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from nkisim.chip.errors import SimulatorError


class _Marking:
    """An instruction on a tile whose initialised elements depend on values: a later run follows and checks them."""

    __slots__ = ("before", "compute", "first", "read", "written")

    def __init__(
        self, compute: Callable[[], None] | None, made: Sequence[Any], read: Sequence[Any], written: Sequence[Any]
    ) -> None:
        self.compute, self.read, self.written = compute, read, written
        self.before = [(storage, storage.written.copied()) for storage in made]
        self.first = True

    def __call__(self) -> None:
        if not self.first:  # in the first run the caller checks and marks
            for storage, before in self.before:
                storage.written = before.copied()
            for tensor in self.read:
                if not tensor.storage.written.covers(tensor):
                    raise SimulatorError("an element that the first run initialised is not initialised")
        if self.compute is not None:
            self.compute()
        if not self.first:
            for tensor in self.written:
                tensor.mark()
        self.first = False


class Tape:
    """The instructions of one run on one core, and the first reason why their order or checks may depend on values.

    A program with static addresses and no registers that are loaded issues the same instructions for all values. All
    its checks but those of its arithmetic have the same outcome, too. The elements that an instruction under a mask
    initialises are followed in each run.
    """

    __slots__ = ("_loose", "returned", "run", "steps", "storages", "why")

    def __init__(self) -> None:
        self.steps: list[Callable[[], None]] = []
        self.storages: dict[int, Any] = {}
        self._loose: set[int] = set()  # storages whose initialised elements depend on values
        self.why = ""  # empty: the program is the same for all values
        self.run: Any = None
        self.returned: Any = None  # of the kernel function

    def depends(self, why: str) -> None:
        """Note that the program depends on values."""
        self.why = self.why or why

    def add(
        self,
        opcode: str,
        compute: Callable[[], None] | None,
        sources: Sequence[tuple[str, Any]],
        targets: Sequence[tuple[str, Any]],
        keeps: Sequence[str],
        state: str | None,
    ) -> Callable[[], None] | None:
        """Append an instruction; arguments as for ``context.issue``. Returns the arithmetic to execute."""
        if state is not None:
            self.depends(f"{opcode}: state of an engine ({state})")
        partly = [t.storage for role, t in targets if role in keeps and not t.storage.written.full]
        made = [storage for storage in partly if storage.ident not in self._loose]
        self._loose.update(storage.ident for storage in made)
        for role, tensor in (*sources, *targets):
            storage = tensor.storage
            self.storages[storage.ident] = storage
            loose = storage.ident in self._loose
            if (tensor.index is not None and (loose or not storage.written.full)) or (loose and not tensor.on_chip):
                self.depends(f"{opcode}: which elements of {role} are initialised")
        read = [t for _, t in sources if t.storage.ident in self._loose]
        written = [t for role, t in targets if t.storage.ident in self._loose and role not in keeps]
        if made or read or written:
            compute = _Marking(compute, made, read, written)
        if compute is not None:
            self.steps.append(compute)
        for role, tensor in targets:
            if tensor.storage.argument:
                self.depends(f"{opcode}: {role} is an argument, which the kernel writes")
        return compute

    @property
    def nbytes(self) -> int:
        """Bytes of the memory of all tensors."""
        return sum(storage.nbytes for storage in self.storages.values())
