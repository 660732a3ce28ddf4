"""Predicted and measured seconds of every step of the host between launches, at three sizes.

The prediction is the one of a dry run, from the stored calibration of this machine if there is one, otherwise from the
default rates. The exit code is 1 if the median of predicted / measured is outside 0.8 to 1.25, or one is outside 0.5 to
2.
"""

from __future__ import annotations

import argparse
import functools
import statistics
import time

import numpy as np

from benchmarks._measure import header
from benchmarks._threads import alone
from trnpy._cli import calibration, step_workloads
from trnpy._settings.host_rates import current_rates

SIZES = (180, 550, 1400)  # between those of a calibration
MEDIAN, EACH = (0.8, 1.25), (0.5, 2.0)


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks host-steps", description=__doc__)
    parser.add_argument("--n", type=int, action="append", help=f"orders of matrices, default: {SIZES}")
    parser.add_argument("--step", action="append", choices=sorted(step_workloads.WORKLOADS), help="default: all")
    options = parser.parse_args(argv)
    sizes, rates, found = options.n or SIZES, current_rates(), []
    clock = time.process_time if alone() else time.perf_counter
    header("steps of the host between launches, predicted / measured", "medians of three calls")
    print(f"rates: {'calibrated' if rates.calibrated else 'defaults, not calibrated'}")
    print(f"{'step':24}" + "".join(f"{f'n = {n}, ms':>28}" for n in sizes))
    for name in options.step or step_workloads.WORKLOADS:
        cells = []
        for order in sizes:
            function, arguments = call = step_workloads.WORKLOADS[name](order)
            work = step_workloads.counted(call)
            predicted = sum(rates.step_s(kind, size, n, np.dtype(char)) for (kind, size, char), n in work.items())
            measured = calibration.uncached(functools.partial(function, *arguments), clock)
            found.append(predicted / measured)
            cells.append(f"{predicted * 1e3:9.3f} / {measured * 1e3:8.3f} = {found[-1]:5.2f}")
        print(f"{name:24}" + "".join(f"{cell:>28}" for cell in cells), flush=True)
    middle = statistics.median(found)
    outside = sum(not EACH[0] <= ratio <= EACH[1] for ratio in found)
    print(f"\nmedian {middle:.2f} (allowed {MEDIAN[0]} to {MEDIAN[1]}), {outside} of {len(found)} outside {EACH}")
    return int(outside > 0 or not MEDIAN[0] <= middle <= MEDIAN[1])
