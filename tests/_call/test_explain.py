"""``explain`` reads shapes: it takes neither the memory nor the time of the call, and names what to write."""

import inspect
import tracemalloc

import numpy as np
import pytest
import scipy.linalg
import scipy.sparse.linalg

import trnpy
from trnpy._call.dispatch import accelerated
from trnpy._call.rows import rows as rows_of
from trnpy._einsum.rows import OPS as PRODUCTS
from trnpy.linalg._blas_rows import OPS as BLAS_OPS
from trnpy.linalg._inv_sqrtm import OPS as OWN_OPS

NUMPY_OPS = rows_of("numpy.linalg")
SOLVERS = rows_of("scipy.sparse.linalg")
OPS = rows_of("scipy.linalg")

N = 10**6
# Bytes that a look may allocate: a row of the operand and its copies, of 16 MB for complex128, where the operand has
# 16 TB.
ROW_BYTES = 6 * 16 * N
ROWS = [*PRODUCTS, *OPS, *NUMPY_OPS, *OWN_OPS, *BLAS_OPS, *SOLVERS]
PAIRS = {
    "matmul", "dot", "inner", "kron", "solve", "solve_triangular", "lstsq", "khatri_rao", "lobpcg", "cg", "gmres",
    "expm_multiply",
}  # fmt: skip


def operands(name, a):
    """Arguments of a call of the function of this name with ``a``, a square matrix."""
    short = name.rpartition(".")[2]
    if "blas" in name:
        return (1.0, a, a)
    special = {
        "tensordot": (a, a, 1), "einsum": ("ij,jk->ik", a, a), "multi_dot": ([a, a, a],), "cho_solve": ((a, True), a),
        "lu_solve": ((a, np.broadcast_to(np.int32(1), len(a))), a), "fractional_matrix_power": (a, 0.5),
        "matrix_power": (a, 5),
    }  # fmt: skip
    return special.get(short) or ((a, a) if short in PAIRS else (a,))


@pytest.mark.parametrize("op", ROWS, ids=lambda op: op.name)
def test_explaining_a_call_allocates_nothing_of_the_size_of_its_operands(op):
    for settings in ({"device": "none"}, {"device": "null"}, {"device": "null", "force": True}):
        for dtype in ("f8", "f4", "c16", "c8", "i8", "f2", "?"):
            args = operands(op.name, np.broadcast_to(np.ones((), dtype), (N, N)))
            tracemalloc.start()
            try:
                with trnpy.policy(**settings):
                    decision = trnpy.explain(accelerated(op), *args)
                peak = tracemalloc.get_traced_memory()[1]
            finally:
                tracemalloc.stop()
            assert peak < ROW_BYTES, (settings, dtype)
            assert not decision.on_device and "argument" not in decision.detail, (settings, dtype, decision)


def test_operands_that_fill_the_largest_instance_are_decided_by_the_model():
    a = np.broadcast_to(1.0, (90_000, 90_000))  # 60 GiB
    tracemalloc.start()
    try:
        decision = trnpy.explain(trnpy.linalg.solve_triangular, a, a[:, :64], lower=True)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < ROW_BYTES and decision.device_s is not None and decision.device_s > 1


@pytest.mark.parametrize(
    ("function", "ours"),
    [
        (np.linalg.eigh, "trnpy.linalg.eigh"), (scipy.linalg.eigh, "trnpy.linalg.eigh"), (np.matmul, "trnpy.matmul"),
        (scipy.sparse.linalg.cg, "trnpy.sparse.linalg.cg"), (np.linalg.slogdet, "trnpy.linalg.slogdet"),
    ],
)  # fmt: skip
def test_an_unpatched_function_is_refused_with_what_to_write(function, ours):
    with pytest.raises(TypeError, match=f"not patched here; give {ours}, or explain it in trnpy.patched"):
        trnpy.explain(function, np.eye(3))
    with pytest.raises(TypeError, match=r"expected an accelerated function, such as trnpy\.einsum"):
        trnpy.explain(inspect.getsource, np.eye(3))
