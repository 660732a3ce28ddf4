"""Shared HBM of two cores: conflicting accesses of both cores need a meeting between them.

Cores meet in sendrecv and core_barrier, and each counts its meetings. While both counts agree, the accesses are
unordered: if one core wrote bytes, the other may not use them; if one core read bytes, the other may not write them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from nkisim.chip.indirect import resolve_scalar, rows_of
from nkisim.chip.memory import Marks
from nkisim.chip.tensor import NkiTensor

MEETINGS = frozenset({"sendrecv", "core_barrier"})


@dataclass(frozen=True, slots=True)
class Contested:
    """A write to bytes that the other core has used. It is no race if every byte stays unchanged."""

    message: str
    views: tuple[NkiTensor, ...]


Touched = dict[tuple[int, int], tuple[int, Marks]]  # (storage, core) -> (meetings of the core, elements used since)


@dataclass(slots=True)
class Ownership:
    """The elements of shared storage that each core has read and written since the last meeting."""

    read: Touched = field(default_factory=dict)
    written: Touched = field(default_factory=dict)

    def check(self, tensor: NkiTensor, role: str, core: int, meetings: int, skip: bool) -> str | None:
        """Record a read. Returns the message of a conflict, or None.

        A core may read what it wrote itself: if the other core also wrote it, both wrote equal bytes (see ``claim``).
        """
        count, own = self.written.get((tensor.storage.ident, core), (-1, None))
        mine = own if count == meetings else None
        why = _conflict(self.written, "writes", tensor, role, core, meetings, skip, mine)
        _remember(self.read, tensor, core, meetings, skip)
        return why

    def claim(self, tensor: NkiTensor, role: str, core: int, meetings: int, skip: bool) -> list[Contested]:
        """Record a write. Returns its parts that must leave the bytes unchanged."""
        found = [
            _conflict(touched, verb, tensor, role, core, meetings, skip)
            for touched, verb in ((self.written, "writes"), (self.read, "reads"))
        ]
        _remember(self.written, tensor, core, meetings, skip)
        views = tuple(_static(tensor, skip))
        return [Contested(message, views) for message in found if message]


def _conflict(
    touched: Touched, verb: str, tensor: NkiTensor, role: str, core: int, meetings: int, skip: bool,
    own: Marks | None = None,
) -> str | None:  # fmt: skip
    """The message for an access to bytes that only the other core has used since the last meeting."""
    for (storage, owner), (count, marks) in touched.items():
        if storage != tensor.storage.ident or owner == core or count != meetings:
            continue
        for view in _static(tensor, skip):
            if marks.touches(view) and not (own is not None and marks.within(own, view)):
                return (
                    f"{role} {tensor!r} overlaps what core {owner} {verb}, and nothing orders core {core} after it: "
                    "put a core_barrier between them"
                )
    return None


def _remember(touched: Touched, tensor: NkiTensor, core: int, meetings: int, skip: bool) -> None:
    key = (tensor.storage.ident, core)
    count, marks = touched.get(key, (-1, None))
    if marks is None or count != meetings:
        marks = Marks(tensor.storage.nbytes, tensor.itemsize, False)
        touched[key] = (meetings, marks)
    for view in _static(tensor, skip):
        marks.add(view)


def _static(tensor: NkiTensor, skip: bool) -> Iterator[NkiTensor]:
    """Views without run-time indices that together cover ``tensor``."""
    if tensor.index is None:
        yield tensor
    elif tensor.index.kind == "scalar":
        view = resolve_scalar(tensor, skip)
        if view is not None:
            yield view
    else:
        table, rows, valid = rows_of(tensor, skip)
        for row in rows[valid]:
            yield table.slice(0, int(row), int(row) + 1)
