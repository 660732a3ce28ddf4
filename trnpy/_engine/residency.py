"""Device-resident operands between calls: found by their address, and compared by a fingerprint."""

from __future__ import annotations

import functools
import types
import weakref
from collections import OrderedDict, deque
from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np

from trnpy._base.locks import Lock
from trnpy._base.records import record
from trnpy._engine.abstract_arrays import StandIn
from trnpy._settings.tile import area

SMALLEST = area(1 << 16)  # bytes of the smallest array that is cached: sending a smaller one is faster than comparing
TRUSTED = 256  # uses of a form before it is compared with a newly sent one; both are fetched
MOST = 4096  # addresses that are remembered: one array may have any number of views
WIDTH = 8192  # words in a row of the fingerprint, so that its work arrays stay in the second-level cache
FROZEN = -1, -1  # replaces the fingerprint of a read-only array
_HALF = np.uint64(32)


@functools.cache
def _numbers() -> tuple[np.uint64, np.uint64, np.ndarray]:
    """Base, mixer and weights (2, WIDTH) of fingerprints, random in each process: nobody can plan collisions."""
    random = np.random.default_rng()
    # The base is 3 modulo 8: powers of such a number never cancel in pairs modulo 2^33.
    base = random.integers(0, 2**61, dtype=np.uint64) * np.uint64(8) + np.uint64(3)
    mixer = random.integers(0, 2**63, dtype=np.uint64) * np.uint64(2) + np.uint64(1)
    return base, mixer, random.integers(0, 2**63, (2, WIDTH), dtype=np.uint64) * np.uint64(2) + np.uint64(1)


