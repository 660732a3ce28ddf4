"""SciPy's own sparse classes under a patch: their products, and the solvers of scipy.sparse.linalg."""

import contextlib
import subprocess
import sys

import numpy as np
import pytest
import scipy.sparse
import scipy.sparse.linalg
from patching import pristine, routed  # noqa: F401

import trnpy
from trnpy._call import gate
from trnpy._call.dispatch import Reason
from trnpy._patch.hook import SMALL_PRODUCT

compiled = pytest.mark.skipif(gate.compiled is None, reason="trnpy was installed without a C compiler")
A = scipy.sparse.csr_array(scipy.sparse.diags_array([-np.ones(9), 4 * np.ones(10), -np.ones(9)], offsets=[-1, 0, 1]))
B = scipy.sparse.csr_matrix(A)
X = np.ones(10)
SMALL = [("scipy.sparse.matmul", Reason.SMALL)]
WRITTEN = {
    "a @ x": lambda: A @ X,
    "a.dot(x)": lambda: A.dot(X),
    "x @ a": lambda: X @ A,
    "a @ columns": lambda: A @ np.ones((10, 3)),
    "a @ a": lambda: A @ A,
    "matrix * x": lambda: B * X,
}


@pytest.mark.parametrize("written", WRITTEN)
def test_every_way_to_write_a_product_is_seen_once(written):
    with trnpy.patched(), trnpy.profile() as ledger:
        WRITTEN[written]()
    assert [(t.op, t.reason, t.calls, t.file) for t in ledger.by_line()] == [
        ("scipy.sparse.matmul", "small", 1, __file__)
    ]


def test_products_and_solvers_are_traced_and_give_scipys_results_and_classes():
    expected = A @ X, (A @ A).toarray(), scipy.sparse.linalg.cg(A, X)[0]
    with trnpy.patched(), trnpy.trace() as decisions:
        found = A @ X, A @ A, scipy.sparse.linalg.cg(A, X)[0]
    assert [d.op for d in decisions] == ["scipy.sparse.matmul"] * 2 + ["scipy.sparse.linalg.cg"]
    assert type(found[1]) is scipy.sparse.csr_array
    np.testing.assert_array_equal(found[0], expected[0])
    np.testing.assert_array_equal(found[1].toarray(), expected[1])
    np.testing.assert_array_equal(found[2], expected[2])


def test_blocks_of_scipys_classes_take_the_route_by_blas():
    blocks = scipy.sparse.kron(scipy.sparse.eye_array(20), np.ones((32, 32)), format="bsr")
    x = np.random.default_rng(0).standard_normal((640, 200))
    assert blocks.shape[0] * x.size > SMALL_PRODUCT
    expected = blocks @ x
    with trnpy.patched(), trnpy.trace() as decisions:
        found = blocks @ x
    assert [d.reason for d in decisions] == [Reason.ROUTE]
    np.testing.assert_allclose(found, expected, rtol=1e-13, atol=1e-13)


@pytest.mark.parametrize("columns", [0, 1, 60, 200])
@pytest.mark.parametrize("kind", ["csr_array", "csc_matrix", "bsr_array", "coo_array"])
def test_products_of_few_stored_elements_are_small(kind, columns):
    a = getattr(scipy.sparse, kind)(scipy.sparse.eye_array(3000) * 2.0 + scipy.sparse.eye_array(3000, k=7))
    x = np.ones((3000, columns) if columns else 3000)
    stored = 5993 * max(columns, 1)
    small = stored < SMALL_PRODUCT if kind.startswith("cs") else False
    with trnpy.patched(), trnpy.profile() as ledger:
        a @ x
    assert [t.reason == Reason.SMALL for t in ledger.by_line()] == [small]


def test_products_of_sparse_matrices_with_few_stored_elements_are_small():
    a = scipy.sparse.eye_array(3000, format="csr")
    b = scipy.sparse.random_array((3000, 3000), density=0.01, rng=0, format="csr")
    with trnpy.patched(), trnpy.profile() as ledger:
        a @ a
        b @ b
    assert [t.reason == Reason.SMALL for t in sorted(ledger.by_line(), key=lambda t: t.line)] == [True, False]


def entered(monkeypatch):
    """The rows of calls that run Python code of the hook."""
    rows = []
    way = gate._Door.way
    monkeypatch.setattr(gate._Door, "way", lambda door, *args: rows.append(door.row) or way(door, *args))
    return rows


PRODUCTS = {
    "@": lambda a, x: a @ x,
    "dot": lambda a, x: a.dot(x),
    "from the left": lambda a, x: x @ a,
    "with itself": lambda a, x: a @ a,
    "transposed": lambda a, x: a.T @ x,
}


