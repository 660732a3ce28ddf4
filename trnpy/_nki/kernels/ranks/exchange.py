"""Rows of every rank to every rank: what the collective operations of trnpy.dist are made of between NeuronCores.

One program with one collective serves all of them: two that alternate gave wrong numbers on 8 ranks (inf2). Operands
and results pass through buffers of their own, because collectives do not take those of a launch. Bound by the barrier
of the ranks and by links: each row but one's own crosses them once.
"""

import nki
import nki.collectives as ncc
import nki.isa as nisa
import nki.language as nl


@nki.jit
def exchange(rows, group):
    """Row r is what rank ``group[r]`` has for this one. rows: (ranks, words) int32, row r for rank ``group[r]``."""
    sent = nl.ndarray(rows.shape, dtype=rows.dtype, buffer=nl.private_hbm)
    found = nl.ndarray(rows.shape, dtype=rows.dtype, buffer=nl.private_hbm)
    out = nl.ndarray(rows.shape, dtype=rows.dtype, buffer=nl.shared_hbm)
    nisa.dma_copy(dst=sent, src=rows)
    ncc.all_to_all(srcs=[sent], dsts=[found], replica_group=ncc.ReplicaGroup([group]), collective_dim=0)
    nisa.dma_copy(dst=out, src=found)
    return out
