"""Sparse products on engines: forced on the host and the simulator, tiles and gathered rows, kept, priced."""

import contextlib
import dataclasses

import numpy as np
import pytest
import scipy.sparse
from doubles import FaultyEngine, Float32Engine, ReadOnlyEngine
from hypothesis import given, settings
from hypothesis import strategies as st

import trnpy
import trnpy.sparse
import trnpy.sparse.linalg
from nkisim.hardware import MACHINES, TRN2
from trnpy._call.decisions import priced, work_of
from trnpy._call.dispatch import Cost, NkiFallbackWarning, Reason
from trnpy._engine.engines import DeviceEngine, Refused, engine
from trnpy._nki.simulated import SimulatorRuntime
from trnpy._settings.host_rates import current_rates
from trnpy._settings.policy import current_policy
from trnpy.sparse import _device, _matmul, _tiles
from trnpy.sparse._classes import OURS

FORMATS = ("bsr", "coo", "csc", "csr", "dia", "dok", "lil")
FLOATS = ("f4", "f8", "c8", "c16")
DEVICES = ("none", "simulator")  # forced without a device: the host engine
CALLS = (
    ("A @ X", lambda a, x, y: a @ x, True),
    ("A @ v", lambda a, x, y: a @ x[:, 0], True),
    ("Y @ A", lambda a, x, y: y @ a, True),
    ("A.T @ Y.T", lambda a, x, y: a.T @ y.T, True),
    ("A @ A.T", lambda a, x, y: a @ a.T, False),
    ("A.T @ A", lambda a, x, y: a.T @ a, False),
)


def adopted(a):
    """``a`` in trnpy's class; the arrays are shared."""
    return OURS[type(a)](a)


def numbers(rng, shape, dtype):
    x = rng.standard_normal(shape)
    return (x + 1j * rng.standard_normal(shape) if np.dtype(dtype).kind == "c" else x).astype(dtype)


def matrix(rng, shape, dtype="f8", layout="csr", density=0.05, flavour="array"):
    pattern = scipy.sparse.random_array(shape, density=density, rng=rng, format="csr")
    pattern = scipy.sparse.csr_array((numbers(rng, pattern.nnz, dtype), pattern.indices, pattern.indptr), shape=shape)
    if layout == "dia":  # few diagonals, as SciPy wants them
        pattern = scipy.sparse.tril(scipy.sparse.triu(pattern, -40), 40)
    return getattr(scipy.sparse, f"{layout}_{flavour}")(pattern)


def magnitudes(a):
    """Dense sums of the magnitudes of duplicates; abs(a) would add them up, in ``a`` itself."""
    coo = a.copy().tocoo() if a.format != "coo" else a
    dense = np.zeros(a.shape, np.result_type(a.dtype, np.float64))
    np.add.at(dense, coo.coords, np.abs(coo.data))
    return dense


def forced(call, device="none", **settings_):
    with trnpy.policy(device=device, force=True, **settings_), trnpy.trace() as log:
        return call(), log


def simulated():
    """An engine of its own, with nothing kept."""
    return DeviceEngine(SimulatorRuntime(TRN2))


def assert_within_bound(ours, theirs, a, x, unit=None):
    """|C - C'| <= 4 (k + 1) u |A||X|: digits are certified to 4 u, SciPy's loop to k u (Higham, sec. 3.1)."""
    assert ours.dtype == theirs.dtype and ours.shape == theirs.shape
    unit = unit or np.finfo(ours.dtype).eps
    dense, right = (m.toarray() if scipy.sparse.issparse(m) else m for m in (a, x))
    bound = 4 * (1 + np.count_nonzero(dense, axis=-1).max(initial=0)) * unit * (np.abs(dense) @ np.abs(right))
    ours, theirs = (m.toarray() if scipy.sparse.issparse(m) else m for m in (ours, theirs))
    assert (np.abs(ours - theirs) <= bound).all()


SIMULATED = (("csr", "f4"), ("csr", "f8"), ("csc", "f8"), ("bsr", "f4"), ("coo", "c8"), ("lil", "f4"), ("csr", "c16"))


