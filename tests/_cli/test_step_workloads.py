"""The list of the host's steps: each has a rate and a workload, which a dry run counts as that step."""

import ast
import pathlib

import pytest

from trnpy._cli import calibration, step_workloads
from trnpy._engine.launch_counts import Tally
from trnpy._settings.host_rates import DEFAULT_CURVES, HostRates
from trnpy._settings.host_steps import BESIDE, HIDDEN, INCOMING, OUTGOING, STEPS

N = 30
PACKAGE = pathlib.Path(__file__).parents[2] / "trnpy"
RATES = HostRates(DEFAULT_CURVES, 1e10, False, "")


def test_every_step_has_a_workload_and_every_class_names_steps():
    assert set(step_workloads.WORKLOADS) == set(STEPS)
    assert set(STEPS) >= INCOMING | OUTGOING | HIDDEN


@pytest.mark.parametrize("name", STEPS)
def test_a_dry_run_counts_a_workload_as_its_step_alone(name):
    function, arguments = call = step_workloads.WORKLOADS[name](N)
    work = step_workloads.counted(call)
    assert {kind for kind, _, _ in work} == {name}
    assert all(amount > 0 for amount in work.values())
    function(*arguments)  # and the step itself accepts the arguments


@pytest.mark.parametrize("name", STEPS)
def test_twice_the_amount_takes_twice_as_long_at_the_rate_of_its_size(name):
    size, rate = STEPS[name].rates[0]
    assert RATES.step_s(name, size, 3 * rate) == pytest.approx(3, rel=1e-12)
    assert [n for n, _ in STEPS[name].rates] == sorted({n for n, _ in STEPS[name].rates})


def test_every_priced_function_of_the_package_names_a_step_or_a_curve():
    named = {""}
    for path in PACKAGE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            called = isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
            if called and node.func.id in ("priced", "_price") and isinstance(node.args[0], ast.Constant):
                named.add(node.args[0].value)
    assert {name.removeprefix(BESIDE) for name in named} - {""} <= set(DEFAULT_CURVES)
    assert len(named) > 20  # the search finds them


def test_a_calibration_measures_each_step_once_at_each_size():
    found = [(name, size) for name, size, _, _ in calibration.steps((N, 2 * N))]
    assert len(found) == len(set(found)) and {name for name, _ in found} == set(STEPS)


def test_steps_beside_launches_count_only_as_far_as_these_do_not_hide_them():
    from nkisim.hardware import TRN2

    def outgoing(kind, amount):
        return Tally((("matmul", 1),), (), 0, 0, (((kind, 1000, "d"), amount),)).parts(TRN2, RATES).from_digits_s

    alone = outgoing("proof", 1e6)
    assert alone == RATES.step_s("proof", 1000, 1e6) > TRN2.launch_s
    assert outgoing(BESIDE + "proof", 1e6) == pytest.approx(alone - TRN2.launch_s, rel=1e-12)
    assert outgoing(BESIDE + "proof", 1.0) == 0
