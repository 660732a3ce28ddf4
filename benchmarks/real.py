"""Real programs: processor seconds of ten libraries' typical programs under the runner and inside a patch, over plain.

The programs are in ``real_programs/``, one a library; those of libraries that are not installed are left out. The fixed
cost is that of a program which makes one call, of 200 rows: of the runner's start and report, of the modules that the
first decision loads, and of ``patched()``, which imports the modules of SciPy that it patches. It is measured for a
program that imports these itself, and for one that does not.
"""

from __future__ import annotations

import argparse
import importlib.util
import subprocess
import sys
import tempfile
from pathlib import Path

from benchmarks._measure import gate, header
from benchmarks._processes import FIXED_S, LIMIT, PATCHED, environment, medians

FOLDER = Path(__file__).parent / "real_programs"
PACKAGES = {"scikit": "sklearn"}  # others are imported under the first word of the file's name
FIRST = "import numpy as np\nnp.linalg.solve(np.eye(200), np.eye(200))\n"
WITH_SCIPY = "import scipy.linalg, scipy.sparse.linalg\n" + FIRST
ASKED = (
    "import runpy, sys\nrunpy.run_path(sys.argv[1], run_name='__main__')\n"
    "sys.exit('scipy.sparse.linalg' in sys.modules)"
)


def commands(program: Path) -> dict[str, list[str]]:
    return {
        "plain": [str(program)],
        "runner": ["-m", "trnpy", str(program)],
        "patched": ["-c", PATCHED, str(program)],
    }


def fixed_s(text: str, folder: str, rounds: int) -> dict[str, float]:
    """Seconds that the runner and ``patched()`` add to a program of one call."""
    program = Path(folder, "first.py")
    program.write_text(text)
    found = medians(commands(program), folder, rounds)
    return {way: found[way] - found["plain"] for way in ("runner", "patched")}


def imports_scipy(program: Path, folder: str) -> bool:
    """Whether a program imports the modules of SciPy that a patch covers."""
    ran = subprocess.run(
        [sys.executable, "-c", ASKED, program], cwd=folder, env=environment(folder), capture_output=True
    )
    return ran.returncode == 1


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks real", description=__doc__)
    parser.add_argument("names", nargs="*", help="libraries, by the first word of their program's name; default: all")
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args(argv)
    gate("tests/_cli/test_runner.py", "tests/_call/test_gate.py")
    header("real programs, processor seconds over plain ones", f"medians of {options.rounds} runs in turns")
    over = 0
    with tempfile.TemporaryDirectory() as folder:
        fixed = {scipy: fixed_s(WITH_SCIPY if scipy else FIRST, folder, 3 * options.rounds) for scipy in (True, False)}
        for scipy, found in fixed.items():
            over += found["runner"] > FIXED_S
            costs = ", ".join(f"{way} {1e3 * s:.0f} ms" for way, s in found.items())
            print(f"fixed cost of a program {'with' if scipy else 'without'} SciPy: {costs}")
        print()
        print(f"{'program':28}{'plain s':>9}" + "".join(f"{way:>10}{'net':>8}" for way in fixed[True]))
        for program in sorted(FOLDER.glob("*.py")):
            package = program.stem.partition("_")[0]
            if options.names and package not in options.names:
                continue
            if importlib.util.find_spec(PACKAGES.get(package, package)) is None:
                print(f"{program.stem:28}left out: not installed")
                continue
            try:
                found = medians(commands(program), folder, options.rounds)
            except RuntimeError as why:
                over += 1
                print(f"{program.stem:28}FAILED: {why}")
                continue
            cells = ""
            for way, start_s in fixed[imports_scipy(program, folder)].items():
                net = (found[way] - start_s) / found["plain"]
                over += net > LIMIT
                cells += f"{found[way] / found['plain']:10.3f}{net:8.3f}"
            print(f"{program.stem:28}{found['plain']:9.2f}{cells}", flush=True)
    print(f"\nall within {LIMIT} and {1e3 * FIXED_S:.0f} ms" if not over else f"\n{over} over their limit")
    return int(bool(over))
