"""The dry runs of rows of sparse matrices against what their calls really launch, move and multiply."""

import dataclasses

import numpy as np
import pytest
import scipy.sparse
from dry_runs import assert_dry_is_the_run

import trnpy
from trnpy._call.dispatch import Unsupported
from trnpy._call.rows import rows
from trnpy._engine.abstract_arrays import Count, new
from trnpy._engine.engines import HOST, HostEngine
from trnpy.sparse import _matmul
from trnpy.sparse._outline import Matrix, Pattern
from trnpy.sparse.linalg import _eigsh_lobpcg as _solvers
from trnpy.sparse.linalg import _expm_multiply

SOLVERS = rows("scipy.sparse.linalg")
LAYOUTS = ("csr", "csc", "bsr", "coo", "dia")
ROWS = {op.name.rpartition(".")[2]: op for op in SOLVERS}


SHAPE = 200, 180  # two tiles of 128 each way, the last ones not full


def scattered(layout, dtype):
    a = scipy.sparse.random_array(SHAPE, density=0.2, rng=np.random.default_rng(3), format="csr")
    a.data = a.data + 0.5
    if layout == "dia":
        a = scipy.sparse.tril(scipy.sparse.triu(a, -40), 40)
    return a.astype(dtype).asformat(layout)


def laplacian(n, layout="csr"):
    """Of a square grid."""
    line = scipy.sparse.diags_array([-np.ones(n - 1), 2.1 * np.ones(n), -np.ones(n - 1)], offsets=[-1, 0, 1])
    one = scipy.sparse.eye_array(n)
    return scipy.sparse.kron(line, one).asformat(layout) + scipy.sparse.kron(one, line).asformat(layout)


METHODS = [("tiles", dtype) for dtype in "fdFD"] + [("gathered", dtype) for dtype in "fF"]


@pytest.mark.parametrize("before", [0, 2], ids=["sent", "kept"])
@pytest.mark.parametrize("method, dtype", METHODS)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_products(layout, method, dtype, before):
    a, x = scattered(layout, dtype), (np.random.default_rng(4).standard_normal((SHAPE[1], 40)) + 2).astype(dtype)
    with trnpy.policy(force=True):
        problem = _matmul.prepare_matmul(a, x)
        assert problem.methods == (("tiles", "gathered") if dtype in "fF" else ("tiles",))
        assert_dry_is_the_run(dataclasses.replace(problem, method=method), before)


@pytest.mark.parametrize("columns", [1, 2500])
def test_vectors_and_strips(columns):
    a = scattered("csr", "f")
    x = np.ones(SHAPE[1], "f") if columns == 1 else np.ones((SHAPE[1], columns), "f")
    with trnpy.policy(force=True):
        for method in ("tiles", "gathered"):
            assert_dry_is_the_run(dataclasses.replace(_matmul.prepare_matmul(a, x), method=method))


@pytest.mark.parametrize("layout, before", [("csr", 0), *((layout, 2) for layout in LAYOUTS)])
@pytest.mark.parametrize("name", ["cg", "gmres"])
def test_systems(name, layout, before):
    """The matrix sent, and kept from two solves before."""
    a = laplacian(13, layout)  # 169 rows
    with trnpy.policy(force=True):
        problem = ROWS[name].prepare(a, np.ones(a.shape[0]), rtol=1e-9)
        assert_dry_is_the_run(problem, before)


@pytest.mark.parametrize("dtype", "fd")
def test_eigenpairs_by_lanczos(dtype):
    with trnpy.policy(force=True):
        problem = ROWS["eigsh"].prepare(laplacian(12).astype(dtype), 3, which="LA", tol=1e-3)
        assert_dry_is_the_run(problem)


