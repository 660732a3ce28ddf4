"""python -m conformance neuronx: trnpy's kernels through AWS's own compiler, if it is installed.

No Trainium is needed: the compiler writes NEFF files on any x86 Linux. Every kernel is compiled for trn1, trn2 and trn3
with each front end, each in a process and a folder of its own. If the compiler has its simulator of compiled
programs (BIRSim), results are compared with those of trnpy's simulator. One page holds the outcome: send it to us.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import importlib.util
import json
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from conformance.neuronx._compile import FRONT_ENDS
from conformance.nki._ours import CASES, MACHINES, Case
from trnpy._nki.kernels import located
from trnpy._nki.simulator.chip.dtypes import STORAGE
from trnpy._nki.simulator.run.launch import Kernel, Specification, simulate
from trnpy._nki.simulator.runtime import kernel as simulated

HOW = (
    "python3 -m venv neuron && . neuron/bin/activate\n"
    "pip install trnpy-nki pytest\n"
    "pip install neuronx-cc nki --extra-index-url https://pip.repos.neuron.amazonaws.com"
)
CACHE = Path("/var/tmp/nki-intermediate-cache")  # else NCC_EVRF059; it also keeps failed compiles
SECONDS = 900  # for one kernel; the slowest known one takes 15
RTOL = 1e-4


@dataclass(frozen=True)
class Cell:
    """One kernel for one target through one front end."""

    kernel: str
    target: str
    front_end: str
    ok: bool
    seconds: float | None
    neff_bytes: int | None
    birsim: str
    error: str

    @property
    def shown(self) -> str:
        if not self.ok:
            return "NO"
        simulated = "" if self.birsim in ("not offered", "not asked for") else f", BIRSim {self.birsim}"
        return f"{self.seconds:.0f} s, {(self.neff_bytes or 0) / 1024:.0f} KiB{simulated}"


def missing() -> list[str]:
    """What the compiler needs and this machine does not have, one sentence each."""
    found = []
    if importlib.util.find_spec("nki") is None:
        found.append("the package nki is not installed in this Python")
    if shutil.which("neuronx-cc") is None:
        found.append("neuronx-cc is not on PATH (activate its environment: its bin folder must be first)")
    if platform.machine() != "x86_64" or platform.system() != "Linux":
        found.append(f"the compiler exists for x86 Linux; this is {platform.machine()} {platform.system()}")
    return found


def versions() -> dict[str, str]:
    found = {"python": platform.python_version()}
    for name in ("nki", "neuronx-cc", "trnpy-nki", "numpy"):
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            found[name] = "unknown"
    return found


def operands(case: Case) -> list[Any]:
    """Arrays of the case's shapes. Integers are small, so that they are valid indices."""
    rng = np.random.default_rng(0)
    return [None if s is None else _operand(s, rng) for s in case.operands]


def _operand(wanted: Specification, rng: np.random.Generator) -> Any:
    storage = STORAGE[str(wanted.dtype)]
    if storage.kind in "iu":
        return np.ones(wanted.shape, storage)
    return rng.integers(-4, 5, wanted.shape).astype(storage)


def cell(name: str, target: str, front_end: str) -> Cell:
    """Compile the first case of a kernel in a process and a folder of its own."""
    module, function = located(name)
    case = CASES[name][0]
    arrays = operands(case)
    with tempfile.TemporaryDirectory(prefix="trnpy-neuronx-") as scratch:
        folder = Path(scratch)
        paths = [None if a is None else str(folder / f"operand-{n}.npy") for n, a in enumerate(arrays)]
        for path, array in zip(paths, arrays, strict=True):
            if path is not None:
                np.save(path, array)
        floats = all(a is None or a.dtype == np.float32 for a in arrays)  # .npy files lose other dtypes
        request = {
            "module": module, "function": function, "operands": paths,
            "settings": dict(case.settings), "target": target, "front_end": front_end, "folder": scratch,
            "simulate": floats,
        }  # fmt: skip
        (folder / "request.json").write_text(json.dumps(request))
        found = _child(folder, target, front_end)
        if found.get("birsim") == "ran":
            found["birsim"] = _compared(simulated(name), arrays, case, target, folder)
    return Cell(
        name, target, front_end, found["ok"], found.get("seconds"), found.get("neff_bytes"),
        found.get("birsim", ""), "" if found["ok"] else f"{found['step']}: {found['error']}",
    )  # fmt: skip


