"""Without host routes nothing changes but speed: with an empty table, and with ``_host/`` deleted."""

import os
import pathlib
import shutil
import subprocess
import sys

import pytest

import nkisim
import trnpy

ROOT = pathlib.Path(__file__).parents[2]
SAMPLE = ("_einsum/test_half.py", "linalg/test_eigh.py", "sparse/test_tiles.py")
WHOLE = ("_einsum", "linalg", "sparse")

USES = """
import sys
# The finder of an editable install would find the folder of the checkout.
sys.meta_path[:] = [finder for finder in sys.meta_path if "editable" not in getattr(finder, "__module__", "")]
import numpy as np, scipy.linalg, trnpy, trnpy.linalg, trnpy.sparse
assert "_host" not in __import__("os").listdir(trnpy.__path__[0])
rng = np.random.default_rng(0)
a, cube = rng.standard_normal((300, 300)), rng.standard_normal((200, 8, 8))
whole, definite = (9 * a).astype(np.int64), a @ a.T + np.eye(300)
same = np.testing.assert_array_equal
with trnpy.trace() as log:
    same(trnpy.einsum("ij,jk->ik", a, a), np.einsum("ij,jk->ik", a, a))
    same(trnpy.matmul(whole, whole), whole @ whole)
    same(trnpy.linalg.eigh(definite)[0], scipy.linalg.eigh(definite)[0])
    same(trnpy.linalg.svdvals(cube[0]), scipy.linalg.svdvals(cube[0]))
    same(trnpy.linalg.sqrtm(definite), scipy.linalg.sqrtm(definite))
    same(trnpy.linalg.blas.dgemm(1.0, a, a, trans_b=1), scipy.linalg.blas.dgemm(1.0, a, a, trans_b=1))
    blocks = trnpy.sparse.csr_array(np.kron(np.eye(8), np.ones((32, 32)))).tobsr((32, 32))
    same(blocks @ a[:256], scipy.sparse.bsr_array(blocks) @ a[:256])
assert not any(decision.route for decision in log), log
same(trnpy.multi_einsum([("ij,jk->ik", a, a)])[0], np.einsum("ij,jk->ik", a, a))
with trnpy.patched():
    same(np.einsum("ij,jk->ik", a, a), trnpy.einsum("ij,jk->ik", a, a))
    np.linalg.inv(definite)
with trnpy.policy(device="simulator", force=True), trnpy.trace() as log:
    np.testing.assert_allclose(trnpy.matmul(a, a), a @ a, rtol=1e-12, atol=1e-9)
assert log[0].on_device, log
"""


def run(*command, path, folder=ROOT):
    given = os.environ | {"PYTHONPATH": os.pathsep.join(map(str, path))}
    given.pop("PYTEST_XDIST_WORKER_COUNT", None)
    found = subprocess.run(
        [sys.executable, *command], env=given, capture_output=True, text=True, check=False, cwd=folder
    )
    assert found.returncode == 0, found.stdout[-5000:] + found.stderr[-5000:]


def suite(places):
    tests = [str(ROOT / "tests" / place) for place in places]
    run("-m", "pytest", "-q", "-p", "without_host", *tests, path=(ROOT, ROOT / "tests"))


def test_a_sample_of_the_suite_passes_with_an_empty_table():
    suite(SAMPLE)


@pytest.mark.slow
def test_the_suites_of_rows_with_routes_pass_with_an_empty_table():
    suite(WHOLE)


def test_trnpy_works_without_the_folder(tmp_path):
    for package in (trnpy, nkisim):
        place = pathlib.Path(package.__file__).parent
        shutil.copytree(place, tmp_path / place.name, ignore=shutil.ignore_patterns("_host", "__pycache__"))
    run("-c", USES, path=(tmp_path,), folder=tmp_path)
