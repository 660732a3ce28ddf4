"""Of an installed wheel: all compiled parts are there, calls agree with NumPy's and SciPy's, and the runner runs."""

import importlib
import subprocess
import sys

import numpy as np
import scipy.linalg

import trnpy
import trnpy.linalg

for part in ("trnpy._call._gate", "trnpy._patch._entry", "trnpy._host._stacks", "trnpy.xp._quick"):
    importlib.import_module(part)
rng = np.random.default_rng(0)
stack = rng.standard_normal((500, 4, 4))
stack = stack @ stack.swapaxes(-1, -2) + 4 * np.eye(4)
w = trnpy.linalg.eigh(stack, eigvals_only=True)
assert np.allclose(w, scipy.linalg.eigh(stack, eigvals_only=True), rtol=1e-13)
assert np.allclose(trnpy.einsum("bij,bjk->bik", stack, stack), stack @ stack, rtol=1e-13)
program = "import numpy as np; np.einsum('ij,jk', np.eye(200), np.eye(200))"
done = subprocess.run([sys.executable, "-m", "trnpy", "-c", program], capture_output=True, text=True, check=True)
assert "trnpy" in done.stderr
print(
    f"trnpy {trnpy.__version__} runs: NumPy {np.__version__}, SciPy {scipy.__version__}, "
    f"Python {sys.version.split()[0]}"
)
