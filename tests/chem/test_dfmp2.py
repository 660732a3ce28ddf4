"""DF-MP2: PySCF's energies to 1e-9 Hartree wherever products go, in any memory; the naive sums; plain errors."""

import threading

import numpy as np
import pytest
from doubles import FaultyEngine, Float32Engine, ReadOnlyEngine, RecordingEngine
from hypothesis import given, settings
from hypothesis import strategies as st
from systems import SYSTEMS, reference

import trnpy
from benchmarks import chem_model
from nkisim.hardware import TRN2
from trnpy import NkiFallbackWarning, Reason, policy, trace
from trnpy._engine.engines import DeviceEngine, engine
from trnpy._engine.native_products import CACHE_SHARE
from trnpy._nki.simulated import SimulatorRuntime
from trnpy.chem import _pairs, dfmp2
from trnpy.chem._pairs import SPLIT_BYTES, _orbitals, most_pairs, sent_bytes, shape
from trnpy.chem._rows import MEMORY
from trnpy.chem.dfmp2 import DIGITS, WORKSPACE, Spin, _dfmp2_naive, dfmp2_energy

# PySCF leaves its scratch files to the garbage collector.
pytestmark = pytest.mark.filterwarnings(
    "ignore:unclosed file:ResourceWarning",
    "ignore:Exception ignored in. <_io.FileIO:pytest.PytestUnraisableExceptionWarning",
)

HARTREE = 1e-9  # what energies may differ by
SLOW = {"(H2O)4", "C6H6", "H2O/TZ"}
CASES = [pytest.param(n, marks=pytest.mark.slow) if n in SLOW else n for n in SYSTEMS]


def random_spin(nocc, nvir, naux, seed):
    rng = np.random.default_rng(seed)
    return rng.standard_normal((nocc, nvir, naux)), -1 - rng.random(nocc), rng.random(nvir)


RESTRICTED = random_spin(5, 7, 11, 0)
UNRESTRICTED = tuple(zip(random_spin(5, 7, 11, 1), random_spin(3, 9, 11, 2), strict=True))
SPINS = {"RHF": RESTRICTED, "UHF": UNRESTRICTED}


def split(energy):
    return energy.opposite_spin, energy.same_spin


@pytest.mark.parametrize("name", CASES)
def test_energies_are_pyscf_s_on_the_host_and_forced(name):
    expected, arguments = reference(name)
    assert split(dfmp2_energy(*arguments)) == pytest.approx(expected, rel=0, abs=HARTREE / 10)
    recording = RecordingEngine()
    with engine(recording), policy(force=True), trace() as decisions:
        energy = dfmp2_energy(*arguments)
    assert split(energy) == pytest.approx(expected, rel=0, abs=HARTREE / 10)
    assert energy.total == energy.opposite_spin + energy.same_spin
    (decision,) = decisions
    assert decision.op == "trnpy.chem.dfmp2_energy" and decision.reason == Reason.FORCED
    assert decision.engine == "recording"
    assert sum(2 * np.prod(shape) for shape in recording.shapes) == decision.flops


@pytest.mark.parametrize("together", [0, dfmp2.TOGETHER], ids=["pair by pair", "together"])
@pytest.mark.parametrize("spins", SPINS)
def test_energies_are_the_naive_sums(spins, together, monkeypatch):
    monkeypatch.setattr(dfmp2, "TOGETHER", together)
    expected = _dfmp2_naive(*SPINS[spins])
    assert split(dfmp2_energy(*SPINS[spins])) == pytest.approx(expected, rel=1e-13)
    with policy(device="null"):
        assert split(dfmp2_energy(*SPINS[spins])) == pytest.approx(expected, rel=1e-13)
    with policy(force=True):
        assert split(dfmp2_energy(*SPINS[spins])) == pytest.approx(expected, rel=1e-13)


def test_equal_spins_give_the_restricted_energy():
    twice = dfmp2_energy(*((array, array) for array in RESTRICTED))
    assert split(twice) == pytest.approx(split(dfmp2_energy(*RESTRICTED)), rel=1e-13)


