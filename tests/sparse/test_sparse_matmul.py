"""Products of sparse matrices: SciPy's values, classes, dtypes and index dtypes, by whatever route."""

import operator
import pickle
import warnings
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import scipy.sparse
from families import assert_corresponds
from hypothesis import assume, given, settings
from hypothesis import strategies as st

import trnpy
import trnpy.sparse
from trnpy._call.dispatch import Reason
from trnpy._host import spmm
from trnpy.sparse import _matmul
from trnpy.sparse._classes import OURS, SCIPY

FORMATS = ("bsr", "coo", "csc", "csr", "dia", "dok", "lil")
NAMES = tuple(f"{layout}_{flavour}" for layout in FORMATS for flavour in ("array", "matrix"))
DTYPES = ("?", "i1", "u2", "i4", "i8", "f4", "f8", "c8", "c16")
FLOATS = ("f4", "f8", "c8", "c16")


def adopted(a):
    """``a`` in trnpy's class; the arrays are shared."""
    return OURS[type(a)](a)


def numbers(rng, shape, dtype):
    """Random entries of ``dtype``, small enough for products of integers not to matter in which order they wrap."""
    x = rng.standard_normal(shape) * 4
    if np.dtype(dtype).kind == "c":
        x = x + 1j * rng.standard_normal(shape)
    return x.astype(dtype) if np.dtype(dtype).kind in "fc" else np.abs(x).astype(dtype)


def attempt(function, *arguments):
    """What ``function`` returns or raises; the warnings are not the subject here."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return function(*arguments)
        except Exception as error:
            return type(error), str(error)


def assert_within(ours, theirs, bound):
    """Equal, or both within the a-priori bound of a product, as ``bound`` gives it for each element."""
    assert ours.dtype == theirs.dtype and ours.shape == theirs.shape
    if ours.dtype.kind not in "fc":
        np.testing.assert_array_equal(ours, theirs)
        return
    finite = np.isfinite(theirs)
    np.testing.assert_array_equal(np.where(finite, 0, ours), np.where(finite, 0, theirs))
    assert (np.abs(ours - theirs)[finite] <= 2 * bound[finite]).all()


def magnitudes(a):
    """Dense sums of the magnitudes of the stored elements; abs(a) would add duplicates up, in ``a`` itself."""
    if a.format not in ("bsr", "csr", "csc"):
        return abs(a).toarray()
    return type(a)((np.abs(a.data), a.indices, a.indptr), shape=a.shape).toarray()


def product_bound(a, b):
    """k u |A| |B|, for a sum of k terms (Higham, Accuracy and Stability, 2nd ed., sec. 3.1); complex: sqrt 8."""
    unit = np.finfo(np.result_type(a.dtype, b.dtype, np.float32)).eps
    with np.errstate(all="ignore"):
        return 3 * (a.shape[-1] + 1) * unit * (np.abs(np.nan_to_num(a)) @ np.abs(np.nan_to_num(b)))


def assert_same_structure(ours, theirs):
    """The class, shape and index arrays of SciPy's result; only the values may differ in rounding."""
    assert type(ours) is OURS[type(theirs)] and ours.shape == theirs.shape and ours.dtype == theirs.dtype
    for name in ("indices", "indptr", "offsets", "row", "col"):
        if hasattr(theirs, name):
            mine, other = getattr(ours, name), getattr(theirs, name)
            assert mine.dtype == other.dtype
            np.testing.assert_array_equal(mine, other)


