"""trnpy has every public name of the installed NumPy and SciPy namespaces it stands for, under the same path."""

import importlib
import inspect
import pickle
import statistics
import subprocess
import sys
import types

import numpy as np
import pytest
import scipy.linalg
import scipy.sparse

import trnpy
import trnpy.linalg.interpolative
import trnpy.sparse.csgraph
import trnpy.sparse.linalg
from trnpy._call.rows import rows as rows_of
from trnpy.linalg._blas_rows import OPS as BLAS_OPS
from trnpy.linalg._lapack_rows import OPS as LAPACK_OPS
from trnpy.sparse import _classes

NUMPY_OPS = rows_of("numpy.linalg")
OPS = rows_of("scipy.linalg")

PATHS = (
    "linalg",
    "linalg.blas",
    "linalg.lapack",
    "linalg.interpolative",
    "sparse",
    "sparse.linalg",
    "sparse.csgraph",
)
PRODUCTS = ("einsum", "einsum_path", "matmul", "dot", "vdot", "inner", "outer", "tensordot", "kron", "vecdot")
ROWS = {op.name.rpartition(".")[2] for op in OPS}
CLASSES = {cls.__name__ for cls in _classes.SCIPY}


def public(module):
    return [name for name in dir(module) if not name.startswith(("_", "cython_"))]


def functions(ours):
    """Names of SciPy's functions whose results may be sparse."""
    theirs = importlib.import_module(ours.__name__.replace("trnpy", "scipy"))
    kinds = {name: type(getattr(theirs, name)) for name in public(theirs) if callable(getattr(theirs, name))}
    return {name for name, kind in kinds.items() if not issubclass(kind, type)} - set(ours._PLAIN.split())


def pathless(ours):
    """Names of functions without a path, which raise where the policy asks."""
    return {name for name in dir(ours) if hasattr(getattr(ours, name), "__trnpy_pathless__")}


# What trnpy has in place of SciPy's objects; everything else is SciPy's own.
OURS = {
    "linalg": ROWS | pathless(trnpy.linalg) | {"blas", "lapack", "interpolative", "get_blas_funcs", "get_lapack_funcs"},
    "linalg.blas": {"get_blas_funcs", *(op.name.rpartition(".")[2] for op in BLAS_OPS)},
    "linalg.lapack": {"get_lapack_funcs", *(op.name.rpartition(".")[2] for op in LAPACK_OPS)},
    "sparse": CLASSES | functions(trnpy.sparse) | {"csgraph", "linalg"},
    "sparse.linalg": functions(trnpy.sparse.linalg) | pathless(trnpy.sparse.linalg),
    "sparse.csgraph": functions(trnpy.sparse.csgraph),
}


def pair(path):
    return importlib.import_module(f"scipy.{path}"), importlib.import_module(f"trnpy.{path}")


def signature(function):
    try:
        return inspect.signature(function)
    except ValueError:  # of C functions
        return None


def run(code):
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return done.stdout.split()


@pytest.mark.parametrize("path", PATHS)
def test_every_public_name_of_scipy_is_there_and_its_own_object_unless_replaced(path):
    theirs, ours = pair(path)
    names = public(theirs)
    assert len(names) >= 9
    assert set(names) <= set(dir(ours))
    differ = {name for name in names if getattr(ours, name) is not getattr(theirs, name)}
    assert differ == OURS.get(path, set()) & set(names)


@pytest.mark.parametrize("path", PATHS)
def test_replaced_names_have_the_signature_and_kind_of_scipys(path):
    theirs, ours = pair(path)
    for name in OURS.get(path, set()) & set(public(theirs)):
        original, mine = getattr(theirs, name), getattr(ours, name)
        if isinstance(original, types.ModuleType):
            assert mine.__name__ == original.__name__.replace("scipy", "trnpy")
            continue
        assert mine.__name__ == mine.__qualname__ == name
        assert signature(mine) == signature(original)
        assert callable(mine) and isinstance(mine, type) == isinstance(original, type)


@pytest.mark.parametrize("path", sorted(OURS))
def test_replaced_names_pickle_as_trnpys_own(path):
    module = importlib.import_module(f"trnpy.{path}")
    for name in OURS[path] & set(public(module)):
        mine = getattr(module, name)
        if not isinstance(mine, types.ModuleType):
            home = f"trnpy.{path}.{name[4:-6]}" if name.startswith("get_") and path == "linalg" else f"trnpy.{path}"
            assert mine.__module__ == home  # linalg.get_blas_funcs is that of linalg.blas
            assert pickle.loads(pickle.dumps(mine)) is mine


