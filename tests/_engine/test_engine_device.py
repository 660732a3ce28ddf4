"""The device engine on the simulator: right products at every dtype, few compiled shapes, blocks within the memory."""

import itertools

import numpy as np
import pytest
from doubles import RoundingEngine

import trnpy
from nkisim.hardware import TRN2
from trnpy._call.dispatch import Reason
from trnpy._engine import tuning
from trnpy._engine.engines import HOST, DeviceEngine, Refused, engine
from trnpy._engine.tuning import BLOCK, COARSE, FINE, VARIANTS, Buckets, block, pieces, rung
from trnpy._nki.runtime import DeviceError, DeviceMemoryError
from trnpy._nki.simulated import SimulatorRuntime
from trnpy._report.text import device_sentences

U = 2.0**-24


@pytest.fixture
def device():
    e = DeviceEngine(SimulatorRuntime(TRN2))
    with engine(e), trnpy.policy(force=True, device_memory=1.0):
        yield e


def matrix(shape, dtype="f4", seed=0):
    rng = np.random.default_rng([seed, *shape])
    a = rng.standard_normal(shape)
    if np.dtype(dtype).kind == "c":
        a = a + 1j * rng.standard_normal(shape)
    return a.astype(dtype)


def close(c, a, b, unit=U):
    """Within the bound of any summation order, componentwise."""
    wide = "D" if np.iscomplexobj(c) else "d"
    error = np.abs(c - a.astype(wide) @ b.astype(wide))
    allowed = (a.shape[-1] + 4) * unit * 4 * (np.abs(a).astype("d") @ np.abs(b).astype("d"))
    assert c.dtype == np.result_type(a, b)
    assert (error <= allowed + 1e-30).all()


SHAPES = [(1, 1, 1), (1, 300, 1), (127, 128, 129), (129, 33, 513), (260, 140, 5)]


@pytest.mark.parametrize("dtype", ["f4", "F"])
@pytest.mark.parametrize("m, k, n", SHAPES)
def test_products_of_every_shape_and_order(device, m, k, n, dtype):
    a, b = matrix((m, k), dtype), matrix((k, n), dtype, 1)
    for x, y in itertools.product((a, np.asfortranarray(a)), (b, np.asfortranarray(b))):
        close(device.matmul(x, y), a, b)
    close(device.matmul(np.repeat(a, 2, axis=0)[::2], b), a, b)  # neither C- nor F-contiguous
    assert device.counters.launches["matmul"] > 0


