"""One instruction, repeated, into four tensors in turn that are read at the end: gives the time of one more."""

import nki
import nki.isa as nisa
import nki.language as nl

ROWS = 128
COLUMNS = 512  # float32 of one PSUM bank
RING = 4


@nki.jit
def products(x, y, count=16, depth=ROWS, columns=COLUMNS, others=1):
    """Products of x (rows, depth) and y (rows, columns), each added to the contents of its bank.

    ``others``: parts of x that are stationary in turn.
    """
    rows = x.shape[0]
    left, right = loaded(x), loaded(y)
    banks = []
    for _ in range(RING):
        banks.append(nl.ndarray((depth, columns), dtype=nl.float32, buffer=nl.psum))
    for t in range(count):
        first = t % others * depth
        nisa.nc_matmul(
            dst=banks[t % RING], stationary=left[0:rows, first : first + depth], moving=right[0:rows, 0:columns],
            accumulate=t >= RING,
        )  # fmt: skip
    return summed(banks)


@nki.jit
def transposes(x, count=16):
    """Transposes of the 128 x 128 blocks of x in turn."""
    blocks = x.shape[1] // ROWS
    here = loaded(x)
    banks = []
    for _ in range(RING):
        banks.append(nl.ndarray((ROWS, ROWS), dtype=x.dtype, buffer=nl.psum))
    for t in range(count):
        block = here[:, (t % blocks) * ROWS : (t % blocks + 1) * ROWS]
        nisa.nc_transpose(dst=banks[t % RING], data=block, engine=nisa.engine.tensor)
    return summed(banks)


@nki.jit
def vectors(x, y, kind="add", count=16, columns=COLUMNS):
    """Instructions of VectorEngine and ScalarEngine on x and y (128, >= columns), float32, or on sums in PSUM."""
    a, b = loaded(x), loaded(y)
    sums = nl.ndarray((ROWS, COLUMNS), dtype=nl.float32, buffer=nl.psum)
    nisa.nc_matmul(dst=sums, stationary=a[:, 0:ROWS], moving=b[:, 0:COLUMNS], accumulate=False)
    half = nl.ndarray((ROWS, 1), dtype=nl.float32, buffer=nl.sbuf)
    nisa.memset(dst=half, value=0.5)
    results, totals = [], []
    narrow = nl.ndarray((ROWS, ROWS), dtype=nl.bfloat16, buffer=nl.sbuf)
    nisa.tensor_copy(dst=narrow, src=b[:, 0:ROWS], engine=nisa.engine.vector)
    for _ in range(RING):
        width = 1 if kind in ("max", "max of sums", "sum") else columns
        short = kind in ("copy of sums", "exp of sums", "exp", "narrowed", "narrowed by activation", "difference")
        results.append(nl.ndarray((ROWS, width), dtype=nl.bfloat16 if short else nl.float32, buffer=nl.sbuf))
        totals.append(nl.ndarray((ROWS, 1), dtype=nl.float32, buffer=nl.sbuf))
    for t in range(count):
        out = results[t % RING]
        if kind == "max":
            nisa.tensor_reduce(dst=out, op=nl.maximum, data=a[:, 0:columns], axis=1)
        elif kind == "max of sums":
            nisa.tensor_reduce(dst=out, op=nl.maximum, data=sums, axis=1)
        elif kind == "copy of sums":
            nisa.tensor_copy(dst=out, src=sums, engine=nisa.engine.vector)
        elif kind == "add":
            nisa.tensor_tensor(dst=out, data1=a[:, 0:columns], data2=b[:, 0:columns], op=nl.multiply)
        elif kind == "add to sums":
            nisa.tensor_tensor(dst=out, data1=sums, data2=b[:, 0:columns], op=nl.multiply)
        elif kind == "exp of sums":
            nisa.activation_reduce(
                dst=out, op=nl.exp, data=sums, reduce_op=nl.add, reduce_res=totals[t % RING], bias=half, scale=1.0
            )
        elif kind == "exp":
            nisa.activation_reduce(
                dst=out, op=nl.exp, data=a[:, 0:columns], reduce_op=nl.add, reduce_res=totals[t % RING], bias=half,
                scale=1.0,
            )  # fmt: skip
        elif kind == "scaled":
            nisa.tensor_scalar(dst=out, data=a[:, 0:columns], op0=nl.multiply, operand0=0.5)
        elif kind == "compared and added":
            nisa.tensor_scalar_reduce(
                dst=out, data=a[:, 0:columns], op0=nl.greater_equal, operand0=half, reduce_op=nl.add,
                reduce_res=totals[t % RING],
            )  # fmt: skip
        elif kind == "weighted sums":
            nisa.scalar_tensor_tensor(
                dst=out, data=sums, op0=nl.multiply, operand0=0.5, op1=nl.add, operand1=b[:, 0:columns]
            )
        elif kind == "sum":
            nisa.tensor_reduce(dst=out, op=nl.add, data=a[:, 0:columns], axis=1)
        elif kind == "narrowed":
            nisa.tensor_copy(dst=out, src=a[:, 0:columns], engine=nisa.engine.vector)
        elif kind == "narrowed by activation":
            nisa.activation(dst=out, op=nl.copy, data=a[:, 0:columns])
        elif kind == "difference":
            nisa.tensor_tensor(dst=out, data1=a[:, 0:columns], data2=narrow, op=nl.subtract)
        elif kind == "activation of sums":
            nisa.activation(dst=out, op=nl.copy, data=sums)
        else:
            nisa.activation(dst=out, op=nl.copy, data=a[:, 0:columns])
    return summed(totals if kind in ("exp of sums", "exp", "compared and added") else results)


