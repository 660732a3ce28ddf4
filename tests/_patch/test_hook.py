"""What others see of a hook, and what it costs: its face, its pickle, its errors, microseconds."""

import copy
import inspect
import math
import pickle
import pydoc
import string
import subprocess
import sys

import numpy as np
import pytest
import scipy.linalg
import scipy.sparse
from hypothesis import given, settings
from hypothesis import strategies as st
from patching import FUNCTIONS, LARGE, NAMES, ORIGINALS, A, einsum, pristine, standing  # noqa: F401

import trnpy
from trnpy._call.rows import rows as rows_of
from trnpy._einsum import rows as einsum_rows

NUMPY_OPS = rows_of("numpy.linalg")

# --- What others see of a hook ----------------------------------------------------------------------------------------


def signature(function):
    """None where it has none, as functions in C of some versions."""
    try:
        return inspect.signature(function)
    except ValueError:
        return None


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_hook_has_the_face_of_its_original(name):
    original = ORIGINALS[name]
    with trnpy.patched(name):
        hook = standing(name)
        assert signature(hook) == signature(original)
        assert hook.__doc__ == original.__doc__
        assert hook.__name__ == original.__name__
        assert getattr(hook, "__qualname__", None) == getattr(original, "__qualname__", None)
        assert hook.__module__ == (getattr(original, "__module__", None) or name.rpartition(".")[0])
        assert isinstance(hook, type(original))
        assert inspect.isfunction(hook) == inspect.isfunction(original)
        assert callable(hook)
        assert hash(hook) == hash(original)
        assert hook == original
        assert original == hook
        assert hook != einsum
        assert repr(hook) == repr(original)
        assert hook.__name__ in pydoc.render_doc(hook)


def test_attributes_are_the_originals():
    with trnpy.patched():
        assert np.matmul.types == ORIGINALS["numpy.matmul"].types
        assert (np.matmul.nin, np.matmul.nout, np.matmul.signature) == (2, 1, "(n?,k),(k,m?)->(n?,m?)")
        with pytest.raises(RuntimeError, match="Reduction not defined on ufunc with signature"):
            np.matmul.reduce(A)
        with pytest.raises(AttributeError, match="no_such_attribute"):
            np.matmul.no_such_attribute  # noqa: B018


def test_tables_of_overrides_filled_while_patched_are_found_by_numpy():
    class Mine:
        handled = {}  # noqa: RUF012

        def __array_function__(self, function, types, args, kwargs):
            return self.handled[function]

        def __array_ufunc__(self, function, method, *args, **kwargs):
            return self.handled[function]

    with trnpy.patched():
        Mine.handled.update({np.einsum: "einsum", np.matmul: "matmul"})
        assert np.einsum("i->", Mine()) == "einsum"
        assert np.matmul(Mine(), A) == "matmul"
    assert np.einsum("i->", Mine()) == "einsum"


def test_a_hook_binds_where_its_original_does():
    with trnpy.patched():

        class Binds(np.ndarray):
            times = np.dot
            product = np.matmul  # noqa: RUF100  # a ufunc: never a method

        b = A.view(Binds)
        np.testing.assert_array_equal(b.times(A), A @ A)
        np.testing.assert_array_equal(b.product(A, A), A @ A)


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
@pytest.mark.parametrize("pickler", [pickle.dumps, pickle._dumps], ids=["C", "Python"])
def test_hooks_and_originals_pickle_while_patched_and_after(protocol, pickler):
    with trnpy.patched():
        hooks = [standing(name) for name in FUNCTIONS]
        inside = pickler((hooks, [ORIGINALS[name] for name in FUNCTIONS]), protocol)
        # In Python, SciPy's functions are written as the originals, whose hashes by joblib stay the same.
        by_name = [h for h in hooks if pickler is pickle.dumps or h.__module__.startswith("numpy")]
        loaded = pickle.loads(inside)[0]
        assert all(a is b for a, b in zip(loaded, hooks, strict=True) if b in by_name)
    outside = pickler(hooks, protocol)
    for loaded in (*pickle.loads(inside), pickle.loads(outside)):
        assert all(a is ORIGINALS[name] for a, name in zip(loaded, FUNCTIONS, strict=True))


@pytest.mark.parametrize("name", FUNCTIONS)
def test_hashes_of_joblib_stay_the_same(name):
    """So do the folders of joblib.Memory, whose names are those of modules; also of a hook that is hashed twice."""
    joblib = pytest.importorskip("joblib", reason="joblib is not installed")
    from joblib.func_inspect import get_func_name

    original = ORIGINALS[name]
    if name.startswith("scipy"):  # joblib cannot hash NumPy's functions, which are not Python's, in all versions
        hashes = joblib.hash(original), joblib.hash([original, original])
        with trnpy.patched(name):
            hook = standing(name)
            assert hook is not original and (joblib.hash(hook), joblib.hash([hook, hook])) == hashes
    names = get_func_name(original)
    with trnpy.patched(name):
        assert get_func_name(standing(name)) == names