@pytest.mark.parametrize("stacks", [((3,), (3,)), ((2, 3), ()), ((), (2,)), ((2, 1), (3,))])
def test_stacks_broadcast(device, stacks):
    a, b = matrix((*stacks[0], 5, 7)), matrix((*stacks[1], 7, 4))
    c = device.matmul(a, b)
    assert c.shape == (a @ b).shape
    np.testing.assert_allclose(c, a @ b, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("dtype", ["f4", "F"])
def test_the_gram_of_a_matrix_moves_it_once(device, dtype):
    a = matrix((150, 260), dtype)
    before = device.counters.bytes_in
    close(device.gram(a), a, a.conj().T)
    sent = device.counters.bytes_in - before
    sums = 0 if dtype == "f4" else 2 * 4 * 192**2  # the first products' zeros
    assert sent <= 1.25**2 * a.nbytes + sums + 100 and device.counters.launches["syrk"] == a.itemsize // 4
    close(device.gram(a[np.newaxis])[0], a, a.conj().T)


@pytest.mark.parametrize("dtype", ["f4", "f8", "F", "D"])
def test_a_gram_is_hermitian_to_the_last_bit_whatever_rounds_its_product(device, dtype):
    a = matrix((2, 70, 180), dtype)
    for e in (HOST, RoundingEngine(), device):
        for x in (a[0], a[0][::-2, ::2], a):
            g = e.gram(x)
            np.testing.assert_array_equal(g, g.conj().swapaxes(-1, -2))
            assert g.dtype == dtype


@pytest.mark.parametrize("dtype", ["f4", "F"])
def test_handles_stay_on_the_device(device, dtype):
    a, b = matrix((100, 60), dtype), matrix((60, 130), dtype, 1)
    ha, hb = device.put(a), device.put(np.asfortranarray(b))
    moved = device.counters.bytes_out
    hc = device.matmul(ha, hb)
    hd = device.matmul(hc.H, ha)  # (130, 60)
    assert device.counters.bytes_out == moved
    np.testing.assert_array_equal(device.get(ha.H), a.conj().T)
    close(device.get(hc), a, b)
    close(device.get(hd), device.get(hc).conj().T, a)
    close(device.get(device.matmul(b.T.copy(), hb.T.H)), b.T, b.conj()) if dtype == "f4" else None
    close(device.get(device.gram(ha)), a, a.conj().T)
    assert (hc.shape, hc.dtype, hc.nbytes > 0) == ((100, 130), a.dtype, True)


@pytest.mark.parametrize("turned", [False, True])
def test_blocks_of_handles_are_copied_on_the_device(device, turned):
    a = matrix((300, 200))
    h = device.put(np.asfortranarray(a) if turned else a)
    moved = device.counters.bytes_in, device.counters.bytes_out
    part = device.block(h, slice(7, 150), slice(100, 200))
    assert (device.counters.bytes_in, device.counters.bytes_out) == moved
    np.testing.assert_array_equal(device.get(part), a[7:150, 100:200])
    np.testing.assert_array_equal(device.get(device.block(h.T, slice(50, 60), slice(None))), a.T[50:60])
    close(device.get(device.matmul(part.T, part)), a[7:150, 100:200].T, a[7:150, 100:200])
    with pytest.raises(Refused, match="empty"):
        device.block(h, slice(3, 3), slice(None))


def test_handles_that_do_not_fit_each_other(device):
    h = device.put(matrix((20, 30)))
    for other in (device.put(matrix((20, 30))), device.put(matrix((30, 20), "F")), matrix((29, 4))):
        with pytest.raises(ValueError, match=r"rows|one dtype"):
            device.matmul(h, other)


@pytest.mark.parametrize("dtype, budget", [("f4", 100e3), ("F", 300e3)])
def test_operands_larger_than_the_memory_go_in_blocks(device, dtype, budget):
    """Over m, n and k: the limit is the device's own here, so that a block too many is an error."""
    a, b = matrix((150, 130), dtype), matrix((130, 170), dtype, 1)
    device.runtime.memory.limit = budget
    with trnpy.policy(device_memory=budget):
        close(device.matmul(a, b), a, b)
    assert device.counters.launches["matmul"] > 4


def test_a_stack_is_one_launch(device):
    a, b = matrix((40, 20, 30)), matrix((40, 30, 10))
    np.testing.assert_allclose(device.matmul(a, b), a @ b, rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(device.matmul(a[0], b), a[0] @ b, rtol=1e-4, atol=1e-4)
    assert device.counters.launches == {"batched_matmul": 2}
    with trnpy.policy(precision="fp32"):
        assert device.matmul(a.astype("d"), b.astype("d")).dtype == np.float64


def test_a_stack_is_blocked_by_its_matrices(device):
    a = matrix((6, 64, 64))
    device.runtime.memory.limit = 200e3
    with trnpy.policy(device_memory=200e3):
        np.testing.assert_allclose(device.matmul(a, a), a @ a, rtol=1e-4, atol=1e-4)
        close(device.matmul(a, a[0]).reshape(-1, 64), a.reshape(-1, 64), a[0])
    assert device.counters.launches["batched_matmul"] > 1
    with trnpy.policy(device_memory=1000.0), pytest.raises(Refused, match="device_memory"):
        device.matmul(a, a)


def test_a_stack_of_large_matrices_is_a_product_each(device):
    large = matrix((2, 530, 20))
    c = device.matmul(large, large.swapaxes(1, 2))
    np.testing.assert_allclose(c, large @ large.swapaxes(1, 2), rtol=1e-3, atol=1e-4)
    assert device.counters.launches == {"matmul": 2}


def test_a_budget_below_the_smallest_block_is_refused_with_a_phrase(device):
    a = matrix((200, 200))
    with trnpy.policy(device_memory=1000.0), trnpy.trace() as log:
        np.testing.assert_array_equal(trnpy.matmul(a, a), a @ a)
        assert log[0].reason is Reason.DTYPE and "device_memory" in log[0].detail


def families(n):
    """Products of float64 with what makes digits hard: scaled rows, cancellation, structure, wide ranges."""
    rng = np.random.default_rng(n)
    a, b = rng.standard_normal((n, n)), rng.standard_normal((n, n))
    q = np.linalg.qr(a)[0]
    wide = a * 10.0 ** rng.uniform(-5, 5, (n, n))
    return {
        "normal": (a, b),
        "orthogonal": (q.T, q),
        "scaled rows and columns": (a * 10.0 ** rng.uniform(-30, 30, (n, 1)), b * 10.0 ** rng.uniform(-30, 30, n)),
        "inner scales": (a * 10.0 ** np.linspace(-8, 8, n), b / 10.0 ** np.linspace(-8, 8, n)[:, None]),
        "cancelling": (np.hstack([a, a]), np.vstack([b, -b * (1 + 1e-12)])),
        "range within rows": (wide, b),
        "tiny": (a * 1e-300, b),
        "zero rows": (np.where(np.arange(n)[:, None] % 3, a, 0), b),
    }


@pytest.mark.parametrize("family", families(4))
def test_float64_products_are_as_good_as_the_hosts(device, family):
    a, b = families(100)[family]
    c, host = device.matmul(a, b), a @ b
    exact = a.astype("g") @ b.astype("g")
    bound = np.abs(a).astype("g") @ np.abs(b).astype("g")
    unit = 2.0**-53 * np.where(bound > 0, bound, 1) + 2.0**-1074
    error, theirs = (float((np.abs(x - exact) / unit).max()) for x in (c, host))
    assert c.dtype == np.float64 and error <= 4.0 and error <= 2 * max(theirs, 0.5)
    assert device.counters.launches["float64_matmul"] == 1


def test_a_permutation_is_exact_and_a_gram_matrix_symmetric(device):
    a = matrix((130, 90), "d")
    p = np.eye(130)[np.random.default_rng(0).permutation(130)]
    np.testing.assert_array_equal(device.matmul(p, a), p @ a)
    g = device.gram(a)
    np.testing.assert_array_equal(g, g.T)
    close(g, a, a.T, 2.0**-53)
    z = a + 1j * matrix((130, 90), "d", 1) * 1e-6
    close(device.matmul(z, z.T), z, z.T, 2.0**-53)
    g = device.gram(z)
    np.testing.assert_array_equal(g, g.conj().T)


@pytest.mark.parametrize("dtype", ["?", "i1", "u1", "i2", "u2", "i4", "u4", "i8", "u8"])
def test_integers_are_bit_equal(device, dtype):
    info = np.iinfo(dtype) if dtype != "?" else np.iinfo("u1")
    rng = np.random.default_rng(0)
    a, b = (
        rng.integers(info.min, info.max, s, endpoint=True, dtype=info.dtype).astype(dtype) for s in ((40, 70), (70, 30))
    )
    if dtype == "?":
        a[3], b[:, 5] = False, False
    c = device.matmul(a, b)
    np.testing.assert_array_equal(c, a @ b)
    assert c.dtype == a.dtype


@pytest.mark.parametrize("dtype", ["i1", "u2", "i4", "i8", "u8"])
def test_integer_calls_reach_the_device(device, dtype):
    info = np.iinfo(dtype)
    rng = np.random.default_rng(0)
    a, b = (rng.integers(info.min, info.max, (3, 40, 40), endpoint=True, dtype=dtype) for _ in range(2))
    calls = [lambda m: m.matmul(a, b), lambda m: m.dot(a[0], b[0]), lambda m: m.einsum("ijk,ikl->jl", a, b)]
    for call in calls:
        with trnpy.trace() as log:
            ours = call(trnpy)
        np.testing.assert_array_equal(ours, call(np))
        assert ours.dtype == a.dtype and log[0].on_device and dict(log[0].launches)["float64_matmul"] >= 1


def test_a_wrong_integer_is_found(device):
    a = np.arange(1600).reshape(40, 40)
    product = device.matmul
    device.matmul = lambda x, y: product(x, y) + (np.arange(1600).reshape(40, 40) == 77)
    with trnpy.trace() as log, pytest.warns(trnpy.NkiFallbackWarning, match="not exact"):
        np.testing.assert_array_equal(trnpy.matmul(a, a), a @ a)
    assert log[0].reason is Reason.ACCURACY


@pytest.mark.parametrize("values", ["nan", "inf", "range"])
def test_values_that_no_digits_certify_are_refused_for_accuracy(device, values):
    a, b = matrix((60, 60), "d"), matrix((60, 60), "d", 1)
    if values == "range":
        a[:, :4], a[:, 4:] = 10.0 ** np.array([0, -25, -50, -75]), 0  # four sizes in one row, each alone in a sum
        b[:4] = np.tri(4, 60)
    else:
        a[3, 4] = float(values)
    with pytest.raises(Refused) as caught:
        device.matmul(a, b)
    assert caught.value.accuracy
    if values == "range":
        with trnpy.trace() as log:
            np.testing.assert_array_equal(trnpy.matmul(a, b), a @ b)
        assert log[0].reason is Reason.ACCURACY and "digits" in log[0].detail


def test_digits_go_in_blocks_too(device):
    a, b, budget = matrix((70, 60), "d"), matrix((60, 90), "d", 1), 1e6
    device.runtime.memory.limit = budget
    with trnpy.policy(device_memory=budget):
        close(device.matmul(a, b), a, b, 2.0**-53)
        close(device.gram(a), a, a.T, 2.0**-53)
    assert device.counters.launches["float64_matmul"] > 2
    with trnpy.policy(device_memory=1000.0), pytest.raises(Refused, match="device_memory"):
        device.matmul(a, b)


def test_digits_of_a_resident_operand_are_sent_once(device):
    a, b = matrix((130, 140), "d"), matrix((140, 3), "d", 1)
    with trnpy.resident(a):
        first = trnpy.matmul(a, b)
        before, splits = device.counters.bytes_in, device.counters.launches["digits_split"]
        np.testing.assert_array_equal(trnpy.matmul(a, b), first)
        assert device.counters.bytes_in - before < a.nbytes / 4
        assert device.counters.launches["digits_split"] == splits + 1
        a[:] = -a
        close(trnpy.matmul(a, b), a, b, 2.0**-53)


@pytest.mark.parametrize("shapes", [((0, 3), (3, 2)), ((3, 0), (0, 2)), ((3, 2), (2, 0))])
def test_empty_operands_are_refused(device, shapes):
    with pytest.raises(Refused, match="empty"):
        device.matmul(*[np.ones(s, "f4") for s in shapes])
    with pytest.raises(Refused, match="non-empty"):
        device.put(np.ones((0, 3), "f4"))


def test_handles_need_a_product_on_the_device(device):
    with pytest.raises(Refused, match="no product of"):
        device.put(np.ones((3, 3), "g"))
    with trnpy.policy(device_memory=100.0), pytest.raises(Refused, match="exceeds"):
        device.put(np.ones((300, 300), "f4"))


def test_any_shapes_compile_a_bounded_number_of_variants(device):
    rng = np.random.default_rng(5)
    for _ in range(60):
        m, k, n = rng.integers(1, 60, 3)
        device.matmul(matrix((m, k)), matrix((k, n)))
    rungs = len([r for r in FINE if r <= 64])
    assert device.counters.launches["matmul"] == 60
    assert device.counters.compiles["matmul"] <= rungs**3


def test_a_repeated_shape_compiles_once(device):
    for n in (97, 100, 113, 128):
        device.matmul(matrix((n, n)), matrix((n, n)))
    assert device.counters.compiles["matmul"] == 1


def test_the_ladder():
    assert list(FINE) == sorted(set(FINE)) and FINE[-1] == COARSE[-1] == BLOCK
    for extent in range(64, BLOCK, 37):
        assert extent <= rung(extent) <= max(1.25 * extent, 128)


def test_buckets_turn_coarse_when_there_are_too_many():
    buckets, found = Buckets(), set()
    for m, k, n in itertools.product(range(16, 3000, 250), repeat=3):
        fit = buckets.fit("matmul", (m, k, n))
        assert all(f >= e for f, e in zip(fit, (m, k, n), strict=True))
        found.add(fit)
    assert len(found) <= VARIANTS + len(COARSE) ** 3
    assert buckets.fit("matmul", (16, 16, 16)) == (16, 16, 16)  # known ones stay


@pytest.mark.parametrize("dtype", ["f4", "f8", "i8", "c8", "c16"])
def test_a_product_that_is_cut_is_right(device, dtype, monkeypatch):
    monkeypatch.setattr(tuning, "OWN", 0)
    monkeypatch.setattr(tuning, "ALONG", (64, 128))
    monkeypatch.setattr(tuning, "ALONG_DIGITS", (64, 128))
    monkeypatch.setattr(tuning, "LAUNCH_SHARE", 0.0)
    a, b = (matrix(shape) for shape in ((150, 200), (200, 70)))
    if dtype == "i8":
        a, b = (1e18 * a).astype(dtype), (1e18 * b).astype(dtype)
    a, b = a.astype(dtype), b.astype(dtype)
    c = device.matmul(a, b)
    assert device.counters.launches["matmul" if dtype in ("f4", "c8") else "float64_matmul"] > 1
    if dtype == "i8":
        np.testing.assert_array_equal(c, a @ b)
    else:
        error = np.abs(c - a.astype("c16") @ b.astype("c16")) / (np.abs(a).astype("f8") @ np.abs(b).astype("f8"))
        assert error.max() <= 16 * np.finfo(dtype).eps


@pytest.mark.parametrize("extents", [(1, 1, 1), (5000, 3, 9), (9000, 20000, 70), (300, 300, 300)])
@pytest.mark.parametrize("budget", [5e3, 1e6, 1e12])
def test_blocks_fit_the_budget_and_cover_the_extents(extents, budget):
    sizes = block(extents, 4, budget)
    assert sizes is not None
    m, k, n = (rung(s) for s in sizes)
    assert 4 * (m * k + k * n) + 8 * m * n <= budget
    for extent, size in zip(extents, sizes, strict=True):
        cut = pieces(extent, size)
        assert cut[0].start == 0 and cut[-1].stop == extent
        assert all(a.stop == b.start for a, b in itertools.pairwise(cut))


def test_the_main_algorithms_run_through_kernels(device):
    a = matrix((300, 300))
    spd = a @ a.T + 300 * np.eye(300, dtype="f4")
    with trnpy.trace() as log, trnpy.profile() as ledger:
        trnpy.matmul(a, a)
        trnpy.einsum("ij,jk,kl->il", a, a, a)
        trnpy.linalg.cholesky(spd)
        trnpy.linalg.solve(spd, a)
    assert all(d.on_device and d.launches for d in log)
    launches, grams = (sum(dict(d.launches).get(kernel, 0) for d in log) for kernel in ("matmul", "syrk"))
    assert launches > 0 and grams > 0
    line = next(line for line in device_sentences(ledger) if "launches by kernel" in line)
    assert f"matmul {launches}" in line and f"syrk {grams}" in line
    assert sum(t["launches"].get("matmul", 0) for t in ledger.to_dict()["by_function"]) == launches


@pytest.mark.slow
def test_the_energy_of_a_molecule_through_kernels(device):
    """Every accelerated call of a Hartree-Fock job of water goes down the device path; 1e-9 Ha is the promise."""
    scf = pytest.importorskip("pyscf.scf", reason="PySCF is not installed")
    gto = pytest.importorskip("pyscf.gto", reason="PySCF is not installed")
    molecule = gto.M(atom="O 0 0 0; H 0 0.757 0.587; H 0 -0.757 0.587", basis="sto-3g", verbose=0)
    with trnpy.policy(force=False):
        expected = scf.RHF(molecule).density_fit().run(conv_tol=1e-11).e_tot
    with trnpy.patched(), trnpy.profile() as ledger:
        energy = scf.RHF(molecule).density_fit().run(conv_tol=1e-11).e_tot
    assert abs(energy - expected) < 1e-9
    launches = sum(t.launches.get("float64_matmul", 0) for t in ledger.tallies)
    assert launches == device.counters.launches["float64_matmul"] > 0


def test_a_device_error_gives_the_host_result_and_is_counted(device):
    def fail(*args, **kwargs):
        raise DeviceError("NRT_EXEC_HW_ERR")

    device.runtime.run = fail
    a = matrix((50, 50))
    with trnpy.policy(fallback="log"), trnpy.trace() as log:
        np.testing.assert_array_equal(trnpy.matmul(a, a), a @ a)
    assert log[0].reason is Reason.ERROR and device.health.faults == 1


def test_a_full_device_is_tried_once_more_without_the_cache(device):
    kept = matrix((128, 512))
    with trnpy.resident(kept):
        device.matmul(kept, matrix((512, 128)))
    assert device.cache.nbytes > 0
    device.runtime.memory.limit = device.runtime.memory.used + 1000
    close(device.matmul(matrix((128, 128), seed=3), matrix((128, 16))), matrix((128, 128), seed=3), matrix((128, 16)))
    assert device.cache.nbytes == 0
    device.runtime.memory.limit = 10
    with pytest.raises(DeviceMemoryError):
        device.matmul(kept, kept.T)
