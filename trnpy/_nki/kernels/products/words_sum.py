"""p X + q Y for the integers of device-resident products, with small factors: exact, digit by digit.

A digit of the sum is p times a digit of X plus q times a digit of Y, at places that may differ; carries turn them into
words as after a product (digit_sums). The sum is measured like the result of words_matmul.

Bound by VectorE and GpSimd: about six instructions a digit. It saves reading both operands and sending the sum.
"""

import nki
import nki.isa as nisa
import nki.language as nl

from ..shared import blocks, digit_sums
from . import words_matmul

HALF = 128.0  # a byte minus its digit


@nki.jit
def words_sum(x, y, factors, places, words=3, biases=True):
    """V = p X + q Y as words (words, M, N) int32, |V| SCALE (M, N) bfloat16, and the extremes of |V|, (128, 2) float32.

    x and y: words (w, M, N) int32, or bytes (M, width N) uint8. places: for each operand and each digit of the sum,
    the lowest first, its byte of an element, or -1. factors: (p, q), integers below 2^15. biases: as digits_split.
    """
    digits = len(places[0])
    columns = x.shape[2] if len(x.shape) == 3 else y.shape[2]
    rows = x.shape[1] if len(x.shape) == 3 else x.shape[0]
    v = nl.ndarray((words, rows, columns), dtype=nl.int32, buffer=nl.shared_hbm)
    casts, sums, outs = digit_sums.workspace(rows=1, digits=digits, words=words, bits=8, balanced=True)
    job = {
        "operands": (_planes(x=x), _planes(x=y)), "factors": factors, "places": places,
        "casts": casts, "digits": digits, "words": words, "bits": 8, "balanced": True, "sums": sums, "outs": outs,
        "c": v, "row": columns, "plane": rows * columns, "biases": biases,
    }  # fmt: skip
    widths = (_width(x=x, columns=columns), _width(x=y, columns=columns))
    job["widths"] = widths
    for r_piece in blocks.pieces(extent=rows, block=blocks.TILE):
        r0, r_size, r_count = r_piece
        for c_piece in blocks.pieces(extent=columns, block=digit_sums.TILE_N):
            c0, c_size, c_count = c_piece
            job["m_size"] = r_size
            job["n_size"] = c_size
            spots = []
            for item in (job["operands"][0].shape[2] // columns, job["operands"][1].shape[2] // columns, 1):
                step = item * columns
                spots.append([([[item * c_size, c_count], [r_size * step, r_count]], r0 * step + item * c0)])
            blocks.walk(job=job, start=blocks.no_banks, body=_add, spots=spots, steps=12 * digits + 4 * words, walks=2)
    magnitudes = nl.ndarray((rows, columns), dtype=nl.bfloat16, buffer=nl.shared_hbm)
    extremes = nl.ndarray((blocks.TILE, 2), dtype=nl.float32, buffer=nl.shared_hbm)
    words_matmul.measured(v=v, places=digits + 2, magnitudes=magnitudes, extremes=extremes, biases=biases)
    return v, magnitudes, extremes


def _planes(x):
    """Words as they are, bytes as one plane."""
    return x if len(x.shape) == 3 else x.reshape((1, x.shape[0], x.shape[1]))


def _width(x, columns):
    """Bytes of an element in one plane."""
    return 4 if len(x.shape) == 3 else x.shape[1] // columns


def _add(job, at):
    """One tile: each digit of both operands times its factor, then its carry."""
    rows, columns = job["m_size"], job["n_size"]
    sources = []
    for side in range(2):
        x = job["operands"][side]
        item, planes = x.shape[2] // job["c"].shape[2], []
        for w in range(x.shape[0]):
            source = blocks.tile(job=job, shape=(rows, item * columns), dtype=x.dtype)
            pattern = [[x.shape[2], rows], [1, item * columns]]
            offset = w * x.shape[1] * x.shape[2]
            nisa.dma_copy(dst=source, src=blocks.view(x=x, at=at[side], pattern=pattern, offset=offset))
            planes.append(source if x.dtype == nl.uint8 else source.view(nl.uint8))
        sources.append(planes)
    for e in range(job["digits"]):
        total = job["sums"][0][e][0:rows, 0:columns]
        for side in range(2):
            place, width = job["places"][side][e], job["widths"][side]
            if place >= 0:
                cast = job["casts"][(2 * e + side) % digit_sums.CASTS][0:rows, 0:columns]
                byte = sources[side][place // width][:, place % width : width * columns : width]
                factor = float(job["factors"][side])
                if job["biases"]:
                    nisa.activation(dst=cast, op=nl.copy, data=byte, scale=factor, bias=-HALF * factor)
                else:
                    nisa.tensor_scalar(
                        dst=cast, data=byte, op0=nl.subtract, operand0=HALF, op1=nl.multiply, operand1=factor
                    )
                nisa.tensor_tensor(dst=total, data1=total, data2=cast, op=nl.add)
        digit_sums.carry_group(plan=job, i=0, e=e, c_at=at[2])