@pytest.mark.parametrize("spins", SPINS)
@pytest.mark.parametrize("pairs", [1, 2, 3, 5, 100])
def test_any_budget_gives_the_same_energy_in_products_that_fit_it(spins, pairs):
    nvir = 7 if spins == "RHF" else 9
    memory = (WORKSPACE + pairs) * nvir**2 * 8
    recording = RecordingEngine()
    with engine(recording), policy(force=True):
        energy = dfmp2_energy(*SPINS[spins], memory=memory)
    assert split(energy) == pytest.approx(_dfmp2_naive(*SPINS[spins]), rel=1e-13)
    assert max(m * n * 8 for m, _, n in recording.shapes) <= memory - WORKSPACE * 7**2 * 8  # of the smaller spin
    if spins == "RHF":
        assert len(recording.shapes) == sum(-(-i // pairs) for i in range(1, 6))


def test_a_budget_below_one_pair_says_what_one_takes():
    with pytest.raises(ValueError, match=r"memory=1175 bytes: one pair of 7 x 7 virtual orbitals takes 1176 bytes"):
        dfmp2_energy(*RESTRICTED, memory=1175)
    dfmp2_energy(*RESTRICTED, memory=1176)


@pytest.mark.parametrize("together", [0, dfmp2.TOGETHER], ids=["pair by pair", "together"])
@pytest.mark.parametrize("spins", SPINS)
def test_amplitudes_are_kept_when_asked_for(spins, together, monkeypatch):
    monkeypatch.setattr(dfmp2, "TOGETHER", together)
    plain, kept = (dfmp2_energy(*SPINS[spins], with_t2=t) for t in (False, True))
    assert all(channel.t2 is None for channel in plain.channels)
    b, occ, vir = SPINS[spins]
    pairs = [(0, 0)] if spins == "RHF" else [(0, 0), (0, 1), (1, 1)]
    if spins == "RHF":
        b, occ, vir = [b], [occ], [vir]
    for (s, t), channel in zip(pairs, kept.channels, strict=True):
        gap = occ[s][:, None, None, None] + occ[t][:, None, None] - vir[s][:, None] - vir[t]
        t2 = np.einsum("iaL,jbL->ijab", b[s], b[t]) / gap
        if spins == "UHF" and s == t:
            t2 = t2 - t2.transpose(0, 1, 3, 2)
        np.testing.assert_allclose(channel.t2, t2, rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize("fault", FaultyEngine.FAULTS)
def test_a_faulty_engine_leaves_the_host_s_energy(fault):
    faulty = FaultyEngine(fault)
    with engine(faulty), policy(force=True, fallback="log", time_limit=0.02), trace() as decisions:
        energy = dfmp2_energy(*UNRESTRICTED)
    assert split(energy) == split(dfmp2_energy(*UNRESTRICTED))
    assert faulty.products and not decisions[0].on_device
    assert decisions[0].reason in (Reason.ERROR, Reason.OOM, Reason.ACCURACY)


@pytest.mark.parametrize(("scale", "lower"), [(1.0, 3.0), (2.0**200, 0.0)], ids=["overlap", "large integrals"])
def test_energies_that_the_kernel_cannot_form_come_from_products(scale, lower):
    """Because the energies of orbitals overlap, or because the squares of errors overflow."""
    b, occ, vir = RESTRICTED
    arguments = scale * b, occ, vir - lower
    with policy(device="simulator", force=True), trace() as decisions:
        energy = dfmp2_energy(*arguments)
    assert decisions[0].on_device and ("mp2_energy" in dict(decisions[0].launches)) == (lower == 0.0)
    assert split(energy) == pytest.approx(split(dfmp2_energy(*arguments)), rel=1e-12)


class OneWrongElement(RecordingEngine):
    def answer(self, a, b):
        c = super().answer(a, b)
        c[-1, 0] += 1e-6
        return c


def test_one_wrong_integral_of_a_pair_is_noticed():
    warned = pytest.warns(NkiFallbackWarning, match="is wrong by")
    with engine(OneWrongElement()), policy(force=True), trace() as decisions, warned:
        energy = dfmp2_energy(*RESTRICTED)
    assert decisions[0].reason == Reason.ACCURACY and "is wrong by" in decisions[0].detail
    assert split(energy) == split(dfmp2_energy(*RESTRICTED))


def test_float32_products_are_refused_and_accepted_by_name():
    with engine(Float32Engine()), policy(force=True), trace() as decisions:
        with pytest.warns(NkiFallbackWarning, match="is wrong by"):
            dfmp2_energy(*RESTRICTED)
        with policy(precision="fp32"):
            low = dfmp2_energy(*RESTRICTED)
    assert [d.reason for d in decisions] == [Reason.ACCURACY, Reason.FORCED]
    error = abs(low.total - sum(_dfmp2_naive(*RESTRICTED))) / abs(low.total)
    assert 1e-12 < error < 1e-5


def test_products_that_must_not_be_written_to_are_not():
    with engine(ReadOnlyEngine()), policy(force=True, fallback="raise"):
        energy = dfmp2_energy(*UNRESTRICTED)
    assert split(energy) == pytest.approx(_dfmp2_naive(*UNRESTRICTED), rel=1e-13)


def test_a_fraction_of_calls_is_verified_by_policy():
    with engine(RecordingEngine()), policy(force=True, verify=1.0), trace() as decisions:
        dfmp2_energy(*RESTRICTED)
    assert decisions[0].on_device


def test_other_layouts_and_dtypes_are_converted():
    b, occ, vir = RESTRICTED
    expected = split(dfmp2_energy(b, occ, vir))
    assert split(dfmp2_energy(np.asfortranarray(b), list(occ), tuple(vir))) == expected
    single = b.astype(np.float32)
    assert split(dfmp2_energy(single, occ, vir)) == split(dfmp2_energy(single.astype(float), occ, vir))


@pytest.mark.parametrize("shape", [(0, 4, 3), (2, 0, 3), (2, 4, 0)])
def test_nothing_to_correlate_is_zero(shape):
    arguments = np.zeros(shape), -np.ones(shape[0]), np.ones(shape[1])
    with policy(force=True):
        assert split(dfmp2_energy(*arguments)) == (0, 0)
    unrestricted = tuple(zip(RESTRICTED, random_spin(0, 8, 11, 3), strict=True))
    assert split(dfmp2_energy(*unrestricted)) == pytest.approx(_dfmp2_naive(*unrestricted), rel=1e-13)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("which", range(3))
def test_infs_and_nans_are_the_host_s(which, value):
    arguments = [x.copy() for x in RESTRICTED]
    arguments[which].flat[0] = value
    with np.errstate(all="ignore"), policy(force=True), trace() as decisions:
        found = dfmp2_energy(*arguments)
        expected = dfmp2_energy.__wrapped__(*arguments)
    np.testing.assert_array_equal(found.total, expected.total)
    assert decisions[0].reason == Reason.VALUE


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ((np.ones((2, 3)), np.ones(2), np.ones(3)), ValueError, r"b has shape \(2, 3\): expected \(nocc, nvir, naux\)"),
        ((np.ones((2, 3, 4)), np.ones(3), np.ones(3)), ValueError, r"b has shape \(2, 3, 4\) with 3 eps_occ and 3"),
        ((np.ones((2, 3, 4)), np.ones((2, 1)), np.ones(3)), ValueError, r"eps_occ has shape \(2, 1\): expected"),
        ((np.ones((2, 3, 4), complex), np.ones(2), np.ones(3)), TypeError, "b is complex128: expected real numbers"),
        (([np.ones((2, 3, 4))], np.ones(2), np.ones(3)), ValueError, r"1 arrays b, 2 eps_occ, 3 eps_vir: expected"),
        (
            ((np.ones((1, 2, 4)), np.ones((1, 2, 5))), (np.ones(1),) * 2, (np.ones(2),) * 2),
            ValueError,
            "naux is 4 for alpha and 5 for beta",
        ),
    ],
)
@pytest.mark.parametrize("force", [False, True])
def test_arguments_that_do_not_fit_are_said_so(arguments, error, message, force):
    with policy(force=force), pytest.raises(error, match=message):
        dfmp2_energy(*arguments)


def test_the_energy_is_a_public_name_that_explain_knows():
    assert trnpy.chem.dfmp2_energy is dfmp2_energy
    with policy(device="null", machine="trn3"):
        decision = trnpy.explain(dfmp2_energy, *random_spin(8, 30, 50, 0))
    assert decision.machine == "trn3" and decision.flops == 2 * 36 * 30 * 30 * 50


def simulated(arguments, **options):
    """The energy by the simulator's kernels, and how often each was launched."""
    with policy(device="simulator", force=True, fallback="raise"), trace() as decisions:
        energy = dfmp2_energy(*arguments, **options)
    (decision,) = decisions
    assert decision.on_device and decision.engine == "simulator"
    return energy, dict(decision.launches)


def test_products_by_the_simulator_s_kernels_are_as_good_as_the_host_s():
    arguments = random_spin(3, 19, 84, 0)
    energy, launches = simulated(arguments, accuracy=1e-11)
    assert "mp2_energy" not in launches and energy.uncertainty == 0
    assert split(energy) == pytest.approx(_dfmp2_naive(*arguments), rel=1e-13)


@pytest.mark.parametrize(
    "name", [n if n in ("H2O", "CH4", "NH3", "O2") else pytest.param(n, marks=pytest.mark.slow) for n in SYSTEMS]
)
def test_molecules_by_the_kernel_have_pyscf_s_energies(name):
    expected, arguments = reference(name)
    energy, launches = simulated(arguments)
    assert split(energy) == pytest.approx(expected, rel=0, abs=HARTREE)
    assert 0 < energy.uncertainty <= HARTREE
    spins = 2 if SYSTEMS[name][2] else 1
    # One for all pairs of a channel, and each spin's integrals are sent once.
    assert launches == {"float64_digits": spins, "mp2_energy": 3 if spins == 2 else 1}


@pytest.mark.parametrize("seed", range(20))
def test_the_uncertainty_is_no_less_than_the_error(seed):
    rng = np.random.default_rng(seed)
    arguments = molecular(int(rng.integers(3, 9)), int(rng.integers(8, 24)), int(rng.integers(30, 70)), seed)
    energy, launches = simulated(arguments, accuracy=1.0)
    assert launches["mp2_energy"] == 1
    assert 0 < abs(energy.total - dfmp2_energy(*arguments).total) < energy.uncertainty < 1e-8


@pytest.mark.parametrize("precision, most", [("fp32", 1e-6), ("bf16", 1e-2)])
@pytest.mark.parametrize("seed", range(20))
def test_a_named_precision_has_an_uncertainty_too(seed, precision, most):
    rng = np.random.default_rng(seed)
    arguments = molecular(int(rng.integers(3, 9)), int(rng.integers(8, 24)), int(rng.integers(30, 70)), seed)
    with policy(precision=precision):
        energy, _ = simulated(arguments)
    assert 0 < abs(energy.total - dfmp2_energy(*arguments).total) < energy.uncertainty < most


def test_the_uncertainty_holds_whichever_pairs_are_drawn():
    """Of a system whose largest errors are in few pairs."""
    rng = np.random.default_rng(5)
    arguments = molecular(int(rng.integers(3, 9)), int(rng.integers(8, 24)), int(rng.integers(30, 70)), 5)
    energy, _ = simulated(arguments, accuracy=1.0)
    spins = dfmp2._spins(*arguments)
    error = abs(energy.total - dfmp2_energy(*arguments).total)
    assert error < min(dfmp2._uncertainty(dfmp2._recompute(spins), spins, energy) for _ in range(100))


class Changed(SimulatorRuntime):
    """A link that doubles one of the kernel's sums, each time another."""

    def __init__(self):
        super().__init__(TRN2)
        self.rng, self.calls = np.random.default_rng(0), 0

    def get(self, buffer):
        a = super().get(buffer)
        if a.shape[-1] == 6:
            large = np.argwhere(np.abs(a) > 1e-6 * np.abs(a).max())
            a[tuple(self.rng.choice(large))] *= 2
            self.calls += 1
        return a


def test_a_sum_that_is_doubled_on_the_way_to_the_host_is_noticed_in_every_call():
    arguments = molecular(6, 20, 40, 0)
    expected = dfmp2_energy(*arguments)
    for _ in range(20):
        chip = Changed()
        with engine(DeviceEngine(chip)), policy(force=True), pytest.warns(NkiFallbackWarning, match="sums of"):
            assert dfmp2_energy(*arguments).total == expected.total
        assert chip.calls


def test_orbitals_that_do_not_fit_the_device_together_are_taken_in_blocks():
    arguments = random_spin(5, 19, 84, 0)
    energy, launches = simulated(arguments, accuracy=1.0)
    assert launches == {"float64_digits": 1, "mp2_energy": 1}
    each = 32 * 128 * (2 * DIGITS + SPLIT_BYTES) * 2  # bytes of one orbital's padded integrals, of both sides
    # Blocks of two orbitals, which all stay on the device; and of one, of which none stays.
    for orbitals, sends, blocks in ((2, 3, 6), (1, 15, 15)):
        with policy(device_memory=orbitals * each / (1 - CACHE_SHARE)):
            again, launches = simulated(arguments, accuracy=1.0)
        assert launches == {"float64_digits": sends, "mp2_energy": blocks}  # each with itself, and those before
        assert split(again) == pytest.approx(split(energy), rel=1e-9)


@pytest.mark.parametrize(("naux", "fused"), [(1040, True), (1100, False)])
def test_sums_that_float32_does_not_hold_exactly_are_no_matter_for_the_kernel(naux, fused):
    arguments = np.full((1, 2, naux), 0.99), np.array([-0.5]), np.array([0.5, 1.5])  # 127 x 127 naux, or a little less
    energy, launches = simulated(arguments, accuracy=1.0)
    assert ("mp2_energy" in launches) == fused
    assert split(energy) == pytest.approx(_dfmp2_naive(*arguments), rel=1e-9)


def molecular(nocc, nvir, naux, seed):
    """Random integrals of the size of a molecule's."""
    b, occ, vir = random_spin(nocc, nvir, naux, seed)
    return b * 0.3 / naux**0.5, occ, vir


def test_integrals_that_no_launch_holds_are_taken_in_blocks_of_orbitals():
    arguments = molecular(5, 20, 40, 0)
    expected, once = simulated(arguments)
    assert once["mp2_energy"] == 1
    columns = 32 * 128  # of virtuals and auxiliary functions, padded
    two_orbitals = 2 * columns * sent_bytes(DIGITS)
    energy, blocked = simulated(arguments, memory=two_orbitals)
    assert blocked["mp2_energy"] == 6  # of three blocks of orbitals the lower triangle
    np.testing.assert_allclose(energy.channels[0].direct, expected.channels[0].direct, rtol=1e-7)
    np.testing.assert_allclose(energy.channels[0].exchange, expected.channels[0].exchange, rtol=1e-7, atol=1e-12)
    assert split(energy) == pytest.approx(_dfmp2_naive(*arguments), rel=0, abs=HARTREE)


def test_integrals_of_64_occupied_and_448_virtual_orbitals_are_one_launch_in_the_default_memory():
    spin = Spin(np.broadcast_to(0.0, (64, 448, 1536)), np.zeros(64), np.ones(448))
    cut = shape((448, 448), 1536, DIGITS, TRN2)
    assert _orbitals(spin, cut.left * cut.span, DIGITS, MEMORY, TRN2.hbm_bytes / 4) == 64
    assert most_pairs(cut) >= 64 * 65 // 2


@pytest.mark.parametrize("of", [chem_model.MEDIUM, chem_model.LARGE])
def test_the_benchmark_models_shapes_that_other_packages_publish(of):
    line = chem_model.mp2(TRN2, DIGITS, of)[0]
    products = 11 * 2.0 * of.pairs * of.virtual**2 * of.auxiliary
    assert 0.4 < products / TRN2.flops_per_s["bfloat16"] / line.seconds < 1  # of TensorE's peak
    assert f"energies {line.seconds * 1e3:,.1f} ms" in chem_model.from_host(TRN2, of, line)


def test_many_virtuals_are_taken_in_blocks():
    arguments = molecular(2, 500, 30, 1)
    energy, launches = simulated(arguments)
    assert launches["mp2_energy"] == 1
    assert split(energy) == pytest.approx(_dfmp2_naive(*arguments), rel=0, abs=HARTREE)


def test_spins_of_different_sizes_by_the_kernel():
    spins = molecular(4, 30, 50, 2), molecular(2, 70, 50, 3)
    arguments = tuple(zip(*spins, strict=True))
    energy, launches = simulated(arguments)
    assert launches["mp2_energy"] == 3
    assert split(energy) == pytest.approx(_dfmp2_naive(*arguments), rel=0, abs=HARTREE)


@settings(deadline=None, max_examples=25)
@given(st.integers(1, 4), st.integers(1, 40), st.integers(1, 60), st.integers(1, 3), st.integers(1, 40), st.booleans())
def test_any_number_of_orbitals_is_the_kernel_s(nocc, nvir, naux, nocc_b, nvir_b, unrestricted):
    arguments = molecular(nocc, nvir, naux, 8)
    if unrestricted:
        arguments = tuple(zip(arguments, molecular(nocc_b, nvir_b, naux, 9), strict=True))
    energy, launches = simulated(arguments)
    assert launches["mp2_energy"] == (3 if unrestricted else 1)
    assert split(energy) == pytest.approx(_dfmp2_naive(*arguments), rel=0, abs=HARTREE)


def test_orbital_energies_that_overlap_are_no_matter_for_the_kernel():
    b, occ, vir = molecular(3, 10, 20, 4)
    vir[0] = occ[0] - 0.1
    energy, launches = simulated((b, occ, vir))
    assert "mp2_energy" not in launches
    assert split(energy) == pytest.approx(_dfmp2_naive(b, occ, vir), rel=1e-10)


def test_an_energy_too_large_for_the_accuracy_is_one_of_float64_products():
    arguments = random_spin(3, 19, 84, 0)
    energy, launches = simulated(arguments)
    assert launches["mp2_energy"] == 1 and launches["float64_matmul"]
    assert split(energy) == pytest.approx(_dfmp2_naive(*arguments), rel=1e-13)


def test_pairs_beyond_one_launch_are_taken_in_several(monkeypatch):
    arguments = molecular(6, 20, 40, 6)
    expected, _ = simulated(arguments)
    monkeypatch.setattr("trnpy.chem._pairs.reference.MOST_PLACES", 16)
    energy, launches = simulated(arguments)
    assert launches["mp2_energy"] == 3  # of 21 pairs, eight at a time
    np.testing.assert_array_equal(energy.channels[0].direct, expected.channels[0].direct)


def test_orbitals_beyond_the_range_of_a_factor_are_no_matter_for_the_kernel():
    b, occ, vir = molecular(3, 10, 20, 7)
    b[1] *= 1e-310
    energy, launches = simulated((b, occ, vir))
    assert "mp2_energy" not in launches
    assert split(energy) == pytest.approx(_dfmp2_naive(b, occ, vir), rel=1e-10)


def test_integrals_that_the_device_does_not_split_are_split_by_the_host():
    """Of more auxiliary functions than the kernel takes, or so small that their scale is near underflow."""
    arguments = molecular(2, 3, 8200, 1)
    energy, launches = simulated(arguments)
    assert launches == {"digits_split": 1, "mp2_energy": 1}
    assert split(energy) == pytest.approx(_dfmp2_naive(*arguments), rel=0, abs=HARTREE)
    b, occ, vir = molecular(2, 10, 20, 2)
    b[1] *= 2.0**-940
    energy, launches = simulated((b, occ, vir))
    assert launches == {"digits_split": 1, "mp2_energy": 1}
    assert split(energy) == pytest.approx(_dfmp2_naive(b, occ, vir), rel=0, abs=HARTREE)


def test_the_digits_of_the_device_are_those_of_the_host(monkeypatch):
    """Bit for bit, but for ties, of which random numbers have none."""
    b, occ, vir = molecular(4, 24, 60, 3)
    b *= 10.0 ** np.array([0, -3, 2, -9])[:, np.newaxis, np.newaxis]
    ours, launches = simulated((b, occ, vir), accuracy=1.0)
    monkeypatch.setattr("trnpy.chem._pairs.float64_digits_reference.COLUMNS", 0)
    hosts, others = simulated((b, occ, vir), accuracy=1.0)
    assert launches["float64_digits"] and others["digits_split"]
    np.testing.assert_array_equal(ours.channels[0].direct, hosts.channels[0].direct)
    np.testing.assert_array_equal(ours.channels[0].exchange, hosts.channels[0].exchange)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_integrals_that_are_not_finite_are_the_hosts(bad):
    b, occ, vir = molecular(3, 10, 20, 4)
    b[1, 2, 3] = bad
    with policy(device="simulator", force=True), trace() as decisions, np.errstate(all="ignore"):
        found = dfmp2_energy(b, occ, vir)
    assert decisions[0].reason is Reason.VALUE and not decisions[0].launches and not np.isfinite(found.total)


@pytest.mark.parametrize("scale", [1.0, 1e-170, 1e200, 1e-300])
def test_sizes_of_integrals_at_any_scale(scale):
    b = random_spin(3, 40, 50, 6)[0] * scale
    b[1] = 0
    largest, squares = _pairs._sizes(b)
    np.testing.assert_array_equal(largest, np.abs(b).max(axis=(1, 2)))
    expected = np.square(b / np.where(largest > 0, largest, 1)[:, None, None]).sum(axis=2).max(axis=1)
    np.testing.assert_allclose(squares, expected, rtol=100 * np.finfo("f8").eps)


def test_sampled_pairs_are_recomputed_while_the_device_computes(monkeypatch):
    """They are drawn before any launch, so that no result decides which pairs are compared."""
    order, recompute, fused, drawn = [], dfmp2._recompute, dfmp2._fused, threading.Event()

    def recomputed(spins):
        order.append("pairs")
        drawn.set()
        return recompute(spins)

    def launched(device, spins, *arguments):
        if isinstance(spins[0].b, np.ndarray):  # not in the dry run
            drawn.wait(5)
            order.append("launches")
        return fused(device, spins, *arguments)

    monkeypatch.setattr(dfmp2, "_recompute", recomputed)
    monkeypatch.setattr(dfmp2, "_fused", launched)
    monkeypatch.setattr(SimulatorRuntime, "parallel", True)
    energy, launches = simulated(molecular(3, 10, 20, 8))
    assert order == ["pairs", "launches"] and launches["mp2_energy"] == 1 and energy.uncertainty > 0


def test_single_precision_by_name_is_the_kernel_s_too():
    arguments = molecular(4, 30, 50, 5)
    with policy(device="simulator", force=True, precision="fp32", fallback="raise"), trace() as decisions:
        energy = dfmp2_energy(*arguments)
    assert dict(decisions[0].launches) == {"mp2_energy": 1}
    assert split(energy) == pytest.approx(_dfmp2_naive(*arguments), rel=1e-6)


@pytest.mark.parametrize("force", [False, True])
def test_an_accuracy_that_is_none_is_refused(force):
    with policy(force=force), pytest.raises(ValueError, match=r"accuracy=0\.0 Hartree: expected a positive number"):
        dfmp2_energy(*RESTRICTED, accuracy=0.0)


def test_one_orbital_with_longer_rows_than_others_decides_about_the_unit_of_sums():
    """Of equal largest integrals: sums of 120 of them, and of one, whose unit would round the longer ones."""
    rng = np.random.default_rng(7)
    b, occ, vir = molecular(3, 20, 120, 7)
    b[0], b[1:] = 0.02 * rng.choice([-1, 1], b[0].shape), 1e-6 * b[1:]
    b[1:, :, 0] = 0.02 * rng.choice([-1, 1], b[1:, :, 0].shape)
    energy, launches = simulated((b, occ, vir))
    assert energy.uncertainty < HARTREE / 5
    assert launches == {"float64_digits": 1, "mp2_energy": 1}
    assert split(energy) == pytest.approx(_dfmp2_naive(b, occ, vir), rel=0, abs=HARTREE)
