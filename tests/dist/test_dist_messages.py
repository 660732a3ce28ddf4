"""What calls of trnpy.dist refuse, in their words. One rank shows them; none of these is found out by a collective."""

import numpy as np
import pytest
from scipy import sparse

from trnpy import dist
from trnpy.dist import linalg
from trnpy.dist._collectives import Alone, Communicator
from trnpy.dist._sharded import Sharded, checked
from trnpy.dist._sparse import SparseRows, scatter_rows

A = np.arange(12.0).reshape(4, 3)
S = sparse.eye_array(4, format="csr")
OBJECTS, FIELDS = np.array([None]), np.zeros(2, [("x", "f8")])


def alone():
    return Communicator(Alone())


def sharded(a=A, axis=0):
    return dist.scatter(a, axis=axis)


def rows():
    return scatter_rows(S)


CALLS = {
    "an axis too large": (lambda: sharded(axis=2), ValueError, r"axis=2 of shape \(4, 3\): expected one of its axes"),
    "an axis too small": (lambda: checked(-3, (4, 3)), ValueError, r"axis=-3 of shape \(4, 3\): expected one of"),
    "pieces with such an axis": (lambda: Sharded(A, -3, (4, 3), alone()), ValueError, "axis=-3 of shape"),
    "pieces of a number": (lambda: Sharded(1.0, 0, (), alone()), ValueError, r"axis=0 of shape \(\): expected one"),
    "pieces too short": (lambda: Sharded(A, 0, (5, 3), alone()), ValueError, r"lengths \[4\] along axis 0: expected"),
    "pieces too wide": (lambda: Sharded(A, 0, (4, 2), alone()), ValueError, r"rank 0 has \(4, 3\): expected pieces of"),
    "pieces of more axes": (lambda: Sharded(A, 0, (4,), alone()), ValueError, r"rank 0 has \(4, 3\): expected pieces"),
    "an array of pieces": (lambda: np.asarray(sharded()), TypeError, "is not on one rank: trnpy.dist.gather returns"),
    "objects": (lambda: alone().allreduce(OBJECTS), TypeError, "dtype object: expected numbers"),
    "records": (lambda: alone().bcast(FIELDS), TypeError, "expected no fields; bcast them one by one"),
    "no such root": (lambda: alone().bcast(A, root=1), ValueError, "root=1: expected a rank from 0 to 0"),
    "a negative root": (lambda: alone().bcast(A, root=-1), ValueError, "root=-1: expected a rank from 0 to 0"),
    "no such sum": (lambda: alone().allreduce(A, "mean"), ValueError, "op='mean': expected "),
    "too many blocks": (lambda: alone().alltoall([A, A]), ValueError, "expected 1 arrays of one dtype and as many"),
    "an option": (lambda: dist.einsum("ij,ij->", sharded(), A, out=A), TypeError, "trnpy.dist.einsum has no out"),
    "sizes": (lambda: dist.einsum("ij,jk->ik", sharded(), A), ValueError, "."),
    "labels of no axes": (lambda: dist.einsum("i,ij->", sharded(), A), ValueError, "."),
    "matmul": (lambda: dist.matmul(sharded(), A), ValueError, r"matmul of shapes \(4, 3\) and \(4, 3\): expected"),
    "matmul of a number": (lambda: dist.matmul(sharded(), 2.0), ValueError, r"matmul of shapes \(4, 3\) and \(\)"),
    "matmul by a number": (lambda: dist.matmul(2.0, sharded()), ValueError, r"matmul of shapes \(\) and \(4, 3\)"),
    "tensordot": (lambda: dist.tensordot(sharded(), A, 1), ValueError, "over axes 1: expected pairs of axes"),
    "axes of one": (lambda: dist.tensordot(sharded(), A, ([0], [0, 1])), ValueError, "expected pairs of axes"),
    "axes twice": (lambda: dist.tensordot(sharded(), A, ([0, 0], [0, 0])), ValueError, "expected pairs of axes"),
    "no such axes": (lambda: dist.tensordot(sharded(), A, ([2], [0])), ValueError, "expected pairs of axes"),
    "communicators": (lambda: dist.matmul(Sharded(A, 0, (4, 3), alone()), sharded(A.T)), ValueError, "belong to diff"),
    "a whole matrix": (lambda: linalg.qr(A), TypeError, "qr: expected a Sharded matrix, as trnpy.dist.scatter makes"),
    "a stack": (lambda: linalg.qr(sharded(A[None])), TypeError, "qr: expected a Sharded matrix"),
    "a wide matrix": (lambda: linalg.qr(sharded(A.T)), ValueError, r"qr: expected at least as many rows as columns"),
    "no square": (lambda: linalg.cholesky(sharded()), ValueError, r"cholesky: expected a square matrix, not \(4, 3\)"),
    "a structure": (lambda: linalg.solve(sharded(A.T @ A), A.T, "sym"), ValueError, "solve: assume_a='sym', expected"),
    "short sides": (lambda: linalg.solve(sharded(A.T @ A), A), ValueError, r"b has shape \(4, 3\) for a matrix of"),
    "stacked sides": (lambda: linalg.solve(sharded(A.T @ A), A.T[None]), ValueError, r"b has shape \(1, 3, 4\) for"),
    "no finite numbers": (lambda: linalg._divided(sharded(A * np.nan), 2), ValueError, "must not contain infs or NaNs"),
    "a dense matrix": (lambda: scatter_rows(A), TypeError, "ndarray: expected a sparse matrix in "),
    "a format": (lambda: scatter_rows(S.tolil()), TypeError, "lil_array: expected a sparse matrix in "),
    "a sparse vector": (lambda: scatter_rows(sparse.csr_array(A[0])), TypeError, "csr_array: expected a sparse matrix"),
    "dense rows": (lambda: SparseRows(A, (4, 3), alone()), TypeError, "ndarray: expected a sparse matrix in "),
    "rows too few": (lambda: SparseRows(S, (5, 4), alone()), ValueError, r"pieces \[\(4, 4\)\]: expected rows of \(5,"),
    "rows too wide": (lambda: SparseRows(S, (4, 3), alone()), ValueError, r"\[\(4, 4\)\]: expected rows of \(4,"),
    "an array of rows": (lambda: np.asarray(rows()), TypeError, "is not on one rank, and its pieces are sparse"),
    "a vector too short": (lambda: rows() @ sharded(A[:3]), ValueError, r"matmul: shapes \(4, 4\) and \(3, 3\) do not"),
    "a stack of vectors": (lambda: rows() @ sharded(A[..., None]), ValueError, r"matmul: shapes \(4, 4\) and \(4, 3,"),
    "ranks of others": (lambda: rows() @ Sharded(A, 0, (4, 3), alone()), ValueError, "belong to different communica"),
}  # fmt: skip


