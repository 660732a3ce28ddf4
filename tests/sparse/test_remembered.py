"""Decisions of products of blocks that are remembered where there is no device: whatever they rest on may change."""

import numpy as np
import pytest
import scipy.sparse

import trnpy
import trnpy.sparse
from trnpy._call import decision_cache as _quick
from trnpy._call.dispatch import FallbackError, Reason
from trnpy._engine.engines import HOST, engine
from trnpy._host import spmm
from trnpy._settings.host_rates import DEFAULT_COPY, DEFAULT_CURVES, HostRates
from trnpy._settings.policy import Attention, Policy, ProcessPolicy

REST = Policy(device="none")


def blocked(rng, block, dtype="f8", side=768):
    """BSR in trnpy's class: half of the blocks, in order."""
    count = side // block
    pattern = scipy.sparse.csr_array(rng.random((count, count)) < 0.5)
    data = rng.standard_normal((pattern.nnz, block, block)).astype(dtype)
    return trnpy.sparse.bsr_array((data, pattern.indices, pattern.indptr), shape=(side, side))


def routes():
    """Whether calls of each kind that is remembered take the route."""
    return [bool(decision.route) for *_, decision in _quick.Verdicts.known.verdicts.values()]


def scipys(a, x):
    return scipy.sparse.bsr_array((a.data, a.indices, a.indptr), shape=a.shape) @ x


@pytest.fixture
def counts(monkeypatch):
    """Decisions and runs of the route, in a process at rest that asked for nothing yet."""
    found = {"decide": 0, "bsr_dense": 0}

    def counted(module, name):
        function = getattr(module, name)

        def call(*arguments, **options):
            found[name] += 1
            return function(*arguments, **options)

        monkeypatch.setattr(module, name, call)

    for module, name in ((_quick, "decide"), (spmm, "bsr_dense")):
        counted(module, name)
    monkeypatch.setattr(Attention, "asked", False)
    monkeypatch.setattr(ProcessPolicy, "policy", REST)
    monkeypatch.setattr(_quick.Verdicts, "known", _quick.Known(Policy(), None, {}, {}))
    return found


@pytest.fixture
def remembered(counts):
    """A matrix and columns whose product was decided, and remembered by the second call."""
    rng = np.random.default_rng(0)
    a, x = blocked(rng, 64), rng.standard_normal((768, 64))
    a @ x, a @ x
    assert routes() == [True]
    counts.update(dict.fromkeys(counts, 0))
    return a, x


@pytest.mark.route
def test_the_third_product_of_a_kind_decides_nothing_and_has_the_bits_of_the_first(counts):
    rng = np.random.default_rng(1)
    a, x = blocked(rng, 64), rng.standard_normal((768, 64))
    products = [a @ x for _ in range(4)]
    assert counts == {"decide": 1, "bsr_dense": 4}
    for product in products[1:]:
        np.testing.assert_array_equal(product, products[0])
    other = blocked(rng, 64)
    other.data, other.indices, other.indptr = rng.standard_normal(a.data.shape), a.indices, a.indptr
    np.testing.assert_allclose(other @ x, scipys(other, x), rtol=0, atol=1e-11)
    assert counts["decide"] == 1 and counts["bsr_dense"] == 5


@pytest.mark.route
def test_arrays_changed_in_place_are_in_the_next_product(remembered, counts):
    a, x = remembered
    a.data[1] *= -3
    begin, end = a.indptr[2:4]
    a.indices[begin:end] = a.indices[begin:end][::-1].copy()
    np.testing.assert_allclose(a @ x, scipys(a, x), rtol=0, atol=1e-11)
    a.indptr[-1] = a.indptr[-2]
    assert not (a @ x)[-64:].any()
    np.testing.assert_allclose(a @ x, scipys(a, x), rtol=0, atol=1e-11)
    assert counts["bsr_dense"] == 3 and counts["decide"] == 1  # of fewer blocks


@pytest.mark.route
def test_blocks_of_another_size_in_the_same_object_are_another_kind(remembered, counts):
    a, x = remembered
    count = len(a.indices)
    for size in (32, 2):
        every = 768 // size
        a.data = np.random.default_rng(2).standard_normal((count, size, size))
        a.indptr = np.minimum(np.arange(every + 1) * 8, count)
        a.indices = np.arange(count) % every
        np.testing.assert_allclose(a @ x, scipys(a, x), rtol=0, atol=1e-11)
    assert counts["bsr_dense"] == 1  # blocks of 2 are SciPy's
    assert routes() == [True, True]


