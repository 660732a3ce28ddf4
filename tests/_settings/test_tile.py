"""TRNPY_TILE: one order of a tile, to which every block and every threshold is in proportion."""

import os
import subprocess
import sys

import pytest

SMALL = """
import numpy as np, trnpy
a = np.random.default_rng(0).standard_normal((5, 5)); s = a @ a.T + 5 * np.eye(5)
rows = "cholesky lu qr inv solve det eigh svd sqrtm expm".split()
with trnpy.policy(force=True), trnpy.trace() as log:
    for row in rows:
        getattr(trnpy.linalg, row)(s, *[s] * (row == "solve"))
assert all(d.on_device for d in log), log
with trnpy.trace() as log:
    trnpy.linalg.eigh(s), trnpy.matmul(s.astype("e"), s.astype("e"))
assert all(d.route for d in log), log
"""


def run(tile, code):
    return subprocess.run(
        [sys.executable, "-c", code], env=os.environ | {"TRNPY_TILE": tile}, capture_output=True, text=True
    )


def test_small_tiles_send_small_matrices_down_every_blocked_algorithm_and_route():
    done = run("2", SMALL)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("tile", ["0", "3", "256", "two", ""])
def test_a_wrong_size_is_an_error(tile):
    done = run(tile, "import trnpy._settings.tile")
    assert f"TRNPY_TILE={tile!r}: expected a power of two up to 128" in done.stderr
