"""A host route is taken where it wins: 300 calls drawn at random over every route, the original beside trnpy's.

python -m benchmarks routes [--seed N] [--count N] [--families einsum ...] [--all]

No call through trnpy may have less than LEAST of the original's speed. A call that takes no route is also made through
the route that was not chosen, if it has one, and through NumPy's own plan (optimize=True): neither may be MISSED times
as fast. (Only where something is summed: NumPy's plan gives other signs of zeros where nothing is.) Predicted over
measured seconds are printed for the original and for the routes.
"""

from __future__ import annotations

import argparse
import functools
import random
import statistics
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np

import trnpy
from benchmarks._draws import SHARES, Call, draws
from benchmarks._measure import gate, header, paired
from trnpy._call.dispatch import Unsupported, explain
from trnpy._einsum.plan import Contraction
from trnpy._settings.host_rates import current_rates

LEAST, MISSED = 0.95, 1.3
FROM_S = 100e-6  # as in host-path: `overhead` has shorter calls
LONGEST_S = 0.1  # longer calls would take most of the time of a run
ROW_S, AGAIN = 0.05, (0.3, 0.6, 1.2)  # seconds of a pair of calls; of the repetitions before a failure counts


class Row(NamedTuple):
    """What one call took."""

    call: Call
    route: str  # that was taken; "" if none
    seconds: float  # of the original
    gain: float  # of trnpy over the original
    others: dict[str, float]  # gains of the alternatives that were not taken
    predicted: tuple[float, float]  # seconds of the original and of the route; 0 if there is none

    @property
    def verdict(self) -> str:
        if self.gain < LEAST:
            return f"BELOW {LEAST}"
        missed = [f"{name} {gain:.2f}" for name, gain in self.others.items() if gain >= MISSED]
        return f"MISSED {', '.join(missed)}" if missed else ""


def decided(call: Call) -> tuple[str, tuple[float, float], dict[str, Callable[[], Any]]]:
    """The route of a call, the predicted seconds of original and route, and the alternatives that are not taken."""
    if call.op is None:
        return "", (0.0, 0.0), {}
    with trnpy.policy(device="none"):
        decision = explain(_Named(call.op), *call.args, **call.kwargs)
    others: dict[str, Callable[[], Any]] = {}
    predicted = 0.0, 0.0
    try:
        problem = call.op.problem(True, *call.args, **call.kwargs)
    except (Unsupported, AttributeError, TypeError, ValueError):
        problem = None
    if problem is not None:
        route = problem.route
        rates = current_rates()
        predicted = problem.cost.host_s(rates, problem.dtype), 0.0 if route is None else route.seconds(rates)
        if route is not None:
            others["the route"] = route.run
        if isinstance(problem, Contraction) and problem.plan.terms > 1 and not call.kwargs:
            others["NumPy's plan"] = functools.partial(call.original, optimize=True)
    return decision.route, predicted, {} if decision.route else others


class _Named:
    """What ``explain`` asks of a function."""

    def __init__(self, op: Any) -> None:
        self.__trnpy_op__ = op

    def __call__(self) -> None: ...


def agree(a: Any, b: Any) -> bool:
    """Whether the results are of one kind; only roughly equal, as the tests have the accuracy."""
    if isinstance(a, (tuple, list)):
        return len(a) == len(b) and all(map(agree, a, b))
    return type(a) is type(b) and getattr(a, "shape", ()) == getattr(b, "shape", ()) and a.dtype == b.dtype


def measured(call: Call) -> Row | None:
    """The row of a call; None if it is too short or too long, or raises."""
    try:
        start = time.thread_time()
        theirs = call.original()
        if time.thread_time() - start > 2 * LONGEST_S:
            return None
        route, predicted, others = decided(call)
        mine = call.ours()
    except (np.linalg.LinAlgError, ValueError, TypeError):
        return None
    if call.family in ("einsum", "products", "lists") and not agree(mine, theirs):
        sys.exit(f"no figures: {call.what}: {type(mine)} for {type(theirs)}")
    found = paired(call.original, call.ours, ROW_S, FROM_S)
    if found is None or found[0] > LONGEST_S:
        return None
    seconds, ratio = found
    for row_s in AGAIN:
        if 1 / ratio >= LEAST:
            break
        ratio = min(ratio, paired(call.original, call.ours, row_s)[1])
    return Row(call, route, seconds, 1 / ratio, {name: best(call, other) for name, other in others.items()}, predicted)


