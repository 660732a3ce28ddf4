"""Rows of unequal length under one device loop: bounds that the device reads, and turns that leave no padding."""

import nki.isa as nisa
import nki.language as nl

from .blocks import entry


def item(table, j, ahead, stride=1):
    """Entry j stride + ``ahead`` of a (1, slots) table in HBM, as a (1, 1) tile."""
    here = nl.ndarray((1, 1), dtype=nl.int32, buffer=nl.sbuf)
    found = table.reshape((table.shape[1] // stride, stride))
    source = found.ap(pattern=[[stride, 1], [1, 1]], offset=ahead, scalar_offset=j, indirect_dim=0)
    nisa.dma_copy(dst=here, src=source)
    return here


def column(table, j, ahead):
    """Column j + ``ahead`` of a (128, slots) table in HBM."""
    here = nl.ndarray((table.shape[0], 1), dtype=table.dtype, buffer=nl.sbuf)
    source = table.ap(pattern=[[table.shape[1], table.shape[0]], [1, 1]], offset=ahead, scalar_offset=j, indirect_dim=1)
    nisa.dma_copy(dst=here, src=source)
    return here


def turns(plan, bounds, r, unit, load, multiply, start):
    """All items of row r: in turns of 2 ``unit``, of what is left unit, unit / 2 ... 1, into ``slots`` of their own.

    bounds (levels + 1, R) in HBM: where turns of one kind begin and end. load(plan, slots, j, ahead) brings items from
    j + ahead on, one for each of at most ``unit`` consecutive slots, multiply(plan, slots) adds their products to sums
    in SBUF: PSUM does not outlive the body of a loop, and start(plan) makes that of a turn. A turn of one unit has the
    first half of the slots, shorter ones share the second: none waits for the one before.
    """
    edges = []
    for level in range(bounds.shape[0]):
        edge = nisa.register_alloc()
        nisa.register_load(edge, entry(table=bounds, t=r, row=level))
        edges.append(edge)
    step, first = 2 * unit, 0
    for level in range(len(edges) - 1):

        def turn(j, step=step, first=first):
            start(plan=plan)
            for half in range(0, step, unit):
                slots = []
                for q in range(half, min(half + unit, step)):
                    slots.append(first + q)
                load(plan=plan, slots=slots, j=j, ahead=half)
                multiply(plan=plan, slots=slots)

        nl.fori_loop(edges[level], edges[level + 1], turn, step=step)
        if step < unit:
            first = first + step
        else:
            first = 0 if step == 2 * unit else unit
        step = step // 2
