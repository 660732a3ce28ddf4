"""Products of device-resident integers from earlier products: float64 results without transfers to the host.

An operand is the words (32-bit limbs) of such a result, or bfloat16 digits of a matrix that the host has sent. Words
have half a digit added at every place, so that their bytes minus 128 are digits (docs/products.md#products-that-stay).
The same launch bounds the product of the magnitudes, which certifies it. It also returns the magnitudes of the result,
the largest and the smallest, which certify the next product.

Bound by TensorE like float64_matmul; splitting words and measuring the result read each of them once. 8192^3 has
2,430,000 instructions at seven digits, most of them in device loops (shared/blocks.walk).
"""

import nki
import nki.isa as nisa
import nki.language as nl

from ..shared import blocks, digit_sums
from . import abs_bound, digits_split, float64_matmul

WIDTH = 2048  # columns of a tile of words that is measured
HALF_BITS = 16
WALKS = 5  # over blocks: two operands, both products, and the result share the instruction limit
NOTHING = 2.0**120  # marks that all numbers are zero: larger than any of the integers
SCALE = 2.0**-64  # of magnitudes: then sums of products of any two are float32 numbers


@nki.jit
def words_matmul(
    a, b, x, y, tops=(0, 0), turned=(False, False), rows=(True, True), digits=7, words=3, m_tiles=4, k_tiles=4,
    bound_tiles=(2, 4, 8), biases=True,
):  # fmt: skip
    """V = A B as words (words, M, N) int32, |V| SCALE (M, N) bfloat16, and extremes (128, 3) float32.

    a: words (w, M, K), or (w, K, M) if turned; its first digit is byte ``tops[0]`` - 1. Or digits (s, K, M).
    b: words (w, K, N), or (w, N, K) if turned, with ``tops[1]``. Or digits (s, K, N).
    x, y: magnitudes of both, bfloat16: (M, K) and (K, N), each turned unless ``rows``.
    extremes of each partition: the largest |V|, the smallest positive |V|, or NOTHING if there is none, and the
    smallest positive number of the product of x and y, or abs_bound.NOTHING if there is none. biases: as digits_split.
    """
    left = _digits_of(x=a, top=tops[0], digits=digits, turned=not turned[0], biases=biases)
    right = _digits_of(x=b, top=tops[1], digits=digits, turned=turned[1], biases=biases)
    v = float64_matmul.multiply(
        a=left, b=right, wrap=False, words=words, bits=8, m_tiles=m_tiles, k_tiles=k_tiles, halved=False, batch=1,
        balanced=True,
    )  # fmt: skip
    magnitudes = nl.ndarray((v.shape[1], v.shape[2]), dtype=nl.bfloat16, buffer=nl.shared_hbm)
    extremes = nl.ndarray((blocks.TILE, 3), dtype=nl.float32, buffer=nl.shared_hbm)
    measured(v=v, places=digits + 2, magnitudes=magnitudes, extremes=extremes, biases=biases)
    least = abs_bound.least_of(
        a=x, b=y, m=v.shape[1], k=left.shape[1], n=v.shape[2], a_rows=rows[0], b_rows=rows[1], tiles=bound_tiles,
        walks=WALKS,
    )  # fmt: skip
    nisa.dma_copy(dst=extremes[0 : blocks.TILE, 2:3], src=least)
    return v, magnitudes, extremes


def _digits_of(x, top, digits, turned, biases):
    """Words as digits (s, K, others); digits as they are."""
    if x.dtype == nl.bfloat16:
        return x
    places = []
    for d in range(digits):
        places.append(top - 1 - d)
    shape = (digits, x.shape[2], x.shape[1]) if turned else (digits, x.shape[1], x.shape[2])
    out = nl.ndarray(shape, dtype=nl.bfloat16, buffer=nl.private_hbm)
    digits_split.split(planes=x, out=out, width=4, places=places, turned=turned, walks=WALKS, biases=biases)
    return out


