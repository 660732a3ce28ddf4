"""Bytes of integers to balanced bfloat16 digits in HBM, once per operand: 14 bytes an element at seven digits.

A byte of q + 0x80...80 less 128 is a digit of q in [-128, 127], which bfloat16 holds exactly. The host ships
the words of trnpy._engine.digits as they lie in its memory; here VectorE and ScalarE read every s-th byte. Where K
runs along the rows TensorE turns tiles of digits, exactly.

Bound by DMA, which moves 22 bytes an element: 2.5 % of the time of the product at 4096^3 for each operand.
"""

import nki
import nki.isa as nisa
import nki.language as nl

from ..shared.blocks import pieces, tile, turned_format, view, walk

TILE = 128
LONG, SHORT = 1024, 256  # of a block, along the rows of the result and across: runs of 2 KiB in HBM at bfloat16
ELEMENT = 16  # digits and bytes
BANK = 512  # turned digits side by side
TURN_BANKS = 4
HALF = 128.0  # what a byte is larger by than its digit


@nki.jit
def digits_split(x, width, places, turned=False, packed=False):
    """(s, rows, columns) bfloat16, or (s, columns, rows) if turned, of x (rows, width columns) uint8 in HBM.

    packed, and not turned: (rows, s columns), all digits of a row side by side, as block-sparse products read them.

    width: bytes of one element, the lowest first; places: for each digit, which byte of the element it is.
    """
    rows, columns = x.shape[0], x.shape[1] // width
    digits = len(places)
    shape = (digits, columns, rows) if turned else (digits, rows, columns)
    if packed:
        shape = (rows, digits * columns)
    out = nl.ndarray(shape, dtype=nl.bfloat16, buffer=nl.shared_hbm)
    shift = nl.ndarray((TILE, 1), dtype=nl.float32, buffer=nl.sbuf)
    nisa.memset(dst=shift, value=-HALF, engine=nisa.engine.vector)
    row, apart = (digits * columns, columns) if packed else (columns, rows * columns)
    job = {
        "x": x, "out": out, "width": width, "places": places, "turned": turned, "shift": shift, "row": row,
        "apart": apart,
    }  # fmt: skip
    long = LONG if digits + width <= ELEMENT else LONG // 2  # of which two blocks fit on the chip
    for r_piece in pieces(extent=rows, block=long if turned else SHORT):
        r0, r_size, r_count = r_piece
        for c_piece in pieces(extent=columns, block=SHORT if turned else long):
            c0, c_size, c_count = c_piece
            job["size"] = (r_size, c_size)
            spots = [
                [([[width * c_size, c_count], [r_size * x.shape[1], r_count]], r0 * x.shape[1] + width * c0)],
                [([[c_size, c_count], [r_size * row, r_count]], r0 * row + c0)],
            ]
            if turned:
                spots[1] = [([[c_size * rows, c_count], [r_size, r_count]], c0 * rows + r0)]
            steps = (r_size + TILE - 1) // TILE * (2 + digits * (4 if turned else 1))
            walk(job=job, start=_start, body=_block, spots=spots, steps=steps)
    return out


def _start(job):
    """PSUM of a turn."""
    job["banks"] = []
    for _ in range(TURN_BANKS if job["turned"] else 0):
        form = turned_format(dtype=nl.bfloat16)
        job["banks"].append(nl.ndarray((TILE, BANK), dtype=form, buffer=nl.psum))


def _block(job, at):
    """One block: bytes less 128, and where K runs along the rows the transposes of these."""
    x, width, places = job["x"], job["width"], job["places"]
    r_size, c_size = job["size"]
    digits, planes = len(places), []
    for i in range(0, r_size, TILE):
        height = min(TILE, r_size - i)
        source = tile(job=job, shape=(height, width * c_size), dtype=nl.uint8)
        pattern = [[x.shape[1], height], [1, width * c_size]]
        nisa.dma_copy(dst=source, src=view(x=x, at=at[0], pattern=pattern, offset=i * x.shape[1]))
        plane = tile(job=job, shape=(height, digits * c_size), dtype=nl.bfloat16)
        planes.append(plane)
        for d in range(digits):
            place = plane[:, d * c_size : (d + 1) * c_size]
            byte = source[:, places[d] : width * c_size : width]
            if job["turned"] or d % 2 == 0:
                nisa.activation(dst=place, op=nl.copy, data=byte, bias=job["shift"][0:height, :])
            else:
                nisa.tensor_scalar(dst=place, data=byte, op0=nl.subtract, operand0=HALF)
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
                nisa.nc_transpose(
                    dst=bank[:, first : first + planes[i].shape[0]],
                    data=planes[i][:, d * c_size + c : d * c_size + c + height],
                    engine=nisa.engine.tensor,
                )
            place = result[:, d * r_size + start : d * r_size + stop]
            nisa.tensor_copy(dst=place, src=bank, engine=nisa.engine.vector)
    pattern = [[across, height], [length * across, digits], [1, r_size]]
    nisa.dma_copy(dst=view(x=job["out"], at=at, pattern=pattern, offset=c * across), src=result)
