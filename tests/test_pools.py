"""Each route on the host computes with one library: NumPy's BLAS and SciPy's have threads of their own.

Those of one library spin for a tenth of a second after a call, and those of the other wait for their processors.
"""

import ast
import json
import os
import pathlib
import subprocess
import sys

import pytest
from host_routes import LIBRARIES, takes_stacks

import trnpy
from trnpy._host import compiled
from trnpy._host.pairwise import NAME

HERE = pathlib.Path(__file__).parent
SHORT = {"OPENBLAS_THREAD_TIMEOUT": "18"}  # 2^18 cycles, 0.1 ms: for which threads spin before they sleep
# What trnpy has of its own, and so without a route.
OWN = ("multi_einsum", "inv_sqrtm", "dfmp2_energy", "ao2mo", "build_jk_df", "screened_spmm", "masked_attention")
OWN += ("block_mask_matmul", "block_mask_matmul_gradients", "masked_attention_gradients")


def output(threads, *options):
    """What ``pools.py`` finds with that many threads of BLAS."""
    given = {n: v for n, v in os.environ.items() if n not in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS")}
    given |= SHORT | {"PYTHONPATH": os.pathsep.join([str(HERE.parent), str(HERE)])}
    if threads != "unset":
        given["OPENBLAS_NUM_THREADS"] = threads
    run = subprocess.run(
        [sys.executable, HERE / "pools.py", *options], env=given, capture_output=True, text=True, check=False
    )
    assert run.returncode == 0, run.stderr
    return json.loads(run.stdout)


@pytest.mark.skipif(not pathlib.Path("/proc/self/task").exists(), reason="only Linux says how long a thread has run")
@pytest.mark.parametrize("threads", ["2", "unset"])
def test_a_route_enters_the_threads_of_one_library(threads):
    found = output(threads)
    if not all(found["pools"].values()):
        pytest.skip(f"one BLAS for NumPy and SciPy, or none with threads: they brought {found['pools']}")
    entered = found["entered"]
    known = ("a product of NumPy's", "a product of SciPy's", "both", "neither")
    assert [entered.pop(name) for name in known] == [["NumPy"], ["SciPy"], ["NumPy", "SciPy"], []]
    assert {row: pools for row, pools in entered.items() if not set(pools) <= {LIBRARIES[row]}} == {}


def test_every_route_has_a_row():
    taken = {route for routes in output("1", "--routes").values() for route in routes}
    trees = [ast.parse(path.read_text()) for path in pathlib.Path(trnpy.__file__).parent.rglob("*.py")]
    calls = [node for tree in trees for node in ast.walk(tree) if isinstance(node, ast.Call) and len(node.args) == 3]
    named = [call.args[0] for call in calls if isinstance(call.func, ast.Name) and call.func.id == "Route"]
    elsewhere = set() if takes_stacks("eigh") else {"numpy.linalg over the stack"}
    elsewhere |= set() if compiled.loops() else {"a compiled loop"}
    assert {NAME if isinstance(name, ast.Name) else name.value for name in named} == taken | elsewhere


def test_what_is_trnpys_own_has_a_row():
    assert all(any(row.startswith(name) for row in LIBRARIES) for name in OWN)
