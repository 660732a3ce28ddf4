"""PySCF's own loops run on one thread: they are not what is tested here, and pytest's workers share the cores."""

import pyscf
import pytest


@pytest.fixture(autouse=True, scope="session")
def one_openmp_thread():
    with pyscf.lib.with_omp_threads(1):
        yield
