"""Tests of the reductions over free dimensions and partitions, and of VectorEngine's accumulator registers."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nkisim import isa as nisa
from nkisim import language as nl
from tests.simulator.tiles import (
    FLOAT_TYPES,
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
)

types = st.sampled_from(list(TYPES.values()))
EXACT = {  # reductions whose value does not depend on the order of small integers
    "add": np.add, "subtract": np.subtract, "maximum": np.maximum, "minimum": np.minimum,
    "logical_and": np.logical_and, "logical_or": np.logical_or, "logical_xor": np.logical_xor,
}  # fmt: skip
RESET, REDUCE, LOAD, IDLE = (
    getattr(nisa.reduce_cmd, name) for name in ("reset_reduce", "reduce", "load_reduce", "idle")
)


@thorough
@given(shapes, types, types, st.sampled_from(list(EXACT)), views, st.booleans(), seeds)
def test_tensor_reduce_over_all_free_dimensions(shape, dtype, out, op, view, negate, seed):
    x = np.rint(sample(shape, np.float32, seed)).clip(0, 7).astype(dtype)
    axis = (1, 2) if view == "blocks" and shape[1] % 2 == 0 else 1
    found = execute(
        nisa.tensor_reduce, {"data": x}, {"dst": ((shape[0], 1), out)}, {"data": view}, op=getattr(nl, op), axis=axis,
        negate=negate,
    )  # fmt: skip
    expected = EXACT[op].reduce(f32(x), axis=1, keepdims=True).astype(np.float32)
    same(found, cast(-expected if negate else expected, out))


@pytest.mark.parametrize("axis", [(3,), 3, [2, 3], (1, 2, 3)])
@pytest.mark.parametrize("keepdims", [False, True])
def test_tensor_reduce_axes_are_those_of_the_tensor(axis, keepdims):
    x = np.arange(2 * 3 * 4 * 5, dtype=np.float32).reshape(2, 60)
    axes = (axis,) if isinstance(axis, int) else tuple(axis)
    expected = x.reshape(2, 3, 4, 5).sum(axes)

    def body(dst, data):
        nisa.tensor_reduce(dst=dst, op=nl.add, data=data.reshape((2, 3, 4, 5)), axis=axis, keepdims=keepdims)

    found = execute(body, {"data": x}, {"dst": ((2, expected.size // 2), np.float32)})
    same(found, expected.reshape(2, -1))


@pytest.mark.parametrize("op", ["maximum", "minimum"])
def test_the_order_of_nan_is_noted_as_undocumented(op):
    x = np.array([[1.0, np.nan, 2.0]], np.float32)
    arguments = {"inputs": {"data": x}, "outputs": {"dst": ((1, 1), np.float32)}, "op": getattr(nl, op), "axis": 1}
    result = execute(nisa.tensor_reduce, full=True, **arguments)
    assert [note.rule for note in result.trace.notes] == [33]


def test_bit_reductions():
    x = np.array([[1, 2, 4], [7, 3, 1]], np.uint8)
    for op, meaning in (
        ("bitwise_or", np.bitwise_or),
        ("bitwise_and", np.bitwise_and),
        ("bitwise_xor", np.bitwise_xor),
    ):
        found = execute(nisa.tensor_reduce, {"data": x}, {"dst": ((2, 1), np.uint8)}, op=getattr(nl, op), axis=1)
        same(found, meaning.reduce(x, axis=1, keepdims=True))


def tensor_reduce(dst=(4, 1), data=(4, 8), dtype="float32", **options):
    settings = {"op": nl.add, "axis": 1} | options
    return lambda: nisa.tensor_reduce(dst=filled(dst, dtype), data=filled(data, dtype), **settings)


@pytest.mark.parametrize(
    ("body", "match", "rule"),
    [
        (tensor_reduce(axis=0), "partitions never do", 29),
        (tensor_reduce(data=(4, 2, 8), dst=(4, 8), axis=1), "only the last free dimensions", 29),
        (tensor_reduce(data=(4, 2, 8), dst=(4, 1), axis=(0, 1, 2)), "partitions never do", 29),
        (tensor_reduce(axis=-1), "only the last free dimensions", 29),
        (tensor_reduce(axis=None), "an integer or a tuple", 29),
        (tensor_reduce(dst=(4, 2)), "is needed", 29),
        (tensor_reduce(dst=(3, 1)), "is needed", 29),
        (tensor_reduce(op=nl.equal), "does not reduce", 28),
        (tensor_reduce(op=nl.power), "does not reduce", 28),
        (tensor_reduce(op=nl.bitwise_or), "is float32", 28),
        (tensor_reduce(op=nl.bitwise_or, dtype="int32", negate=True), "only arithmetic results negate", 28),
    ],
)
def test_tensor_reduce_refuses(body, match, rule):
    refused(body, match, rule)


@pytest.mark.parametrize(
    ("op", "meaning"), [("add", np.sum), ("average", np.mean), ("maximum", np.max), ("max", np.max)]
)
def test_tensor_partition_reduce(op, meaning):
    x = np.arange(128 * 6, dtype=np.float32).reshape(128, 6)
    result = execute(
        nisa.tensor_partition_reduce, {"data": x}, {"dst": ((1, 6), np.float32)}, full=True, op=getattr(nl, op)
    )
    same(result.outputs[0], meaning(x, axis=0, keepdims=True).astype(np.float32))
    assert result.trace.instructions[-2].engine == "gpsimd"


def test_tensor_partition_reduce_of_bits():
    x = np.array([[1, 3], [2, 1]], np.uint16)
    found = execute(nisa.tensor_partition_reduce, {"data": x}, {"dst": ((1, 2), np.uint16)}, op=nl.bitwise_or)
    same(found, np.array([[3, 3]], np.uint16))


def partition_reduce(dst=(1, 8), op=None, buffer=None, dtype="float32"):
    return lambda: nisa.tensor_partition_reduce(
        dst=filled(dst, dtype), op=op or nl.add, data=filled((4, 8), dtype, buffer)
    )


@pytest.mark.parametrize(
    ("body", "match", "rule"),
    [
        (partition_reduce(op=nl.minimum), "op=nl.minimum", 28),
        (partition_reduce(dst=(4, 8)), "is needed", 29),
        (partition_reduce(dst=(1, 4)), "is needed", 29),
        (partition_reduce(buffer=nl.psum), "GpSimd Engine reaches SBUF only", 27),
        (partition_reduce(op=nl.bitwise_or), "is float32", 28),
    ],
)
def test_tensor_partition_reduce_refuses(body, match, rule):
    refused(body, match, rule)


# --- tensor_scalar_reduce -------------------------------------------------------------------------------

MEANING = {"add": np.sum, "multiply": np.prod, "maximum": np.max, "minimum": np.min}


@thorough
@given(shapes, types, st.sampled_from(list(MEANING)), views, st.booleans(), seeds)
def test_tensor_scalar_reduce(shape, dtype, op, view, negate, seed):
    x = sample(shape, dtype, seed, 1, 2)
    dst, res = execute(
        nisa.tensor_scalar_reduce, {"data": x}, {"dst": (shape, np.float32), "reduce_res": ((shape[0], 1), np.float32)},
        {"data": view, "dst": view}, op0=nl.multiply, operand0=0.75, reduce_op=getattr(nl, op),
        reduce_res_negate=negate,
    )  # fmt: skip
    same(dst, f32(x) * np.float32(0.75))
    expected = MEANING[op](dst.astype(np.float64), axis=1, keepdims=True)
    np.testing.assert_allclose(res, -expected if negate else expected, rtol=1e-5)


def scalar_reduce(data=(4, 8), **options):
    settings = {"op0": nl.add, "operand0": 1.0, "reduce_op": nl.add} | options
    return lambda: nisa.tensor_scalar_reduce(dst=filled((4, 8)), data=filled(data), **settings)


@pytest.mark.parametrize(
    ("body", "match", "rule"),
    [
        (scalar_reduce(op0=nl.bitwise_and), "kind arithmetic is needed", 28),
        (scalar_reduce(reverse0=True), "not supported yet", 28),
        (scalar_reduce(op0=nl.abs), "None or 0 is needed", 28),
        (scalar_reduce(op0=nl.rsqrt, operand0=0.0), "GpSimd Engine only", 28),
        (scalar_reduce(operand0=None), "a number or a", 28),
        (scalar_reduce((4, 9)), "does not match", 28),
    ],
)
def test_tensor_scalar_reduce_refuses(body, match, rule):
    refused(body, match, rule)


# --- exponential ----------------------------------------------------------------------------------------


@thorough
@given(shapes, st.sampled_from(list(FLOAT_TYPES.values())), views, seeds)
def test_exponential_subtracts_and_sums(shape, dtype, view, seed):
    x, top = sample(shape, dtype, seed), sample((shape[0], 1), np.float32, seed + 1)
    dst, res = execute(
        nisa.exponential, {"src": x, "max_value": top},
        {"dst": (shape, np.float32), "reduce_res": ((shape[0], 1), np.float32)},
        {"src": view, "dst": view}, target="trn3", reduce_cmd=RESET,
    )  # fmt: skip
    same(dst, np.exp(f32(x) - top))
    np.testing.assert_allclose(res, dst.astype(np.float64).sum(1, keepdims=True), rtol=1e-5)


def exponential(src="float32", dst="float32", shape=(4, 8), **options):
    return lambda: nisa.exponential(dst=filled(shape, dst), src=filled(shape, src), **options)


@pytest.mark.parametrize(
    ("body", "match", "rule", "target"),
    [
        (exponential(), "needs NeuronCore-v4", 30, "trn2"),
        (exponential(dst="uint32"), "dst is uint32", None, "trn3"),
        (exponential(src="tfloat32"), "src is tfloat32", None, "trn3"),
        (exponential(shape=(4, 1, 1, 1, 8)), "at most 4", 12, "trn3"),
        (exponential(reduce_init=1.0), "load_reduce, and only it", 29, "trn3"),
        (exponential(reduce_cmd=nisa.reduce_cmd.reset), "is needed", 29, "trn3"),
        (exponential(max_value="0"), "a number or a", 28, "trn3"),
        (
            lambda: exponential(reduce_cmd=RESET, reduce_res=filled((4, 1), "int32"))(),
            "reduce_res is int32",
            None,
            "trn3",
        ),
    ],
)
def test_exponential_refuses(body, match, rule, target):
    refused(body, match, rule, target)
