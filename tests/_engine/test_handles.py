"""Handles on every engine: the same algebra on the host, under the what-if and on simulated kernels."""

import numpy as np
import pytest
from doubles import RecordingEngine

import trnpy
from nkisim.hardware import TRN2
from trnpy._engine import lapack
from trnpy._engine.engines import DeviceEngine, HostEngine, Refused
from trnpy._nki.simulated import SimulatorRuntime

ENGINES = {
    "host": HostEngine,
    "null": lambda: HostEngine(TRN2),
    "simulator": lambda: DeviceEngine(SimulatorRuntime(TRN2)),
}
U = {"f4": 2.0**-24, "F": 2.0**-24, "d": 2.0**-53, "D": 2.0**-53, "f2": 2.0**-11, "i8": 0.0}
DTYPES = [t for t in U if t != "f2"]


@pytest.fixture(params=ENGINES)
def device(request):
    with trnpy.policy(device_memory=1.0):
        yield ENGINES[request.param]()


@pytest.fixture
def simulator():
    with trnpy.policy(device_memory=1.0):
        yield ENGINES["simulator"]()


def matrix(shape, dtype="f4", seed=0):
    rng = np.random.default_rng([seed, *shape])
    a = rng.standard_normal(shape)
    if np.dtype(dtype).kind == "c":
        a = a + 1j * rng.standard_normal(shape)
    return (100 * a).astype(dtype) if dtype == "i8" else a.astype(dtype)


def triangle(n, dtype="f4", seed=0):
    """Both triangles full, so that reading the wrong one shows; well conditioned either way."""
    a = matrix((n, n), dtype, seed) / (4 * np.sqrt(n))
    np.fill_diagonal(a, 1 + np.arange(n) % 3)
    return a.astype(dtype)


def wide(x):
    return x.astype({"c": "G", "f": "g"}.get(x.dtype.kind, x.dtype))


def assert_close(ours, exact, magnitude, dtype, terms):
    """Componentwise, within ``terms`` roundings of the magnitude of what was summed."""
    assert ours.dtype == dtype and ours.shape == exact.shape
    assert (np.abs(wide(ours) - exact) <= terms * U[dtype] * magnitude).all()


def product(a, b):
    return wide(a) @ wide(b), np.abs(wide(a)) @ np.abs(wide(b))


@pytest.mark.parametrize("dtype", [*DTYPES, "f2"])
@pytest.mark.parametrize("order", "CF")
def test_what_is_put_comes_back(device, dtype, order):
    a = np.array(matrix((70, 33), dtype), order=order)
    h = device.put(a)
    assert h.shape == a.shape and h.dtype == a.dtype and h.T.shape == h.H.shape == (33, 70)
    for view, expected in ((h, a), (h.T, a.T), (h.H, a.conj().T), (h.H.T.H, a.T), (h.T.T, a), (h.H.T, a.conj())):
        np.testing.assert_array_equal(device.get(view), expected)
    expected = a.copy()
    a[:] = 0  # neither the handle nor what it returns is the caller's array
    found = device.get(h)
    np.testing.assert_array_equal(found, expected)
    found[:] = 0
    np.testing.assert_array_equal(device.get(h), expected)


@pytest.mark.parametrize("dtype", DTYPES)
def test_products_of_handles_views_and_blocks(device, dtype):
    a, b = matrix((90, 60), dtype), matrix((60, 110), dtype, 1)
    ha, hb = device.put(a), device.put(np.asfortranarray(b))
    for left, right, x, y in (
        (ha, hb, a, b),
        (hb.T, ha.T, b.T, a.T),
        (hb.H, ha.H, b.conj().T, a.conj().T),
        (ha.H, ha, a.conj().T, a),
        (ha, b, a, b),
        (a, hb, a, b),
        (device.block(ha, slice(7, 80), slice(None)), device.block(hb, slice(None), slice(100, 110)),
         a[7:80], b[:, 100:]),
        (device.block(hb.H, slice(5, 30), slice(20, 60)), device.block(ha.H, slice(20, 60), slice(3, 9)),
         b.conj().T[5:30, 20:60], a.conj().T[20:60, 3:9]),
    ):  # fmt: skip
        c = device.matmul(left, right)
        assert not isinstance(c, np.ndarray) and c.dtype == a.dtype and c.shape == (x.shape[0], y.shape[1])
        assert_close(device.get(c), *product(x, y), dtype, 70)
    chained = device.matmul(device.matmul(ha, hb), hb.H)
    first = device.get(device.matmul(ha, hb))
    assert_close(device.get(chained), *product(first, b.conj().T), dtype, 120)


