"""The compile-time parameters of kernels: digits, words, tile shapes that fit a machine, order of blocks."""

from __future__ import annotations

from dataclasses import replace

from nkisim.hardware import Hardware
from trnpy._base.records import record

TILE, TILE_N = 128, 512  # rows of a tile and columns of one PSUM bank
BITS = 8  # of one digit: bfloat16's significand
SPARE_BYTES = 12 * 1024  # of a partition of SBUF: offset tables, and the compiler's reserve
SPARE_NUMBER_BYTES = 4 * 1024  # the same for matmul, whose tables are short
WRITTEN_BYTES = 64 * 1024  # of a partition, the limit for transfers on trn1, which slow down at 96 KiB
DIGIT_TILES = ((4, 4), (3, 4), (4, 2), (2, 2), (3, 2), (1, 2), (1, 1))  # (m, k), the best on trn2 by the model first
FLAT_DIGIT_TILES = ((1, 4), (2, 4), (4, 1))  # better if one extent is short
NUMBER_TILES = ((8, 2), (4, 2), (8, 1), (4, 1), (2, 1), (2, 4), (4, 4), (8, 4))  # (m, n)
STRIPS, OUTS, OLDS, HALVES, HELD_BYTES = 8, 3, 2, 2, 64 * 1024  # of blocks.py
DEPTH = 64  # tiles of the longest K of one launch

Tiles = tuple[int, int, int]  # of m, n and k


