"""Bytes of integers to balanced bfloat16 digits in HBM, once per operand: 14 bytes an element at seven digits.

A byte of q + 0x80...80 less 128 is a digit of q in [-128, 127], which bfloat16 holds exactly. The host ships
the words of trnpy._engine.digits as they lie in its memory; here VectorE and ScalarE read every s-th byte. Where K
runs along the rows TensorE turns tiles of digits, exactly.

Bound by DMA, which moves 22 bytes an element: 2.5 % of the time of the product at 4096^3 for each operand.
Transposed digits of 8192 x 8192 need 54,000 instructions, too many without a device loop (shared/blocks.walk).
"""

import nki
import nki.isa as nisa
import nki.language as nl

from ..shared.blocks import identity_of, pieces, tile, turn, turned_format, view, walk
from ..shared.digit_sums import shift

TILE = 128
LONG, SHORT = 1024, 256  # of a block, along the rows of the result and across: runs of 2 KiB in HBM at bfloat16
ELEMENT = 16  # digits and bytes
BANK = 512  # turned digits side by side
TURN_BANKS = 4
HALF = 128.0  # a byte minus its digit


@nki.jit
def digits_split(x, width, places, turned=False, packed=False, biases=True):
    """(s, rows, columns) bfloat16, or (s, columns, rows) if turned, of x (rows, width columns) uint8 in HBM.

    packed, and not turned: (rows, s columns), all digits of a row side by side, as block-sparse products read them.

    width: bytes of one element, the lowest first; places: for each digit, which byte of the element it is. Without
    ``biases`` VectorE makes all digits, for a device whose ScalarE does not add exactly.
    """
    rows, columns = x.shape[0], x.shape[1] // width
    digits = len(places)
    shape = (digits, columns, rows) if turned else (digits, rows, columns)
    if packed:
        shape = (rows, digits * columns)
    out = nl.ndarray(shape, dtype=nl.bfloat16, buffer=nl.shared_hbm)
    split(
        planes=x.reshape((1, rows, width * columns)), out=out, width=width, places=places, turned=turned, packed=packed,
        biases=biases,
    )  # fmt: skip
    return out


def split(planes, out, width, places, turned, packed=False, walks=1, biases=True):
    """The same inside a kernel. planes (p, rows, columns) of 32-bit words, or (1, rows, width columns) of bytes.

    Byte b of plane p is place ``width p + b``, width 4 for words; a digit at a place below zero is zero. ``walks``: as
    ``blocks.walk`` takes it.
    """
    item = width if planes.dtype == nl.uint8 else 1  # elements of a plane for one of the matrix
    rows, columns = planes.shape[1], planes.shape[2] // item
    digits = len(places)
    row, apart = (digits * columns, columns) if packed else (columns, rows * columns)
    job = {
        "planes": planes, "out": out, "width": width, "item": item, "places": places, "turned": turned,
        "row": row, "apart": apart, "biases": biases, "identity": identity_of(dtype=nl.bfloat16) if turned else None,
    }  # fmt: skip
    long = LONG if digits + width * planes.shape[0] <= ELEMENT else LONG // 2  # of which two blocks fit on the chip
    for r_piece in pieces(extent=rows, block=long if turned else SHORT):
        r0, r_size, r_count = r_piece
        for c_piece in pieces(extent=columns, block=SHORT if turned else long):
            c0, c_size, c_count = c_piece
            job["size"] = (r_size, c_size)
            across = planes.shape[2]
            spots = [
                [([[item * c_size, c_count], [r_size * across, r_count]], r0 * across + item * c0)],
                [([[c_size, c_count], [r_size * row, r_count]], r0 * row + c0)],
            ]
            if turned:
                spots[1] = [([[c_size * rows, c_count], [r_size, r_count]], c0 * rows + r0)]
            steps = (r_size + TILE - 1) // TILE * (1 + planes.shape[0] + digits * (4 if turned else 1))
            walk(job=job, start=_start, body=_block, spots=spots, steps=steps, walks=walks)


def _start(job):
    """PSUM of an iteration."""
    job["banks"] = []
    for _ in range(TURN_BANKS if job["turned"] else 0):
        form = turned_format(dtype=nl.bfloat16)
        job["banks"].append(nl.ndarray((TILE, BANK), dtype=form, buffer=nl.psum))


def _block(job, at):
    """One block: bytes minus 128, and their transposes if K runs along the rows."""
    x, width, item, places = job["planes"], job["width"], job["item"], job["places"]
    r_size, c_size = job["size"]
    digits, planes, across = len(places), [], x.shape[2]
    for i in range(0, r_size, TILE):
        height = min(TILE, r_size - i)
        sources = []
        for p in range(x.shape[0]):
            source = tile(job=job, shape=(height, item * c_size), dtype=x.dtype)
            pattern = [[across, height], [1, item * c_size]]
            offset = p * x.shape[1] * across + i * across
            nisa.dma_copy(dst=source, src=view(x=x, at=at[0], pattern=pattern, offset=offset))
            sources.append(source if x.dtype == nl.uint8 else source.view(nl.uint8))
        plane = tile(job=job, shape=(height, digits * c_size), dtype=nl.bfloat16)
        planes.append(plane)
        for d in range(digits):
            place = plane[:, d * c_size : (d + 1) * c_size]
            if places[d] < 0:
                nisa.memset(dst=place, value=0.0, engine=nisa.engine.vector)
            else:
                byte = sources[places[d] // width][:, places[d] % width : width * c_size : width]
                by_scalar = job["turned"] or d % 2 == 0
                shift(dst=place, data=byte, number=-HALF, biases=by_scalar and job["biases"])
        if not job["turned"]:
            pattern = [[job["row"], height], [job["apart"], digits], [1, c_size]]
            nisa.dma_copy(dst=view(x=job["out"], at=at[1], pattern=pattern, offset=i * job["row"]), src=plane)
    if job["turned"]:
        for c in range(0, c_size, TILE):
            _turn(job=job, at=at[1], planes=planes, c=c, height=min(TILE, c_size - c))


def _turn(job, at, planes, c, height):
    """Columns c to c + height of every digit of a block, as rows of the result."""
    digits, length, across = job["out"].shape
    r_size, c_size = job["size"]
    result = tile(job=job, shape=(height, digits * r_size), dtype=nl.bfloat16)
    each, used = BANK // TILE, 0
    for d in range(digits):
        for i0 in range(0, len(planes), each):
            start, stop = i0 * TILE, min(r_size, (i0 + each) * TILE)
            bank = job["banks"][used % TURN_BANKS][0:height, 0 : stop - start]
            used = used + 1
            for i in range(i0, min(i0 + each, len(planes))):
                first = i * TILE - start
                turn(
                    dst=bank[:, first : first + planes[i].shape[0]],
                    data=planes[i][:, d * c_size + c : d * c_size + c + height],
                    identity=job["identity"],
                )
            place = result[:, d * r_size + start : d * r_size + stop]
            nisa.tensor_copy(dst=place, src=bank, engine=nisa.engine.vector)
    pattern = [[across, height], [length * across, digits], [1, r_size]]
    nisa.dma_copy(dst=view(x=job["out"], at=at, pattern=pattern, offset=c * across), src=result)
