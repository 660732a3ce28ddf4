"""A stage of a spectral Navier-Stokes step: Fourier transforms as products, and elementwise work between them."""

import nki
import nki.isa as nisa
import nki.language as nl

ROWS = 128
COLUMNS = 512  # float32 of a tile that one transfer moves


@nki.jit
def stage(state, rates, cosines, sines, waves):
    """New state and rates (6, n, n, n): curl, six inverse transforms, cross product, three transforms, update."""
    n = cosines.shape[0]
    parts = (6, n, n * n)
    here, before, constants = state.reshape(parts), rates.reshape(parts), waves.reshape(parts)
    curl = scratch(6, n)
    elementwise(curl, [constants, constants, constants, here, here, here, here, here, here], 6, 3)
    fields = scratch(6, n)
    for which in range(6):
        transform(fields, which, -1, here if which < 3 else curl, 2 * (which % 3), cosines, sines, n)
    forces = scratch(3, n)
    elementwise(forces, [fields, fields, fields, fields, fields, fields], 3, 3)
    spectrum = scratch(6, n)
    for which in range(3):
        transform(spectrum, 2 * which, 2 * which + 1, forces, which, cosines, sines, n)
    new = nl.ndarray(state.shape, dtype=state.dtype, buffer=nl.shared_hbm)
    change = nl.ndarray(state.shape, dtype=state.dtype, buffer=nl.shared_hbm)
    update(new.reshape(parts), change.reshape(parts), here, before, spectrum, constants)
    return new, change


def scratch(count, n):
    return nl.ndarray((count, n, n * n), dtype=nl.float32, buffer=nl.private_hbm)


def elementwise(out, sources, results, operations):
    """``results`` arrays, each by ``operations`` operations of two tiles, from tiles of all ``sources``."""
    n = out.shape[1]
    for start in range(0, out.shape[2], COLUMNS):
        tiles = []
        for place in range(len(sources)):
            tiles.append(piece(sources[place], place % sources[place].shape[0], start))
        for result in range(results):
            made = [tiles[result % len(tiles)], tiles[(result + 1) % len(tiles)]]
            for _ in range(operations - 1):
                made.append(combined(made[0], made[1]))
            last = combined(made[-1], made[-2])
            nisa.dma_copy(dst=out[result, 0:n, start : start + COLUMNS], src=last)


def update(new, change, state, rates, spectrum, waves):
    """Projection and one Runge-Kutta update of real and imaginary parts: 41 operations of two tiles, or of one."""
    n = new.shape[1]
    for start in range(0, new.shape[2], COLUMNS):
        constants = []
        for which in range(5):
            constants.append(piece(waves, which, start))
        for part in range(2):
            forces, terms = [], []
            for axis in range(3):
                forces.append(combined(piece(spectrum, 2 * axis + part, start), constants[4]))
                terms.append(combined(constants[axis], forces[axis]))
            total = combined(combined(combined(terms[0], terms[1]), terms[2]), constants[3])
            for axis in range(3):
                place = 2 * axis + part
                force = combined(forces[axis], combined(constants[axis], total))
                rate = combined(scaled(piece(rates, place, start)), scaled(force))
                here = combined(piece(state, place, start), scaled(rate))
                nisa.dma_copy(dst=new[place, 0:n, start : start + COLUMNS], src=here)
                nisa.dma_copy(dst=change[place, 0:n, start : start + COLUMNS], src=rate)


def transform(out, real, imaginary, source, place, cosines, sines, n):
    """Three passes over n^3 elements; forward from a real array, or backward to one if ``imaginary`` is -1."""
    forward = imaginary >= 0
    left, right = loaded(cosines), loaded(sines)
    first, second = scratch(2, n), scratch(2, n)
    rows_pass(first.reshape((2, n * n, n)), source, place, 1 if forward else 2, 2, left, right)
    once, twice = first.reshape((2, n, n, n)), second.reshape((2, n, n, n))
    for plane in range(n):
        rows_pass(twice[:, plane], once[:, plane], 0, 2, 2, left, right)
    target = out.reshape((out.shape[0], n * n, n))[real : real + (2 if forward else 1)]
    rows_pass(target, second, 0, 2, 2 if forward else 1, left, right)


def rows_pass(out, source, place, given, wanted, left, right):
    """out (wanted, columns, rows) from ``given`` arrays (rows, columns) of source: products, the data on the left."""
    rows, columns = source.shape[1], source.shape[2]
    width = min(COLUMNS, columns)
    for start in range(0, columns, width):
        tiles = []
        for which in range(given):
            tiles.append(piece(source, place + which, start, width))
        for at in range(0, width, ROWS):
            depth = min(ROWS, width - at)
            for part in range(wanted):
                bank = nl.ndarray((depth, rows), dtype=nl.float32, buffer=nl.psum)
                for which in range(given):
                    nisa.nc_matmul(
                        dst=bank, stationary=tiles[which][:, at : at + depth], moving=left if part == which else right,
                        accumulate=which > 0,
                    )  # fmt: skip
                done = nl.ndarray((depth, rows), dtype=nl.float32, buffer=nl.sbuf)
                nisa.tensor_copy(dst=done, src=bank)
                nisa.dma_copy(dst=out[part, start + at : start + at + depth, 0:rows], src=done)


def loaded(source):
    here = nl.ndarray(source.shape, dtype=source.dtype, buffer=nl.sbuf)
    nisa.dma_copy(dst=here, src=source)
    return here


def piece(source, place, start, width=COLUMNS):
    here = nl.ndarray((source.shape[1], width), dtype=source.dtype, buffer=nl.sbuf)
    nisa.dma_copy(dst=here, src=source[place, :, start : start + width])
    return here


def combined(a, b):
    out = nl.ndarray(a.shape, dtype=a.dtype, buffer=nl.sbuf)
    nisa.tensor_tensor(dst=out, data1=a, data2=b, op=nl.multiply)
    return out


def scaled(a):
    out = nl.ndarray(a.shape, dtype=a.dtype, buffer=nl.sbuf)
    nisa.tensor_scalar(dst=out, data=a, op0=nl.multiply, operand0=0.5)
    return out
