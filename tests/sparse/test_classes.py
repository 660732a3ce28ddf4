"""trnpy's sparse classes are SciPy's in all but the class of their results: every format, both flavours."""

import copy
import operator
import pickle
import subprocess
import sys
import warnings

import numpy as np
import pytest
import scipy.sparse
from families import assert_corresponds
from hypothesis import given
from hypothesis import strategies as st

import trnpy.sparse
from trnpy.sparse._classes import SCIPY

FORMATS = ("bsr", "coo", "csc", "csr", "dia", "dok", "lil")
NAMES = tuple(f"{layout}_{flavour}" for layout in FORMATS for flavour in ("array", "matrix"))
DENSE = np.array([[4.0, 0.0, 1.0, 0.0], [0.0, 0.0, 3.0, 0.0], [2.0, 0.0, 0.0, 5.0], [0.0, 1.0, 0.0, 7.0]])
LOAD = """
import pickle, sys
sys.modules["trnpy"] = None
for pickled in pickle.load(sys.stdin.buffer):
    a = pickle.loads(pickled)
    print(type(a).__module__.split(".")[0], type(a).__name__, a.sum(), a.shape, a.dtype, a.maxprint)
"""


def both(name, dense=DENSE):
    """The same matrix in SciPy's class and in trnpy's."""
    return getattr(scipy.sparse, name)(dense), getattr(trnpy.sparse, name)(dense)


def attempt(function, *arguments):
    """What ``function`` returns or raises; the warnings are not the subject here."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return function(*arguments)
        except Exception as error:
            return type(error), str(error)


def parity(name, function, dense=DENSE):
    theirs, ours = both(name, dense)
    assert_corresponds(attempt(function, ours), attempt(function, theirs))


def test_there_is_a_subclass_for_every_format_and_flavour_and_for_nothing_else():
    assert {cls.__name__ for cls in SCIPY} == set(NAMES)
    for cls, base in SCIPY.items():
        assert cls is getattr(trnpy.sparse, cls.__name__) and base is getattr(scipy.sparse, cls.__name__)
        assert issubclass(cls, base) and cls is not base


@pytest.mark.parametrize("name", NAMES)
def test_isinstance_answers_as_scipys_classes_do_for_objects_of_either(name):
    for a in both(name):
        for other in NAMES:
            for namespace in (scipy.sparse, trnpy.sparse):
                assert isinstance(a, getattr(namespace, other)) == (other == name)
        assert isinstance(a, trnpy.sparse.sparray) == name.endswith("array")
        assert isinstance(a, trnpy.sparse.spmatrix) == name.endswith("matrix")
        predicate = getattr(trnpy.sparse, f"isspmatrix_{a.format}")
        assert predicate(a) == name.endswith("matrix")
    assert not isinstance(DENSE, getattr(trnpy.sparse, name))


def test_a_users_subclass_is_not_what_scipys_objects_are_instances_of():
    class Overlap(trnpy.sparse.csr_array):
        pass

    assert isinstance(Overlap(DENSE), scipy.sparse.csr_array)
    assert not isinstance(scipy.sparse.csr_array(DENSE), Overlap)
    assert not isinstance(trnpy.sparse.csr_array(DENSE), Overlap)
    assert type(copy.copy(Overlap(DENSE))) is type(copy.deepcopy(Overlap(DENSE))) is type(Overlap(DENSE)[1:]) is Overlap


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_pickles_are_scipys_and_so_is_what_comes_back(name, protocol):
    theirs, ours = both(name)
    loaded = pickle.loads(pickle.dumps(ours, protocol))
    assert type(loaded) is type(theirs)
    np.testing.assert_array_equal(loaded.toarray(), DENSE)
    loaded = pickle.loads(pickle.dumps(theirs, protocol))
    assert type(loaded) is type(theirs)
    assert type(getattr(trnpy.sparse, name)(loaded)) is type(ours)


def test_pickles_load_where_there_is_no_trnpy():
    ours = [getattr(trnpy.sparse, name)(DENSE, dtype=np.float32, maxprint=7) for name in NAMES]
    pickled = pickle.dumps([pickle.dumps(a) for a in ours])
    done = subprocess.run([sys.executable, "-c", LOAD], input=pickled, capture_output=True, check=True)
    expected = [f"scipy {name} {a.sum()} {a.shape} float32 7" for name, a in zip(NAMES, ours, strict=True)]
    assert done.stdout.decode().splitlines() == expected


class Pickled(trnpy.sparse.dok_array):
    """A user's subclass, at module level so that it pickles."""


