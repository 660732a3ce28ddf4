"""Divide and conquer: its polynomials, splits and bases, and eigenpairs as good as LAPACK's that start from it."""

import functools

import numpy as np
import pytest
from doubles import FaultyEngine, RecordingEngine

import trnpy.linalg
from benchmarks.eigh import AGREEMENT, GOAL, MOST_LAUNCHES, break_even, modelled, of_this_run, predicted
from linalg.matrices import FAMILIES, hermitian
from linalg.test_eigh import check
from nkisim.hardware import TRN2
from trnpy._call.decisions import work_of
from trnpy._call.dispatch import Reason, explain
from trnpy._engine import iterations
from trnpy._engine.engines import HOST, DeviceEngine, HostEngine, engine
from trnpy._nki.simulated import SimulatorRuntime
from trnpy._settings.host_rates import current_rates
from trnpy._settings.policy import Policy
from trnpy.linalg import _divide, _eigh, _jacobi, _refinement
from trnpy.linalg._polynomials import HEADROOM, POLISH, best_quintic, sign_coefficients

LEAF = 40  # rows: so that matrices of some hundred are split more than once


@pytest.fixture
def small_leaves(monkeypatch):
    methods = dict(_eigh.METHODS) | {"divide": functools.partial(_divide.eigenvectors, leaf=LEAF)}
    monkeypatch.setattr(_eigh, "METHODS", methods)


def simulated():
    return DeviceEngine(SimulatorRuntime(TRN2))


def divided(a, e):
    """Eigenpairs by divide and conquer on ``e``; None where most of the spectrum is one cluster."""
    with engine(e), trnpy.policy(force=True, method="divide"), trnpy.trace() as log:
        w, x = trnpy.linalg.eigh(a)
    if not log[0].by_device_path:
        assert log[0].reason is Reason.ACCURACY, log[0]
        return None
    assert log[0].method == "divide" and ("device by divide" in str(log[0]) or len(a) == 1)
    return w, x


# --- polynomials ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("octaves", range(1, 24))
def test_the_composition_is_the_sign_on_its_interval(octaves):
    x = np.geomspace(2.0**-octaves, 1.0, 4001)
    p = x
    for a, b, c in sign_coefficients(octaves).astype("f8"):
        p = a * p + b * p**3 + c * p**5
        assert p.min() > 0 and p.max() <= 2 * HEADROOM
    assert np.abs(p - 1).max() <= 2e-7 and len(sign_coefficients(octaves)) % 2 == 0


@pytest.mark.parametrize("shape", [(1, 1), (3, 5), (400, 300)])
def test_random_blocks_are_uniform_of_unit_variance(shape):
    task = _divide.Task(HOST, False, 1.0, np.random.default_rng(0))
    found = _divide._uniform(shape, task)
    assert found.shape == shape and found.dtype == "f4" and np.abs(found).max() <= np.sqrt(3)
    if found.size > 1000:
        assert abs(found.mean()) < 0.02 and abs(found.std() - 1) < 0.01
        assert np.abs(np.corrcoef(found[:, :20].T) - np.eye(20)).max() < 0.25


@pytest.mark.parametrize("low", [1e-4, 0.1, 0.7])
def test_the_best_quintic_has_four_equal_extrema(low):
    """Chebyshev's theorem for three coefficients; no other has a smaller largest error."""
    (a, b, c), error = best_quintic(low, 1.0)
    x = np.linspace(low, 1.0, 200_001)
    off = 1 - (a * x + b * x**3 + c * x**5)
    inner = np.flatnonzero(np.diff(np.sign(np.diff(off)))) + 1
    extrema = off[[0, *inner, -1]]
    np.testing.assert_allclose(np.abs(extrema), error, rtol=1e-6)
    assert len(extrema) == 4 and (np.diff(np.sign(extrema)) != 0).all()


def test_rounding_beyond_the_interval_does_not_grow():
    """At an interval's very end the slope is thirteen: without headroom float32 diverges in seven steps."""
    x = np.float32([1 + 2.0**-23, 1 + 2.0**-20])
    for a, b, c in sign_coefficients(16):
        x = a * x + b * x**3 + c * x**5
    assert np.abs(x - 1).max() < 1e-6


