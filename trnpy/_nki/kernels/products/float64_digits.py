"""float64 numbers to balanced bfloat16 digits, on the chip: the host sends its arrays unchanged.

NeuronCores have no float64, so a number is read as two 32-bit words. Its significand is shifted to its place among the
digits of its row, its column or the whole matrix, rounded to the nearest integer (halves away from zero) and negated by
its sign. After adding half a digit at every place, digits_split separates its bytes. The kernel also returns the
magnitudes of the certificate and the exponents of the scales, in which the host detects infinities and NaN.

Bound by VectorE: about fifty passes over each operand. 8192 x 8192 needs 56,000 to 107,000 instructions, too many for a
program without device loops (shared/blocks.walk).
"""

import nki
import nki.isa as nisa
import nki.language as nl

from ..shared import blocks, digit_sums
from . import digits_split

TILE = 128
WIDTH = 512  # columns of one tile
WALKS = 2  # to make integers, and to take them apart
KEY_BITS = 13  # of the significand, in addition to the exponent: a key of 24 bits is exact in float32
TWO_WORDS = 7  # most digits of an integer in two words; more digits need three or four words
FAINTEST = 128  # the least exponent of a row or column: relative to it subnormal numbers are zero
FIRST = 2.0**KEY_BITS - 2**6 - 1  # integers reach 0x7f7f...: numbers that begin with it or more use one bit less
HALF = 128.0 * 257.0  # half a digit at two places
ABOVE = 1.0 + 2.0**-8  # exceeds the truncation of the largest number and the rounding of a quotient by it
BIAS = 127.0  # of exponents of bfloat16, whose significands have seven bits
FAINT = 67.0 * 128.0  # bfloat16's pattern of 2^-60
MAGNITUDE = 2**31 - 1  # of the upper word: all but the sign


@nki.jit
def float64_digits(x, top=None, by_rows=True, digits=7, batch=1, biases=True):
    """Digits (s, C, R) if by_rows, else (s, R, C), |x| over the largest (R, C), both bfloat16, and exponents int32.

    x: (R, 2 C) int32 in HBM, lower and upper words of float64 side by side; digits: 2 to 12. Each row has a scale if
    by_rows, otherwise each column: sums run along it. The biased exponents of the scales, (R, 1) or (1, C), are those
    of half of what the digits reach: of the largest number, or one more. With ``top``, float32, the exponent of one
    scale for all numbers, (1, 1), or of each row, (R, 1), nothing is measured, |x| is relative to 2^top, and there is
    no third result.
    batch: x is a stack of matrices, one below the other. Each has its own scales of columns, (batch, C). biases: as
    digits_split.
    """
    rows, columns = x.shape[0], x.shape[1] // 2
    count = (8 * max(digits, TWO_WORDS) + 8 + 31) // 32  # with eight bits below the unit
    words = nl.ndarray((count, rows, columns), dtype=nl.int32, buffer=nl.private_hbm)
    magnitudes = nl.ndarray((rows, columns), dtype=nl.bfloat16, buffer=nl.shared_hbm)
    found = None
    if top == None:  # noqa: E711 - NKI has no `is`
        found = nl.ndarray((rows, 1) if by_rows else (batch, columns), dtype=nl.int32, buffer=nl.shared_hbm)
    _integers(
        x=x, top=top, by_rows=by_rows, digits=digits, batch=batch, words=words, magnitudes=magnitudes, found=found,
        biases=biases,
    )  # fmt: skip
    places = []
    for d in range(digits):
        places.append(digits - d)  # the lowest byte is below the unit
    out = nl.ndarray(
        (digits, columns, rows) if by_rows else (digits, rows, columns), dtype=nl.bfloat16, buffer=nl.shared_hbm
    )
    digits_split.split(planes=words, out=out, width=4, places=places, turned=by_rows, walks=WALKS, biases=biases)
    if top != None:  # noqa: E711
        return out, magnitudes
    return out, magnitudes, found


