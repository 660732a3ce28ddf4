"""Exact integer products of matrices given as bfloat16 digits (integer slices), as 32-bit two's complement words.

V = sum over i + j < s of A_i B_j 2^(bits (s-1-i-j)): Ozaki's scheme I (docs/digits.md#digits) with s digits, the
most significant first. Up to 8 products of 128 rows of 8-bit digits are exact in one PSUM bank; then the
bank is emptied: ScalarE casts it to int32 and GpSimd adds it to its group's sum, both exactly. No
float32 hi/lo pair is needed. VectorE only computes the carries between the groups after K, s of them
for a finished tile, one after each group of the next tile so that no engine waits. Groups of the two
lowest weights sum four times as many products (below 2^-54 of the largest term).

Bound by TensorE, by the model: at s = 7 and K chunks of 512 a bank is emptied every 10.2 products (2.2 us),
which keeps ScalarE busy for 0.5 us and GpSimd for 1 us. GpSimd would keep up even at half the modelled rate.
The hi/lo eviction of docs/products.md#passes needs 3 passes of VectorE for each bank, 2.9 us. If the self-test
integer_sums fails, nothing is launched, because offsets of blocks are also such sums. 4096^3 has 280,000
instructions at s = 7 and 8192^3 2,270,000, of which device loops run most (shared/blocks.walk).

Of A A^T, 16 of the 28 products of digits are enough everywhere (docs/products.md#passes: G_ij + G_ji = G_ij +
G_ij^T), which is 1.75 times less work; the blocks of the lower triangle are 28 products of half the elements,
1.78 times less at 4096 with blocks of 512, twice less in the limit. Both together, the triangle and in its
blocks on the diagonal 16 products (``halved``), do 1.96 times less work at 4096, in 1.95 times less time by
the model.
"""

import nki
import nki.isa as nisa
import nki.language as nl

from ..shared import digit_sums
from ..shared.blocks import HALVES, length_of, pieces, view, walk

TILE = 128  # rows of K on the partitions, and of M in the stationary operand
TILE_N = 512  # columns of one PSUM bank


@nki.jit
def float64_matmul(a, b=None, wrap=False, words=3, bits=8, m_tiles=4, k_tiles=4, halved=False, batch=1, beside=False):
    """(words, M, N) int32, the lowest word first: V of a (s, K, M) and b (s, K, N), bfloat16 digits in HBM.

    wrap: digits are given lowest first and V = sum of A_i B_j 2^(bits (i+j)) modulo 2^(32 words).
    Without b: b = a, and the result has only the blocks of the symmetric V that meet its lower triangle, (words, size)
    in the order of parameters.lower_blocks. If ``halved``, blocks on the diagonal are U with U + U^T = 2 V, from the
    products i < j, twice, and i = j.
    batch: a (s, batch K, M), b (s, batch K, N) and the result are stacks of matrices, one below the other. If
    ``beside``, a (s, K, batch M) has them side by side.
    """
    return multiply(
        a=a, b=b, wrap=wrap, words=words, bits=bits, m_tiles=m_tiles, k_tiles=k_tiles, halved=halved, batch=batch,
        beside=beside,
    )  # fmt: skip


