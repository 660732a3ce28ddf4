"""The simulator as a runtime: results, counters, and its errors as a device's."""

import dataclasses

import numpy as np
import pytest

from nkisim.hardware import TRN2
from trnpy._nki.runtime import CompileError, DeviceMemoryError
from trnpy._nki.simulated import SimulatorRuntime, kernel


def test_launches_are_counted_and_variants_compiled_once():
    rng = np.random.default_rng(0)
    runtime = SimulatorRuntime(TRN2)
    a, b = rng.standard_normal((40, 30)).astype("f4"), rng.standard_normal((30, 20)).astype("f4")
    for _ in range(3):
        np.testing.assert_allclose(runtime.launch("matmul", a, b), a @ b, rtol=1e-4, atol=1e-4)
    runtime.launch("matmul", a.T.copy(), b, a_rows=False)
    assert runtime.counters.launches == {"matmul": 4} and runtime.counters.compiles == {"matmul": 2}
    assert runtime.counters.bytes_in == 4 * (a.nbytes + b.nbytes) and runtime.counters.bytes_out == 4 * 40 * 20 * 4


def test_a_kernel_that_is_refused_is_a_compile_error():
    with pytest.raises(CompileError, match="matmul"):
        SimulatorRuntime(TRN2).launch("matmul", np.ones((4, 4), "i4"), np.ones((4, 4), "i4"))


def test_operands_that_do_not_fit():
    tiny = dataclasses.replace(TRN2, hbm_bytes=100)
    with pytest.raises(DeviceMemoryError, match="100"):
        SimulatorRuntime(tiny).launch("matmul", np.ones((4, 4), "f4"), np.ones((4, 4), "f4"))


def test_an_unknown_kernel():
    with pytest.raises(KeyError, match="no such"):
        kernel("no such")
