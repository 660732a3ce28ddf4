"""Tests of the elementwise instructions against NumPy, and of everything they refuse."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nkisim import isa as nisa
from nkisim import language as nl
from nkisim.run.launch import Kernel, run
from tests.simulator.tiles import (
    FLOAT_TYPES,
    INT_TYPES,
    TYPES,
    cast,
    execute,
    f32,
    filled,
    refused,
    same,
    sample,
    seeds,
    shapes,
    thorough,
    views,
)  # fmt: skip

ARITHMETIC = {
    "add": np.add, "subtract": np.subtract, "multiply": np.multiply, "maximum": np.maximum, "minimum": np.minimum,
    "equal": np.equal, "not_equal": np.not_equal, "greater": np.greater, "greater_equal": np.greater_equal,
    "less": np.less, "less_equal": np.less_equal, "logical_and": np.logical_and, "logical_or": np.logical_or,
    "logical_xor": np.logical_xor,
}  # fmt: skip
BITS = {"bitwise_and": np.bitwise_and, "bitwise_or": np.bitwise_or, "bitwise_xor": np.bitwise_xor}
types = st.sampled_from(list(TYPES.values()))
operators = st.sampled_from(list(ARITHMETIC))


@thorough
@given(shapes, types, types, types, operators, views, views, seeds)
def test_tensor_tensor_is_float32_arithmetic_with_casts(shape, type1, type2, out, op, view, view2, seed):
    if view == view2 == "psum":
        view2 = "whole"
    if "lower" in (view, view2):  # two SBUF inputs start at the same partition
        view = view2 = "lower"
    a, b = sample(shape, type1, seed), sample(shape, type2, seed + 1)
    found = execute(
        nisa.tensor_tensor, {"data1": a, "data2": b}, {"dst": (shape, out)},
        {"data1": view, "data2": view2, "dst": view}, op=getattr(nl, op), engine=nisa.engine.vector,
    )  # fmt: skip
    same(found, cast(ARITHMETIC[op](f32(a), f32(b)).astype(np.float32), out))


def test_tfloat32_results_keep_ten_bits_of_mantissa():
    def kernel(x):
        tile, out = nl.ndarray(x.shape, nl.tfloat32), nl.ndarray(x.shape, nl.float32, buffer=nl.shared_hbm)
        nisa.tensor_scalar(dst=tile, data=nl.load(x), op0=nl.multiply, operand0=1.0)
        nl.store(out, nl.copy(tile, nl.float32))
        return out

    x = np.array([[1 + 2**-10, 1 + 2**-11, 1 + 3 * 2**-11, -(1 + 2**-12)]], np.float32)
    assert run(Kernel(kernel), (x,)).outputs.tolist() == [[1 + 2**-10, 1, 1 + 2**-9, -1]]


@thorough
@given(shapes, st.sampled_from(["int32", "uint32"]), st.sampled_from(["add", "subtract", "multiply", "maximum"]), seeds)
def test_int32_tensors_are_exact_on_gpsimd(shape, dtype, op, seed):
    rng = np.random.default_rng(seed)
    high = 2**15 if op == "multiply" else 2**30
    a, b = rng.integers(high // 2, high, shape).astype(dtype), rng.integers(0, high // 2, shape).astype(dtype)
    options = {"inputs": {"data1": a, "data2": b}, "outputs": {"dst": (shape, dtype)}, "op": getattr(nl, op)}
    result = execute(nisa.tensor_tensor, full=True, **options)
    same(result.outputs[0], ARITHMETIC[op](a, b))
    assert result.trace.instructions[-2].engine == "gpsimd"


def test_int32_tensors_on_vector_engine_lose_their_low_digits_and_say_so():
    a = np.full((2, 4), 2**24 + 1, np.int32)
    result = execute(
        nisa.tensor_tensor, {"data1": a, "data2": a * 0}, {"dst": (a.shape, np.int32)}, full=True,
        op=nl.add, engine=nisa.engine.vector,
    )  # fmt: skip
    same(result.outputs[0], a - 1)
    assert [note.rule for note in result.trace.notes] == [32]


@pytest.mark.parametrize("in_psum", ["data1", "dst"])
def test_int32_tensors_fall_back_to_vector_engine_in_psum(in_psum):
    a = np.arange(8, dtype=np.int32).reshape(2, 4)
    result = execute(
        nisa.tensor_tensor,
        {"data1": a, "data2": a},
        {"dst": (a.shape, np.int32)},
        {in_psum: "psum"},
        full=True,
        op=nl.add,
    )
    issued = [i for i in result.trace.instructions if i.opcode == "tensor_tensor"]
    assert issued[0].engine == "vector" and np.array_equal(result.outputs[0], 2 * a)


@thorough
@given(shapes, st.sampled_from(list(INT_TYPES.values())), st.sampled_from(list(BITS)), views, seeds)
def test_bit_operators_work_on_patterns(shape, dtype, op, view, seed):
    if view == "psum":
        view = "whole"
    rng = np.random.default_rng(seed)
    limits = np.iinfo(dtype)
    a, b = (rng.integers(limits.min, limits.max, shape, dtype=dtype, endpoint=True) for _ in range(2))
    found = execute(nisa.tensor_tensor, {"data1": a, "data2": b}, {"dst": (shape, dtype)}, view, op=getattr(nl, op))
    same(found, BITS[op](a, b))


def test_right_shift_is_logical_and_left_shift_drops_high_bits():
    a = np.array([[-8, 7, -1, 64]], np.int8)
    by = np.ones_like(a)
    found = execute(nisa.tensor_tensor, {"data1": a, "data2": by}, {"dst": (a.shape, np.int8)}, op=nl.right_shift)
    same(found, (a.view(np.uint8) >> 1).view(np.int8))
    found = execute(nisa.tensor_tensor, {"data1": a, "data2": by}, {"dst": (a.shape, np.int8)}, op=nl.left_shift)
    same(found, (a.view(np.uint8) << 1).astype(np.uint8).view(np.int8))


def test_power_runs_on_gpsimd():
    a, b = np.full((3, 4), 2, np.float32), np.arange(12, dtype=np.float32).reshape(3, 4)
    result = execute(
        nisa.tensor_tensor, {"data1": a, "data2": b}, {"dst": (a.shape, np.float32)}, full=True, op=nl.power
    )
    same(result.outputs[0], a**b)
    assert result.trace.instructions[-2].engine == "gpsimd"


@pytest.mark.parametrize(("op", "expected"), [("abs_max", [-5.0, -1.0]), ("abs_min", [3.0, -1.0])])
def test_abs_max_and_abs_min_keep_the_sign_and_give_ties_to_the_second(op, expected):
    a, b = np.array([[-5, 1]], np.float32), np.array([[3, -1]], np.float32)
    found = execute(
        nisa.tensor_tensor, {"data1": a, "data2": b}, {"dst": (a.shape, np.float32)}, target="trn3", op=getattr(nl, op)
    )
    assert found.tolist() == [expected]


# --- refusals of tensor_tensor --------------------------------------------------------------------------


def tensor_tensor(a=None, b=None, dst=None, op=None, **options):
    return lambda: nisa.tensor_tensor(
        dst=(dst or filled)((4, 8)),
        data1=(a or filled)((4, 8)),
        data2=(b or filled)((4, 8)),
        op=op or nl.add,
        **options,
    )


def psum(shape):
    return filled(shape, buffer=nl.psum)


def of(dtype):
    return lambda shape: filled(shape, dtype)


def reshaped(p, n):
    return lambda shape: filled((p, n))


@pytest.mark.parametrize(
    ("body", "match", "rule"),
    [
        (tensor_tensor(b=reshaped(4, 1)), r"data2 \(4, 1\) does not match dst \(4, 8\)", 28),
        (tensor_tensor(a=reshaped(2, 16)), "nothing broadcasts", 28),
        (tensor_tensor(a=psum, b=psum), "both in PSUM", 27),
        (tensor_tensor(b=lambda _: filled((64, 8))[32:36]), "data1 starts at partition 0 and data2 at 32", 13),
        (tensor_tensor(op=nl.power, dst=psum), "GpSimd Engine reaches SBUF only", 27),
        (tensor_tensor(a=psum, engine=nisa.engine.gpsimd), "data1 is in PSUM", 27),
        (tensor_tensor(op=nl.power, engine=nisa.engine.vector), "engine=vector; gpsimd is needed", 30),
        (tensor_tensor(engine=nisa.engine.scalar), "engine=scalar", 30),
        (tensor_tensor(engine="vector"), "a member of nisa.engine", 10),
        (tensor_tensor(op=nl.bitwise_and), "data1 is float32|dst is float32", 28),
        (tensor_tensor(op=nl.bitwise_and, a=of("int8"), b=of("int8"), dst=of("int32")), "different widths", 28),
        (
            tensor_tensor(op=nl.bitwise_and, a=of("int8"), b=of("int8"), dst=of("int8"), engine=nisa.engine.gpsimd),
            "vector is",
            30,
        ),
        (tensor_tensor(op=nl.abs), "takes one operand", 28),
        (tensor_tensor(op=nl.abs_max), "needs trn3; the target is trn2", 30),
        (tensor_tensor(op=nl.divide), "no engine has it", 34),
        (tensor_tensor(op=nl.mod), "no engine has it", 34),
        (tensor_tensor(op=np.add), "operator of nki.language", 3),
        (tensor_tensor(op="add"), "operator of nki.language", 3),
        (tensor_tensor(op=nl.exp), "not an operator", 28),
        (tensor_tensor(a=lambda shape: nl.ndarray(shape, "float32", buffer=nl.shared_hbm)), "in HBM", None),
        (tensor_tensor(a=lambda shape: 1.0), "a tile in SBUF or PSUM is needed", None),
        (tensor_tensor(a=lambda shape: nl.ndarray(shape, "float32")), "uninitialised", 16),
    ],
)
def test_tensor_tensor_refuses(body, match, rule):
    refused(body, match, rule)


def test_gpsimd_integers_refuse_overflow():
    a = np.full((1, 2), 2**30, np.int32)
    with pytest.raises(Exception, match="outside int32; integer overflow has no documented result"):
        execute(nisa.tensor_tensor, {"data1": a, "data2": a}, {"dst": (a.shape, np.int32)}, op=nl.add)


def test_shifts_by_the_width_are_refused():
    a = np.full((1, 2), 8, np.uint8)
    with pytest.raises(Exception, match="left_shift by 8 of 8-bit elements"):
        execute(nisa.tensor_tensor, {"data1": a, "data2": a}, {"dst": (a.shape, np.uint8)}, op=nl.left_shift)


# --- tensor_scalar --------------------------------------------------------------------------------------


@thorough
@given(shapes, types, types, operators, operators, views, st.booleans(), st.booleans(), seeds)
def test_tensor_scalar_applies_one_or_two_operators(shape, dtype, out, op0, op1, view, reverse0, reverse1, seed):
    a = sample(shape, dtype, seed)
    column = sample((shape[0], 1), np.float32, seed + 1)
    found = execute(
        nisa.tensor_scalar, {"data": a, "operand0": column}, {"dst": (shape, out)}, {"data": view, "dst": view},
        op0=getattr(nl, op0), op1=getattr(nl, op1), operand1=2.5, reverse0=reverse0, reverse1=reverse1,
    )  # fmt: skip
    x, y = f32(a), column
    first = ARITHMETIC[op0](y, x) if reverse0 else ARITHMETIC[op0](x, y)
    first, z = first.astype(np.float32), np.float32(2.5)
    second = ARITHMETIC[op1](z, first) if reverse1 else ARITHMETIC[op1](first, z)
    same(found, cast(second.astype(np.float32), out))


@thorough
@given(shapes, st.sampled_from(list(INT_TYPES.values())), seeds)
def test_tensor_scalar_bit_operators(shape, dtype, seed):
    rng = np.random.default_rng(seed)
    limits = np.iinfo(dtype)
    a = rng.integers(limits.min, limits.max, shape, dtype=dtype, endpoint=True)
    mask = rng.integers(limits.min, limits.max, (shape[0], 1), dtype=dtype, endpoint=True)
    found = execute(
        nisa.tensor_scalar, {"data": a, "operand0": mask}, {"dst": (shape, dtype)},
        op0=nl.bitwise_and, op1=nl.bitwise_xor, operand1=5,
    )  # fmt: skip
    same(found, (a & mask) ^ dtype(5))
    found = execute(nisa.tensor_scalar, {"data": a}, {"dst": (shape, dtype)}, op0=nl.invert, operand0=None)
    same(found, ~a)


def test_tensor_scalar_rsqrt_runs_on_gpsimd_and_abs_on_vector():
    a = np.array([[4.0, 16.0]], np.float32)
    result = execute(
        nisa.tensor_scalar, {"data": a}, {"dst": (a.shape, np.float32)}, full=True, op0=nl.rsqrt, operand0=0.0
    )
    assert result.outputs[0].tolist() == [[0.5, 0.25]] and result.trace.instructions[-2].engine == "gpsimd"
    found = execute(nisa.tensor_scalar, {"data": -a}, {"dst": (a.shape, np.float32)}, op0=nl.abs, operand0=None)
    same(found, a)


def test_tensor_scalar_on_scalar_engine_of_trn2():
    a = np.array([[4.0, 16.0]], np.float32)
    result = execute(
        nisa.tensor_scalar, {"data": a}, {"dst": (a.shape, np.float32)}, full=True,
        op0=nl.multiply, operand0=2.0, op1=nl.add, operand1=1.0, engine=nisa.engine.scalar,
    )  # fmt: skip
    assert result.outputs[0].tolist() == [[9.0, 33.0]] and result.trace.instructions[-2].engine == "scalar"


def tensor_scalar(data=None, dst=None, op0=None, operand0=1.0, **options):
    def body():
        value = operand0() if callable(operand0) else operand0
        tiles = {"dst": (dst or filled)((4, 8)), "data": (data or filled)((4, 8))}
        nisa.tensor_scalar(**tiles, op0=op0 or nl.add, operand0=value, **options)

    return body


@pytest.mark.parametrize(
    ("body", "match", "rule", "target"),
    [
        (tensor_scalar(operand0=lambda: filled((4, 2))), r"operand0 has shape \(4, 2\)", 28, "trn2"),
        (tensor_scalar(operand0=lambda: filled((3, 1))), r"\(4, 1\) is needed", 28, "trn2"),
        (tensor_scalar(operand0=lambda: filled((4, 1), "bfloat16")), "operand0 is bfloat16", 28, "trn2"),
        (tensor_scalar(operand0="1"), "a number or a", 28, "trn2"),
        (tensor_scalar(op1=nl.add), "give both or neither", 28, "trn2"),
        (tensor_scalar(operand1=1.0), "give both or neither", 28, "trn2"),
        (tensor_scalar(op1=nl.bitwise_and, operand1=1), "bitvec; an operator of kind arithmetic", 28, "trn2"),
        (tensor_scalar(op0=nl.abs, operand0=2.0), "None or 0 is needed", 28, "trn2"),
        (tensor_scalar(op0=nl.square, operand0=None), "needs trn3", 30, "trn2"),
        (tensor_scalar(op0=nl.relu, operand0=None), "needs trn3", 30, "trn2"),
        (tensor_scalar(op0=nl.power, operand0=2.0), "nl.power runs on GpSimd", 28, "trn2"),
        (tensor_scalar(op0=nl.rsqrt, operand0=0.0, data=psum), "GpSimd Engine reaches SBUF only", 27, "trn2"),
        (tensor_scalar(op0=nl.rsqrt, operand0=0.0, engine=nisa.engine.vector), "gpsimd is needed", 30, "trn2"),
        (tensor_scalar(engine=nisa.engine.gpsimd), "engine=gpsimd; vector is needed", 30, "trn2"),
        (tensor_scalar(engine=nisa.engine.scalar), "NeuronCore-v3", 30, "trn1"),
        (tensor_scalar(op0=nl.subtract, engine=nisa.engine.scalar), "multiply-add", 30, "trn2"),
        (tensor_scalar(op0=nl.bitwise_and, operand0=1), "is float32", 28, "trn2"),
        (tensor_scalar(op0=nl.bitwise_and, data=of("int8"), dst=of("int8"), operand0=1.5), "an integer", None, "trn2"),
        (tensor_scalar(op0=nl.bitwise_and, data=of("int8"), dst=of("int8"), operand0=1, engine=nisa.engine.scalar),
         "vector is needed", 30, "trn2"),
        (tensor_scalar(data=reshaped(4, 9)), "does not match", 28, "trn2"),
    ],
)  # fmt: skip
def test_tensor_scalar_refuses(body, match, rule, target):
    refused(body, match, rule, target)


# --- scalar_tensor_tensor, reciprocal -------------------------------------------------------------------


@thorough
@given(shapes, types, types, operators, operators, views, st.booleans(), st.booleans(), seeds)
def test_scalar_tensor_tensor(shape, dtype, out, op0, op1, view, reverse0, reverse1, seed):
    a, b = sample(shape, dtype, seed), sample(shape, np.float32, seed + 1)
    other = "whole" if view == "psum" else view
    found = execute(
        nisa.scalar_tensor_tensor, {"data": a, "operand1": b}, {"dst": (shape, out)},
        {"data": view, "operand1": other, "dst": view},
        op0=getattr(nl, op0), operand0=1.5, op1=getattr(nl, op1), reverse0=reverse0, reverse1=reverse1,
    )  # fmt: skip
    x, c = f32(a), np.float32(1.5)
    first = (ARITHMETIC[op0](c, x) if reverse0 else ARITHMETIC[op0](x, c)).astype(np.float32)
    second = ARITHMETIC[op1](b, first) if reverse1 else ARITHMETIC[op1](first, b)
    same(found, cast(second.astype(np.float32), out))


def scalar_tensor_tensor(data=None, operand1=None, op0=None, op1=None, operand0=1.0):
    return lambda: nisa.scalar_tensor_tensor(
        dst=filled((4, 8)), data=(data or filled)((4, 8)), op0=op0 or nl.add, operand0=operand0,
        op1=op1 or nl.add, operand1=(operand1 or filled)((4, 8)),
    )  # fmt: skip


@pytest.mark.parametrize(
    ("body", "match", "rule"),
    [
        (scalar_tensor_tensor(data=psum, operand1=psum), "data and operand1 are both in PSUM", 27),
        (scalar_tensor_tensor(operand1=lambda _: filled((64, 8))[32:36]), "operand1 at 32", 13),
        (scalar_tensor_tensor(op0=nl.bitwise_and), "kind arithmetic is needed", 28),
        (scalar_tensor_tensor(op1=nl.bitwise_and), "kind arithmetic is needed", 28),
        (scalar_tensor_tensor(op1=nl.abs), "binary operator is needed", 28),
        (scalar_tensor_tensor(op0=nl.power), "GpSimd Engine only", 28),
        (scalar_tensor_tensor(operand1=reshaped(4, 1)), "does not match", 28),
        (scalar_tensor_tensor(operand0=None), "a number or a", 28),
    ],
)
def test_scalar_tensor_tensor_refuses(body, match, rule):
    refused(body, match, rule)


@thorough
@given(shapes, st.sampled_from(list(FLOAT_TYPES.values())), views, seeds)
def test_reciprocal(shape, dtype, view, seed):
    a = sample(shape, dtype, seed, 0.5, 8)
    found = execute(nisa.reciprocal, {"data": a}, {"dst": (shape, dtype)}, view)
    same(found, cast(np.float32(1) / f32(a), dtype))


def test_reciprocal_refuses_another_size():
    refused(lambda: nisa.reciprocal(dst=filled((4, 8)), data=filled((4, 9))), "does not match", 28)


@pytest.mark.parametrize("mode", ["run", "reorder"])
def test_reordering_independent_instructions_gives_the_same_result(mode):
    a = sample((128, 64), np.float32, 3)
    found = execute(
        nisa.tensor_scalar, {"data": a}, {"dst": (a.shape, np.float32)}, mode=mode, op0=nl.add, operand0=1.0
    )
    same(found, a + np.float32(1))