def multiply(a, b, wrap, words, bits, m_tiles, k_tiles, halved, batch, balanced=False, beside=False):
    """The same inside a kernel; b may be one matrix (s, K, N) for the whole stack.

    balanced: half a digit is added at every place, so that the bytes of V less 128 are its digits in [-128, 127].
    """
    lower = b == None  # noqa: E711 - NKI has no `is`
    right = a if lower else b
    digits, k, m = a.shape
    if beside:
        m = m // batch
    else:
        k = k // batch
    n = right.shape[2]
    m_block = m_tiles * TILE
    n_block = TILE_N // m_block * m_block if halved else TILE_N  # blocks of rows must fill squares on the diagonal
    lefts, rights = [], []
    for _ in range(2 * k_tiles):
        lefts.append(nl.ndarray((TILE, digits * m_block), dtype=a.dtype, buffer=nl.sbuf))
        rights.append(nl.ndarray((TILE, digits * TILE_N), dtype=a.dtype, buffer=nl.sbuf))
    casts, sums, outs = digit_sums.workspace(rows=m_tiles, digits=digits, words=words, bits=bits, balanced=balanced)
    plan = {
        "a": a, "b": right, "digits": digits, "wrap": wrap, "words": words, "bits": bits, "k_tiles": k_tiles,
        "k": k, "halved": False, "balanced": balanced, "lefts": lefts, "rights": rights,
        "casts": casts, "sums": sums, "outs": outs,
    }  # fmt: skip
    size = batch * m * n
    if lower:
        size = 0
        for m_piece in pieces(extent=m, block=m_block):
            m0, m_size, m_count = m_piece
            for n_piece in pieces(extent=n, block=n_block):
                n0, n_size, n_count = n_piece
                for item in _spans(m0=m0, m_size=m_size, m_count=m_count, n0=n0, n_size=n_size, n_count=n_count):
                    above, _ = item
                    size = size + (m_count - above) * m_size * n_size
    c = nl.ndarray((words, size) if lower else (words, batch * m, n), dtype=nl.int32, buffer=nl.shared_hbm)
    plan["c"] = c
    plan["plane"] = size
    plan["pairs"] = digits * (digits + 1) // 2
    plan["walks"] = len(pieces(extent=m, block=m_block)) * len(pieces(extent=n, block=n_block))
    done = 0
    for m_piece in pieces(extent=m, block=m_block):
        m0, m_size, m_count = m_piece
        for n_piece in pieces(extent=n, block=n_block):
            n0, n_size, n_count = n_piece
            plan["m_size"] = m_size
            plan["n_size"] = n_size
            plan["row"] = n_size if lower else n
            if lower:
                spans = _spans(m0=m0, m_size=m_size, m_count=m_count, n0=n0, n_size=n_size, n_count=n_count)
                for part in range(2 if halved else 1):
                    plan["halved"] = halved and part == 0
                    firsts, stops = [], []
                    for item in spans:
                        above, below = item
                        firsts.append(below if part == 1 else above)
                        stops.append(below if plan["halved"] else m_count)
                    spots = _lower_spots(m0=m0, m_size=m_size, n0=n0, n_size=n_size, firsts=firsts, stops=stops)
                    count = 0
                    for run in spots[0]:
                        count = count + length_of(pattern=run[0])
                    spots.append([([[m_size * n_size, max(count, 1)]], done)])
                    done = done + count * m_size * n_size
                    if count > 0:
                        _blocks(plan=plan, spots=spots)
            else:
                jump = 0 if right.shape[1] == k else k * n
                spots = (
                    [([[m if beside else k * m, batch], [0, n_count], [m_size, m_count]], m0)],
                    [([[jump, batch], [n_size, n_count], [0, m_count]], n0)],
                    [([[m * n, batch], [n_size, n_count], [m_size * n, m_count]], m0 * n + n0)],
                )
                _blocks(plan=plan, spots=spots)
    return c


def _spans(m0, m_size, m_count, n0, n_size, n_count):
    """For each column of blocks: the first block of rows that meets the lower triangle, and that lies below all of it.

    Blocks between the two are on the diagonal.
    """
    spans = []
    for j in range(n_count):
        left, right = n0 + j * n_size, n0 + (j + 1) * n_size
        above = (left - m0) // m_size if left > m0 else 0
        below = (right - m0 + m_size - 1) // m_size if right > m0 else 0
        spans.append((min(above, m_count), min(below, m_count)))
    return spans


def _lower_spots(m0, m_size, n0, n_size, firsts, stops):
    """Where blocks of rows from ``firsts`` to ``stops`` of every column of blocks begin in both operands."""
    left, right = [], []
    for j in range(len(firsts)):
        if stops[j] > firsts[j]:
            left.append(([[m_size, stops[j] - firsts[j]]], m0 + firsts[j] * m_size))
            right.append(([[0, stops[j] - firsts[j]]], n0 + j * n_size))
    return [left, right]


def _blocks(plan, spots):
    """Every block of one size."""
    depth, rows = (plan["k"] + TILE - 1) // TILE, (plan["m_size"] + TILE - 1) // TILE
    chunks = (depth + plan["k_tiles"] - 1) // plan["k_tiles"]
    each = plan["pairs"] * depth + chunks * (plan["digits"] * 3 + 3) + plan["digits"] * 8
    walk(job=plan, start=_start, body=_block, spots=spots, steps=rows * each + 2 * depth, walks=plan["walks"])


def _start(job):
    """PSUM of an iteration."""
    job["banks"] = digit_sums.banks_of(count=digit_sums.BANKS)


def _block(job, at):
    """One block: the loop over K, then the carries."""
    k, chunk = job["k"], job["k_tiles"] * TILE
    for k0 in range(0, k, chunk):
        depth, half = min(chunk, k - k0), k0 // chunk % HALVES
        _load(plan=job, at=at, k0=k0, depth=depth, half=half)
        digit_sums.products(plan=job, depth=depth, half=half, c_at=at[2] if k0 + chunk >= k else None)


def _load(plan, at, k0, depth, half):
    """All digits of ``depth`` rows of K of both operands into one half of the slots."""
    sides = ((plan["a"], plan["lefts"], plan["m_size"]), (plan["b"], plan["rights"], plan["n_size"]))
    for q in range(0, depth, TILE):
        rows = min(TILE, depth - q)
        for side in range(2):
            x, slots, size = sides[side]
            digits, k, width = x.shape
            pattern = [[width, rows], [k * width, digits], [1, size]]
            slot = slots[half * plan["k_tiles"] + q // TILE]
            source = view(x=x, at=at[side], pattern=pattern, offset=(k0 + q) * width)
            nisa.dma_copy(dst=slot[0:rows, 0 : digits * size], src=source)