@st.composite
def matrices(draw, name, shape, dtype):
    """SciPy's matrix of the class ``name``: duplicates, unsorted indices, explicit zeros, NaN, int64 indices."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    rows, columns = shape
    nnz = draw(st.sampled_from((0, 1, rows, 3 * rows, rows * columns))) if rows and columns else 0
    i, j = rng.integers(0, max(rows, 1), nnz), rng.integers(0, max(columns, 1), nnz)
    values = numbers(rng, nnz, dtype)
    if nnz and draw(st.booleans()):
        values[rng.integers(0, nnz)] = 0
    if nnz and np.dtype(dtype).kind in "fc" and draw(st.integers(0, 4)) == 0:
        values[rng.integers(0, nnz)] = np.nan
    layout = name.partition("_")[0]
    wide = draw(st.booleans())
    coo = scipy.sparse.coo_array((values, (i, j)), shape=shape)
    cls = getattr(scipy.sparse, name)
    if layout in ("csr", "csc"):  # as given: unsorted, with duplicates
        major = i if layout == "csr" else j
        order = np.argsort(major, kind="stable")
        indptr = np.concatenate([[0], np.cumsum(np.bincount(major, minlength=shape[layout == "csc"]))])
        arrays = values[order], (j if layout == "csr" else i)[order], indptr
        a = cls(arrays, shape=shape)
    elif layout == "coo":
        a = cls(coo)
    else:
        a = cls(coo.tocsr())
    if wide:
        for attribute in ("indices", "indptr", "offsets"):
            if hasattr(a, attribute):
                setattr(a, attribute, getattr(a, attribute).astype(np.int64))
    return a


sides = st.sampled_from((0, 1, 2, 5, 12))


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_every_product_is_scipys_in_value_class_and_dtype(data):
    name = data.draw(st.sampled_from(NAMES))
    m, k, n = (data.draw(sides) for _ in range(3))
    if name.startswith("bsr"):  # without elements, SciPy's estimate of a block size divides by zero
        m, k = max(m, 1), max(k, 1)
    a = data.draw(matrices(name, (m, k), data.draw(st.sampled_from(DTYPES))))
    rng = np.random.default_rng(m + k + n)
    dtype = data.draw(st.sampled_from(DTYPES))
    right, left = numbers(rng, (k, n), dtype), numbers(rng, (n, m), dtype)
    vector = numbers(rng, k, dtype)
    other = getattr(scipy.sparse, name.replace("bsr", "csr"))(numbers(rng, (k, max(n, 1)), dtype))
    calls = (
        (operator.matmul, right),
        (operator.matmul, np.asfortranarray(right)),
        (operator.matmul, vector),
        (operator.matmul, right.tolist()),
        (operator.matmul, vector[:-1]),
        (lambda x, y: y @ x, left),
        (lambda x, y: x.T @ y, left.T),
        (lambda x, y: x.dot(y), right),
        (lambda x, y: x * y, right),
        (lambda x, y: x.multiply(y), numbers(rng, (m, k), dtype)),
        (lambda x, y: x.multiply(y), 2),
    )
    for function, argument in calls:
        assert_corresponds(attempt(function, adopted(a), argument), attempt(function, a, argument))
    assert_corresponds(attempt(operator.matmul, adopted(a), adopted(other)), attempt(operator.matmul, a, other))
    for power in (0, 1, 2, 3):
        assert_corresponds(attempt(operator.pow, adopted(a), power), attempt(operator.pow, a, power))


def blocked(rng, rows, columns, block, density, dtype="f8", flavour="array", repeats=True):
    """BSR in SciPy's class with random blocks, in random order within rows, some of them twice if ``repeats``."""
    r, c = block
    pattern = rng.random((rows, columns)) < density
    pattern[rng.integers(0, rows)] = False
    i, j = pattern.nonzero()
    twice = rng.random(len(i)) < 0.1 * repeats
    i, j = np.concatenate([i, i[twice]]), np.concatenate([j, j[twice]])
    order = np.lexsort((rng.random(len(i)), i))
    indptr = np.concatenate([[0], np.cumsum(np.bincount(i, minlength=rows))])
    values = numbers(rng, (len(i), r, c), dtype)
    cls = getattr(scipy.sparse, f"bsr_{flavour}")
    return cls((values, j[order], indptr), shape=(rows * r, columns * c))


@settings(max_examples=60, deadline=None)
@given(
    st.integers(0, 2**32),
    st.tuples(st.sampled_from((1, 3, 8, 32, 40)), st.sampled_from((1, 4, 8, 32, 33))),
    st.sampled_from(FLOATS),
    st.sampled_from((8, 9, 64)),
    st.sampled_from((0.0, 0.2, 1.0)),
)
def test_blocks_times_columns_are_within_the_bound_of_any_order_of_summation(seed, block, dtype, columns, density):
    rng = np.random.default_rng(seed)
    a = blocked(rng, 6, 5, block, density, dtype)
    x = numbers(rng, (a.shape[1], columns), dtype)
    for right in (x, np.asfortranarray(x), x[::-1]):
        ours = spmm.bsr_dense(a.indptr, a.indices, a.data, right)
        assert ours.flags.c_contiguous
        assert_within(ours, a @ right, product_bound(magnitudes(a), right))


