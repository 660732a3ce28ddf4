"""Wrong results that a looser check would accept are noticed, and healthy results of hostile data are not."""

import itertools
import warnings
from fractions import Fraction

import numpy as np
import pytest
from doubles import RecordingEngine
from dry_runs import tallied

import trnpy
from conformance.healthy import HOSTILE
from nkisim.hardware import TRN2
from trnpy._call.dispatch import NkiFallbackWarning, Reason
from trnpy._engine.engines import DeviceEngine, engine
from trnpy._engine.proof import checksums, integers
from trnpy._engine.proof.weights import PROBES, weights
from trnpy._nki.simulated import SimulatorRuntime

N = 150


class Planted(SimulatorRuntime):
    """A chip whose matrices come back changed by ``fault``."""

    def __init__(self, fault):
        super().__init__(TRN2)
        self.fault = fault

    def get(self, buffer):
        a = super().get(buffer)
        if min(a.shape[-2:]) >= 128:  # not the bound that a certificate rests on
            self.fault(a)
        return a


def zeros(a):
    a[...] = 0


def tile(a):
    a[..., :128, :128] = 0


def columns(a):
    a[..., [3, 5]] = a[..., [5, 3]]


def rows(a):
    a[..., [3, 5], :] = a[..., [5, 3], :]


def operands(dtype, n=N):
    rng = np.random.default_rng(0)
    if dtype == "?":
        return [rng.random((n, n)) < 0.05 for _ in range(2)]
    if np.dtype(dtype).kind == "i":
        return [rng.integers(-1000, 1000, (n, n)).astype(dtype) for _ in range(2)]
    return [rng.standard_normal((n, n)).astype(dtype) for _ in range(2)]


@pytest.mark.parametrize("fault", [zeros, tile, columns, rows])
@pytest.mark.parametrize(
    ("dtype", "precision"),
    [("f2", "matched"), ("f4", "matched"), ("f4", "bf16"), ("f8", "bf16"), ("f8", "matched"), ("i8", "matched"),
     ("?", "matched")],
)  # fmt: skip
def test_a_product_of_which_a_part_is_zero_or_exchanged_is_noticed(dtype, precision, fault):
    a, b = operands(dtype)
    settings = trnpy.policy(force=True, precision=precision)
    warned = pytest.warns(NkiFallbackWarning, match="wrong by|not exact")
    with engine(DeviceEngine(Planted(fault))), settings, trnpy.trace() as log, warned:
        c = trnpy.matmul(a, b)
    np.testing.assert_array_equal(c, a @ b)
    assert log[0].reason is Reason.ACCURACY and log[0].launches


@pytest.mark.parametrize("calls", range(5))
def test_exchanged_columns_of_integers_are_noticed_in_every_call(calls):
    """By random signs that are the same for two columns, half of all exchanges passed."""
    a, b = operands("i8", 40)
    c = a @ b
    assert integers.agree(a, b, c)
    for i in range(39):
        wrong = c.copy()
        wrong[:, [i, i + 1]] = wrong[:, [i + 1, i]]
        assert not integers.agree(a, b, wrong)


def test_errors_of_half_the_modulus_in_two_places_are_noticed():
    a, b = operands("i8", 40)
    wrong = a @ b
    wrong[3, 4] ^= np.int64(-(2**63))
    wrong[3, 7] ^= np.int64(-(2**63))
    assert not integers.agree(a, b, wrong)


@pytest.mark.parametrize("name", ["lu_factor", "inv"])
def test_a_result_with_moved_columns_fails_its_check(name):
    (a, _), eps = operands("f8"), np.finfo(float).eps
    problem = getattr(trnpy.linalg, name).__trnpy_op__.prepare(a)
    result = problem.run(RecordingEngine())
    assert problem.error(result) < 10 * N * eps
    x = result.lu if name == "lu_factor" else result
    for i in range(N - 1):
        x[:, [i, i + 1]] = x[:, [i + 1, i]]
        assert problem.error(result) > 10 * N * eps
        x[:, [i, i + 1]] = x[:, [i + 1, i]]


@pytest.mark.parametrize("right", HOSTILE)
@pytest.mark.parametrize("left", HOSTILE)
def test_products_of_blas_of_hostile_data_pass(left, right):
    rng = np.random.default_rng(1)
    for dtype in ("f8", "f4", "c16"):
        a, b = (HOSTILE[family](rng.standard_normal((60, 60)), rng) for family in (left, right))
        with np.errstate(all="ignore"):
            a, b = a.astype(dtype), b.astype(dtype)
            c = a @ b
        if all(np.isfinite(x).all() for x in (a, b, c)):
            assert checksums.excess(a, b, c) <= 1


