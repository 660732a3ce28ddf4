"""Functions of large positive-definite matrices on the host: their identities, and how often a matrix is looked at."""

import dataclasses

import numpy as np
import pytest
import scipy.linalg

import trnpy.linalg
from linalg.matrices import positive
from trnpy._call import decision_cache as _quick
from trnpy._call.dispatch import FallbackError
from trnpy._host import positive as route_positive
from trnpy._settings.host_rates import DEFAULT_COPY, DEFAULT_CURVES, HostRates
from trnpy._settings.policy import Attention, Policy, ProcessPolicy
from trnpy.linalg import _matrix_functions
from trnpy.linalg._matrices import MIRROR

N = 2 * MIRROR + 7


def routed(name, a, *options):
    with trnpy.trace() as log:
        x = getattr(trnpy.linalg, name)(a, *options)
    assert log[0].route == "eigenvectors", log
    return x


def norm(a):
    return np.linalg.norm(a.astype(np.result_type(a.dtype, "f8")))


@pytest.mark.route
@pytest.mark.parametrize("layout", [np.ascontiguousarray, np.asfortranarray, lambda a: a[::-1, ::-1]])
@pytest.mark.parametrize("dtype", ["f4", "f8", "c8", "c16"])
@pytest.mark.parametrize("by_steps", [N, N + 1])
def test_square_roots(dtype, layout, by_steps, monkeypatch):
    monkeypatch.setattr(route_positive, "BY_STEPS", by_steps)
    a = layout(positive(N, dtype, 1e2).astype(dtype))
    x, eps = routed("sqrtm", a), np.finfo(dtype).eps
    assert x.dtype == dtype and x.flags.c_contiguous
    assert norm(x @ x - a) <= N * eps * norm(a)
    theirs = scipy.linalg.sqrtm(a)
    assert norm(x - theirs) <= 100 * N * eps * norm(theirs)


@pytest.mark.route
@pytest.mark.parametrize("dtype", ["f8", "c16"])
@pytest.mark.parametrize("scale", [0.5, 3.0, 7.0])
def test_logarithms_of_either_sign_and_of_both(scale, dtype):
    """Spectra of 0.1 to 1 times the scale: all negative, of both signs, and nearly all positive."""
    a = scale * positive(N, dtype, 10.0)
    a /= max(np.linalg.norm(a) / 7.3, 1)  # within what the route takes
    x = routed("logm", a)
    w = np.linalg.eigvalsh(a)
    if dtype == "f8":
        np.testing.assert_array_equal(x, x.T)
    assert norm(np.linalg.eigvalsh(x) - np.log(w)) <= N * np.finfo(float).eps * norm(np.log(w))
    assert norm(scipy.linalg.expm(x) - a) <= N * np.finfo(float).eps * norm(a)


@pytest.mark.parametrize("f", [[1.0, 4, 9], [-9.0, -4, -1], [-1.0, 2, 5], [3.0, -1, 2], [0.0, 0, 2], [-2.0, 0, 2]])
@pytest.mark.parametrize("batch", [(), (2,)])
def test_products_of_eigenvectors(f, batch):
    q = np.random.default_rng(0).standard_normal((*batch, 3, 3))
    f = np.broadcast_to(f, (*batch, 3))
    expected = (q * f[..., np.newaxis, :]) @ q.swapaxes(-1, -2)
    np.testing.assert_allclose(route_positive.scaled_product(q.copy(), f), expected, rtol=1e-14, atol=1e-14)


@pytest.mark.route
def test_a_matrix_is_looked_at_once_and_again_in_the_next_call(monkeypatch):
    looks = []
    unlike = _matrix_functions._unlike
    monkeypatch.setattr(_matrix_functions, "_unlike", lambda *call: looks.append(call) or unlike(*call))
    a = positive(N, "f8", 10.0)
    routed("sqrtm", a)
    assert len(looks) == 1
    a[5, 7] += 1e-3
    np.testing.assert_array_equal(trnpy.linalg.sqrtm(a), scipy.linalg.sqrtm(a))
    assert len(looks) == 2


@pytest.mark.route
def test_eigenpairs_that_fail_are_scipys(monkeypatch):
    lapack = _matrix_functions._kind("d")
    failing = dataclasses.replace(lapack, syevd=lambda a, lower: (a[0], a, 3))
    monkeypatch.setattr(_matrix_functions, "_kind", lambda char: failing)
    a = positive(N, "f8", 10.0)
    with trnpy.trace() as log:
        np.testing.assert_array_equal(trnpy.linalg.sqrtm(a), scipy.linalg.sqrtm(a))
    assert not log[0].route and "syevd gave 3" in log[0].detail


