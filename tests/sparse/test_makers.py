"""Functions of scipy.sparse that make sparse arrays and matrices make trnpy's, whichever class they are given."""

import importlib
import io
import pickle
import warnings

import numpy as np
import pytest
import scipy.sparse
from families import assert_corresponds

import trnpy.sparse
import trnpy.sparse.csgraph
import trnpy.sparse.linalg
from trnpy._call.rows import names
from trnpy.sparse import _classes
from trnpy.sparse._classes import OURS

DENSE = np.array([[4.0, 0.0, 1.0, 0.0], [0.0, 3.0, 0.0, 0.0], [2.0, 0.0, 5.0, 0.0], [0.0, 1.0, 0.0, 7.0]])
GRAPH = np.array([[0, 3, 1, 0], [0, 0, 0, 2], [0, 1, 0, 4], [0, 0, 0, 0]], np.int32)
FLAVOURS = ("array", "matrix")


def saved(a):
    """The .npz file SciPy writes of ``a``."""
    file = io.BytesIO()
    scipy.sparse.save_npz(file, a)
    file.seek(0)
    return file


# Name of a function: calls f(namespace, a) of it, where a is a sparse array or matrix.
CALLS = {
    "sparse": {
        "block_array": (lambda s, a: s.block_array([[a, None], [None, a]]),),
        "block_diag": (lambda s, a: s.block_diag([a, a]), lambda s, a: s.block_diag([[1, 2], 3])),
        "bmat": (lambda s, a: s.bmat([[a, None], [None, a]]), lambda s, a: s.bmat([[a]], format="bsr")),
        "diags": (lambda s, a: s.diags([1.0, 2.0]), lambda s, a: s.diags([[1.0], [2.0]], [0, 1], (2, 2), "csr")),
        "diags_array": (lambda s, a: s.diags_array([1.0, 2.0]),),
        "expand_dims": (lambda s, a: s.expand_dims(s.coo_array(a), axis=1),),
        "eye": (lambda s, a: s.eye(3), lambda s, a: s.eye(3, format="csr"), lambda s, a: s.eye(3, k=1, format="lil")),
        "eye_array": (lambda s, a: s.eye_array(3), lambda s, a: s.eye_array(3, format="bsr")),
        "hstack": (lambda s, a: s.hstack([a, a]), lambda s, a: s.hstack([a])),
        "identity": (lambda s, a: s.identity(3), lambda s, a: s.identity(3, format="dok")),
        "kron": (lambda s, a: s.kron(a, a), lambda s, a: s.kron(a, DENSE, format="csc")),
        "kronsum": (lambda s, a: s.kronsum(a, a),),
        "matrix_transpose": (lambda s, a: s.matrix_transpose(a),),
        "load_npz": (lambda s, a: s.load_npz(saved(a)),),
        "permute_dims": (lambda s, a: s.permute_dims(s.coo_array(a), (1, 0)),),
        "rand": (lambda s, a: s.rand(4, 4, 0.5, rng=1),),
        "random": (lambda s, a: s.random(4, 4, 0.5, rng=1), lambda s, a: s.random(4, 4, 0.5, "csr", rng=1)),
        "random_array": (lambda s, a: s.random_array((4, 4), density=0.5, rng=1),),
        "spdiags": (lambda s, a: s.spdiags(DENSE, [0, 1, 2, 3], 4, 4), lambda s, a: s.spdiags(DENSE[0], 1, 4, 4)),
        "swapaxes": (lambda s, a: s.swapaxes(s.coo_array(a), 0, 1),),
        "tril": (lambda s, a: s.tril(a), lambda s, a: s.tril(DENSE, format="lil")),
        "triu": (lambda s, a: s.triu(a, 1),),
        "vstack": (lambda s, a: s.vstack([a, a]), lambda s, a: s.vstack([a, a], format="dia")),
    },
    "sparse.linalg": {
        "expm": (lambda s, a: s.linalg.expm(a.tocsc()),),
        "inv": (lambda s, a: s.linalg.inv(a.tocsc()),),
        "matrix_power": (lambda s, a: s.linalg.matrix_power(a, 0), lambda s, a: s.linalg.matrix_power(a, 3)),
        "spsolve": (
            lambda s, a: s.linalg.spsolve(a.tocsc(), a.tocsc()),
            lambda s, a: s.linalg.spsolve(a.tocsc(), DENSE[0]),
        ),
    },
    "sparse.csgraph": {
        "breadth_first_tree": (lambda s, a: s.csgraph.breadth_first_tree(a, 0),),
        "csgraph_from_dense": (lambda s, a: s.csgraph.csgraph_from_dense(DENSE),),
        "csgraph_from_masked": (lambda s, a: s.csgraph.csgraph_from_masked(np.ma.masked_equal(DENSE, 0)),),
        "depth_first_tree": (lambda s, a: s.csgraph.depth_first_tree(a, 0),),
        "laplacian": (
            lambda s, a: s.csgraph.laplacian(a),
            lambda s, a: s.csgraph.laplacian(a, return_diag=True, normed=True),
            lambda s, a: s.csgraph.laplacian(DENSE),
        ),
        "minimum_spanning_tree": (lambda s, a: s.csgraph.minimum_spanning_tree(a),),
        "maximum_flow": (lambda s, a: s.csgraph.maximum_flow(s.csr_array(GRAPH), 0, 3).flow,),
        "reconstruct_path": (
            lambda s, a: s.csgraph.reconstruct_path(a, s.csgraph.breadth_first_order(a, 0)[1]),
        ),
    },
}  # fmt: skip


