"""Storage on the device: its bytes, the mask of written bytes, and the peak memory use of the chip."""

from __future__ import annotations

import copy
import functools
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from nkisim.chip.dtypes import PACKED, STORAGE, Array, is_float
from nkisim.chip.errors import SimulatorError
from nkisim.chip.record import Allocation, Buffer
from nkisim.hardware import PARTITIONS, PSUM_BANK_BYTES, PSUM_BANKS, Hardware

if TYPE_CHECKING:
    from nkisim.chip.interfaces import TensorView

Mask = npt.NDArray[np.bool_]
CACHE_RATIO = 4  # bytes of float32 copies per byte of a tile: one copy of an 8-bit tile
HOSTILE_INTEGER = 0x5A  # every byte of fresh integer memory, which may not be read before it is written
OTHER_FLOAT, OTHER_INTEGER = 32.0, 0x31  # fresh memory of a second run, to compare outputs; every float type has 32


class Marks:
    """A set of elements of one storage: none, all, or the elements in a mask.

    The mask exists only while the set is partial, so that whole-tile writes need no mask.
    """

    __slots__ = ("_mask", "_missing", "_nbytes", "_unit")

    def __init__(self, nbytes: int, unit: int, full: bool) -> None:
        self._nbytes = nbytes
        self._unit = unit  # bytes per entry of the mask
        self._mask: Mask | None = None
        self._missing = 0 if full else nbytes // unit

    @property
    def full(self) -> bool:
        return self._missing == 0

    def add(self, tensor: TensorView, where: Mask | None = None) -> None:
        """Add the tensor's elements to the set, or only the elements with ``where`` true."""
        if not self._missing:
            return
        if where is None and tensor.index is None and tensor.covers_storage:
            self._mask, self._missing = None, 0
            return
        view = self._view(tensor)
        before = int(np.count_nonzero(view))
        if where is not None:
            where = where.reshape(where.shape + (1,) * (view.ndim - where.ndim))
            np.logical_or(view, where, out=view)
        else:
            view[...] = True
        self._recount(tensor, int(np.count_nonzero(view)) - before)
        if not self._missing:
            self._mask = None

    def discard(self, tensor: TensorView) -> None:
        """Remove the tensor's elements from the set."""
        if self._missing == self._nbytes // self._unit:
            return
        if tensor.index is None and tensor.covers_storage:
            self._mask, self._missing = None, self._nbytes // self._unit
            return
        view = self._view(tensor)
        before = int(np.count_nonzero(view))
        view[...] = False
        self._recount(tensor, -before)

    def _recount(self, tensor: TensorView, gained: int) -> None:
        """Update the number of missing entries; if the view repeats elements, count the whole mask."""
        assert self._mask is not None
        if tensor.distinct:
            self._missing -= gained
        else:
            self._missing = self._mask.size - int(np.count_nonzero(self._mask))

    def covers(self, tensor: TensorView) -> bool:
        """Whether every element of the tensor is in the set."""
        if not self._missing:
            return True
        if self._mask is None:
            return False
        return bool(self._view(tensor).all())

    def touches(self, tensor: TensorView) -> bool:
        """Whether any element of the tensor is in the set."""
        if not self._missing:
            return True
        if self._mask is None:
            return False
        return bool(self._view(tensor).any())

    def within(self, other: Marks, tensor: TensorView) -> bool:
        """Whether every element of the tensor that is in this set is also in ``other``."""
        mine, its = (m._view(tensor).reshape(*tensor.shape, -1) for m in (self, other))
        return not bool((mine.any(-1) & ~its.all(-1)).any())

    def copied(self) -> Marks:
        """Another set of the same elements."""
        twin = copy.copy(self)
        twin._mask = None if self._mask is None else self._mask.copy()
        return twin

    def mask(self, tensor: TensorView) -> Mask:
        """Mask, in the tensor's shape, of its elements in the set."""
        return self._view(tensor).copy()

    def rows(self, table: TensorView, rows: Array) -> Mask:
        """For each given row of a table, whether all its elements are in the set."""
        entries = self._view(table)[rows]
        return np.asarray(entries.all(axis=tuple(range(1, entries.ndim))))

    def add_rows(self, table: TensorView, rows: Array) -> None:
        """Add the given rows of a table to the set."""
        self._view(table)[rows] = True
        assert self._mask is not None
        self._missing = self._mask.size - int(np.count_nonzero(self._mask))

    def first_missing(self, tensor: TensorView) -> tuple[int, ...]:
        """Coordinates of the tensor's first element outside the set."""
        if self._mask is None:
            return (0,) * len(tensor.shape)
        outside = ~self._view(tensor)
        place = np.unravel_index(int(np.argmax(outside)), outside.shape)
        return tuple(int(i) for i in place[: len(tensor.shape)])

    def _view(self, tensor: TensorView) -> Mask:
        """The mask entries of a tensor in its shape, with one more axis if an element has several entries."""
        itemsize = tensor.itemsize
        if self._mask is None:
            unit = min(self._unit, itemsize)
            self._mask = np.full(self._nbytes // unit, not self._missing, np.bool_)
            self._missing = self._missing * (self._unit // unit)
            self._unit = unit
        elif itemsize < self._unit:
            self._mask = np.repeat(self._mask, self._unit // itemsize)
            self._missing *= self._unit // itemsize
            self._unit = itemsize
        ratio = itemsize // self._unit
        if ratio == 1:
            whole: Mask = tensor.strided(self._mask, 1)
            return whole
        parts: Mask = tensor.strided(self._mask, ratio, (ratio,), (1,))
        return parts


class Storage:
    """One allocation: ``partitions`` rows of ``row_bytes`` bytes on chip, one row in HBM.

    ``data`` is None in trace-only mode. ``written`` is the set of elements with a defined value,
    ``products`` (PSUM only) the set of elements last written by a matrix product.
    """

    __slots__ = (
        "address", "argument", "buffer", "cache", "chains", "collective", "copied", "data", "dtype", "file", "ident",
        "line", "loop", "name", "partition_start", "partitions", "products", "readonly", "reused", "row_bytes",
        "scope", "shape", "shared", "written",
    )  # fmt: skip

    def __init__(
        self,
        ident: int,
        shape: tuple[int, ...],
        dtype: str,
        buffer: Buffer,
        *,
        name: str = "",
        shared: bool = False,
        data: Array | None = None,
        written: bool = False,
        location: tuple[str, int] = ("", 0),
        address: tuple[int, int] | None = None,
    ) -> None:
        self.ident = ident
        self.shape = shape
        self.dtype = dtype
        self.buffer: Buffer = buffer
        self.name = name
        self.shared = shared
        self.file, self.line = location
        self.address = address
        self.partition_start = 0 if address is None else address[0]
        itemsize = STORAGE[dtype].itemsize
        self.partitions = 1 if buffer == "hbm" else shape[0]
        self.row_bytes = _product(shape) * itemsize // self.partitions
        self.data = data
        self.readonly = False
        self.argument = False  # whether it is an argument of the launch
        self.scope: Any = None  # the iteration of a device loop in which it was allocated
        self.loop: Any = None  # the device loop that uses it, if it is PSUM
        self.chains: dict[Any, int] = {}  # PSUM region of each unread sum -> its number of products
        self.collective = ""  # the first collective that reads or writes it
        self.copied = -1  # number of core meetings before the last copy into it; -1: no copy yet
        self.reused = False  # whether an instruction has read sums of products from it
        nbytes = self.partitions * self.row_bytes
        self.written = Marks(nbytes, itemsize, written)
        self.products = Marks(nbytes, itemsize, False) if buffer == "psum" else None
        self.cache: dict[Any, Array] = {}  # float32 copies of tiles; every write empties it

    @property
    def nbytes(self) -> int:
        return self.partitions * self.row_bytes

    def remember(self, key: Any, copy: Array) -> None:
        """Keep a float32 copy of a view; drop the others if all would exceed CACHE_RATIO times the tile."""
        if sum(c.nbytes for c in self.cache.values()) + copy.nbytes > CACHE_RATIO * self.nbytes:
            self.cache.clear()
        self.cache[key] = copy


def fresh(shape: tuple[int, ...], dtype: str, other: bool = False) -> Array:
    """Bytes of a new allocation: NaN (floats) or a pattern (integers); with ``other``, the values of a second run."""
    storage = STORAGE[dtype]
    size = _product(shape)
    if is_float(dtype) and dtype not in PACKED:
        return np.full(size, OTHER_FLOAT if other else np.nan, storage).view(np.uint8)
    return np.full(size * storage.itemsize, OTHER_INTEGER if other else HOSTILE_INTEGER, np.uint8)


def _product(shape: Iterable[int]) -> int:
    size = 1
    for extent in shape:
        size *= extent
    return size


def check_capacity(
    allocations: Sequence[Allocation], hardware: Hardware, beyond: Callable[[str, str, int], None]
) -> tuple[int, int]:
    """Peak SBUF bytes per partition and peak PSUM banks over the instructions' order.

    An allocation is live from the first instruction that uses it to the last. Every tensor occupies its bytes in all
    partitions: the compiler does not pack narrow tensors side by side. If the peak exceeds the target's memory,
    ``beyond`` is called with a message, file and line, because the compiler may spill SBUF. Raises SimulatorError if
    two live tensors placed by hand overlap.
    """
    _refuse_overlaps([a for a in allocations if a.address is not None and a.first >= 0])
    sbuf, where = _peak([a for a in allocations if a.buffer == "sbuf"], lambda a: a.bytes_per_partition)
    limit = hardware.sbuf_bytes_per_partition
    if sbuf > limit:
        spilled = (sbuf - limit) * PARTITIONS
        seconds = 2 * spilled / hardware.hbm_bytes_per_s
        beyond(
            f"{sbuf} bytes of SBUF per partition are live at once, {hardware.name} has {limit}; "
            f"the largest are {_largest(where)}; a spill and a reload of the rest move {2 * spilled:,} bytes, "
            f"at least {seconds * 1e6:.1f} µs",
            where[-1].file, where[-1].line,
        )  # fmt: skip
    sums = [a for a in allocations if a.buffer == "psum" and a.first >= 0]
    banks = packed(sums)
    if banks > PSUM_BANKS:
        total, where = _peak(sums, lambda a: a.bytes_per_partition)
        beyond(
            f"{banks} PSUM banks of {PSUM_BANK_BYTES} bytes are live at once, {hardware.name} has {PSUM_BANKS}: "
            f"{total} bytes per partition in tensors of which none crosses a bank; the largest are {_largest(where)}",
            where[-1].file, where[-1].line,
        )  # fmt: skip
    return sbuf, banks


def packed(allocations: Sequence[Allocation]) -> int:
    """The peak number of PSUM banks in use if tensors share banks.

    Tensors of at most a bank share banks without crossing them; a larger tensor uses whole banks. A user's kernel with
    twelve live tensors ran on trn1 and trn2 (docs/hardware.md#memory). The largest tensors are placed first.
    """
    changes: dict[int, Counter[int]] = {}
    for a in allocations:
        changes.setdefault(a.first, Counter())[a.bytes_per_partition] += 1
        changes.setdefault(a.last + 1, Counter())[a.bytes_per_partition] -= 1
    live: Counter[int] = Counter()
    most = 0
    for _, change in sorted(changes.items()):
        for nbytes, count in change.items():
            live[nbytes] += count
        most = max(most, _banks_of(tuple(sorted(live.elements(), reverse=True))))
    return most


@functools.lru_cache(maxsize=1024)
def _banks_of(sizes: tuple[int, ...]) -> int:
    """Number of banks for tensors of the given bytes, in descending order."""
    room: list[int] = []
    for nbytes in sizes:
        found = next((place for place, rest in enumerate(room) if nbytes <= rest), None)
        if found is not None:
            room[found] -= nbytes
        else:
            room += [0] * (psum_banks(nbytes) - 1)
            room.append(PSUM_BANK_BYTES - nbytes if nbytes <= PSUM_BANK_BYTES else 0)
    return len(room)


def psum_banks(nbytes: int) -> int:
    return -(-nbytes // PSUM_BANK_BYTES)


def _refuse_overlaps(placed: Sequence[Allocation]) -> None:
    """Refuse two tensors that were placed by hand on the same bytes and are live at the same time."""
    order = sorted(placed, key=lambda a: a.first)
    for position, a in enumerate(order):
        for b in order[position + 1 :]:
            if b.first > a.last:
                break
            assert a.address is not None and b.address is not None
            apart = (
                a.buffer != b.buffer
                or a.address[0] + a.shape[0] <= b.address[0]
                or b.address[0] + b.shape[0] <= a.address[0]
                or a.address[1] + a.bytes_per_partition <= b.address[1]
                or b.address[1] + b.bytes_per_partition <= a.address[1]
            )
            if not apart:
                raise SimulatorError(
                    f"{b.name or 'tensor'} {b.shape} at address {b.address} overlaps {a.name or 'tensor'} {a.shape} of "
                    f"line {a.line} at {a.address}, and both are live at instruction {b.first}",
                    rule=11,
                    file=b.file,
                    line=b.line,
                )


def _peak(allocations: Sequence[Allocation], need: Any) -> tuple[int, list[Allocation]]:
    """Peak of the summed ``need`` over time, and the allocations live at the peak in order of allocation."""
    events: dict[int, int] = {}
    for a in allocations:
        if a.first >= 0:
            events[a.first] = events.get(a.first, 0) + need(a)
            events[a.last + 1] = events.get(a.last + 1, 0) - need(a)
    level = peak = 0
    when = -1
    for index in sorted(events):
        level += events[index]
        if level > peak:
            peak, when = level, index
    return peak, [a for a in allocations if 0 <= a.first <= when <= a.last]


def _largest(allocations: Sequence[Allocation]) -> str:
    shown = 3  # enough to find the cause
    largest = sorted(allocations, key=lambda a: -a.bytes_per_partition)[:shown]
    return ", ".join(f"{a.name or 'unnamed'} {a.shape} {a.dtype} of line {a.line}" for a in largest)
