"""Exact sums of products of digits (integer slices), and their carries into words, for kernels that multiply digits.

A plan has the digits of an operand, the ``bits`` of a digit, whether the lowest digit is first (``wrap``), the rows and
columns of a block of the result, and the tiles of this file.
"""

import nki.isa as nisa
import nki.language as nl

from .blocks import view

TILE = 128  # rows of K on the partitions, and of M in the stationary operand
TILE_N = 512  # columns of one PSUM bank
BANKS = 8
CASTS = 4  # int32 copies of banks on their way to the sums
EXACT = 8  # products of 128 rows in one bank: sums below 2^24 of eight bits, below 2^22 of seven
RELAXED_BITS = 8  # digits of fewer bits are for narrower accumulators, whose sums are never relaxed
RELAXED = 4  # times more products in one bank of the lowest groups
RELAXED_GROUPS = 2
WORD = 32
SIGN = -(2**31)  # the bit that makes a logical shift an arithmetic one, up to a constant


def shift(dst, data, number, biases):
    """dst = data + number by ScalarE, or by VectorE where a self-test found that ScalarE does not add exactly.

    ``biases``: whether it does (docs/numerics.md#hardware-assumptions).
    """
    if biases:
        nisa.activation(dst=dst, op=nl.copy, data=data, bias=number)
    else:
        nisa.tensor_scalar(dst=dst, data=data, op0=nl.add, operand0=number)


def workspace(rows, digits, words, bits, balanced=False):
    """SBUF: copies of banks; for ``rows`` tiles the sum of each group, started; words, the carry, a part of a word."""
    casts, sums, outs = [], [], []
    for _ in range(CASTS):
        casts.append(_tile())
    for _ in range(rows):
        groups = []
        for e in range(digits):
            groups.append(_tile())
            _clear(tile=groups[e], e=e, bits=bits, last=digits - 1 if balanced else -1)
        sums.append(groups)
    for _ in range(words + 2):
        outs.append(_tile())
    return (casts, sums, outs)


def banks_of(count):
    """PSUM of one loop body: each bank has one sum of products at a time."""
    banks = []
    for _ in range(count):
        banks.append(nl.ndarray((TILE, TILE_N), dtype=nl.float32, buffer=nl.psum))
    return banks


def _tile():
    return nl.ndarray((TILE, TILE_N), dtype=nl.int32, buffer=nl.sbuf)


def products(plan, depth, half, c_at):
    """Add the products of one chunk of K to the sums; carry and store after the last, one tile behind the products."""
    digits = plan["digits"]
    m_size, n_size = plan["m_size"], plan["n_size"]
    strict = plan["wrap"] or plan["bits"] < RELAXED_BITS
    emptied = 0
    strips = (m_size + TILE - 1) // TILE
    for i in range(strips):
        rows = min(TILE, m_size - i * TILE)
        for e in range(digits):
            d = e if plan["wrap"] else digits - 1 - e
            room = EXACT if strict or d < digits - RELAXED_GROUPS else RELAXED * EXACT
            for item in _pairs(d=d, halved=plan["halved"]):
                times, firsts = item
                pairs = []
                for q in range(0, depth, TILE):
                    for x in firsts:
                        pairs.append((q, x))
                for first in range(0, len(pairs), room):
                    bank = plan["banks"][emptied % len(plan["banks"])][0:rows, 0:n_size]
                    for p in range(first, min(first + room, len(pairs))):
                        q, x = pairs[p]
                        slot, height = half * plan["k_tiles"] + q // TILE, min(TILE, depth - q)
                        left = x * m_size + i * TILE
                        y = (d - x) * n_size
                        nisa.nc_matmul(
                            dst=bank,
                            stationary=plan["lefts"][slot][0:height, left : left + rows],
                            moving=plan["rights"][slot][0:height, y : y + n_size],
                            accumulate=p > first,
                        )
                    empty(plan=plan, bank=bank, i=i, e=e, emptied=emptied, times=times)
                    emptied = emptied + 1
            if c_at != None and i > 0:  # noqa: E711
                carry_group(plan=plan, i=i - 1, e=e, c_at=c_at)
    if c_at != None:  # noqa: E711
        for e in range(digits):
            carry_group(plan=plan, i=strips - 1, e=e, c_at=c_at)