@pytest.mark.parametrize(
    "layout, dtype, device",
    [*((a, d, "none") for a in FORMATS for d in FLOATS), *((*pair, "simulator") for pair in SIMULATED)],
)
def test_forced_products_run_on_the_engine_in_every_format(layout, dtype, device):
    rng = np.random.default_rng(1)
    a = matrix(rng, (140, 131), dtype, layout, flavour="array" if dtype[0] == "f" else "matrix")
    x, y = numbers(rng, (131, 5), dtype), numbers(rng, (4, 140), dtype)
    for name, call, dense in CALLS:
        if (not dense and layout in ("dia", "dok", "lil")) or (
            name != "A @ X" and device == "simulator" and dtype == "c16"
        ):
            continue  # SciPy multiplies these by other formats; eight products of digits each are slow here
        theirs = call(a, x, y)
        ours, log = forced(lambda call=call: call(adopted(a), x, y), device)
        assert [(d.op, d.on_device, d.reason) for d in log] == [("scipy.sparse.matmul", True, Reason.FORCED)], name
        kernels = dict(log[0].launches)
        assert log[0].engine == ("host" if device == "none" else "simulator")
        assert {"bsr_spmm", "bsr_transpose_spmm", "csr_spmm"} & set(kernels)
        assert type(ours) is OURS.get(type(theirs), type(theirs))
        left = {"Y @ A": y, "A.T @ Y.T": a.T, "A.T @ A": a.T}.get(name, a)
        right = {"A @ X": x, "A @ v": x[:, 0], "Y @ A": a, "A.T @ Y.T": y.T, "A @ A.T": a.T, "A.T @ A": a}[name]
        assert_within_bound(ours, theirs, left, right)
        for index in ("indices", "indptr"):
            if hasattr(theirs, index):
                assert getattr(ours, index).dtype == getattr(theirs, index).dtype
                np.testing.assert_array_equal(getattr(ours, index), getattr(theirs, index))


