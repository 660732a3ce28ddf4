"""J and K on a device: the integrals stay there, wrong elements are noticed, float32 takes operands of any scale."""

import numpy as np
import pytest

from nkisim.hardware import TRN2
from tests.chem.test_jk import NAO, PACKED, check, densities
from trnpy import Policy, Reason, policy, trace
from trnpy._call.decisions import work_of
from trnpy._engine.device import DeviceEngine
from trnpy._engine.engines import engine
from trnpy._engine.multicore import Cores
from trnpy._nki.simulated import SimulatorRuntime
from trnpy.chem import _fitted
from trnpy.chem._formats import format_of
from trnpy.chem._rows import relative
from trnpy.chem.jk import _build_jk_df_naive, build_jk_df


@pytest.mark.parametrize("known", [False, True])
def test_matrices_by_the_simulator_s_kernels(known):
    c = densities(NAO, 3)
    with policy(device="simulator", force=True, fallback="raise"), trace() as decisions:
        result = build_jk_df(PACKED, c @ c.T, orbitals=c if known else None)
    launches = dict(decisions[0].launches)
    assert decisions[0].engine == "simulator" and launches["words_matmul" if known else "float64_matmul"] >= 2
    check(result, _build_jk_df_naive(PACKED, c @ c.T))


@pytest.fixture
def device():
    e = DeviceEngine(SimulatorRuntime(TRN2))
    with engine(e):
        yield e


