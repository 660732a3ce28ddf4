"""The selective state-space layer of Mamba in the three loop orders of AWS's tutorial.

delta, u (batch, channels, length); a (channels, states); b, c (batch, states, length). B and C are
spread over the partitions by a product with ones, so that VectorEngine reads them from PSUM.
"""

import nki
import nki.isa as nisa
import nki.language as nl

ROWS = 128
COLUMNS = 512  # float32 of one PSUM bank


@nki.jit
def reloading(delta, u, a, b, c):
    """States outside, channels inside, inputs loaded for every state: version 1."""
    batches, channels, length = delta.shape
    out = nl.ndarray(delta.shape, dtype=delta.dtype, buffer=nl.shared_hbm)
    ones = filled(1, ROWS, delta.dtype, 1.0)
    for n in range(batches):
        totals = []
        for _ in range(channels // ROWS):
            totals.append(filled(ROWS, length, delta.dtype, 0.0))
        for s in range(a.shape[1]):
            for t in range(channels // ROWS):
                delta_t = load(delta[n, t * ROWS : (t + 1) * ROWS, :])
                u_t = load(u[n, t * ROWS : (t + 1) * ROWS, :])
                step(totals[t], delta_t, u_t, a, b, c, n, t, s, ones)
        for t in range(channels // ROWS):
            nisa.dma_copy(dst=out[n, t * ROWS : (t + 1) * ROWS, :], src=totals[t])
    return out


@nki.jit
def keeping(delta, u, a, b, c):
    """Channels outside, states inside, delta and u loaded once: version 2."""
    batches, channels, length = delta.shape
    out = nl.ndarray(delta.shape, dtype=delta.dtype, buffer=nl.shared_hbm)
    ones = filled(1, ROWS, delta.dtype, 1.0)
    for n in range(batches):
        for t in range(channels // ROWS):
            total = filled(ROWS, length, delta.dtype, 0.0)
            delta_t = load(delta[n, t * ROWS : (t + 1) * ROWS, :])
            u_t = load(u[n, t * ROWS : (t + 1) * ROWS, :])
            for s in range(a.shape[1]):
                step(total, delta_t, u_t, a, b, c, n, t, s, ones)
            nisa.dma_copy(dst=out[n, t * ROWS : (t + 1) * ROWS, :], src=total)
    return out


@nki.jit
def chunked(delta, u, a, b, c):
    """As keeping, with the sequence cut into pieces of 512, each of which starts from the last state: version 3."""
    batches, channels, length = delta.shape
    out = nl.ndarray(delta.shape, dtype=delta.dtype, buffer=nl.shared_hbm)
    ones = filled(1, ROWS, delta.dtype, 1.0)
    for n in range(batches):
        for t in range(channels // ROWS):
            total = filled(ROWS, length, delta.dtype, 0.0)
            delta_t = load(delta[n, t * ROWS : (t + 1) * ROWS, :])
            u_t = load(u[n, t * ROWS : (t + 1) * ROWS, :])
            for s in range(a.shape[1]):
                a_t = load(a[t * ROWS : (t + 1) * ROWS, s : s + 1])
                state = filled(ROWS, 1, delta.dtype, 0.0)
                for p in range(length // COLUMNS):
                    here = slice(p * COLUMNS, (p + 1) * COLUMNS)
                    scanned = scan(delta_t[:, here], u_t[:, here], a_t, spread(b, n, s, here, ones), state)
                    nisa.tensor_copy(dst=state, src=scanned[:, COLUMNS - 1 : COLUMNS])
                    weighted = times(scanned, spread(c, n, s, here, ones))
                    nisa.tensor_tensor(dst=total[:, here], data1=total[:, here], data2=weighted, op=nl.add)
            nisa.dma_copy(dst=out[n, t * ROWS : (t + 1) * ROWS, :], src=total)
    return out


def step(total, delta_t, u_t, a, b, c, n, t, s, ones):
    """Add one state's contribution over the whole sequence."""
    a_t = load(a[t * ROWS : (t + 1) * ROWS, s : s + 1])
    whole = slice(0, delta_t.shape[1])
    scanned = scan(delta_t, u_t, a_t, spread(b, n, s, whole, ones), 0.0)
    weighted = times(scanned, spread(c, n, s, whole, ones))
    nisa.tensor_tensor(dst=total, data1=total, data2=weighted, op=nl.add)


def scan(delta_t, u_t, a_t, b_t, initial):
    """h_i = exp(a delta_i) h_(i-1) + b_i delta_i u_i along the sequence."""
    decay = nl.ndarray(delta_t.shape, dtype=delta_t.dtype, buffer=nl.sbuf)
    nisa.activation(dst=decay, op=nl.exp, data=delta_t, scale=a_t)
    driven = times(times(delta_t, u_t), b_t)
    scanned = nl.ndarray(delta_t.shape, dtype=delta_t.dtype, buffer=nl.sbuf)
    nisa.tensor_tensor_scan(dst=scanned, data0=decay, data1=driven, initial=initial, op0=nl.multiply, op1=nl.add)
    return scanned


def spread(source, n, s, columns, ones):
    """Row s of b or c in all 128 partitions of PSUM."""
    row = load(source[n, s : s + 1, columns])
    width = row.shape[1]
    wide = nl.ndarray((ROWS, width), dtype=nl.float32, buffer=nl.psum)
    for p in range((width + COLUMNS - 1) // COLUMNS):
        here = slice(p * COLUMNS, min((p + 1) * COLUMNS, width))
        nisa.nc_matmul(dst=wide[:, here], stationary=ones, moving=row[:, here], is_stationary_onezero=True)
    return wide


def times(x, y):
    product = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.sbuf)
    nisa.tensor_tensor(dst=product, data1=x, data2=y, op=nl.multiply)
    return product


def load(source):
    here = nl.ndarray(source.shape, dtype=source.dtype, buffer=nl.sbuf)
    nisa.dma_copy(dst=here, src=source)
    return here


def filled(height, width, dtype, value):
    here = nl.ndarray((height, width), dtype=dtype, buffer=nl.sbuf)
    nisa.memset(dst=here, value=value)
    return here