@record()
class Parameters:
    """One compiled variant: blocks of m_tiles x 128 by n_tiles x 512, chunks of k_tiles x 128, digits of ``bits``.

    ``wrap``: digits of integers, lowest first; a product modulo 2^(bits digits).
    """

    m_tiles: int = 8
    n_tiles: int = 2
    k_tiles: int = 8
    digits: int = 0  # 0: the kernel multiplies numbers without splitting them
    bits: int = BITS
    wrap: bool = False

    @property
    def tiles(self) -> Tiles:
        return self.m_tiles, self.n_tiles, self.k_tiles

    @property
    def words(self) -> int:
        """32-bit words of one element of a product of digits."""
        return -(-self.bits * self.digits // 32) if self.wrap else words_for(self.digits, self.bits)

    @property
    def written_bytes(self) -> int:
        """Bytes of one partition into which float64_matmul loads digits."""
        return 2 * self.k_tiles * (self.m_tiles * TILE + TILE_N) * self.digits * 2

    @property
    def sbuf_bytes(self) -> int:
        """Bytes of one partition that float64_matmul uses: slots of digits, sums, and tiles in transfer."""
        return self.written_bytes + (self.m_tiles * self.digits + 4 + self.words + 2) * TILE_N * 4

    def number_bytes(self, itemsize: int) -> int:
        """Bytes of one partition that matmul uses: strips to transpose, panels, sums, finished tiles, tiles of C0."""
        m, n, k = self.m_tiles * TILE, self.n_tiles * TILE_N, self.k_tiles
        panels = min(HELD_BYTES, DEPTH * m * itemsize) + itemsize * k * (STRIPS * TILE + HALVES * n)
        return panels + (self.m_tiles + OUTS + OLDS) * n * 4

    def loaded_bytes(self, itemsize: int) -> int:
        """Bytes of one partition that transfers write if no operand is transposed: a panel of A, two chunks of B."""
        m, n, k = self.m_tiles * TILE, self.n_tiles * TILE_N, self.k_tiles
        return min(HELD_BYTES, DEPTH * m * itemsize) + HALVES * k * n * itemsize

    def of_digits(self) -> dict[str, int | bool]:
        """Keyword arguments of float64_matmul."""
        return {
            "wrap": self.wrap,
            "words": self.words,
            "bits": self.bits,
            "m_tiles": self.m_tiles,
            "k_tiles": self.k_tiles,
        }

    def of_numbers(self) -> dict[str, int]:
        """Keyword arguments of matmul and abs_bound."""
        return {"m_tiles": self.m_tiles, "n_tiles": self.n_tiles, "k_tiles": self.k_tiles}

    def of_squares(self) -> dict[str, int]:
        """Keyword arguments of syrk."""
        return {"tiles": self.m_tiles, "k_tiles": self.k_tiles}


def number_tilings(itemsize: int, machine: Hardware, turned: bool = True) -> tuple[Tiles, ...]:
    """All choices of tiles for matmul, abs_bound and syrk that fit a machine; ``turned``: an operand is transposed."""
    longest = for_numbers(itemsize).k_tiles
    tried = [Parameters(m, n, k) for k in (longest, longest // 2) for m, n in NUMBER_TILES]
    fitting = [p for p in tried if p.number_bytes(itemsize) + SPARE_NUMBER_BYTES <= machine.sbuf_bytes_per_partition]
    if not turned and machine.timing.dma_written_bytes:
        fitting = [p for p in fitting if p.loaded_bytes(itemsize) < machine.timing.dma_written_bytes]
    return tuple(p.tiles for p in fitting)


def digit_tilings(digits: int, machine: Hardware, wrap: bool = False, bits: int = BITS) -> tuple[Tiles, ...]:
    """Every choice of tiles for products of ``digits`` digits that fits a machine."""
    tried = [Parameters(m, 1, k, digits, bits, wrap) for m, k in (*DIGIT_TILES, *FLAT_DIGIT_TILES)]
    fitting = [p for p in tried if p.sbuf_bytes + SPARE_BYTES <= machine.sbuf_bytes_per_partition]
    if machine.timing.dma_written_bytes:
        fitting = [p for p in fitting if p.written_bytes <= WRITTEN_BYTES]
    return tuple((p.m_tiles, p.n_tiles, p.k_tiles) for p in fitting)


def for_numbers(itemsize: int) -> Parameters:
    """Tiles of matmul for operands of 4 or 2 bytes: chunks of one length in bytes."""
    return Parameters(k_tiles=16 // itemsize)


def for_unturned(itemsize: int, machine: Hardware) -> Parameters:
    """The same if neither operand is turned: on trn1 half as long, so that transfers write less than 96 KiB."""
    best = for_numbers(itemsize)
    slow = machine.timing.dma_written_bytes and best.loaded_bytes(itemsize) >= machine.timing.dma_written_bytes
    return replace(best, k_tiles=best.k_tiles // 2) if slow else best


def for_bounds() -> Parameters:
    """Tiles of abs_bound: few rows, so that VectorE's work on one block overlaps with the next."""
    return Parameters(m_tiles=2, n_tiles=4)


def for_digits(digits: int, machine: Hardware, wrap: bool = False, bits: int = BITS) -> Parameters:
    """The best tiles for products of ``digits`` digits that fit the SBUF of a machine."""
    for m_tiles, n_tiles, k_tiles in digit_tilings(digits, machine, wrap, bits):
        return Parameters(m_tiles, n_tiles, k_tiles, digits, bits, wrap)
    raise ValueError(f"{digits} digits: no tile shape fits {machine.sbuf_bytes_per_partition} bytes of {machine.name}")


def for_stack(digits: int, machine: Hardware, m: int, k: int, wrap: bool = False, bits: int = BITS) -> Parameters:
    """The same for batches of products with m rows and sums of k: no larger than one product."""
    best = for_digits(digits, machine, wrap, bits)
    return replace(best, m_tiles=min(best.m_tiles, -(-m // TILE)), k_tiles=min(best.k_tiles, -(-k // TILE)))


# Whatever a stored choice may say.
TILINGS = frozenset(
    {
        *((m, n, k) for m, n in NUMBER_TILES for k in (2, 4, 8)),
        *((m, 1, k) for m, k in (*DIGIT_TILES, *FLAT_DIGIT_TILES)),
    }
)


def words_for(digits: int, bits: int = 8) -> int:
    """32-bit words of an exact result: the highest group's int32 above the bits of the others."""
    return -(-(bits * (digits - 1) + 32) // 32) if digits > 1 else 1


def lower_blocks(n: int, m_block: int, halved: bool = False) -> list[tuple[int, int, int, int, int]]:
    """(row, rows, column, columns, start in the packed result) of the blocks that meet the lower triangle.

    If ``halved`` those on the diagonal, row < column + columns, come first and fill squares.
    """
    found = []
    start = 0
    for m0, m_size, m_count in _pieces(n, m_block):
        for n0, n_size, n_count in _pieces(n, TILE_N // m_block * m_block if halved else TILE_N):
            places = [(m0 + i * m_size, n0 + j * n_size) for j in range(n_count) for i in range(m_count)]
            places = [(row, column) for row, column in places if row + m_size > column]
            if halved:
                places.sort(key=lambda place: place[0] >= place[1] + n_size)
            for row, column in places:
                found.append((row, m_size, column, n_size, start))
                start += m_size * n_size
    return found


def _pieces(extent: int, block: int) -> list[tuple[int, int, int]]:
    full = extent // block
    pieces = [(0, block, full)] if full else []
    return pieces + ([(full * block, extent - full * block, 1)] if extent > full * block else [])
