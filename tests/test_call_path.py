"""From a public call to the chip: the files on the way of three calls, and how many a call enters in all.

The way is what lies on Python's stack when a kernel is launched, and the kernel's own file.  A file that is entered
and left again on the way, for a question or a conversion, counts among those entered only.
"""

import cProfile
import sys
from pathlib import Path

import numpy as np
import pytest

import trnpy
import trnpy.linalg
import trnpy.sparse
from trnpy._nki.simulated import SimulatorRuntime

ROOT = Path(trnpy.__file__).parent
RNG = np.random.default_rng(0)
SYMMETRIC = RNG.standard_normal((160, 160))
LEFT, RIGHT = (RNG.standard_normal(shape).astype("f4") for shape in ((40, 200), (200, 300)))
BLOCKS = RNG.standard_normal((6, 128, 128)).astype("f4"), np.array([0, 2, 1, 0, 3, 2]), np.array([0, 2, 3, 4, 6])
COLUMNS = RNG.standard_normal((512, 64)).astype("f4")

CALLS = {
    "eigh": lambda: trnpy.linalg.eigh(SYMMETRIC + SYMMETRIC.T),
    "einsum": lambda: trnpy.einsum("ij,jk->ik", LEFT, RIGHT),
    "bsr @ x": lambda: trnpy.sparse.bsr_array(BLOCKS, shape=(512, 512)) @ COLUMNS,
}
# Files from the public function to the kernel, those that only pass a call on left out: see PASSED_ON.
WAYS = {
    "eigh": [
        "_call/gate", "_call/dispatch", "linalg/_eigh", "linalg/_refinement", "_engine/device",
        "_engine/float64_products", "float64_matmul",
    ],
    "einsum": ["_call/gate", "_call/dispatch", "_einsum/plan", "_engine/device", "_engine/native_products", "matmul"],
    "bsr @ x": ["sparse/_matmul", "_call/gate", "_call/dispatch", "sparse/_device", "_engine/device", "csr_spmm"],
}  # fmt: skip
# Functions that a dry run replaces, operands that are made at first use, and the proof that waits for a product.
PASSED_ON = {"_engine/abstract_arrays", "_engine/proof/engine", "_engine/handles", "sparse/_classes"}
ENTERED = {"eigh": 34, "einsum": 29, "bsr @ x": 34}  # at most, kernels and what they share among them


def file_of(code):
    """The file below trnpy/ that code is of, without its ending; "" of all else and of the simulator's adapter."""
    # The frames of some calls carry another name, so that warnings pass them over: _base/conventions.uncounted.
    name = code.co_filename.removeprefix("<").partition(",")[0]
    if not name.startswith(str(ROOT)):
        return ""
    found = str(Path(name).relative_to(ROOT).with_suffix(""))
    return "" if found == "_nki/simulated" else found


def traced(call, monkeypatch):
    """(files on the way of each launch, without repetition; files entered)."""
    ways, run = [], SimulatorRuntime.run

    def noted(runtime, name, *operands, **parameters):
        frame, way = sys._getframe(1), []
        while frame is not None:
            way.append(file_of(frame.f_code))
            frame = frame.f_back
        seen = dict.fromkeys(found for found in reversed(way) if found and found not in PASSED_ON)
        ways.append([*seen, name])
        return run(runtime, name, *operands, **parameters)

    with trnpy.policy(device="simulator", force=True):
        call()  # what is loaded once is no part of a call
        monkeypatch.setattr(SimulatorRuntime, "run", noted)
        with cProfile.Profile() as profile:
            call()
    entered = {file_of(entry.code) for entry in profile.getstats() if not isinstance(entry.code, str)}
    # A record's methods are in _base/records until they are compiled, as those of dataclasses are in no file.
    # xp/_common is asked whether an operand is an Array, once trnpy.xp is loaded; a hook that was made by a patch is
    # compared with its original where a function is the key of a cache.
    return ways, entered - {"", "_base/records", "xp/_common", "_patch/hook"}


@pytest.mark.parametrize("name", CALLS)
def test_the_way_of_a_call_to_the_chip(name, monkeypatch):
    ways, entered = traced(CALLS[name], monkeypatch)
    print(f"{name}: {len(WAYS[name])} files on the way, {len(entered)} entered: {', '.join(sorted(entered))}")
    assert WAYS[name] in ways
    assert max(len(way) for way in ways) == len(WAYS[name])  # no launch takes a longer one
    assert len(entered) <= ENTERED[name]