def test_a_route_that_nobody_looked_for_looks_itself():
    a = positive(N, "f8", 1e13)
    route = route_positive.route("sqrtm", a, np.sqrt)
    with pytest.raises(_matrix_functions.Unsupported, match="condition number above 1e\\+10"):
        route.run()


@pytest.mark.parametrize("place", [(1, 0), (N - 1, N - 2), (N - 2, 3)])
def test_one_entry_that_is_not_hermitian_is_seen_anywhere(place):
    a = positive(N, "f8", 10.0)
    a[place] += 1e-13
    with pytest.raises(_matrix_functions.Unsupported, match="not Hermitian"):
        _matrix_functions.certify(a)


@pytest.mark.parametrize(
    "norms, phrase", [((0.0, 1.8), "norm above"), ((1.5, 3.0), ""), ((2.0, 3.0), "norm that may be below")]
)
def test_a_stack_of_complex_matrices_has_the_norm_of_its_matrix(norms, phrase):
    a = np.array([[1.0, 0.9j], [-0.9j, 1.0]])  # of eigenvalues 0.1 and 1.9, whose squares sum to 1.81 times their sum
    for matrices in (a, a[np.newaxis]):
        if phrase:
            with pytest.raises(_matrix_functions.Unsupported, match=phrase):
                _matrix_functions.certify(matrices, norms)
        else:
            _matrix_functions.certify(matrices, norms)


def unevenly_rounded(a, share, seed=0):
    """``a`` with each entry moved at random, by up to ``share`` / 2 of what rounding may tell a_ij from conj(a_ji)."""
    rng = np.random.default_rng(seed)
    d = np.sqrt(np.einsum("...ii->...i", a).real)
    allowed = share / 2 * _matrix_functions._rounding(a) * d[..., np.newaxis] * d[..., np.newaxis, :]
    angle = np.exp(1j * rng.uniform(0, 2 * np.pi, a.shape)) if a.dtype.kind == "c" else rng.choice([-1, 1], a.shape)
    return (a + allowed * angle).astype(a.dtype)


@pytest.mark.route
@pytest.mark.parametrize("dtype", ["f4", "f8", "c8", "c16"])
def test_a_product_need_not_be_hermitian_to_the_last_bit(dtype):
    """X X^H as any BLAS may round it, and as this one does: function and accuracy are those of its Hermitian part."""
    rng, eps = np.random.default_rng(0), np.finfo(dtype).eps
    x = (rng.uniform(0, 1, (N, 2 * N)) + (1j * rng.uniform(0, 1, (N, 2 * N)) if dtype[0] == "c" else 0)).astype(dtype)
    x += N * np.eye(N, 2 * N, dtype=dtype)
    a = (x * np.linspace(1, 2, 2 * N, dtype=x.real.dtype)) @ x.conj().T
    for rounded in (a, unevenly_rounded((a + a.conj().T) / 2, 0.9)):
        root = routed("sqrtm", rounded)
        theirs = scipy.linalg.sqrtm(rounded)
        assert norm(root @ root - rounded) <= max(3 * norm(theirs @ theirs - rounded), N * eps * norm(a))


def attempt(function, a):
    """A result, or the words of the error: SciPy before 1.16 takes no stacks."""
    try:
        return function(a)
    except ValueError as why:
        return str(why)


@pytest.mark.parametrize("dtype", ["f8", "c16"])
@pytest.mark.parametrize("batch", [(), (3,)])
def test_what_differs_by_more_than_rounding_is_not_hermitian(dtype, batch):
    a = np.stack([positive(N, dtype, 10.0, seed) for seed in range(max(batch, default=1))]).reshape(*batch, N, N)
    _matrix_functions.certify(unevenly_rounded(a, 0.9))
    with pytest.raises(_matrix_functions.Unsupported, match="not Hermitian"):
        _matrix_functions.certify(unevenly_rounded(a, 5.0))
    corner = a.copy()
    corner[..., 0, -1] += 5 * _matrix_functions._rounding(a) * np.abs(a).max()
    with trnpy.trace() as log:
        ours, theirs = (attempt(namespace.sqrtm, corner) for namespace in (trnpy.linalg, scipy.linalg))
    np.testing.assert_equal(ours, theirs)
    assert not any(decision.route for decision in log)
    corner[..., 0, -1] = 1.5e308 * (1 + (1j if dtype == "c16" else 0))  # no overflow of the look's
    assert not route_positive.positive("sqrtm")((corner,), {})
    upper = a.copy()
    upper[..., 3, 200] = np.nan
    with pytest.raises(_matrix_functions.Unsupported):
        _matrix_functions.certify(upper)