LARGE = np.random.default_rng(5).standard_normal((90, 20 * 21 // 2))  # is kept, because it exceeds SMALLEST


@pytest.mark.parametrize("precision, kernels", [("matched", "words_matmul"), ("fp32", "matmul")])
def test_integrals_stay_on_the_device_and_only_j_and_k_come_back(device, precision, kernels):
    c = [np.random.default_rng(i).standard_normal((20, n)) for i, n in ((0, 5), (1, 3))]
    dm = np.stack([x @ x.T for x in c])
    expected = _build_jk_df_naive(LARGE, dm)
    sent, read = [], []
    for _ in range(3):
        before = device.counters.bytes_in, device.counters.bytes_out
        with policy(force=True, fallback="raise", precision=precision), trace() as decisions:
            result = build_jk_df(LARGE, dm, orbitals=c)
        sent.append(device.counters.bytes_in - before[0])
        read.append(device.counters.bytes_out - before[1])
        check(result, expected, 1e-12 if precision == "matched" else 1e-5)
        assert decisions[0].on_device and dict(decisions[0].launches)[kernels] > 1
    assert sent[2] < sent[0] / 8
    words = 3 * 4 if precision == "matched" else 4
    results = 2 * 32 * 32 + 16 * (224 + 96)  # K of both; J by pairs; what J is summed from
    half = 20 * 5 * len(LARGE) * words
    extremes = 10 * 1536 if precision == "matched" else 0  # 1.5 KiB a product
    assert read[2] <= results * words + extremes < half


def test_integrals_whose_digits_do_not_fit_stay_as_they_were_sent(device):
    """Their digits, 16 bytes an element, exceed the half of the memory that a call may use; the numbers do not."""
    c = np.random.default_rng(0).standard_normal((20, 5))
    expected, sent, digits = _build_jk_df_naive(LARGE, c @ c.T), [], []
    for _ in range(3):
        before = device.counters.bytes_in
        with policy(force=True, fallback="raise", device_memory=2.2e6), trace() as decisions:
            result = build_jk_df(LARGE, c @ c.T, orbitals=c)
        sent.append(device.counters.bytes_in - before)
        digits.append(dict(decisions[0].launches)["float64_digits"])
        check(result, expected, 1e-12)
    assert 8 * 20 * 20 * 90 < 8 * 32 * 32 * 90 <= sent[0] and sent[2] < sent[0] / 8
    assert digits[2] == digits[0] > 1  # of the integrals and of the orbitals, in each call


def test_integrals_that_exceed_one_core_are_divided_over_two():
    c = np.random.default_rng(0).standard_normal((20, 5))
    dm, expected, sent = c @ c.T, _build_jk_df_naive(LARGE, c @ c.T), []
    cores = [DeviceEngine(SimulatorRuntime(TRN2)) for _ in range(2)]
    settings = {"force": True, "device_memory": 1e6}  # of each core, half of it for the integrals
    for _ in range(3):
        before = [core.counters.bytes_in for core in cores]
        with engine(Cores(cores)), policy(fallback="raise", **settings), trace() as decisions:
            result = build_jk_df(LARGE, dm, orbitals=c)
        sent.append([core.counters.bytes_in - n for core, n in zip(cores, before, strict=True)])
        check(result, expected, 1e-12)
    assert all(first >= 8 * 32 * 32 * 45 and last < first / 8 for first, last in zip(sent[0], sent[2], strict=True))
    work = work_of(build_jk_df.__trnpy_op__.prepare(LARGE, dm, orbitals=c))
    assert dict(work.tally(TRN2, Policy(cores=2, **settings)).launches) == dict(decisions[0].launches)
    alone = work.tally(TRN2, Policy(cores=1, **settings))  # not by these kernels
    assert "words_matmul" in dict(decisions[0].launches) and "words_matmul" not in dict(alone.launches)


def test_the_layout_keeps_operands_if_these_fit_and_otherwise_numbers_if_those_fit(device):
    form, element = format_of(device), 32 * 32 * 90  # of padded squares
    assert form is not None

    def found(nbytes):
        with policy(device_memory=2 * nbytes):
            return _fitted.layout(LARGE, [5], form, 1e8, device)

    whole, squares = found(1e9), found(16 * element)
    assert whole.pairs and whole.ready and squares.ready and not squares.pairs
    assert not found(16 * element - 1).ready and not found(8 * element).pairs
    assert found(8 * element - 1) is None


@pytest.mark.parametrize("name", ["_exchange", "_coulomb"])
@pytest.mark.parametrize("precision", ["matched", "fp32"])
def test_one_wrong_element_of_j_or_k_is_noticed(device, monkeypatch, name, precision):
    """One element is changed on its way back, by a hundred times the error that is allowed."""
    c = np.random.default_rng(0).standard_normal((20, 5))
    right, unit = getattr(_fitted, name), 2.0**-52 if precision == "matched" else 2.0**-23
    wrong_by = 100 * 10 * LARGE.shape[1] * unit * np.linalg.norm(LARGE) ** 2 * np.linalg.norm(c @ c.T)

    def wrong(*args):
        found = right(*args)
        found[..., 2, 1] += wrong_by
        return found

    monkeypatch.setattr(_fitted, name, wrong)
    with policy(force=True, fallback="log", precision=precision), trace() as decisions:
        result = build_jk_df(LARGE, c @ c.T, orbitals=c)
    assert decisions[0].reason is Reason.ACCURACY and "backward error" in decisions[0].detail
    check(result, _build_jk_df_naive(LARGE, c @ c.T))


@pytest.mark.parametrize("scale", [1e-50, 1e-30, 1e38, 1e120])
def test_float32_by_name_takes_operands_of_any_scale(device, scale):
    c = np.random.default_rng(0).standard_normal((20, 5))
    with policy(force=True, fallback="raise", precision="fp32"), trace() as decisions:
        result = build_jk_df(LARGE * scale, c @ c.T, orbitals=c)
    assert decisions[0].on_device
    check([x / scale / scale for x in result], _build_jk_df_naive(LARGE, c @ c.T), 1e-5)


@pytest.mark.filterwarnings("ignore:.*encountered in:RuntimeWarning")  # the host's own
def test_integrals_whose_squares_overflow_are_no_fault(device):
    c = np.random.default_rng(0).standard_normal((20, 5))
    with policy(force=True), trace() as decisions:
        build_jk_df(LARGE * 1e160, c @ c.T, orbitals=c)
    assert decisions[0].reason is Reason.ACCURACY and not device.health.causes


def test_a_scale_that_overflows_excuses_no_error():
    dm = 1e-300 * np.ones((NAO, NAO))
    problem = build_jk_df.__trnpy_op__.prepare(PACKED * 1e160, dm, with_j=False)
    right = build_jk_df(PACKED * 1e160, dm, with_j=False)
    assert problem.error(right) < 1e-13 < 0.1 < problem.error((None, 2 * right[1]))
    assert relative(1.0, np.inf) == np.inf
