"""A decision says "device" of a call that was made only if there were launches, or products of the host engine."""

import numpy as np
import pytest

import trnpy
from trnpy._call.dispatch import Reason
from trnpy._report.tally import ran_on


@pytest.mark.parametrize("device", ["none", "simulator"])
def test_a_matrix_of_one_panel_is_the_hosts(device):
    small, large = np.eye(8) * 4, np.eye(130) * 4
    with trnpy.policy(device=device, force=True, fallback="raise"), trnpy.trace() as log:
        assert trnpy.linalg.cholesky(small).trace() == 16
        assert trnpy.linalg.cholesky(large).trace() == 260
    assert [(d.on_device, bool(d.launches)) for d in log] == [(False, False), (True, True)]
    assert [d.by_device_path for d in log] == [True, True]
    assert log[0].reason is Reason.NO_LAUNCH and log[0].engine == "host"
    assert "host: no_launch (forced: the device path had nothing to launch" in str(log[0])
    assert ran_on(log[0]) == "host"


def test_the_host_engine_counts_products_and_kernels():
    a = np.ones((3, 3), np.float32)
    with trnpy.policy(device="none", force=True), trnpy.trace() as log:
        trnpy.matmul(a, a)
    assert log[0].on_device and log[0].launches == (("product", 1),)