@pytest.mark.route
def test_few_columns_are_another_kind(remembered, counts):
    a, x = remembered
    np.testing.assert_array_equal(a @ x[:, :4], scipys(a, x[:, :4]))
    assert counts == {"decide": 0, "bsr_dense": 0}  # a look is enough


@pytest.mark.route
@pytest.mark.parametrize(
    ("dtype", "other"), (("f4", "f4"), ("f8", "f4"), ("c16", "f8"), ("f4", "f8"), ("f8", "c16"), ("i8", "f8"))
)
def test_dtypes_are_told_apart(remembered, counts, dtype, other):
    x = remembered[1].astype(other)
    a = blocked(np.random.default_rng(0), 64, dtype)  # the pattern that is remembered
    for _ in range(2):
        ours, theirs = a @ x, scipys(a, x)
        assert ours.dtype == theirs.dtype
        np.testing.assert_allclose(ours, theirs, rtol=0, atol=3e3 * np.finfo(theirs.dtype).eps)
    assert counts["bsr_dense"] == 2 * (np.result_type(dtype, other) == dtype)


@pytest.mark.route
def test_rates_that_were_measured_anew_decide_anew(remembered, counts, monkeypatch):
    a, x = remembered
    swift = HostRates(dict(DEFAULT_CURVES, bsr=((1, 1e15), (16, 1e15))), DEFAULT_COPY, True, "a swift loop")
    monkeypatch.setattr(_quick, "current_rates", lambda: swift)
    np.testing.assert_array_equal(a @ x, scipys(a, x))
    assert counts["bsr_dense"] == 0 and counts["decide"] == 1


@pytest.mark.route
def test_a_policy_of_the_process_that_requires_a_device_is_heard(remembered, monkeypatch):
    a, x = remembered
    monkeypatch.setattr(ProcessPolicy, "policy", Policy(device="none", fallback="raise"))
    a @ x[:, 0]  # of which nothing is asked
    for _ in range(2):
        with pytest.raises(FallbackError, match="no_device"):
            a @ x
    monkeypatch.setattr(ProcessPolicy, "policy", REST)
    np.testing.assert_allclose(a @ x, scipys(a, x), rtol=0, atol=1e-11)


@pytest.mark.route
def test_a_policy_of_a_block_a_trace_and_an_engine_that_appears_are_heard(remembered, counts):
    a, x = remembered
    with engine(HOST), trnpy.policy(force=True), trnpy.trace() as log:
        a @ x
    assert [d.on_device for d in log] == [True] and counts == {"decide": 0, "bsr_dense": 0}
    with trnpy.trace() as log:
        a @ x
    assert [(d.reason, d.route) for d in log] == [(Reason.ROUTE, "products of blocks")]
    assert counts == {"decide": 1, "bsr_dense": 1}  # a recorded call is a kind of its own: it may have modelled seconds


@pytest.mark.route
def test_a_report_that_is_asked_for_later_has_the_product(remembered, counts):
    a, x = remembered
    with trnpy.profile() as run:
        a @ x
        a @ x
    assert [c.decision.route for c in run.calls] == 2 * ["products of blocks"] and counts["decide"] == 1


@pytest.mark.route
@pytest.mark.parametrize("bad", (np.inf, np.nan, 1e200))
def test_what_is_not_finite_is_scipys_and_without_a_warning(remembered, counts, bad):
    a, x = remembered
    a.data[3, 2, 1] = bad
    x[64 * a.indices[3] + 1] = bad  # 1e200 overflows
    ours = a @ x
    assert not np.isfinite(ours).all()
    np.testing.assert_array_equal(ours, scipys(a, x))
    assert counts["bsr_dense"] == 1


@pytest.mark.route
def test_kinds_that_are_remembered_are_bounded(remembered, monkeypatch):
    a, x = remembered
    monkeypatch.setattr(_quick, "KINDS", 3)
    for m in range(16, 24):
        np.testing.assert_allclose(a @ x[:, :m], scipys(a, x[:, :m]), rtol=0, atol=1e-11)
        assert len(_quick.Verdicts.known.verdicts) <= 3