@settings(max_examples=60, deadline=None)
@given(
    st.integers(0, 2**32),
    st.tuples(*[st.sampled_from((1, 3, 8, 40, 41))] * 3),
    st.sampled_from(FLOATS),
    st.sampled_from((0.0, 0.2, 1.0)),
    st.sampled_from(("array", "matrix")),
    st.sampled_from((np.int32, np.int64)),
    st.booleans(),
)
def test_blocks_times_blocks_have_scipys_pattern(seed, sizes, dtype, density, flavour, index, repeats):
    rng = np.random.default_rng(seed)
    r, k, c = sizes
    assume(max(sizes) > 1)  # of single elements SciPy sees CSR, and lists columns the other way round
    a, b = (blocked(rng, 6, 6, block, density, dtype, flavour, repeats) for block in ((r, k), (k, c)))
    for m in (a, b):
        m.indices, m.indptr = m.indices.astype(index), m.indptr.astype(index)
    theirs = a @ b
    blocks, indices, indptr = spmm.bsr_bsr(a, b)
    ours = adopted(a)._bsr_container((blocks, indices, indptr), shape=theirs.shape, blocksize=(r, c))
    assert_same_structure(ours, theirs)
    assert_within(ours.toarray(), theirs.toarray(), product_bound(magnitudes(a), magnitudes(b)))


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize(
    ("block", "columns", "strips"),
    (((128, 128), 64, 2), ((128, 128), 72, 1), ((160, 96), 84, 2), ((64, 64), 128, 1), ((64, 64), 64, 1)),
)
def test_large_blocks_meet_strips_of_columns(dtype, block, columns, strips):
    rng = np.random.default_rng(11)
    a = blocked(rng, 5, 6, block, 0.8, dtype)
    x = numbers(rng, (a.shape[1], columns), dtype)
    if dtype == "f8":
        assert columns // spmm._width(*block, x) == strips
    ours = spmm.bsr_dense(a.indptr, a.indices, a.data, x)
    assert ours.flags.c_contiguous and ours.flags.owndata
    assert_within(ours, a @ x, product_bound(magnitudes(a), x))
    turned = a.data.transpose(0, 2, 1).copy().transpose(0, 2, 1)
    assert_within(spmm.bsr_dense(a.indptr, a.indices, turned, x), a @ x, product_bound(magnitudes(a), x))


def test_products_of_threads_at_once_do_not_share_memory():
    rng = np.random.default_rng(12)
    a = blocked(rng, 20, 20, (64, 64), 0.4)
    operands = [rng.standard_normal((a.shape[1], 64)) for _ in range(4)]
    alone = [spmm.bsr_dense(a.indptr, a.indices, a.data, x) for x in operands]
    with ThreadPoolExecutor(4) as pool:
        for _ in range(5):
            together = list(pool.map(lambda x: spmm.bsr_dense(a.indptr, a.indices, a.data, x), operands))
            np.testing.assert_array_equal(together, alone)


def grouped(rng, layout, dtype="f8", sizes=(30, 1, 9, 2, 40, 8), minor=120, consecutive=False):
    """CSR or CSC in SciPy's class: runs of rows with the same columns, of different ones but for the edges, or none."""
    pattern = np.zeros((sum(sizes), minor), bool)
    start = 0
    for size in sizes:
        columns = np.arange(20, 60) if consecutive else np.sort(rng.choice(minor, minor // 3, replace=False))
        pattern[start : start + size, columns] = True
        start += size
    pattern[3] = pattern[0]
    pattern[3, pattern[0].nonzero()[0][1]] = False  # like its neighbours in its edges, but not in length
    moved = pattern[5].nonzero()[0][1:-1]
    free = np.setdiff1d(np.arange(pattern[5].nonzero()[0][0], pattern[5].nonzero()[0][-1]), moved)
    if len(free) > 1:
        pattern[5, moved[0]], pattern[5, free[-1]] = False, True  # in length and edges, but not in columns
    values = np.where(pattern, numbers(rng, pattern.shape, dtype), 0)
    values[pattern & (values == 0)] = 1
    a = scipy.sparse.csr_array(values)
    return a if layout == "csr" else a.T


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 2**32), st.sampled_from(("csr", "csc")), st.sampled_from(FLOATS), st.booleans())
def test_rows_that_share_columns_are_within_the_bound(seed, layout, dtype, consecutive):
    rng = np.random.default_rng(seed)
    a = grouped(rng, layout, dtype, consecutive=consecutive)
    x = numbers(rng, (a.shape[1], 9), dtype)
    for least in (1, 8, 1000):
        alike = spmm.groups(a.indptr, a.indices, least)
        assert alike.multiply_adds()[1] == a.nnz and alike.start[-1] == len(a.indptr) - 1
        ours = spmm.compressed_dense(a, alike, x)
        assert_within(ours, a @ x, product_bound(magnitudes(a), x))