@nki.jit
def steps(x, y, weights, kind="products", count=1024):
    """Products of x (128, 128) and y (128, 512) into six banks, each followed by nothing, relu, or a sum.

    Without sums the last of each 32 is read, and only products that are read are here: the compiler left out the
    others.
    """
    a, b, w = loaded(x), loaded(y), loaded(weights)
    zero = nl.ndarray((ROWS, 1), dtype=nl.float32, buffer=nl.sbuf)
    nisa.memset(dst=zero, value=0.0)
    banks, sums = [], []
    for _ in range(6):
        banks.append(nl.ndarray((ROWS, COLUMNS), dtype=nl.float32, buffer=nl.psum))
    for _ in range(2):
        total = nl.ndarray((ROWS, COLUMNS), dtype=nl.float32, buffer=nl.sbuf)
        nisa.memset(dst=total, value=0.0)
        sums.append(total)
    summing, both = kind != "products" and kind != "relu", kind == "relu and one sum" or kind == "relu and two sums"
    for t in range(0, count, 1 if summing else 32):
        bank = banks[t % 6]
        nisa.nc_matmul(dst=bank, stationary=a, moving=b, accumulate=False)
        if kind == "relu" or both:
            nisa.activation(dst=bank, op=nl.relu, data=bank, scale=w, bias=zero)
        if summing:
            total = sums[t % 2 if kind == "two sums" or kind == "relu and two sums" else 0]
            nisa.scalar_tensor_tensor(dst=total, data=bank, op0=nl.multiply, operand0=w, op1=nl.add, operand1=total)
        else:
            nisa.tensor_copy(dst=sums[0], src=bank)
    nisa.tensor_tensor(dst=sums[0], data1=sums[0], data2=sums[1], op=nl.add)
    out = nl.ndarray((ROWS, COLUMNS), dtype=nl.float32, buffer=nl.shared_hbm)
    nisa.dma_copy(dst=out, src=sums[0])
    return out


@nki.jit
def selections(x, rounds=64):
    """The eight largest of each row, their places, and the row without them, ``rounds`` times one after the other."""
    here = loaded(x)
    values = nl.ndarray((ROWS, 8 * rounds), dtype=nl.float32, buffer=nl.sbuf)
    places = nl.ndarray((ROWS, 8 * rounds), dtype=nl.uint32, buffer=nl.sbuf)
    for r in range(rounds):
        found = values[:, 8 * r : 8 * r + 8]
        nisa.max8(dst=found, src=here)
        nisa.nc_find_index8(dst=places[:, 8 * r : 8 * r + 8], data=here, vals=found)
        nisa.nc_match_replace8(dst=here, data=here, vals=found, imm=-3.0e38)
    out = nl.ndarray((ROWS, 8 * rounds), dtype=nl.float32, buffer=nl.shared_hbm)
    at = nl.ndarray((ROWS, 8 * rounds), dtype=nl.uint32, buffer=nl.shared_hbm)
    nisa.dma_copy(dst=out, src=values)
    nisa.dma_copy(dst=at, src=places)
    return out, at


@nki.jit
def blocks(x, y, parts=64, kind="scaled"):
    """A block (128, 4096) in ``parts``: each scaled by one engine or by two in turn, or times sums or another tile."""
    here, other = loaded(x), loaded(y)
    width = x.shape[1] // parts
    done = nl.ndarray(x.shape, dtype=nl.float32, buffer=nl.sbuf)
    sums = nl.ndarray((ROWS, COLUMNS), dtype=nl.float32, buffer=nl.psum)
    nisa.nc_matmul(dst=sums, stationary=here[:, 0:ROWS], moving=here[:, 0:COLUMNS], accumulate=False)
    for t in range(parts):
        part = slice(t * width, (t + 1) * width)
        if kind == "by activation" or (kind == "by both" and t % 2):
            nisa.activation(dst=done[:, part], op=nl.copy, data=here[:, part], scale=0.5)
        elif kind == "scaled" or kind == "by both":
            nisa.tensor_scalar(dst=done[:, part], data=here[:, part], op0=nl.multiply, operand0=0.5)
        elif kind == "times sums":
            nisa.tensor_tensor(dst=done[:, part], data1=here[:, part], data2=sums, op=nl.multiply)
        else:
            nisa.tensor_tensor(dst=done[:, part], data1=here[:, part], data2=other[:, part], op=nl.multiply)
    out = nl.ndarray(x.shape, dtype=nl.float32, buffer=nl.shared_hbm)
    nisa.dma_copy(dst=out, src=done)
    return out


def loaded(source):
    here = nl.ndarray(source.shape, dtype=source.dtype, buffer=nl.sbuf)
    nisa.dma_copy(dst=here, src=source)
    return here


def summed(tiles):
    """The row sums of all tiles, so that each is read."""
    rows = tiles[0].shape[0]
    total = nl.ndarray((rows, 1), dtype=nl.float32, buffer=nl.sbuf)
    nisa.memset(dst=total, value=0.0)
    for here in tiles:
        part = nl.ndarray((rows, 1), dtype=nl.float32, buffer=nl.sbuf)
        nisa.tensor_reduce(dst=part, op=nl.add, data=here, axis=1)
        nisa.tensor_tensor(dst=total, data1=total, data2=part, op=nl.add)
    out = nl.ndarray((rows, 1), dtype=nl.float32, buffer=nl.shared_hbm)
    nisa.dma_copy(dst=out, src=total)
    return out
