"""Types of trnpy.dist: written by tests/typing/make_stubs.py."""

from trnpy.dist import linalg as linalg
from trnpy.dist._collectives import Communicator as Communicator, MismatchedCalls as MismatchedCalls
from trnpy.dist._core_transport import cores as cores
from trnpy.dist._files import load as load
from trnpy.dist._sharded import Sharded as Sharded, gather as gather, scatter as scatter
from trnpy.dist._sharded_products import (
    einsum as einsum, einsum_plan as einsum_plan, matmul as matmul, multi_einsum as multi_einsum,
    tensordot as tensordot
)
from trnpy.dist._sparse import SparseRows as SparseRows, scatter_rows as scatter_rows
from trnpy.dist._start import comm as comm, threads as threads