def empty(plan, bank, i, e, emptied, times=1.0):
    """Add a bank to the sum of group e of tile i; ``emptied`` banks were before it."""
    rows, columns = bank.shape
    cast = plan["casts"][emptied % CASTS][0:rows, 0:columns]
    total = plan["sums"][i][e][0:rows, 0:columns]
    nisa.activation(dst=cast, op=nl.copy, data=bank, scale=times)
    nisa.tensor_tensor(dst=total, data1=total, data2=cast, op=nl.add)


def _pairs(d, halved):
    """The products of digits x and d - x of one group, grouped by weight: (weight, every x)."""
    if not halved:
        return ((1.0, range(d + 1)),)
    found = []
    if d > 0:
        found.append((2.0, range((d + 1) // 2)))
    if d % 2 == 0:
        found.append((1.0, range(d // 2, d // 2 + 1)))
    return found


def _clear(tile, e, bits, last=-1):
    """Start a sum: subtract the excess of the carry into it and, if ``last`` >= 0, add half a digit.

    Group ``last`` starts with half a digit at every place of its 32 bits.
    """
    value = 0 if e == 0 else -(2 ** (WORD - 1 - bits))
    for place in range(0, WORD - bits if e == last else bits, bits):
        value = value + (2 ** (place + bits - 1) if last >= 0 else 0)
    nisa.memset(dst=tile, value=value, engine=nisa.engine.vector)


def carry_group(plan, i, e, c_at):
    """Put the bits of group e of tile i into their words, carry the rest, and start the next block's sum."""
    digits, words, bits = plan["digits"], plan["words"], plan["bits"]
    rows, n_size = min(TILE, plan["m_size"] - i * TILE), plan["n_size"]
    total = plan["sums"][i][e][0:rows, 0:n_size]
    outs = []
    for out in plan["outs"]:
        outs.append(out[0:rows, 0:n_size])
    carry, part = outs[words], outs[words + 1]
    word, shift = e * bits // WORD, e * bits % WORD
    begun = shift > 0  # lower groups have put bits into this word
    if e > 0:
        nisa.tensor_tensor(dst=total, data1=total, data2=carry, op=nl.add)
    if e < digits - 1:
        nisa.tensor_scalar(dst=carry, data=total, op0=nl.bitwise_xor, operand0=SIGN, op1=nl.right_shift, operand1=bits)
        kept = 2**bits - 1
    else:
        kept = -1
    place = part if begun else outs[word]
    nisa.tensor_scalar(dst=place, data=total, op0=nl.bitwise_and, operand0=kept, op1=nl.left_shift, operand1=shift)
    if begun:
        nisa.tensor_tensor(dst=outs[word], data1=outs[word], data2=part, op=nl.bitwise_or)
    over, above = WORD - shift, word + 1
    if e < digits - 1 and over < bits:
        nisa.tensor_scalar(
            dst=outs[above], data=total, op0=nl.bitwise_and, operand0=kept, op1=nl.right_shift, operand1=over
        )
    if e == digits - 1 and above < words:
        assert shift <= 24  # the subtraction is in float32
        nisa.tensor_scalar(
            dst=outs[above], data=total, op0=nl.bitwise_xor, operand0=SIGN, op1=nl.right_shift, operand1=over
        )
        nisa.tensor_scalar(dst=outs[above], data=outs[above], op0=nl.subtract, operand0=float(2 ** (shift - 1)))
    _clear(tile=total, e=e, bits=bits, last=digits - 1 if plan["balanced"] else -1)
    if e == digits - 1:
        row = plan["row"]
        for w in range(words):
            offset = w * plan["plane"] + i * TILE * row
            place = view(x=plan["c"], at=c_at, pattern=[[row, rows], [1, n_size]], offset=offset)
            nisa.dma_copy(dst=place, src=outs[w])
