"""Bytes of integers to balanced bfloat16 digits in HBM, once per operand: 14 bytes an element at seven digits.

A byte of q + 0x80...80 less 128 is a digit of q in [-128, 127], which bfloat16 holds exactly. The host ships
the words of trnpy._engine.digits as they lie in its memory; here VectorE and ScalarE read every s-th byte. Where K
runs along the rows TensorE turns tiles of digits, exactly.

Bound by DMA, which moves 22 bytes an element: 2.5 % of the time of the product at 4096^3 for each operand.
"""

import nki
import nki.isa as nisa
import nki.language as nl

from ..shared.blocks import entry, flat, offsets, pieces, turned_format

TILE = 128
BLOCK = 512  # rows and columns: runs of 1 KiB in HBM at bfloat16, one PSUM bank of turned digits
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
    for r_piece in pieces(extent=rows, block=BLOCK):
        r0, r_size, r_count = r_piece
        for c_piece in pieces(extent=columns, block=BLOCK):
            c0, c_size, c_count = c_piece
            x_at = offsets(
                pattern=[[width * c_size, c_count], [r_size * x.shape[1], r_count]],
                start=r0 * x.shape[1] + width * c0,
            )
            if turned:
                out_at = offsets(pattern=[[c_size * rows, c_count], [r_size, r_count]], start=c0 * rows + r0)
            else:
                row = digits * columns if packed else columns
                out_at = offsets(pattern=[[c_size, c_count], [r_size * row, r_count]], start=r0 * row + c0)
            _blocks(
                x=x, out=out, width=width, places=places, turned=turned, shift=shift, x_at=x_at,
                out_at=out_at, count=r_count * c_count, r_size=r_size, c_size=c_size, packed=packed,
            )  # fmt: skip
    return out


def _blocks(x, out, width, places, turned, shift, x_at, out_at, count, r_size, c_size, packed):
    """Every block of one size."""
    digits = len(places)
    across = x.shape[1] // width
    row, apart = (digits * across, across) if packed else (across, x.shape[0] * across)
    tiles = (r_size + TILE - 1) // TILE

    def block(t):
        x_here, out_here = entry(table=x_at, t=t), entry(table=out_at, t=t)
        planes = []
        for i in range(tiles):
            height = min(TILE, r_size - i * TILE)
            source = nl.ndarray((height, width * c_size), dtype=nl.uint8, buffer=nl.sbuf)
            pattern = [[x.shape[1], height], [1, width * c_size]]
            offset = i * TILE * x.shape[1]
            nisa.dma_copy(
                dst=source, src=flat(x).ap(pattern=pattern, offset=offset, scalar_offset=x_here, indirect_dim=0)
            )
            plane = nl.ndarray((height, digits * c_size), dtype=nl.bfloat16, buffer=nl.sbuf)
            planes.append(plane)
            for d in range(digits):
                place = plane[:, d * c_size : (d + 1) * c_size]
                byte = source[:, places[d] : width * c_size : width]
                if turned or d % 2 == 0:
                    nisa.activation(dst=place, op=nl.copy, data=byte, bias=shift[0:height, :])
                else:
                    nisa.tensor_scalar(dst=place, data=byte, op0=nl.subtract, operand0=HALF)
            if not turned:
                target = flat(out).ap(
                    pattern=[[row, height], [apart, digits], [1, c_size]],
                    offset=i * TILE * row, scalar_offset=out_here, indirect_dim=0,
                )  # fmt: skip
                nisa.dma_copy(dst=target, src=plane)
        if turned:
            banks = []
            for _ in range(TURN_BANKS):
                banks.append(nl.ndarray((TILE, BLOCK), dtype=turned_format(dtype=nl.bfloat16), buffer=nl.psum))
            for c in range(0, c_size, TILE):
                _turn(
                    out=out, out_here=out_here, planes=planes, c=c, height=min(TILE, c_size - c), banks=banks,
                    r_size=r_size, c_size=c_size,
                )  # fmt: skip

    nl.fori_loop(0, nisa.register_alloc(count), block)


def _turn(out, out_here, planes, c, height, banks, r_size, c_size):
    """Columns c to c + height of every digit of a block, as rows of the result."""
    digits, length, across = out.shape
    result = nl.ndarray((height, digits * r_size), dtype=nl.bfloat16, buffer=nl.sbuf)
    for d in range(digits):
        bank = banks[d % TURN_BANKS][0:height, 0:r_size]
        for i in range(len(planes)):
            rows = planes[i].shape[0]
            data = planes[i][:, d * c_size + c : d * c_size + c + height]
            nisa.nc_transpose(dst=bank[:, i * TILE : i * TILE + rows], data=data, engine=nisa.engine.tensor)
        nisa.tensor_copy(dst=result[:, d * r_size : (d + 1) * r_size], src=bank, engine=nisa.engine.vector)
    target = flat(out).ap(
        pattern=[[across, height], [length * across, digits], [1, r_size]],
        offset=c * across, scalar_offset=out_here, indirect_dim=0,
    )  # fmt: skip
    nisa.dma_copy(dst=target, src=result)
