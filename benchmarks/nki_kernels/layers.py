"""Parts of language models: a short convolution of each channel, and a recurrence of heads in chunks of rows."""

import nki
import nki.isa as nisa
import nki.language as nl

SIZE = 128


@nki.jit
def convolution(x, weights, narrow, wide):
    """Sums of a few neighbouring rows of x (rows + taps - 1, channels), weighted by channel (channels, taps).

    Channels are brought to the partitions and back by products with an identity, which is given in both types.
    """
    taps = weights.shape[1]
    rows = x.shape[0] - taps + 1
    out = nl.ndarray((rows, x.shape[1]), dtype=nl.float32, buffer=nl.shared_hbm)
    turn, back = loaded(narrow), loaded(wide)
    for c in range(0, x.shape[1], SIZE):
        factors, across = tile(taps), tile(x.shape[0])
        nisa.activation(dst=factors, op=nl.copy, data=loaded(weights[c : c + SIZE]))
        for start in range(0, x.shape[0], SIZE):
            n = min(SIZE, x.shape[0] - start)
            bank = nl.ndarray((SIZE, n), dtype=nl.float32, buffer=nl.psum)
            part = loaded(x[start : start + n, c : c + SIZE])
            nisa.nc_matmul(dst=bank, stationary=part, moving=turn[0:n, 0:n], accumulate=False)
            nisa.activation(dst=across[:, start : start + n], op=nl.copy, data=bank)
        total = tile(rows)
        nisa.tensor_scalar(dst=total, data=across[:, 0:rows], op0=nl.multiply, operand0=factors[:, 0:1])
        for tap in range(1, taps):
            nisa.scalar_tensor_tensor(
                dst=total, data=across[:, tap : tap + rows], op0=nl.multiply, operand0=factors[:, tap : tap + 1],
                op1=nl.add, operand1=total,
            )  # fmt: skip
        for start in range(0, rows, SIZE):
            bank = nl.ndarray((SIZE, SIZE), dtype=nl.float32, buffer=nl.psum)
            nisa.nc_matmul(dst=bank, stationary=total[:, start : start + SIZE], moving=back, accumulate=False)
            result = tile(SIZE)
            nisa.activation(dst=result, op=nl.copy, data=bank)
            nisa.dma_copy(dst=out[start : start + SIZE, c : c + SIZE], src=result)
    return out


@nki.jit
def stacked(a, b):
    """Products (batch, m, n) of a (batch, k, m) and b (batch, k, n) in float32, 512 columns of a tile at a time."""
    batch, _, m = a.shape
    n, wide = b.shape[2], 4 * SIZE
    out = nl.ndarray((batch, m, n), dtype=nl.float32, buffer=nl.shared_hbm)
    for i in range(batch):
        left, right = loaded(a[i]), loaded(b[i])
        for m0 in range(0, m, SIZE):
            for n0 in range(0, n, wide):
                bank, here = psum(wide), tile(wide)
                nisa.nc_matmul(
                    dst=bank, stationary=left[:, m0 : m0 + SIZE], moving=right[:, n0 : n0 + wide], accumulate=False
                )
                nisa.tensor_copy(dst=here, src=bank, engine=nisa.engine.vector)
                nisa.dma_copy(dst=out[i, m0 : m0 + SIZE, n0 : n0 + wide], src=here)
    return out


@nki.jit
def normalized(x, weights, identity):
    """x (rows, k), each row over its root mean square, times weights (k, n) in float32."""
    rows, k = x.shape
    n, wide = weights.shape[1], 4 * SIZE
    turn, right = loaded(identity), []
    for k0 in range(0, k, SIZE):
        right.append(loaded(weights[k0 : k0 + SIZE, :]))
    out = nl.ndarray((rows, n), dtype=nl.float32, buffer=nl.shared_hbm)
    for r0 in range(0, rows, SIZE):
        here = loaded(x[r0 : r0 + SIZE, :])
        squares, size, scaled = tile(k), tile(1), tile(k)
        nisa.activation(dst=squares, op=nl.square, data=here)
        nisa.tensor_reduce(dst=size, op=nl.add, data=squares, axis=1)
        nisa.activation(dst=size, op=nl.rsqrt, data=size, scale=1.0 / k)
        nisa.tensor_scalar(dst=scaled, data=here, op0=nl.multiply, operand0=size)
        left, done = [], tile(n)
        for k0 in range(0, k, SIZE):
            left.append(copied(product(scaled[:, k0 : k0 + SIZE], turn)))
        for n0 in range(0, n, wide):
            bank = psum(wide)
            for t in range(len(left)):
                nisa.nc_matmul(dst=bank, stationary=left[t], moving=right[t][:, n0 : n0 + wide], accumulate=t > 0)
            nisa.tensor_copy(dst=done[:, n0 : n0 + wide], src=bank, engine=nisa.engine.vector)
        nisa.dma_copy(dst=out[r0 : r0 + SIZE, :], src=done)
    return out