@compiled
@pytest.mark.parametrize("kind", ["csr_array", "csc_array", "csr_matrix", "csc_matrix"])
@pytest.mark.parametrize("name", PRODUCTS)
@pytest.mark.parametrize("record", [False, True])
def test_small_products_pass_the_compiled_gate_and_are_counted_by_line(kind, name, record, monkeypatch):
    a, x, product = getattr(scipy.sparse, kind)(A), np.arange(10.0), PRODUCTS[name]
    expected = product(a, x)
    rows = entered(monkeypatch)
    with trnpy.patched(), trnpy.profile() if record else contextlib.nullcontext() as ledger:
        found = [product(a, x) for _ in range(400)]
    assert len(rows) <= (30 if record else 2)
    np.testing.assert_array_equal(*[m.toarray() if scipy.sparse.issparse(m) else m for m in (found[-1], expected)])
    assert type(found[-1]) is type(expected)
    if record:
        assert [(t.op, t.calls) for t in ledger.by_line()] == [("scipy.sparse.matmul", 400)]


@compiled
def test_lines_of_products_are_told_apart_and_other_classes_are_decided(monkeypatch):
    class Own(scipy.sparse.csr_array):
        pass

    own, rows = Own(A), entered(monkeypatch)
    with trnpy.patched(), trnpy.profile() as ledger:
        for _ in range(100):
            A @ X
            A @ X + (A @ X)
        for _ in range(5):
            own @ X
    assert sorted(t.calls for t in ledger.by_line()) == [5, 100, 200]
    assert rows[-5:] == 5 * ["scipy.sparse.matmul"]


@pytest.mark.parametrize("operand", [np.ones(5), np.ones((10, 4, 2)), "no operand", object(), None, [1, 2]])
def test_errors_of_small_products_are_scipys(operand):
    with pytest.raises((ValueError, TypeError)) as theirs:
        A @ operand
    with trnpy.patched():
        for _ in range(3):
            with pytest.raises(type(theirs.value)) as ours:
                A @ operand
            assert str(ours.value) == str(theirs.value)


@compiled
def test_small_systems_and_eigenproblems_pass_the_compiled_gate(monkeypatch):
    rows = entered(monkeypatch)
    with trnpy.patched():
        for _ in range(50):
            scipy.sparse.linalg.cg(A, X, maxiter=3)
            scipy.sparse.linalg.gmres(A, X, maxiter=1)
            scipy.sparse.linalg.eigsh(A, 2)
    assert 0 < len(rows) <= 9


def test_the_device_path_takes_scipys_classes():
    a = scipy.sparse.random_array((300, 300), density=0.05, rng=0, format="csr")
    for other in (np.ones((300, 4)), a):
        with trnpy.patched(device="null", force=True), trnpy.trace() as decisions:
            found = a @ other
        assert [d.on_device for d in decisions] == [True]
        assert scipy.sparse.issparse(found) == scipy.sparse.issparse(other)
        dense = [m.toarray() if scipy.sparse.issparse(m) else m for m in (found, a @ other)]
        np.testing.assert_allclose(*dense, rtol=1e-12, atol=1e-12)


def test_what_a_solver_multiplies_is_part_of_it_and_of_an_unlisted_one_an_excluded_caller():
    with trnpy.patched(), trnpy.profile() as ledger:
        scipy.sparse.linalg.cg(A, X)
    assert {t.op for t in ledger.by_line()} == {"scipy.sparse.linalg.cg"}
    with trnpy.patched(), trnpy.profile() as ledger:
        scipy.sparse.linalg.bicgstab(A, X)
    assert {t.op: t.reason for t in ledger.by_line()}["scipy.sparse.matmul"] == "excluded_caller"


def test_trnpys_own_classes_are_seen_once():
    a = trnpy.sparse.csr_array(A)
    with trnpy.patched():
        assert [op for op, _ in routed(lambda: a @ np.ones((10, 2)))] == ["scipy.sparse.matmul"]
        assert [op for op, _ in routed(lambda: a @ a)] == ["scipy.sparse.matmul"]


def test_errors_are_scipys():
    with trnpy.patched(), trnpy.profile(), pytest.raises(ValueError, match="matmul: dimension mismatch"):
        A @ np.ones(11)
    with trnpy.patched(), pytest.raises(ValueError, match="Scalar operands are not allowed, use '\\*' instead"):
        A @ 2
    with trnpy.patched(), contextlib.suppress(TypeError):
        A @ object()


def test_the_runner_sees_sparse_work_that_is_imported_later(tmp_path):
    program = tmp_path / "program.py"
    program.write_text(
        "import numpy as np\nimport scipy.sparse as sp\nfrom scipy.sparse.linalg import cg, spsolve\n"
        "a = sp.eye_array(100, format='csr')\nb = a @ np.ones(100)\ncg(a, b)\n"
    )
    run = subprocess.run([sys.executable, "-m", "trnpy", "-v", program], capture_output=True, text=True, cwd=tmp_path)
    assert run.returncode == 0
    assert "program.py:5  scipy.sparse.matmul" in run.stderr
    assert "program.py:6  scipy.sparse.linalg.cg" in run.stderr