def test_a_users_subclass_pickles_as_itself():
    loaded = pickle.loads(pickle.dumps(Pickled(DENSE)))
    assert type(loaded) is Pickled
    np.testing.assert_array_equal(loaded.toarray(), DENSE)


@pytest.mark.parametrize("name", NAMES)
def test_copies_keep_the_class_and_share_what_scipys_copies_share(name):
    for make in (copy.copy, copy.deepcopy):
        theirs, ours = both(name)
        theirs_copy, ours_copy = make(theirs), make(ours)
        assert_corresponds(ours_copy, theirs_copy)
        for original, duplicate in ((ours, ours_copy), (theirs, theirs_copy)):
            for attribute in ("data", "indices", "rows", "_dict"):
                if attribute in vars(original):
                    shared = vars(duplicate)[attribute] is vars(original)[attribute]
                    assert shared == (make is copy.copy)


KEYS = (
    0,
    (0, 0),
    slice(1, 3),
    (slice(None), 1),
    (1, slice(None)),
    ([0, 1], [1, 2]),
    [0, 1],
    (slice(None), [2, 0]),
    np.ix_([0, 1], [1, 2]),
    DENSE > 2,
    DENSE[0] > 0,
    (...,),
    (None, 0),
    (slice(None, None, -1), slice(None, None, 2)),
)


@pytest.mark.parametrize("name", NAMES)
def test_slices_have_the_class_that_scipys_have(name):
    for key in KEYS:
        parity(name, operator.itemgetter(key))


BINARY = (
    operator.add,
    operator.sub,
    operator.mul,
    operator.matmul,
    operator.truediv,
    operator.eq,
    operator.ne,
    operator.lt,
    operator.ge,
    operator.iadd,
    operator.isub,
    operator.imul,
    operator.itruediv,
)


@pytest.mark.filterwarnings("ignore:the matrix subclass")
@pytest.mark.parametrize("name", NAMES)
def test_arithmetic_with_sparse_dense_and_scalars_has_the_class_of_scipys(name):
    for function in BINARY:
        parity(name, lambda a, f=function: f(a, a.T))
        for other in (DENSE, DENSE[0], np.matrix(DENSE), 2, 2.5, 0, np.float64(3), "text", None):
            parity(name, lambda a, f=function, o=other: f(a, o))
            if other is not None:
                parity(name, lambda a, f=function, o=other: f(o, a))
    for power in range(4):
        parity(name, lambda a, p=power: a**p)


METHODS = """conj conjugate copy transpose nonzero todense toarray tobsr tocoo tocsc tocsr todia todok tolil diagonal
    trace sum mean max min argmax argmin nanmax nanmin count_nonzero getrow getcol getH get_shape getnnz asfptype sqrt
    sin floor sign power astype reshape setdiag resize multiply dot maximum minimum tensordot items keys getformat"""
ARGUMENTS = {
    "getrow": (1,),
    "getcol": (1,),
    "power": (2,),
    "astype": (np.complex64,),
    "reshape": (2, 8),
    "setdiag": (3.0,),
    "resize": (2, 3),
}


@pytest.mark.parametrize("name", NAMES)
def test_methods_have_results_of_the_class_of_scipys(name):
    for method in METHODS.split():
        if method in ("multiply", "dot", "maximum", "minimum", "tensordot"):
            parity(name, lambda a, m=method: getattr(a, m)(a, **({"axes": 1} if m == "tensordot" else {})))
            parity(name, lambda a, m=method: getattr(a, m)(DENSE))
        else:
            parity(name, lambda a, m=method: getattr(a, m)(*ARGUMENTS.get(m, ())))
        if method in ("sum", "mean", "max", "min", "argmax", "nanmin", "count_nonzero"):
            for axis in (0, 1, -1):
                parity(name, lambda a, m=method, axis=axis: getattr(a, m)(axis=axis))
    for layout in FORMATS:
        parity(name, lambda a, layout=layout: a.asformat(layout))
    for function in (abs, operator.neg, round, list, repr, str, np.sqrt, lambda a: np.add(a, a), lambda a: a.T):
        parity(name, function)
    parity(name, lambda a: type(a).fromkeys([(0, 1)], 2.0))
    parity(name, lambda a: type(a)(a.shape, dtype=np.int8))


