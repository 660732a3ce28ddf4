"""Operations that device iterations share: sparse matrix-vector products, sums over all partitions, quotients.

A vector of R 128 elements is a tile (128, R) with element R p + c in partition p and column c. Row by row that is the
vector's own order, so that in HBM it is also (R, 128), one block of 128 elements after another. Sums and coefficients,
which all partitions need, are (128, 1) tiles whose elements are equal.
"""

import nki.isa as nisa
import nki.language as nl

from ..shared.blocks import turned_format

TILE = 128
ITEMS = 128  # tiles of the matrix in one turn
TOGETHER = 16  # tiles in one transfer: 8 KiB of a partition
SLOTS = 4  # such transfers under way
SETS = 2  # of tiles for one turn


SHARED = ("sets", "slots", "numbers", "ones", "given", "found", "zeros", "product", "partial", "banks")


def operator(tiles, column_of, row_of, first_row, blocks, beside=None):
    """The plan of products with a matrix: see ``times``. It shares the memory of the plan ``beside``, if given."""
    plan = {
        "tiles": tiles, "blocks": blocks, "turns": first_row.shape[1], "sets": [], "slots": [],
        "column_of": on_chip(source=column_of), "row_of": on_chip(source=row_of),
        "first_row": on_chip(source=first_row),
    }  # fmt: skip
    if beside != None:  # noqa: E711 - NKI has no `is`
        for name in SHARED:
            plan[name] = beside[name]
        return plan
    for _ in range(SLOTS):
        plan["slots"].append(nl.ndarray((TILE, TOGETHER * TILE), dtype=tiles.dtype, buffer=nl.sbuf))
    for _ in range(SETS):
        made = []
        for _ in range(6):
            made.append(nl.ndarray((TILE, TILE), dtype=nl.float32, buffer=nl.sbuf))
        plan["sets"].append(made)
    integers = nl.ndarray((TILE, TILE), dtype=nl.int32, buffer=nl.sbuf)
    nisa.iota(dst=integers, pattern=[[1, TILE]], offset=0)
    plan["numbers"] = nl.ndarray((TILE, TILE), dtype=nl.float32, buffer=nl.sbuf)
    nisa.tensor_copy(dst=plan["numbers"], src=integers, engine=nisa.engine.vector)
    plan["ones"] = nl.ndarray((TILE, TILE), dtype=nl.float32, buffer=nl.sbuf)
    nisa.memset(dst=plan["ones"], value=1.0, engine=nisa.engine.vector)
    # Vectors pass through HBM: on trn1 nothing else has run-time addresses. The last turn stores blocks after the last.
    plan["given"] = nl.ndarray((blocks, TILE), dtype=nl.float32, buffer=nl.private_hbm)
    plan["found"] = nl.ndarray((blocks + TILE, TILE), dtype=nl.float32, buffer=nl.private_hbm)
    plan["zeros"] = nl.ndarray((TILE, blocks + TILE), dtype=nl.float32, buffer=nl.sbuf)
    nisa.memset(dst=plan["zeros"], value=0.0, engine=nisa.engine.vector)
    nisa.dma_copy(dst=plan["found"].reshape((TILE, blocks + TILE)), src=plan["zeros"])
    plan["product"] = nl.ndarray((TILE, blocks), dtype=nl.float32, buffer=nl.sbuf)
    plan["partial"] = nl.ndarray((TILE, 1), dtype=nl.float32, buffer=nl.sbuf)
    banks = []
    for _ in range(SETS):
        made = []
        for form in (turned_format(dtype=nl.float32), nl.float32, nl.float32):
            made.append(nl.ndarray((TILE, TILE), dtype=form, buffer=nl.psum))
        banks.append(made)
    plan["banks"] = banks
    return plan


def beside(plan, tiles, column_of, row_of, first_row):
    """The plan of products with a preconditioner, or None if there is none."""
    if tiles == None:  # noqa: E711 - NKI has no `is`
        return None
    return operator(
        tiles=tiles, column_of=column_of, row_of=row_of, first_row=first_row, blocks=plan["blocks"], beside=plan
    )


def preconditioned(inverse, x, out):
    """out = M x; if there is no M, out is x and nothing is computed."""
    if inverse != None:  # noqa: E711 - NKI has no `is`
        times(plan=inverse, x=x, out=out)


def on_chip(source):
    """A vector or table of HBM on the chip."""
    found = nl.ndarray(source.shape, dtype=source.dtype, buffer=nl.sbuf)
    nisa.dma_copy(dst=found, src=source)
    return found


def times(plan, x, out):
    """out = A x, also if out is x, in iterations of 128 tiles: loads of x, one product per tile, sums of block rows.

    A sum is a product with a matrix of zeros and ones. The program therefore does not depend on the number of tiles in
    a row, and rows are not padded. A row that continues in the next iteration is added to its stored part.
    """
    blocks = plan["blocks"]
    nisa.dma_copy(dst=plan["given"].reshape((TILE, blocks)), src=x)
    nisa.dma_copy(dst=plan["found"][0:1, :], src=plan["zeros"][0:1, 0:TILE])
    for t in range(plan["turns"]):
        _turn(plan=plan, t=t)
    nisa.dma_copy(dst=out, src=plan["found"][0:blocks, :].reshape((TILE, blocks)))