def test_rows_twice_in_a_column_are_scipys_to_add():
    """Adding to indexed rows adds one of two."""
    indptr, indices = np.arange(9) * 3, np.tile([4, 2, 4], 8)
    a = scipy.sparse.csc_array((np.ones(24), indices, indptr), shape=(6, 8))
    assert spmm.compressed_dense(a, spmm.groups(indptr, indices, 8), np.ones((8, 9))) is None
    rows = scipy.sparse.csr_array((np.ones(24), indices, indptr), shape=(8, 6))
    ours = spmm.compressed_dense(rows, spmm.groups(indptr, indices, 8), np.ones((6, 9)))
    np.testing.assert_array_equal(ours, rows @ np.ones((6, 9)))


def decisions(function, *arguments):
    with trnpy.trace() as log:
        result = function(*arguments)
    return result, log


def large(layout, rng, dtype="f8"):
    """A matrix whose products take the route: SciPy's class."""
    if layout == "bsr":
        return blocked(rng, 12, 12, (64, 64), 0.5, dtype)
    return grouped(rng, layout, dtype, sizes=(100,) * 8, minor=900)


@pytest.mark.route
@pytest.mark.parametrize("layout", ("bsr", "csr", "csc"))
@pytest.mark.parametrize("dtype", FLOATS)
def test_the_route_runs_says_so_and_gives_scipys_class_and_layout(layout, dtype):
    rng = np.random.default_rng(1)
    a = large(layout, rng, dtype)
    right, left = numbers(rng, (a.shape[1], 64), dtype), numbers(rng, (64, a.shape[0]), dtype)
    for ours, theirs, x, y in (
        (lambda: adopted(a) @ right, a @ right, a.toarray(), right),
        (lambda: adopted(a).T @ left.T, a.T @ left.T, a.T.toarray(), left.T),
        (lambda: left @ adopted(a), left @ a, left, a.toarray()),
    ):
        result, log = decisions(ours)
        assert [(d.op, d.reason, d.on_device) for d in log] == [("scipy.sparse.matmul", Reason.ROUTE, False)]
        assert log[0].route and log[0].host_s > 0
        assert type(result) is np.ndarray and result.flags.c_contiguous == theirs.flags.c_contiguous
        assert_within(result, theirs, product_bound(x, y))


@pytest.mark.route
def test_a_product_of_blocks_takes_the_route_and_so_do_powers():
    rng = np.random.default_rng(2)
    a = blocked(rng, 12, 12, (64, 64), 0.3, flavour="matrix")
    ours, log = decisions(lambda: adopted(a) @ adopted(a))
    assert [d.reason for d in log] == [Reason.ROUTE]
    assert_same_structure(ours, a @ a)
    assert_within(ours.toarray(), (a @ a).toarray(), product_bound(magnitudes(a), magnitudes(a)))
    ours, log = decisions(lambda: adopted(a) ** 2)
    assert [d.reason for d in log] == [Reason.ROUTE]
    assert_same_structure(ours, a**2)


