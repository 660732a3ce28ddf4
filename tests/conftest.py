"""Every test starts from the same host and the same examples: no stored calibration, hypothesis from a fixed seed.

``pytest --hypothesis-profile search`` draws new examples at each run: how failures nobody thought of are found;
``nightly`` draws 10,000 for each test.

Processes of ``-n`` share the processors. With as many threads of OpenBLAS in each as there are processors, they would
wait for each other for most of the time. ``OPENBLAS_NUM_THREADS`` in the environment decides where it is set.

Tests in ``full.txt`` get the mark ``full`` and do not run by default; ``-p cpu_limit`` finds tests that belong there.
"""

import itertools
import os

if workers := os.environ.get("PYTEST_XDIST_WORKER_COUNT"):  # before NumPy is imported, which reads it once
    os.environ.setdefault("OPENBLAS_NUM_THREADS", str(max((os.cpu_count() or 1) // int(workers), 1)))

import pytest
from full_tests import full
from hypothesis import settings

from trnpy._settings.host_rates import current_rates
from trnpy._settings.policy import Rates

settings.register_profile("fixed", derandomize=True, deadline=None)  # a busy machine is no failure
settings.register_profile("search", derandomize=False, print_blob=True, deadline=None)
settings.register_profile("nightly", settings.get_profile("search"), max_examples=10_000)
settings.load_profile("fixed")


@pytest.hookimpl(tryfirst=True)  # before pytest reads -m
def pytest_collection_modifyitems(items):
    cases = [(item.nodeid, item.callspec.params if hasattr(item, "callspec") else {}) for item in items]
    left_out = full(cases)
    for item in items:
        if item.nodeid in left_out:
            item.add_marker(pytest.mark.full)


@pytest.fixture(scope="session")
def caches(tmp_path_factory):
    """Names of folders that do not exist: pytest takes milliseconds to make one, and few tests write into it."""
    folder = tmp_path_factory.mktemp("caches")
    return (str(folder / str(number)) for number in itertools.count())


@pytest.fixture(autouse=True)
def uncalibrated(caches, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", next(caches))
    monkeypatch.setattr(Rates, "turn", object())  # no decision of another test is remembered
    current_rates.cache_clear()
    yield
    current_rates.cache_clear()
