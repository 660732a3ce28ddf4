"""python -m trnpy program.py over python program.py: whole processes, including start-up and report.

Programs of 1.7 to 3.5 seconds (two cores of an EPYC) call NumPy and SciPy as real programs do: many short calls, or few
long ones. What the runner adds to any program is in rows of its own, in milliseconds, and in a line with its share of
runs of other lengths: the ratios of programs include it. Programs that need packages which are not
installed are named and left out. Bytecode is compiled before the measurements, as installing trnpy does. On several
threads the runner also gains: threads of OpenBLAS that wait sleep sooner (docs/baselines.md#threads-that-wait).

Both sides run with fixed thresholds of glibc's allocator. Its own ones follow the order of all allocations, so that it
is chance whether an array of a loop gets new pages at each turn (docs/baselines.md#what-the-runner-adds).
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time

from benchmarks._measure import gate, header
from benchmarks._processes import KEPT_PAGES
from benchmarks._threads import alone

LIMIT, SMALL_LIMIT = 1.02, 1.10  # of the median of all programs, and of each program that makes small calls
ROUNDS = 5
START_ROUNDS = 15
LENGTHS = 1, 3, 10, 60  # seconds of programs for which the share of the fixed cost is printed
EXAMPLES = pathlib.Path(__file__).parents[1] / "examples"

# name -> (package it needs, source); these make tens of thousands of small calls.
SMALL = {
    "kalman filter": ("numpy", """
        import numpy as np
        rng = np.random.default_rng(0)
        f, h, q, r = np.eye(4) + np.eye(4, k=2) * 0.1, np.eye(2, 4), 0.01 * np.eye(4), np.eye(2)
        x, p = np.zeros(4), np.eye(4)
        for z in rng.standard_normal((200000, 2)):
            x, p = np.dot(f, x), f @ p @ f.T + q
            k = p @ h.T @ np.linalg.inv(h @ p @ h.T + r)
            x, p = x + np.dot(k, z - np.dot(h, x)), p - k @ h @ p
    """),
    "rigid bodies": ("numpy", """
        import numpy as np
        rng = np.random.default_rng(0)
        x, y = rng.standard_normal((2, 50, 3))
        for _ in range(140000):
            u, s, v = np.linalg.svd(np.einsum("ni,nj->ij", x, y))
            turn = u @ np.diag([1, 1, np.sign(np.linalg.det(u @ v))]) @ v
            y = 0.99 * y + 0.01 * np.dot(x, turn)
    """),
    "newton": ("numpy", """
        import numpy as np
        rng = np.random.default_rng(0)
        for _ in range(50000):
            a, x = rng.standard_normal((10, 6)), np.zeros(6)
            for _ in range(5):
                e = np.exp(-np.dot(a, x))
                x = x + np.linalg.solve(np.einsum("ni,n,nj->ij", a, e, a) + np.eye(6), np.dot(a.T, e) - x)
    """),
    "oscillators": ("scipy", """
        import numpy as np
        from scipy.integrate import solve_ivp
        k = np.diag(np.full(12, 2.0)) - np.eye(12, k=1) - np.eye(12, k=-1)
        solve_ivp(lambda t, y: np.concatenate([y[12:], -np.dot(k, y[:12])]), (0, 7000), np.ones(24), rtol=1e-8)
    """),
    "parafac2": ("tensorly", """
        import warnings
        import numpy as np
        from tensorly.decomposition import parafac2
        warnings.simplefilter("ignore")
        rng = np.random.default_rng(0)
        a, b, c = rng.uniform(1, 2, (30, 3)), rng.standard_normal((3, 3)), rng.uniform(1, 2, (20, 3))
        noise = 0.1 * rng.standard_normal((30, 40, 20))
        slices = [np.linalg.qr(e[:, :3])[0] @ b @ np.diag(row) @ c.T + e for row, e in zip(a, noise)]
        parafac2(slices, 3, n_iter_max=800, tol=1e-30, random_state=0)
    """),
}  # fmt: skip
LARGE = {
    "principal components": ("numpy", """
        import numpy as np
        x = np.random.default_rng(0).standard_normal((4000, 300))
        for _ in range(30):
            u, s, v = np.linalg.svd(x - x.mean(0), full_matrices=False)
            x = (u * s) @ v + 0.1
    """),
    "ridge regression": ("numpy", """
        import numpy as np
        x, y = np.random.default_rng(0).standard_normal((3000, 500)), np.ones(3000)
        for shrinkage in np.logspace(-3, 3, 150):
            np.linalg.solve(x.T @ x + shrinkage * np.eye(500), x.T @ y)
    """),
    "spin chain": ("numpy", """
        import numpy as np
        x, z, n = np.array([[0.0, 1], [1, 0]]), np.diag([1.0, -1]), 9
        def at(op, i):
            return np.kron(np.kron(np.eye(2**i), op), np.eye(2 ** (n - i - 1)))
        for field in np.linspace(0.1, 2, 45):
            h = sum(at(z, i) @ at(z, i + 1) for i in range(n - 1)) + field * sum(at(x, i) for i in range(n))
            np.linalg.eigvalsh(h)
    """),
    "nearest centres": ("numpy", """
        import numpy as np
        x = np.random.default_rng(0).standard_normal((30000, 40))
        c = x[:50]
        for _ in range(150):
            near = ((x**2).sum(1)[:, None] - 2 * np.dot(x, c.T) + (c**2).sum(1)).argmin(1)
            c = np.stack([x[near == i].mean(0) for i in range(50)])
    """),
    "images": ("scipy", """
        import numpy as np
        from scipy import ndimage
        x = np.random.default_rng(0).standard_normal((700, 700))
        for s in 5 * [*range(1, 17)]:
            x = ndimage.gaussian_filter(x, s) + np.fft.ifft2(np.fft.fft2(x)).real
    """),
    "sparse system": ("scipy", """
        import numpy as np
        import scipy.sparse as sp
        from scipy.sparse.linalg import cg, spsolve
        t = sp.diags_array([-np.ones(149), 2 * np.ones(150), -np.ones(149)], offsets=[-1, 0, 1])
        a = sp.csc_array(sp.kron(t, sp.eye_array(150)) + sp.kron(sp.eye_array(150), t))
        for _ in range(30):
            spsolve(a, np.ones(a.shape[0])), cg(a, np.ones(a.shape[0]))
    """),
    "gaussian process": ("scipy", """
        import numpy as np
        import scipy.linalg as la
        x = np.sort(np.random.default_rng(0).uniform(0, 10, 700))
        for length in np.linspace(0.2, 2, 170):
            k = np.exp(-(((x[:, None] - x) / length) ** 2)) + 0.1 * np.eye(700)
            factor = la.cho_factor(k)
            la.cho_solve(factor, np.sin(x)), np.linalg.slogdet(k)
    """),
    "curve fits": ("scipy", """
        import numpy as np
        from scipy.optimize import curve_fit
        rng, t = np.random.default_rng(0), np.linspace(0, 4, 200)
        for _ in range(12000):
            y = 2 * np.exp(-1.3 * t) + 0.5 + 0.05 * rng.standard_normal(200)
            curve_fit(lambda t, a, b, c: a * np.exp(-b * t) + c, t, y, p0=(1, 1, 1))
    """),
    **{
        f"{name}.py": ("pyscf", (EXAMPLES / f"{name}.py").read_text())
        for name in ("glycine_mp2", "water_clusters", "water_ccsd")
    },
}  # fmt: skip
# Programs that only start, or make one call.
STARTS = {
    "import numpy": "import numpy",
    "import scipy.linalg": "import scipy.linalg",
    "first small call": "import numpy as np; np.dot(np.eye(3), np.eye(3))",
    "first large call": "import numpy as np; np.linalg.inv(np.eye(300))",
}


def seconds(argv: list[str], folder: str) -> float:
    """Seconds of a process: processor time if BLAS has one thread, so that other processes do not count."""
    variables = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    variables |= {"PYTHONPYCACHEPREFIX": os.path.join(folder, "bytecode")} | KEPT_PAGES
    started = time.perf_counter()
    process = subprocess.Popen(argv, cwd=EXAMPLES, env=variables, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    _, status, used = os.wait4(process.pid, 0)
    elapsed = time.perf_counter() - started
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        sys.exit(f"no figures: {' '.join(argv)} failed")
    return used.ru_utime + used.ru_stime if alone() else elapsed


def compared(program: list[str], folder: str, rounds: int) -> tuple[float, float, float]:
    """Median seconds under python, and medians of the runner's ratio and difference to it, measured in turn."""
    runs = {False: [sys.executable, *program], True: [sys.executable, "-m", "trnpy", *program]}
    plain, ratios, added = [], [], []
    for turn in range(rounds):
        took = {under: seconds(runs[under], folder) for under in (turn % 2 == 0, turn % 2 == 1)}
        plain.append(took[False])
        ratios.append(took[True] / took[False])
        added.append(took[True] - took[False])
    return statistics.median(plain), statistics.median(ratios), statistics.median(added)


