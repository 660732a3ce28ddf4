"""An all-to-all exchange of rows, the building block of trnpy.dist's collective operations between NeuronCores.

One program with one collective implements all of them: two alternating ones gave wrong numbers on 8 ranks (inf2).
Operands and results pass through separate buffers, because collectives do not accept the buffers of a launch. Bound by
the barrier of the ranks and by the links between cores: each row except a rank's own crosses them once.
"""

import nki
import nki.collectives as ncc
import nki.isa as nisa
import nki.language as nl


@nki.jit
def exchange(rows, group):
    """Row r comes from rank ``group[r]``. rows: (ranks, words) int32, row r for rank ``group[r]``."""
    sent = nl.ndarray(rows.shape, dtype=rows.dtype, buffer=nl.private_hbm)
    found = nl.ndarray(rows.shape, dtype=rows.dtype, buffer=nl.private_hbm)
    out = nl.ndarray(rows.shape, dtype=rows.dtype, buffer=nl.shared_hbm)
    nisa.dma_copy(dst=sent, src=rows)
    ncc.all_to_all(srcs=[sent], dsts=[found], replica_group=ncc.ReplicaGroup([group]), collective_dim=0)
    nisa.dma_copy(dst=out, src=found)
    return out
