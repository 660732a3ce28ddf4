"""multi_einsum: each result is numpy.einsum's; alike contractions are one launch, shared operands travel once."""

import numpy as np
import pytest
from doubles import FaultyEngine, Float32Engine, RecordingEngine
from hypothesis import given, settings
from hypothesis import strategies as st

import trnpy
from nkisim.hardware import TRN2
from trnpy import NkiFallbackWarning, Reason, policy, trace
from trnpy._call.decisions import work_of
from trnpy._einsum.multi_einsum import OP
from trnpy._engine.engines import engine
from trnpy._settings.policy import Policy

RNG = np.random.default_rng(0)


def array(*shape, dtype=np.float64):
    a = RNG.standard_normal(shape)
    return (a + 1j * RNG.standard_normal(shape)).astype(dtype) if np.dtype(dtype).kind == "c" else a.astype(dtype)


def same(ours, theirs, tolerance=1e-12):
    """In type, shape, dtype and writeability, and in value to rounding."""
    assert len(ours) == len(theirs)
    for x, y in zip(ours, theirs, strict=True):
        assert type(x) is type(y) and x.shape == y.shape and x.dtype == y.dtype
        assert x.flags.writeable == y.flags.writeable
        scale = np.abs(y).max(initial=1.0)
        unit = tolerance if y.dtype.itemsize // (2 if y.dtype.kind == "c" else 1) == 8 else 1e-4
        np.testing.assert_allclose(x, y, rtol=0, atol=(unit if y.dtype.kind in "fc" else 0) * scale)


def modelled(calls):
    """Products that a device launches, by a dry run."""
    return dict(work_of(OP.prepare(calls)).tally(TRN2, Policy()).launches)["float64_matmul"]


def check(calls, device="", **options):
    """Every result by a device, or a recording engine, against numpy.einsum."""
    expected = [np.einsum(*call) for call in calls]
    if device:
        with policy(device=device, force=True, fallback="raise", **options), trace() as decisions:
            same(trnpy.multi_einsum(calls), expected)
    else:
        with engine(RecordingEngine()), policy(force=True, fallback="raise", **options), trace() as decisions:
            same(trnpy.multi_einsum(calls), expected)
    (decision,) = decisions
    assert decision.on_device and decision.op == "trnpy.multi_einsum"
    return decision


def pairs(nocc, nvir, naux):
    """The products of the loop over pairs of DF-MP2."""
    b = [array(nvir, naux) for _ in range(nocc)]
    return [("aL,bL->ab", b[i], b[j]) for i in range(nocc) for j in range(nocc)]


def test_the_loop_over_4096_pairs_is_one_launch_and_each_operand_travels_once():
    calls = pairs(64, 6, 11)
    decision = check(calls, "null")
    assert modelled(calls) == 1
    # Operands travel as digits and in bfloat16 for the certificate, results in three words of 32 bits.
    assert decision.moved_bytes <= 2 * 8 * (2 * 64 * 6 * 11) + 12 * 64 * 64 * 6 * 6


def test_pairs_by_the_simulator_s_kernels_are_one_product():
    decision = check(pairs(8, 5, 20), "simulator")
    assert dict(decision.launches)["float64_matmul"] == 1