@nki.jit
def recurrence(rows, factors, states, constants, heads=8, together=2):
    """States (heads, 128, 128) carried over chunks of 128 rows: some 28 float32 products of 128 x 128 for each.

    rows (3, T, heads * 128) and factors (2, T, heads) hold what a chunk of a head needs; constants are eight matrices.
    Steps are issued for ``together`` chunks or heads in turn, so that engines find independent work between them.
    """
    length = rows.shape[1]
    fixed = nl.ndarray((SIZE, 8, SIZE), dtype=nl.float32, buffer=nl.sbuf)
    nisa.dma_copy(dst=fixed, src=constants)
    out = nl.ndarray((length, heads * SIZE), dtype=nl.float32, buffer=nl.shared_hbm)
    last = nl.ndarray(states.shape, dtype=nl.float32, buffer=nl.shared_hbm)
    carried = []
    for h in range(heads):
        carried.append(loaded(states[h]))
    units = (length // SIZE) * heads
    for start in range(0, units, together):
        group = []
        for unit in range(start, min(start + together, units)):
            group.append(prepared(rows, factors, fixed, unit // heads * SIZE, unit % heads))
        inverted(group, fixed)
        for g in group:
            both = psum(2 * SIZE)
            nisa.nc_matmul(dst=both, stationary=g["inverse"], moving=g["right"], accumulate=False)
            g["solved"] = copied(both)
        for g in group:
            later = g["solved"][:, SIZE : 2 * SIZE]
            g["carry"] = combined(g["decayed"], product(later, g["keys"]))
            g["read"] = combined(g["query"], product(later, g["scores"]))
        for g in group:
            new, h = g["solved"][:, 0:SIZE], g["head"]
            results, state = psum(SIZE), psum(SIZE)
            nisa.nc_matmul(dst=results, stationary=g["scores"], moving=new, accumulate=False)
            nisa.nc_matmul(dst=results, stationary=g["read"], moving=carried[h], accumulate=True)
            nisa.nc_matmul(dst=state, stationary=g["keys"], moving=new, accumulate=False)
            nisa.nc_matmul(dst=state, stationary=g["carry"], moving=carried[h], accumulate=True)
            columns = slice(h * SIZE, (h + 1) * SIZE)
            nisa.dma_copy(dst=out[g["first"] : g["first"] + SIZE, columns], src=copied(results))
            carried[h] = copied(state)
    for h in range(heads):
        nisa.dma_copy(dst=last[h], src=carried[h])
    return out, last


def prepared(rows, factors, fixed, first, head):
    """What one chunk of one head needs: transposes, decays and products of its rows."""
    columns, span = slice(head * SIZE, (head + 1) * SIZE), slice(first, first + SIZE)
    query, key, value = loaded(rows[0, span, columns]), loaded(rows[1, span, columns]), loaded(rows[2, span, columns])
    weight, rate = loaded(factors[0, span, head : head + 1]), loaded(factors[1, span, head : head + 1])
    scaled, right, wide = tile(SIZE), tile(2 * SIZE), tile(2 * SIZE)
    nisa.tensor_scalar(dst=scaled, data=key, op0=nl.multiply, operand0=weight)
    nisa.activation(dst=right[:, 0:SIZE], op=nl.copy, data=value, scale=weight)
    nisa.activation(dst=wide[:, 0:SIZE], op=nl.copy, data=copied(product(scaled, fixed[:, 0, :])))
    nisa.activation(dst=wide[:, SIZE : 2 * SIZE], op=nl.copy, data=copied(product(query, fixed[:, 0, :])))
    turned = copied(product(key, fixed[:, 0, :]))
    spread, decays, growth, kept = tile(SIZE), tile(SIZE), tile(SIZE), tile(SIZE)
    nisa.tensor_scalar(dst=spread, data=fixed[:, 1, :], op0=nl.multiply, operand0=rate)
    sums, own, here = product(fixed[:, 2, :], spread), psum(1), tile(1)
    nisa.nc_matmul(dst=own, stationary=fixed[:, 1, :], moving=rate, accumulate=False)
    nisa.tensor_copy(dst=here, src=own)
    nisa.scalar_tensor_tensor(
        dst=decays, data=sums, op0=nl.subtract, operand0=here, op1=nl.minimum, operand1=fixed[:, 3, :]
    )
    nisa.activation(dst=decays, op=nl.exp, data=decays)
    nisa.activation(dst=growth, op=nl.exp, data=sums)
    nisa.tensor_scalar(dst=right[:, SIZE : 2 * SIZE], data=scaled, op0=nl.multiply, operand0=here)
    nisa.tensor_scalar(dst=kept, data=key, op0=nl.multiply, operand0=decays[:, SIZE - 1 : SIZE])
    pairs, below = psum(2 * SIZE), tile(SIZE)
    nisa.nc_matmul(dst=pairs, stationary=turned, moving=wide, accumulate=False)
    nisa.scalar_tensor_tensor(
        dst=below, data=pairs[:, 0:SIZE], op0=nl.multiply, operand0=-1.0, op1=nl.multiply, operand1=decays
    )
    return {
        "first": first, "head": head, "below": below, "right": right, "keys": kept, "decayed": growth,
        "scores": combined(decays, pairs[:, SIZE : 2 * SIZE]), "query": combined(growth, wide[:, SIZE : 2 * SIZE]),
    }  # fmt: skip


def inverted(group, fixed):
    """Inverses of unit triangular matrices: diagonal blocks of 16 by squaring, then 32, 64 and 128 by blocks."""
    for g in group:
        whole = copied(product(g["below"], fixed[:, 0, :]))
        g["blocks"] = combined(whole, fixed[:, 4, :])
        g["turned"] = combined(g["below"], fixed[:, 4, :])
        levels = []
        for level in range(3):
            levels.append(combined(whole, fixed[:, 5 + level, :]))
        g["levels"] = levels
    for g in group:
        g["square"] = copied(product(g["turned"], g["blocks"]))
        g["fourth"] = copied(product(copied(product(g["blocks"], g["turned"])), g["square"]))
        g["inverse"] = combined(g["turned"], fixed[:, 0, :])
    for power in ("square", "fourth"):
        for g in group:
            g["inverse"] = combined(g["inverse"], product(g[power], g["inverse"]))
    for level in range(3):
        for g in group:
            g["across"] = copied(product(g["inverse"], fixed[:, 0, :]))
            g["rest"] = copied(product(g["levels"][level], g["inverse"]))
        for g in group:
            g["inverse"] = combined(g["inverse"], product(g["across"], g["rest"]))


def psum(columns):
    return nl.ndarray((SIZE, columns), dtype=nl.float32, buffer=nl.psum)


def product(a, b):
    bank = psum(SIZE)
    nisa.nc_matmul(dst=bank, stationary=a, moving=b, accumulate=False)
    return bank


def copied(bank):
    """A copy in SBUF by the scalar engine."""
    here = tile(bank.shape[1])
    nisa.activation(dst=here, op=nl.copy, data=bank)
    return here


def combined(a, b):
    here = tile(SIZE)
    nisa.tensor_tensor(dst=here, data1=a, data2=b, op=nl.add)
    return here


def tile(columns):
    return nl.ndarray((SIZE, columns), dtype=nl.float32, buffer=nl.sbuf)


def loaded(source):
    here = nl.ndarray(source.shape, dtype=source.dtype, buffer=nl.sbuf)
    nisa.dma_copy(dst=here, src=source)
    return here
