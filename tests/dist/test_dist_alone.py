"""A communicator of one rank gives copies, as one of several does: what a program does to a result changes no operand."""

import numpy as np
import pytest

from trnpy.dist._collectives import Alone

CALLS = {
    "words": lambda transport, block: transport.words(block)[0],
    "allgather": lambda transport, block: transport.allgather(block, [block.size]),
    "alltoall": lambda transport, block: transport.alltoall([block], [block.size])[0],
}


@pytest.mark.parametrize("name", CALLS)
def test_what_a_single_rank_receives_is_a_copy(name):
    block = np.arange(16, dtype=np.uint8)
    found = CALLS[name](Alone(), block)
    np.testing.assert_array_equal(found, block)
    assert not np.shares_memory(found, block)
    found[:] = 0
    assert block.tolist() == list(range(16))