def measured(v, places, magnitudes, extremes, biases):
    """|V| of words that have half a digit at each of the lowest ``places`` bytes."""
    words, rows, columns = v.shape
    shifts = []
    for h in range(2 * words):
        half = (128 if 2 * h < places else 0) + (128 * 256 if 2 * h + 1 < places else 0)
        shifts.append(-float(half))
    found = nl.ndarray((blocks.TILE, 2), dtype=nl.float32, buffer=nl.sbuf)
    nisa.memset(dst=found[:, 0:1], value=0.0, engine=nisa.engine.vector)
    nisa.memset(dst=found[:, 1:2], value=NOTHING, engine=nisa.engine.vector)
    here = nl.ndarray((blocks.TILE, 1), dtype=nl.float32, buffer=nl.sbuf)
    job = {"v": v, "shifts": shifts, "magnitudes": magnitudes, "found": found, "here": here, "biases": biases}
    for r_piece in blocks.pieces(extent=rows, block=blocks.TILE):
        r0, r_size, r_count = r_piece
        for c_piece in blocks.pieces(extent=columns, block=WIDTH):
            c0, c_size, c_count = c_piece
            job["size"] = (r_size, c_size)
            spots = [[([[c_size, c_count], [r_size * columns, r_count]], r0 * columns + c0)]]
            blocks.walk(job=job, start=blocks.no_banks, body=_measure, spots=spots, steps=5 * words + 9, walks=WALKS)
    nisa.dma_copy(dst=extremes[0 : blocks.TILE, 0:2], src=found)


def _measure(job, at):
    """One tile: Horner's rule over halves of words, the highest first. Digits are balanced, so nothing cancels."""
    v = job["v"]
    rows, columns = job["size"]
    value = blocks.tile(job=job, shape=(rows, columns), dtype=nl.float32)
    part = blocks.tile(job=job, shape=(rows, columns), dtype=nl.float32)
    pattern = [[v.shape[2], rows], [1, columns]]
    for p in range(v.shape[0]):
        w = v.shape[0] - 1 - p
        source = blocks.tile(job=job, shape=(rows, columns), dtype=nl.int32)
        nisa.dma_copy(dst=source, src=blocks.view(x=v, at=at[0], pattern=pattern, offset=w * v.shape[1] * v.shape[2]))
        halves = source.view(nl.uint16)
        for h in range(2):
            half = halves[:, 1 - h : 2 * columns : 2]
            shift = job["shifts"][2 * w + 1 - h]
            if p + h == 0:
                digit_sums.shift(dst=value, data=half, number=shift, biases=job["biases"])
            else:
                digit_sums.shift(dst=part, data=half, number=shift, biases=job["biases"])
                nisa.scalar_tensor_tensor(
                    dst=value, data=value, op0=nl.multiply, operand0=2.0**HALF_BITS, op1=nl.add, operand1=part
                )
    nisa.scalar_tensor_tensor(dst=value, data=value, op0=nl.multiply, operand0=-1.0, op1=nl.maximum, operand1=value)
    scaled = blocks.tile(job=job, shape=(rows, columns), dtype=nl.bfloat16)
    nisa.activation(dst=scaled, op=nl.copy, data=value, scale=SCALE)
    nisa.dma_copy(dst=blocks.view(x=job["magnitudes"], at=at[0], pattern=pattern), src=scaled)
    here, largest, smallest = job["here"][0:rows, :], job["found"][0:rows, 0:1], job["found"][0:rows, 1:2]
    nisa.tensor_reduce(dst=here, op=nl.maximum, data=value, axis=1)
    nisa.tensor_tensor(dst=largest, data1=largest, data2=here, op=nl.maximum)
    nisa.tensor_scalar(dst=part, data=value, op0=nl.equal, operand0=0.0, op1=nl.multiply, operand1=NOTHING)
    nisa.tensor_tensor(dst=part, data1=part, data2=value, op=nl.maximum)
    nisa.tensor_reduce(dst=here, op=nl.minimum, data=part, axis=1)
    nisa.tensor_tensor(dst=smallest, data1=smallest, data2=here, op=nl.minimum)
