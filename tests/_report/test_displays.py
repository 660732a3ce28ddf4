"""What is displayed in a notebook and at Python's prompt."""

import numpy as np
import pytest
import scipy.sparse

import trnpy
from trnpy._report.files import source
from trnpy._report.html_table import table

A = np.ones((300, 300))


def analysis():
    return trnpy.sparse.block_analysis(scipy.sparse.eye_array(300, format="coo"))


def what_if():
    with trnpy.profile() as ledger:
        trnpy.matmul(A, A)
    return ledger.what_if()


@pytest.mark.parametrize(
    "made",
    [
        lambda: trnpy.explain(trnpy.matmul, A, A),
        lambda: trnpy.einsum_plan("ij,jk,kl->il", A, A, A),
        lambda: trnpy.einsum_plan("ij->ji", A),
        analysis,
        what_if,
    ],
    ids=["decision", "plan", "no plan", "blocks", "what-if"],
)
def test_a_prompt_shows_what_print_shows(made):
    value = made()
    assert repr(value) == str(value) and "(op=" not in repr(value)


def test_a_decision_and_a_plan_are_tables_in_a_notebook():
    with trnpy.policy(device="null"):
        decision = trnpy.explain(trnpy.matmul, A, A)._repr_html_()
    assert decision.startswith("<table><caption") and "numpy.matmul" in decision and "modelled" in decision
    assert trnpy.einsum_plan("ij,jk,kl->il", A, A, A)._repr_html_().count("<tr>") == 3
    assert trnpy.einsum_plan("ij->ji", A)._repr_html_().count("<tr>") == 0


def test_the_blocks_of_a_matrix_are_a_picture_in_a_notebook():
    assert "&lt;svg" in analysis()._repr_html_()


def test_cells_of_a_table_are_escaped():
    assert "<b>" not in table("<b>", [("<b>",)], ("<b>",))


def test_outside_ipython_a_file_has_its_own_name():
    assert source("/tmp/program.py") == "/tmp/program.py"