# --- splits and bases -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["f8", "c16"])
@pytest.mark.parametrize("family", FAMILIES)
def test_eigenvectors_are_good_to_float32(family, dtype):
    """Orthonormal, and coupled by less than 1e-4 of the norm; two copies of complex vectors drift apart a little."""
    a = hermitian(family, 130, dtype)
    a = a / np.linalg.norm(a, 2)
    x = _divide.eigenvectors(a, HOST, leaf=LEAF)
    assert x.dtype == ("f4" if dtype == "f8" else "c8")
    x = x.astype(dtype)
    s = x.conj().T @ a @ x
    assert np.linalg.norm(x.conj().T @ x - np.eye(130), 2) <= (1e-5 if dtype == "f8" else 1e-2)
    assert np.abs(s - np.diag(s.diagonal())).max() <= 1e-4
    assert np.abs(s.diagonal().real - np.linalg.eigvalsh(a)).max() <= 1e-4  # in their order


def test_an_eigenvalue_on_the_shift_is_noticed_and_avoided(monkeypatch):
    """The median of the Laplacian's diagonal is its eigenvalue of multiplicity k: half of it would go either way."""
    a = hermitian("laplacian", 144, "f8") / 8
    monkeypatch.setattr(_divide, "OFF_MEDIAN", 0.0)
    signs = []

    def counted(h, coefficients, e, sign=iterations.sign):
        signs.append(sign(h, coefficients, e))
        return signs[-1]

    monkeypatch.setattr(iterations, "sign", counted)
    x = _divide.eigenvectors(a, HOST, leaf=72).astype("f8")
    undecided = [s for s in signs if (s.matrix.shape[0] - s.squares) / 4 > _divide.UNDECIDED]
    assert undecided and len(signs) > len(undecided)
    s = x.T @ a @ x
    assert np.abs(s - np.diag(s.diagonal())).max() <= 1e-5 and np.abs(x.T @ x - np.eye(144)).max() <= 1e-5


def test_an_ill_conditioned_block_is_drawn_again(monkeypatch):
    draws = []

    def twice_the_same(m, rank, task, random=_divide._random):
        draws.append(rank)
        g = random(m, rank, task)
        if len(draws) == 1:
            g[:, 1] = g[:, 0]
        return g

    monkeypatch.setattr(_divide, "_random", twice_the_same)
    a = hermitian("uniform", 100, "f8")
    x = _divide.eigenvectors(a, HOST, leaf=60)
    assert len(draws) == 3 and draws[0] == draws[1]
    assert np.abs(x.T @ x - np.eye(100)).max() <= 1e-5


def test_blocks_that_are_never_orthonormal_leave_the_problem_to_the_host(monkeypatch):
    monkeypatch.setattr(_divide, "_random", lambda a, rank, task: np.zeros((len(a), rank), np.float32))
    a = hermitian("uniform", 100, "f8")
    x = _divide.eigenvectors(a, HOST, leaf=60)
    assert np.abs(x.T @ x - np.eye(100)).max() <= 1e-5


def test_the_effort_is_bounded(monkeypatch):
    """A spectrum that gives away a sixteenth at a time ends as one block on the host."""
    monkeypatch.setattr(_divide, "EFFORT", 50.0)
    e = RecordingEngine()
    a = hermitian("graded to 1e-12", 200, "f8")
    x = _divide.eigenvectors(a, e, leaf=20)
    assert sum(2.0 * m * k * n for _, m, k, n in [(0, *s[-3:]) for s in e.shapes]) <= 300 * 200.0**3
    assert np.abs(x.T @ x - np.eye(200)).max() <= 1e-5


# --- eigenpairs -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["f8", "c16"])
@pytest.mark.parametrize("n", [1, 2, 127])
@pytest.mark.parametrize("family", FAMILIES)
def test_eigh_by_division_is_as_good_as_lapack(family, n, dtype, small_leaves):
    a = hermitian(family, n, dtype)
    pairs = divided(a, RecordingEngine())
    assert pairs is not None or family == "hilbert"
    if pairs is not None:
        check(a, *pairs)