def test_pairs_of_a_triangle_are_one_product_too():
    calls = [call for n, call in enumerate(pairs(16, 4, 9)) if n % 16 <= n // 16]
    recording = RecordingEngine()
    with engine(recording), policy(force=True):
        same(trnpy.multi_einsum(calls), [np.einsum(*call) for call in calls])
    assert recording.shapes == [(16 * 4, 9, 16 * 4)]


@pytest.mark.parametrize("dtype", ["f4", "f8", "c8", "c16"])
def test_products_with_one_shared_operand_are_one_product_of_all(dtype):
    shared = array(7, 5, dtype=dtype)
    calls = [("ij,jk->ik", array(3, 7, dtype=dtype), shared) for _ in range(10)]
    recording = RecordingEngine()
    with engine(recording), policy(force=True):
        same(trnpy.multi_einsum(calls), [np.einsum(*call) for call in calls])
    assert recording.shapes == [(30, 7, 5)]


def test_large_operands_that_some_share_travel_once():
    shared = [array(300, 400) for _ in range(3)]
    calls = [("ij,jk->ik", shared[n % 3], array(400, 3)) for n in range(24)]
    check(calls, "null")
    assert modelled(calls) == 3
    small = [("ij,jk->ik", shared[n % 3][:4], array(400, 3)) for n in range(24)]
    check(small, "null")
    assert modelled(small) == 1


def test_products_of_their_own_operands_are_a_stack():
    calls = [("ij,jk->ki", array(9, 12), array(12, 10)) for _ in range(6)]
    assert dict(check(calls, "simulator").launches)["float64_matmul"] == 1


def test_stacks_of_single_precision_are_one_launch():
    calls = [("ij,jk->ik", array(9, 12, dtype="f4"), array(12, 10, dtype="f4")) for _ in range(6)]
    assert dict(check(calls, "simulator").launches) == {"batched_matmul": 1}


def test_shapes_of_one_bucket_are_filled_up_with_zeros():
    calls = [("ij,jk->ik", array(m, k), array(k, n)) for m, k, n in ((9, 12, 10), (16, 11, 14), (3, 16, 9))]
    recording = RecordingEngine()
    with engine(recording), policy(force=True):
        same(trnpy.multi_einsum(calls), [np.einsum(*call) for call in calls])
    assert len(recording.shapes) == 1


def test_the_same_contraction_is_computed_once_for_results_of_their_own():
    a, b = array(5, 6), array(6, 7)
    recording = RecordingEngine()
    with engine(recording), policy(force=True):
        first, second = trnpy.multi_einsum([("ij,jk->ik", a, b)] * 2)
    assert len(recording.shapes) == 1
    first[0, 0] = 99.0
    assert second[0, 0] != 99.0


MIXED = [
    ("ij,jk->ik", array(3, 4), array(4, 5)),
    ("ij->j", array(3, 4)),
    ("ii", array(4, 4)),
    ("ij,ij->", array(3, 4), array(3, 4)),
    ("ij,jk->ik", array(3, 4, dtype="f4"), array(4, 5)),
    ("ij,jk->ik", np.arange(6).reshape(2, 3), np.arange(3)[:, None]),
    ("i,i->", array(5), array(5)),
    ("...j,jk", array(2, 3, 4), array(4, 2)),
    (array(3, 4), [0, 1], array(4), [1], [0]),
    *[("ab,bc,cd->ad", array(3, 4), array(4, 5), array(5, 2)) for _ in range(2)],
    ("ij,jk->ik", np.zeros((0, 3)), array(3, 2)),
    ("ii,ij->j", array(4, 4), array(4, 3)),
    ("ij,j->ij", array(1, 4), array(4)),
    ("ij,jk->ik", array(3, 1), array(5, 2)),
    (",ij->ij", 2.0, array(2, 3)),
    ("i,j->ij", array(3), array(4)),
    *[("bij,bjk->bik", array(2, 3, 4), array(2, 4, 5)) for _ in range(2)],
    ("ij,kj->ik", array(4, 4).T, array(3, 4)[:, ::-1]),
]


@pytest.mark.parametrize("device", ["", "null"])
def test_mixed_calls_are_each_numpy_s(device):
    check(MIXED, device)


def test_mixed_calls_on_the_host_are_each_numpy_s():
    same(trnpy.multi_einsum(MIXED), [np.einsum(*call) for call in MIXED])
    same(trnpy.multi_einsum(iter(MIXED)), [np.einsum(*call) for call in MIXED])


@settings(deadline=None, max_examples=60)
@given(st.data())
def test_any_list_of_contractions_is_numpy_s_loop(data):
    sizes = {c: data.draw(st.integers(1, 5)) for c in "abcd"}
    arrays = {}
    calls = []
    for _ in range(data.draw(st.integers(0, 8))):
        subscripts = data.draw(
            st.sampled_from(["ab,bc->ac", "ab,bc->ca", "ab,cb->ac", "abc,cd->abd", "ab,ab->", "ab->b"])
        )
        operands = []
        for labels in subscripts.partition("->")[0].split(","):
            key = labels, data.draw(st.integers(0, 2))
            shape = [sizes[c] for c in labels]
            operands.append(arrays.setdefault(key, np.random.default_rng(len(arrays)).standard_normal(shape)))
        calls.append((subscripts, *operands))
    with engine(RecordingEngine()), policy(force=True):
        same(trnpy.multi_einsum(calls), [np.einsum(*call) for call in calls])


@settings(deadline=None, max_examples=300)
@given(st.data())
def test_any_product_on_the_host_is_numpy_s(data):
    """Labels in any order, repeated and summed ones, vectors, few items and many, uniform lists and mixed ones."""
    sizes, calls = dict(zip("ijk", data.draw(st.permutations((2, 3, 20))), strict=True)), []
    kinds = data.draw(st.integers(1, 3))
    for _ in range(kinds):
        left, right = (data.draw(st.text("ijk", min_size=1, max_size=2)) for _ in range(2))
        output = "".join(data.draw(st.permutations(sorted(set(left + right)))))[: data.draw(st.integers(0, 3))]
        dtype = data.draw(st.sampled_from(["f4", "f8", "c16", ">f8", "i4"]))
        shapes = [[sizes[x] for x in labels] for labels in (left, right)]
        for _ in range(data.draw(st.sampled_from([1, 3, 40]))):
            calls.append((f"{left},{right}->{output}", *(array(*shape, dtype=dtype) for shape in shapes)))
    if kinds > 1:
        calls = data.draw(st.permutations(calls))
    expected = [np.einsum(*call) for call in calls]
    same(trnpy.multi_einsum(calls), expected)


@pytest.mark.route
def test_alike_products_on_the_host_are_computed_without_a_plan_for_each(monkeypatch):
    monkeypatch.setattr("trnpy._einsum.multi_einsum.einsum", None)
    for calls in (
        pairs(3, 4, 30),
        [("ij,jk->ki", array(3, 4), array(4, 5)) for _ in range(50)],
        [("ij,j->i", array(40, 50), array(50)), ("ij,jk->ik", array(3, 4), array(4, 5))] * 2,
    ):
        ours = trnpy.multi_einsum(calls)
        monkeypatch.undo()
        same(ours, [np.einsum(*call) for call in calls])
        monkeypatch.setattr("trnpy._einsum.multi_einsum.einsum", None)


def test_nothing_to_do_is_an_empty_list():
    assert trnpy.multi_einsum([]) == []
    with policy(force=True):
        assert trnpy.multi_einsum([]) == [] == trnpy.multi_einsum(iter([]))


@pytest.mark.parametrize("force", [False, True])
@pytest.mark.parametrize(
    ("bad", "error", "message"),
    [
        (("ij,jk->ik", array(2, 3), array(4, 5)), ValueError, "item 1: operands could not be broadcast"),
        (("ij,jk->iz", array(2, 3), array(3, 5)), ValueError, "item 1: .*z"),
        (("ij", array(2)), ValueError, "item 1: einstein sum subscripts string contains too many subscripts"),
        (5, TypeError, "item 1 is int: expected a tuple of einsum's arguments"),
        ("ij,jk->ik", TypeError, "item 1 is str: expected a tuple of einsum's arguments"),
        ((), ValueError, "item 1: must specify the einstein sum subscripts string"),
    ],
)
def test_errors_name_the_item(bad, error, message, force):
    good = ("ij,jk->ik", array(2, 3), array(3, 4))
    with policy(force=force), pytest.raises(error, match=message):
        trnpy.multi_einsum([good, bad, good])


def test_infs_and_overflow_are_the_host_s():
    calls = [("ij,jk->ik", array(2, 3), np.full((3, 4), np.inf)), ("ij,jk->ik", array(2, 3), array(3, 4))]
    with policy(force=True), trace() as decisions:
        ours = trnpy.multi_einsum(calls)
    assert decisions[-1].reason == Reason.VALUE
    for found in (ours, trnpy.multi_einsum(calls)):
        for x, y in zip(found, [np.einsum(*call) for call in calls], strict=True):
            np.testing.assert_allclose(x, y, rtol=1e-13)


@pytest.mark.parametrize("fault", FaultyEngine.FAULTS)
def test_a_faulty_engine_leaves_the_host_s_results(fault):
    calls = pairs(3, 4, 5)
    with engine(FaultyEngine(fault)), policy(force=True, fallback="log", time_limit=0.02), trace() as decisions:
        ours = trnpy.multi_einsum(calls)
    same(ours, [np.einsum(*call) for call in calls])
    assert not decisions[-1].on_device


def test_products_of_low_accuracy_are_refused():
    warned = pytest.warns(NkiFallbackWarning, match="tolerances")
    with engine(Float32Engine()), policy(force=True), trace() as decisions, warned:
        trnpy.multi_einsum(pairs(3, 4, 5))
    assert decisions[-1].reason == Reason.ACCURACY and "tolerances" in decisions[-1].detail


def test_budgets_cut_products_that_are_put_together(monkeypatch):
    monkeypatch.setattr("trnpy._einsum.multi_einsum.MEMORY", 8 * 2 * 5 * 16)
    for calls in (pairs(5, 4, 9), [("ij,jk->ik", array(4, 3), array(3, 4)) for _ in range(7)]):
        recording = RecordingEngine()
        with engine(recording), policy(force=True):
            same(trnpy.multi_einsum(calls), [np.einsum(*call) for call in calls])
        assert len(recording.shapes) > 1


def test_what_it_would_do_is_explained():
    calls = pairs(64, 100, 300)
    with policy(device="null", machine="trn2"):
        decision = trnpy.explain(trnpy.multi_einsum, calls)
    assert decision.flops == 2 * 64 * 64 * 100 * 100 * 300 and decision.device_s > 0


@pytest.mark.route
def test_small_results_are_writeable_one_by_one():
    rng = np.random.default_rng(0)
    a, b = rng.standard_normal((3, 4)), rng.standard_normal((4, 16))
    results = trnpy.multi_einsum([("ij,jk->ik", a, b)] * 2000)
    results[0][...] = 0
    np.testing.assert_allclose(results[1], a @ b, rtol=1e-14)
    assert all(c.base is None and c.flags.c_contiguous for c in results)


def test_lists_whose_items_differ_in_shape_or_stretch_are_einsums():
    rng = np.random.default_rng(0)
    shapes = ((3, 4), (4, 5)), ((2, 4), (4, 5)), ((2, 1), (4, 5)), ((0, 4), (4, 5)), ((3, 0), (0, 5))
    for count in (2, len(shapes)):
        calls = [("ij,jk->ki", *map(rng.standard_normal, pair)) for pair in shapes[:count]]
        same(trnpy.multi_einsum(calls), [np.einsum(*call) for call in calls])
    with pytest.raises(ValueError, match="item 2: "):
        trnpy.multi_einsum([*calls[:2], ("ij,jk->ki", np.ones((2, 3)), np.ones((4, 5)))])