@pytest.mark.parametrize("name", ("coo_array", "csr_array", "dok_array"))
def test_one_dimension_stays_in_the_family(name):
    for function in (
        *(operator.itemgetter(key) for key in (0, slice(1, 3), [0, 2], DENSE[0] > 0, None)),
        lambda a: a + a,
        lambda a: a - a,
        lambda a: a @ a,
        lambda a: a * 2,
        lambda a: a.max(axis=0),
        lambda a: a.reshape(2, 2),
        lambda a: a.tocsr(),
        lambda a: a.tocoo(),
        abs,
    ):
        parity(name, function, DENSE[0])


@pytest.mark.parametrize("shape", ((2, 2, 4), (2, 2, 2, 2)))
def test_more_dimensions_stay_in_the_family(shape):
    for function in (
        *(operator.itemgetter(key) for key in (0, (0, 1), slice(0, 1), ([0, 1], [1, 0]), (None, 0), ...)),
        lambda a: a + a,
        lambda a: a - a,
        lambda a: a @ a.transpose((*range(a.ndim - 2), a.ndim - 1, a.ndim - 2)),
        lambda a: a.dot(a.transpose((*range(a.ndim - 2), a.ndim - 1, a.ndim - 2))),
        lambda a: a.tensordot(a, axes=((0,), (1,))),
        lambda a: a @ np.ones(a.shape[-1]),
        lambda a: a.max(axis=0),
        lambda a: a.argmin(axis=1),
        lambda a: a.sum(axis=0),
        lambda a: a.reshape(4, 4),
        lambda a: a * 3,
        lambda a: a.swapaxes(0, 1) if hasattr(a, "swapaxes") else a,
    ):
        parity("coo_array", function, DENSE.reshape(shape))


keys = st.one_of(
    st.integers(-4, 3),
    st.slices(4),
    st.lists(st.integers(-4, 3), min_size=1, max_size=4),
    st.lists(st.booleans(), min_size=4, max_size=4).map(np.array),
    st.tuples(st.one_of(st.integers(-4, 3), st.slices(4)), st.one_of(st.integers(-4, 3), st.slices(4))),
)
steps = st.one_of(
    st.tuples(st.just(operator.getitem), keys),
    st.tuples(st.sampled_from((operator.mul, operator.truediv, operator.add)), st.sampled_from((0, 2, -1.5, 1j))),
    st.tuples(st.just(lambda a, layout: a.asformat(layout)), st.sampled_from(FORMATS)),
    st.tuples(st.just(lambda a, f: f(a, a.T)), st.sampled_from((operator.add, operator.sub, operator.matmul))),
    st.tuples(st.just(lambda a, f: f(a)), st.sampled_from((abs, operator.neg, copy.copy, copy.deepcopy))),
    st.tuples(st.just(lambda a, kind: a.astype(kind)), st.sampled_from((np.float32, np.int64, np.complex128))),
    st.tuples(st.just(lambda a, axis: a.sum(axis=axis)), st.sampled_from((None, 0, 1))),
    st.tuples(st.just(lambda a, axis: a.max(axis=axis)), st.sampled_from((None, 0, 1))),
)


@given(
    name=st.sampled_from(NAMES),
    entries=st.lists(st.integers(-2, 2), min_size=16, max_size=16),
    chain=st.lists(steps, max_size=5),
)
def test_any_chain_of_operations_ends_in_the_corresponding_class(name, entries, chain):
    theirs, ours = both(name, np.array(entries, float).reshape(4, 4))
    for function, argument in chain:
        theirs, ours = attempt(function, theirs, argument), attempt(function, ours, argument)
        assert_corresponds(ours, theirs)
        if not scipy.sparse.issparse(theirs):
            break
