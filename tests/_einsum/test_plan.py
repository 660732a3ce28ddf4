"""Plans of contractions: the order of their steps, their predicted time, and no result that nobody expects."""

import numpy as np
import pytest
from doubles import RecordingEngine

import trnpy
from nkisim.hardware import TRN2
from trnpy._einsum import plan as _plan
from trnpy._einsum import rows
from trnpy._einsum.loop import copied
from trnpy._einsum.product import TRANSPOSES
from trnpy._engine.engines import engine
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


@pytest.mark.parametrize(
    ("subscripts", "shape", "launched"),
    [
        ("ij,ij->", (3, 7001), [(128, 164, 128)]),
        ("i,i->", (127,), [(1, 127, 1)]),
        ("ij,ij->", (40, 50000), [(128, 8163, 128), (117, 8163, 117)]),
        ("ij,ij->i", (300, 200), [(128, 200, 128)] * 2 + [(44, 200, 44)]),
        ("ij,ij->i", (5, 9000), [(125, 360, 125)]),
        ("ij,ij->j", (700, 9), [(126, 50, 126)]),
    ],
)
@pytest.mark.parametrize("dtype", ["f4", "f8", "c16"])
def test_rows_times_columns_are_diagonals_of_products_of_tiles(subscripts, shape, launched, dtype):
    a, b = operands((shape, shape), dtype)
    with engine(RecordingEngine()) as e, trnpy.policy(force=True), trnpy.trace() as log:
        found = trnpy.einsum(subscripts, a, b)
    assert log[0].on_device and [s for s in e.shapes if max(s[-3:]) > 1] == launched
    exact = np.einsum(subscripts, a.astype("c16"), b.astype("c16"))
    allowed = np.einsum(subscripts, abs(a), abs(b)) * shape[-1] * np.finfo(dtype).eps
    assert found.dtype == dtype and found.shape == exact.shape and (abs(found - exact) <= allowed).all()


def test_a_sum_that_overflows_after_the_products_is_numpys():
    a, b = np.full(128, 3e38, "f4"), np.ones(128, "f4")
    with engine(RecordingEngine()) as e, trnpy.policy(force=True), trnpy.trace() as log:
        found = trnpy.einsum("i,i->", a, b)
    assert (128, 1, 128) in e.shapes and not log[0].on_device
    assert found == np.inf == np.einsum("i,i->", a, b)


@pytest.mark.parametrize("subscripts", ["ij,ij->", "ij,ij->i"])
@pytest.mark.parametrize("dtype", ["f4", "f8"])
def test_a_memory_bound_sum_is_priced_like_its_transfers(subscripts, dtype):
    """Single rows would be sent with 15 rows of zeros: 2.9 s in float32 instead of 0.14 s."""
    a, b = (np.broadcast_to(np.ones((), dtype), (2000, 40000)) for _ in range(2))
    with trnpy.policy(device="null", machine=TRN2.name):
        decision = trnpy.explain(trnpy.einsum, subscripts, a, b)
    link_s = (a.nbytes + b.nbytes) / TRN2.link_bytes_per_s
    assert not decision.on_device and link_s <= decision.device_s <= 3 * link_s
