"""Products of a sparse and a dense matrix on an engine, with 128 x 128 tiles or gathered rows."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import ml_dtypes  # noqa: F401  # gives NumPy bfloat16
import numpy as np

from nkisim.hardware import Hardware
from trnpy._base.records import record
from trnpy._engine import digits as _digits
from trnpy._engine.abstract_arrays import priced, usual
from trnpy._engine.engines import BY_DIGITS, Engine, Held, Refused
from trnpy._engine.residency import fingerprint
from trnpy._engine.tuning import pieces
from trnpy._nki.kernels.shared.parameters import words_for
from trnpy._nki.kernels.sparse.bsr_spmm_reference import COLUMNS, DIGIT_COLUMNS, LARGEST, LONGEST
from trnpy.sparse._tiles import TILE, Launch, Tiling, compressed, groups, launches, rung, tiling

ZERO = 0x80  # the byte that encodes a digit of zero
DIGIT_BYTES = 2  # of one digit, or of a magnitude, in bfloat16
SPARE_BYTES = 64 * 1024  # of an SBUF partition, reserved for tables of products and for the compiler


def tiled(engine: Engine, a: Any, x: np.ndarray) -> np.ndarray:
    """A X (rows, N) with 128 x 128 tiles. A (rows, columns) and X (columns, N) have one dtype and are not empty.

    Raises Refused if the engine has no product of that accuracy, DeviceError if the device fails.
    """
    return Tiled(engine, Source.of(a, x.dtype)).times(x)


def gathered(engine: Engine, a: Any, x: np.ndarray) -> np.ndarray:
    """A X in float32, gathering a row of X for each stored element of A."""
    csr = compressed(a, x.dtype)
    parts = [csr.data.real, csr.data.imag] if csr.data.dtype.kind == "c" else [csr.data]
    columns = [x.real, x.imag] if x.dtype.kind == "c" else [x]
    both = [np.concatenate([_gather(engine, a, csr, i, p, y) for y in columns], axis=1) for i, p in enumerate(parts)]
    if len(columns) == 1:
        return both[0].astype(x.dtype)
    n = x.shape[1]
    c = np.empty((csr.shape[0], n), x.dtype, like=x)
    c.real, c.imag = both[0][:, :n], both[0][:, n:]
    if len(both) == 2:
        c.real -= both[1][:, n:]
        c.imag += both[1][:, :n]
    return c


@record(eq=False)
class Source:
    """A sparse matrix or its transpose in compressed rows, and the arrays that reveal changes of it."""

    data: np.ndarray | None  # the elements that identify what an engine has cached; None: nothing is cached
    pattern: tuple[np.ndarray, ...]
    turned: bool  # whether the rows belong to the transpose
    csr: Callable[[], Any]
    dtype: np.dtype  # in which duplicates are added

    @classmethod
    def of(cls, a: Any, dtype: np.dtype) -> Source:
        if a.format == "csc":  # as CSR of the transpose: A and A.T then share their arrays and their cached forms
            return cls(a.data, (a.indices, a.indptr), True, lambda: compressed(a.T, dtype), dtype)
        if a.format in ("csr", "bsr"):
            return cls(a.data, (a.indices, a.indptr), False, lambda: compressed(a, dtype), dtype)
        if a.format == "coo":
            return cls(a.data, tuple(a.coords), False, lambda: compressed(a, dtype), dtype)
        return cls(None, (), False, lambda: compressed(a, dtype), dtype)


def _gather(engine: Engine, a: Any, csr: Any, index: int, part: np.ndarray, x: np.ndarray) -> np.ndarray:
    """A X in float32 for one real part of A and real X."""
    c = np.zeros((-(-csr.shape[0] // TILE), TILE, x.shape[1]), np.float32, like=x)
    source = Source.of(a, x.dtype)

    def make() -> list[tuple[Launch, tuple[Held, ...]]]:
        return [
            (g.launch, tuple(engine.hold(array) for array in (g.values, g.row_of, g.column_of)))
            for g in groups(csr, part)
        ]

    made = kept(engine, source, ("groups", index, source.turned), make)
    for columns in pieces(x.shape[1], COLUMNS):
        width = columns.stop - columns.start
        right = engine.hold(padded(x[:, columns], (rung(x.shape[0]), rung(width, 1)), 0, np.float32))
        for launch, held in made:
            found = engine.get(engine.kernel("csr_spmm", *held, right, length=launch.length))
            _add(c, launch.target, found.reshape(-1, TILE, found.shape[-1])[..., :width], columns)
    return c.reshape(-1, x.shape[1])[: csr.shape[0]]


def kept(engine: Engine, source: Source, form: tuple[Any, ...], make: Callable[[], Any]) -> Any:
    """``make()``, or its earlier result if the engine has cached it for the same elements and pattern."""
    if source.data is None:
        return make()
    key = (*form, *(fingerprint(p) for p in source.pattern))
    return engine.keep(source.data, key, make)


def padded(x: np.ndarray, shape: tuple[int, ...], fill: int, dtype: Any) -> np.ndarray:
    """x padded to ``shape`` in its first axes, with ``fill`` after its elements."""
    extents = (*shape, *x.shape[len(shape) :])
    # Fresh pages from np.zeros are zero already; np.full would write them again.
    padded = np.full(extents, fill, dtype, like=x) if fill else np.zeros(extents, dtype, like=x)
    with np.errstate(over="ignore"):  # the check of the result detects an infinity
        padded[tuple(slice(0, n) for n in x.shape[: len(shape)])] = x
    return padded


def _add(c: np.ndarray, target: np.ndarray, found: np.ndarray, columns: slice) -> None:
    """c[target, :, columns] += found. Targets may repeat."""
    found = found[: len(target)]
    if len(target) > 1 and (target[1:] == target[:-1]).any():
        np.add.at(c[:, :, columns], target, found)
    else:
        c[target, :, columns] += found


def unit_for(machine: Hardware, digits: int, columns: int, turned: bool) -> int:
    """Tiles in half of the slots: the most that fit an SBUF partition with their operands and results."""
    planes, itemsize = max(digits, 1), 2 if digits else 4
    fixed = (2 * digits + 8) * 512 * 4 if digits else 2 * columns * itemsize
    for unit in (4, 2, 1):
        slots = 2 * unit * planes * itemsize * (columns + (2 if turned else 1) * TILE)
        if slots + fixed + SPARE_BYTES <= machine.sbuf_bytes_per_partition:
            return unit
    raise Refused(f"{digits} digits of {columns} columns exceed SBUF of {machine.name}")


class Tiled:
    """One sparse matrix on one engine, in the formats that its products need.

    It must not change between the products of one object, which read its elements once.
    """

    def __init__(self, engine: Engine, source: Source) -> None:
        self.engine, self.source = engine, source
        self._made: Tiling | None = None
        self._forms: dict[Any, Any] = {}

    @property
    def tiling(self) -> Tiling:
        if self._made is None:
            # Cached as long as the tiles: the next product with this matrix sends only X.
            form = ("tiling", self.source.dtype.char)
            made: Tiling = kept(self.engine, self.source, form, lambda: tiling(self.source.csr()))
            self._made = made
        return self._made

    @property
    def complex(self) -> bool:
        assert self.source is not None
        data = self.source.data if self.source.data is not None else self.tiling.data
        return data.dtype.kind == "c"

    def times(self, x: np.ndarray, digits: int | None = None) -> np.ndarray:
        """A X (rows, N). ``digits``: the number for float64, without an a-priori error bound; the caller checks."""
        if x.dtype.kind != "c":
            return self.parts(x, digits)[0].astype(x.dtype, copy=False)
        n = x.shape[1]
        both = self.parts(np.concatenate([x.real, x.imag], axis=1), digits)
        c = np.empty((both[0].shape[0], n), x.dtype, like=x)
        c.real, c.imag = both[0][:, :n], both[0][:, n:]
        if len(both) == 2:  # A is complex: its real and imaginary parts were multiplied separately
            c.real -= both[1][:, n:]
            c.imag += both[1][:, :n]
        return c

    def parts(self, x: np.ndarray, digits: int | None = None) -> list[np.ndarray]:
        """The product of real X with the real part of A, and with its imaginary part if there is one."""
        form = form_of(self.engine, x.dtype)
        count = 2 if self.complex else 1
        if form != BY_DIGITS:
            return [self._by_numbers(i, form, x) for i in range(count)]
        wide = x.astype(np.float64, copy=False)
        return [self._by_digits(i, wide, digits) for i in range(count)]

    # --- forms of the matrix ------------------------------------------------------------------------------------------

    def part(self, index: int) -> np.ndarray:
        """The real (0) or imaginary (1) parts of the elements."""
        data = self.tiling.data
        if data.dtype.kind == "c":
            return (data.imag if index else data.real).copy()
        return data

    def _layout(self) -> tuple[Tiling, np.ndarray, np.ndarray, np.ndarray, tuple[int, int]]:
        """(tiling, tile of each product, its block row of the result, its block row of X, block rows of both)."""
        t = self.tiling
        if not self.source.turned:
            return t, np.arange(len(t.row)), t.row, t.column, t.blocks
        order = np.argsort(t.column, kind="stable")
        return t, order, t.column[order], t.row[order], t.blocks[::-1]

    def _keep(self, form: tuple[Any, ...], make: Callable[[], Any]) -> Any:
        if form not in self._forms:
            self._forms[form] = kept(self.engine, self.source, form, make)
        return self._forms[form]

    def _stack(self, tiles: np.ndarray, dtype: Any) -> Held:
        """Tiles as one operand (T 128, 128) on the engine."""
        return self.engine.hold(padded(tiles, (rung(len(tiles)),), 0, dtype).reshape(-1, TILE))

    def _dense(self, part: np.ndarray, itemsize: int) -> np.ndarray:
        """The tiles of ``part``. Raises Refused, before allocating them, if they exceed one operand on the device.

        itemsize: bytes of one element on the device, in all its digits.
        """
        nbytes = rung(len(self.tiling.row)) * TILE * TILE * itemsize
        if nbytes > self._room():
            raise Refused(f"{nbytes:.3g} bytes of tiles exceed the largest operand of one launch")
        return self.tiling.tiles(part)

    def _room(self) -> float:
        """Most bytes that one operand may have."""
        return min(LARGEST, self.engine.room)

    def _strips(self, x: np.ndarray, layout: Layout, most: int, itemsize: int = 4) -> list[slice]:
        """Slices of at most ``most`` columns of X, so narrow that X and the result fit one operand each.

        itemsize: the larger of an element of X and of the result, in bytes on the device.
        """
        rows = max(layout.depth, layout.rows * TILE)
        while rows * rung(min(most, x.shape[1]), 1) * itemsize > self._room():
            if most == 1:
                raise Refused(f"{rows:.3g} rows exceed the largest operand of one launch")
            most //= 2
        return pieces(x.shape[1], most)

    def numbers(self, index: int, form: str) -> Held:
        """The tiles of a part in format ``form``, with K on the rows."""
        dtype = np.dtype(form)
        made: Held = self._keep(
            (form, index), lambda: self._stack(self._dense(self.part(index), dtype.itemsize), dtype)
        )
        return made

    def magnitudes(self, index: int) -> Held:
        """Magnitudes of the elements over the largest of each row of the result, for an a-priori error bound."""

        def make() -> Held:
            tiles = self._dense(self.part(index).astype(np.float64, copy=False), DIGIT_BYTES)
            axis = 2 if self.source.turned else 1
            return self._stack(_digits.magnitudes(tiles, axis, self._largest(tiles)), np.dtype("bfloat16"))

        made: Held = self._keep(("magnitudes", index, self.source.turned), make)
        return made

    def digits(self, index: int, digits: int) -> tuple[Held, np.ndarray]:
        """Digits of the elements, side by side, and the exponent of each row of the result (block rows, 128)."""
        made: tuple[Held, np.ndarray] = self._keep(
            ("digits", digits, index, self.source.turned), lambda: self._new_digits(index, digits)
        )
        return made

    def _largest(self, tiles: np.ndarray) -> np.ndarray:
        """The largest magnitude of A in each row of the result, in a shape that broadcasts against ``tiles``."""
        t, turned = self.tiling, self.source.turned
        blocks, axis = (t.column, 2) if turned else (t.row, 1)
        largest = np.zeros((self._layout()[4][0], TILE), like=tiles)
        np.maximum.at(largest, blocks, np.abs(tiles).max(axis=axis))
        return np.expand_dims(largest[blocks], axis)

    # --- products -----------------------------------------------------------------------------------------------------

    def _by_numbers(self, index: int, form: str, x: np.ndarray) -> np.ndarray:
        """A product in the format ``form``, with sums in float32 or a wider format."""
        dtype = np.dtype(form)
        layout = self.layout()
        tiles = self.numbers(index, form)
        c = np.zeros((layout.rows, TILE, x.shape[1]), np.promote_types(dtype, np.float32), like=x)
        for columns in self._strips(x, layout, COLUMNS):
            width = columns.stop - columns.start
            right = self.engine.hold(padded(x[:, columns], (layout.depth, rung(width, 1)), 0, dtype))
            for target, found in self.launches(layout, tiles, right, 0, rung(width, 1)):
                _add(c, target, found.reshape(-1, TILE, found.shape[-1])[..., :width], columns)
        return c.reshape(-1, x.shape[1])[: layout.height]

    def _by_digits(self, index: int, x: np.ndarray, digits: int | None) -> np.ndarray:
        """A product in float64 with ``digits`` digits, or with as many as its error bound requires."""
        layout = self.layout()
        digits = digits or self._certificate(index, x, layout)
        tiles, shift = self.digits(index, digits)
        c = np.zeros((layout.rows, TILE, x.shape[1]), like=x)
        for columns in self._strips(x, layout, DIGIT_COLUMNS, digits * DIGIT_BYTES):
            width = columns.stop - columns.start
            found, order, exponents = _digits.link_bytes(x[:, columns], digits, 0)
            raw = padded(found, (layout.depth, rung(width, 1)), ZERO, np.uint8)
            right = digits_on(self.engine, raw, order)
            for target, words in self.launches(layout, tiles, right, digits, rung(width, 1)):
                words = words[:, : len(target) * TILE, :width]
                product = _digits.assemble(words, digits, shift[target].reshape(-1, 1), exponents)
                _add(c, target, product.reshape(-1, TILE, width), columns)
        return c.reshape(-1, x.shape[1])[: layout.height]

    def _new_digits(self, index: int, digits: int) -> tuple[Held, np.ndarray]:
        """Make the result of `digits`."""
        tiles = self._dense(self.part(index).astype(np.float64, copy=False), digits * DIGIT_BYTES)
        axis = 2 if self.source.turned else 1
        found, order, exponents = _digits.link_bytes(tiles, digits, axis, largest=self._largest(tiles))
        blocks = self.tiling.column if self.source.turned else self.tiling.row
        shift = np.zeros((self._layout()[4][0], TILE), np.int64, like=tiles)
        shift[blocks] = exponents.reshape(-1, TILE)
        count = rung(len(tiles))
        raw = padded(found, (count,), ZERO, np.uint8)
        return digits_on(self.engine, raw.reshape(-1, *raw.shape[2:]), order), shift

    def _certificate(self, index: int, x: np.ndarray, layout: Layout) -> int:
        """The number of digits that is guaranteed to be enough for these values."""
        if not (usual(np.isfinite(x).all(), True) and self._finite(index)):
            raise Refused("an operand holds NaN or infinity", accuracy=True)
        tiles, bfloat16 = self.magnitudes(index), np.dtype("bfloat16")
        least = np.inf
        for columns in self._strips(x, layout, COLUMNS, DIGIT_BYTES):
            width = columns.stop - columns.start
            scaled = _digits.magnitudes(x[:, columns], 0)
            right = self.engine.hold(padded(scaled, (layout.depth, rung(width, 1)), 0, bfloat16))
            for _, found in self.launches(layout, tiles, right, 0, rung(width, 1), least=True):
                least = min(least, float(usual(found.min(), 1.0)))
        return certified(least, layout.terms)

    def _finite(self, index: int) -> bool:
        form = "finite", index
        if form not in self._forms:
            self._forms[form] = usual(np.isfinite(self.part(index)).all(), True)
        found: bool = self._forms[form]
        return found

    def layout(self) -> Layout:
        """The order of tiles for a product with a dense matrix."""
        if "layout" not in self._forms:
            self._forms["layout"] = self._ordered()
        found: Layout = self._forms["layout"]
        return found

    def _ordered(self) -> Layout:
        t, order, row, column, (rows, columns) = self._layout()
        height = t.shape[1] if self.source.turned else t.shape[0]
        terms = usual(_most_terms(t.place, t.column if self.source.turned else t.row, self.source.turned), 1)
        return Layout(order, row, column, rows, rung(columns + 1) * TILE, height, terms, not self.source.turned)

    def launches(
        self, layout: Layout, tiles: Held, right: Held, digits: int, columns: int, least: bool = False
    ) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """(block rows of the result, tiles to be added to them) for each launch."""
        kernel = "bsr_transpose_spmm" if self.source.turned else "bsr_spmm"
        unit = unit_for(self.engine.machine, digits, columns, self.source.turned)
        options: dict[str, Any] = {"unit": unit, "digits": digits, "words": words_for(digits) if digits else 3}
        left_step, right_step, last = TILE * tiles.shape[1], TILE * right.shape[1], right.shape[0] // TILE - 1
        for launch in launches(layout.row, LONGEST):
            used = np.maximum(launch.products, 0)
            met = np.where(launch.products < 0, last, layout.column[used])  # the last block of X is zeros
            if layout.ordered:
                # Short segments continue into the tiles of the next one, and begin earlier at the end of the matrix.
                first = used[:, 0]
                early = np.maximum(first + launch.length - tiles.shape[0] // TILE, 0)
                met = np.stack([np.roll(m, e) for m, e in zip(met, early, strict=True)])
                order = (first - early)[:, np.newaxis]
            else:
                order = layout.order[used]
            places = [(x * step).reshape(1, -1).astype(np.int32) for x, step in ((order, left_step), (met, right_step))]
            found = self.engine.kernel(kernel, tiles, right, *places, length=launch.length, least=least, **options)
            yield launch.target, self.engine.get(found)


@record(eq=False)
class Layout:
    """The products of tiles that form one matrix product, in their order."""

    order: np.ndarray  # (products,) tile of A
    row: np.ndarray  # (products,) block row of the result, ascending
    column: np.ndarray  # (products,) block row of X
    rows: int  # block rows of the result
    depth: int  # rows of X, padded with at least one block of zeros
    height: int  # rows of the result
    terms: int  # largest number of stored elements that one element of the result sums over
    ordered: bool  # whether tiles are used in the order in which they are stored


@priced("", lambda place, *_: (4 * place.nbytes, (((), np.dtype(np.int64)),)))
def _most_terms(place: np.ndarray, line_of: np.ndarray, turned: bool) -> int:
    """The largest number of stored elements that one element of the result sums over."""
    line = place // TILE % TILE if turned else place % TILE
    return int(np.bincount(line_of[place // TILE**2] * TILE + line).max()) if len(place) else 1


def form_of(engine: Engine, dtype: np.dtype) -> str:
    """The format in which the engine multiplies ``dtype``, or BY_DIGITS; Refused if there is none."""
    form = engine.format(dtype)
    if not form:
        raise Refused(f"self-tests found inexact products of {dtype} on this device")
    return form


def digits_on(engine: Engine, raw: np.ndarray, places: tuple[int, ...]) -> Held:
    """Digits on the engine, made there from bytes (rows, columns, width); those of an element are adjacent."""
    flat = raw.reshape(len(raw), -1)
    digits: Held = engine.kernel("digits_split", flat, width=raw.shape[2], places=places, packed=True)
    return digits


def certified(least: float, terms: int) -> int:
    """The digits that sums of ``terms`` products need; ``least`` is the smallest positive sum of magnitudes."""
    digits = _digits.digits_for(least, terms)
    if digits is None:
        most = _digits.MOST_DIGITS
        raise Refused(f"the exponent range inside its sums needs more than {most} digits", accuracy=True)
    return digits
