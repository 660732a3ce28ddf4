"""What each kind of reader sees first, line by line, on an idle host and on one whose processors are all busy."""

import contextlib
import os
import pathlib
import re
import subprocess
import sys

import pytest

from benchmarks.predictions import busy

ROOT = pathlib.Path(__file__).parents[1]
MEASURED = re.compile(r"\d[\d.,]* (?:[nµm]s|s|min)\b|\(\d+%\)")  # written # below: times differ from run to run
DECISIONS = """
import numpy as np, trnpy, trnpy.linalg
print(trnpy.explain(trnpy.linalg.eigh, np.eye(300)))
with trnpy.policy(device="null", machine="trn2"):
    print(trnpy.explain(trnpy.matmul, *2 * [np.zeros((4096, 4096), np.float32)]))
"""
NOTHING = r"trnpy: Nothing is large enough for a trn2: 1\d\d calls took # of # CPU time"
LINES = {  # arguments, and what the first lines match
    "chemist": (
        ["-m", "trnpy", "examples/water_clusters.py", "1"],
        [
            r"E\(RHF, 1 H2O\) = -76\.0091080324",
            NOTHING,
            r"trnpy: Sampled: .*imports.*; more: -v(, --html FILE)?$",  # the second way where the line has room
        ],
    ),
    "user of NumPy": (
        ["-m", "trnpy", "-c", "import numpy as np; np.einsum('ij,jk', np.eye(200), np.eye(200))"],
        [
            r"trnpy: One trn2 core would not make this run noticeably faster \(modelled\): no call can gain there\.",
        ],
    ),
    "user of SciPy": (
        ["-c", DECISIONS],
        [
            r"scipy\.linalg\.eigh: host by evd: route \(predicted 1\.\d times faster than the reference; host 0\.0",
            r"numpy\.matmul: device: faster \(modelled, [\d.]+ to [\d.]+ times; host [\d.]+ s predicted, uncalibrated",
        ],
    ),
    "author of kernels": (
        ["-m", "trnpy", "simulate", "examples/kernels/double.py:double_tile", "--shape", "128x512"],
        ["double_tile on trn2: modelled, not measured", r"\s*", r"\s+device time, modelled\s+14\.23 µs to 29\.91 µs"],
    ),
    "owner of a Trainium": (
        ["-m", "trnpy", "doctor"],
        [r"trnpy +0\.1\.0 \(trnpy-nki\), .+", r"python +3\.\d+\.\d+, ", r"packages +numpy \d"],
    ),
}


@pytest.mark.parametrize("host", [contextlib.nullcontext, busy], ids=["idle", "busy"])
@pytest.mark.parametrize("reader", LINES)
def test_first_lines(reader, host, tmp_path):
    arguments, expected = LINES[reader]
    settings = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "COLUMNS": "200", "XDG_CACHE_HOME": str(tmp_path)}
    environment = {**os.environ, **settings, "PYTHONPATH": str(ROOT)}
    with host():
        done = subprocess.run(
            [sys.executable, *arguments], cwd=ROOT, env=environment, capture_output=True, text=True, timeout=300
        )
    assert done.returncode == 0, done.stderr
    found = [
        MEASURED.sub("#", line) if "measured)" in line else line for line in (done.stdout + done.stderr).splitlines()
    ]
    for line, pattern in zip(found, expected, strict=False):
        assert re.match(pattern, line), (line, pattern)
    assert len(found) >= len(expected)
