"""Settings: validated, read from the environment, local to a thread or task, and obeyed by decide."""

import asyncio
import contextvars
import os
import subprocess
import sys
import threading
from dataclasses import fields, replace

import numpy as np
import pytest

import trnpy
from nkisim.hardware import GIB, TRN2
from trnpy._call.decisions import work_of
from trnpy._call.dispatch import Reason, decide
from trnpy._settings.host_rates import current_rates
from trnpy._settings.policy import Policy, current_policy, from_environment, policy, process_policy, set_process_policy

GOOD = {  # of every field a value that is not its default, as Python and as a variable writes it
    "device": ("null", "null"),
    "machine": ("trn3", "trn3"),
    "force": (True, "1"),
    "precision": ("fp32", "fp32"),
    "method": ("divide", "divide"),
    "fallback": ("log", "log"),
    "min_flops": (5e8, "5e8"),
    "verify": (0.05, "0.05"),
    "device_memory": (0.5, "0.5"),
    "time_limit": (2.5, "2.5"),
    "cores": (4, "4"),
    "reproducible": (True, "yes"),
}
BAD = [
    ("device", "gpu", ValueError, "device='gpu': expected one of auto, neuron, simulator, null, none"),
    ("machine", "trn4", ValueError, "machine='trn4': expected one of trn1, trn2, trn3"),
    ("precision", "tf32", ValueError, "expected one of matched, mixed, fp32, bf16"),
    ("fallback", None, ValueError, "fallback=None: expected one of warn, raise, log"),
    ("force", 1, TypeError, "force=1: expected True or False"),
    ("reproducible", None, TypeError, "reproducible=None: expected True or False"),
    ("min_flops", -1, ValueError, "min_flops=-1: expected a number from 0 upward"),
    ("min_flops", "1e9", TypeError, "min_flops='1e9': expected a number"),
    ("verify", 1.5, ValueError, "verify=1.5: expected a number from 0 to 1"),
    ("verify", float("nan"), ValueError, "verify=nan"),
    ("verify", True, TypeError, "verify=True: expected a number"),
    ("device_memory", -0.1, ValueError, "from 0 upward"),
    ("time_limit", -1, ValueError, "from 0 upward"),
]


def test_every_field_has_an_example_here():
    assert set(GOOD) == {f.name for f in fields(Policy)}


@pytest.mark.parametrize("name", GOOD)
def test_a_block_changes_one_setting_and_puts_it_back(name):
    value = GOOD[name][0]
    before = current_policy()
    assert getattr(before, name) != value
    with policy(**{name: value}) as inside:
        assert inside is current_policy()
        assert inside == replace(before, **{name: value})
    assert current_policy() is before


@pytest.mark.parametrize("name, value, error, message", BAD)
def test_a_bad_value_says_what_came_and_what_is_expected(name, value, error, message):
    with pytest.raises(error) as raised, policy(**{name: value}):
        pytest.fail("entered")
    assert message in str(raised.value)


@pytest.mark.parametrize("use", [trnpy.policy, trnpy.patched, trnpy.patch])
def test_an_unknown_setting_is_refused_with_the_known_ones(use):
    words = rf"{use.__name__}\(\) has no setting 'mashine': expected one of device, machine, force"
    unknown = pytest.raises(TypeError, match=words)
    with unknown, use(mashine="trn2"):
        pass


@pytest.mark.parametrize("name", GOOD)
def test_a_variable_sets_what_the_field_of_its_name_is(name):
    value, text = GOOD[name]
    assert from_environment({f"TRNPY_{name.upper()}": text}) == replace(Policy(), **{name: value})


@pytest.mark.parametrize(
    "text, value", [("80%", 0.8), ("2GiB", 2 * GIB), ("512MiB", 512 * GIB / 1024), ("4e9", 4e9), (" 0.5 ", 0.5)]
)
def test_device_memory_is_a_fraction_or_bytes(text, value):
    assert from_environment({"TRNPY_DEVICE_MEMORY": text}).device_memory == pytest.approx(value, rel=1e-12)


@pytest.mark.parametrize("text", ["0", "false", "No", "off", ""])
def test_force_0_is_off(text):
    assert from_environment({"TRNPY_FORCE": text}).force is False


@pytest.mark.parametrize(
    "name, text",
    [
        ("FORCE", "maybe"),
        ("VERIFY", "often"),
        ("DEVICE", "gpu"),
        ("VERIFY", "2"),
        ("DEVICE_MEMORY", "2 pages"),
        ("REQUIRE_NKI", "nki"),
    ],
)
def test_a_bad_variable_is_named_in_the_error(name, text):
    with pytest.raises(ValueError, match=rf"environment variable TRNPY_{name}='{text}': .*expected"):
        from_environment({f"TRNPY_{name}": text})


