"""numpy.einsum by products of matrices where NumPy loops: infs, NaNs and overflow are NumPy's."""

import numpy as np
import pytest

import trnpy
from tests._einsum.test_rows import FLOATS, agree, operands
from trnpy._call.dispatch import Reason
from trnpy._einsum import plan as _plan
from trnpy._host import pairwise

ROUTED = [
    ("pi,pqrs->iqrs", (30, 10), (30, 20, 20, 20)),
    ("Lia,Ljb->iajb", (60, 9, 20), (60, 9, 20)),
    ("Lpq,pi->Liq", (50, 30, 30), (30, 10)),
    ("pi,Lpq->qiL", (30, 10), (50, 30, 30)),
    ("kbcj,ikac->ijab", (9, 16, 16, 9), (9, 9, 16, 16)),
    ("bij,bjk->bik", (90, 24, 24), (90, 24, 24)),
    ("pi,qj,pqrs,rk,sl->ijkl", (9, 4), (9, 4), (9, 9, 9, 9), (9, 4), (9, 4)),
    ("ik,jk,k->ij", (90, 90), (90, 90), (90,)),
    ("ij,j->i", (600, 600), (600,)),
    ("Lpq,pq->L", (90, 60, 60), (60, 60)),
    ("L,Lpq->pq", (90,), (90, 60, 60)),
    ("ij,jk->ik", (5000, 30), (30, 20)),  # rows by rows, few columns
    ("Lpi,Lqi->qp", (150, 50, 14), (150, 50, 14)),  # copied in blocks
    ("Lpi,iqL->pq", (150, 50, 14), (14, 50, 150)),
]


@pytest.mark.route
@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("case", ROUTED, ids=[c[0] for c in ROUTED])
def test_where_numpy_loops_the_host_multiplies_matrices(case, dtype):
    subscripts, *shapes = case
    arrays = operands(shapes, dtype)
    with trnpy.trace() as log:
        ours = trnpy.einsum(subscripts, *arrays)
    assert [(d.on_device, d.reason, d.route) for d in log] == [(False, Reason.ROUTE, "pairwise products")]
    agree(ours, np.einsum(subscripts, *arrays), *arrays)
    assert ours.flags.writeable and not any(np.shares_memory(ours, a) for a in arrays)


HUGE = np.full((90, 90), 1e200)


COLUMN = np.where(np.arange(90) == 3, np.inf, 1.0) * np.ones((90, 1))


OVERFLOWING = {
    "everywhere": ("ij,jk->ik", HUGE, HUGE),
    "to NaN": ("ij,jk->ik", HUGE, HUGE * np.where(np.arange(90)[:, np.newaxis] % 2, 1, -1)),
    "a column of infs": ("ij,jk->ki", HUGE / 1e200, COLUMN),
    "rows and columns of infs": ("ij,jk->ik", COLUMN.T, COLUMN),
    "NaNs": ("ij,jk->ik", HUGE, HUGE * np.nan),
    "one operand's only": ("ij,jk,kl->il", HUGE, HUGE, HUGE * 1e-300),
    "four": ("pi,qj,pqrs,rk->ijks", *[HUGE[:9, :9] * 1e-150] * 2, np.full((9,) * 4, 1e200), HUGE[:9, :9]),
}


@pytest.mark.route
@pytest.mark.parametrize("case", OVERFLOWING)
def test_what_overflows_is_numpys_loop_to_give(case):
    """Sums and products in another order, or fused, overflow elsewhere; and NumPy's loop warns of nothing."""
    arguments = OVERFLOWING[case]
    with trnpy.trace() as log:
        recorded = trnpy.einsum(*arguments)
    expected = np.einsum(*arguments)
    assert not np.isfinite(expected).all() or case == "one operand's only"
    np.testing.assert_array_equal(recorded, expected)
    np.testing.assert_array_equal(trnpy.einsum(*arguments), expected)
    assert log[0].reason is Reason.VALUE or log[0].route