@pytest.mark.parametrize("n", [1, 65, pytest.param(150, marks=pytest.mark.slow)])
@pytest.mark.parametrize("family", FAMILIES)
def test_eigh_by_jacobi_is_as_good_as_lapack(family, n):
    a = hermitian(family, n, "f8")
    with engine(RecordingEngine()), trnpy.policy(force=True, method="jacobi"), trnpy.trace() as log:
        w, x = trnpy.linalg.eigh(a)
    assert log[0].on_device or (family == "hilbert" and log[0].reason is Reason.ACCURACY)
    if log[0].on_device:
        assert log[0].method == "jacobi"
        check(a, w, x)


def test_jacobi_ends_when_the_couplings_are_rounding_errors(monkeypatch):
    sweeps, sweep = [], _jacobi.iterations.jacobi_sweep
    monkeypatch.setattr(_jacobi.iterations, "jacobi_sweep", lambda *args: sweeps.append(args) or sweep(*args))
    a = np.random.default_rng(0).standard_normal((60, 60)).astype("f4")
    x = _jacobi.eigenvectors(a + a.T, HostEngine())
    assert 5 <= len(sweeps) <= 7  # of a generic spectrum: docs/spectra.md#block-jacobi
    turned = x.T.astype("f8") @ (a + a.T) @ x
    assert np.linalg.norm(turned - np.diag(turned.diagonal())) <= 2 * _jacobi.CONVERGED * np.linalg.norm(turned)


@pytest.mark.slow
def test_jacobi_on_the_simulator_and_what_it_is_not_for():
    a = hermitian("random", 60, "f8")
    e = simulated()
    with engine(e), trnpy.policy(force=True, method="jacobi"), trnpy.trace() as log:
        check(a, *trnpy.linalg.eigh(a))
        trnpy.linalg.eigh(hermitian("random", 20, "c16"))  # real matrices only
    assert [d.method for d in log] == ["jacobi", "start"]
    assert 1 <= e.counters.launches["jacobi_sweep"] <= 12


@pytest.mark.slow
@pytest.mark.parametrize("method", ["divide", "start"])
@pytest.mark.parametrize("dtype", ["f8", "c16"])
@pytest.mark.parametrize("n", [128, 129, 384, 512])
@pytest.mark.parametrize("family", FAMILIES)
def test_every_family_size_and_method_on_the_host_engine(family, n, dtype, method):
    a = hermitian(family, n, dtype)
    with engine(RecordingEngine()), trnpy.policy(force=True, method=method), trnpy.trace() as log:
        w, x = trnpy.linalg.eigh(a)
    assert log[0].on_device or (family == "hilbert" and log[0].reason is Reason.ACCURACY)
    if log[0].on_device:
        assert log[0].method == method
        check(a, w, x)


@pytest.mark.parametrize("dtype, n", [("f8", 90), ("c16", 50)])
def test_on_the_simulator(dtype, n, small_leaves):
    a = hermitian("random", n, dtype)
    e = simulated()
    check(a, *divided(a, e))
    launches = e.counters.launches
    assert launches["polynomial_sign"] and launches["orthonormal_polar"] and launches["float64_matmul"]
    assert not launches["abs_bound"]  # nothing is certified: the refinement checks itself


@pytest.mark.slow
@pytest.mark.parametrize("dtype, n", [("f8", 1), ("f8", 2), ("f8", 127), ("f8", 128), ("f8", 129), ("c16", 65)])
@pytest.mark.parametrize("family", FAMILIES)
def test_every_family_on_the_simulator(family, dtype, n, small_leaves):
    a = hermitian(family, n, dtype)
    pairs = divided(a, simulated())
    assert pairs is not None or family == "hilbert"
    if pairs is not None:
        check(a, *pairs)


@pytest.mark.slow
@pytest.mark.parametrize("family", ["random", "laplacian", "two-valued", "clusters of 4", "graded entries"])
@pytest.mark.parametrize("n", [384, 512])
def test_larger_ones_on_the_simulator(family, n):
    a = hermitian(family, n, "f8")
    check(a, *divided(a, simulated()))