@settings(max_examples=40, deadline=None)
@given(
    st.integers(0, 2**32),
    st.sampled_from(("bsr", "coo", "csc", "csr")),
    st.tuples(*[st.sampled_from((1, 2, 127, 128, 129, 300))] * 2),
    st.sampled_from(("f4", "f8", "c16", "i4", "?")),
    st.sampled_from((1, 3, 17)),
    st.sampled_from((np.int32, np.int64)),
)
def test_duplicates_unsorted_indices_explicit_zeros_and_mixed_dtypes(seed, layout, shape, dtype, columns, index):
    rng = np.random.default_rng(seed)
    nnz = int(rng.integers(0, 2 * max(shape)))
    i, j = (rng.integers(0, n, nnz).astype(index) for n in shape)
    values = numbers(rng, nnz, dtype) if np.dtype(dtype).kind in "fc" else rng.integers(-3, 4, nnz).astype(dtype)
    values[: nnz // 5] = 0
    if layout in ("csr", "csc"):
        major, minor = (i, j) if layout == "csr" else (j, i)
        order = np.argsort(major, kind="stable")
        indptr = np.cumsum(np.bincount(major + 1, minlength=shape[layout == "csc"] + 1)).astype(index)
        a = getattr(scipy.sparse, f"{layout}_array")((values[order], minor[order], indptr), shape=shape)
    else:
        a = scipy.sparse.coo_array((values, (i, j)), shape=shape).asformat(layout)
    x = rng.standard_normal((shape[1], columns))
    before = [m.copy() for m in (a.data, *(a.coords if layout == "coo" else (a.indices, a.indptr)))]
    ours, log = forced(lambda: adopted(a) @ x)
    assert_within_bound(ours, a @ x, magnitudes(a), x)
    assert log[0].on_device == bool(a.nnz)
    for was, now in zip(before, (a.data, *(a.coords if layout == "coo" else (a.indices, a.indptr))), strict=True):
        np.testing.assert_array_equal(was, now)


@pytest.mark.parametrize("bad", (np.nan, np.inf))
@pytest.mark.parametrize("device", DEVICES)
def test_infs_and_nans_are_scipys_to_answer(bad, device):
    rng = np.random.default_rng(2)
    for at in ("a", "x"):
        a, x = matrix(rng, (50, 40)), rng.standard_normal((40, 3))
        (a.data if at == "a" else x).flat[3] = bad
        ours, log = forced(lambda a=a, x=x: adopted(a) @ x, device)
        assert log[0].reason is Reason.VALUE and not log[0].on_device
        np.testing.assert_array_equal(ours, a @ x)


def test_integers_and_empty_operands_stay_on_the_host_and_say_why():
    a = adopted(scipy.sparse.csr_array(np.eye(5, dtype=int)))
    assert forced(lambda: a @ np.ones((5, 2), int))[1][0].reason is Reason.DTYPE
    empty = trnpy.sparse.csr_array((5, 5))
    assert forced(lambda: empty @ np.ones((5, 2)))[1][0].reason is Reason.LAYOUT
    assert forced(lambda: trnpy.sparse.csr_array(np.eye(5)) @ np.ones((5, 0)))[1][0].reason is Reason.LAYOUT


@pytest.mark.parametrize("dtype", ("f4", "c8"))
def test_gathered_rows_give_what_tiles_give(dtype):
    rng = np.random.default_rng(3)
    a, x = matrix(rng, (300, 200), dtype, density=0.02), numbers(rng, (200, 530), dtype)
    a = scipy.sparse.vstack([a, scipy.sparse.csr_array(np.ones((1, 200), dtype)), a * 0], format="csr")
    ours = simulated()
    for form in ("csr", "csc"):
        c = _device.gathered(ours, a.asformat(form), x)
        assert_within_bound(c, a @ x, a, x)
    assert set(ours.counters.launches) == {"csr_spmm"}
    assert_within_bound(_device.tiled(ours, a, x), a @ x, a, x)


def test_float64_takes_the_digits_its_values_need_or_is_refused():
    rng = np.random.default_rng(4)
    a = matrix(rng, (300, 200), density=0.03)
    graded = a.copy()
    graded.data *= 10.0 ** rng.uniform(-5, 5, a.nnz)
    x = rng.standard_normal((200, 10))
    for m in (a, graded, scipy.sparse.csr_array(np.diag(10.0 ** rng.uniform(-300, 300, 200)))):
        ours, log = forced(lambda m=m: adopted(m) @ x, "simulator")
        assert log[0].on_device and dict(log[0].launches)["bsr_spmm"] >= 2  # the certificate's and the product's
        assert_within_bound(ours, m @ x, m, x)
    wide = scipy.sparse.csr_array(np.array([[1.0, 1e-40]]))
    columns = np.array([[0.0, 1e-40], [1.0, 1.0]])
    ours, log = forced(lambda: adopted(wide) @ columns, "simulator")
    assert log[0].reason is Reason.ACCURACY and "digits" in log[0].detail
    np.testing.assert_array_equal(ours, wide @ columns)


def test_an_identity_and_a_permutation_give_back_every_bit():
    rng = np.random.default_rng(5)
    x = rng.standard_normal((200, 12)) * 10.0 ** rng.uniform(-3, 3, (200, 1))
    for a in (
        scipy.sparse.eye_array(200, format="csr"),
        scipy.sparse.eye_array(200, format="csr")[rng.permutation(200)],
    ):
        np.testing.assert_array_equal(forced(lambda a=a: adopted(a) @ x, "simulator")[0], a @ x)


@pytest.mark.parametrize("dtype, precision, unit", [("f8", "fp32", 2.0**-23), ("c16", "bf16", 2.0**-7)])
def test_a_precision_asked_for_by_name(dtype, precision, unit):
    rng = np.random.default_rng(6)
    a, x = matrix(rng, (150, 140), dtype), numbers(rng, (140, 6), dtype)
    ours, log = forced(lambda: adopted(a) @ x, "simulator", precision=precision)
    assert log[0].on_device and "digits_split" not in dict(log[0].launches)
    assert_within_bound(ours, a @ x, a, x, 4 * unit)


def test_a_matrix_stays_on_the_device_until_it_changes(monkeypatch):
    rng = np.random.default_rng(7)
    a = adopted(blocky(rng, 8, 3).tocsr())
    x = numbers(rng, (a.shape[1], 8), "f4")
    ours = simulated()
    made = _matmul.device_product
    monkeypatch.setattr(_matmul, "device_product", lambda *args: dataclasses.replace(made(*args), methods=("tiles",)))

    def moved(call=lambda: a @ x):
        before = ours.counters.bytes_in
        with trnpy.policy(force=True), engine(ours), trnpy.trace() as log:
            result = call()
        assert log[0].on_device
        np.testing.assert_allclose(result, call(), rtol=1e-4, atol=1e-3)
        return ours.counters.bytes_in - before

    first, second, third = moved(), moved(), moved()
    assert first == second and third < first / 4  # kept from its second use on; then X and tables of places move
    assert moved(lambda: a.T @ x) < first / 4  # the tiles serve the transpose, too
    with monkeypatch.context() as patch:
        patch.delattr(_device, "tiling")  # nor is there anything to look at again
        moved()
    a.data[7] *= 2
    assert moved() == first
    assert moved() < first / 4
    a.indices[:2] = a.indices[:2][::-1].copy()
    assert moved() >= first / 2
    with trnpy.resident(a.data):
        a.data[3] *= 3
        moved()
        assert moved() < first / 4


@pytest.mark.parametrize("dtype", ("f4", "f8"))
def test_rows_of_unequal_length_go_in_buckets(dtype):
    rng = np.random.default_rng(8)
    arrow = scipy.sparse.lil_array((1300, 1300), dtype=dtype)
    arrow[:5], arrow[:, :5] = rng.standard_normal((5, 1300)), rng.standard_normal((1300, 5))
    arrow.setdiag(1)
    a, x = arrow.tocsr(), numbers(rng, (1300, 4), dtype)
    ours = simulated()
    for m in (a, a.tocsc()):
        assert_within_bound(_device.tiled(ours, m, x), m @ x, m, x)
    assert set(ours.counters.launches) >= {"bsr_spmm", "bsr_transpose_spmm"}


@settings(max_examples=100, deadline=None)
@given(st.lists(st.integers(1, 64), min_size=1, max_size=40))
def test_buckets_pad_least_of_all_choices(lengths):
    from itertools import combinations

    chosen = _tiles.buckets(np.array(lengths), 64)
    sizes = sorted({_tiles.rung(n, 1) for n in lengths})
    assert len(chosen) <= _tiles.BUCKETS and chosen[-1] == sizes[-1] and chosen == sorted(set(chosen))

    def padded(ends):
        return sum(min(e for e in ends if e >= n) for n in lengths)

    count = min(_tiles.BUCKETS, len(sizes)) - 1
    if len(sizes) <= 14:
        assert padded(chosen) == min(padded((*c, sizes[-1])) for c in combinations(sizes[:-1], count))


@pytest.mark.parametrize("longest", [1, 50, 64])
def test_launches_hold_every_product_once_and_few_of_one_length(longest):
    row = np.repeat([0, 2, 3, 9, *range(20, 5000)], [1, 200, 5, 6000, *[1] * 4980])
    found = list(_tiles.launches(row, longest))
    for launch in found:
        rows, length = launch.products.shape
        assert length <= longest and rows * length <= 4096 and len(launch.target) <= rows <= 2048
        assert (launch.products[len(launch.target) :] == -1).all()
        for products, target in zip(launch.products, launch.target, strict=False):
            used = products[products >= 0]
            assert len(used) and (row[used] == target).all() and (np.diff(used) == 1).all()
    every = np.concatenate([launch.products[launch.products >= 0] for launch in found])
    np.testing.assert_array_equal(np.sort(every), np.arange(len(row)))
    assert len({launch.length for launch in found}) <= _tiles.BUCKETS


@pytest.mark.parametrize("double", (Float32Engine(), ReadOnlyEngine()), ids=lambda d: d.name)
def test_a_wrong_engine_is_found_out_and_a_strict_one_is_obeyed(double):
    rng = np.random.default_rng(9)
    a, x = matrix(rng, (200, 150)), rng.standard_normal((150, 4))
    strict = double.name == "read-only"
    with engine(double), contextlib.nullcontext() if strict else pytest.warns(NkiFallbackWarning, match="backward"):
        ours, log = forced(lambda: adopted(a) @ x)
    assert log[0].on_device == strict
    assert strict or log[0].reason is Reason.ACCURACY
    assert_within_bound(ours, a @ x, a, x)


@pytest.mark.parametrize("columns", [(), (3,)])
def test_products_that_underflow_pass_their_check(columns):
    rng = np.random.default_rng(1)
    a, x = matrix(rng, (200, 150)), rng.standard_normal((150, *columns))
    for small, other in [(1e-200, 1e-150), (1e-160, 1e-160), (1e-310, 1e5), (1e5, 1e-310), (1e-200, 1e-120)]:
        with trnpy.policy(force=True):
            problem = _matmul.device_product(small * a, other * x, np.dtype(float), Cost("csr", 1, 1.0, 1, 1))
        result = (small * a) @ (other * x)
        allowed = 10 * a.nnz * 2.0**-52
        assert problem.error(result) < allowed < problem.error(result + 1e-290 * max(small, other, 1.0))


@pytest.mark.parametrize("fault", FaultyEngine.FAULTS)
def test_a_failing_device_costs_a_warning_and_no_result(fault):
    rng = np.random.default_rng(10)
    a, x = matrix(rng, (200, 150)), rng.standard_normal((150, 4))
    with engine(FaultyEngine(fault)), trnpy.policy(time_limit=0.01), pytest.warns(NkiFallbackWarning) as warned:
        ours, log = forced(lambda: adopted(a) @ x)
    assert len(warned) == 1
    assert not log[0].on_device
    np.testing.assert_array_equal(ours, a @ x)


# --- what a published package got wrong, on engines; the numbers are those of docs/comparison.md#known-failures -------
# 4 to 6, screening: tests/chem/test_schwarz.py. 7 to 11, masks and attention: test_masks.py. 13 and 14, exact and zero
# starts of cg: test_sparse_krylov.py. All of them without an engine: test_sparse_matmul.py.


@pytest.mark.parametrize("device", DEVICES)
def test_duplicates_add_up_dtypes_stay_and_nans_are_kept(device):
    """1, 2, 3."""
    twice = trnpy.sparse.coo_array(([1.0, 2.0, 5.0], ([0, 0, 1], [1, 1, 0])), shape=(2, 2))
    for a in (twice, twice.tocsr(), (twice * 1j).tocsc(), twice.astype("f4"), twice.astype(int)):
        x = np.array([[1, 2], [3, 4]], a.dtype)
        ours, log = forced(lambda a=a, x=x: a @ x, device)
        assert ours.dtype == a.dtype and log[0].on_device == (a.dtype.kind != "i")
        np.testing.assert_array_equal(ours, a.toarray() @ x)
    missing = trnpy.sparse.csr_array(np.array([[np.nan, 0], [0, 1.0]]))
    ours, log = forced(lambda: missing @ np.eye(2), device)
    assert missing.nnz == 2 and log[0].reason is Reason.VALUE
    np.testing.assert_array_equal(ours, [[np.nan, np.nan], [0, 1]])


@pytest.mark.parametrize("device", DEVICES)
def test_symmetric_matrices_are_not_counted_twice_and_slices_multiply(device):
    """12, 16, 17: full symmetric storage, vectors, mixed precision, rectangular blocks, no rows, slices, ``.T``."""
    rng = np.random.default_rng(14)
    a = matrix(rng, (40, 40))
    symmetric = adopted((a + a.T).tocsr())
    v = rng.standard_normal(40)
    for call, plain in (
        (lambda: symmetric @ v, symmetric.toarray() @ v),
        (lambda: symmetric.astype("f4") @ v, symmetric.toarray().astype("f4") @ v),
        (lambda: symmetric[3:20, 5:] @ v[5:], symmetric.toarray()[3:20, 5:] @ v[5:]),
        (lambda: symmetric[3:20].T @ v[:17], symmetric.toarray()[3:20].T @ v[:17]),
        (lambda: (symmetric - 2 * symmetric) @ v, -symmetric.toarray() @ v),
    ):
        ours, log = forced(call, device)
        assert log[-1].on_device
        np.testing.assert_allclose(ours, plain, rtol=1e-12, atol=1e-12)
    data = rng.standard_normal((3, 24, 32))
    blocks = trnpy.sparse.bsr_array((data, np.array([0, 1, 1]), np.array([0, 2, 3])), shape=(48, 64))
    x = rng.standard_normal((64, 3))
    np.testing.assert_allclose(forced(lambda: blocks @ x, device)[0], blocks.toarray() @ x, rtol=0, atol=1e-12)
    none = trnpy.sparse.csr_array((0, 5))
    assert forced(lambda: none @ np.ones((5, 2)), device)[0].shape == (0, 2)


@pytest.mark.parametrize("device", DEVICES)
def test_iterations_from_an_eigenvectors_complement_find_both_signs(device):
    """15: the exchange matrix, where a step of power iteration from e1 finds nothing."""
    exchange = np.kron(np.eye(3), [[0.0, 1], [1, 0]])
    a = trnpy.sparse.csr_array(exchange)
    ours, log = forced(lambda: a @ np.eye(6)[0], device)
    assert log[0].on_device
    np.testing.assert_array_equal(ours, np.eye(6)[1])
    if device == "none":
        large = trnpy.sparse.csr_array(np.kron(np.eye(10), exchange))
        with trnpy.policy(force=True):
            np.testing.assert_allclose(trnpy.sparse.linalg.eigsh(large, 1, which="LA")[0], [1], rtol=0, atol=1e-12)
            np.testing.assert_allclose(trnpy.sparse.linalg.eigsh(large, 1, which="SA")[0], [-1], rtol=0, atol=1e-12)


# --- which form, and when ---------------------------------------------------------------------------------------------


def price(a, m, machine="trn2", **settings_):
    """What the model says of a @ X with m columns under a policy whose device is modelled."""
    with trnpy.policy(device="null", machine=machine, **settings_):
        problem = _matmul.prepare_matmul(a, np.broadcast_to(np.zeros((), a.dtype), (a.shape[1], m)))
        work = work_of(problem)
        hardware, policy = MACHINES[machine], current_policy()
        return priced(work, problem.methods, hardware, policy, current_rates())


def blocky(rng, blocks, in_row, block=128, dtype="f4"):
    """(blocks x block) square, with ``in_row`` full blocks in each row of them."""
    columns = np.stack([rng.choice(blocks, in_row, replace=False) for _ in range(blocks)])
    data = np.ones((columns.size, block, block), dtype)
    return scipy.sparse.bsr_array((data, np.sort(columns).ravel(), np.arange(blocks + 1) * in_row))


def test_full_blocks_go_by_tiles_and_scattered_elements_by_rows():
    rng = np.random.default_rng(11)
    full = blocky(rng, 24, 8).tocsr()
    with trnpy.resident(full.data):  # of one product, sorting the elements into tiles would take longest
        assert price(full, 512).method == "tiles"
    assert price(matrix(rng, (8192, 8192), "f4", density=1e-3), 512).method == "gathered"
    assert price(matrix(rng, (4096, 4096), "f8", density=1e-3), 512).method == "tiles"  # float64 has no other


def test_the_decision_is_the_models_and_vectors_stay_at_home():
    rng = np.random.default_rng(12)
    a, x = adopted(blocky(rng, 24, 24).astype("f8").tocsr()), np.ones((24 * 128, 4096))
    with trnpy.policy(device="null"):
        with trnpy.resident(a.data):
            many = trnpy.explain(_matmul.matmul, a, x)
        one = trnpy.explain(_matmul.matmul, a, x[:, 0])
    assert many.on_device and many.reason is Reason.FASTER and many.device_s < many.host_s
    assert not one.on_device and one.reason in (Reason.SMALL, Reason.SLOWER, Reason.MEMORY_BOUND)
    with trnpy.policy(device="null"):
        assert trnpy.explain(_matmul.matmul, a, x).device_s > many.device_s  # one-shot: its tiles cross the link


def test_pattern_products_are_never_offered_unforced():
    rng = np.random.default_rng(13)
    a = adopted(blocky(rng, 8, 4))
    with trnpy.policy(device="null"):
        decision = trnpy.explain(_matmul.matmul, a.tocsr(), a.tocsr())
    assert not decision.on_device and decision.reason is Reason.SLOWER and "pattern" in decision.detail


def test_small_products_are_decided_without_a_count_of_blocks():
    a = adopted(scipy.sparse.eye_array(1000, format="csr"))
    with trnpy.policy(device="null"):
        assert trnpy.explain(_matmul.matmul, a, np.ones((1000, 8))).reason is Reason.SMALL
    assert "_trnpy_blocks" not in vars(a)


@pytest.mark.parametrize("dtype", ["f4", "f8"])
def test_a_tall_operand_goes_in_strips_that_offsets_can_count(dtype, monkeypatch):
    a, x = scipy.sparse.eye_array(1000, format="csr").astype(dtype) * 3, np.ones((1000, 40), dtype)
    monkeypatch.setattr(_device, "LARGEST", 1024 * 32 * (7 * 2 if dtype == "f8" else 4))
    monkeypatch.setattr(_device.Tiled, "_dense", lambda self, part, itemsize: self.tiling.tiles(part))
    ours = simulated()
    np.testing.assert_array_equal(_device.tiled(ours, a, x), a @ x)
    assert ours.counters.launches["bsr_spmm"] == (4 if dtype == "f8" else 3)  # with the certificate
    monkeypatch.setattr(_device, "LARGEST", 1024)
    with pytest.raises(Refused, match="rows exceed"):
        _device.tiled(simulated(), a, x)


@pytest.mark.parametrize("itemsize", [2, 4, 14])
def test_an_operand_of_tiles_has_at_most_two_gib(itemsize, monkeypatch):
    """Float32 tiles, or digits of bfloat16: offsets on the device count bytes."""
    monkeypatch.setattr(_tiles.Tiling, "tiles", lambda self, part: part)
    with trnpy.policy(device_memory=1.0):
        for tiles in range(2**31 // (128 * 128 * itemsize) - 2048, 2**31 // (128 * 128 * itemsize) + 2048, 512):
            tiled = _device.Tiled(simulated(), None)
            tiled._made = _tiles.Tiling((128, 128), np.zeros(tiles, int), *[np.empty(0)] * 4)
            fits = _tiles.rung(tiles) * 128 * 128 * itemsize <= 2**31
            with contextlib.nullcontext() if fits else pytest.raises(Refused, match="bytes of tiles exceed"):
                tiled._dense(np.empty(0), itemsize)


def test_tiles_beyond_an_operand_are_refused():
    a = scipy.sparse.eye_array(40_000, format="csr")
    ours = simulated()
    with trnpy.policy(device_memory=1e6), pytest.raises(Refused, match="tiles exceed"):
        _device.tiled(ours, a.astype("f4"), np.ones((40_000, 1), "f4"))


@pytest.mark.parametrize("block", [lambda: trnpy.policy(force=True), trnpy.profile], ids=["forced", "recorded"])
def test_another_byte_order_is_scipys(block):
    """SciPy multiplies DIA in any byte order, and refuses to convert it to other formats."""
    d = np.arange(1.0, 4.0).astype(">f8")
    a = scipy.sparse.dia_array((d[np.newaxis], [0]), shape=(3, 3))
    for x in (np.arange(3.0), np.arange(3.0).astype(">f8")):
        expected = a @ x
        with trnpy.patched(), block():
            np.testing.assert_array_equal(a @ x, expected)


@pytest.mark.parametrize("values", [np.ones(2, bool), np.full(2, 100, np.int8)], ids=["bool", "int8"])
def test_duplicates_are_added_in_the_dtype_that_they_have(values):
    """SciPy adds those of COO, and all that a BSR operand makes it convert, before it multiplies."""
    coo = scipy.sparse.coo_array((values, ([0, 0], [1, 1])), shape=(2, 2))
    csr = scipy.sparse.csr_array((values, [1, 1], [0, 2, 2]), shape=(2, 2))
    dense, blocks = np.array([[1.0, 2], [3, 4]]), scipy.sparse.bsr_array([[1.0, 2], [3, 4]], blocksize=(1, 2))
    for left, right in ((coo, scipy.sparse.csr_array(dense)), (blocks, csr), (csr, blocks), (coo, dense)):
        expected = left @ right
        with trnpy.patched(), trnpy.policy(force=True):
            found = left @ right
        assert type(found) is type(expected)
        np.testing.assert_array_equal(found + np.zeros((2, 2)), expected + np.zeros((2, 2)))  # dense