def starts(folder: str) -> None:
    """Print what the runner adds to programs that do next to nothing."""
    for name, code in STARTS.items():
        compared(["-c", code], folder, 1)  # compiles
        plain, _, added = compared(["-c", code], folder, START_ROUNDS)
        print(f"start-up: {name:22}{1e3 * plain:6.0f} ms{1e3 * added:+8.0f} ms", flush=True)
    # The last one starts, makes its first large call and reports.
    shares = ", ".join(f"{added / length:.1%} of {length} s" for length in LENGTHS)
    print(f"fixed cost of a run with a large call: {1e3 * added:.0f} ms, {shares}\n")


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks runner")
    parser.add_argument("--rounds", type=int, default=ROUNDS, help="of each pair of runs")
    parser.add_argument("--programs", nargs="*", default=[], help="only these")
    options = parser.parse_args(argv)
    gate("tests/_cli/test_runner.py", "tests/_cli/test_program.py", "tests/_report/test_ledger.py")
    header("python -m trnpy program.py over python program.py")
    ratios, slow = [], 0
    with tempfile.TemporaryDirectory() as folder:
        starts(folder)
        for name, (package, source) in (SMALL | LARGE).items():
            if options.programs and name not in options.programs:
                continue
            if importlib.util.find_spec(package) is None:
                print(f"{name:24}left out: {package} is not installed")
                continue
            file = pathlib.Path(folder) / f"{pathlib.Path(name).stem.replace(' ', '_')}.py"
            file.write_text(source if package == "pyscf" else "\n".join(line[8:] for line in source.splitlines()))
            plain, found, _ = compared([str(file)], folder, options.rounds)
            ratios.append(found)
            over = name in SMALL and found > SMALL_LIMIT
            slow += over
            limit = f"  small calls: limit {SMALL_LIMIT}" * (name in SMALL) + ": OVER" * over
            print(f"{name:24}{plain:8.2f} s{found:8.3f}{limit}", flush=True)
    median = statistics.median(ratios)
    print(f"\nmedian of {len(ratios)} programs {median:.3f}, limit {LIMIT}" + ": OVER" * (median > LIMIT))
    return int(median > LIMIT or slow > 0)
