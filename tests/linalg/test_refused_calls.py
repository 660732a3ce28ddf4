"""What the rows of linear algebra refuse, with reason and phrase: NumPy and SciPy compute such calls, or raise."""

import numpy as np
import pytest
import scipy.linalg

import trnpy
from trnpy._engine.engines import HostEngine
from trnpy._report.reasons import Reason, Unsupported
from trnpy.linalg import blas, lapack

LAYOUT, PARAM, VALUE = Reason.LAYOUT, Reason.PARAM, Reason.VALUE
L = trnpy.linalg
A = np.array([[4.0, 1.0, 2.0], [1.0, 5.0, 3.0], [0.5, 2.0, 6.0]])
H = A + A.T
F = np.asfortranarray
B = np.ones((3, 2))
STACK = np.stack([np.eye(130) + k for k in (1.0, 2.0)])  # more than one panel
ONE = np.ones((1, 1))
SINGULAR = np.ones((3, 3))
CORNER = STACK.copy()
CORNER[1, 0, -1] = 0.0
MIXED = STACK.copy()
MIXED[1, 0, 1] += 1.0
HILBERT = scipy.linalg.hilbert(14)
INDEFINITE = np.array([[1.0, 2.0, 3.0], [2.0, 1.0, 2.0], [3.0, 2.0, 1.0]])
LU, PIVOTS = scipy.linalg.lu_factor(A)
OUTSIDE = [np.array([0, 1, 3]), np.array([-1, 1, 2])]
C = A + 1j * H

