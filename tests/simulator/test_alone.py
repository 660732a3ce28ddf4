"""nkisim without trnpy and without SciPy: only NumPy and ml_dtypes are installed."""

import pathlib
import subprocess
import sys

ROOT = pathlib.Path(__file__).parents[2]
KERNEL = ROOT / "examples" / "kernels" / "double.py"
# What an environment without these packages answers.
WITHOUT = """
import sys
class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in ("trnpy", "scipy"):
            raise ModuleNotFoundError(name)
sys.meta_path.insert(0, Missing())
from nkisim.cli import main
sys.exit(main(sys.argv[1:]))
"""


def alone(*arguments):
    command = [sys.executable, "-c", WITHOUT, *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True)


def test_a_kernel_runs_and_is_checked_without_trnpy_and_scipy(tmp_path):
    shape = ("--shape", "256x512")
    ran = alone("run", f"{KERNEL}:double", *shape)
    assert ran.returncode == 0, ran.stderr
    assert "modelled, not measured" in ran.stdout
    checked = alone("lint", f"{KERNEL}:double", *shape)
    assert checked.returncode == 0 and "0 errors" in checked.stdout
    drawn = alone("timeline", f"{KERNEL}:double", str(tmp_path / "t.json"), *shape)
    assert drawn.returncode == 0 and (tmp_path / "t.json").stat().st_size > 100
    wrong = alone("lint", f"{KERNEL}:missing", *shape)
    assert wrong.returncode in (1, 2) and wrong.stderr.startswith("nkisim lint: ")
