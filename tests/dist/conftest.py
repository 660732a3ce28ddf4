"""Tests with the marker ``mpi`` run in every rank: a test that fails in one of them fails in all."""

import contextlib
import tempfile

import pytest

from trnpy import dist
from trnpy.dist import _start


def pytest_configure(config):
    if _start.launched() > 1:  # ranks that share pytest's folder remove each other's files
        config.option.basetemp = tempfile.mkdtemp(prefix="trnpy-rank-")


@pytest.fixture(autouse=True)
def together(request):
    """Ranks begin the next test together, also after one in which some of them failed."""
    yield
    if request.node.get_closest_marker("mpi") and _start.launched() > 1:
        failed = bool(request.node.stash.get(FAILED, False))
        while True:  # a rank that still waits in the test meets those here, fails, and comes here too
            with contextlib.suppress(dist.MismatchedCalls):
                anywhere = dist.comm().allreduce(failed, "max")
                break
        assert failed or not anywhere, "the test failed on another rank"


FAILED = pytest.StashKey()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item, call):
    report = yield
    if call.when == "call":
        item.stash[FAILED] = report.failed
    return report