def _turn(plan, t):
    gathered, met, products, turned, segments, sums = plan["sets"][t % SETS]
    turn_bank, product_bank, sum_bank = plan["banks"][t % SETS]
    blocks = [[TILE, TILE], [1, TILE]]
    rows = plan["given"].ap(pattern=blocks, offset=0, vector_offset=plan["column_of"][:, t : t + 1], indirect_dim=0)
    nisa.dma_copy(dst=gathered, src=rows)
    chunks = []
    for i in range(ITEMS // TOGETHER):
        chunk = t * (ITEMS // TOGETHER) + i
        slot = plan["slots"][chunk % SLOTS]
        nisa.dma_copy(dst=slot, src=plan["tiles"][chunk * TILE : (chunk + 1) * TILE, :])
        chunks.append(slot)
        if i == 0:
            nisa.nc_transpose(dst=turn_bank, data=gathered, engine=nisa.engine.tensor)
            nisa.tensor_copy(dst=met, src=turn_bank, engine=nisa.engine.vector)
        for j in range(TOGETHER):
            q = i * TOGETHER + j
            nisa.nc_matmul(
                dst=product_bank[:, q : q + 1], stationary=slot[:, j * TILE : (j + 1) * TILE],
                moving=met[:, q : q + 1], accumulate=False,
            )  # fmt: skip
    nisa.tensor_copy(dst=products, src=product_bank, engine=nisa.engine.vector)
    nisa.nc_transpose(dst=turn_bank, data=products, engine=nisa.engine.tensor)
    nisa.tensor_copy(dst=turned, src=turn_bank, engine=nisa.engine.vector)
    nisa.tensor_scalar(dst=segments, data=plan["numbers"], op0=nl.equal, operand0=plan["row_of"][:, t : t + 1])
    nisa.nc_matmul(dst=sum_bank, stationary=segments, moving=turned, is_stationary_onezero=True, accumulate=False)
    nisa.tensor_copy(dst=sums, src=sum_bank, engine=nisa.engine.vector)
    first = plan["first_row"][0:1, t : t + 1]
    before = nl.ndarray((1, TILE), dtype=nl.float32, buffer=nl.sbuf)
    old = plan["found"].ap(pattern=[[TILE, 1], [1, TILE]], offset=0, scalar_offset=first, indirect_dim=0)
    nisa.dma_copy(dst=before, src=old)
    nisa.tensor_tensor(dst=sums[0:1, :], data1=sums[0:1, :], data2=before, op=nl.add)
    nisa.dma_copy(dst=plan["found"].ap(pattern=blocks, offset=0, scalar_offset=first, indirect_dim=0), src=sums)


def total(plan, parts, out):
    """out (128, n) = the sum of ``parts`` (128, n) over all partitions, in each of them."""
    bank = plan["banks"][0][2][:, 0 : parts.shape[1]]
    nisa.nc_matmul(dst=bank, stationary=plan["ones"], moving=parts, accumulate=False)
    nisa.tensor_copy(dst=out, src=bank, engine=nisa.engine.vector)


def dot(plan, x, y, out):
    """out = x . y."""
    nisa.tensor_tensor(dst=plan["product"], data1=x, data2=y, op=nl.multiply)
    nisa.tensor_reduce(dst=plan["partial"], op=nl.add, data=plan["product"], axis=1)
    total(plan=plan, parts=plan["partial"], out=out)


def going(size, limit):
    """(1 or 0, 0 or 1) on all partitions: whether ``size`` still exceeds ``limit``; a NaN does not."""
    more = nl.ndarray((TILE, 1), dtype=nl.float32, buffer=nl.sbuf)
    done = nl.ndarray((TILE, 1), dtype=nl.float32, buffer=nl.sbuf)
    nisa.tensor_tensor(dst=more, data1=size, data2=limit, op=nl.greater)
    nisa.tensor_scalar(dst=done, data=more, op0=nl.multiply, operand0=-1.0, op1=nl.add, operand1=1.0)
    return (more, done)


def quotient(numerator, denominator, state, out):
    """out = numerator / denominator, each (128, 1), or zero if the iteration has ended (``going``)."""
    more, done = state
    nisa.scalar_tensor_tensor(dst=out, data=denominator, op0=nl.multiply, operand0=more, op1=nl.add, operand1=done)
    nisa.reciprocal(dst=out, data=out)
    nisa.tensor_tensor(dst=out, data1=out, data2=numerator, op=nl.multiply)
    nisa.tensor_tensor(dst=out, data1=out, data2=more, op=nl.multiply)


def add_multiple(x, factor, y):
    """y += factor x."""
    nisa.scalar_tensor_tensor(dst=y, data=x, op0=nl.multiply, operand0=factor, op1=nl.add, operand1=y)


def returned(sources):
    """Tiles of the chip as results of the kernel."""
    outs = []
    for source in sources:
        out = nl.ndarray(source.shape, dtype=source.dtype, buffer=nl.shared_hbm)
        nisa.dma_copy(dst=out, src=source)
        outs.append(out)
    return outs