@pytest.mark.parametrize("dtype", DTYPES)
def test_gram_matrices_of_handles(device, dtype):
    a = matrix((70, 40), dtype)
    h = device.put(a)
    for view, x in ((h, a), (h.T, a.T), (h.H, a.conj().T)):
        g = device.get(device.gram(view))
        assert_close(g, *product(x, x.conj().T), dtype, 80)
        np.testing.assert_allclose(g, g.conj().T, rtol=1e-5)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("kept", [False, True])
def test_epilogues_of_products(device, dtype, kept):
    a, b, c = matrix((50, 40), dtype), matrix((40, 30), dtype, 1), matrix((30, 50), dtype, 2).T
    alpha, beta = (-3, 2) if dtype == "i8" else (-0.5, 1.5)
    if np.dtype(dtype).kind == "c":
        alpha, beta = alpha + 0.25j, beta - 0.5j
    operands = [device.put(x) for x in (a, b, c)] if kept else [a, b, c]
    ours = device.matmul(operands[0], operands[1], alpha=alpha, beta=beta, c=operands[2])
    whole, most = product(a, b)
    ours = device.get(ours) if kept else ours
    assert_close(ours, alpha * whole + beta * wide(c), abs(alpha) * most + abs(beta) * np.abs(c), dtype, 60)
    scaled = device.matmul(operands[0], operands[1], alpha=alpha)
    assert_close(device.get(scaled) if kept else scaled, alpha * whole, abs(alpha) * most, dtype, 60)


@pytest.mark.parametrize("dtype", DTYPES)
def test_sums_of_handles(device, dtype):
    x, y = matrix((50, 140), dtype), matrix((140, 50), dtype, 1)
    hx, hy = device.put(x), device.put(y).H
    alpha, beta = (2 - 1j, 0.5 + 2j) if np.dtype(dtype).kind == "c" else (2, -3)
    other = y.conj().T
    most = abs(alpha) * np.abs(x) + abs(beta) * np.abs(other)
    for total in (
        device.axpby(alpha, hx, beta, hy),
        device.axpby(alpha, hx, beta, other),
        device.axpby(alpha, x, beta, hy),
    ):
        assert_close(device.get(total), alpha * wide(x) + beta * wide(other), most, dtype, 8)
    assert_close(device.get(device.axpby(alpha, hx)), alpha * wide(x), most, dtype, 8)
    assert_close(device.axpby(alpha, x, beta, other), alpha * wide(x) + beta * wide(other), most, dtype, 8)
    np.testing.assert_array_equal(device.get(device.axpby(1, hx, -1, hx)), np.zeros_like(x))


@pytest.mark.parametrize("dtype", ["f4", "d", "F", "D"])
@pytest.mark.parametrize("trans", "NTC")
@pytest.mark.parametrize("lower", [False, True])
@pytest.mark.parametrize("side", ["left", "right"])
def test_triangular_systems(device, side, lower, trans, dtype):
    n, unit = 140, side == "left"  # more than one diagonal block
    a, b = triangle(n, dtype), matrix((n, 9) if side == "left" else (9, n), dtype, 1)
    t = np.tril(a) if lower else np.triu(a)
    if unit:
        np.fill_diagonal(t, 1)
    t = {"N": t, "T": t.T, "C": t.conj().T}[trans]
    options = {"side": side, "lower": lower, "trans": trans, "unit": unit}
    systems = [(a, b)]
    if trans == "N":  # views are the same whatever op is
        ha, hb = device.put(a), device.put(b)
        turned = device.put(b.T.copy()).T, device.put(a.conj().T.copy()).H
        systems += [(ha, hb), (turned[1], turned[0])]
    for left, right in systems:
        found = device.trsm(left, right, **options)
        found = found if isinstance(found, np.ndarray) else device.get(found)
        residual, most = product(t, found) if side == "left" else product(found, t)
        assert found.dtype == b.dtype
        assert (np.abs(residual - wide(b)) <= n * U[dtype] * most).all()


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("lower", [False, True])
@pytest.mark.parametrize("turned", [(False, True), (True, False), (True, True)])
def test_triangular_systems_of_views(simulator, side, lower, turned):
    """A view is its matrix on the device with the options of a kernel exchanged."""
    n = 20
    a, b = triangle(n), matrix((n, 9) if side == "left" else (9, n), seed=1)
    left, right = (
        simulator.put(x.T.copy()).T if view else simulator.put(x) for x, view in zip((a, b), turned, strict=True)
    )
    t = np.tril(a) if lower else np.triu(a)
    for trans, op in {"N": t, "T": t.T}.items():
        found = simulator.get(simulator.trsm(left, right, side=side, lower=lower, trans=trans, unit=False))
        residual, most = product(op, found) if side == "left" else product(found, op)
        assert (np.abs(residual - b) <= n * U["f4"] * most).all()