@pytest.mark.parametrize("name", CALLS)
def test_a_call_is_refused_in_these_words(name):
    call, error, words = CALLS[name]
    with pytest.raises(error, match=words):
        call()


@pytest.mark.parametrize("assume_a", ["gen", "pos"])
@pytest.mark.parametrize("dtypes", ["dD", "fd", "ld", "DD"])
def test_a_system_is_solved_in_the_dtype_of_both_operands(assume_a, dtypes):
    a, b = np.diag([2, 4, 8]).astype(dtypes[0]), np.arange(6).reshape(3, 2).astype(dtypes[1])
    b = b * 1j if dtypes[1] == "D" else b
    found = linalg.solve(sharded(a), b, assume_a)
    assert found.dtype == np.result_type(a, b)
    np.testing.assert_allclose(found, b / np.array([[2], [4], [8]]), rtol=8 * np.finfo(found.dtype).eps)


@pytest.mark.parametrize("ranks", [1, 2, 3])
@pytest.mark.parametrize("axis", [0, 1])
def test_pieces_are_as_even_as_possible_and_in_the_order_of_ranks(ranks, axis):
    pieces = dist.threads(ranks, lambda: dist.scatter(A, axis=axis).local)
    np.testing.assert_array_equal(np.concatenate(pieces, axis=axis), A)
    lengths = [piece.shape[axis] for piece in pieces]
    assert max(lengths) - min(lengths) <= 1
