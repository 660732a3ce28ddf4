"""Integers of products of digits to float64, on the chip: the words that the host reads are IEEE numbers.

The magnitude of an integer is shifted until its first bit leads, cut to 53 bits, rounded to nearest by the bit below,
and joined with its exponent and sign. Magnitudes of negative integers are complements with ones behind the last bit,
which avoids a carry through all words: ties are rounded towards zero for negative numbers, away from it for positive.

Bound by VectorE: about sixty-five passes over the result. It saves the host's passes and a third of the bytes.
8192 x 8192 needs 61,000 instructions, too many for a program without a device loop (shared/blocks.walk).
"""

import nki
import nki.isa as nisa
import nki.language as nl

from ..shared import blocks

TILE = 128
WIDTH = 512  # columns of one tile
BIASED = 1021.0  # one less than the exponent field of 0.5: the first bit of a significand adds one
FIELD = 158.0  # of a float32 number in [2^31, 2^32)
ALL = 2**31  # the sign bit


@nki.jit
def float64_round(v, rows, columns, places=0, batch=1):
    """(M, 2 N) int32, lower and upper words of the float64 numbers V 2^(rows + columns).

    v: words (w, M, N) int32 of integers, lower ones first, w from 2 to 4. They have half a digit added at each of the
    lowest ``places`` bytes, which is subtracted. rows (M, 1) and columns (1, N): exponents, float32. Results must be
    normal numbers or zero.
    batch: v is a stack of matrices, one below the other. Each has its own exponents of columns, of which columns
    (2, batch N) bfloat16 has a multiple of 16 and the rest, which this format holds exactly.
    """
    count, m, n = v.shape
    out = nl.ndarray((m, 2 * n), dtype=nl.int32, buffer=nl.shared_hbm)
    chunks, each = (n + WIDTH - 1) // WIDTH, m // batch
    job = {"v": v, "down": rows, "out": out, "places": places, "chunk": 0, "columns": columns, "batch": batch}
    if batch > 1:
        job["ones"] = nl.ndarray((2, TILE), dtype=nl.bfloat16, buffer=nl.sbuf)
        nisa.memset(dst=job["ones"], value=1.0, engine=nisa.engine.vector)
    else:
        job["across"] = nl.ndarray((TILE, n), dtype=nl.float32, buffer=nl.sbuf)
        nisa.dma_copy(dst=job["across"], src=columns.ap(pattern=[[0, TILE], [1, n]]))
    for piece in blocks.pieces(extent=each, block=TILE):
        r0, r_size, r_count = piece
        job["rows"] = r_size
        spots = []
        for row in (n, 1, 2 * n):
            spots.append([([[each * row, batch], [r_size * row, r_count]], r0 * row)])
        spots.append([([[n, batch], [0, r_count]], 0)])
        steps = (44 + (15 if places == 0 else 21) * count) * chunks
        blocks.walk(job=job, start=_start, body=_row_tile, spots=spots, steps=steps)
    return out


def _start(job):
    """PSUM of an iteration, for the exponents of columns of a matrix of a stack."""
    job["banks"] = []
    for _ in range(blocks.HALVES if job["batch"] > 1 else 0):
        job["banks"].append(nl.ndarray((TILE, WIDTH), dtype=nl.float32, buffer=nl.psum))


