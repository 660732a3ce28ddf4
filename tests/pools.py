"""Which libraries' threads of BLAS a call runs in, for each call of ``host_routes``: a program, whose output is JSON.

Threads are told apart by what was imported when they appeared, and have run where the kernel counts more nanoseconds
of theirs than before the call.
"""

import importlib
import json
import pathlib
import sys
import time

TASKS = pathlib.Path("/proc/self/task")


def threads():
    return {task.name for task in TASKS.iterdir()}


def brought_by(module):
    before = threads()
    importlib.import_module(module)
    return threads() - before


def ran_s(pool):
    """Nanoseconds that each thread of a pool has run."""
    return {thread: int((TASKS / thread / "schedstat").read_text().split()[0]) for thread in pool}


def rest(pools, within_s=60.0):
    """Wait until no thread of the pools runs or spins."""
    end = time.monotonic() + within_s
    while any((TASKS / t / "stat").read_text().rpartition(")")[2].split()[0] == "R" for p in pools for t in p):
        if time.monotonic() > end:
            sys.exit(f"threads of BLAS still run after {within_s:g} s")
        time.sleep(1e-3)


def entered(make, pools):
    """Names of the pools whose threads ran during the call that ``make`` returns: a function and its arguments."""
    call, *operands = make()
    call(*operands)  # whose first call may ask the installed library what it does, once
    call, *operands = make()
    rest(pools.values())
    before = {name: ran_s(pool) for name, pool in pools.items()}
    call(*operands)
    rest(pools.values())
    return [name for name, pool in pools.items() if ran_s(pool) != before[name]]


def main(options):
    pools = {"NumPy": brought_by("numpy"), "SciPy": brought_by("scipy.linalg")}
    if "--routes" in options:
        print(json.dumps(routes()))
    else:
        print(json.dumps({"pools": {n: len(p) for n, p in pools.items()}, "entered": by_row(pools)}))


def routes():
    """Of each row the routes that it takes."""
    from host_routes import ROWS

    import trnpy

    found = {}
    for name, make in ROWS.items():
        call, *operands = make()
        with trnpy.trace() as log:
            call(*operands)
        found[name] = sorted({record.route for record in log if record.route})
    return found


def by_row(pools):
    """Of each row the pools that it enters, and of calls of which that is known."""
    import numpy as np
    import scipy.linalg
    from host_routes import ROWS

    a, dgemm = np.ones((400, 400)), scipy.linalg.blas.dgemm
    known = {
        "a product of NumPy's": lambda: (np.matmul, a, a),
        "a product of SciPy's": lambda: (dgemm, 1.0, a, a),
        "both": lambda: (lambda: dgemm(1.0, a, a @ a),),
        "neither": lambda: (np.add, a, a),
    }
    return {name: entered(make, pools) for name, make in {**known, **ROWS}.items()}


if __name__ == "__main__":
    main(sys.argv[1:])
