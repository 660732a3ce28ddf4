"""einsum_plan says what einsum does: the same steps, on the same side, at the price that decided."""

import dataclasses

import numpy as np
import pytest
from doubles import RecordingEngine

import trnpy
from trnpy import Reason
from trnpy._engine.engines import engine
from trnpy._settings.host_rates import DEFAULT_CURVES, HostRates, machine_id, save

CHAIN = "pi,qj,pqrs,rk,sl->ijkl"


def arrays(*shapes):
    rng = np.random.default_rng(1)
    return [rng.standard_normal(shape) for shape in shapes]


def chain(n=12):
    return arrays((n, 4), (n, 4), (n,) * 4, (n, 4), (n, 4))


@pytest.fixture
def slow_blas():
    """A host whose products of matrices take so long that a device wins those, and only those."""
    save(HostRates({**DEFAULT_CURVES, "matmul": ((32.0, 1e6), (512.0, 1e6))}, 1e10, True, machine_id()))


def test_the_steps_are_the_products_that_run():
    operands = chain()
    recording = RecordingEngine()
    with engine(recording), trnpy.policy(force=True):
        plan = trnpy.einsum_plan(CHAIN, *operands)
        trnpy.einsum(CHAIN, *operands)
    assert {step.route for step in plan.steps} == {"device"} and len(plan.steps) == 4
    assert [step.flops for step in plan.steps] == [2.0 * np.prod(shape) for shape in recording.shapes]
    assert plan.flops == 2 * (12**4 * 4 + 12**3 * 16 + 12**2 * 64 + 12 * 256) and plan.loop_flops == 5 * 48**4


@pytest.mark.route
def test_the_steps_contract_to_the_result():
    """Carried out by hand, as they are printed."""
    operands = chain(5)
    left = list(operands)
    for step in trnpy.einsum_plan(CHAIN, *chain()).steps:
        i, j = step.operands
        b, a = left.pop(j), left.pop(i)
        left.append(np.einsum(step.subscripts, a, b))
    labels = step.subscripts.partition("->")[2]
    np.testing.assert_allclose(
        np.einsum(f"{labels}->ijkl", left[0]), np.einsum(CHAIN, *operands, optimize=True), rtol=0, atol=1e-12
    )


def test_a_memory_bound_step_stays_on_the_host_and_says_so(slow_blas):
    a, b, c = arrays((300, 300), (300, 300), (300, 300))
    recording = RecordingEngine()
    with engine(recording), trnpy.trace() as log:
        plan = trnpy.einsum_plan("ij,jk,ij->ik", a, b, c, optimize=True)
        ours = trnpy.einsum("ij,jk,ij->ik", a, b, c, optimize=True)
        trnpy.einsum("jk,ij->ik", b, a * c)
    thin, large = plan.steps
    assert (thin.route, large.route) == ("loop", "device") and plan.decision.on_device
    assert thin.why.split(":")[0] in (Reason.MEMORY_BOUND, Reason.SMALL) and large.why.startswith("faster")
    assert log[0].on_device and recording.shapes == [(300, 300, 300)] * 2
    np.testing.assert_allclose(ours, (a * c) @ b, rtol=1e-12, atol=1e-10)
    # Only the operands of the large step cross the link.
    whole, alone = (found.parts._replace(host_steps_s=0.0) for found in log)
    assert whole == alone
    # The host's steps of a call are the thin step and looks at values.
    assert large.device_s + thin.host_s < log[0].device_s < 1.1 * (large.device_s + thin.host_s)


def test_a_call_without_a_device_step_stays_on_the_host():
    a, b, c = arrays((100, 100), (100, 100), (100, 100))
    with engine(RecordingEngine()):
        decision = trnpy.explain(trnpy.einsum, "ij,ij,ij->ij", a, b, c, optimize=True)
    assert not decision.on_device and decision.reason in (Reason.SMALL, Reason.MEMORY_BOUND)


@pytest.mark.route
def test_plans_are_kept():
    assert trnpy.einsum_plan(CHAIN, *chain()) is trnpy.einsum_plan(CHAIN, *chain())
    with trnpy.policy(force=True):
        assert trnpy.einsum_plan(CHAIN, *chain()) is not trnpy.einsum_plan(CHAIN, *chain(13))


@pytest.mark.route
def test_a_plan_is_read_as_a_table():
    text = str(trnpy.einsum_plan(CHAIN, *chain(40)))
    lines = text.splitlines()
    assert len(lines) == 6 and lines[0].startswith(f"{CHAIN}: ") and "modelled" in lines[1]
    assert "pairwise products" in lines[0] and all("BLAS" in line for line in lines[2:])


@pytest.mark.parametrize(
    "operands", [("ij->ji", np.ones((3, 4))), ("ij,jk->ix", np.ones((3, 4)), np.ones((4, 5))), (np.ones(3), [0])]
)
def test_what_numpy_does_itself_has_no_steps(operands):
    plan = trnpy.einsum_plan(*operands)
    assert plan.steps == () and not plan.decision.on_device and "as NumPy does it" in str(plan)


@pytest.mark.route
def test_a_plan_is_of_the_call_s_dtype():
    whole = [np.ones((300, 300), int)] * 2
    (step,) = trnpy.einsum_plan("ij,jk->ik", *whole).steps
    assert step.why == "exact float64 products" and step.moved_bytes == 3 * 300 * 300 * 8
    assert all(dataclasses.asdict(step)[field] >= 0 for field in ("flops", "host_s", "device_s"))


def test_a_plan_and_its_steps_cannot_be_changed():
    plan = trnpy.einsum_plan(CHAIN, *chain())
    for part in (plan, plan.steps[0], plan.decision):
        with pytest.raises(dataclasses.FrozenInstanceError):
            part.subscripts = ""


def test_a_notebook_shows_the_plan_as_a_table():
    plan = trnpy.einsum_plan(CHAIN, *chain())
    html = plan._repr_html_()
    assert html.count("<tr>") >= len(plan.steps) and "ijkl" in html and str(plan).partition("\n")[0][:10] in html