# --- What is remembered where there is no device ----------------------------------------------------------------------

REST = Policy(device="none")
CALLS = {"sqrtm": (), "logm": (), "fractional_matrix_power": (0.3,)}


@pytest.fixture
def decided(monkeypatch):
    """The problems decided about, in a process at rest that asked for nothing."""
    found, decide = [], _quick.decide
    monkeypatch.setattr(_quick, "decide", lambda *call, **work: found.append(call[1]) or decide(*call, **work))
    monkeypatch.setattr(Attention, "asked", False)
    monkeypatch.setattr(ProcessPolicy, "policy", dataclasses.replace(REST))  # another object: nothing is known of it
    return found


@pytest.mark.route
@pytest.mark.parametrize("name", CALLS)
@pytest.mark.parametrize("dtype", ["f8", "c16"])
def test_calls_of_a_kind_are_decided_once_and_have_the_bits_of_the_first(name, dtype, decided):
    n = 133 + sorted(CALLS).index(name) + 10 * (dtype == "f8")  # of no other test
    a = positive(n, dtype, 10.0)
    results = [getattr(trnpy.linalg, name)(a / k, *CALLS[name]) for k in (1, 1, 2)]
    assert len(decided) == 1
    np.testing.assert_array_equal(results[0], results[1])
    theirs = getattr(scipy.linalg, name)(a / 2, *CALLS[name])
    assert norm(results[2] - theirs) <= 100 * n * np.finfo(float).eps * norm(theirs)
    assert not np.array_equal(results[2], theirs)


def test_what_the_look_refuses_and_other_options_are_scipys(decided):
    a = positive(131, "f8", 10.0)
    trnpy.linalg.sqrtm(a), trnpy.linalg.logm(a)
    for other in (positive(131, "f8", 1e13), a + np.eye(131, k=1), -a):
        np.testing.assert_array_equal(trnpy.linalg.sqrtm(other), scipy.linalg.sqrtm(other))
    for power in (2, -1, 2.0, np.float64(0.5)):
        ours, theirs = (m.linalg.fractional_matrix_power(a, power) for m in (trnpy, scipy))
        np.testing.assert_allclose(ours, theirs, rtol=1e-9, atol=1e-12)
    for call in (lambda m: m.linalg.sqrtm(A=a), lambda m: m.linalg.logm(A=a)):
        np.testing.assert_allclose(call(trnpy), call(scipy), rtol=0, atol=1e-12)
    with pytest.raises(TypeError, match="unexpected keyword"):
        trnpy.linalg.sqrtm(a, wrong=1)


@pytest.mark.route
def test_eigenpairs_that_fail_in_a_known_call_are_scipys_at_once(decided, monkeypatch):
    a = positive(132, "f8", 10.0)
    for _ in range(2):
        trnpy.linalg.sqrtm(a)
    attempts = []
    failing = dataclasses.replace(
        _matrix_functions._kind("d"), syevd=lambda a, lower: attempts.append(1) or (a[0], a, 3)
    )
    monkeypatch.setattr(_matrix_functions, "_kind", lambda char: failing)
    np.testing.assert_array_equal(trnpy.linalg.sqrtm(a), scipy.linalg.sqrtm(a))
    assert len(attempts) == 1


def test_powers_that_overflow_in_a_known_call_are_scipys(decided):
    a = 1e10 * positive(3, "f8", 2.0)
    with np.errstate(all="ignore"):
        first, ours, theirs = (m.linalg.fractional_matrix_power(a, 40.5) for m in (trnpy, trnpy, scipy))
    np.testing.assert_array_equal(first, theirs)
    np.testing.assert_array_equal(ours, theirs)