@pytest.mark.parametrize("fault", ["wrong", "nan"])
def test_a_wrong_product_is_never_returned(fault, small_leaves):
    a = hermitian("random", 100, "f8")
    with pytest.warns(trnpy.NkiFallbackWarning, match="wrong by|backward error|known answer wrong"):
        assert divided(a, FaultyEngine(fault)) is None


@pytest.mark.parametrize("digits", [2, 3, 5, 7])
@pytest.mark.parametrize("dtype", ["f8", "c16"])
def test_products_of_few_digits_are_as_accurate_as_they_say(dtype, digits):
    """Relative to the largest terms of each sum: rows of the left operand times columns of the right one."""
    rng = np.random.default_rng(digits)
    a, b = (rng.standard_normal((50, 50)).astype(dtype) for _ in range(2))
    if dtype == "c16":
        a, b = a + 1j * rng.standard_normal((50, 50)), b - 1j * a
    e = simulated()
    allowed = 2.0 ** (8 * (1 - digits)) * 50 * np.outer(np.abs(a).max(axis=1), np.abs(b).max(axis=0))
    for x, y in ((a, b), (a.conj().T, b)):
        c = e.get(e.matmul(e.put(np.ascontiguousarray(x)), e.put(y), digits=digits))
        assert (np.abs(c - x @ y) <= 4 * allowed.max()).all()
        assert np.abs(c - x @ y).max() > 0 or digits == 7
    g = e.get(e.gram(e.put(a), digits=digits))
    assert np.abs(g - a @ a.conj().T).max() <= 4 * 2.0 ** (8 * (1 - digits)) * 50 * np.abs(a).max() ** 2
    np.testing.assert_array_equal(g, g.conj().T)


# --- choice and cost --------------------------------------------------------------------------------------------------


def test_the_model_chooses_between_the_host_and_both_methods():
    """By predicted seconds, and the break-even is printed."""
    where = {}
    with trnpy.policy(device="null"):
        for n in range(256, 8193, 256):
            decision = explain(trnpy.linalg.eigh, np.broadcast_to(0.0, (n, n)))
            where[n] = decision.method if decision.on_device else "host"
        assert explain(trnpy.linalg.eigvalsh, np.broadcast_to(0.0, (512, 512))).on_device is False
    first = min(n for n in where if where[n] == "divide")
    print(f"eigh goes to trn2 from n = {first}, modelled against an uncalibrated host, by divide and conquer")
    longest = 7168  # rows of which the digits of a product fit half of the memory
    assert all(where[n] == "host" for n in where if n < first or n > longest) and where[longest] == "divide"
    op = trnpy.linalg.eigh.__trnpy_op__
    for n in (256, 1024, 4096):
        problem = op.prepare(np.broadcast_to(0.0, (n, n)))
        tallies = {m: work_of(problem)._replace(method=m).tally(TRN2, Policy()) for m in problem.methods}
        seconds = {m: tally.seconds(TRN2, current_rates()) for m, tally in tallies.items()}
        assert (seconds["divide"] < seconds["start"]) == (n > _divide.LEAF)


@pytest.mark.parametrize("complement", [False, True])
def test_a_basis_in_many_launches_is_that_of_one(complement, monkeypatch):
    """As for extents whose program would have a loop for every product."""
    rng = np.random.default_rng(3)
    w = np.where(np.arange(150) < 75, 0.5, -0.5)
    v = np.linalg.qr(rng.standard_normal((150, 150)))[0]
    h = ((v * w) @ v.T).astype("f4")
    operator = v[:, :75] if complement else (v * np.sign(w)) @ v.T
    omega = (rng.standard_normal((150, 75)) / 40).astype("f4")
    found = []
    for program in (iterations.PROGRAM, 1):
        monkeypatch.setattr(iterations, "PROGRAM", program)
        e = DeviceEngine(SimulatorRuntime(TRN2))
        arguments = e.put(h), e.put(operator.astype("f4")), omega, sign_coefficients(6), POLISH
        found.append((iterations.subspace(*arguments, complement, e), iterations.sign(e.put(h), arguments[3], e), e))
    (one, whole, first), (many, parts, second) = found
    assert first.counters.launches["orthonormal_polar"] == 1 and not second.counters.launches["orthonormal_polar"]
    assert second.counters.launches["polynomial_sign"] == 2 * len(sign_coefficients(6)) + len(POLISH)
    projectors = [e.get(x.basis).astype("f8") @ e.get(x.basis).T for x, e in ((one, first), (many, second))]
    assert np.abs(projectors[0] - projectors[1]).max() <= 1e-4 and abs(one.defect - many.defect) <= 1e-5
    assert abs(whole.trace - parts.trace) <= 1e-3 and abs(whole.squares - parts.squares) <= 1e-2