@pytest.mark.route
@pytest.mark.parametrize("subscripts", ["ij,jk->ik", "ij,jk->ki", "bij,bjk->bki", "ij,jk,kl->il", "iij,jk->ik"])
@pytest.mark.parametrize("value", [np.inf, np.nan, 1e308])
def test_a_single_inf_costs_a_single_row(subscripts, value):
    """Found in the products, where the look at a sample of the operands does not see it."""
    arrays = operands([(64,) * len(word) for word in subscripts.partition("->")[0].split(",")], "f8")
    arrays[0][(19,) * arrays[0].ndim] = value
    arrays[1] *= 1e3
    with trnpy.trace() as log:
        recorded = trnpy.einsum(subscripts, *arrays)
    assert log[0].route
    for ours in (recorded, trnpy.einsum(subscripts, *arrays)):
        expected = np.einsum(subscripts, *arrays)
        np.testing.assert_array_equal(np.isfinite(ours), np.isfinite(expected))
        np.testing.assert_allclose(ours, expected, rtol=1e-12, atol=1e-9)


PRODUCTS = {  # of one product each, by gemm, gemv, syrk and stacks of gemm
    "ij,jk->ik": ((64, 64), (64, 64)),
    "ji,kj->ki": ((64, 64), (64, 64)),
    "ij,kj->ik": ((64, 64), (64, 64)),
    "ijk,k->ij": ((64, 64, 64), (64,)),
    "bij,bjk->bik": ((8, 40, 40), (8, 40, 40)),
    "pi,pqr->iqr": ((30, 20), (30, 30, 30)),
}


@pytest.mark.parametrize("share", [0.001, 0.02, 0.3])
@pytest.mark.parametrize("kind", ["f4", "f8", "c16"])
@pytest.mark.parametrize("subscripts", PRODUCTS)
def test_infs_and_nans_all_over_the_result_of_one_product(subscripts, kind, share):
    """Their places and signs do not depend on the order of sums."""
    rng = np.random.default_rng(7)
    arrays = operands(PRODUCTS[subscripts], kind)
    for a in arrays:
        parts = a.view(a.real.dtype).reshape(-1)
        chosen = rng.permutation(parts.size)[: max(int(share * parts.size), 1)]
        parts[chosen] = rng.choice([np.inf, -np.inf, np.nan, 0.0], len(chosen))
    expected = np.einsum(subscripts, *arrays)
    assert not np.isfinite(expected).all()
    for _ in range(2):
        ours = trnpy.einsum(subscripts, *arrays)
        for mine, theirs in ((ours.real, expected.real), (ours.imag, expected.imag)):
            np.testing.assert_allclose(mine, theirs, rtol=1e-3 if kind == "f4" else 1e-10, atol=1e-4)


@pytest.mark.route
def test_infs_all_over_one_product_leave_it_its_route():
    a = np.ones((64, 64))
    a[5, 7], a[11, 3] = np.inf, np.nan
    b = a.T.copy()
    with trnpy.trace() as log:
        np.testing.assert_array_equal(trnpy.einsum("ij,jk->ik", a, b), np.einsum("ij,jk->ik", a, b))
    assert log[0].route


@pytest.mark.route
def test_infs_all_over_where_sums_may_overflow_leave_it_to_numpy():
    a = np.ones((64, 64))
    a[5, 7], a[11, 3], a[19, 19] = np.inf, np.nan, 1e308
    b = a.T.copy()
    with trnpy.trace() as log:
        np.testing.assert_array_equal(trnpy.einsum("ij,jk->ik", a, b), np.einsum("ij,jk->ik", a, b))
    assert log[0].reason is Reason.VALUE and not log[0].route


def test_the_least_integer_bounds_a_product():
    """Its absolute value is not among the integers: what overflows by it is NumPy's loop to give."""
    a, b = np.full((64, 64), 1e300), np.full((64, 64), np.iinfo(np.int64).min)
    np.testing.assert_array_equal(trnpy.einsum("ij,jk->ik", a, b), np.einsum("ij,jk->ik", a, b))
    plan = _plan.plan(("ij", "jk"), "ik", (a.shape, b.shape), ((0, 1),))
    assert not pairwise._in_any_order(plan, (a, b), a.dtype)
