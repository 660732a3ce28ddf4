"""Many products in one call: the results of einsum, one by one, also for calls that BLAS cannot compute."""

import numpy as np
import pytest

from trnpy._host.many_products import products

A, B, V = np.arange(12.0).reshape(3, 4), np.arange(20.0).reshape(4, 5), np.arange(4.0)
OTHER = np.ones((5, 4))
# Calls of one form, which share a plan, and mixed ones, of which einsum computes those that are None here.
FORMS = {
    "matrices": ([("ij,jk->ik", A, B), ("ij,jk->ik", 2 * A, B + 1)], True),
    "of other shapes": ([("ij,jk->ik", A, B), ("ij,jk->ik", A[:2], B[:, :2])], True),
    "exchanged": ([("ij,jk->ki", A, B)] * 2, True), "turned": ([("ji,jk->ik", A.T.copy(), B)] * 2, True),
    "turned on the right": ([("ij,kj->ik", A, OTHER)] * 2, True), "to a number": ([("i,i->", V, V)] * 2, True),
    "both turned": ([("ji,kj->ik", A.T.copy(), OTHER)] * 2, True), "a vector": ([("ij,j->i", A, V)] * 2, True),
    "a vector on the left": ([("j,jk->k", V, B)] * 2, True), "complex": ([("ij,jk->ik", A * 1j, B + 0j)] * 2, True),
    "a stretched label": ([("ij,jk->ik", A[:, :1], B)] * 2, False),
    "integers": ([("ij,jk->ik", A.astype(int), B.astype(int))] * 2, False),
    "two dtypes": ([("ij,jk->ik", A.astype("f4"), B)] * 2, False),
    "no sum": ([("ij,jk->ijk", A, B)] * 2, False), "two sums": ([("ij,ij->", A, A)] * 2, False),
    "a diagonal": ([("ii,ij->ij", B[:, :4], A.T.copy())] * 2, False), "one operand": ([("ij->ji", A)] * 2, False),
    "three operands": ([("i,i,i->i", V, V, V)] * 2, False), "sublists": ([(A, [0, 1], B, [1, 2])] * 2, False),
    "a list": ([("ij,jk->ik", A.tolist(), B)] * 2, False),
}  # fmt: skip


def same(found, expected):
    assert type(found) is type(expected) and found.dtype == expected.dtype and np.shape(found) == np.shape(expected)
    np.testing.assert_allclose(found, expected, rtol=8 * np.finfo(float).eps)


@pytest.mark.parametrize("name", FORMS)
def test_products_are_those_of_einsum_or_left_to_it(name):
    calls, computed = FORMS[name]
    results = products(calls)
    assert [result is not None for result in results] == [computed] * len(calls)
    for result, call in zip(results, calls, strict=True):
        if result is not None:
            same(result, np.einsum(*call))


def test_calls_of_several_forms_are_computed_by_form_and_stay_in_order():
    calls = [call for n in (0, 1) for calls, _ in FORMS.values() for call in calls[n : n + 1]]
    for result, call, computed in zip(products(calls), calls, [c for _, c in FORMS.values()] * 2, strict=True):
        assert (result is not None) == computed
        if computed:
            same(result, np.einsum(*call))


def test_calls_that_differ_in_dimensions_or_dtype_alone_are_computed_apart():
    calls = [("ij,jk->ik", A, B), ("ij,jk->ik", A.astype("f4"), B.astype("f4")), ("ij,jk->ik", A[0], B)]
    results = products(calls)
    same(results[0], A @ B)
    same(results[1], A.astype("f4") @ B.astype("f4"))
    assert results[2] is None
    for other in (B[0], V):  # numpy.dot would multiply by the second
        assert products([("ij,jk->ik", A, B), ("ij,jk->ik", A, other)])[1] is None
