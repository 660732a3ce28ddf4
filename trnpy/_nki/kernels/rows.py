"""Rows of unequal length under one device loop: bounds that the device reads, and turns that leave no padding."""

import nki.isa as nisa
import nki.language as nl


def table(source):
    """A small matrix of HBM on the chip."""
    found = nl.ndarray(source.shape, dtype=source.dtype, buffer=nl.sbuf)
    nisa.dma_copy(dst=found, src=source)
    return found


def levels(bounds):
    """Each row of ``bounds`` (levels + 1, R) as a table of its own: where turns of one kind begin and end."""
    found = []
    for level in range(bounds.shape[0]):
        found.append(table(source=bounds[level : level + 1, :]))
    return found


def look(source, j):
    """Column j of a table, j known on the device, as a tile of its own."""
    here = nl.ndarray((source.shape[0], 1), dtype=source.dtype, buffer=nl.sbuf)
    nisa.tensor_copy(dst=here, src=source[:, nl.ds(j, 1)], engine=nisa.engine.vector)
    return here


def turns(plan, edges, r, unit, load, multiply):
    """All items of row r: in turns of 2 ``unit``, of what is left unit, unit / 2 ... 1, into ``slots`` of their own.

    load(plan, slots, j, ahead) brings items from j + ahead on, one for each of at most ``unit`` consecutive slots,
    multiply(plan, slots) uses them. A turn of one unit has the first half of the slots, shorter ones share the second:
    none waits for the one before.
    """
    bounds = []
    for edge in edges:
        bound = nisa.register_alloc()
        nisa.register_load(bound, edge[0:1, nl.ds(r, 1)])
        bounds.append(bound)
    step, first = 2 * unit, 0
    for level in range(len(edges) - 1):

        def turn(j, step=step, first=first):
            for half in range(0, step, unit):
                slots = []
                for q in range(half, min(half + unit, step)):
                    slots.append(first + q)
                load(plan=plan, slots=slots, j=j, ahead=half)
                multiply(plan=plan, slots=slots)

        nl.fori_loop(bounds[level], bounds[level + 1], turn, step=step)
        if step < unit:
            first = first + step
        else:
            first = 0 if step == 2 * unit else unit
        step = step // 2


def start(banks, zeros):
    """Empty sums: a product of zeros, for only to what a product has written may others be added."""
    width = zeros.shape[0]
    for bank in banks:
        moving = zeros[:, width : width + bank.shape[1]]
        nisa.nc_matmul(dst=bank, stationary=zeros[:, 0:width], moving=moving, accumulate=False)
