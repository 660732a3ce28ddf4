"""What contractions refuse, each with its reason and phrase: NumPy computes those calls, or raises its own error."""

import numpy as np
import pytest

import trnpy
from trnpy._einsum import grammar
from trnpy._engine.engines import HostEngine
from trnpy._report.reasons import Reason, Unsupported

LAYOUT, PARAM, DTYPE = Reason.LAYOUT, Reason.PARAM, Reason.DTYPE
A, V, EMPTY = np.ones((3, 4)), np.ones(3), np.ones((0, 4))
DEEP, WHOLE = np.ones((1,) * 20), np.ones((3, 4), int)
HALF = (1,) * 26
PATH = "einsum_path"

# Function, arguments, options, reason, phrase.
CALLS = [
    (trnpy.einsum, (), {}, PARAM, "no operands"),
    (trnpy.einsum, (A, [0, 1], "ij"), {}, PARAM, "operands and sublists do not alternate"),
    (trnpy.einsum, (A, A), {}, PARAM, "operands and sublists do not alternate"),
    (trnpy.einsum, ([0, 1],), {}, PARAM, "operands and sublists do not alternate"),
    (trnpy.einsum, ("i. ..,...->...", A, A), {}, PARAM, "spaces inside an ellipsis or an arrow"),
    (trnpy.einsum, ("ij,ij- >ij", A, A), {}, PARAM, "spaces inside an ellipsis or an arrow"),
    (trnpy.einsum, ("i1,i1", A, A), {}, PARAM, "characters that are no labels"),
    (trnpy.einsum, (A, [True, 2], A, [True, 2]), {}, PARAM, "label True is no integer"),
    (trnpy.einsum, (A, [0, -1], A, [0, 1]), {}, PARAM, "label -1 is not in 0..51"),
    (trnpy.einsum, (A, [0, 52], A, [0, 1]), {}, PARAM, "label 52 is not in 0..51"),
    (trnpy.einsum, ("...i,...i->i", A, A), {}, PARAM, "an ellipsis is summed"),
    (trnpy.einsum, ("ij,ik->jk", A, A.T), {}, PARAM, "label 'i' has sizes 3 and 4"),
    (trnpy.einsum, ("ii,ij->ij", np.ones((1, 3)), A), {}, PARAM, "a repeated label of 'ii' stretches"),
    (trnpy.einsum, ("ii,ij->ij", np.ones((3, 1)), A), {}, PARAM, "a repeated label of 'ii' stretches"),
    (trnpy.einsum, ("ij->ji", A), {}, LAYOUT, "one operand: no product, perhaps a view"),
    (trnpy.einsum, ("ij,kj->ik", A, EMPTY), {}, LAYOUT, "an operand is empty"),
    (trnpy.einsum, ("ij,kj->ik", A, A), {"order": "X"}, PARAM, "order 'X', options none"),
    (trnpy.einsum, ("ij,kj->ik", A, A), {"where": True}, PARAM, "order 'K', options where"),
    (trnpy.einsum, ("ij,kj->ik", A, A), {"dtype": "f4"}, PARAM, "casting='safe' to float32"),
    (trnpy.einsum, ("ij,kj->ik", A, A), {"dtype": "f4", "casting": "unsafe"}, PARAM, "casting='unsafe' to float32"),
    (trnpy.einsum, ("ij,kj->ik", A, WHOLE), {"optimize": True}, DTYPE, "integers mixed with other dtypes"),
    (trnpy.einsum, ("ij,kj->ik", A, A), {"optimize": "best"}, PARAM, "optimize='best'"),
    (trnpy.einsum, ("ij,kj->ik", A, A), {"optimize": []}, PARAM, "optimize=[]"),
    (trnpy.einsum, ("ij,kj->ik", A, A), {"optimize": ["path", (0, 1)]}, PARAM, "optimize=['path', (0, 1)]"),
    (trnpy.einsum, ("ij,kj->ik", A, A), {"optimize": [PATH, (0, 2)]}, PARAM, "path step (0, 2) of 2 operands"),
    (trnpy.einsum, ("ij,kj->ik", A, A), {"optimize": [PATH, (-1, 0)]}, PARAM, "path step (-1, 0) of 2 operands"),
    (trnpy.einsum, ("ij,kj->ik", A, A), {"optimize": [PATH, (0, 0)]}, PARAM, "path step (0, 0) of 2 operands"),
    (trnpy.einsum, ("ij,kj->ik", A, A), {"optimize": [PATH, ()]}, PARAM, "path step () of 2 operands"),
    (trnpy.einsum, ("ij,kj->ik", A, A), {"optimize": [PATH, (0,)]}, PARAM, "does not contract every operand"),
    (trnpy.einsum, ("i,i->", WHOLE[:, 0], WHOLE[:, 0]), {}, LAYOUT, "sums of 3 integers"),
    (trnpy.matmul, (A, A.T), {"axes": None}, PARAM, "options axes"),
    (trnpy.matmul, (2.0, A), {}, LAYOUT, "operands of 0 and 2 dimensions"),
    (trnpy.matmul, (A, 2.0), {}, LAYOUT, "operands of 2 and 0 dimensions"),
    (trnpy.matmul, (DEEP, A), {}, LAYOUT, "operands of 20 and 2 dimensions"),
    (trnpy.matmul, (V, DEEP), {}, LAYOUT, "operands of 1 and 20 dimensions"),
    (trnpy.matmul, (A, A), {}, PARAM, "shapes (3, 4) and (3, 4) do not match"),
    (trnpy.matmul, (V, A.T), {}, PARAM, "shapes (3,) and (4, 3) do not match"),
    (trnpy.matmul, (A, V), {}, PARAM, "shapes (3, 4) and (3,) do not match"),
    (trnpy.dot, (V, V), {"out": np.zeros(())}, LAYOUT, "zero-dimensional out: NumPy also returns a number"),
    (trnpy.dot, (2.0, A), {}, LAYOUT, "operands of 0 and 2 dimensions"),
    (trnpy.dot, (A, 2.0), {}, LAYOUT, "operands of 2 and 0 dimensions"),
    (trnpy.dot, (A, A), {}, PARAM, "shapes (3, 4) and (3, 4) do not match"),
    (trnpy.inner, (A, A.T), {}, PARAM, "shapes (3, 4) and (4, 3) do not match"),
    (trnpy.inner, (np.ones(HALF), np.ones((1,) * 27)), {}, LAYOUT, "operands of 26 and 27 dimensions"),
    (trnpy.tensordot, (A, A, 1), {}, PARAM, "shapes (3, 4) and (3, 4) do not match"),
    (trnpy.tensordot, (A, A, ([0, 0], [0, 1])), {}, PARAM, "axes [0, 0] and [0, 1] do not pair up"),
    (trnpy.tensordot, (A, A, ([0, 1], [0, 0])), {}, PARAM, "axes [0, 1] and [0, 0] do not pair up"),
    (trnpy.tensordot, (A, A, ([0], [0, 1])), {}, PARAM, "axes [0] and [0, 1] do not pair up"),
    (trnpy.tensordot, (A, A, (2, 0)), {}, PARAM, "axes [2] and [0] do not pair up"),
    (trnpy.tensordot, (A, A, (0, -3)), {}, PARAM, "axes [0] and [-1] do not pair up"),
    (trnpy.kron, (V, A), {}, LAYOUT, "operands of 1 and 2 dimensions"),
    (trnpy.kron, (A, V), {}, LAYOUT, "operands of 2 and 1 dimensions"),
    (trnpy.multi_einsum, (iter([]),), {}, PARAM, "expected a list of contractions"),
    (trnpy.multi_einsum, ([("ij,kj->ik", A, A), "ij,kj->ik"],), {}, PARAM, "item 1 is str: expected a tuple"),
    (trnpy.multi_einsum, ([],), {}, LAYOUT, "no product of floating-point arrays among the contractions"),
    (trnpy.multi_einsum, ([("ij->ji", A)],), {}, LAYOUT, "no product of floating-point arrays"),
    (trnpy.multi_einsum, ([("ij,kj->ik", A, EMPTY)],), {}, LAYOUT, "no product of floating-point arrays"),
    (trnpy.multi_einsum, ([("ij,kj->ik", WHOLE, WHOLE)],), {}, LAYOUT, "no product of floating-point arrays"),
]


@pytest.mark.parametrize("call", CALLS, ids=lambda call: f"{call[0].__name__}: {call[4]}")
def test_a_call_is_refused_with_a_reason_and_a_phrase(call):
    function, args, options, reason, phrase = call
    with pytest.raises(Unsupported) as why:
        function.__trnpy_op__.prepare(*args, **options).run(HostEngine())
    assert why.value.reason is reason and phrase in str(why.value)


@pytest.mark.parametrize("output", ["ii", "k"])
def test_an_output_that_repeats_or_invents_a_label_is_refused(output):
    """By newer opt_einsum, too, and then the error is its own."""
    with pytest.raises(Unsupported, match="repeats or invents a label"):
        grammar.label_sizes(("ij", "ij"), output, ((3, 4), (3, 4)))
    with pytest.raises(ValueError, match="output"):
        trnpy.einsum(f"ij,ij->{output}", A, A)


def test_an_operand_has_as_many_labels_as_axes():
    with pytest.raises(Unsupported, match="labels 'ij' for an operand of shape"):
        grammar.label_sizes(("ij", "jk"), "ik", ((3, 4, 1), (4, 3)))