def _child(folder: Path, target: str, front_end: str) -> dict[str, Any]:
    environment = {
        **os.environ, "NEURON_PLATFORM_TARGET_OVERRIDE": target, "NEURON_LOGICAL_NC_CONFIG": "1",
        "NKI_COMPILER_FRONTEND": front_end, "NEURON_CC_FLAGS": "--auto-cast=none",
    }  # fmt: skip
    command = [sys.executable, "-m", "conformance.neuronx._compile", str(folder / "request.json")]
    root = str(Path(__file__).parents[2])
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, (root, os.environ.get("PYTHONPATH"))))
    try:
        done = subprocess.run(
            command, cwd=folder, env=environment, capture_output=True, text=True, timeout=SECONDS, check=False
        )
    except subprocess.TimeoutExpired:
        return {"ok": False, "step": "compile", "error": f"not done in {SECONDS} s"}
    try:
        answer: dict[str, Any] = json.loads(done.stdout.strip().rpartition("\n")[2])
    except ValueError:
        words = " ".join((done.stderr or done.stdout).split())[-400:]
        return {"ok": False, "step": f"process ended with {done.returncode}", "error": words}
    return answer


def _compared(kernel: Kernel, arrays: list[Any], case: Case, target: str, folder: Path) -> str:
    """The largest difference of BIRSim's outputs from those of trnpy's simulator."""
    outputs = simulate(kernel, target)(*arrays, **case.settings)
    worst = 0.0
    for n, expected in enumerate(outputs if isinstance(outputs, tuple) else (outputs,)):
        got = np.load(folder / f"output-{n}.npy").astype(np.float64)
        want = np.asarray(expected, np.float64)
        if got.shape != want.shape:
            return f"DIFFERS: output {n} has shape {got.shape}, not {want.shape}"
        worst = max(worst, float(np.abs(got - want).max() / max(np.abs(want).max(), 1e-30)))
    return f"agrees to {worst:.1g}" if worst <= RTOL else f"DIFFERS by {worst:.2g}"


def cells(names: Iterable[str], targets: Iterable[str], front_ends: Iterable[str]) -> Iterator[Cell]:
    for name in names:
        for target in targets:
            for front_end in front_ends:
                yield cell(name, target, front_end)


def page(found: list[Cell]) -> str:
    """One Markdown page: versions, the table, and the compiler's words where it refused."""
    columns = list(dict.fromkeys((c.target, c.front_end) for c in found))
    lines = ["# trnpy's kernels through AWS's compiler", ""]
    lines += [f"- {name} {version}" for name, version in versions().items()]
    good = sum(c.ok and not c.birsim.startswith("DIFFERS") for c in found)
    lines += ["", f"{good} of {len(found)} compile, and agree where they can be compared.", ""]
    lines.append("| kernel | " + " | ".join(f"{target} {front_end}" for target, front_end in columns) + " |")
    lines.append("|---" * (len(columns) + 1) + "|")
    for name in dict.fromkeys(c.kernel for c in found):
        row = {(c.target, c.front_end): c.shown for c in found if c.kernel == name}
        lines.append(f"| {name} | " + " | ".join(row.get(column, "") for column in columns) + " |")
    refused = [c for c in found if not c.ok]
    if refused:
        lines += ["", "## Refused", ""]
        lines += [f"- {c.kernel}, {c.target}, {c.front_end}: {' '.join(c.error.split())[:600]}" for c in refused]
    return "\n".join(lines) + "\n"


def main(argv: list[str]) -> int:
    """0 if every kernel compiles and agrees, 1 if one does not, 2 without the compiler."""
    parser = argparse.ArgumentParser(prog="python -m conformance neuronx", description=__doc__)
    parser.add_argument("--kernel", action="append", choices=sorted(CASES), help="one of trnpy's; default all")
    parser.add_argument("--target", action="append", choices=MACHINES)
    parser.add_argument("--front-end", action="append", choices=sorted(FRONT_ENDS))
    parser.add_argument("--page", type=Path, default=Path("neuronx.md"), help="where the page is written")
    options = parser.parse_args(argv)
    absent = missing()
    if absent:
        print("AWS's compiler is not here:")
        for sentence in absent:
            print(f"  {sentence}")
        print(f"It needs no Trainium. To get it, on x86 Linux:\n{HOW}")
        return 2
    if not CACHE.parent.is_dir() or not os.access(CACHE.parent, os.W_OK):
        print(f"note: {CACHE.parent} is not writable; the compiler keeps {CACHE.name} there (NCC_EVRF059)")
    else:
        CACHE.mkdir(exist_ok=True)
    found = []
    for one in cells(options.kernel or CASES, options.target or MACHINES, options.front_end or sorted(FRONT_ENDS)):
        print(f"{one.kernel}, {one.target}, {one.front_end}: {one.shown}", flush=True)
        found.append(one)
        options.page.write_text(page(found))
    print(f"page written to {options.page}")
    return 0 if all(c.ok and not c.birsim.startswith("DIFFERS") for c in found) else 1
