"""Tests of the cost model against published measurements, through the benchmark that prints them."""

import functools
import itertools
import math
import subprocess
import sys

import numpy as np
import pytest

from benchmarks import nki_model
from benchmarks._fit import FITTED, Verdict, changed, errors_of
from benchmarks._fit import verdicts as fits
from benchmarks._measured import MEASUREMENTS
from benchmarks._own_kernels import Line, own_lines, print_lines
from benchmarks._published import Measurement, published
from benchmarks.nki_model import FIGURES, KERNELS, Launch, judge, main, matmul, traced
from nkisim.hardware import ERROR_FACTOR
from nkisim.lint.linter import errors, lint_file


def gates(heavy: bool):
    return [f for f in FIGURES if f.gate is not None and f.launch.heavy is heavy]


@pytest.mark.parametrize("figure", gates(False), ids=lambda f: f"{f.launch.case} {f.quantity}")
def test_a_published_figure_is_met_within_its_gate(figure):
    verdict = judge(figure)
    assert verdict.passed, f"modelled {verdict.predicted:.6g}, published {figure.published:.6g}"


@pytest.mark.slow
@pytest.mark.parametrize("figure", gates(True), ids=lambda f: f"{f.launch.case} {f.quantity}")
def test_a_large_published_figure_is_met_within_its_gate(figure):
    assert judge(figure).passed


# Off by more than a quarter of the figure, not of its error: a difference of 45 us of two calls.
IN_ERROR = ("bf16, 256 columns",)
# Four times the rows took 5.1 times as long, and no cause is known: the one exact case beyond the printed interval.
MISSED = "short convolution of 4096 x 3072 on two cores"


@functools.cache
def predicted(measurement):
    return measurement.predict(published)


@pytest.mark.parametrize("measurement", [m for m in MEASUREMENTS if m.exact], ids=lambda m: f"{m.entry} {m.what}")
def test_an_exact_case_is_met_within_a_quarter(measurement):
    """Of the measured figure, or of one within the error of the calls that it was computed from."""
    verdict = Verdict(measurement, predicted(measurement), math.nan)
    if measurement.what == MISSED:
        assert 0.45 < verdict.ratio < 1 / ERROR_FACTOR
        return
    assert 0.75 <= verdict.least_ratio <= 1.25
    assert (0.75 <= verdict.ratio <= 1.25) is (measurement.what not in IN_ERROR)


@pytest.mark.parametrize("predicted, ratio", [(98.75, 1.0), (130.0, 1.0), (260.0, 2.0), (33.75, 0.5)])
def test_a_figure_is_off_by_what_is_beyond_its_error(predicted, ratio):
    """The difference of two calls, each good to 4 us, over 256 instructions is good to 31.25 ns."""
    figure = Measurement(1, "g", "w", "ns", 98.75, lambda machines: predicted, calls=2 / 256)
    assert figure.error == pytest.approx(31.25, rel=1e-14)
    assert Verdict(figure, predicted, math.nan).least_ratio == pytest.approx(ratio, rel=1e-14)


def test_rates_have_no_error_of_calls():
    assert Measurement(1, "g", "w", "GB/s", 262.5, lambda machines: 1.0).error == 0


def test_exact_cases_are_met_within_a_tenth_in_the_median_and_nine_of_ten_within_a_quarter():
    found = fits(quick=True)
    assert len({v.measurement.entry for v in found}) >= 35
    exact = [v for v in found if v.measurement.exact]
    assert errors_of(found)["exact cases"][0] <= 0.10
    assert sum(abs(v.ratio - 1) <= 0.25 for v in exact) >= 0.9 * len(exact)


def test_entries_of_unknown_shape_are_compared_by_their_ratios():
    """Tiles in a loop cost 3.8 times those written out; of 8 to 512 pairs the time grows as measured."""
    for entry in (25, 32):
        cases = [m for m in MEASUREMENTS if m.entry == entry]
        off = np.log([predicted(m) / m.measured for m in cases])
        assert np.ptp(off) <= 0.10


def test_no_constant_is_fitted_to_a_single_figure():
    """Each fitted constant moves at least two figures, or has been published as itself."""
    stated = {
        "launch_s", "link_bytes_per_s", "unlink_bytes_per_s", "group_doubling_s", "float32_transpose_passes",
        "dma_descriptor_s", "dma_written_factor", "turn_drain_s", "region_s",
    }  # fmt: skip
    base = {m: predicted(m) for m in MEASUREMENTS}
    for name in set(FITTED) - stated:
        moved = (m for m in MEASUREMENTS if abs(m.predict(changed(name, 1.5)) / base[m] - 1) > 0.005)
        assert len(list(itertools.islice(moved, 2))) == 2, name


@pytest.mark.slow
def test_times_are_printed_with_the_error_of_a_fit_that_has_not_seen_the_group():
    _, most = errors_of(fits())["all, each group left out of the fit"]
    assert 1 + most <= ERROR_FACTOR <= 1 + 1.5 * most