def best(call: Call, other: Callable[[], Any]) -> float:
    """The gain of an alternative, the least of its measurements; 0 if it refuses the operands."""
    try:
        gain = 1 / paired(call.original, other, ROW_S)[1]
        for row_s in AGAIN:
            if gain < MISSED:
                break
            gain = min(gain, 1 / paired(call.original, other, row_s)[1])
    except (Unsupported, ValueError, TypeError, KeyError, np.linalg.LinAlgError, MemoryError):
        return 0.0  # KeyError: a route that only real matrices take
    return gain


def rows(seed: int, families: list[str], count: int) -> Iterator[Row]:
    found = 0
    for call in draws(seed, families):
        with warnings.catch_warnings(), np.errstate(all="ignore"):
            warnings.simplefilter("ignore")
            row = measured(call)
        if row is not None:
            found += 1
            yield row
            if found == count:
                return


def line(row: Row) -> str:
    reference, route = row.predicted
    told = "".join(f"{1e6 * s:9.0f}" if s else f"{'-':>9}" for s in (reference, route))
    other = max(row.others.values(), default=0.0)
    other = f"{other:7.2f}" if other else f"{'-':>7}"
    return f"{row.seconds * 1e6:9.0f}{told}{row.gain:7.2f}{other}  {row.route or '-':24} {row.call.what}  {row.verdict}"


def quantiles(values: list[float]) -> str:
    if len(values) < 2:
        return f"{values[0]:.2f}" if values else "-"
    tenths = statistics.quantiles(values, n=10)
    return f"{statistics.median(values):.2f} ({tenths[0]:.2f} to {tenths[-1]:.2f})"


def summary(found: list[Row]) -> None:
    print("\npredicted over measured seconds: median (tenth to ninetieth of a hundred)")
    print(f"{'family':10}{'calls':>6}{'routed':>8}{'least':>7}{'median gain':>13}{'largest':>9}", end="  ")
    print(f"{'original':24}routes taken")
    for family in SHARES:
        some = [row for row in found if row.call.family == family]
        if not some:
            continue
        taken = [row for row in some if row.route]
        gains = [row.gain for row in (taken or some)]
        original = quantiles([row.predicted[0] / row.seconds for row in some if row.predicted[0]])
        routes = quantiles([row.predicted[1] * row.gain / row.seconds for row in taken if row.predicted[1]])
        least = min(row.gain for row in some)
        print(
            f"{family:10}{len(some):6}{len(taken):8}{least:7.2f}{statistics.median(gains):13.2f}{max(gains):9.1f}"
            f"  {original:24}{routes}"
        )


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks routes")
    parser.add_argument("--seed", type=int, default=None)
    parser.add_argument("--count", type=int, default=300)
    parser.add_argument("--families", nargs="*", default=[], choices=list(SHARES))
    parser.add_argument("--all", action="store_true", help="print every call, not only those that fail")
    options = parser.parse_args(argv)
    seed = random.randrange(10**6) if options.seed is None else options.seed
    gate("tests/_einsum/test_einsum.py")
    header(f"routes on the host, {options.count} calls, seed {seed}")
    print(f"{'us':>9}{'predicted':>18}")
    print(f"{'original':>9}{'original':>9}{'route':>9}{'gain':>7}{'other':>7}  route")
    found = []
    for row in rows(seed, options.families, options.count):
        found.append(row)
        if options.all or row.verdict:
            print(line(row), flush=True)
    summary(found)
    below, missed = (sum(row.verdict.startswith(word) for row in found) for word in ("BELOW", "MISSED"))
    print(
        f"\n{len(found)} calls: {below} below {LEAST} of the original's speed, {missed} alternatives of {MISSED} missed"
    )
    return int(bool(below + missed))