@pytest.mark.route
@pytest.mark.parametrize("layout", ("bsr", "csr", "csc"))
def test_any_change_of_the_matrix_between_products_is_in_the_next(layout):
    rng = np.random.default_rng(3)
    ours = adopted(large(layout, rng))
    x = rng.standard_normal((ours.shape[1], 64))

    def swapped(a):
        a.indices[a.indptr[1] : a.indptr[1] + 2] = a.indices[a.indptr[1] : a.indptr[1] + 2][::-1].copy()

    def emptied(a):
        a.indptr[:2] = 0
        a.indptr[1] = 0 if layout == "bsr" else a.indptr[1]

    def moved(a):
        a.indices[0] = next(j for j in range(a.shape[1]) if j not in a.indices[: a.indptr[1]]) % 12

    changes = (
        lambda a: a.data.__imul__(2),
        lambda a: a.data.__setitem__(0, 7.0),
        swapped,
        moved,
        lambda a: operator.imul(a, -1),
        lambda a: setattr(a, "data", a.data[::-1].copy()),
        emptied,
    )
    for change in changes:
        before = ours @ x
        change(ours)
        result, log = decisions(lambda: ours @ x)
        theirs = SCIPY[type(ours)]((ours.data, ours.indices, ours.indptr), shape=ours.shape) @ x
        assert_within(result, theirs, product_bound(magnitudes(ours), x))
        assert log[0].reason in (Reason.ROUTE, Reason.LAYOUT)
        assert change in (swapped, emptied) or not np.allclose(result, before, rtol=1e-13)


@pytest.mark.route
@pytest.mark.parametrize("layout", ("bsr", "csr", "csc"))
@pytest.mark.parametrize("bad", (np.nan, np.inf))
def test_infs_and_nans_end_where_scipy_puts_them(layout, bad):
    """A block holds zeros that SciPy's loop over elements of CSR never multiplies with."""
    rng = np.random.default_rng(4)
    for at in ("a", "x"):
        a = large(layout, rng)
        x = rng.standard_normal((a.shape[1], 64))
        (a.data if at == "a" else x).reshape(-1)[5] = bad
        result, log = decisions(lambda a=a, x=x: adopted(a) @ x)
        assert log[0].reason is Reason.VALUE and not log[0].route
        np.testing.assert_array_equal(result, a @ x)


@pytest.mark.route
def test_overflow_in_another_order_is_scipys_to_answer():
    rng = np.random.default_rng(5)
    a = large("bsr", rng)
    a.data *= 1e306
    x = rng.standard_normal((a.shape[1], 64))
    with np.errstate(all="raise"):
        result, log = decisions(lambda: adopted(a) @ x)
    assert log[0].reason is Reason.VALUE
    np.testing.assert_array_equal(result, a @ x)


@pytest.mark.parametrize(
    "make",
    (
        lambda rng: scipy.sparse.random_array((2000, 2000), density=0.02, rng=rng, format="csr"),
        lambda rng: scipy.sparse.random_array((2000, 2000), density=0.02, rng=rng, format="csc"),
        lambda rng: scipy.sparse.diags_array([1.0] * 65, offsets=range(-32, 33), shape=(2000, 2000), format="csr"),
        lambda rng: blocked(rng, 300, 300, (2, 2), 0.1),
        lambda rng: large("bsr", rng).astype(np.int64),
        lambda rng: large("csr", rng).tocoo(),
    ),
)
def test_what_scipy_does_well_stays_scipys_to_the_last_bit(make):
    rng = np.random.default_rng(6)
    a = make(rng)
    for x in (
        rng.standard_normal((a.shape[1], 64)),
        rng.standard_normal(a.shape[1]),
        rng.standard_normal((64, a.shape[1])).T,
    ):
        result, log = decisions(lambda x=x: adopted(a) @ x)
        assert not log[0].route and len(log) == 1 and log[0].detail
        np.testing.assert_array_equal(result, a @ x)


@pytest.mark.parametrize("name", NAMES)
def test_every_product_is_one_decision_with_a_reason_and_seconds(name):
    a = getattr(trnpy.sparse, name)(np.eye(6))
    x = np.ones((6, 3))
    for call in (lambda: a @ x, lambda: x.T @ a, lambda: a @ x[:, 0], lambda: a.T @ x, lambda: a @ a, lambda: a.dot(x)):
        _, log = decisions(call)
        assert [d.op for d in log] == ["scipy.sparse.matmul"]
        assert log[0].detail and log[0].host_s > 0 and not log[0].on_device
    _, log = decisions(lambda: a.multiply(x[:, :1]))
    assert {d.op for d in log} == {"scipy.sparse.multiply"} and log[0].reason is Reason.MEMORY_BOUND
    _, log = decisions(lambda: a**3)
    assert [d.op for d in log] == ["scipy.sparse.matmul"] * (2 if name.endswith("matrix") else 0)