@pytest.mark.parametrize(
    "text, fallback",
    [("1", "raise"), ("True", "raise"), ("0", "warn"), ("", "warn"), ("false", "warn"), (" no ", "warn")],
)
def test_require_nki_makes_fallbacks_errors(text, fallback):
    assert from_environment({"TRNPY_REQUIRE_NKI": text}).fallback == fallback


def test_other_variables_are_ignored():
    assert from_environment({"PATH": "/bin", "TRNPY_": "1", "DEVICE": "gpu"}) == Policy()


def test_a_bad_variable_does_not_keep_trnpy_from_being_imported():
    code = "import trnpy, trnpy._settings.policy\ntry: trnpy.current_policy()\nexcept ValueError as e: print(e)"
    ran = subprocess.run(
        [sys.executable, "-c", code], env={**os.environ, "TRNPY_VERIFY": "2"}, capture_output=True, text=True
    )
    assert ran.stdout == "environment variable TRNPY_VERIFY='2': verify=2.0: expected a number from 0 to 1\n"
    assert not ran.stderr


def test_a_policy_cannot_be_changed_in_place():
    with pytest.raises(AttributeError):
        current_policy().device = "null"


def test_blocks_nest_and_an_exception_leaves_them():
    with policy(device="null"):
        with pytest.raises(KeyError), policy(machine="trn3"):
            assert (current_policy().device, current_policy().machine) == ("null", "trn3")
            raise KeyError
        assert (current_policy().device, current_policy().machine) == ("null", "trn2")


def test_a_refused_block_changes_nothing():
    with policy(device="null") as outer:
        with pytest.raises(ValueError), policy(verify=7):
            pass
        assert current_policy() is outer


def test_another_thread_does_not_see_a_block():
    seen = []
    with policy(device="null"):
        thread = threading.Thread(target=lambda: seen.append(current_policy().device))
        thread.start()
        thread.join()
    assert seen == ["auto"]


def test_a_copied_context_takes_the_block_along():
    with policy(device="null"):
        context = contextvars.copy_context()
    seen = []
    thread = threading.Thread(target=lambda: seen.append(context.run(current_policy).device))
    thread.start()
    thread.join()
    assert seen == ["null"]


def test_tasks_have_their_own_settings():
    async def task(machine):
        with policy(machine=machine):
            await asyncio.sleep(0)  # the other task enters its block now
            return current_policy().machine

    async def both():
        return await asyncio.gather(task("trn1"), task("trn3"))

    assert asyncio.run(both()) == ["trn1", "trn3"]


def test_the_policy_of_the_process_reaches_every_thread_that_has_none():
    previous = set_process_policy(replace(process_policy(), device="null"))
    try:
        seen = []
        thread = threading.Thread(target=lambda: seen.append(current_policy().device))
        thread.start()
        thread.join()
        assert seen == ["null"]
        with policy(machine="trn3"):
            assert current_policy() == replace(previous, device="null", machine="trn3")
    finally:
        assert set_process_policy(previous).device == "null"


def big_product():
    """4096 x 4096 x 4096, cold: 137 Gflop, well worth a device."""
    n = 4096
    return trnpy.matmul.__trnpy_op__.prepare(*np.empty((2, n, n)))


def test_min_flops_keeps_calls_below_it_on_the_host():
    problem = big_product()

    def decided(policy):
        return decide("numpy.matmul", problem, TRN2, policy, current_rates(), work=work_of(problem))

    assert decided(Policy()).on_device
    kept = decided(Policy(min_flops=problem.cost.flops * 1.01))
    assert (kept.on_device, kept.reason) == (False, Reason.POLICY)
    assert decided(Policy(min_flops=problem.cost.flops)).on_device


def test_force_goes_to_the_device_however_small():
    a = np.ones((2, 2))
    with policy(force=True), trnpy.trace() as decisions:
        np.testing.assert_array_equal(trnpy.matmul(a, a), a @ a)
    assert [(d.on_device, d.reason) for d in decisions] == [(True, Reason.FORCED)]


def test_none_and_auto_without_a_device_stay_on_the_host():
    a = np.ones((300, 300))
    for device in ("none", "auto"):
        with policy(device=device), trnpy.trace() as decisions:
            trnpy.matmul(a, a)
        assert [(d.on_device, d.reason) for d in decisions] == [(False, Reason.NO_DEVICE)]


def test_blocks_inside_generators_may_end_in_any_order():
    def settings(**changes):
        with policy(**changes):
            yield

    before = current_policy()
    first, second = settings(machine="trn1"), settings(precision="bf16")
    next(first), next(second)
    first.close()
    assert current_policy() == replace(before, precision="bf16")
    second.close()
    assert current_policy() == before
