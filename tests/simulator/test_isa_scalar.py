"""Tests of ScalarEngine's activations: values, domains, accumulator chains, refusals per target."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import special

from nkisim import isa as nisa
from nkisim import language as nl
from nkisim.chip.errors import SimulatorError
from nkisim.chip.operators import ACTIVATIONS
from nkisim.run.launch import Kernel, run
from tests.simulator.tiles import (
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
SQRT2, PHI = math.sqrt(2), 1 / math.sqrt(2 * math.pi)


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


MEANING = {  # in float64, from the names of nki.api.shared.rst
    "copy": lambda x: x, "square": np.square, "sigmoid": sigmoid, "relu": lambda x: np.maximum(x, 0),
    "gelu": lambda x: x * 0.5 * (1 + special.erf(x / SQRT2)),
    "gelu_dx": lambda x: 0.5 * (1 + special.erf(x / SQRT2)) + x * PHI * np.exp(-x * x / 2),
    "gelu_apprx_tanh": lambda x: 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))),
    "gelu_apprx_sigmoid": lambda x: x * sigmoid(1.702 * x),
    "gelu_apprx_sigmoid_dx": lambda x: sigmoid(1.702 * x) * (1 + 1.702 * x * (1 - sigmoid(1.702 * x))),
    "silu": lambda x: x * sigmoid(x), "silu_dx": lambda x: sigmoid(x) * (1 + x * (1 - sigmoid(x))),
    "tanh": np.tanh, "softplus": lambda x: np.log1p(np.exp(x)), "mish": lambda x: x * np.tanh(np.log1p(np.exp(x))),
    "erf": special.erf, "erf_dx": lambda x: 2 / math.sqrt(math.pi) * np.exp(-x * x), "exp": np.exp, "log": np.log,
    "sin": np.sin, "arctan": np.arctan, "sqrt": np.sqrt, "rsqrt": lambda x: 1 / np.sqrt(x),
    "reciprocal": lambda x: 1 / x, "sign": np.sign, "abs": np.abs,
}  # fmt: skip
POSITIVE = {"log", "sqrt", "rsqrt", "reciprocal"}
SMALL = {"sin", "arctan"}


def test_every_documented_function_has_a_meaning_here():
    assert set(MEANING) == set(ACTIVATIONS) - {"prelu"}


@pytest.mark.parametrize("name", MEANING)
def test_functions_are_right_to_float32_rounding(name):
    low, high = (0.25, 8) if name in POSITIVE else (-1.5, 1.5) if name in SMALL else (-8, 8)
    x = np.linspace(low, high, 257, dtype=np.float32)[None]
    found = execute(nisa.activation, {"data": x}, {"dst": (x.shape, np.float32)}, op=getattr(nl, name))
    expected = MEANING[name](x.astype(np.float64))
    np.testing.assert_allclose(found, expected, rtol=4e-6, atol=2e-6)


@pytest.mark.parametrize("name", sorted(set(MEANING) - POSITIVE - SMALL))
def test_unbounded_functions_have_limits_at_infinity(name):
    x = np.array([[-np.inf, -300.0, 300.0, np.inf]], np.float32)
    found = execute(nisa.activation, {"data": x}, {"dst": (x.shape, np.float32)}, op=getattr(nl, name))
    assert not np.isnan(found).any()


@thorough
@given(shapes, types, types, views, seeds)
def test_scale_and_bias_come_before_the_function(shape, dtype, out, view, seed):
    x = sample(shape, dtype, seed)
    scale, bias = sample((shape[0], 1), np.float32, seed + 1, -1, 1), sample((shape[0], 1), np.float16, seed + 2)
    found = execute(
        nisa.activation, {"data": x, "scale": scale, "bias": bias}, {"dst": (shape, out)},
        {"data": view, "dst": view}, op=nl.square,
    )  # fmt: skip
    same(found, cast(np.square(f32(x) * scale + f32(bias)), out))


def test_a_constant_bias_is_for_trn2_and_later_and_on_trn1_for_copies():
    x = np.ones((2, 3), np.float32)
    for target in ("trn1", "trn2"):
        options = {"target": target, "scale": 2.0, "bias": 0.5}
        found = execute(nisa.activation, {"data": x}, {"dst": (x.shape, np.float32)}, op=nl.copy, **options)
        assert np.all(found == 2.5)
    with pytest.raises(SimulatorError, match=r"on trn1 a \(2, 1\) tile is needed"):
        execute(nisa.activation, {"data": x}, {"dst": (x.shape, np.float32)}, target="trn1", op=nl.relu, bias=0.5)


# --- domains --------------------------------------------------------------------------------------------

OUTSIDE = [
    ("log", [0.0, -1.0, 2.0**65, 2.0**-65, np.inf, np.nan]),
    ("sqrt", [0.0, -1.0, 2.0**119, 2.0**-117]),
    ("rsqrt", [0.0, -1.0, 2.0**98, 2.0**-88]),
    ("reciprocal", [0.0, 2.0**-43, -(2.0**43), np.inf]),
    ("sin", [3.2, -9.0, np.nan]),
    ("arctan", [1.6, -1.6]),
]
INSIDE = [
    ("log", [2.0**-64, 2.0**64]), ("sqrt", [2.0**-116, 2.0**118]), ("rsqrt", [2.0**-87, 2.0**97]),
    ("reciprocal", [2.0**-42, -(2.0**42)]), ("sin", [np.pi, -np.pi]), ("arctan", [np.pi / 2, -np.pi / 2]),
]  # fmt: skip


@pytest.mark.parametrize(("name", "x"), [(name, x) for name, xs in OUTSIDE for x in xs])
def test_input_outside_the_valid_range_is_refused(name, x):
    data = np.array([[1.0, x]], np.float32)
    with pytest.raises(SimulatorError, match=f"activation: op=nl.{name} of .* at partition 0, element 1") as caught:
        execute(nisa.activation, {"data": data}, {"dst": (data.shape, np.float32)}, op=getattr(nl, name))
    assert caught.value.rule == 33


@pytest.mark.parametrize(("name", "xs"), INSIDE)
def test_the_ends_of_the_valid_range_are_valid(name, xs):
    data = np.array([xs], np.float32)
    execute(nisa.activation, {"data": data}, {"dst": (data.shape, np.float32)}, op=getattr(nl, name))


def test_the_range_is_that_of_the_scaled_input():
    data = np.array([[8.0]], np.float32)
    execute(nisa.activation, {"data": data}, {"dst": (data.shape, np.float32)}, op=nl.sin, scale=0.125)
    with pytest.raises(SimulatorError, match=r"op=nl\.sin of 4"):
        execute(nisa.activation, {"data": data / 8}, {"dst": (data.shape, np.float32)}, op=nl.sin, scale=4.0)


def test_with_warnings_the_sine_extrapolates_as_documented():
    def kernel(x):
        tile = nl.load(x)
        nisa.activation(dst=tile, op=nl.sin, data=tile)
        out = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm)
        nl.store(out, tile)
        return out

    result = run(Kernel(kernel), (np.array([[9.0, -9.0, 1.0]], np.float32),), domains="warn")
    np.testing.assert_allclose(result.outputs, [[27.65, -27.65, np.sin(1.0)]], rtol=1e-4)
    assert [note.rule for note in result.trace.notes] == [33]


# --- accumulator registers ------------------------------------------------------------------------------


def chained(steps, read_last=True, target="trn2"):
    """A kernel of activations on one tile, each with a reduce_cmd; returns the registers."""

    def kernel(x):
        data = nl.load(x)
        dst, res = nl.ndarray(data.shape, data.dtype), nl.ndarray((data.shape[0], 1), nl.float32)
        for i, (op, cmd) in enumerate(steps):
            last = i == len(steps) - 1
            nisa.activation(
                dst=dst,
                op=op,
                data=data,
                reduce_op=nl.add,
                reduce_cmd=cmd,
                reduce_res=res if last and read_last else None,
            )
        out = nl.ndarray(res.shape, res.dtype, buffer=nl.shared_hbm)
        nl.store(out, res)
        return out

    return kernel


@pytest.mark.parametrize("mode", ["run", "reorder"])
def test_a_chain_sums_over_instructions(mode):
    x = sample((64, 32), np.float32, 1)
    kernel = chained([(nl.copy, nisa.reduce_cmd.reset_reduce), (nl.square, nisa.reduce_cmd.reduce)])
    found = run(Kernel(kernel), (x,), mode=mode).outputs
    np.testing.assert_allclose(
        found, x.sum(1, keepdims=True) + np.square(x).sum(1, keepdims=True), rtol=1e-5, atol=1e-4
    )


def test_reset_then_reduce_is_a_chain():
    x = sample((4, 8), np.float32, 1)
    kernel = chained([(nl.copy, nisa.reduce_cmd.reset), (nl.square, nisa.reduce_cmd.reduce)])
    np.testing.assert_allclose(run(Kernel(kernel), (x,)).outputs, np.square(x).sum(1, keepdims=True), rtol=1e-5)


def test_activation_reduce_resets_and_reads():
    x = sample((4, 8), np.float32, 1)
    dst, res = execute(
        nisa.activation_reduce, {"data": x}, {"dst": (x.shape, np.float32), "reduce_res": ((4, 1), np.float32)},
        op=nl.square, reduce_op=nl.add, scale=2.0,
    )  # fmt: skip
    same(dst, np.square(2 * x))
    np.testing.assert_allclose(res, dst.sum(1, keepdims=True), rtol=1e-6)


def test_the_sum_is_of_float32_results_and_may_overwrite_dst():
    x = sample((4, 8), np.float32, 1)

    def kernel(x):
        data = nl.load(x)
        dst = nl.ndarray(data.shape, nl.bfloat16)
        res = nl.ndarray((4, 1), nl.float32)
        nisa.activation(
            dst=dst, op=nl.copy, data=data, reduce_op=nl.add, reduce_res=res, reduce_cmd=nisa.reduce_cmd.reset_reduce
        )
        wide = nl.ndarray((4, 8), nl.float32)
        nisa.activation(
            dst=wide, op=nl.copy, data=data, reduce_op=nl.add, reduce_res=wide[:, 0:1],
            reduce_cmd=nisa.reduce_cmd.reset_reduce,
        )  # fmt: skip
        out, out2 = (nl.ndarray((4, 1), nl.float32, buffer=nl.shared_hbm) for _ in range(2))
        nl.store(out, res)
        nl.store(out2, wide[:, 0:1])
        return out, out2

    for found in run(Kernel(kernel), (x,)).outputs:
        np.testing.assert_allclose(found, x.sum(1, keepdims=True), rtol=1e-6)


def test_chain_planted_bugs_are_refused():
    x = np.ones((4, 8), np.float32)
    cases = [
        ([(nl.copy, nisa.reduce_cmd.reduce)], "none is open"),
        ([(nl.copy, nisa.reduce_cmd.idle)], "no chain on these partitions has filled"),
        ([(nl.copy, nisa.reduce_cmd.load_reduce)], "is needed"),
    ]
    for steps, match in cases:
        with pytest.raises(SimulatorError, match=match) as caught:
            run(Kernel(chained(steps)), (x,))
        assert caught.value.rule == 29


def test_a_chain_keeps_its_lanes():
    def body():
        nisa.activation(dst=filled((4, 8)), op=nl.copy, data=filled((4, 8)), reduce_op=nl.add,
                        reduce_cmd=nisa.reduce_cmd.reset_reduce)  # fmt: skip
        nisa.activation(dst=filled((8, 8)), op=nl.copy, data=filled((8, 8)), reduce_op=nl.add,
                        reduce_cmd=nisa.reduce_cmd.reduce)  # fmt: skip

    refused(body, "keeps its operator and its lanes", 29)


# --- refusals -------------------------------------------------------------------------------------------


def activation(data=(4, 8), **options):
    settings = {"op": nl.copy} | options

    def body():
        made = {
            key: value() if callable(value) and key not in ("op", "reduce_op") else value
            for key, value in settings.items()
        }
        nisa.activation(dst=filled((4, 8)), data=filled(data), **made)

    return body


@pytest.mark.parametrize(
    ("body", "match", "rule", "target"),
    [
        (activation(op=nl.add), "not a function of ScalarEngine", 28, "trn2"),
        (activation(op=np.exp), "operator of nki.language", 3, "trn2"),
        (activation(op=nl.prelu), "only activate2", 30, "trn2"),
        (activation(data=(4, 9)), "does not match", 28, "trn2"),
        (activation(scale=lambda: filled((4, 1), "bfloat16")), "scale is bfloat16", 28, "trn2"),
        (activation(scale=lambda: filled((4, 2))), "scale has shape", 28, "trn2"),
        (activation(bias=lambda: filled((4, 1), "tfloat32")), "bias is tfloat32", 28, "trn2"),
        (activation(bias=lambda: filled((3, 1))), "bias has shape", 28, "trn2"),
        (activation(reduce_op=nl.maximum), "nl.add is needed", 29, "trn2"),
        (activation(reduce_cmd=nisa.reduce_cmd.reset_reduce), "without reduce_op", 29, "trn2"),
        (activation(reduce_cmd=3), "is needed", 29, "trn2"),
        (activation(reduce_op=nl.add, reduce_cmd=nisa.reduce_cmd.reset_reduce, reduce_res=lambda: filled((4, 2))),
         "reduce_res has shape", 28, "trn2"),
        (activation(op=nl.reciprocal, bias=lambda: filled((4, 1))), "no bias on trn1", 30, "trn1"),
        (activation(op=nl.copy, bias=lambda: filled((4, 1))), "takes no tile as bias on trn1", 30, "trn1"),
    ],
)  # fmt: skip
def test_activation_refuses(body, match, rule, target):
    refused(body, match, rule, target)


def test_the_function_table_is_recorded_for_the_cost_model():
    x = np.ones((2, 3), np.float32)
    result = execute(nisa.activation, {"data": x}, {"dst": (x.shape, np.float32)}, full=True, op=nl.exp)
    issued = next(i for i in result.trace.instructions if i.opcode == "activation")
    assert (issued.engine, issued.options["op"], issued.options["table"]) == ("scalar", "exp", "exp")


# --- activate2 ------------------------------------------------------------------------------------------

PAIRS = [("multiply", "add"), ("multiply", "subtract"), ("multiply", "bypass"), ("add", "bypass"),
         ("subtract", "bypass"), ("bypass", "bypass")]  # fmt: skip
NUMPY = {"multiply": np.multiply, "add": np.add, "subtract": np.subtract}


@pytest.mark.parametrize("pair", PAIRS)
@pytest.mark.parametrize("reverse", [False, True])
def test_activate2_does_two_steps_before_the_function(pair, reverse):
    x, imm = sample((4, 8), np.float32, 1), sample((4, 1), np.float32, 2)
    flags = {f"reverse{i}": reverse and op != "bypass" for i, op in enumerate(pair)}
    found = execute(
        nisa.activate2, {"data": x, "imm0": imm}, {"dst": (x.shape, np.float32)}, target="trn3",
        op=nl.square, imm1=0.5, op0=getattr(nl, pair[0]), op1=getattr(nl, pair[1]), **flags,
    )  # fmt: skip
    y = x
    for op, value, flag in zip(pair, (imm, np.float32(0.5)), flags.values(), strict=True):
        if op != "bypass":
            y = NUMPY[op](value, y) if flag else NUMPY[op](y, value)
    same(found, np.square(y))


@pytest.mark.parametrize(
    ("reduction", "meaning"),
    [("add", lambda y: y.sum(1)), ("maximum", lambda y: y.max(1)), ("minimum", lambda y: y.min(1)),
     ("abs_max", lambda y: y[np.arange(4), np.abs(y).argmax(1)]),
     ("abs_min", lambda y: y[np.arange(4), np.abs(y).argmin(1)])],
)  # fmt: skip
def test_activate2_reduces(reduction, meaning):
    x = sample((4, 8), np.float32, 1)
    _, res = execute(
        nisa.activate2, {"data": x}, {"dst": (x.shape, np.float32), "reduce_res": ((4, 1), np.float32)}, target="trn3",
        op=nl.copy, imm0=0.0, imm1=0.0, op0=nl.bypass, op1=nl.bypass, reduce_op=getattr(nl, reduction),
        reduce_cmd=nisa.reduce_cmd.reset_reduce,
    )  # fmt: skip
    np.testing.assert_allclose(res[:, 0], meaning(x), rtol=1e-5)


def test_activate2_prelu_uses_its_parameter():
    x = np.array([[-2.0, 3.0]], np.float32)
    found = execute(
        nisa.activate2, {"data": x}, {"dst": (x.shape, np.float32)}, target="trn3",
        op=nl.prelu, imm0=0.0, imm1=0.0, op0=nl.bypass, op1=nl.bypass, relu_param=0.25,
    )  # fmt: skip
    assert found.tolist() == [[-0.5, 3.0]]


def activate2(data=(4, 8), **options):
    def body():
        settings = {"op": nl.copy, "imm0": 1.0, "imm1": 1.0, "op0": nl.multiply, "op1": nl.add} | options
        made = {key: value() if key.startswith("imm") and callable(value) else value for key, value in settings.items()}
        nisa.activate2(dst=filled((4, 8)), data=filled(data), **made)

    return body


@pytest.mark.parametrize(
    ("body", "match", "rule", "target"),
    [
        (activate2(), "needs NeuronCore-v4", 30, "trn2"),
        (activate2(op0=nl.add, op1=nl.multiply), "op0, op1", 28, "trn3"),
        (activate2(op0=nl.bypass, op1=nl.bypass, reverse0=True), "reverse0=True needs op0", 28, "trn3"),
        (activate2(op1=nl.bypass, reverse1=True), "reverse1=True needs op1", 28, "trn3"),
        (activate2(imm0=lambda: filled((4, 1)), imm1=lambda: filled((4, 1), "bfloat16")), "same dtype", 28, "trn3"),
        (activate2(reduce_op=nl.multiply), "reduce_op=nl.multiply", 29, "trn3"),
        (activate2(reduce_cmd=nisa.reduce_cmd.load_reduce), "is needed", 29, "trn3"),
        (activate2(reduce_cmd=nisa.reduce_cmd.reset_reduce), "without reduce_op", 29, "trn3"),
        (activate2(data=(4, 9)), "does not match", 28, "trn3"),
    ],
)
def test_activate2_refuses(body, match, rule, target):
    refused(body, match, rule, target)
