"""A device that fails costs the user one warning and no result, whichever function met it."""

import re
import threading
import warnings

import numpy as np
import pytest
import scipy
from doubles import FaultyEngine, Float32Engine, RecordingEngine

import trnpy
from nkisim.hardware import TRN2
from trnpy._call.dispatch import NkiFallbackWarning, Reason
from trnpy._engine.engines import HOST, DeviceEngine, engine
from trnpy._engine.known_answer import sound as fit
from trnpy._nki.simulated import SimulatorRuntime

N = 200
_rng = np.random.default_rng(0)
GENERAL = _rng.standard_normal((N, N))
POSITIVE = GENERAL @ GENERAL.T / N + np.eye(N)  # condition number 5
TRIDIAGONAL = scipy.sparse.csr_array(scipy.sparse.diags_array([-1.0, 4.0, -1.0], offsets=[-1, 0, 1], shape=(N, N)))


def _numpy(m):
    return trnpy if m is trnpy else np


CALLS = {
    "matmul": lambda m: _numpy(m).matmul(POSITIVE, GENERAL),
    "einsum": lambda m: _numpy(m).einsum("ij,jk->ki", GENERAL, POSITIVE),
    "tensordot": lambda m: _numpy(m).tensordot(GENERAL, POSITIVE, 1),
    "eigh": lambda m: m.linalg.eigh(POSITIVE),
    "eigh of two": lambda m: m.linalg.eigh(GENERAL + GENERAL.T, POSITIVE),
    "eigvalsh": lambda m: m.linalg.eigvalsh(POSITIVE),
    "cholesky": lambda m: m.linalg.cholesky(POSITIVE),
    "cho_factor": lambda m: m.linalg.cho_factor(POSITIVE)[0],
    "solve": lambda m: m.linalg.solve(GENERAL, POSITIVE),
    "solve positive": lambda m: m.linalg.solve(POSITIVE, GENERAL, assume_a="pos"),
    "solve_triangular": lambda m: m.linalg.solve_triangular(POSITIVE, GENERAL, lower=True),
    "inv": lambda m: m.linalg.inv(GENERAL),
    "det": lambda m: m.linalg.det(GENERAL),
    "lu": lambda m: m.linalg.lu(GENERAL),
    "qr": lambda m: m.linalg.qr(GENERAL[:, :40], mode="economic"),
    "lstsq": lambda m: m.linalg.lstsq(GENERAL[:, :40], GENERAL[:, 0])[0],
    "svd": lambda m: m.linalg.svd(GENERAL),
    "svdvals": lambda m: m.linalg.svdvals(GENERAL),
    "pinv": lambda m: m.linalg.pinv(GENERAL),
    "polar": lambda m: m.linalg.polar(GENERAL),
    "expm": lambda m: m.linalg.expm(GENERAL / N),
    "logm": lambda m: m.linalg.logm(POSITIVE),
    "sqrtm": lambda m: m.linalg.sqrtm(POSITIVE),
    "fractional_matrix_power": lambda m: m.linalg.fractional_matrix_power(POSITIVE, 0.3),
    "dgemm": lambda m: m.linalg.blas.dgemm(1.0, GENERAL, POSITIVE),
    "dpotrf": lambda m: m.linalg.lapack.dpotrf(POSITIVE)[0],
    "csr @": lambda m: m.sparse.csr_array(TRIDIAGONAL) @ GENERAL,
    "bsr @": lambda m: m.sparse.bsr_array(TRIDIAGONAL, blocksize=(20, 20)) @ GENERAL,
}


@pytest.mark.parametrize("fault", FaultyEngine.FAULTS)
@pytest.mark.parametrize("name", CALLS)
def test_a_fault_gives_the_host_result_one_warning_and_its_reason(fault, name):
    call, operands = CALLS[name], (GENERAL.copy(), POSITIVE.copy())
    expected, threads = call(scipy), threading.active_count()
    faulty = FaultyEngine(fault)
    settings, one = trnpy.policy(force=True, time_limit=0.01), pytest.warns(NkiFallbackWarning, match="ran on the host")
    with engine(faulty), settings, trnpy.trace() as log, one as warned:
        result = call(trnpy)
    assert faulty.products
    assert len(warned) == 1 and warned[0].filename == __file__
    assert [(d.on_device, d.reason) for d in log] == [(False, FaultyEngine.REASONS[fault])]
    for ours, theirs in zip(*(r if isinstance(r, tuple) else (r,) for r in (result, expected)), strict=True):
        # The same function twice: threads of a BLAS may add in another order.
        np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e3 * np.finfo(float).eps * np.abs(theirs).max())
    np.testing.assert_array_equal((GENERAL, POSITIVE), operands)
    assert threading.active_count() == threads