@pytest.mark.parametrize("dtype", "fd")
@pytest.mark.filterwarnings("ignore:Exited")
def test_eigenpairs_by_lobpcg(dtype, monkeypatch):
    """For as many products as SciPy's iteration takes."""
    x = np.random.default_rng(5).standard_normal((144, 4)).astype(dtype)
    made = _solvers.product_of
    products = []

    def counted(*args):
        product = made(*args)
        return lambda x: products.append(x.shape) or product(x)

    with trnpy.policy(force=True):
        problem = ROWS["lobpcg"].prepare(laplacian(12).astype(dtype), x, maxiter=5, tol=1e-12)
        monkeypatch.setattr(_solvers, "product_of", counted)
        problem.run(HOST)
        assert set(products) == {(144, 4)}
        monkeypatch.setattr(_solvers, "product_of", made)
        monkeypatch.setattr(_solvers, "BLOCK_PRODUCTS", len(products))
        assert_dry_is_the_run(problem)


def test_the_exponential_times_a_block(monkeypatch):
    """For as many products as SciPy's algorithm takes."""
    rng = np.random.default_rng(6)
    (op,) = _expm_multiply.OPS
    problem = op.prepare(rng.standard_normal((80, 80)) / 4, rng.standard_normal((80, 20)))
    taken = products_of(problem)
    assert {columns for columns, _ in taken} == {20, 20 * _expm_multiply.ESTIMATED}
    monkeypatch.setattr(_expm_multiply, "usual_products", lambda columns: taken)
    assert_dry_is_the_run(problem)


@pytest.mark.parametrize("columns", [4, 40])
def test_the_exponential_takes_about_as_many_products_as_stated(columns):
    rng = np.random.default_rng(7)
    a = rng.standard_normal((400, 400))
    problem = _expm_multiply.prepare_expm_multiply(
        a * _expm_multiply.NORM / np.linalg.norm(a, 1), rng.standard_normal((400, columns))
    )
    taken, stated = products_of(problem), _expm_multiply.usual_products(columns)
    assert stated[: -int(_expm_multiply.NORM * _expm_multiply.PER_NORM)] == [p for p in taken if p[0] != columns]
    assert stated.count((columns, False)) / 3 <= taken.count((columns, False)) <= stated.count((columns, False))


SOLVED = {  # arguments of each solver, made of a sparse matrix and a block of columns
    "cg": lambda a, b: (a, b[:, 0]),
    "gmres": lambda a, b: (a, b[:, 0]),
    "eigsh": lambda a, b: (a, 3),
    "lobpcg": lambda a, b: (a, b),
    "expm_multiply": lambda a, b: (a.toarray(), b),
    "expm": lambda a, b: (a.toarray(),),
}


@pytest.mark.parametrize("op", SOLVERS)
def test_docstrings_state_the_dtypes_with_a_device_path(op):
    def on_device(dtype):
        a = laplacian(12).astype(dtype)
        try:
            return op.prepare(*SOLVED[op.name.rpartition(".")[2]](a, np.ones((144, 4), dtype))).on_device
        except Unsupported:
            return False

    with trnpy.policy(force=True):
        assert {c for c in "?ilfdFD" if on_device(c)} == set(op.dtypes)


def products_of(problem):
    """The columns of each product of a run, and whether it is by the adjoint."""
    taken = []

    class Noting(HostEngine):
        def matmul(self, a, b, **options):
            taken.append((b.shape[1], a is not kept[0]))
            return super().matmul(a, b, **options)

        def put(self, a):
            kept.append(super().put(a))
            return kept[-1]

    kept = []
    problem.run(Noting())
    return taken


@pytest.mark.parametrize("dtype, real", [("f8", 1), ("c16", 4)])
@pytest.mark.parametrize("shape, columns", [((30,), 1), ((30, 7), 7)])
def test_a_matrix_without_values_counts_the_work_of_a_product(shape, columns, dtype, real):
    a, count = scipy.sparse.random_array((20, 30), density=0.1, rng=np.random.default_rng(0)), Count()
    found = Matrix(Pattern.of(a.tocsr().astype(dtype)), count) @ new(shape, np.dtype(dtype), count)
    assert (found.shape, found.dtype) == ((20, *shape[1:]), dtype)
    assert count.work == {("csr", columns, np.dtype(dtype).char): 2.0 * real * a.nnz * columns}
