"""Shared HBM under two cores: accesses of both to the same bytes need a meeting between them.

Cores meet in sendrecv and core_barrier; each counts its meetings. Bytes that one core has written are off limits to
the other while both counts agree, and those that it has read may not be written: nothing then orders the two.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from trnpy._nki.simulator.errors import SimulatorError
from trnpy._nki.simulator.indirect import resolve_scalar, rows_of
from trnpy._nki.simulator.memory import Marks
from trnpy._nki.simulator.tensor import NkiTensor

MEETINGS = frozenset({"sendrecv", "core_barrier"})
Touched = dict[tuple[int, int], tuple[int, Marks]]  # by storage and core: meetings so far, elements since the last


@dataclass(slots=True)
class Ownership:
    """Which elements of shared storage each core has read and written since the cores last met."""

    read: Touched = field(default_factory=dict)
    written: Touched = field(default_factory=dict)

    def check(self, tensor: NkiTensor, role: str, core: int, meetings: int, skip: bool) -> None:
        """Check a read, and remember it."""
        _refuse(self.written, "writes", tensor, role, core, meetings, skip)
        _remember(self.read, tensor, core, meetings, skip)

    def claim(self, tensor: NkiTensor, role: str, core: int, meetings: int, skip: bool) -> None:
        """Check a write, and remember it."""
        _refuse(self.written, "writes", tensor, role, core, meetings, skip)
        _refuse(self.read, "reads", tensor, role, core, meetings, skip)
        _remember(self.written, tensor, core, meetings, skip)


def _refuse(touched: Touched, verb: str, tensor: NkiTensor, role: str, core: int, meetings: int, skip: bool) -> None:
    """Refuse an access to what another core has touched since the last meeting."""
    for (storage, owner), (count, marks) in touched.items():
        if storage != tensor.storage.ident or owner == core or count != meetings:
            continue
        if any(marks.touches(view) for view in _static(tensor, skip)):
            raise SimulatorError(
                f"{role} {tensor!r} overlaps what core {owner} {verb}, and nothing orders core {core} after it: "
                "put a core_barrier between them",
                rule=37,
            )


def _remember(touched: Touched, tensor: NkiTensor, core: int, meetings: int, skip: bool) -> None:
    key = (tensor.storage.ident, core)
    count, marks = touched.get(key, (-1, None))
    if marks is None or count != meetings:
        marks = Marks(tensor.storage.nbytes, tensor.itemsize, False)
        touched[key] = (meetings, marks)
    for view in _static(tensor, skip):
        marks.add(view)


def _static(tensor: NkiTensor, skip: bool) -> Iterator[NkiTensor]:
    """The views without run-time indices that make up a view."""
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