# Function, arguments, options, reason, phrase.
CALLS = [
    (L.eigh, (A[:2],), {}, LAYOUT, "shape (2, 3) is not one non-empty square matrix"),
    (L.eigh, (A[:0, :0],), {}, LAYOUT, "shape (0, 0) is not one non-empty square matrix"),
    (L.eigh, (STACK,), {}, LAYOUT, "shape (2, 130, 130) is not one non-empty square matrix"),
    (L.eigh, (H, H[:2, :2]), {}, PARAM, "shapes (3, 3) and (2, 2)"),
    (L.eigh, (H, H), {"type": 4}, PARAM, "type=4"),
    (L.eigh, (H, H), {"type": 0}, PARAM, "type=0"),
    (L.eigh, (-np.eye(3),), {"subset_by_value": [np.nextafter(-1, 0), 0]}, VALUE, "an eigenvalue within rounding of a"),
    (L.eigh, (H,), {"driver": "gvd"}, PARAM, "driver='gvd'"),
    (L.eigh, (H, H), {"driver": "evd"}, PARAM, "driver='evd'"),
    (L.eigh, (H,), {"driver": "evd", "subset_by_index": [0, 1]}, PARAM, "driver='evd'"),
    (L.eigh, (H,), {"subset_by_index": [0, 1], "subset_by_value": [0, 1]}, PARAM, "two subsets"),
    (L.eigh, (H,), {"subset_by_index": [1, 0]}, PARAM, "subset_by_index 1, 0 of 3"),
    (L.eigh, (H,), {"subset_by_index": [-1, 0]}, PARAM, "subset_by_index -1, 0 of 3"),
    (L.eigh, (H,), {"subset_by_index": [0, 3]}, PARAM, "subset_by_index 0, 3 of 3"),
    (L.eigh, (H,), {"subset_by_value": [1, 1]}, PARAM, "subset_by_value 1.0, 1.0"),
    (L.solve, (A, B[:2]), {}, LAYOUT, "matrix (3, 3) and right-hand side (2, 2)"),
    (L.solve, (A, B[:, :0]), {}, LAYOUT, "matrix (3, 3) and right-hand side (3, 0)"),
    (L.solve, (A, B[..., None]), {}, LAYOUT, "matrix (3, 3) and right-hand side (3, 2, 1)"),
    (L.solve, (ONE, ONE), {}, PARAM, "1 unknowns, transposed=False of float64"),
    (L.solve, (C, B), {"transposed": True}, PARAM, "3 unknowns, transposed=True of complex128"),
    (L.solve, (A, B), {"assume_a": "banded"}, PARAM, "assume_a='banded': the host solves it in O(n)"),
    (L.solve, (A, B), {"assume_a": "round"}, PARAM, "assume_a='round'"),
    (L.solve, (A, B), {"assume_a": ("gen",)}, PARAM, "assume_a=('gen',)"),
    (L.solve, (STACK, STACK), {"assume_a": "symmetric"}, PARAM, "stacks of symmetric matrices, transposed=False"),
    (L.solve, (STACK, STACK), {"transposed": True}, PARAM, "stacks of detect matrices, transposed=True"),
    (L.solve, (STACK, STACK[:1]), {}, LAYOUT, "matrices (2, 130, 130) and right-hand sides (1, 130, 130)"),
    (L.solve, (STACK, STACK[0]), {}, LAYOUT, "matrices (2, 130, 130) and right-hand sides (130, 130)"),
    (L.solve, (STACK, STACK[..., :0]), {}, LAYOUT, "matrices (2, 130, 130) and right-hand sides (2, 130, 0)"),
    (L.solve, (np.tril(A), B), {}, LAYOUT, "bandwidths 2 and 0: the host solves it in O(n^2)"),
    (L.solve, (CORNER, STACK), {}, LAYOUT, "a corner is zero: a matrix may be triangular or banded"),
    (L.solve, (CORNER.swapaxes(1, 2), STACK), {}, LAYOUT, "a corner is zero: a matrix may be triangular or banded"),
    (L.solve, (MIXED, STACK), {}, VALUE, "some matrices are Hermitian"),
    (L.solve, (INDEFINITE, B), {"assume_a": "pos"}, VALUE, "not positive definite"),
    (L.solve, (SINGULAR, B), {"assume_a": "gen"}, VALUE, "singular: a pivot is zero"),
    (L.solve, (np.diag([1.0, 0, 1]), B), {"assume_a": "lower triangular"}, VALUE, "singular: a zero on the diagonal"),
    (L.solve, (HILBERT, HILBERT), {"assume_a": "gen"}, VALUE, "ill-conditioned: rcond"),
    (L.solve, (A * [1, np.nan, 1], B), {"assume_a": "gen"}, VALUE, "infs or NaNs"),
    (L.inv, (STACK[:, :, :9],), {}, LAYOUT, "shape (2, 130, 9) is not of non-empty square matrices"),
    (L.inv, (STACK[:, :9, :9],), {}, LAYOUT, "the host factors panels of"),
    (L.inv, (A.astype(">f8"),), {}, Reason.DTYPE, "byte order of >f8"),
    (L.inv, (ONE,), {}, LAYOUT, "detect matrices (1, 1)"),
    (L.inv, (STACK,), {"assume_a": "pos"}, LAYOUT, "positive matrices (2, 130, 130)"),
    (L.inv, (H,), {"assume_a": "hermitian"}, PARAM, "assume_a='hermitian'"),
    (L.lu_solve, ((LU.tolist(), PIVOTS), B), {}, Reason.SUBCLASS, "a factor of type list"),
    (L.lu_solve, ((LU, PIVOTS[:2]), B), {}, PARAM, "pivots int32 (2,) for a matrix (3, 3)"),
    (L.lu_solve, ((LU, PIVOTS + 0.0), B), {}, PARAM, "pivots float64 (3,) for a matrix (3, 3)"),
    (L.lu_solve, ((LU, PIVOTS), B), {"trans": 3}, PARAM, "trans=3"),
    (L.lu_solve, ((LU, OUTSIDE[0]), B), {}, VALUE, "pivots outside the matrix"),
    (L.lu_solve, ((LU, OUTSIDE[1]), B), {}, VALUE, "pivots outside the matrix"),
    (L.lu_solve, ((np.triu(SINGULAR, 1), PIVOTS), B), {}, VALUE, "singular: a zero on the diagonal"),
    (L.solve_triangular, (A, B), {"trans": 3}, PARAM, "trans=3"),
    (L.solve_triangular, (np.triu(A, 1), B), {}, VALUE, "singular: a zero on the diagonal"),
    (L.cholesky, (INDEFINITE,), {}, VALUE, "not positive definite"),
    (L.lstsq, (A[0], B), {}, LAYOUT, "shape (3,) is not one non-empty matrix"),
    (L.lstsq, (A[:, :0], B), {}, LAYOUT, "shape (3, 0) is not one non-empty matrix"),
    (L.lstsq, (A, B[:2]), {}, LAYOUT, "matrix (3, 3) and right-hand sides (2, 2)"),
    (L.lstsq, (A, B[:, :0]), {}, LAYOUT, "matrix (3, 3) and right-hand sides (3, 0)"),
    (L.lstsq, (A, B.reshape(3, 2, 1)), {}, LAYOUT, "matrix (3, 3) and right-hand sides (3, 2, 1)"),
    (L.lstsq, (A, B), {"cond": -1.0}, PARAM, "cond=-1.0"),
    (L.lstsq, (A, B), {"cond": np.inf}, PARAM, "cond=inf"),
    (L.lstsq, (A, B), {"cond": "1"}, PARAM, "cond='1'"),
    (L.lstsq, (A, B), {"lapack_driver": "gels"}, PARAM, "lapack_driver='gels'"),
    (L.lstsq, (A, B), {"lapack_driver": ["gelsd"]}, PARAM, "lapack_driver=['gelsd']"),
    (L.lstsq, (np.ones((3, 3), int), B), {}, Reason.DTYPE, "int64"),
    (L.lstsq, (A, np.ones((3, 2), int)), {}, Reason.DTYPE, "int64"),
    (L.lstsq, (A * 2.0**600, B), {}, VALUE, "largest entry near 2^60"),
    (L.eigh, (H * 2.0**600,), {}, VALUE, "largest entry near 2^60"),
    (L.eigh, (H * 2.0**-600,), {}, VALUE, "largest entry near 2^-59"),
    (L.pinv, (np.diag([1.0, 1.0, 5e-309]),), {"rtol": 0.0}, VALUE, "the pseudo-inverse overflows"),
    (L.pinv, (A * 2.0**600,), {}, VALUE, "largest entry near 2^60"),
    (L.svd, (A * 2.0**600,), {}, VALUE, "largest entry near 2^60"),
    (L.det, (A[:2],), {}, LAYOUT, "shape (2, 3) is not of non-empty square matrices"),
    (L.slogdet, (A[:2],), {}, LAYOUT, "shape (2, 3) is not of non-empty square matrices"),
    (L.slogdet, (STACK[:, :0, :0],), {}, LAYOUT, "shape (2, 0, 0) is not of non-empty square matrices"),
    (L.inv_sqrtm, (H,), {"method": "fast"}, PARAM, "method='fast'"),
    (L.inv_sqrtm, (H.astype("f4"),), {}, Reason.DTYPE, "inverse square roots of float32 on a device"),
    (L.inv_sqrtm, (H[:2],), {}, LAYOUT, "shape (2, 3) is not one non-empty square matrix"),
    (L.inv_sqrtm, (INDEFINITE,), {}, VALUE, "not positive definite, or condition number above"),
    (L.qr, (A,), {"lwork": 3}, PARAM, "lwork=3, pivoting=False: the host's"),
    (L.qr, (A,), {"pivoting": True}, PARAM, "lwork=None, pivoting=True: the host's"),
    (L.qr, (A,), {"mode": "reduced"}, PARAM, "mode='reduced'"),
    (L.qr, (A,), {"mode": 0}, PARAM, "mode=0"),
    (L.qr, (STACK,), {"mode": "raw"}, PARAM, "stacks with mode='raw'"),
    (L.svd, (STACK,), {}, LAYOUT, "shape (2, 130, 130) is not one non-empty matrix"),
    (L.svd, (A,), {"lapack_driver": "gesvd"}, PARAM, "lapack_driver='gesvd'"),
    (L.polar, (A,), {"side": "up"}, PARAM, "side='up'"),
    (L.polar, (A,), {"side": ["left"]}, PARAM, "side=['left']"),
    (L.orth, (SINGULAR * 0,), {}, VALUE, "rank zero"),
    (L.cond, (A, 1), {}, PARAM, "p=1: its norms need the inverse"),
    (L.cond, (SINGULAR, -2), {}, VALUE, "a singular value that is zero to rounding"),
    (L.matrix_rank, (H,), {"hermitian": True}, PARAM, "hermitian=True"),
    (L.matrix_rank, (H,), {"tol": 1.0, "rtol": 1.0}, PARAM, "tol and rtol"),
    (L.matrix_rank, (H,), {"rtol": -1.0}, PARAM, "rtol=-1.0"),
    (L.multi_dot, ([A],), {}, LAYOUT, "not a chain of matrices"),
    (L.multi_dot, ([],), {}, LAYOUT, "not a chain of matrices"),
    (L.multi_dot, ([A, A[0], A],), {}, LAYOUT, "not a chain of matrices"),
    (L.multi_dot, ([A, A, A[None]],), {}, LAYOUT, "not a chain of matrices"),
    (L.multi_dot, ([A, A[:2], A],), {}, LAYOUT, "shapes [(3, 3), (2, 3), (3, 3)] do not match"),
    (L.matrix_power, (A, 1), {}, PARAM, "n=1: no product"),
    (L.fractional_matrix_power, (H, 2.0), {}, PARAM, "t=2.0: an integer is for products"),
    (L.fractional_matrix_power, (H, np.inf), {}, PARAM, "t=inf: an integer is for products"),
    (L.sqrtm, (A[:2],), {}, LAYOUT, "shape (2, 3) is not of non-empty square matrices"),
    (L.sqrtm, (INDEFINITE,), {}, VALUE, "not positive definite, or condition number above"),
    (L.expm, (A[:2],), {}, LAYOUT, "shape (2, 3) is not of non-empty square matrices"),
    (L.expm, (np.triu(A),), {}, LAYOUT, "triangular: SciPy computes two of its diagonals without products"),
    (L.expm, (np.tril(A),), {}, LAYOUT, "triangular: SciPy computes two of its diagonals without products"),
    (L.expm, (A * 1e300,), {}, VALUE, "an entry above"),
    (L.expm, (A * 1e10,), {}, VALUE, "a norm above"),
    (L.khatri_rao, (A, B), {}, LAYOUT, "shapes (3, 3) and (3, 2) are not matrices of equal width"),
    (L.khatri_rao, (A[0], A), {}, LAYOUT, "shapes (3,) and (3, 3) are not matrices of equal width"),
    (blas.dgemm, (1.0, A, B[:2]), {}, PARAM, "shapes (3, 3) and (2, 2)"),
    (blas.dgemm, (1.0, A.tolist(), B), {}, Reason.SUBCLASS, "list is not exactly a numpy.ndarray"),
    (blas.dgemm, (1.0, A.astype("f4"), B), {}, Reason.DTYPE, "float32 for a routine of float64"),
    (blas.dgemm, (1.0, A[0], B), {}, LAYOUT, "shape (3,) is not one non-empty matrix"),
    (blas.dgemm, (1.0, A[:, :0], B[:0]), {}, LAYOUT, "shape (3, 0) is not one non-empty matrix"),
    (blas.dgemm, (1j, A, B), {}, PARAM, "scalar 1j"),
    (blas.dgemm, (0.0, A, B), {}, PARAM, "alpha is 0: BLAS multiplies nothing"),
    (blas.dgemm, (np.inf, A, B), {}, VALUE, "alpha or beta is not finite"),
    (blas.dgemm, (1.0, A, B), {"beta": np.nan, "c": F(B)}, VALUE, "alpha or beta is not finite"),
    (blas.dgemm, (1.0, A, B), {"beta": 1.0, "c": F(A)}, PARAM, "c (3, 3) for a result (3, 2)"),
    (blas.dgemm, (1.0, A, B), {"beta": 1.0, "c": F(B) * np.nan}, VALUE, "infs or NaNs"),
    (blas.dgemm, (1.0, A, B), {"trans_a": 3}, PARAM, "trans_a=3"),
    (blas.dgemm, (1.0, A, B), {"trans_a": -1}, PARAM, "trans_a=-1"),
    (blas.dgemm, (1.0, A, B), {"overwrite_c": 2}, PARAM, "overwrite_c=2"),
    (blas.dsymm, (1.0, A, B[:2]), {}, PARAM, "shapes (3, 3) and (2, 2)"),
    (blas.dtrmm, (1.0, A, B[:2]), {}, PARAM, "shapes (3, 3) and (2, 2)"),
    (blas.dtrsm, (1.0, np.triu(A, 1), B), {}, VALUE, "singular: a zero on the diagonal"),
    (blas.dsyr2k, (1.0, A, A[:, :2]), {}, PARAM, "shapes (3, 3) and (3, 2)"),
    (blas.zherk, (1.0, C), {"trans": 1}, PARAM, "trans=1 of herk and complex128"),
    (blas.zsyrk, (1.0, C), {"trans": 2}, PARAM, "trans=2 of syrk and complex128"),
    (lapack.dsyevd, (A[:2],), {}, PARAM, "shape (2, 3) is not square"),
    (lapack.dsyevd, (H,), {"compute_v": 0}, PARAM, "compute_v=0 or the size of a work array"),
    (lapack.dsyevd, (H,), {"lwork": 100}, PARAM, "compute_v=1 or the size of a work array"),
    (lapack.dsygvd, (H, H), {"itype": 4}, PARAM, "itype=4, jobz='V', uplo='L' or the size of a work array"),
    (lapack.dsygvd, (H, H), {"jobz": "N"}, PARAM, "itype=1, jobz='N', uplo='L' or the size of a work array"),
    (lapack.dsygvd, (H, H), {"uplo": "M"}, PARAM, "itype=1, jobz='V', uplo='M' or the size of a work array"),
]  # fmt: skip


def refused(function, args, options):
    """Why the row of ``function`` refuses a call, on the host's engine."""
    with pytest.raises(Unsupported) as why, np.errstate(all="ignore"):
        function.__trnpy_op__.prepare(*args, **options).run(HostEngine())
    return why.value.reason, str(why.value)


@pytest.mark.parametrize("call", CALLS, ids=lambda call: f"{call[0].__name__}: {call[4]}")
def test_a_call_is_refused_with_a_reason_and_a_phrase(call):
    function, args, options, reason, phrase = call
    found, detail = refused(function, args, options)
    assert found is reason and phrase in detail