def test_products_without_a_kernel_raise_where_the_policy_says_so():
    a = trnpy.sparse.csr_array(np.eye(6))
    with trnpy.policy(fallback="raise"), trnpy.trace(), pytest.raises(trnpy.FallbackError, match="no_device"):
        a @ np.ones((6, 3))


@settings(max_examples=40, deadline=None)
@given(
    st.integers(0, 2**32),
    st.tuples(st.sampled_from((1, 2, 8)), st.sampled_from((1, 4, 8))),
    st.sampled_from((0.2, 1.0)),
    st.sampled_from(("array", "matrix")),
    st.sampled_from(("as it is", "an element less", "an element moved", "unsorted")),
)
def test_blocks_cut_from_csr_are_those_that_scipy_counts(seed, block, density, flavour, change):
    rng = np.random.default_rng(seed)
    r, c = block
    pattern = np.kron(rng.random((5, 6)) < density, np.ones(block))
    if not pattern.any():
        return
    if change == "an element less":
        pattern[tuple(np.argwhere(pattern)[0])] = 0
    elif change == "an element moved" and (pattern[0] == 0).any() and pattern[0].any():
        pattern[0, pattern[0].nonzero()[0][0]], pattern[0, (pattern[0] == 0).nonzero()[0][-1]] = 0, 1
    a = getattr(scipy.sparse, f"csr_{flavour}")(pattern * rng.standard_normal(pattern.shape))
    if change == "unsorted":
        a.indices[:2], a.data[:2] = a.indices[:2][::-1].copy(), a.data[:2][::-1].copy()
    theirs = a.tobsr(block)
    regular = spmm.regular_blocks(a, r, c)
    if change == "as it is":
        assert regular is not None
    if regular is not None:
        for ours, other in zip(regular, (theirs.data, theirs.indices, theirs.indptr), strict=True):
            np.testing.assert_array_equal(ours, other)


@pytest.mark.parametrize("flavour", ("array", "matrix"))
@pytest.mark.parametrize("index", (np.int32, np.int64))
def test_conversion_to_large_blocks_is_scipys(flavour, index):
    a = blocked(np.random.default_rng(7), 4, 5, (32, 40), 0.5, "c16", flavour).tocsr()
    a.sum_duplicates()
    a.indices, a.indptr = a.indices.astype(index), a.indptr.astype(index)
    for size in ((32, 40), (64, 40), (16, 20), (1, 1), None, (31, 40), (32, 40.0), [32, 40]):
        for function in (lambda a, n=size: a.tobsr(n), lambda a, n=size: a.tobsr(blocksize=n, copy=True)):
            ours, theirs = attempt(function, adopted(a)), attempt(function, a)
            assert_corresponds(ours, theirs)
            if scipy.sparse.issparse(theirs):
                assert_same_structure(ours, theirs)
                assert ours.blocksize == theirs.blocksize
                assert size == (1, 1) or not np.shares_memory(ours.data, a.data)


# What published sparse packages got wrong in products and conversions (docs/comparison.md#known-failures).
@pytest.mark.parametrize("dtype", DTYPES)
def test_scipys_matrices_keep_their_dtype_and_imaginary_part(dtype):
    a = scipy.sparse.csr_array(numbers(np.random.default_rng(8), (5, 5), dtype))
    assert adopted(a).dtype == a.dtype
    np.testing.assert_array_equal(adopted(a).toarray(), a.toarray())


def test_duplicates_add_up_and_nans_are_kept():
    a = trnpy.sparse.coo_array(([1.0, 2.0, np.nan], ([0, 0, 1], [1, 1, 0])), shape=(2, 2))
    for layout in FORMATS:
        b = a.asformat(layout)
        np.testing.assert_array_equal(b @ np.eye(2), [[0, 3], [np.nan, np.nan]])
        assert np.isnan(getattr(trnpy.sparse, f"{layout}_array")(a.toarray()).toarray()[1, 0])


