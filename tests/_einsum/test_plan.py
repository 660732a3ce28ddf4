"""Plans of contractions: the order of their steps, their predicted time, and no result that nobody expects."""

import numpy as np
import pytest

import trnpy
from trnpy._einsum import plan as _plan
from trnpy._einsum import rows
from trnpy._einsum.loop import copied
from trnpy._einsum.product import TRANSPOSES
from trnpy._host import pairwise
from trnpy._settings import host_rates


def operands(shapes, dtype, seed=0):
    rng = np.random.default_rng(seed)
    made = [rng.standard_normal(s) for s in shapes]
    if np.dtype(dtype).kind == "c":
        made = [m + 1j * rng.standard_normal(m.shape) for m in made]
    return [np.asarray(m, dtype) for m in made]


def test_a_plan_orders_a_transformation():
    """n^5, not n^8: the four-index transformation in the order opt_einsum finds, which the host's route takes, too."""
    n = 8
    arrays = operands([(n, n), (n, n), (n,) * 4, (n, n), (n, n)], "f8")
    for optimize in (True, False):
        decision = trnpy.explain(trnpy.einsum, "pi,qj,pqrs,rk,sl->ijkl", *arrays, optimize=optimize)
        assert decision.flops == 4 * 2 * n**5


def test_a_result_on_the_way_that_nobody_expects_is_not_made():
    """NumPy's loop makes no other array than the result; each pair of these operands makes one of n^3 elements."""
    for n, taken in ((400, False), (100, True)):
        a = np.broadcast_to(1.0, (n, n))
        problem = rows.prepare_einsum("ai,bi,ci->abc", a, a, a)
        assert (pairwise.route(problem) is not None) == taken


def test_a_planned_contraction_is_predicted_like_its_steps_and_numpys_copies():
    """NumPy copies what the plan multiplies in place as stacks of matrices: q of (i, q, r, s), r of (i, j, r, s)."""
    a, c = np.zeros((36, 36, 36, 36)), np.zeros((36, 24))
    problem = rows.prepare_einsum("pqrs,pi,qj,rk,sl->ijkl", a, c, c, c, c, optimize=True)
    rates = host_rates.HostRates(host_rates.DEFAULT_CURVES, host_rates.DEFAULT_COPY, False, "")
    steps_s = problem.plan.host_s(rates, problem.dtype)
    copies_s = TRANSPOSES * 8 * (24 * 36**3 + 24**2 * 36**2) / rates.copy_bytes_per_s
    assert problem.cost.host_s(rates, problem.dtype) == pytest.approx(steps_s + copies_s, rel=0.3)


def test_copies_in_blocks_cost_what_plain_ones_cost():
    """Where only one operand needs a copy, it is copied whole, with the strides of a transposed matrix."""
    dtype = np.dtype(float)
    for inputs, shapes, blocks in (
        (("Pmi", "Pni"), ((400, 90, 20), (400, 90, 20)), True),
        (("mPi", "Pni"), ((90, 400, 20), (400, 90, 20)), False),
    ):
        (step,) = _plan.plan(inputs, "mn", shapes, "auto").steps
        assert bool(step.block) == blocks and step.copied
        plain = sum(
            copied(labels, labels, shape, dtype)
            for labels, shape, view in zip(inputs, shapes, step.views, strict=True)
            if view.copied
        )
        assert (step.copies(dtype) == plain) == blocks and step.copies(dtype) >= plain
