"""Programs that tests run under the runner as processes of their own, and how they are run."""

import os
import subprocess
import sys

import trnpy

TRNPY = ["-m", "trnpy", "--no-report"]


FACE = """
import sys
names = {k: v for k, v in vars(sys.modules["__main__"]).items() if not k.startswith("_") or k.startswith("__")}
names.pop("__builtins__")
print(names, sys.argv, repr(sys.path[0]), sys.modules["__main__"].__dict__ is globals(), __name__)
"""


FAILS = FACE + "def f():\n    raise ValueError('x') from KeyError('y')\nf()\n"


SPAWNS = """
import multiprocessing
import numpy as np
def f(n):
    import sys
    return "trnpy" in sys.modules, float(np.einsum("ij,ij->", np.ones((n, n)), np.ones((n, n))))
if __name__ == "__main__":
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        print(pool.map(f, [2, 3]), pool.starmap(np.dot, [(np.ones(2), np.ones(2))]))
"""


# A shell's background jobs ignore interrupts, and hand that down. Not by preexec_fn, which forks: SciPy's OpenBLAS
# stops its threads at a fork, and the next large scipy.linalg.lu of this process would wait for ever.
INTERRUPTIBLE = """import os, signal, sys
signal.signal(signal.SIGINT, signal.SIG_DFL)
os.execv(sys.executable, [sys.executable, *sys.argv[1:]])"""


INTERRUPTED = "import os, signal, time\nos.kill(os.getpid(), signal.SIGINT)\ntime.sleep(5)\n"


PROGRAM = """
import atexit
import numpy as np
import scipy.linalg
atexit.register(print, "goodbye")
a = np.add.outer(np.arange(300.0), np.arange(300.0) ** 2) + 300 * np.eye(300)
np.einsum("ij,jk->ik", a, a)
scipy.linalg.eigh(a + a.T)
np.dot(np.eye(3), np.eye(3))
print("hello")
"""


def run(folder, *argv, stdin="", **variables):
    """(exit status, stdout, stderr) of ``python argv`` in ``folder``."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith("TRNPY_")}
    environ = {**kept, "PYTHONPATH": os.path.dirname(os.path.dirname(trnpy.__file__)), "PYTHONDONTWRITEBYTECODE": "1"}
    ran = subprocess.run(
        [sys.executable, "-IS", "-c", INTERRUPTIBLE, *argv], cwd=folder, env=environ | variables, input=stdin,
        capture_output=True, text=True,
    )  # fmt: skip
    return ran.returncode, ran.stdout, ran.stderr