def test_names_that_only_numpy_linalg_has_are_in_trnpy_linalg_and_scipys_win():
    rows = {op.name.rpartition(".")[2] for op in NUMPY_OPS}
    only_numpy = set(public(np.linalg)) - set(public(scipy.linalg))
    assert {"cond", "multi_dot", "matrix_power", "matrix_rank", "slogdet", "tensorinv", "vecdot"} <= only_numpy
    assert set(public(np.linalg)) <= set(dir(trnpy.linalg))
    for name in only_numpy - rows - pathless(trnpy.linalg):
        assert getattr(trnpy.linalg, name) is getattr(np.linalg, name)
    for name in only_numpy & (rows | pathless(trnpy.linalg)):
        assert signature(getattr(trnpy.linalg, name)) == signature(getattr(np.linalg, name))
    assert signature(trnpy.linalg.norm) == signature(scipy.linalg.norm)


@pytest.mark.parametrize("name", PRODUCTS)
def test_numpys_products_are_there_with_their_signatures(name):
    ours, theirs = getattr(trnpy, name), getattr(np, name)
    assert ours.__name__ == name
    assert signature(ours) == signature(theirs)


@pytest.mark.parametrize("path", PATHS)
def test_a_star_import_brings_what_scipys_brings(path):
    theirs, ours = {}, {}
    exec(f"from scipy.{path} import *", theirs)
    exec(f"from trnpy.{path} import *", ours)
    assert set(ours) == set(theirs)


@pytest.mark.parametrize("path", PATHS)
def test_submodules_are_attributes_and_import_paths(path):
    parent, _, name = f"trnpy.{path}".rpartition(".")
    assert getattr(importlib.import_module(parent), name) is sys.modules[f"trnpy.{path}"]


def test_an_unknown_name_is_an_attribute_error_of_trnpys():
    for path in ("linalg", "sparse", "sparse.linalg", "sparse.csgraph"):
        with pytest.raises(AttributeError, match=f"'trnpy.{path}' has no attribute 'nonsense'"):
            _ = importlib.import_module(f"trnpy.{path}").nonsense


def test_functions_of_a_newer_scipy_return_trnpys_sparse_objects():
    newer = types.ModuleType("scipy.sparse")
    newer.new_in_scipy = lambda: scipy.sparse.csr_array(np.eye(2))
    newer.new_in_scipy.__name__ = "new_in_scipy"
    made = _classes.makers(newer, trnpy.sparse._PLAIN, "trnpy.sparse")
    assert type(made["new_in_scipy"]()) is trnpy.sparse.csr_array


def test_importing_trnpy_loads_neither_scipy_nor_what_only_some_calls_need():
    heavy = "[m for m in ('scipy', 'opt_einsum', 'rich', 'platformdirs', 'pyscf') if m in sys.modules]"
    assert run(f"import sys, trnpy; dir(trnpy); print(*{heavy})") == []


@pytest.mark.parametrize("use", ("linalg.det", "sparse.eye", "sparse.linalg.norm", "sparse.csgraph.dijkstra"))
def test_submodules_load_when_they_are_used_and_what_scipys_load(use):
    part = use.rpartition(".")[0]
    loaded = "print(*sorted(m for m in sys.modules if m.startswith(('scipy.linalg', 'scipy.sparse'))))"
    ours, theirs = run(f"import sys, trnpy; trnpy.{use}; {loaded}"), run(f"import sys, scipy.{part}; {loaded}")
    assert ours == theirs and f"scipy.{part}" in ours


def test_importing_trnpy_takes_at_most_30_ms_more_than_importing_numpy():
    # Processor time: on a busy machine the clock on the wall also counts the others.
    code = "import time, numpy; t = time.process_time(); import trnpy; print(time.process_time() - t)"
    assert statistics.median(float(run(code)[0]) for _ in range(5)) <= 0.030


def test_products_of_vectors_are_numpys():
    for name in ("vecdot", "matvec", "vecmat"):
        assert getattr(trnpy, name, None) is getattr(np, name, None)  # the last two are new in NumPy 2.2