class Corrupting(SimulatorRuntime):
    """Every array that comes back from the chip is wrong in one way."""

    WAYS = ("zeros", "a bit", "a row", "a NaN")

    def __init__(self, way):
        super().__init__(TRN2)
        self.way = way

    def get(self, buffer):
        a = super().get(buffer)
        if self.way == "zeros":
            a[...] = 0
        if self.way == "a bit":  # of an exponent
            a.reshape(-1).view(np.uint8)[a.nbytes // 2 | 3] ^= 0x40
        if self.way == "a row":
            a[-1] = a[0]
        if self.way == "a NaN" and a.dtype.kind == "f":
            a.flat[0] = np.nan
        return a


@pytest.mark.parametrize("way", Corrupting.WAYS)
@pytest.mark.parametrize("name", ["matmul", "einsum", "cholesky", "solve", "eigvalsh"])
def test_what_a_chip_corrupts_is_no_result_and_one_warning(way, name):
    call, expected = CALLS[name], CALLS[name](scipy)
    caught = warnings.catch_warnings(record=True, action="always")
    with engine(DeviceEngine(Corrupting(way))), trnpy.policy(force=True), trnpy.trace() as log, caught as warned:
        result = call(trnpy)
    np.testing.assert_allclose(result, expected, rtol=0, atol=1e-11 * np.abs(expected).max())
    assert [w.category for w in warned] == [NkiFallbackWarning] * (not log[0].on_device)
    assert log[0].on_device or log[0].reason in (Reason.ACCURACY, Reason.ERROR)
    assert log[0].reason is not Reason.ERROR or log[0].detail.startswith("DeviceError: abs_bound gave")


def test_what_the_algorithm_refuses_on_a_sound_engine_is_no_fault():
    """Singular, indefinite and overflowing operands; SciPy's own warnings and errors are all there is."""
    indefinite = POSITIVE - 2 * np.eye(N)
    singular = np.outer(GENERAL[0], GENERAL[1])
    with engine(RecordingEngine()) as sound, trnpy.policy(force=True), trnpy.trace() as log:
        with pytest.raises(np.linalg.LinAlgError) as theirs:
            scipy.linalg.cholesky(indefinite)
        with pytest.raises(np.linalg.LinAlgError, match=f"^{re.escape(str(theirs.value))}$"):
            trnpy.linalg.cholesky(indefinite)
        with pytest.warns(scipy.linalg.LinAlgWarning) as warned:
            trnpy.linalg.solve(singular + 1e-18 * GENERAL, GENERAL)
        assert not any(issubclass(w.category, NkiFallbackWarning) for w in warned)
        with np.errstate(over="ignore", invalid="ignore"):
            assert not np.isfinite(trnpy.matmul(GENERAL * 1e200, GENERAL * 1e200)).any()  # NaN by Sandybridge's kernels
    assert {d.reason for d in log} <= {Reason.VALUE, Reason.ACCURACY} and all(d.launches for d in log)
    assert sound.health.faults == 0


@pytest.mark.parametrize("fault", FaultyEngine.FAULTS)
@pytest.mark.parametrize("name", ["multi_einsum", "lobpcg", "eigsh"])
def test_what_the_host_does_after_a_fault_does_not_ask_again(fault, name):
    """The reference of each calls functions of trnpy, or multiplies by a matrix of trnpy's class."""
    pairs = [("ij,jk->ik", GENERAL[:20, :30], POSITIVE[:30, : 40 + i]) for i in range(2)]
    a, x = trnpy.sparse.csr_array(scipy.sparse.diags_array(1.0 / np.arange(1, N + 1))), GENERAL[:, :3].copy()
    call = {
        "multi_einsum": lambda: trnpy.multi_einsum(pairs),
        "lobpcg": lambda: trnpy.sparse.linalg.lobpcg(a, x, maxiter=60, tol=1e-4),
        "eigsh": lambda: trnpy.sparse.linalg.eigsh(a, 3, which="LA"),
    }[name]
    settings, one = trnpy.policy(force=True, time_limit=0.01), pytest.warns(NkiFallbackWarning, match="ran on the host")
    with engine(FaultyEngine(fault)) as faulty, settings, trnpy.trace() as log, one as warned:
        found = call()
    if name != "multi_einsum":
        np.testing.assert_allclose(np.sort(found[0])[::-1], [1, 1 / 2, 1 / 3], rtol=1e-4)
    assert len(warned) == faulty.health.faults == 1
    *inner, outer = log
    assert outer.reason is FaultyEngine.REASONS[fault] and outer.op.endswith(name)
    assert {d.detail for d in inner if d.reason is Reason.ERROR} == {"part of a call that met a device error"}


def test_wrong_numbers_count_as_faults_until_the_engine_rests():
    faulty = FaultyEngine("nan")
    caught = warnings.catch_warnings(record=True, action="always")
    with engine(faulty), trnpy.policy(force=True), trnpy.trace() as log, caught as warned:
        for _ in range(5):
            trnpy.linalg.cholesky(POSITIVE)
    assert faulty.health.open and len(warned) == faulty.health.faults
    assert "rests from now on" in str(warned[-1].message) and "resting" in log[-1].detail


def test_the_report_says_what_convicted_the_engine():
    with engine(FaultyEngine("nan")), trnpy.policy(force=True, fallback="log"), trnpy.trace() as log:
        trnpy.linalg.eigh(POSITIVE)
    assert log[0].detail == "a product is not finite; faulty (nan) gets a product of known answer wrong"


@pytest.mark.parametrize("dtype", ["?", "i1", "u2", "i8", "f2", "f4", "f8", "F", "D"])
def test_a_product_of_known_answer_tells_engines_apart(dtype):
    dtype = np.dtype(dtype)
    unit = np.finfo(dtype).eps if dtype.kind in "fc" else 0.0
    assert fit(HOST, dtype, unit) and fit(RecordingEngine(), dtype, unit)
    assert fit(Float32Engine(), dtype, unit) == (dtype.char not in "dD")
    if dtype.char in "fdFD":  # integers have no NaN, and 1.001 is as good as 1 in float16
        assert not fit(FaultyEngine("nan"), dtype, unit) and not fit(FaultyEngine("wrong"), dtype, unit)


@pytest.mark.parametrize("dtype, scale", [("f8", 1e-309), ("f4", 1e-39)])
def test_rounding_of_subnormal_numbers_is_no_fault(dtype, scale):
    """An eps of these numbers is below the least subnormal one, to which factors and residuals are rounded."""
    rng = np.random.default_rng(0)
    for _ in range(50):
        a = (scale * rng.standard_normal((2, 2))).astype(dtype)
        with engine(RecordingEngine()), trnpy.policy(force=True):
            trnpy.linalg.qr(a)  # NkiFallbackWarning would be an error
