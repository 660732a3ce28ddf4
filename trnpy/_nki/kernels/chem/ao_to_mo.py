"""Three-index integrals to molecular orbitals, C_left^T G_L C_right for all L: both halves in one launch.

Numbers are multiplied in float32. Digits (docs/digits.md#digits) give integers, which are exact except for the
omitted pairs of digits. The integers of the first half have half a digit added at every place, so that their bytes
minus 128 are digits, with K on the partitions. Between the halves, rounding affects only bits below the last digit.

Bound by TensorE in the model, in products whose columns are the orbitals.
"""

import nki
import nki.isa as nisa
import nki.language as nl

from ..products import float64_matmul
from ..shared import blocks
from ..shared.blocks import no_banks, pieces, tile, view, walk
from ..shared.digit_sums import shift

TILE = 128
WIDTH = 512  # columns of a tile of bytes on their way to digits
HALF = 128.0  # a byte minus its digit
WORD_BYTES = 4


@nki.jit
def ao_to_mo(g, c_left, c_right, top=0, words=(3, 3), first_tiles=(4, 4), second_tiles=(4, 4), biases=True):
    """C_left^T G_L C_right for each L, from all in HBM; nao is the number of rows of c_left.

    float32: g (L nao, nao), c_left (nao, nleft) and c_right (nao, nright); result (L nleft, nright).
    bfloat16 digits: g (s, L nao, nao), c_left (s, nao, nleft) and c_right (t, nao, nright); result int32
    (words, L nleft, nright), the product of t digits of the first half, of which the highest is byte ``top`` - 1 of
    its integer, with c_right. words and tiles (of M and K) are those of the two products of digits.
    biases: as digits_split.
    """
    if len(g.shape) == 2:
        return _numbers(g=g, c_left=c_left, c_right=c_right)
    nao, nleft = c_left.shape[1], c_left.shape[2]
    stack, digits = g.shape[1] // nao, c_right.shape[0]
    half = float64_matmul.multiply(
        a=g, b=c_left, wrap=False, words=words[0], bits=8, m_tiles=first_tiles[0], k_tiles=first_tiles[1],
        halved=False, batch=stack, balanced=True,
    )  # fmt: skip
    turned = nl.ndarray((digits, nao, stack * nleft), dtype=nl.bfloat16, buffer=nl.private_hbm)
    _to_digits(half=half, out=turned, stack=stack, nao=nao, nleft=nleft, top=top, biases=biases)
    return float64_matmul.multiply(
        a=turned, b=c_right, wrap=False, words=words[1], bits=8, m_tiles=second_tiles[0], k_tiles=second_tiles[1],
        halved=False, batch=1,
    )  # fmt: skip


def _numbers(g, c_left, c_right):
    """The same in float32: HBM holds one copy of the intermediate."""
    nao, nleft = c_left.shape
    nright, stack = c_right.shape[1], g.shape[0] // nao
    half = nl.ndarray((stack * nao, nleft), dtype=nl.float32, buffer=nl.private_hbm)
    blocks.product(
        job={"c": half, "c0": None, "scales": (None, None)}, a=g, b=c_left, m=nao, k=nao, n=nleft, a_rows=False,
        b_rows=True, tiles=(4, 1, 4), finish=blocks.store, batch=stack, jumps=(nao * nao, 0, nao * nleft),
    )  # fmt: skip
    out = nl.ndarray((stack * nleft, nright), dtype=nl.float32, buffer=nl.shared_hbm)
    blocks.product(
        job={"c": out, "c0": None, "scales": (None, None)}, a=half, b=c_right, m=nleft, k=nao, n=nright, a_rows=False,
        b_rows=True, tiles=(4, 1, 4), finish=blocks.store, batch=stack, jumps=(nao * nleft, 0, nleft * nright),
    )  # fmt: skip
    return out


def _to_digits(half, out, stack, nao, nleft, top, biases):
    """Integers of the first half (words, L nao, nleft) as balanced digits (t, nao, L nleft), the highest byte first."""
    words, digits = half.shape[0], out.shape[0]
    width = min(nleft, WIDTH)
    group = min(stack, max(1, WIDTH // width))
    job = {"half": half, "out": out, "stack": stack, "nao": nao, "nleft": nleft, "top": top, "biases": biases}
    for l_piece in pieces(extent=stack, block=group):
        l0, l_size, l_count = l_piece
        for c_piece in pieces(extent=nleft, block=width):
            c0, c_size, c_count = c_piece
            for n_piece in pieces(extent=nao, block=TILE):
                n0, n_size, n_count = n_piece
                job["size"] = (l_size, c_size, n_size)
                source = [[l_size * nao * nleft, l_count], [c_size, c_count], [n_size * nleft, n_count]]
                target = [[l_size * nleft, l_count], [c_size, c_count], [n_size * stack * nleft, n_count]]
                spots = (
                    [(source, (l0 * nao + n0) * nleft + c0)],
                    [(target, n0 * stack * nleft + l0 * nleft + c0)],
                )
                walk(job=job, start=no_banks, body=_tile, spots=spots, steps=words + digits + 1)


def _tile(job, at):
    """Digits of ``n_size`` rows of ``l_size`` matrices."""
    half, out, stack, nao, nleft = job["half"], job["out"], job["stack"], job["nao"], job["nleft"]
    l_size, c_size, n_size = job["size"]
    words, digits, wide = half.shape[0], out.shape[0], l_size * c_size
    octets = []
    for w in range(words):
        found = tile(job=job, shape=(n_size, wide), dtype=nl.int32)
        pattern = [[nleft, n_size], [nao * nleft, l_size], [1, c_size]]
        offset = w * half.shape[1] * half.shape[2]
        nisa.dma_copy(dst=found, src=view(x=half, at=at[0], pattern=pattern, offset=offset))
        octets.append(found.view(nl.uint8))
    planes = tile(job=job, shape=(n_size, digits, wide), dtype=nl.bfloat16)
    for d in range(digits):
        place = job["top"] - 1 - d
        octet = octets[place // WORD_BYTES][:, place % WORD_BYTES : WORD_BYTES * wide : WORD_BYTES]
        shift(dst=planes[:, d, :], data=octet, number=-HALF, biases=d % 2 == 0 and job["biases"])
    pattern = [[stack * nleft, n_size], [nao * stack * nleft, digits], [nleft, l_size], [1, c_size]]
    nisa.dma_copy(dst=view(x=out, at=at[1], pattern=pattern), src=planes)