def test_products_of_one_row_column_or_term_pass_in_any_layout():
    rng = np.random.default_rng(5)
    for m, k, n in [(1, 1, 1), (1, 5, 1), (5, 1, 5), (1, 5, 7), (5, 3, 1)]:
        a, b = rng.standard_normal((2 * m, 2 * k))[::2, ::2], rng.standard_normal((2 * k, 2 * n))[::2, ::2]
        for left, right in [(a, b), (np.asfortranarray(a), b.copy()), (a.copy(), np.asfortranarray(b))]:
            c = left @ right
            for found in (c, np.asfortranarray(c), np.repeat(c, 2, axis=1)[:, ::2]):
                assert checksums.excess(left, right, found) <= 1
                assert checksums.excess(left, right, found + 1) > 1


def constants():
    """a, b and the numbers nearest to the elements of a b: every rounding of a sum has the same sign."""
    for terms in (300, 1100, 4096):
        for rows, columns, value in [(2, 2, 0.99), (2, 200, 1 / 3), (60, 60, 0.7)]:
            exact = float(Fraction(value) * terms)
            yield np.full((rows, terms), value), np.full((terms, columns), 1.0), np.full((rows, columns), exact)


@pytest.mark.parametrize("form, fails", [("float64", False), ("", True)])
def test_products_of_constants_by_blas_are_allowed_its_error(form, fails):
    """Equal numbers that are added one after another may err by K/2 u of their sum, certified products by 4 u."""
    for a, b, exact in constants():
        terms = a.shape[1]
        erring = [checksums.excess(a, b, exact * (1 + terms / 2 * 2.0**-53), form) for _ in range(20)]
        assert (max(erring) > 1) == fails, (terms, max(erring))
        wrong = [checksums.excess(a, b, exact * (1 + 100 * terms * 2.0**-53), form) for _ in range(20)]
        assert max(wrong) > 1  # equal errors cancel in the sums of one call in a thousand


@pytest.mark.parametrize("dtype", ["f4", "c8"])
def test_single_precision_products_of_constants_may_err_by_what_sums_of_512_do(dtype):
    """Of all rows by as much, so that a fault of a thousandth is still seen, and one wrong element."""
    for a, b, _ in constants():
        a, b, terms = a.astype(dtype), b.astype(dtype), a.shape[1]
        c = (a.astype(np.result_type(dtype, "f8")) @ b).astype(dtype)
        for _ in range(20):
            assert checksums.excess(a, b, (c * (1 + min(terms, 512) / 2 * 2.0**-24)).astype(dtype)) <= 1
            one = c.copy()
            one[1, 1] *= 1.01
            assert checksums.excess(a, b, one) > 1
        assert max(checksums.excess(a, b, (c * 1.001).astype(dtype)) for _ in range(20)) > 1


def test_products_of_constants_by_the_installed_blas_are_accepted():
    for terms, value in [(60, 1 / 3), (384, 1 / 3), (1000, 0.7)]:
        for _, dtype in itertools.product(range(20), ("f4", "c8")):
            a, b = np.full((30, terms), value, dtype), np.full((terms, 30), value, dtype)
            assert checksums.excess(a, b, a @ b) <= 1, (terms, value, dtype)
        a, b = np.full((30, terms), value), np.full((terms, 30), value)
        assert max(checksums.excess(a, b, a @ b, "float64") for _ in range(50)) <= 1


def test_the_second_look_errs_little_on_constants(monkeypatch):
    monkeypatch.setattr(checksums, "TERMS", checksums.TERMS[1:])
    for a, b, exact in constants():
        assert max(checksums.excess(a, b, exact) for _ in range(10)) < 0.5


def test_the_second_look_decides(monkeypatch):
    """Long sums take a right product of constants for a wrong one; it passes, and wrong ones do not."""
    monkeypatch.setattr(checksums, "CERTIFIED", checksums.CERTIFIED / 3)
    for terms, accepted in [((4096,), False), ((4096, 1), True)]:
        monkeypatch.setattr(checksums, "TERMS", terms)
        found = [checksums.excess(a, b, exact) for a, b, exact in constants()]
        assert (max(found) <= 1) == accepted, found
    for a, b, exact in constants():
        exact[0, -1] *= 1 + 1e-11
        assert checksums.excess(a, b, exact) > 1


@pytest.mark.parametrize("left", [*HOSTILE][:8])
def test_an_element_that_is_wrong_by_far_less_than_the_norm_is_noticed(left):
    rng = np.random.default_rng(2)
    a, b = HOSTILE[left](rng.standard_normal((60, 60)), rng), rng.standard_normal((60, 60))
    size = np.linalg.norm(a, axis=1)[:, None] * np.linalg.norm(b, axis=0)
    for i, j in rng.integers(0, 60, (40, 2)):
        wrong = a @ b
        wrong[i, j] += 1e-12 * size[i, j]
        assert not checksums.excess(a, b, wrong) <= 1