def warned(call, *args):
    """The result of a call, and its warnings with the lines that they point at."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        result = call(*args)
    return result, [(w.category, str(w.message), w.filename, w.lineno) for w in caught]


@pytest.mark.parametrize("flavour", FLAVOURS)
@pytest.mark.parametrize("path, name", [(path, name) for path in CALLS for name in CALLS[path]])
def test_results_are_trnpys_whatever_the_class_of_the_arguments(path, name, flavour):
    if not hasattr(importlib.import_module(f"scipy.{path}"), name):
        pytest.skip(f"this SciPy has no {name}")
    for call in CALLS[path][name]:
        for layout in ("csr", "csc"):
            a = getattr(scipy.sparse, f"{layout}_{flavour}")(DENSE)
            theirs = warned(call, scipy.sparse, a)
            for mine in (a, getattr(trnpy.sparse, f"{layout}_{flavour}")(DENSE)):
                ours = warned(call, trnpy.sparse, mine)
                assert_corresponds(ours[0], theirs[0])
                assert ours[1] == theirs[1]
            assert type(a) is getattr(scipy.sparse, f"{layout}_{flavour}")  # the caller's object stays what it is


def test_every_function_said_to_make_sparse_objects_is_tried():
    for path, calls in CALLS.items():
        module = importlib.import_module(f"trnpy.{path}")
        made = _classes.makers(importlib.import_module(f"scipy.{path}"), module._PLAIN, path)
        rows = set(names("scipy.sparse.linalg")) if path == "sparse.linalg" else set()
        assert made.keys() - rows <= calls.keys()


@pytest.mark.parametrize("flavour", FLAVOURS)
@pytest.mark.parametrize("layout", ("bsr", "coo", "csc", "csr", "dia"))
def test_files_written_by_either_are_read_by_the_other(layout, flavour, tmp_path):
    name = f"{layout}_{flavour}"
    ours, theirs = getattr(trnpy.sparse, name)(DENSE), getattr(scipy.sparse, name)(DENSE)
    trnpy.sparse.save_npz(tmp_path / "ours.npz", ours)
    scipy.sparse.save_npz(tmp_path / "theirs.npz", theirs)
    assert type(trnpy.sparse.load_npz(tmp_path / "theirs.npz")) is type(ours)
    assert type(scipy.sparse.load_npz(tmp_path / "ours.npz")) is type(theirs)
    np.testing.assert_array_equal(trnpy.sparse.load_npz(tmp_path / "ours.npz").toarray(), DENSE)


def test_the_rest_of_scipy_takes_trnpys_classes():
    for name in ("csr_array", "csr_matrix", "bsr_array", "bsr_matrix"):
        ours, theirs = getattr(trnpy.sparse, name)(DENSE), getattr(scipy.sparse, name)(DENSE)
        for function in (
            lambda a: scipy.sparse.linalg.cg(a @ a.T, DENSE[0])[0],
            lambda a: scipy.sparse.linalg.eigsh(a @ a.T, k=2, v0=np.ones(4), return_eigenvectors=False),
            lambda a: scipy.sparse.linalg.splu(a.tocsc()).solve(DENSE[0]),
            lambda a: scipy.sparse.linalg.aslinearoperator(a) @ DENSE[0],
            lambda a: scipy.sparse.linalg.norm(a),
            lambda a: scipy.sparse.csgraph.shortest_path(a.tocsr()),
            lambda a: np.ones(4) @ a,
        ):
            np.testing.assert_array_equal(function(ours), function(theirs))


def test_a_result_that_shares_its_arrays_with_the_argument_still_does():
    a = scipy.sparse.csr_array(DENSE)
    assert np.shares_memory(trnpy.sparse.csr_array(a).data, a.data)
    assert np.shares_memory(trnpy.sparse.tril(a, k=4, format="csr").data, a.data) == np.shares_memory(
        scipy.sparse.tril(a, k=4, format="csr").data, a.data
    )


def test_a_maximum_flow_pickles_with_scipys_class():
    flow = trnpy.sparse.csgraph.maximum_flow(trnpy.sparse.csr_matrix(GRAPH), 0, 3)
    assert flow.flow_value == scipy.sparse.csgraph.maximum_flow(scipy.sparse.csr_matrix(GRAPH), 0, 3).flow_value
    assert type(pickle.loads(pickle.dumps(flow)).flow) in OURS
