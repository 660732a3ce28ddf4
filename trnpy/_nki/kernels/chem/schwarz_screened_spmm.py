"""A B without the elements of A whose bound q_i q_j is at most a threshold: the mask is computed on the chip.

Rows of K are in descending order of their bounds, so that each row of A keeps the first of them. The host has counted
exactly how many. The chip compares a position with that count, two small integers, so its decisions match the host's.
Neither a mask nor a masked operand is ever in HBM. A launch has rows that keep similar numbers of rows of K
(chem/schwarz), and reads only those rows of B. Each digit is masked, and digits are multiplied as in float64_matmul.

Bound by TensorE in the model: VectorE uses 20 % of the time for masks.
"""

import nki
import nki.isa as nisa
import nki.language as nl

from ..shared import blocks, digit_sums
from ..shared.blocks import HALVES, pieces, view, walk

TILE = 128
TILE_N = 512  # columns of one PSUM bank


@nki.jit
def schwarz_screened_spmm(a, b, counts, words=3, m_tiles=4, k_tiles=2, repeats=True):
    """(M, N) float32, or of digits (words, M, N) int32, of a (K, M) float32 or (s, K, M) bfloat16, and b alike.

    counts: (1, M) float32, of how many first rows of K each row of the result is made; K a multiple of 128. b may have
    more rows of K. Without ``repeats`` no transfer repeats a row on all partitions from a run-time address.
    """
    digits = a.shape[0] if len(a.shape) == 3 else 0
    m, n = a.shape[-1], b.shape[-1]
    job = _job(a=a, b=b, digits=digits, m=min(m, m_tiles * TILE), words=words, m_tiles=m_tiles, k_tiles=k_tiles)
    shape = (words, m, n) if digits > 0 else (m, n)
    job["c"] = nl.ndarray(shape, dtype=nl.int32 if digits > 0 else nl.float32, buffer=nl.shared_hbm)
    job["plane"] = m * n
    job["row"] = n
    job["counts"] = counts
    job["one"] = None
    if not repeats:
        job["one"] = nl.ndarray((1, min(m, m_tiles * TILE)), dtype=nl.float32, buffer=nl.private_hbm)
    m_pieces, n_pieces = pieces(extent=m, block=m_tiles * TILE), pieces(extent=n, block=TILE_N)
    for m_piece in m_pieces:
        m0, m_size, m_count = m_piece
        for n_piece in n_pieces:
            n0, n_size, n_count = n_piece
            job["m_size"] = m_size
            job["n_size"] = n_size
            spots = (
                [([[0, n_count], [m_size, m_count]], m0)], [([[n_size, n_count], [0, m_count]], n0)],
                [([[n_size, n_count], [m_size * n, m_count]], m0 * n + n0)],
            )  # fmt: skip
            steps, walks = _steps(job=job), len(m_pieces) * len(n_pieces)
            walk(job=job, start=_start, body=_block, spots=spots, steps=steps, walks=walks)
    return job["c"]