def test_mixed_dtypes_and_underflow_are_no_faults():
    """Judged in float64, whatever the operands' dtypes, and no number below the smallest one counts."""
    rng = np.random.default_rng(3)
    single, double = rng.standard_normal((60, 60)).astype("f4"), rng.standard_normal((60, 60))
    half = rng.standard_normal((60, 60)).astype("f2")
    calls = [
        lambda m: m.einsum("ij,jk->ik", single, single, dtype="f8"),
        lambda m: m.einsum("ij,jk->ik", single, double),
        lambda m: m.einsum("ij,jk->ik", half, half, dtype="f4"),
        lambda m: m.matmul(half, double),
        lambda m: m.matmul(double * 1e-200, double * 1e-200),
        lambda m: m.matmul(double * 1e-310, double),
        lambda m: m.matmul(single * np.float32(1e-30), single * np.float32(1e-30)),
    ]
    sound = DeviceEngine(SimulatorRuntime(TRN2))
    with engine(sound), trnpy.policy(force=True), trnpy.trace() as log, warnings.catch_warnings(action="error"):
        for call in calls:
            np.testing.assert_allclose(call(trnpy), call(np), rtol=1e-3, atol=1e-30)
    assert all(d.on_device for d in log), log
    assert not sound.health.faults


def test_the_check_is_to_blame_where_the_hosts_own_result_fails_it(monkeypatch):
    monkeypatch.setattr(checksums, "CERTIFIED", 0.0)
    monkeypatch.setattr(checksums, "DEVIATIONS", 0.0)
    a, b = operands("f8", 200)
    with engine(RecordingEngine()) as sound, trnpy.policy(force=True), trnpy.trace() as log:
        np.testing.assert_array_equal(trnpy.matmul(a, b), a @ b)
    assert "the host's own result fails the check too" in log[0].detail
    assert not sound.health.faults and log[0].reason is Reason.ACCURACY


def planted(engine, kept, digits):
    """A product of handles of float64 on ``engine``."""
    h = engine.put(kept[0])
    return engine.get(engine.matmul(h, engine.put(kept[1]), digits=digits))


@pytest.mark.parametrize("fault", [zeros, tile, columns, rows])
@pytest.mark.parametrize("digits", [None, 5, 7])
def test_a_wrong_product_of_handles_is_noticed_where_it_is_fetched(fault, digits):
    with pytest.raises(checksums.Wrong, match="wrong by"):
        planted(DeviceEngine(Planted(fault)), operands("f8"), digits)
    if digits is None:
        with pytest.raises(checksums.Wrong, match="not exact"):
            planted(DeviceEngine(Planted(fault)), operands("i8"), None)


def test_a_wrong_gram_matrix_of_a_handle_is_noticed_where_it_is_fetched(monkeypatch):
    device = DeviceEngine(SimulatorRuntime(TRN2))
    h = device.put(operands("f8")[0])
    assert device.get(device.gram(h)).any()
    get = device.runtime.get
    monkeypatch.setattr(device.runtime, "get", lambda buffer: get(buffer) * (buffer.dtype != np.int32))
    with pytest.raises(checksums.Wrong, match="wrong by"):
        device.get(device.gram(h))


@pytest.mark.parametrize("left", [family for family in HOSTILE if family not in ("scaled entries", "all scales")])
@pytest.mark.parametrize("digits", [2, 5, 7])
def test_healthy_products_of_few_digits_pass(left, digits):
    rng = np.random.default_rng(4)
    a, b = HOSTILE[left](rng.standard_normal((90, 90)), rng)[:40], rng.standard_normal((90, 30))
    c = planted(DeviceEngine(SimulatorRuntime(TRN2)), (a, b), digits)
    size = np.abs(a).max(axis=1)[:, None] * np.abs(b).max(axis=0)
    assert np.all(np.abs(c - a @ b) <= 90 * 256.0 ** (1 - digits) * size + 1e-300)


def test_the_dry_run_counts_the_proof_of_each_product():
    """Of eigh, of the four products of its last iteration."""
    a, b = operands("f8")
    for namespace, name, left, proved in ((trnpy, "matmul", a, 1), (trnpy.linalg, "eigh", a + a.T, 4)):
        op = getattr(namespace, name).__trnpy_op__
        tally = tallied(op.prepare(left, b) if name == "matmul" else op.prepare(left))
        assert sum(amount for (kind, *_), amount in tally.host if "proof" in kind) == 3 * N * N * proved