def _row_tile(job, at):
    """128 rows, chunk by chunk; at: their place in the integers, in ``rows``, in the result, and in ``columns``."""
    n = job["v"].shape[2]
    for index in range((n + WIDTH - 1) // WIDTH):
        blocks.take_set(job=job, index=job["chunk"])
        job["chunk"] = job["chunk"] + 1
        first = index * WIDTH
        size = min(WIDTH, n - first)
        words = []
        for w in range(job["v"].shape[0]):
            word = _tile(job=job, columns=size)
            pattern = [[n, job["rows"]], [1, size]]
            offset = w * job["v"].shape[1] * n + first
            nisa.dma_copy(dst=word, src=blocks.view(x=job["v"], at=at[0], pattern=pattern, offset=offset))
            words.append(word)
        if job["places"] > 0:
            _take_off(job=job, words=words)
        down = blocks.tile(job=job, shape=(job["rows"], 1), dtype=nl.float32)
        nisa.dma_copy(dst=down, src=blocks.view(x=job["down"], at=at[1], pattern=[[1, job["rows"]], [1, 1]]))
        across = _spread(job=job, at=at[3]) if job["batch"] > 1 else job["across"][0 : job["rows"], :]
        exponent = {"down": down, "across": across[:, first : first + size]}
        out = _tile(job=job, columns=2 * size, width=2 * WIDTH)
        _round(job=job, words=words, exponent=exponent, out=out)
        target = [[2 * n, job["rows"]], [1, 2 * size]]
        nisa.dma_copy(dst=blocks.view(x=job["out"], at=at[2], pattern=target, offset=2 * first), src=out)


def _tile(job, columns, dtype=nl.int32, width=WIDTH):
    """A tile of a chunk; the last chunk may be narrower."""
    return blocks.tile(job=job, shape=(job["rows"], width), dtype=dtype)[:, 0:columns]


def _spread(job, at):
    """The exponents of columns of one matrix on every partition, by TensorE."""
    n = job["v"].shape[2]
    exponents = blocks.tile(job=job, shape=(2, n), dtype=nl.bfloat16)
    pattern = [[job["batch"] * n, 2], [1, n]]
    nisa.dma_copy(dst=exponents, src=blocks.view(x=job["columns"], at=at, pattern=pattern))
    across = job["banks"][job["set"]][0 : job["rows"], 0:n]
    nisa.nc_matmul(dst=across, stationary=job["ones"][:, 0 : job["rows"]], moving=exponents, accumulate=False)
    return across


def _take_off(job, words):
    """Subtract half a digit at each of the lowest places: add the complement, 16 bits at a time."""
    size, places = words[0].shape[1], job["places"]
    total, carry = _tile(job=job, columns=size), _tile(job=job, columns=size)
    for w in range(len(words)):
        halves = words[w].view(nl.uint16)
        for h in range(2):
            p = 4 * w + 2 * h
            less = 65535.0 - (128.0 if p < places else 0.0) - (128.0 * 256.0 if p + 1 < places else 0.0)
            half = halves[:, h : 2 * size : 2]
            if p == 0:
                nisa.tensor_scalar(dst=total, data=half, op0=nl.add, operand0=less + 1.0)
            else:
                nisa.scalar_tensor_tensor(dst=total, data=half, op0=nl.add, operand0=less, op1=nl.add, operand1=carry)
            nisa.tensor_scalar(dst=carry, data=total, op0=nl.right_shift, operand0=16)
            nisa.activation(dst=half, op=nl.copy, data=total.view(nl.uint16)[:, 0 : 2 * size : 2])


def _round(job, words, exponent, out):
    """One chunk. words become magnitudes with their first bit in the upper one, at position ``place`` from the unit."""
    size = words[0].shape[1]
    sign, part, over = _tile(job=job, columns=size), _tile(job=job, columns=size), _tile(job=job, columns=size)
    place = _tile(job=job, columns=size, dtype=nl.float32)
    nisa.tensor_scalar(dst=sign, data=words[len(words) - 1], op0=nl.right_shift, operand0=31)
    nisa.activation(dst=sign, op=nl.copy, data=sign, scale=-1.0)  # all bits of a negative number
    for word in words:
        nisa.tensor_tensor(dst=word, data1=word, data2=sign, op=nl.bitwise_xor)
    supply = _raised(words=words, sign=sign, part=part, place=place)
    high, low = words[len(words) - 1], words[len(words) - 2]
    shift = _tile(job=job, columns=size)
    _lead(high=high, low=low, supply=supply, shift=shift, part=part, over=over)
    # The exponent, to which the first bit of the significand adds one.
    nisa.tensor_tensor(dst=place, data1=place, data2=shift, op=nl.subtract)
    nisa.tensor_tensor(dst=place, data1=place, data2=exponent["across"], op=nl.add)
    nisa.tensor_scalar(dst=shift, data=place, op0=nl.add, operand0=exponent["down"])
    nisa.tensor_scalar(dst=shift, data=shift, op0=nl.left_shift, operand0=20)
    _joined(job=job, high=high, low=low, exponent=shift, sign=sign, part=part, over=over, out=out)


def _raised(words, sign, part, place):
    """Move words up if the upper ones are zero; place: the number of bits up to the first nonzero word.

    Returns the word that follows the two upper words, or the bits behind the last bit.
    """
    count = len(words)
    top = words[count - 1]
    nisa.memset(dst=place, value=32.0 * count + BIASED, engine=nisa.engine.vector)
    for jump in range(1, count + 1):
        nisa.tensor_copy(dst=part, src=top, engine=nisa.engine.vector)
        zero = part.view(nl.uint32)
        for w in range(count):
            here = words[count - 1 - w]
            source = words[count - 2 - w] if w + 1 < count else sign
            nisa.tensor_copy_predicated(dst=here, src=source, predicate=zero, reverse_pred=True)
        nisa.tensor_copy_predicated(dst=place, src=32.0 * (count - jump) + BIASED, predicate=zero, reverse_pred=True)
    return words[count - 3] if count > 2 else sign


def _lead(high, low, supply, shift, part, over):
    """Shift high and low left until the first bit leads; ``supply`` follows them. shift: by how many bits."""
    halves = high.view(nl.uint16)
    below, above = halves[:, 0 : 2 * high.shape[1] : 2], halves[:, 1 : 2 * high.shape[1] : 2]
    number = over.view(nl.float32)
    nisa.scalar_tensor_tensor(dst=number, data=above, op0=nl.multiply, operand0=65536.0, op1=nl.maximum, operand1=below)
    nisa.tensor_scalar(dst=over, data=over, op0=nl.right_shift, operand0=23)
    nisa.tensor_scalar(
        dst=shift, data=over, op0=nl.subtract, operand0=FIELD, reverse0=True, op1=nl.minimum, operand1=31.0
    )
    nisa.tensor_scalar(dst=part, data=shift, op0=nl.bitwise_xor, operand0=31)
    for pair in ((high, low), (low, supply)):
        here, following = pair
        nisa.tensor_tensor(dst=here, data1=here, data2=shift, op=nl.left_shift)
        nisa.tensor_scalar(dst=over, data=following, op0=nl.right_shift, operand0=1)
        nisa.tensor_tensor(dst=over, data1=over, data2=part, op=nl.right_shift)
        nisa.tensor_tensor(dst=here, data1=here, data2=over, op=nl.bitwise_or)


def _joined(job, high, low, exponent, sign, part, over, out):
    """Significands of 53 bits, rounded by the bit below, with exponents and signs; zero stays zero."""
    size = high.shape[1]
    nisa.tensor_scalar(dst=part, data=low, op0=nl.right_shift, operand0=11)
    nisa.tensor_scalar(dst=over, data=high, op0=nl.left_shift, operand0=21)
    nisa.tensor_tensor(dst=part, data1=part, data2=over, op=nl.bitwise_or)
    nisa.tensor_scalar(dst=low, data=low, op0=nl.right_shift, operand0=10, op1=nl.bitwise_and, operand1=1)
    halves, kept = part.view(nl.uint16), out.view(nl.uint16)
    for h in range(2):
        half = halves[:, h : 2 * size : 2]
        nisa.tensor_tensor(dst=over, data1=half, data2=low, op=nl.add)
        nisa.tensor_scalar(dst=low, data=over, op0=nl.right_shift, operand0=16)
        target = kept[:, h : 4 * size : 4]
        nisa.activation(dst=target, op=nl.copy, data=over.view(nl.uint16)[:, 0 : 2 * size : 2])
    nisa.tensor_scalar(dst=over, data=high, op0=nl.right_shift, operand0=11)
    nisa.tensor_tensor(dst=over, data1=over, data2=exponent, op=nl.add, engine=nisa.engine.gpsimd)
    nisa.tensor_tensor(dst=over, data1=over, data2=low, op=nl.add, engine=nisa.engine.gpsimd)
    nisa.tensor_scalar(dst=sign, data=sign, op0=nl.left_shift, operand0=31)
    upper, lower = out[:, 1 : 2 * size : 2], out[:, 0 : 2 * size : 2]
    nisa.tensor_tensor(dst=upper, data1=over, data2=sign, op=nl.bitwise_or)
    for word in (lower, upper):
        nisa.tensor_copy_predicated(dst=word, src=0.0, predicate=high.view(nl.uint32), reverse_pred=True)
