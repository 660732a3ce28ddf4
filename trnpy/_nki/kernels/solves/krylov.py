"""Vectors and the sparse matrix that iterations on the device share: products, sums over all partitions, conditions.

A vector of R 128 elements is a tile (128, R): element 128 r + p in partition p of column r. Numbers that all
partitions need, sums and coefficients, are (128, 1) tiles whose elements are equal.
"""

import nki.isa as nisa
import nki.language as nl

from ..shared import rows
from ..shared.blocks import flat

TILE = 128


def operator(tiles, left_at, column_of, bounds, unit):
    """The plan of products with a matrix of tiles with K on the rows, as bsr_spmm takes them, in their order."""
    lefts, rights = [], []
    for _ in range(2):
        lefts.append(nl.ndarray((TILE, unit * TILE), dtype=tiles.dtype, buffer=nl.sbuf))
    for _ in range(2 * unit):
        rights.append(nl.ndarray((TILE, 1), dtype=nl.float32, buffer=nl.sbuf))
    ones = nl.ndarray((TILE, TILE), dtype=nl.float32, buffer=nl.sbuf)
    nisa.memset(dst=ones, value=1.0, engine=nisa.engine.vector)
    shape = (TILE, bounds.shape[1])
    return {
        "tiles": tiles, "unit": unit, "lefts": lefts, "rights": rights, "ones": ones,
        "left_at": left_at, "column_of": column_of, "bounds": bounds, "count": bounds.shape[1],
        # Vectors whose columns a loop looks up pass through HBM: on trn1 nothing else has run-time addresses.
        "given": nl.ndarray(shape, dtype=nl.float32, buffer=nl.private_hbm),
        "found": nl.ndarray(shape, dtype=nl.float32, buffer=nl.private_hbm),
        "out": nl.ndarray((TILE, 1), dtype=nl.float32, buffer=nl.sbuf),
        "product": nl.ndarray((TILE, bounds.shape[1]), dtype=nl.float32, buffer=nl.sbuf),
        "partial": nl.ndarray((TILE, 1), dtype=nl.float32, buffer=nl.sbuf),
    }  # fmt: skip


def vector(source):
    """A vector of HBM on the chip."""
    found = nl.ndarray(source.shape, dtype=nl.float32, buffer=nl.sbuf)
    nisa.dma_copy(dst=found, src=source)
    return found


def times(plan, x, out):
    """out = A x."""
    nisa.dma_copy(dst=plan["given"], src=x)
    columns = [[plan["count"], TILE], [1, 1]]

    def row(r):
        nisa.memset(dst=plan["out"], value=0.0, engine=nisa.engine.vector)
        rows.turns(
            plan=plan, bounds=plan["bounds"], r=r, unit=plan["unit"], load=_load, multiply=_multiply, start=_start
        )
        place = plan["found"].ap(pattern=columns, offset=0, scalar_offset=r, indirect_dim=1)
        nisa.dma_copy(dst=place, src=plan["out"])

    nl.fori_loop(0, nisa.register_alloc(plan["count"]), row)
    nisa.dma_copy(dst=out, src=plan["found"])


def _load(plan, slots, j, ahead):
    """Tiles from j + ahead on in one transfer, and the columns of x that they meet."""
    unit, x = plan["unit"], plan["given"]
    at = rows.item(table=plan["left_at"], j=j, ahead=ahead)
    count, first = len(slots), slots[0] % unit * TILE
    place = flat(plan["tiles"]).ap(
        pattern=[[TILE, TILE], [TILE * TILE, count], [1, TILE]], offset=0, scalar_offset=at, indirect_dim=0
    )
    nisa.dma_copy(dst=plan["lefts"][slots[0] // unit][:, first : first + count * TILE], src=place)
    for q in range(count):
        column = rows.item(table=plan["column_of"], j=j, ahead=ahead + q)
        met = x.ap(pattern=[[x.shape[1], TILE], [1, 1]], offset=0, scalar_offset=column, indirect_dim=1)
        nisa.dma_copy(dst=plan["rights"][slots[q]], src=met)


def _start(plan):
    """PSUM of one turn of a row."""
    plan["bank"] = nl.ndarray((TILE, 1), dtype=nl.float32, buffer=nl.psum)


def _multiply(plan, slots):
    unit, bank = plan["unit"], plan["bank"]
    for q in range(len(slots)):
        first = slots[q] % unit * TILE
        nisa.nc_matmul(
            dst=bank,
            stationary=plan["lefts"][slots[q] // unit][:, first : first + TILE],
            moving=plan["rights"][slots[q]],
            accumulate=q > 0,
        )
    nisa.tensor_tensor(dst=plan["out"], data1=plan["out"], data2=bank, op=nl.add)


def summing(plan, columns):
    """PSUM for totals of ``columns`` at once, in the body of a loop or outside all of them."""
    plan["sum"] = nl.ndarray((TILE, columns), dtype=nl.float32, buffer=nl.psum)


def total(plan, parts, out):
    """out (128, n) = the sum of ``parts`` (128, n) over all partitions, in each of them."""
    bank = plan["sum"][:, 0 : parts.shape[1]]
    nisa.nc_matmul(dst=bank, stationary=plan["ones"], moving=parts, accumulate=False)
    nisa.tensor_copy(dst=out, src=bank, engine=nisa.engine.vector)


def dot(plan, x, y, out):
    """out = x . y."""
    nisa.tensor_tensor(dst=plan["product"], data1=x, data2=y, op=nl.multiply)
    nisa.tensor_reduce(dst=plan["partial"], op=nl.add, data=plan["product"], axis=1)
    total(plan=plan, parts=plan["partial"], out=out)


def quotient(numerator, denominator, out):
    """out = numerator / denominator, each (128, 1)."""
    nisa.reciprocal(dst=out, data=denominator)
    nisa.tensor_tensor(dst=out, data1=out, data2=numerator, op=nl.multiply)


def add_multiple(x, factor, y):
    """y += factor x."""
    nisa.scalar_tensor_tensor(dst=y, data=x, op0=nl.multiply, operand0=factor, op1=nl.add, operand1=y)


def proceed(size, limit, done, most, flag, register):
    """The register of the next turn: whether ``size`` exceeds ``limit`` and fewer than ``most`` steps are ``done``.

    NaN exceeds nothing, so an iteration that has broken down ends.
    """
    nisa.tensor_tensor(dst=flag[0], data1=size[0:1, :], data2=limit[0:1, :], op=nl.greater)
    nisa.tensor_scalar(dst=flag[1], data=done, op0=nl.less, operand0=float(most))
    nisa.tensor_tensor(dst=flag[2], data1=flag[0], data2=flag[1], op=nl.multiply)
    nisa.register_load(register, flag[2])


def flags():
    """Tiles that ``proceed`` computes in."""
    found = []
    for dtype in (nl.float32, nl.float32, nl.int32):
        found.append(nl.ndarray((1, 1), dtype=dtype, buffer=nl.sbuf))
    return found
