"""python -m conformance neuronx: trnpy's kernels through AWS's own compiler, if it is installed.

No Trainium is needed: the compiler writes NEFF files on any x86 Linux. Every kernel is compiled for trn1, trn2 and trn3
with each front end, each in a process and a folder of its own, for the operands of ``doctor --probe``. If the compiler
has its simulator of compiled programs (BIRSim), results are compared with the twins'. One page holds the outcome: send
it to us.

--keep FOLDER keeps the NEFF files. --run FOLDER executes them on a Trainium by nrtpy, AWS's runtime for Python, which
needs neither torch nor the compiler, and writes a page with times.
"""

from __future__ import annotations

import argparse
import contextlib
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

from conformance.neuronx._run import main as run
from conformance.nki._ours import MACHINES
from trnpy._cli.probes import ALL
from trnpy._nki.device import software, unpaired
from trnpy._nki.neff import FRONT_ENDS

HOW = (
    "python3 -m venv neuron && . neuron/bin/activate\n"
    "pip install trnpy-nki pytest\n"
    "pip install neuronx-cc nki --extra-index-url https://pip.repos.neuron.amazonaws.com"
)
CACHE = Path("/var/tmp/nki-intermediate-cache")  # else NCC_EVRF059; it also keeps failed compiles
SECONDS = 900  # for one kernel; the slowest known one takes 15


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
        simulated = "" if self.birsim == "not offered" else f", BIRSim {self.birsim}"
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


KERNELS = sorted({check.kernel for check in ALL})


def cell(number: int, target: str, front_end: str, keep: Path | None = None) -> Cell:
    """Compile the kernel of a check in a process and a folder of its own, which stays if it lies in ``keep``."""
    name = ALL[number].kernel
    before = sum(check.kernel == name for check in ALL[:number])
    name += f" ({before + 1})" if before else ""
    with _folder(keep, f"{name}, {target}, {front_end}") as folder:
        request = {"check": number, "target": target, "front_end": front_end}
        (folder / "request.json").write_text(json.dumps(request))
        found = _child(folder, target, front_end)
    return Cell(
        name, target, front_end, found["ok"], found.get("seconds"), found.get("neff_bytes"),
        found.get("birsim", ""), "" if found["ok"] else f"{found['step']}: {found['error']}",
    )  # fmt: skip


@contextlib.contextmanager
def _folder(keep: Path | None, name: str) -> Iterator[Path]:
    """An empty folder: one that stays, ``name`` in ``keep``, or one that is deleted."""
    if keep is None:
        with tempfile.TemporaryDirectory(prefix="trnpy-neuronx-") as scratch:
            yield Path(scratch)
    else:
        shutil.rmtree(keep / name, ignore_errors=True)
        (keep / name).mkdir(parents=True)
        yield (keep / name).resolve()


def _child(folder: Path, target: str, front_end: str) -> dict[str, Any]:
    environment = {
        **os.environ, "NEURON_PLATFORM_TARGET_OVERRIDE": target, "NEURON_LOGICAL_NC_CONFIG": "1",
        "NKI_COMPILER_FRONTEND": front_end, "NEURON_CC_FLAGS": "--auto-cast=none",
    }  # fmt: skip
    command = [sys.executable, "-m", "conformance.neuronx._compile", str(folder)]
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


def cells(
    names: Iterable[str], targets: Iterable[str], front_ends: Iterable[str], keep: Path | None = None
) -> Iterator[Cell]:
    """Every check of the named kernels."""
    wanted = set(names)
    for number, check in enumerate(ALL):
        for target in targets if check.kernel in wanted else ():
            for front_end in front_ends:
                yield cell(number, target, front_end, keep)


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
    """0 if every kernel compiles, or runs, and agrees; 1 if one does not; 2 without the compiler, or nrtpy."""
    parser = argparse.ArgumentParser(prog="python -m conformance neuronx", description=__doc__)
    parser.add_argument("--kernel", action="append", choices=KERNELS, help="one of trnpy's; default all")
    parser.add_argument("--target", action="append", choices=MACHINES)
    parser.add_argument("--front-end", action="append", choices=sorted(FRONT_ENDS))
    parser.add_argument("--page", type=Path, default=Path("neuronx.md"), help="where the page is written")
    parser.add_argument("--keep", type=Path, metavar="FOLDER", help="keep the NEFF files")
    parser.add_argument("--run", type=Path, metavar="FOLDER", help="execute the NEFF files of --keep, by nrtpy")
    options = parser.parse_args(argv)
    if options.run is not None:
        return run(options.run, options.page)
    absent = missing()
    if absent:
        print("AWS's compiler is not here:")
        for sentence in absent:
            print(f"  {sentence}")
        print(f"It needs no Trainium. To get it, on x86 Linux:\n{HOW}")
        return 2
    if problem := unpaired(software()):
        print(problem)
        return 2
    if not CACHE.parent.is_dir() or not os.access(CACHE.parent, os.W_OK):
        print(f"note: {CACHE.parent} is not writable; the compiler keeps {CACHE.name} there (NCC_EVRF059)")
    else:
        CACHE.mkdir(exist_ok=True)
    found = []
    chosen = (options.kernel or KERNELS, options.target or MACHINES, options.front_end or sorted(FRONT_ENDS))
    for one in cells(*chosen, options.keep):
        print(f"{one.kernel}, {one.target}, {one.front_end}: {one.shown}", flush=True)
        found.append(one)
        options.page.write_text(page(found))
    print(f"page written to {options.page}")
    if options.keep is not None:
        print(f"on a Trainium, with nrtpy instead of nki: python -m conformance neuronx --run {options.keep}")
    return 0 if all(c.ok and not c.birsim.startswith("DIFFERS") for c in found) else 1
