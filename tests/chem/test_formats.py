"""What an engine's kernels multiply says how chemistry is computed: by digits, in float32, or product by product."""

import numpy as np
import pytest

import trnpy.chem
from nkisim.hardware import TRN2
from trnpy import policy, trace
from trnpy._call.decisions import Unsupported
from trnpy._engine.engines import HOST, DeviceEngine, engine
from trnpy._engine.precision import Facts
from trnpy._nki.simulated import SimulatorRuntime
from trnpy.chem._formats import ByDigits

KERNELS = {"mp2_energy", "ao_to_mo", "schwarz_screened_spmm"}


def calls():
    rng = np.random.default_rng(0)
    b, occ, vir = rng.standard_normal((2, 9, 12)), np.array([-2.0, -1.0]), np.arange(1.0, 10.0)
    g = rng.standard_normal((4, 10, 10))
    g = g + g.swapaxes(1, 2)
    left, right = rng.standard_normal((20, 30)), rng.standard_normal((30, 12))
    return (
        lambda: trnpy.chem.dfmp2_energy(b, occ, vir).total,
        lambda: trnpy.chem.ao2mo(g, g[0, :, :3], g[1, :, :4]),
        lambda: trnpy.chem.screened_spmm(left, right, 1e-9),
    )


def device(**facts):
    e = DeviceEngine(SimulatorRuntime(TRN2))
    e.facts = Facts(**facts)
    return e


def test_operands_below_the_kernels_range_are_refused():
    formats = ByDigits(device())
    formats.send(np.full((2, 2), 1e-200), 1e-200)
    with pytest.raises(Unsupported, match="the largest element of an operand is 1e-300"):
        formats.send(np.full((2, 2), 1e-300), 1e-300)


@pytest.mark.parametrize(
    "make, precision, fused",
    [
        (device, "matched", True),
        (lambda: device(float32_products=False), "matched", True),
        (lambda: device(exact_sums=False), "matched", False),
        (device, "fp32", True),
        (lambda: device(exact_sums=False), "fp32", True),
        (device, "bf16", False),
        (lambda: HOST, "matched", False),
        (lambda: HOST, "fp32", False),
    ],
)
def test_kernels_serve_the_formats_that_probes_found_good(make, precision, fused):
    used = make()
    for call in calls():
        expected = call()
        before = set(used.counters.launches)
        with engine(used), policy(force=True, precision=precision, fallback="raise"), trace() as log:
            found = call()
        assert log[0].on_device, log[0]
        assert bool(KERNELS & (set(used.counters.launches) - before)) == fused
        digits = {"matched": 1e-9, "fp32": 1e-5, "bf16": 5e-2}[precision]
        np.testing.assert_allclose(found, expected, rtol=0, atol=digits * np.abs(expected).max())