@pytest.mark.route
def test_other_rates_and_other_policies_are_asked_anew(decided, monkeypatch):
    a = positive(150, "f8", 10.0)
    trnpy.linalg.logm(a), trnpy.linalg.logm(a)
    assert len(decided) == 1
    swift = HostRates(dict(DEFAULT_CURVES, logm=((1, 1e18), (16, 1e18))), DEFAULT_COPY, True, "a swift logarithm")
    with monkeypatch.context() as m:
        m.setattr(_quick, "current_rates", lambda: swift)
        np.testing.assert_array_equal(trnpy.linalg.logm(a), scipy.linalg.logm(a))
    monkeypatch.setattr(ProcessPolicy, "policy", Policy(device="none", fallback="raise"))
    for _ in range(2):
        with pytest.raises(FallbackError, match="no_device"):
            trnpy.linalg.logm(a)


@pytest.mark.parametrize("char", "dfDF")
def test_a_small_matrix_is_refused_exactly_where_its_least_eigenvalue_is_too_small(char):
    """By the last pivot or by the factorization of what is shifted: conditions on both sides of the limit, seed 1."""
    rng, limit = np.random.default_rng(1), _matrix_functions._kind(char).condition
    for n in (2, 3, 5, 16, 31, 32, 33):
        for least in (*(10.0 ** rng.uniform(-1.5, -0.05, 10) / limit), *(10.0 ** rng.uniform(0.05, 1.5, 10) / limit)):
            z = rng.standard_normal((n, n)) + (1j * rng.standard_normal((n, n)) if char in "DF" else 0)
            w = np.append(rng.uniform(0.5, 1, n - 1), least)
            w[:-1] *= (1 - least) / w[:-1].sum()  # of trace one
            q = np.linalg.qr(z).Q
            a = ((q * w) @ q.conj().T).astype(char)
            a = (a + a.conj().T) / 2
            assert _matrix_functions._bounded(a) == (least > 1 / limit)
            if n > 2:
                a[1, 0] = a[0, 1] = np.nan
                assert not _matrix_functions._bounded(a)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("char", "dfDF")
def test_infs_and_nans_are_seen_whatever_becomes_of_them_in_a_factorization(char, value):
    """Of which the last pivot may tell nothing."""
    rng = np.random.default_rng(0)
    for n in (3, 5, 8, 33, 130):
        x = rng.standard_normal((n, 2 * n)) + (1j * rng.standard_normal((n, 2 * n)) if char in "DF" else 0)
        good = (x @ x.conj().T / n + np.eye(n)).astype(char)
        for i, j in ((0, 1), (0, n // 2), (n // 3, n - 2)):
            a = good.copy()
            a[i, j] = a[j, i] = value
            assert not _matrix_functions._bounded(a)
            assert not _matrix_functions._bounded(np.stack([good, a, good]))
            assert not _matrix_functions._definite(a.copy(), np.float64(1.0))


@pytest.mark.parametrize("dtype", ["f8", "c16"])
def test_rows_mirror_columns_only_to_rounding_and_from_either_side(dtype):
    a = np.eye(5, dtype=dtype) + 0.5
    assert _matrix_functions._mirrors(a, slice(0, 1)) and _matrix_functions._mirrors(a, slice(0, 5))
    for off in (1e-3, -1e-3):
        a[0, 3] = 0.5 + off
        assert not _matrix_functions._mirrors(a, slice(0, 1)) and not _matrix_functions._mirrors(a, slice(0, 5))
        assert _matrix_functions._mirrors(a, slice(1, 5))
    a[0, 3] = 0.5 * (1 + np.finfo(float).eps)
    assert _matrix_functions._mirrors(a, slice(0, 1))
    a[0, 3], a[3, 0] = 1e308, -1e308
    with np.errstate(all="raise"):  # their difference overflows
        assert not _matrix_functions._mirrors(a, slice(0, 1))


@pytest.mark.parametrize("dtype", ["f8", "c16"])
@pytest.mark.parametrize("bits", [12, 26])
def test_the_first_of_two_parts_has_the_bits_that_are_asked_for(bits, dtype):
    x = np.random.default_rng(0).standard_normal((40, 6)).view("c16" if dtype == "c16" else "f8")
    high, low = _matrix_functions._split(x, 0, bits)
    np.testing.assert_array_equal(high + low, x)
    parts = [(high.real, low.real, np.maximum(np.abs(x.real), np.abs(x.imag))), (high.imag, low.imag, np.abs(x))]
    unit = np.ldexp(1.0, np.frexp(parts[0][2].max(axis=0))[1] - bits)
    for first, second, _ in parts[: 1 + (dtype == "c16")]:
        assert (first % unit == 0).all() and (np.abs(second) <= unit / 2).all()