@pytest.mark.route
def test_rectangular_blocks_vectors_mixed_dtypes_and_a_count_of_operations():
    rng = np.random.default_rng(9)
    a = blocked(rng, 40, 41, (24, 32), 0.3)
    for x in (
        rng.standard_normal((a.shape[1], 64)),
        rng.standard_normal((a.shape[1], 64)).astype("f4"),
        rng.standard_normal(a.shape[1]),
    ):
        ours, log = decisions(lambda x=x: adopted(a) @ x)
        assert_within(ours, a @ x, product_bound(magnitudes(a), x))
        assert log[0].flops == 2 * a.data.size * (64 if x.ndim == 2 else 1) and bool(log[0].route) == (x.ndim == 2)
    x = rng.standard_normal((a.shape[1], 64)) * 1j
    np.testing.assert_array_equal(adopted(a) @ x, a @ x)


def test_pickles_carry_no_block_counts():
    a = trnpy.sparse.csr_array(np.eye(300))
    trnpy.sparse.block_analysis(a)
    assert set(vars(pickle.loads(pickle.dumps(a)))) == set(vars(scipy.sparse.csr_array(np.eye(300))))


@pytest.mark.route
def test_user_subclasses_take_the_routes_too():
    class Overlap(trnpy.sparse.bsr_array):
        pass

    a = Overlap(large("bsr", np.random.default_rng(10)))
    _, log = decisions(lambda: a @ np.ones((a.shape[1], 64)))
    assert log[0].reason is Reason.ROUTE
    assert _matmul.matmul.__trnpy_op__.reference(a, np.ones(a.shape[1])).shape == (a.shape[0],)


def partly_filled(shape, block, per_row=3):
    """BSR with blocks that leave the last rows and columns out, which SciPy takes and multiplies."""
    rng, rows, columns = np.random.default_rng(0), shape[0] // block[0], shape[1] // block[1]
    indices = np.sort(rng.permuted(np.tile(np.arange(columns), (rows, 1)), axis=1)[:, :per_row])
    blocks = rng.standard_normal((indices.size, *block))
    return trnpy.sparse.bsr_array((blocks, indices.ravel(), np.arange(rows + 1) * per_row), shape=shape)


@pytest.mark.parametrize("policy", [{}, {"device": "null", "force": True}], ids=["routes", "forced"])
@pytest.mark.parametrize("shape", [(501, 500), (500, 507), (507, 508)], ids=str)
def test_blocks_that_do_not_fill_a_matrix_are_multiplied_by_scipy(shape, policy):
    """Not by way of CSR, whose row pointers SciPy leaves unset there: they would lead out of its arrays."""
    a = partly_filled(shape, (10, 20), per_row=12)
    plain = scipy.sparse.bsr_array((a.data, a.indices, a.indptr), shape=shape)
    for x in (np.random.default_rng(1).standard_normal((shape[1], 60)), np.ones(shape[1])):
        with trnpy.policy(**policy), trnpy.trace() as log:
            product = a @ x
        np.testing.assert_array_equal(product, plain @ x)
        assert log[0].reason is Reason.LAYOUT, log[0]


def test_solvers_leave_blocks_that_do_not_fill_a_matrix_to_scipy():
    square = partly_filled((45, 45), (10, 10), per_row=1)
    b = square @ np.ones(45)
    with trnpy.policy(device="null", force=True), trnpy.trace() as log:
        trnpy.sparse.linalg.cg(square, b, maxiter=3)
        trnpy.sparse.linalg.gmres(square, b, maxiter=3)
    assert [d.reason for d in log if "linalg" in d.op] == [Reason.LAYOUT] * 2


def test_blocks_that_leave_rows_out_times_a_sparse_matrix_are_scipys():
    """Forced, it wrote past its arrays: CSR made of such blocks has row pointers from unset memory."""
    a = partly_filled((501, 500), (10, 20), per_row=12)
    plain = scipy.sparse.bsr_array((a.data, a.indices, a.indptr), shape=a.shape)
    other = scipy.sparse.random_array((500, 60), density=0.1, format="csr", rng=np.random.default_rng(0))
    with trnpy.policy(device="null", force=True), trnpy.trace() as log:
        product = a @ adopted(other)
    assert [d.reason for d in log] == [Reason.LAYOUT]
    expected = plain @ other
    for name in ("data", "indices", "indptr"):
        np.testing.assert_array_equal(getattr(product, name), getattr(expected, name))