def _integers(x, top, by_rows, digits, batch, words, magnitudes, found, biases):
    """Words (w, R, C) of integers of balanced digits, each eight bits higher; magnitudes; exponents."""
    rows, columns = x.shape[0], x.shape[1] // 2
    job = {
        "x": x, "words": words, "magnitudes": magnitudes, "found": found,
        "further": 8.0 * max(TWO_WORDS - digits, 0), "left": 8 * max(digits, TWO_WORDS) - 46,
        "whole": None, "by_columns": None, "largest": None, "columns": columns, "narrow": [], "wide": [], "chunk": 0,
        "each": rows // batch, "tops": None, "biases": biases,
    }  # fmt: skip
    chunks = (columns + WIDTH - 1) // WIDTH
    if top != None:  # noqa: E711
        if top.shape[0] == 1:
            tops, offset = blocks.broadcast(scalar=top), nl.ndarray((TILE, 1), dtype=nl.float32, buffer=nl.sbuf)
            _offset(offset=offset, tops=tops)
            job["whole"] = (tops, offset)
        else:
            job["tops"] = top
            for _ in range(blocks.HALVES):
                narrow = []
                for _ in range(2):
                    narrow.append(nl.ndarray((TILE, 1), dtype=nl.float32, buffer=nl.sbuf))
                job["narrow"].append(narrow)
        _walk(job=job, body=_row_tile, rows=rows, steps=50 * chunks)
        return
    for _ in range(blocks.HALVES if by_rows else 0):
        narrow = []
        for dtype in (nl.float32, nl.float32, nl.float32, nl.float32, nl.float32, nl.int32, nl.int32):
            narrow.append(nl.ndarray((TILE, 1), dtype=dtype, buffer=nl.sbuf))
        job["narrow"].append(narrow)
    if by_rows:
        _walk(job=job, body=_row_tile, rows=rows, steps=50 * chunks)
        return
    job["zeros"] = nl.ndarray((TILE, TILE), dtype=nl.float32, buffer=nl.sbuf)
    nisa.memset(dst=job["zeros"], value=0.0, engine=nisa.engine.vector)
    for _ in range(blocks.HALVES if batch > 1 else 1):
        job["wide"].append(_column_tiles(columns=columns))
    if batch > 1:
        tiles = (rows // batch + TILE - 1) // TILE
        spots = []
        for size in (2 * columns * (rows // batch), columns * (rows // batch), columns):
            spots.append([([[size, batch]], 0)])
        steps = tiles * 53 * chunks + 6 * ((columns + TILE - 1) // TILE) + 8 * chunks + 4
        blocks.walk(job=job, start=_turns, body=_matrix, spots=spots, steps=steps, walks=WALKS)
        return
    _clear_keys(job=job, tiles=job["wide"][0])
    _walk(job=job, body=_column_keys, rows=rows, steps=3 * chunks)
    _turns(job=job)
    _column_tops(job=job, tiles=job["wide"][0], at=(None, 0))
    _walk(job=job, body=_row_tile, rows=rows, steps=50 * chunks)


def _walk(job, body, rows, steps):
    """body(job, at) for every 128 rows; at: their place in x, in the results, and in the exponents of rows."""
    columns = job["columns"]
    for piece in blocks.pieces(extent=rows, block=TILE):
        r0, r_size, r_count = piece
        job["rows"] = r_size
        spots = []
        for row in (2 * columns, columns, 1):
            spots.append([([[r_size * row, r_count]], r0 * row)])
        blocks.walk(job=job, start=blocks.no_banks, body=body, spots=spots, steps=steps, walks=WALKS)


def _matrix(job, at):
    """One matrix of a stack: the largest numbers of its columns, then its words and magnitudes."""
    tiles = job["wide"][job["set"]]
    _clear_keys(job=job, tiles=tiles)
    _rows(job=job, body=_column_keys, at=at)
    _column_tops(job=job, tiles=tiles, at=at[2])
    _rows(job=job, body=_row_tile, at=at)


def _rows(job, body, at):
    """body(job, at) for every 128 rows of one matrix, which begins at ``at`` in x and in the results."""
    rows, columns = job["each"], job["columns"]
    for r0 in range(0, rows, TILE):
        job["rows"] = min(TILE, rows - r0)
        source, target = at[0], at[1]
        places = [(source[0], source[1] + 2 * r0 * columns), (target[0], target[1] + r0 * columns)]
        body(job=job, at=places)


def _turns(job):
    """PSUM of an iteration: for keys of columns on the partitions, and back."""
    job["turned"] = nl.ndarray((TILE, TILE), dtype=nl.float32, buffer=nl.psum)
    job["back"] = nl.ndarray((TILE, TILE), dtype=nl.float32, buffer=nl.psum)


def _column_tiles(columns):
    """Tiles for the scales of the columns of one matrix."""
    tiles = {}
    for name in ("largest", "whole"):
        tiles[name] = nl.ndarray((TILE, columns), dtype=nl.float32, buffer=nl.sbuf)
    tiles["found"] = nl.ndarray((1, columns), dtype=nl.int32, buffer=nl.sbuf)
    tiles["highest"] = nl.ndarray((TILE, 1), dtype=nl.float32, buffer=nl.sbuf)
    tiles["spread"] = nl.ndarray((TILE, TILE), dtype=nl.float32, buffer=nl.sbuf)
    width = min(WIDTH, columns)
    for name in ("key", "part"):
        tiles[name] = nl.ndarray((TILE, width), dtype=nl.int32, buffer=nl.sbuf)
    tiles["more"] = nl.ndarray((TILE, width), dtype=nl.float32, buffer=nl.sbuf)
    return tiles


def _clear_keys(job, tiles):
    """No keys of columns yet."""
    job["largest"] = tiles["largest"]
    nisa.memset(dst=tiles["largest"], value=0.0, engine=nisa.engine.vector)


def _tile(job, columns, dtype=nl.int32, width=WIDTH):
    """A tile of a chunk; the last chunk may be narrower, and the last rows fewer."""
    return blocks.tile(job=job, shape=(TILE, width), dtype=dtype)[0 : job["rows"], 0:columns]


def _chunk(job, at, index):
    """(first column, columns, words, room for keys) of one chunk of the columns of a row tile."""
    blocks.take_set(job=job, index=job["chunk"])
    job["chunk"] = job["chunk"] + 1
    first = index * WIDTH
    size = min(WIDTH, job["columns"] - first)
    source = _tile(job=job, columns=2 * size, width=2 * WIDTH)
    pattern = [[2 * job["columns"], job["rows"]], [1, 2 * size]]
    nisa.dma_copy(dst=source, src=blocks.view(x=job["x"], at=at[0], pattern=pattern, offset=2 * first))
    key = _tile(job=job, columns=size)
    return (first, size, source, key)


def _key(source, key, size):
    """Exponents and first bits of numbers, without their signs."""
    upper = source[:, 1 : 2 * size : 2]
    nisa.tensor_scalar(
        dst=key, data=upper, op0=nl.bitwise_and, operand0=MAGNITUDE, op1=nl.right_shift, operand1=20 - KEY_BITS
    )


def _column_keys(job, at):
    """Update the largest keys of columns, for each partition, with 128 rows."""
    for index in range((job["columns"] + WIDTH - 1) // WIDTH):
        first, size, source, key = _chunk(job=job, at=at, index=index)
        _key(source=source, key=key, size=size)
        here = job["largest"][0 : job["rows"], first : first + size]
        nisa.tensor_tensor(dst=here, data1=here, data2=key, op=nl.maximum)


def _column_tops(job, tiles, at):
    """The exponents of columns on every partition, (128, C); TensorE turns keys, which float32 holds exactly.

    The largest keys of each partition become the factors of the magnitudes of columns. The exponents of the scales
    are stored at place ``at`` of the result.
    """
    columns, largest, whole = job["columns"], tiles["largest"], tiles["whole"]
    for c in range(0, columns, TILE):
        size = min(TILE, columns - c)
        here, turned, spread = tiles["highest"][0:size, :], job["turned"][0:size, :], tiles["spread"][0:size, :]
        nisa.nc_transpose(dst=turned, data=largest[:, c : c + size], engine=nisa.engine.tensor)
        nisa.tensor_reduce(dst=here, op=nl.maximum, data=turned, axis=1)
        nisa.tensor_scalar(dst=spread, data=job["zeros"][0:size, :], op0=nl.add, operand0=here)
        nisa.nc_transpose(dst=job["back"][:, 0:size], data=spread, engine=nisa.engine.tensor)
        nisa.tensor_copy(dst=whole[:, c : c + size], src=job["back"][:, 0:size], engine=nisa.engine.vector)
    for c in range(0, columns, WIDTH):
        size = min(WIDTH, columns - c)
        key, part, more = tiles["key"][:, 0:size], tiles["part"][:, 0:size], tiles["more"][:, 0:size]
        here = whole[:, c : c + size]
        nisa.tensor_copy(dst=key, src=here, engine=nisa.engine.vector)
        _tops(key=key, part=part, more=more, tops=here, inverse=largest[:, c : c + size])
    nisa.tensor_copy(dst=tiles["found"], src=whole[0:1, :], engine=nisa.engine.vector)
    target = blocks.view(x=job["found"], at=at, pattern=[[columns, 1], [1, columns]])
    nisa.dma_copy(dst=target, src=tiles["found"])
    nisa.tensor_scalar(dst=whole, data=whole, op0=nl.maximum, operand0=float(FAINTEST))
    job["by_columns"] = whole


def _tops(key, part, more, tops, inverse):
    """Exponents of half of what digits reach: of the largest numbers, or one more; inverse: 2^exponent over them.

    ``key`` is overwritten, and so are the tiles ``part`` and ``more``.
    """
    bits = 2**KEY_BITS - 1
    nisa.tensor_scalar(dst=part, data=key, op0=nl.bitwise_and, operand0=bits)
    nisa.tensor_scalar(dst=key, data=key, op0=nl.right_shift, operand0=KEY_BITS)
    nisa.tensor_scalar(
        dst=inverse, data=part, op0=nl.multiply, operand0=ABOVE / 2**KEY_BITS, op1=nl.add, operand1=ABOVE
    )
    nisa.tensor_scalar(dst=more, data=part, op0=nl.greater_equal, operand0=FIRST)
    nisa.tensor_tensor(dst=tops, data1=more, data2=key, op=nl.add)
    nisa.tensor_scalar(dst=more, data=more, op0=nl.multiply, operand0=-0.5, op1=nl.add, operand1=1.0)
    nisa.tensor_tensor(dst=inverse, data1=inverse, data2=more, op=nl.multiply)
    nisa.reciprocal(dst=inverse, data=inverse)


def _row_tile(job, at):
    """128 rows: their largest numbers, if they have scales of their own; then words and magnitudes chunk by chunk."""
    chunks, by_columns, rows = (job["columns"] + WIDTH - 1) // WIDTH, job["by_columns"], job["rows"]
    tops, offset, inverse = None, None, 1.0
    if job["whole"] != None:  # noqa: E711
        tops, offset = job["whole"][0][0:rows, :], job["whole"][1][0:rows, :]
    elif job["tops"] != None:  # noqa: E711
        tops, offset = job["narrow"][job["set"]][0][0:rows, :], job["narrow"][job["set"]][1][0:rows, :]
        nisa.dma_copy(dst=tops, src=blocks.view(x=job["tops"], at=at[2], pattern=[[1, rows], [1, 1]]))
        _offset(offset=offset, tops=tops)
    elif by_columns == None:  # noqa: E711
        tops, offset, inverse = _row_tops(job=job, at=at, chunks=chunks)
    for index in range(chunks):
        first, size, source, key = _chunk(job=job, at=at, index=index)
        place = {"first": first, "size": size, "at": at[1], "top": tops, "inverse": inverse}
        if by_columns != None:  # noqa: E711
            place["top"] = by_columns[0:rows, first : first + size]
            place["inverse"] = job["largest"][0:rows, first : first + size]
        _magnitudes(job=job, place=place, source=source, key=key, offset=offset)
        _words(job=job, place=place, source=source, shift=key)


def _row_tops(job, at, chunks):
    """(exponents, their ``_offset``, 2^exponent over the largest numbers) of 128 rows, (128, 1) each."""
    column = []
    for whole in job["narrow"][job["set"]]:
        column.append(whole[0 : job["rows"], :])
    largest, here, tops, offset, inverse, key, part = column
    nisa.memset(dst=largest, value=0.0, engine=nisa.engine.vector)
    for index in range(chunks):
        _, size, source, found = _chunk(job=job, at=at, index=index)
        _key(source=source, key=found, size=size)
        nisa.tensor_reduce(dst=here, op=nl.maximum, data=found, axis=1)
        nisa.tensor_tensor(dst=largest, data1=largest, data2=here, op=nl.maximum)
    nisa.tensor_copy(dst=key, src=largest, engine=nisa.engine.vector)
    _tops(key=key, part=part, more=here, tops=tops, inverse=inverse)
    nisa.tensor_copy(dst=key, src=tops, engine=nisa.engine.vector)
    nisa.dma_copy(dst=blocks.view(x=job["found"], at=at[2], pattern=[[1, job["rows"]], [1, 1]]), src=key)
    nisa.tensor_scalar(dst=tops, data=tops, op0=nl.maximum, operand0=float(FAINTEST))
    _offset(offset=offset, tops=tops)
    return (tops, offset, inverse)


def _offset(offset, tops):
    """The offset of the exponents and significands of bfloat16 magnitudes, as integers."""
    nisa.tensor_scalar(dst=offset, data=tops, op0=nl.subtract, operand0=BIAS, op1=nl.multiply, operand1=128.0)


def _magnitudes(job, place, source, key, offset):
    """|x| relative to 2^top, truncated to bfloat16 and at least 2^-60, times ``inverse``; zero only of zeros."""
    size = place["size"]
    upper, halves = source[:, 1 : 2 * size : 2], source.view(nl.uint16)
    nisa.tensor_scalar(dst=key, data=upper, op0=nl.bitwise_and, operand0=MAGNITUDE, op1=nl.right_shift, operand1=13)
    some = _tile(job=job, columns=size)
    if job["by_columns"] == None:  # noqa: E711
        nisa.tensor_scalar(dst=key, data=key, op0=nl.subtract, operand0=offset, op1=nl.maximum, operand1=FAINT)
    else:
        nisa.scalar_tensor_tensor(
            dst=key, data=place["top"], op0=nl.multiply, operand0=-128.0, op1=nl.add, operand1=key
        )
        nisa.tensor_scalar(dst=key, data=key, op0=nl.add, operand0=128.0 * BIAS, op1=nl.maximum, operand1=FAINT)
    nisa.tensor_scalar(dst=some, data=upper, op0=nl.left_shift, operand0=1)
    nisa.tensor_tensor(dst=some, data1=some, data2=source[:, 0 : 2 * size : 2], op=nl.bitwise_or)
    nonzero, halves = _tile(job=job, columns=size), some.view(nl.uint16)
    low, high = halves[:, 0 : 2 * size : 2], halves[:, 1 : 2 * size : 2]
    nisa.tensor_tensor(dst=nonzero, data1=low, data2=high, op=nl.maximum)
    nisa.tensor_scalar(dst=key, data=key, op0=nl.left_shift, operand0=16)
    number, magnitude = some.view(nl.float32), _tile(job=job, columns=size, dtype=nl.bfloat16)
    nisa.scalar_tensor_tensor(
        dst=number, data=nonzero, op0=nl.not_equal, operand0=0.0, op1=nl.multiply, operand1=key.view(nl.float32)
    )
    if job["by_columns"] == None:  # noqa: E711
        nisa.tensor_scalar(dst=magnitude, data=number, op0=nl.multiply, operand0=place["inverse"])
    else:
        nisa.tensor_tensor(dst=magnitude, data1=number, data2=place["inverse"], op=nl.multiply)
    target = [[job["columns"], job["rows"]], [1, size]]
    magnitudes = blocks.view(x=job["magnitudes"], at=place["at"], pattern=target, offset=place["first"])
    nisa.dma_copy(dst=magnitudes, src=magnitude)


def _words(job, place, source, shift):
    """The digits of one chunk: significands at their places in words, shifted, rounded by half a unit, negated."""
    size, top, lower = place["size"], place["top"], source[:, 0 : 2 * place["size"] : 2]
    upper, part, over = source[:, 1 : 2 * size : 2], _tile(job=job, columns=size), _tile(job=job, columns=size)
    nisa.tensor_scalar(dst=part, data=upper, op0=nl.right_shift, operand0=20, op1=nl.bitwise_and, operand1=2047)
    farthest = 32.0 * job["words"].shape[0] - 1.0  # a shift by it gives zero
    if job["by_columns"] == None:  # noqa: E711
        nisa.tensor_scalar(
            dst=shift, data=part, op0=nl.subtract, operand0=top, reverse0=True, op1=nl.add, operand1=job["further"]
        )
    else:
        nisa.scalar_tensor_tensor(
            dst=shift, data=top, op0=nl.add, operand0=job["further"], op1=nl.subtract, operand1=part
        )
    nisa.tensor_scalar(dst=shift, data=shift, op0=nl.minimum, operand0=farthest)
    words = []
    for _ in range(job["words"].shape[0]):
        words.append(_tile(job=job, columns=size))
    _place(job=job, words=words, lower=lower, upper=upper, part=part, over=over)
    _shift_right(words=words, part=part, over=over, shift=shift)
    nisa.tensor_scalar(dst=part, data=upper, op0=nl.right_shift, operand0=31)
    nisa.activation(dst=part, op=nl.copy, data=part, scale=-1.0)  # all bits of a negative number
    for word in words:
        nisa.tensor_tensor(dst=word, data1=word, data2=part, op=nl.bitwise_xor)
    _store(job=job, place=place, words=words, total=over, carry=part)


def _place(job, words, lower, upper, part, over):
    """Significands with their first bit, at the position of the largest number's first bit in its digits."""
    first, bits = job["left"] // 32, job["left"] % 32
    for w in range(len(words)):
        if w < first or w > first + 2:
            nisa.memset(dst=words[w], value=0, engine=nisa.engine.vector)
        elif w == first:
            nisa.tensor_scalar(dst=words[w], data=lower, op0=nl.left_shift, operand0=bits)
        else:
            # The upper 21 bits of the significand, the first of which is not stored.
            nisa.tensor_scalar(
                dst=over, data=upper, op0=nl.bitwise_and, operand0=2**20 - 1, op1=nl.bitwise_or, operand1=2**20
            )
            if w == first + 1:
                nisa.tensor_scalar(dst=over, data=over, op0=nl.left_shift, operand0=bits)
                nisa.tensor_scalar(dst=part, data=lower, op0=nl.right_shift, operand0=32 - bits)
                nisa.tensor_tensor(dst=words[w], data1=over, data2=part, op=nl.bitwise_or)
            else:
                nisa.tensor_scalar(dst=words[w], data=over, op0=nl.right_shift, operand0=32 - bits)


def _shift_right(words, part, over, shift):
    """Words, lower ones first, by ``shift``, which is overwritten; a single word is shifted by less than 32."""
    jump = (len(words) + 1) // 2
    while jump > 0:
        nisa.tensor_scalar(dst=part, data=shift, op0=nl.bitwise_and, operand0=32 * jump)
        far = part.view(nl.uint32)
        for w in range(len(words)):
            if w + jump < len(words):
                nisa.tensor_copy_predicated(dst=words[w], src=words[w + jump], predicate=far)
            else:
                nisa.tensor_copy_predicated(dst=words[w], src=0.0, predicate=far)
        jump = jump // 2
    nisa.tensor_scalar(dst=part, data=shift, op0=nl.bitwise_and, operand0=31, op1=nl.bitwise_xor, operand1=31)
    nisa.tensor_scalar(dst=shift, data=shift, op0=nl.bitwise_and, operand0=31)
    for w in range(len(words)):
        nisa.tensor_tensor(dst=words[w], data1=words[w], data2=shift, op=nl.right_shift)
        if w + 1 < len(words):
            nisa.tensor_scalar(dst=over, data=words[w + 1], op0=nl.left_shift, operand0=1)
            nisa.tensor_tensor(dst=over, data1=over, data2=part, op=nl.left_shift)
            nisa.tensor_tensor(dst=words[w], data1=words[w], data2=over, op=nl.bitwise_or)


def _store(job, place, words, total, carry):
    """Add half a unit and half a digit at every place, 16 bits at a time, and store the words."""
    size, rows = place["size"], job["rows"]
    for w in range(len(words)):
        halves, out = words[w].view(nl.uint16), _tile(job=job, columns=size)
        for h in range(2):
            half = halves[:, h : 2 * size : 2]
            if w + h == 0:
                digit_sums.shift(dst=total, data=half, number=HALF, biases=job["biases"])
            else:
                nisa.scalar_tensor_tensor(dst=total, data=half, op0=nl.add, operand0=HALF, op1=nl.add, operand1=carry)
            if w + 1 < len(words) or h == 0:
                nisa.tensor_scalar(dst=carry, data=total, op0=nl.right_shift, operand0=16)
            kept = out.view(nl.uint16)[:, h : 2 * size : 2]
            nisa.activation(dst=kept, op=nl.copy, data=total.view(nl.uint16)[:, 0 : 2 * size : 2])
        target = [[job["columns"], rows], [1, size]]
        offset = w * job["words"].shape[1] * job["columns"] + place["first"]
        nisa.dma_copy(dst=blocks.view(x=job["words"], at=place["at"], pattern=target, offset=offset), src=out)