def test_triangular_systems_in_float64_are_as_accurate_as_lapack(simulator):
    """Of docs/systems.md#triangular-systems: inverted diagonal blocks and certified products, 1.9 u; LAPACK 2.5 u."""
    a, b = triangle(300, "d"), matrix((300, 40), "d", 1)
    exact = np.linalg.solve(np.tril(a), b).astype("g")
    for _ in range(3):  # refined in long double
        exact += np.linalg.solve(np.tril(a), (b - np.tril(a).astype("g") @ exact).astype("d"))
    most = np.abs(np.linalg.inv(np.tril(a))) @ (np.abs(np.tril(a)) @ np.abs(exact))
    errors = [np.abs(x - exact) / most for x in (simulator.trsm(a, b), lapack.solve_triangular(a, b, lower=True))]
    ours, theirs = (float(e.max()) * 2.0**53 for e in errors)
    assert ours <= 4 and ours <= 2 * max(theirs, 0.5)
    assert simulator.counters.launches["float64_matmul"] > 0 == simulator.counters.launches["trsm"]


def test_float32_systems_are_solved_by_the_kernel(simulator):
    a, b = triangle(150), matrix((150, 20), seed=1)
    simulator.trsm(a, b)
    ha, hb = simulator.put(a), simulator.put(b)
    before = simulator.counters.bytes_in, simulator.counters.bytes_out
    x = simulator.trsm(ha, hb)
    assert (simulator.counters.bytes_in, simulator.counters.bytes_out) == before
    launched = simulator.counters.launches
    assert launched["trsm"] == 3 and launched["matmul"] == 1  # systems of arrays are refined once
    np.testing.assert_allclose(np.tril(a) @ simulator.get(x), b, rtol=0, atol=1e-4)


def hilbert(n):
    i = np.arange(n)
    return 1 / (i[:, None] + i + 1) + 1e-12 * np.eye(n)


TRIANGLES = {
    "Cholesky factor of Hilbert's matrix": lambda n, g: np.linalg.cholesky(hilbert(n)),
    "L of Hilbert's matrix": lambda n, g: lapack.linalg.lu(hilbert(n))[1],
    "L of a random matrix": lambda n, g: lapack.linalg.lu(g)[1],
    "R of graded columns": lambda n, g: np.linalg.qr(g * np.geomspace(1, 1e-6, n))[1].T,
    "R of graded rows": lambda n, g: np.linalg.qr(g * np.geomspace(1, 1e-6, n)[:, None])[1].T,
    "Kahan": lambda n, g: (np.diag(0.9 ** np.arange(n)) @ (np.eye(n) - 0.43 * np.triu(np.ones((n, n)), 1))).T,
}


@pytest.mark.parametrize("family", TRIANGLES)
def test_the_backward_error_of_float32_systems_is_that_of_substitution(simulator, family):
    """Of sizes up to 300 LAPACK errs by up to 3.1 u, depending on OpenBLAS's kernel, and this by up to 3.9 u.

    The kernel alone errs by up to 420 u, by what inverting a tile loses.
    """
    n = 150
    a = np.ascontiguousarray(TRIANGLES[family](n, np.random.default_rng(0).standard_normal((n, n)))).astype("f4")
    b = matrix((n, 5), seed=1)

    residual, most = product(a, simulator.trsm(a, b))
    assert (np.abs(residual - wide(b)) / (most + np.abs(b))).max() <= 8 * U["f4"]


def test_systems_larger_than_the_memory_go_in_blocks(simulator):
    a, b = triangle(300), matrix((300, 100), seed=1)
    with trnpy.policy(device_memory=300e3):
        x = simulator.trsm(a, b)
    np.testing.assert_allclose(np.tril(a) @ x, b, rtol=0, atol=1e-4)
    assert simulator.counters.launches["trsm"] > 1 and simulator.counters.launches["matmul"] > 0
    with trnpy.policy(device_memory=1000.0), pytest.raises(Refused, match="device_memory"):
        simulator.trsm(a, b)


@pytest.mark.parametrize("dtype", ["f4", "d", "D"])
def test_singular_systems(device, dtype):
    a = triangle(140, dtype)
    a[3, 3] = 0
    with pytest.raises(lapack.LinAlgError, match="singular"):
        device.trsm(a, matrix((140, 3), dtype))
    assert np.isfinite(device.trsm(a, matrix((140, 3), dtype), unit=True)).all()


