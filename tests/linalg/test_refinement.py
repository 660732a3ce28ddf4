"""Refinement of eigenpairs: as accurate in threads and after a fault, nothing where a precision does not refine."""

import threading

import numpy as np
import pytest
from doubles import RecordingEngine

import trnpy.linalg
from linalg.matrices import hermitian, positive
from tests.linalg.test_eigh import check, forced
from trnpy._call.dispatch import Reason
from trnpy._engine.engines import engine
from trnpy.linalg import _matrices, _refinement


@pytest.mark.parametrize("name", ["eigh", "svd", "pinvh", "inv_sqrtm"])
def test_a_precision_that_does_not_refine_launches_nothing(name):
    """It took eight refinements to find out."""
    function, a = getattr(trnpy.linalg, name), positive(40, "f8", 1e2)
    with trnpy.policy(device="simulator", precision="fp32", force=True, fallback="raise"), trnpy.trace() as log:
        function(a)
    assert (log[0].on_device, log[0].reason, log[0].launches) == (False, Reason.POLICY, ())
    assert "fp32" in log[0].detail


class _Slips(RecordingEngine):
    """Products that the caller does not have proved err by ``error`` of their largest entry."""

    error = 1e-5

    def matmul(self, a, b, *, proved=True, **options):
        c = super().matmul(a, b, **options)
        if not proved:
            self.slips += 1
            c.array[3, 5] += self.error * np.abs(c.array).max()
        return c

    slips = 0


@pytest.mark.parametrize("family", ["random", "clustered 1e-10", "laplacian"])
def test_a_fault_in_an_early_iteration_leaves_the_result_as_accurate(family):
    a = hermitian(family, 129, "f8")
    with engine(_Slips()) as e, trnpy.policy(force=True), trnpy.trace() as log:
        w, x = trnpy.linalg.eigh(a)
    assert e.slips >= 4 and log[0].on_device, log
    check(a, w, x)


@pytest.mark.parametrize("dtype", ["f8", "c16"])
@pytest.mark.parametrize("family", ["random", "clustered 1e-10"])
def test_passes_in_threads_are_as_accurate(family, dtype, monkeypatch):
    names, groups = set(), []

    def noted(pieces, work, count, original=_matrices.in_threads):
        groups.append(min(len(pieces), count))
        return original(pieces, lambda p: names.add(threading.current_thread().name) or work(p), count)

    for module in (_matrices, _refinement):
        monkeypatch.setattr(module, "in_threads", noted)
    monkeypatch.setattr(_matrices, "THREADED", 0)
    monkeypatch.setattr(_matrices, "STRIP", 129 * 8)
    monkeypatch.setattr(_matrices, "threads", lambda: 3)
    monkeypatch.setattr(_refinement, "SQUARE", 32)
    a = hermitian(family, 129, dtype)
    check(a, *forced(a))
    assert max(groups) > 1 and names and all(name.startswith("trnpy pass") for name in names)


def test_small_clusters_may_be_close_and_nothing_beside_them():
    """Five values, of which the second and the third are close."""
    d, near = np.array([0.0, 1.0, 1.0, 2.0, 3.0]), 0.5
    assert _refinement._separated(d, [slice(1, 3)], near) and not _refinement._separated(d, [], near)
    for others in ([0.0, 1.0, 1.0, 1.1, 3.0], [0.9, 1.0, 1.0, 2.0, 3.0], [0.0, 1.0, 1.0, 2.0, 2.1]):
        assert not _refinement._separated(np.array(others), [slice(1, 3)], near)
    large = np.zeros(_refinement.SMALL_CLUSTER + 1)
    assert _refinement._separated(large[1:], [slice(0, len(large) - 1)], near)
    assert not _refinement._separated(large, [slice(0, len(large))], near)
