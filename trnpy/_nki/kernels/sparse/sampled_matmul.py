"""The 128 x 128 tiles of A B that a sparse pattern names, and no others: one launch, masks applied on the way out.

The gradient of a block-sparse product with respect to its matrix, and the scores of block-sparse attention. Tiles
come out as bsr_spmm takes them, with the columns of the product on their rows.
"""

import nki
import nki.isa as nisa
import nki.language as nl

from ..shared.blocks import entry, flat, offsets

TILE = 128
TURN = 4  # tiles a turn, each with operands and a PSUM bank of its own


@nki.jit
def sampled_matmul(a, b, left_at, right_at, masks=None, mask_at=None):
    """(T 128, 128) float32: tile t is the transpose of rows left_at[t] of A times columns right_at[t] of B.

    a (K, M) and b (K, N), K on the rows of both, float32 or bfloat16; left_at, right_at (1, T) int32: the first row
    and column of each tile, T a multiple of 4. masks (P 128, 128) float32, transposed as tiles are, multiply tile t
    element by element with the mask that begins at element mask_at[t] (1, T).
    """
    k, count = a.shape[0], left_at.shape[1]
    c = nl.ndarray((count * TILE, TILE), dtype=nl.float32, buffer=nl.shared_hbm)
    tiles = (k + TILE - 1) // TILE
    lefts, rights, outs, covers = [], [], [], []
    for _ in range(TURN):
        lefts.append(nl.ndarray((TILE, tiles * TILE), dtype=a.dtype, buffer=nl.sbuf))
        rights.append(nl.ndarray((TILE, tiles * TILE), dtype=a.dtype, buffer=nl.sbuf))
        outs.append(nl.ndarray((TILE, TILE), dtype=nl.float32, buffer=nl.sbuf))
        covers.append(nl.ndarray((TILE, TILE), dtype=nl.float32, buffer=nl.sbuf))
    c_at = offsets(pattern=[[TILE * TILE, count]], start=0)
    square = [[TILE, TILE], [1, TILE]]

    def turn(t):
        for q in range(TURN):
            bank = nl.ndarray((TILE, TILE), dtype=nl.float32, buffer=nl.psum)
            for part in ((a, left_at, lefts), (b, right_at, rights)):
                x, table, slots = part
                at = entry(table=table, t=t, ahead=q)
                width = x.shape[1]
                for i in range(tiles):
                    height = min(TILE, k - i * TILE)
                    source = flat(x).ap(
                        pattern=[[width, height], [1, TILE]], offset=i * TILE * width, scalar_offset=at, indirect_dim=0
                    )
                    nisa.dma_copy(dst=slots[q][0:height, i * TILE : (i + 1) * TILE], src=source)
            for i in range(tiles):
                height = min(TILE, k - i * TILE)
                nisa.nc_matmul(
                    dst=bank,
                    stationary=rights[q][0:height, i * TILE : (i + 1) * TILE],
                    moving=lefts[q][0:height, i * TILE : (i + 1) * TILE],
                    accumulate=i > 0,
                )
            if masks == None:  # noqa: E711 - NKI has no `is`
                nisa.activation(dst=outs[q], op=nl.copy, data=bank)
            else:
                at = entry(table=mask_at, t=t, ahead=q)
                nisa.dma_copy(
                    dst=covers[q], src=flat(masks).ap(pattern=square, offset=0, scalar_offset=at, indirect_dim=0)
                )
                nisa.tensor_tensor(dst=outs[q], data1=covers[q], data2=bank, op=nl.multiply)
            here = entry(table=c_at, t=t, ahead=q)
            nisa.dma_copy(dst=flat(c).ap(pattern=square, offset=0, scalar_offset=here, indirect_dim=0), src=outs[q])

    nl.fori_loop(0, nisa.register_alloc(count), turn, step=TURN)
    return c