def _steps(job):
    """Approximate instructions of one block: loads, masks, products, sums, carries."""
    digits, depth, tiles = job["digits"], job["a"].shape[-2] // TILE, (job["m_size"] + TILE - 1) // TILE
    if digits == 0:
        return depth * (4 + tiles) + 4 * tiles
    return depth * (3 + digits + tiles * (digits * (digits + 1) // 2 + 2 * digits)) + 12 * digits * tiles


def _job(a, b, digits, m, words, m_tiles, k_tiles):
    """Slots of operands, sums, masks: made once."""
    planes, n = max(digits, 1), min(b.shape[-1], TILE_N)
    lefts, rights, masks = [], [], []
    for _ in range(HALVES * k_tiles):
        lefts.append(nl.ndarray((TILE, planes * m), dtype=a.dtype, buffer=nl.sbuf))
        rights.append(nl.ndarray((TILE, planes * n), dtype=a.dtype, buffer=nl.sbuf))
        masks.append(nl.ndarray((TILE, m), dtype=a.dtype, buffer=nl.sbuf))
    numbers = nl.ndarray((TILE, 1), dtype=nl.int32, buffer=nl.sbuf)
    lane = nl.ndarray((TILE, 1), dtype=nl.float32, buffer=nl.sbuf)
    nisa.iota(dst=numbers, pattern=[[0, 1]], offset=0, channel_multiplier=1)
    nisa.tensor_copy(dst=lane, src=numbers, engine=nisa.engine.vector)
    job = {
        "a": a, "b": b, "digits": digits, "wrap": False, "halved": False, "balanced": False, "words": words, "bits": 8,
        "k_tiles": k_tiles, "lefts": lefts, "rights": rights, "masks": masks, "lane": lane,
    }  # fmt: skip
    casts, sums, outs = [], [], []
    if digits > 0:
        casts, sums, outs = digit_sums.workspace(rows=m_tiles, digits=digits, words=words, bits=8)
    else:
        for _ in range(m_tiles):
            sums.append([nl.ndarray((TILE, TILE_N), dtype=nl.float32, buffer=nl.sbuf)])
    job["casts"] = casts
    job["outs"] = outs
    job["sums"] = sums
    return job


def _start(job):
    """PSUM of an iteration."""
    job["banks"] = digit_sums.banks_of(count=digit_sums.BANKS)


def _block(job, at):
    """One block: the loop over K, then the carries."""
    k, chunk, m_size, n_size = job["a"].shape[-2], job["k_tiles"] * TILE, job["m_size"], job["n_size"]
    counts = blocks.tile(job=job, shape=(TILE, m_size), dtype=nl.float32)
    if job["one"] == None:  # noqa: E711 - NKI has no `is`
        nisa.dma_copy(dst=counts, src=view(x=job["counts"], at=at[0], pattern=[[0, TILE], [1, m_size]]))
    else:
        nisa.dma_copy(dst=job["one"][:, 0:m_size], src=view(x=job["counts"], at=at[0], pattern=[[0, 1], [1, m_size]]))
        nisa.dma_copy(dst=counts, src=job["one"].ap(pattern=[[0, TILE], [1, m_size]]))
    sums = []
    for i in range(0, m_size, TILE):
        sums.append(job["sums"][i // TILE][0][0 : min(TILE, m_size - i), 0:n_size])
    for k0 in range(0, k, chunk):
        depth, half = min(chunk, k - k0), k0 // chunk % HALVES
        lefts, rights = [], []
        for q in range(depth // TILE):
            left, right = _load(job=job, at=at, k0=k0 + q * TILE, slot=half * job["k_tiles"] + q, counts=counts)
            lefts.append(left)
            rights.append(right)
        if job["digits"] > 0:
            digit_sums.products(plan=job, depth=depth, half=half, c_at=at[2] if k0 + chunk >= k else None)
        else:
            blocks.add_tiles(
                lefts=lefts, rights=rights, sums=sums, m_size=m_size, n_size=n_size, banks=job["banks"], begun=k0 > 0
            )
    if job["digits"] == 0:
        for i in range(len(sums)):
            rows, offset = sums[i].shape[0], i * TILE * job["row"]
            target = blocks.place(x=job["c"], at=at[2], offset=offset, rows=rows, columns=n_size)
            nisa.dma_copy(dst=target, src=sums[i])


def _load(job, at, k0, slot, counts):
    """128 rows of K of both operands, all digits, with zeros for the columns of the left one that keep none of them."""
    found = []
    for side in range(2):
        x, size = (job["a"], job["b"])[side], (job["m_size"], job["n_size"])[side]
        planes, k, width = max(job["digits"], 1), x.shape[-2], x.shape[-1]
        pattern = [[width, TILE], [k * width, planes], [1, size]]
        here = (job["lefts"], job["rights"])[side][slot][:, 0 : planes * size]
        nisa.dma_copy(dst=here, src=view(x=x, at=at[side], pattern=pattern, offset=k0 * width))
        found.append(here)
    size = job["m_size"]
    mask = job["masks"][slot][:, 0:size]
    nisa.tensor_scalar(dst=mask, data=counts, op0=nl.subtract, operand0=float(k0), op1=nl.greater, operand1=job["lane"])
    for d in range(max(job["digits"], 1)):
        here = found[0][:, d * size : (d + 1) * size]
        nisa.tensor_tensor(dst=here, data1=here, data2=mask, op=nl.multiply)
    return (found[0], found[1])