@pytest.mark.slow
def test_4096_cubed_is_traced_and_priced_in_two_seconds_and_a_gibibyte():
    program = (
        "import resource, time; began = time.process_time()\n"
        "from nkisim.price.cost import price\n"
        "from nkisim.run.launch import Specification, run\n"
        "from nkisim.run.loader import load_kernel\n"
        f"kernel = load_kernel({str(KERNELS / 'products.py')!r}, 'blocked')\n"
        "began = time.process_time()\n"
        "operand = Specification((4096, 4096), 'bfloat16')\n"
        "options = {'block_m': 8, 'row_loads': True}\n"
        "cost = price(run(kernel, (operand, operand), options, mode='trace').trace)\n"
        "assert cost.engine_instructions['tensor'] == 8192\n"
        "print(time.process_time() - began, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60)
    seconds, gibibytes = map(float, done.stdout.split())
    assert seconds < 2
    assert gibibytes < 1


@pytest.fixture(scope="module")
def variants():
    """The tutorial's five, in float32 as measured, a quarter of the published size in each direction."""
    size = (1024, 2048, 2048)
    named = {
        "tiled": matmul("tiled", "tiled", *size, "float32"),
        "hoisted": matmul("hoisted", "hoisted", *size, "float32"),
        "blocked": matmul("blocked", "blocked", *size, "float32"),
        "fully": matmul("fully", "fully_blocked", *size, "float32", block_m=8),
        "single": Launch("single", "products.py", "single", "trn2", ((128, 64), (128, 512)), "float32"),
    }
    return {name: traced(launch)[1] for name, launch in named.items()}


def test_the_five_tutorial_variants_order_themselves_as_published(variants):
    per_flop = {name: cost.device_s / cost.flops for name, cost in variants.items()}
    assert per_flop["single"] > per_flop["tiled"] > 1.2 * per_flop["hoisted"]
    # Published: 28.20, 28.41 and 28.30 ms, one per cent apart, all bound by TensorEngine.
    bound = sorted(per_flop[name] for name in ("hoisted", "blocked", "fully"))
    assert bound[-1] < 1.15 * bound[0]


def test_the_tutorial_variants_lower_dma_time_step_by_step_as_published(variants):
    dma = [variants[name].busy_s["dma"] for name in ("tiled", "hoisted", "blocked", "fully")]
    assert dma == sorted(dma, reverse=True)
    assert dma[3] < dma[0] / 2


def test_what_is_moved_is_what_was_measured():
    moved = {f.launch.case: f for f in FIGURES if f.quantity == "HBM MB"}
    for case, megabytes in (("A-V1", 201.3), ("A-V2", 201.3)):
        assert moved[case].published == megabytes and judge(moved[case]).ratio == pytest.approx(1, abs=0.005)


@pytest.mark.parametrize("file", sorted(KERNELS.glob("[a-z]*.py")), ids=lambda p: p.name)
def test_the_rebuilt_kernels_pass_the_lint(file):
    assert errors(lint_file(file)) == ()


def test_the_command_prints_every_quick_figure_and_counts_the_misses(capsys, monkeypatch):
    monkeypatch.setattr(nki_model, "own_lines", lambda timelines: iter(()))  # a test of their own
    assert main(["--quick"]) == 1
    shown = capsys.readouterr().out
    assert "modelled" in shown.lower()
    (missed,) = [line for line in shown.splitlines() if "MISSED" in line]
    assert MISSED.split(" on ")[0] in missed
    assert f"{len(gates(False))} of {len(gates(False))} gates held" in shown


@pytest.mark.slow
def test_our_kernels_are_held_against_their_goals(capsys, tmp_path):
    lines = list(own_lines(tmp_path))
    print_lines(lines)
    shown = capsys.readouterr().out
    print(shown)
    reached = sum(line.passed for line in lines)
    assert "modelled" in shown and f"{reached} of {len(lines)} goals reached by the model" in shown
    assert reached >= 13  # turns of device loops keep the others from theirs
    assert max(line.instructions for line in lines) < 20_000
    assert len({line.kernel for line in lines}) == len(list(tmp_path.glob("*.json")))


@pytest.mark.parametrize("goal, at_least, passed", [(1.0, True, True), (1.0, False, False), (3.0, True, False)])
def test_a_goal_that_is_missed_is_said_and_counted(goal, at_least, passed, capsys, monkeypatch):
    line = Line("k", "q", 2.0, goal, at_least, 7)
    monkeypatch.setattr(nki_model, "FIGURES", ())
    monkeypatch.setattr(nki_model, "fits", lambda quick: [])
    monkeypatch.setattr(nki_model, "own_lines", lambda timelines: iter([line]))
    assert main([]) == int(not passed)
    assert ("MISSED" in capsys.readouterr().out) is not passed