@pytest.mark.parametrize("share", [0.03, 0.1, 0.3])
def test_two_errors_that_cancel_pass_two_probes_as_rarely_as_derived(share):
    """Two opposite errors d, as of exchanged columns: within t = share d for both columns of weights."""
    v = weights(2, 200_000)
    within = (np.abs(v[0] - v[1]) <= share).mean()
    assert 0 < within**PROBES <= share**PROBES * 1.1  # 1.1: of so many draws within 0.03 errs by a twentieth at most


def single(m=60, k=70, n=80, seed=0):
    rng = np.random.default_rng(seed)
    return rng.standard_normal((m, k)).astype("f4"), rng.standard_normal((k, n)).astype("f4")


def product(a, b):
    """The product in float32, rounded once."""
    with np.errstate(all="ignore"):
        return (a.astype("f8") @ b.astype("f8")).astype("f4")


def narrow(a, b, c, **options):
    """Whether the sums of a test are float32."""
    return checksums.sums(a, b, c.dtype, **options).a.dtype == np.float32


def test_sums_of_float32_products_are_float32_unless_they_may_leave_its_range():
    a, b = single()
    assert narrow(a, b, product(a, b)) and narrow(a[::2, ::2], b[::2].T.copy().T, product(a[::2, ::2], b[::2]))
    b[:, 3], a[5] = 0, 0
    assert narrow(a, b, product(a, b))
    assert not narrow(a, b, product(a, b), form="bfloat16") and not narrow(a, b, product(a, b), digits=4)
    for dtype in ("f2", "c8", "f8"):
        x, y = a.astype(dtype), b.astype(dtype)
        assert not narrow(x, y, x @ y)
    for scale in (2.0**-40, 2.0**60, np.nan, np.inf):
        for side in (0, 1):
            operands = single()
            operands[side][7, 7] = 1
            operands[side][:, 7] *= np.float32(scale)
            operands[side][7] *= np.float32(scale)
            assert not narrow(*operands, product(*operands))


@pytest.mark.parametrize("scales", [(0, 0), (-25, 0), (0, 45), (-25, -25), (40, -25)])
def test_one_wrong_element_of_a_float32_product_is_noticed_from_four_tolerances_on(scales):
    """A weight is at least one half; the largest one is three halves, which bounds a tolerance."""
    rng = np.random.default_rng(6)
    a, b = single()
    a *= np.float32(2.0) ** (scales[0] * rng.random(60)).astype("f4")[:, None]
    b *= np.float32(2.0) ** (scales[1] * rng.random(80)).astype("f4")
    c, unit = product(a, b), checksums.SUMMED * 2.0**-24
    sizes = np.linalg.norm(a.astype("f8"), axis=1)[:, None] * np.linalg.norm(b.astype("f8"), axis=0)
    least = 4 * unit * np.sqrt(1.08 * 80) * sizes
    assert narrow(a, b, c) and checksums.excess(a, b, c) < 0.5
    for _ in range(100):
        at = tuple(rng.integers(0, n) for n in c.shape)
        wrong = c.copy()
        wrong[at] += rng.choice([-1, 1]) * least[at]
        assert checksums.excess(a, b, wrong) > 1


def test_float64_sums_with_the_same_weights_decide_about_a_float32_product_that_failed(monkeypatch):
    """The errors of float32 sums neither refuse a right product nor accept a wrong one."""
    a, b = single()
    c, seen, excess = product(a, b), [], checksums.Sums.excess

    def spoiled(self, c, terms, half, found=None, own=0.0):
        seen.append((self.a.dtype, self.right, self.left))
        return 2.0 if self.a.dtype == np.float32 else excess(self, c, terms, half, found, own)

    monkeypatch.setattr(checksums.Sums, "excess", spoiled)
    assert checksums.excess(a, b, c) < 0.5
    assert [dtype for dtype, _, _ in seen] == [np.float32, np.float64] and c.dtype == np.float32
    assert seen[0][1] is seen[1][1] and seen[0][2] is seen[1][2]
    assert all(np.array_equal(w, w.astype("f4")) for w in seen[0][1:])
    c[3, 4] += 0.1
    assert checksums.excess(a, b, c) > 1 and len(seen) > 4


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_a_float32_product_with_a_number_that_is_not_finite_is_not_accepted(bad):
    a, b = single()
    c = product(a, b)
    c[2, 3] = bad
    assert not checksums.excess(a, b, c) <= 1


def test_lengths_of_rows_hold_whatever_the_other_rows_hold():
    """Squares of the first and the last row leave the range of float64."""
    a = np.array([[3e-200, 4e-200], [3.0, -4.0], [3e200, 4e200], [0.0, 0.0]])
    with np.errstate(all="ignore"):
        found = checksums.lengths(a)
    np.testing.assert_allclose(found, [5e-200, 5.0, 5e200, 0.0], rtol=4 * np.finfo(float).eps)