def fingerprint(array: np.ndarray) -> tuple[int, int]:
    """Two position-dependent 64-bit sums of the bytes of ``array``, in memory order.

    The words are mixed and folded, because sign bits, multiples of 2^63 or in float32 of 2^31, would cancel in pairs.
    WIDTH columns of words are summed by Horner's rule and by sums of its partial sums, and the columns are weighted by
    odd random numbers. A change of a single word always changes the fingerprint.
    """
    if isinstance(array, StandIn):
        return array.fingerprint()
    base, mixer, weights = _numbers()
    flat = array.T if array.flags.f_contiguous else np.ascontiguousarray(array)
    octets = flat.reshape(-1).view(np.uint8)
    whole = octets.size // 8
    words = octets[: whole * 8].view(np.uint64)
    rest = np.zeros(WIDTH, np.uint64)
    tail = words[whole // WIDTH * WIDTH :]
    rest[: tail.size] = tail
    rest.view(np.uint8)[-8:] = 0  # a tail is shorter than WIDTH words, so its last word is free for odd bytes
    rest.view(np.uint8)[WIDTH * 8 - 8 : WIDTH * 8 - 8 + octets.size % 8] = octets[whole * 8 :]
    first, second, mixed, folded = (np.zeros(WIDTH, np.uint64) for _ in range(4))
    for row in (*words[: whole // WIDTH * WIDTH].reshape(-1, WIDTH), rest):
        np.multiply(row, mixer, out=mixed)
        np.right_shift(mixed, _HALF, out=folded)
        np.bitwise_xor(mixed, folded, out=folded)
        np.multiply(first, base, out=first)
        np.add(first, folded, out=first)
        np.add(second, first, out=second)
    lanes = [lane * row for lane, row in zip((first, second), weights, strict=True)]
    one, two = (int((lane ^ (lane >> _HALF)).sum()) for lane in lanes)
    return one, two


def owner(array: np.ndarray) -> np.ndarray:
    """The array that owns the memory of ``array``, or may own it."""
    array = memory(array)
    while isinstance(array.base, np.ndarray):
        array = array.base
    return array


def contents_mark(array: np.ndarray) -> tuple[int, int]:
    """The fingerprint of ``array``; FROZEN if it is trusted."""
    if isinstance(array, StandIn):
        return array.fingerprint()
    return FROZEN if trusted(array) else fingerprint(array)


def trusted(array: np.ndarray) -> bool:
    """Whether ``array`` and all arrays it is a view of are read-only."""
    a: Any = array
    while isinstance(a, np.ndarray):
        if a.flags.writeable:
            return False
        a = a.base
    return a is None or isinstance(a, bytes)  # a file may change under its map


def place(array: np.ndarray) -> int:
    """The address of the first element."""
    return int(memory(array).__array_interface__["data"][0])


def memory(array: np.ndarray) -> np.ndarray:
    """The array that holds the memory of ``array``: itself, or the memory of an abstract array."""
    return array.memory if isinstance(array, StandIn) else array


class Resident:
    """Arrays that are device-resident until it is closed. `trnpy.resident` makes it."""

    def __init__(self, arrays: Iterable[np.ndarray]) -> None:
        self.arrays = tuple(arrays)
        for a in self.arrays:
            if not isinstance(a, np.ndarray):
                raise TypeError(f"resident({type(a).__name__}): expected numpy arrays")
        # [first, last) addresses of each array, so that its views are device-resident as well.
        self._bounds = [np.lib.array_utils.byte_bounds(a) for a in self.arrays]
        with _Open.lock:
            _Open.residents = (*_Open.residents, self)

    def holds(self, address: int) -> bool:
        return any(first <= address < last for first, last in self._bounds)

    def close(self) -> None:
        """End the residency. The arrays may remain on the device as long as there is room."""
        with _Open.lock:
            _Open.residents = tuple(r for r in _Open.residents if r is not self)

    def __enter__(self) -> Resident:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: types.TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        state = "open" if self in _Open.residents else "closed"
        return f"<resident: {len(self.arrays)} arrays, {sum(a.nbytes for a in self.arrays)} bytes, {state}>"


class _Open:
    """The arrays that ``resident`` keeps now, in all threads."""

    residents: tuple[Resident, ...] = ()
    lock = Lock()  # taken by writers; readers read the tuple without it


def resident(*arrays: np.ndarray) -> Resident:
    """Keep arrays on the device from their next use until the block ends.

    Parameters
    ----------
    *arrays : ndarray
        The arrays. They may be changed meanwhile: each use compares the contents, and sends a changed array again. If
        an array and its base have ``flags.writeable = False``, it is trusted and not compared, which saves 0.2 ns a
        byte; do not make it writeable and change it.

    Returns
    -------
    Resident
        A context manager; ``close()`` ends it as well.

    Raises
    ------
    TypeError
        If an argument is not a numpy.ndarray.

    Notes
    -----
    Decisions in the block assume that these arrays have been sent already.

    Examples
    --------
    >>> import numpy as np, trnpy
    >>> a = np.ones((3, 3))
    >>> with trnpy.resident(a):
    ...     b = trnpy.matmul(a, a)
    """
    return Resident(arrays)


def pinned(address: int) -> bool:
    """Whether ``address`` lies in an array that ``resident`` keeps."""
    return any(r.holds(address) for r in _Open.residents)


class Reuse(NamedTuple):
    """The operands of a call that earlier calls also had: the index of each, and whether it is trusted."""

    kept: tuple[tuple[int, bool], ...] = ()  # device-resident
    seen: tuple[tuple[int, bool], ...] = ()  # used by most calls on the host
    uses: int = 0  # the number of those calls


NEVER = -1  # uses of an operand whose contents changed on the device: its past uses predict nothing


@record(frozen=False)
class _Uses:
    """The number of calls with an operand that the host has computed."""

    count: int
    owner: Any  # a weak reference


@record(frozen=False)
class _Entry:
    value: Any = None  # the form on the device; None if the array was used but is not cached yet
    nbytes: int = 0  # on the device
    mark: tuple[int, int] | None = None  # the fingerprint of the array from which ``value`` was made
    source_bytes: int = 0
    owner: Any = None  # a weak reference
    uses: int = TRUSTED  # of ``value`` before it is compared


class Cache:
    """Forms of arrays on one device.

    An array is sent at its first use and cached from its second use on, because temporaries have no second use. An
    array that ``resident`` keeps, or that was an operand of calls on the host, is cached at once. Every use compares
    its fingerprint, unless the array is read-only. A form is dropped when its array is freed, or as the least recently
    used one when ``limit`` bytes are in use. Resident arrays are dropped last.

    The device's memory may be corrupted. One use in TRUSTED, and the first after a wrong result, makes the form again
    and compares the two byte by byte. ``fetch`` returns the bytes of a form; without it nothing is compared.
    ``corrupted`` is called if they differ.
    """

    def __init__(
        self, fetch: Callable[[Any], bytes] | None = None, corrupted: Callable[[], None] = lambda: None
    ) -> None:
        self._fetch, self._corrupted = fetch, corrupted
        self.hits = self.misses = self.changed = self.evicted = 0
        self._entries: OrderedDict[Hashable, _Entry] = OrderedDict()
        self._freed: deque[Hashable] = deque()  # keys of freed arrays; any thread may append at any time
        self._uses: OrderedDict[Hashable, _Uses] = OrderedDict()  # by address and bytes
        self._lock = Lock()

    @property
    def nbytes(self) -> int:
        """Bytes on the device."""
        with self._lock:
            self._forget()
            return sum(e.nbytes for e in self._entries.values())

    def get(
        self, array: np.ndarray, form: Hashable, make: Callable[[], Any], nbytes: Callable[[Any], int], limit: float,
        again: bool = False,
    ) -> Any:  # fmt: skip
        """``make()`` for ``array``, or its earlier result for the same contents at the same address.

        ``form`` is everything else that the result depends on. ``nbytes`` gives the device bytes of a result; the cache
        keeps at most ``limit``. ``again``: the array will be used again, so its first form is cached.
        """
        if array.nbytes < SMALLEST:
            return make()
        address = place(array)
        key = (address, array.shape, array.strides, array.dtype.str, form)
        with self._lock:
            self._forget()
            entry = self._entries.get(key)
            if entry is None:
                self._entries[key] = entry = _Entry(source_bytes=array.nbytes, owner=self._watch(array, key))
                if not again and not pinned(address) and not self._used(address, array.nbytes):
                    self.misses += 1
                    return make()
            self._entries.move_to_end(key)
            mark, held = contents_mark(array), b""
            if entry.value is not None and entry.mark == mark:
                if entry.uses or self._fetch is None:
                    self.hits += 1
                    entry.uses -= entry.uses > 0
                    return entry.value
                held = self._fetch(entry.value)
            if entry.value is not None and not held:
                self.changed += 1
                self._uses[address, array.nbytes] = _Uses(NEVER, self._watch(array, (address, array.nbytes)))
            self.misses += 1
            entry.value, entry.nbytes, entry.uses = None, 0, TRUSTED  # free the old form before the new one is made
            value = make()
            if held and self._fetch is not None and self._fetch(value) != held:
                self._corrupted()
            # Another thread may have written to the array while it was copied, and may restore the old values later.
            if contents_mark(array) == mark and self._room(nbytes(value), limit, key):
                entry.value, entry.nbytes, entry.mark = value, nbytes(value), mark
            return value

    def _watch(self, array: np.ndarray, key: Hashable) -> Any:
        freed = self._freed
        return weakref.ref(owner(array), lambda _: freed.append(key))

    def _forget(self) -> None:
        """Drop the entries of freed arrays; above MOST entries, also those of arrays that are not cached."""
        while self._freed:
            key = self._freed.popleft()
            self._entries.pop(key, None)
            self._uses.pop(key, None)
        while len(self._uses) > MOST:
            self._uses.popitem(last=False)
        if len(self._entries) > MOST:
            seen = [key for key, entry in self._entries.items() if entry.value is None]
            for key in seen[: MOST // 2]:
                del self._entries[key]

    def _room(self, needed: int, limit: float, new: Hashable) -> bool:
        """Drop least recently used forms until ``needed`` more bytes fit ``limit``; False if they cannot fit."""
        if needed > limit:
            return False
        held = [(k, e) for k, e in list(self._entries.items()) if k != new and e.value is not None]
        held.sort(key=lambda item: pinned(item[0][0]))  # type: ignore[index]
        used = sum(e.nbytes for _, e in held)
        for key, entry in held:
            if used + needed <= limit:
                break
            used -= entry.nbytes
            self.evicted += 1
            self._entries.pop(key, None)
        return True

    def doubt(self) -> None:
        """Compare every form at its next use."""
        with self._lock:
            for entry in self._entries.values():
                entry.uses = 0

    def clear(self) -> None:
        """Drop all forms, which frees their memory."""
        with self._lock:
            self._entries.clear()

    def forms(self, array: np.ndarray) -> set[Hashable]:
        """The device-resident forms of ``array``, judged from its address alone."""
        address = place(array)
        with self._lock:
            self._forget()
            return {k[4] for k, e in self._entries.items() if k[0] == address and e.value is not None}  # type: ignore[index]

    def _used(self, address: int, nbytes: int) -> int:
        """Calls on the host with an operand, or with the complex operand that contains it."""
        found = self._uses.get((address, nbytes)) or self._uses.get((address, 2 * nbytes))
        return 0 if found is None else max(found.count, 0)

    def computed_by_host(self, arrays: Iterable[np.ndarray]) -> None:
        """Record that the host computed a call with these operands, which a device could also have computed."""
        with self._lock:
            self._forget()
            for key, a in {(place(a), a.nbytes): a for a in arrays if a.nbytes >= SMALLEST}.items():
                uses = self._uses.setdefault(key, _Uses(0, None))
                uses.owner = uses.owner or self._watch(a, key)
                uses.count += uses.count != NEVER
                self._uses.move_to_end(key)

    def reuse(self, arrays: Sequence[np.ndarray]) -> Reuse:
        """Which of ``arrays`` are device-resident, and which were operands on the host, judged from addresses alone.

        An array whose contents were found to have changed since an earlier use is neither.
        """
        if not self._entries and not self._uses and not _Open.residents:
            return Reuse()
        with self._lock:
            self._forget()
            held = {(k[0], e.source_bytes) for k, e in self._entries.items() if e.value is not None}  # type: ignore[index]
            uses = {key: found.count for key, found in self._uses.items()}
        kept, seen = [], []
        for i, a in enumerate(arrays):
            address = place(a)
            count = uses.get((address, a.nbytes), 0)
            # The real and imaginary parts of a complex operand may be separate entries.
            there = not held.isdisjoint(((address, a.nbytes), (address, a.real.nbytes)))
            if pinned(address) or (there and count != NEVER):
                kept.append((i, trusted(a)))
            elif count > 0:
                seen.append((i, trusted(a), count))
        most = max((count for _, _, count in seen), default=0)
        return Reuse(tuple(kept), tuple((i, same) for i, same, count in seen if count == most), most)