@pytest.mark.parametrize("dtype", ["f4", "f8"])
def test_handles_that_do_not_fit_are_refused(simulator, dtype):
    a = simulator.put(matrix((20, 3), dtype))
    with pytest.raises(ValueError, match="expected columns of the first to be rows of the second"):
        simulator.matmul(a, a)


def test_calls_of_the_wrong_form(device):
    a, b = triangle(20), matrix((20, 3))
    for options in ({"side": "up"}, {"trans": "H"}, {"side": "right"}):
        with pytest.raises(ValueError, match="expected"):
            device.trsm(a, b, **options)
    with pytest.raises(ValueError, match="expected"):
        device.trsm(b, b)
    with pytest.raises(TypeError, match="expected floating-point"):
        device.trsm(a.astype("i8"), b.astype("i8"))


def test_doubles_have_handles_too():
    e = RecordingEngine()
    h = e.put(matrix((4, 5)))
    np.testing.assert_allclose(e.get(e.matmul(h, h.T)), e.get(e.gram(h)), rtol=1e-13)
    assert e.shapes == [(4, 5, 4)] * 2


BOUND = 128 * 4  # bytes of the certificate's answer


@pytest.mark.parametrize(
    "dtype, parts, bound", [("d", 1, BOUND), ("D", 4, BOUND), ("i8", 1, 0), ("i4", 1, 0), ("?", 1, 0)]
)
def test_products_of_kept_digits_do_not_cross_the_link(simulator, dtype, parts, bound):
    a, b = (100 * (1 + np.abs(matrix(s, "d"))) for s in ((60, 40), (40, 50)))
    a, b = ((x * (1 + 1j) if dtype == "D" else x).astype(dtype) for x in (a, b))
    ha, hb = simulator.put(a), simulator.put(b)
    simulator.matmul(ha, hb)
    counters = simulator.counters
    before = counters.bytes_in, counters.bytes_out, counters.launches["digits_split"]
    for left, right in ((ha, hb), (hb.T, ha.T), (ha.H.H, hb)):
        c = simulator.matmul(left, right)
    assert counters.bytes_in == before[0] and counters.launches["digits_split"] == before[2]
    assert counters.bytes_out - before[1] == 3 * parts * bound
    moved = counters.bytes_out
    np.testing.assert_allclose(simulator.get(c), a @ b, rtol=1e-14)
    words = {"d": 3, "D": 3, "i8": 2, "i4": 1, "?": 1}[dtype]
    assert counters.bytes_out - moved == parts * words * 4 * 64 * 64  # each word of 64 x 64 once
    simulator.get(c)
    assert counters.bytes_out - moved == parts * words * 4 * 64 * 64  # a result is fetched once


@pytest.mark.parametrize("dtype", ["d", "D"])
def test_a_gram_matrix_of_kept_digits_does_not_cross_the_link(simulator, dtype):
    h = simulator.put(matrix((60, 40), dtype))
    simulator.gram(h)
    before = simulator.counters.bytes_in
    simulator.gram(h)
    assert simulator.counters.bytes_in == before


@pytest.mark.parametrize("dtype, size", [("d", 100), ("D", 100), ("i8", 100)])
def test_products_of_resident_arrays_send_nothing(simulator, dtype, size):
    """The digits that the first product made serve those after it, transposed ones too."""
    a, b = (100 * (1 + np.abs(matrix((size, size), "d", i))) for i in range(2))
    a, b = ((x * (1 + 1j) if dtype == "D" else x).astype(dtype) for x in (a, b))
    with trnpy.resident(a, b):
        simulator.matmul(a, b)
        before = simulator.counters.bytes_in, simulator.counters.launches["digits_split"]
        c = simulator.matmul(a, b)
        np.testing.assert_allclose(simulator.matmul(b.T, a.T), c.T, rtol=1e-15)
        assert (simulator.counters.bytes_in, simulator.counters.launches["digits_split"]) == before
        a *= 2
        np.testing.assert_array_equal(simulator.matmul(a, b), 2 * c)
        assert simulator.counters.bytes_in > before[0]


def test_digits_find_room_where_the_cache_holds_it(simulator):
    kept = matrix((256, 256))
    with trnpy.resident(kept):
        simulator.matmul(kept, kept)
    assert simulator.cache.nbytes > 0
    simulator.runtime.memory.limit = simulator.runtime.memory.used + 20_000
    a = matrix((32, 32), "d")
    np.testing.assert_allclose(simulator.matmul(a, a), a @ a, rtol=1e-12, atol=1e-13)
    assert simulator.cache.nbytes == 0
