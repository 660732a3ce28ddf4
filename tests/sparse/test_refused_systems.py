"""What the sparse rows refuse, each with its reason and phrase: SciPy computes those calls, or raises its own error."""

import types

import numpy as np
import pytest
from scipy import sparse

import trnpy
import trnpy.sparse.linalg as ours
from trnpy._engine.engines import Refused
from trnpy._report.reasons import Reason, Unsupported
from trnpy.sparse import _device, _matmul
from trnpy.sparse.linalg import _expm, _krylov

LAYOUT, PARAM, DTYPE, VALUE = Reason.LAYOUT, Reason.PARAM, Reason.DTYPE, Reason.VALUE
A = sparse.diags_array([-1.0, 2.0, -1.0], offsets=[-1, 0, 1], shape=(40, 40), format="csr")
B, X = np.ones(40), np.ones((40, 3))
WIDE, EMPTY, NONE = A[:20], sparse.csr_array((40, 40)), sparse.csr_array((0, 0))
BLOCKS = sparse.bsr_array(A, blocksize=(2, 2))
CUT = BLOCKS.copy()
CUT._shape = (39, 39)  # as SciPy's own constructors leave it after a slice of other code
D = A.toarray()

cg, gmres, eigsh, lobpcg, expm_multiply = (
    getattr(ours, name).__trnpy_op__.prepare for name in ("cg", "gmres", "eigsh", "lobpcg", "expm_multiply")
)

# Function, arguments, options, reason, phrase.
CALLS = [
    (_matmul.prepare_matmul, (A, D.tolist()), {}, LAYOUT, "2-dimensional csr times list"),
    (_matmul.prepare_matmul, (sparse.coo_array(B), D), {}, LAYOUT, "1-dimensional coo times ndarray"),
    (_matmul.prepare_matmul, (A, D[:20]), {}, PARAM, "shapes (40, 40) and (20, 40)"),
    (_matmul.prepare_matmul, (A, D[None]), {}, PARAM, "shapes (40, 40) and (1, 40, 40)"),
    (_matmul.prepare_matmul, (A, D.astype(object)), {}, DTYPE, "dtypes float64 and object"),
    (_matmul.prepare_matmul, (CUT, np.ones((39, 2))), {}, LAYOUT, "blocks (2, 2) of a matrix (39, 39)"),
    (cg, (D, B), {}, LAYOUT, "ndarray is not a sparse matrix"),
    (cg, (WIDE, B), {}, LAYOUT, "shape (20, 40) with 59 elements is not one non-empty square matrix"),
    (cg, (EMPTY, B), {}, LAYOUT, "shape (40, 40) with 0 elements is not one non-empty square matrix"),
    (cg, (NONE, B[:0]), {}, LAYOUT, "shape (0, 0) with 0 elements is not one non-empty square matrix"),
    (cg, (A, B.tolist()), {}, LAYOUT, "a right-hand side or x0 of type list, not one vector"),
    (cg, (A, B[:, None]), {}, LAYOUT, "a right-hand side or x0 of type ndarray, not one vector"),
    (cg, (A, B), {"x0": B[:3]}, LAYOUT, "a right-hand side or x0 of type ndarray, not one vector"),
    (cg, (A, B > 0), {}, LAYOUT, "a right-hand side or x0 of type ndarray, not one vector"),
    (cg, (A.astype(int), B), {}, DTYPE, "dtypes int64 and float64 have no device path"),
    (cg, (A.astype("f4"), B), {}, DTYPE, "dtypes float32 and float64 have no device path"),
    (cg, (A, B), {"x0": B * 1j}, DTYPE, "x0 of complex128 for float64"),
    (cg, (A, B), {"maxiter": 0}, PARAM, "maxiter=0 is not a positive integer"),
    (cg, (A, B), {"maxiter": True}, PARAM, "maxiter=True is not a positive integer"),
    (cg, (A, B), {"maxiter": 5.0}, PARAM, "maxiter=5.0 is not a positive integer"),
    (gmres, (A, B), {"restart": 0}, PARAM, "restart=0 is not a positive integer"),
    (gmres, (A, B), {"callback": print}, PARAM, "a callback without callback_type"),
    (eigsh, (A,), {"sigma": 0.0}, PARAM, "options sigma, which='LM', mode='normal'"),
    (eigsh, (A,), {"v0": B}, PARAM, "options v0, which='LM', mode='normal'"),
    (eigsh, (A,), {"which": "SM"}, PARAM, "options , which='SM', mode='normal'"),
    (eigsh, (A,), {"mode": "cayley"}, PARAM, "options , which='LM', mode='cayley'"),
    (eigsh, (A * 1j,), {}, DTYPE, "dtype complex128 has no device path"),
    (eigsh, (A.astype(int),), {}, DTYPE, "dtype int64 has no device path"),
    (eigsh, (A,), {"k": 10}, PARAM, "k=10 of 40: expected less than a quarter of the order"),
    (eigsh, (A,), {"k": 0}, PARAM, "k=0 of 40: expected less than a quarter of the order"),
    (eigsh, (A,), {"k": np.int64(2)}, PARAM, "of 40: expected less than a quarter of the order"),
    (lobpcg, (A, B), {}, LAYOUT, "X is ndarray, not vectors of 40"),
    (lobpcg, (A, X.tolist()), {}, LAYOUT, "X is list, not vectors of 40"),
    (lobpcg, (A, X[:20]), {}, LAYOUT, "X is ndarray, not vectors of 40"),
    (lobpcg, (A, X[:, :0]), {}, LAYOUT, "X is ndarray, not vectors of 40"),
    (lobpcg, (A, X.astype("f4")), {}, PARAM, "X of float32 for float64, verbosityLevel=0"),
    (lobpcg, (A, X), {"verbosityLevel": 1}, PARAM, "X of float64 for float64, verbosityLevel=1"),
    (lobpcg, (A, X), {"B": CUT}, LAYOUT, "blocks (2, 2) of a matrix (39, 39)"),
    (expm_multiply, (D, X), {"start": 0.0, "stop": 1.0}, PARAM, "options"),
    (expm_multiply, (A, X), {}, LAYOUT, "csr_array and ndarray are not two arrays"),
    (expm_multiply, (D, X.tolist()), {}, LAYOUT, "ndarray and list are not two arrays"),
    (expm_multiply, (D, B), {}, LAYOUT, "shapes (40, 40) and (40,) are not a square matrix and a block"),
    (expm_multiply, (D, X[:20]), {}, LAYOUT, "shapes (40, 40) and (20, 3) are not a square matrix"),
    (expm_multiply, (D, X[:, :0]), {}, LAYOUT, "shapes (40, 40) and (40, 0) are not a square matrix"),
    (expm_multiply, (D[:20], X), {}, LAYOUT, "shapes (20, 40) and (40, 3) are not a square matrix"),
    (expm_multiply, (D, X.astype("f4")), {}, DTYPE, "dtypes float64 and float32"),
    (expm_multiply, (D.astype("f4"), X.astype("f4")), {}, DTYPE, "dtypes float32 and float32"),
    (_expm.prepare_expm, (A,), {}, LAYOUT, "csr_array is not one dense matrix"),
    (_expm.prepare_expm, (D.view(np.matrix),), {}, LAYOUT, "matrix is not one dense matrix"),
    (_expm.prepare_expm, (D[None],), {}, LAYOUT, "ndarray is not one dense matrix"),
]


