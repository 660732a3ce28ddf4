"""A device loop over the entries of a table that the host sends, with several entries in each iteration."""

import nki.isa as nisa
import nki.language as nl

from .blocks import flat, offsets


def visit(job, table, places, each, begin, body, end):
    """body(job, at, end) for each column of an int32 table (rows, count) in HBM.

    at: the entries of a column, one tile each. places: (first, step) of the results. ``each``: columns in an iteration
    of the device loop; only its first one waits for operands. The columns that remain follow the loop. begin(job)
    allocates the PSUM of an iteration, and end(job) finishes what bodies have left.
    """
    rows, count = table.shape
    first, step = places
    turns = count // each
    if turns > 0:
        here = nl.ndarray((rows * turns, each), dtype=nl.int32, buffer=nl.private_hbm)
        results = offsets(pattern=[[step, turns * each]], start=first).reshape((turns, each))
        nisa.dma_copy(dst=here.reshape((rows, turns * each)), src=table[:, 0 : turns * each])

        def turn(t):
            begin(job=job)
            for e in range(each):
                at = []
                for row in range(rows):
                    at.append(_read(table=here, t=t, offset=row * turns * each + e))
                body(job=job, at=at, end=(_read(table=results, t=t, offset=e), 0))
            end(job=job)

        nl.fori_loop(0, nisa.register_alloc(turns), turn)
    if turns * each < count:
        begin(job=job)
        for index in range(turns * each, count):
            at = []
            for row in range(rows):
                at.append(_read(table=table, t=None, offset=row * count + index))
            body(job=job, at=at, end=(None, first + index * step))
        end(job=job)


def _read(table, t, offset):
    """Element ``offset`` of an integer table in HBM, or as many rows further as the register t says."""
    here = nl.ndarray((1, 1), dtype=nl.int32, buffer=nl.sbuf)
    if t == None:  # noqa: E711 - NKI has no `is`
        nisa.dma_copy(dst=here, src=flat(x=table).ap(pattern=[[1, 1], [1, 1]], offset=offset))
    else:
        pattern = [[table.shape[1], 1], [1, 1]]
        nisa.dma_copy(dst=here, src=table.ap(pattern=pattern, offset=offset, scalar_offset=t, indirect_dim=0))
    return here
