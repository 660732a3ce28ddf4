"""Tests of the operator tables against the columns of nki.api.shared.rst."""

import numpy as np
import pytest

from nkisim import language as nl
from nkisim.chip.operators import ACTIVATIONS, ALU, NO_SUCH_INSTRUCTION

BITVEC = {"invert", "bitwise_and", "bitwise_or", "bitwise_xor", "left_shift", "right_shift"}
UNARY = {"invert", "abs", "square", "relu", "rsqrt", "reciprocal"}
REDUCTION = {
    "bitwise_and", "bitwise_or", "bitwise_xor", "add", "subtract", "multiply", "maximum", "minimum", "logical_and",
    "logical_or", "logical_xor",
}  # fmt: skip
TRN3 = {"abs_max", "abs_min", "square", "relu"}
ALL = BITVEC | UNARY | REDUCTION | TRN3 | {
    "equal", "not_equal", "greater_equal", "greater", "less_equal", "less", "power",
}  # fmt: skip
BOUNDED = {"log", "sin", "arctan", "sqrt", "rsqrt", "reciprocal"}


def names(condition):
    return {name for name, op in ALU.items() if condition(op)}


def test_the_alu_table_is_the_documented_one():
    assert set(ALU) == ALL
    assert names(lambda op: op.kind == "bitvec") == BITVEC
    assert names(lambda op: op.unary) == UNARY
    assert names(lambda op: op.reduce is not None) == REDUCTION
    assert names(lambda op: op.generation == 4) == TRN3
    assert names(lambda op: op.gpsimd_only) == {"power", "rsqrt"}


def test_there_is_no_division():
    assert not ALL & set(NO_SUCH_INSTRUCTION) and set(NO_SUCH_INSTRUCTION) == {"divide", "mod", "fmod"}


def test_every_operator_is_a_name_of_nki_language():
    for name in (*ALU, *ACTIVATIONS, *NO_SUCH_INSTRUCTION):
        assert getattr(nl, name).__name__ == name


@pytest.mark.parametrize("name", [*sorted(REDUCTION - BITVEC - {"subtract"}), "abs_max", "abs_min"])
def test_the_identity_changes_no_value(name):
    values = np.float32([0, 1] if name.startswith("logical") else [-2.5, 0, 3])
    op = ALU[name]
    assert np.array_equal(op.compute(np.float32([op.identity] * len(values)), values), values)


@pytest.mark.parametrize("name", sorted(set(ALU) - BITVEC))
def test_arithmetic_operators_stay_in_float32(name):
    values = np.float32([0.5, 2])
    assert ALU[name].compute(values, values[::-1]).dtype == np.float32


@pytest.mark.parametrize("name", sorted(ACTIVATIONS))
def test_activations_stay_in_float32(name):
    assert ACTIVATIONS[name].compute(np.float32([0.5, 1.25])).dtype == np.float32


def test_only_the_documented_functions_have_a_limited_range():
    assert {name for name, function in ACTIVATIONS.items() if function.bounded} == BOUNDED


@pytest.mark.parametrize("name", sorted(BOUNDED))
def test_covers_and_outside_agree(name):
    function = ACTIVATIONS[name]
    for x in np.float32([0, -1, 1, 3.2, -3.2, 1e-30, 1e30, np.inf, -np.inf, np.nan, function.low, function.high]):
        array = np.array([[1.0, x]], np.float32)
        assert function.covers(array) == (not function.outside(array).any())
    assert function.covers(np.empty((1, 0), np.float32))