@pytest.mark.parametrize("call", CALLS, ids=lambda call: f"{call[0].__name__}: {call[4]}")
def test_a_call_is_refused_with_a_reason_and_a_phrase(call):
    function, args, options, reason, phrase = call
    with pytest.raises(Unsupported) as why:
        function(*args, **options)
    assert why.value.reason is reason and phrase in str(why.value)


ZERO_ROW = A.copy()
ZERO_ROW.data[ZERO_ROW.indptr[5] : ZERO_ROW.indptr[6]] = 0.0


@pytest.mark.parametrize(
    "scales, matrix, phrase",
    [
        (_krylov.of_diagonal, A * -1.0, "the diagonal is not positive"),
        (_krylov.of_diagonal, EMPTY, "the diagonal is not positive"),
        (_krylov.of_rows, ZERO_ROW, "singular: a row of zeros"),
        (_krylov.of_rows, sparse.csr_array(ZERO_ROW.T), "singular: a column of zeros"),
        (_krylov.by_root(-B), A, "the matrix or the preconditioner is not positive definite"),
        (_krylov.by_root(B), EMPTY, "the matrix or the preconditioner is not positive definite"),
        (_krylov.by_rows(0 * B), A, "the preconditioner is zero"),
        (_krylov.by_rows(B), sparse.csr_array(ZERO_ROW.T), "singular: a column of zeros"),
    ],
)
def test_scales_of_a_singular_system_are_refused(scales, matrix, phrase):
    with pytest.raises(Unsupported, match=phrase) as why, np.errstate(all="ignore"):
        scales(matrix)
    assert why.value.reason is VALUE


WHOLE = A.astype(int)
ROW = sparse.coo_array(A[:1])
HOST = [
    (_matmul.prepare_multiply, (A, A), Reason.MEMORY_BOUND, "one operation for each element moved"),
    (_matmul.prepare_matmul, (WHOLE, X.astype(int)), DTYPE, "dtypes int64 and int64 have no device path"),
    (_matmul.prepare_matmul, (EMPTY, X), LAYOUT, "an operand is empty"),
    (_matmul.prepare_matmul, (A, EMPTY), LAYOUT, "an operand is empty"),
    (_matmul.prepare_matmul, (A, X[:, :0]), LAYOUT, "an operand is empty"),
    (_matmul.prepare_matmul, (ROW, B), LAYOUT, "one row of COO times a vector"),
    (_matmul.prepare_matmul, (A.tolil(), A), LAYOUT, "lil times csr"),
    (_matmul.prepare_matmul, (A, A.todok()), LAYOUT, "csr times dok"),
    (_matmul.prepare_matmul, (WHOLE, A), DTYPE, "int64 times float64: SciPy adds duplicates in the dtype that they"),
    (_matmul.prepare_matmul, (A, WHOLE), DTYPE, "float64 times int64: SciPy adds duplicates in the dtype that they"),
    (_matmul.prepare_matmul, (A, A), *_matmul.FORCED_ONLY),
]


@pytest.mark.parametrize("call", HOST, ids=lambda call: call[3])
def test_a_problem_of_the_host_says_why(call):
    prepare, operands, reason, phrase = call
    with trnpy.policy(device="null"):
        problem = prepare(*operands)
    assert not problem.on_device and problem.refusal[0] is reason and phrase in problem.refusal[1]


def test_sums_of_too_wide_a_range_are_refused():
    assert _device.certified(1.0, 10) > 0
    with pytest.raises(Refused, match="the exponent range inside its sums needs more than"):
        _device.certified(2.0**-1000, 10)


def test_a_refinement_that_leaves_the_residual_is_refused():
    """A correction of zero, of which more steps would be no better."""
    op = types.SimpleNamespace(matrix=np.eye(3), left=np.ones(3), right=np.ones(3))
    with pytest.raises(Unsupported, match="refinement in float32 stops at a residual"):
        _krylov.refine(op, np.ones(3), np.zeros(3), 1e-9, 100, lambda r, reach, steps: (np.zeros(3), 1), 0.5, 3)