def test_a_pickled_hook_loads_where_trnpy_is_not_installed():
    with trnpy.patched():
        hooks = [np.einsum, np.matmul, scipy.linalg.eigh]
        inside = pickle.dumps((hooks, ORIGINALS["numpy.einsum"]))
    leaked = pickle.dumps(hooks)
    code = (
        "import pickle, sys; sys.modules['trnpy'] = None\n"
        "inside, leaked = pickle.loads(sys.stdin.buffer.read())\n"
        "import numpy as np, scipy.linalg\n"
        "good = [np.einsum, np.matmul, scipy.linalg.eigh]\n"
        "for got in (pickle.loads(inside)[0], pickle.loads(leaked)):\n"
        "    assert all(a is b for a, b in zip(got, good)), got\n"
        "assert pickle.loads(inside)[1] is np.einsum\n"
    )
    ran = subprocess.run([sys.executable, "-c", code], input=pickle.dumps((inside, leaked)), capture_output=True)
    assert not ran.stderr


def test_hooks_copy_as_functions_do():
    with trnpy.patched():
        assert copy.copy(np.einsum) is np.einsum
        assert copy.deepcopy([np.matmul])[0] is np.matmul


def test_explain_takes_a_patched_function():
    with trnpy.patched("numpy.einsum"):
        assert trnpy.explain(np.einsum, "ij,jk->ik", LARGE, LARGE).op == "numpy.einsum"


def test_every_row_gives_the_originals_result_through_its_hook():
    operands = {
        "numpy.einsum": ("ij,jk->ik", A, A),
        "scipy.linalg.fractional_matrix_power": (A, 0.5),
        "scipy.linalg.cho_solve": ((A, True), A),
        "scipy.linalg.lu_solve": (scipy.linalg.lu_factor(A), A),
        "numpy.linalg.matrix_power": (A, 3),
        "numpy.linalg.multi_dot": ([A, A, A],),
        "scipy.sparse.matmul": (scipy.sparse.csr_array(A), A),
        "scipy.sparse.linalg.cg": (A, A[0]),
        "scipy.sparse.linalg.gmres": (A, A[0]),
        "scipy.sparse.linalg.eigsh": (LARGE + LARGE.T, 1),
        "scipy.sparse.linalg.lobpcg": (np.diag(np.arange(1.0, 9.0)), np.eye(8, 1)),
        "scipy.sparse.linalg.expm_multiply": (A, A),
    }
    takes_two = ("matmul", "dot", "inner", "tensordot", "solve", "solve_triangular", "lstsq", "kron", "khatri_rao")
    for name in NAMES:
        args = operands.get(name, (A, A) if name.endswith(takes_two) else (A,))
        expected = ORIGINALS[name](*args)
        with trnpy.patched(name), trnpy.trace() as decisions:
            got = standing(name)(*args)
        assert [d.op for d in decisions] == [name]
        assert type(got) is type(expected)
        pairs = zip(got, expected, strict=True) if isinstance(got, tuple) else [(got, expected)]
        for x, y in pairs:
            if "eigsh" not in name:  # starts from random vectors
                np.testing.assert_array_equal(x, y)


def test_errors_are_the_originals():
    with trnpy.patched():
        with pytest.raises(ValueError, match="matmul: Input operand 1 has a mismatch in its core dimension 0"):
            np.matmul(LARGE, A)
        with pytest.raises(np.linalg.LinAlgError, match="not positive definite"):
            np.linalg.cholesky(-LARGE)
        with pytest.raises(TypeError):
            np.dot(A)


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_no_row_has_a_route_for_so_few_elements_that_it_is_not_asked(data):
    op = data.draw(st.sampled_from([op for op in (*einsum_rows.OPS, *NUMPY_OPS) if op.look]))
    left, arrays, dtype = op.limits.product, [], data.draw(st.sampled_from(["f8", "i8", "c16", "?"]))
    for _ in range(data.draw(st.integers(1, 3))):
        shape = data.draw(st.lists(st.integers(0, min(left, op.small)), min_size=1, max_size=4))
        if (size := math.prod(shape)) <= min(left, op.small):
            arrays.append(np.ones(shape, dtype))
            left //= max(size, 1)
    labels = iter(string.ascii_letters)
    words = ["".join(next(labels) for _ in range(a.ndim)) for a in arrays]
    args = (",".join(words) + "->", *arrays) if op.name == "numpy.einsum" else tuple(arrays)
    assert op.look(args, {}) is not True


def test_the_most_elements_that_are_not_asked_for_a_route():
    """Operands as equal as they can be: whose products are the most."""
    ops = {op.name: op for op in einsum_rows.OPS}
    for name, count in (("einsum", 3), ("einsum", 2), ("dot", 2), ("inner", 2)):
        op = ops[f"numpy.{name}"]
        arrays = [np.ones(int(op.limits.product ** (1 / count) + 1e-9), "f8" if name == "einsum" else "i8")] * count
        args = (",".join("abc"[:count]) + "->", *arrays) if name == "einsum" else tuple(arrays)
        assert op.look(args, {}) is not True