@pytest.mark.parametrize("method", ["divide", "jacobi", "start"])
def test_a_method_is_chosen_by_name(method):
    a = hermitian("random", 30, "f8")
    with engine(RecordingEngine()), trnpy.policy(force=True, method=method), trnpy.trace() as log:
        trnpy.linalg.eigh(a)
        trnpy.linalg.eigvalsh(a)
        trnpy.linalg.eigh(a, np.eye(30))
    assert [d.method for d in log] == [method] * 3


def test_the_what_if_counts_launches_as_a_device_does(small_leaves):
    work = work_of(trnpy.linalg.eigh.__trnpy_op__.prepare(hermitian("random", 127, "f8")))
    launches = dict(work._replace(method="divide").tally(TRN2, Policy()).launches)
    assert launches["polynomial_sign"] >= 3 and launches["orthonormal_polar"] == 6 and sum(launches.values()) < 60


def test_what_is_not_known_as_a_method():
    with pytest.raises(ValueError, match="method='jacobian': expected one of auto"), trnpy.policy(method="jacobian"):
        pass


def test_kernel_like_spectra_are_given_up_early():
    a = hermitian("hilbert", 150, "f8")
    e = RecordingEngine()
    with pytest.raises(_refinement.NotConverged, match="over half"):
        _eigh.eigh(a, e, "start")
    assert len(e.shapes) <= 5 * _refinement.KERNEL_LIKE


@pytest.mark.parametrize("n", [384, 512])
def test_the_benchmark_and_explain_predict_with_one_function_as_the_simulator_prices(n):
    found = modelled(n)
    with trnpy.policy(device="null", machine=TRN2.name, method="divide"):
        explained = explain(trnpy.linalg.eigh, np.broadcast_to(0.0, (n, n)))
    assert predicted(n, current_rates()) == explained and found.parts == explained.parts
    assert 1 / AGREEMENT <= found.traced_s / sum(explained.parts) <= AGREEMENT
    assert found.launches == sum(count for _, count in _tallied(n))


def _tallied(n):
    problem = trnpy.linalg.eigh.__trnpy_op__.prepare(np.broadcast_to(0.0, (n, n)))
    return work_of(problem)._replace(method="divide").tally(TRN2, Policy()).launches


def test_the_break_even_is_where_explain_begins_to_send_eigh():
    first = break_even(current_rates())
    for n, on_device in ((first - 64, False), (first, True)):
        with trnpy.policy(device="null", machine=TRN2.name, method="divide"):
            assert explain(trnpy.linalg.eigh, np.broadcast_to(0.0, (n, n))).on_device is on_device
    slow = of_this_run({driver: {512: 1.0, 1024: 8.0} for driver in ("evr", "evd")})
    assert break_even(slow) < first


@pytest.mark.slow
@pytest.mark.parametrize("n", [512, 1000, 2000])
def test_launches_and_utilisation_of_one_eigh(n):
    """Of a dry run, traced by the simulator."""
    found = modelled(n)
    print(f"eigh of order {n}: {found.launches} launches, {1e3 * found.device_s:.1f} ms of kernels, modelled")
    print(f"float32 stage: {100 * found.float32_share:.0f} % of PE, modelled")
    assert found.launches < MOST_LAUNCHES or n > 1024
    assert found.float32_share >= GOAL or n < 2000
    assert 1 / AGREEMENT <= found.traced_s / found.predicted_s <= AGREEMENT
