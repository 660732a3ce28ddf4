"""Tests of nki.language's elementwise functions."""

import numpy as np
import pytest
from scipy import special

from nkisim import language as nl
from tests.simulator.kernels import on_chip, refusal, run, to_hbm, values

UNARY = {
    "abs": np.abs, "square": np.square, "sqrt": np.sqrt, "exp": np.exp, "log": np.log, "tanh": np.tanh,
    "sigmoid": special.expit, "relu": lambda x: np.maximum(x, 0), "reciprocal": lambda x: 1 / x, "erf": special.erf,
    "rsqrt": lambda x: 1 / np.sqrt(x), "negative": np.negative, "sign": np.sign, "sin": np.sin, "cos": np.cos,
    "tan": np.tan, "arctan": np.arctan, "ceil": np.ceil, "floor": np.floor, "trunc": np.trunc,
    "softplus": lambda x: np.logaddexp(0, x), "silu": lambda x: x * special.expit(x), "copy": lambda x: x,
}  # fmt: skip


BINARY = {
    "add": np.add, "subtract": np.subtract, "multiply": np.multiply, "maximum": np.maximum, "minimum": np.minimum,
    "equal": np.equal, "not_equal": np.not_equal, "less": np.less, "less_equal": np.less_equal,
    "greater": np.greater, "greater_equal": np.greater_equal,
}  # fmt: skip


POSITIVE = {"sqrt", "log", "rsqrt", "reciprocal", "arctan"}


ROUNDING = {"ceil", "floor", "trunc"}


@pytest.mark.parametrize("name", UNARY)
def test_unary_functions(name):
    rng = np.random.default_rng(1)
    x = rng.uniform(0.1, 1.5, (4, 50)).astype(np.float32)
    if name not in POSITIVE:
        x = np.concatenate([x, -x, 3 * x, np.rint(4 * x), np.rint(4 * x) + 0.5], axis=1).astype(np.float32)
    result = run(lambda x: to_hbm(getattr(nl, name)(on_chip(x))), x)
    # A handful of float32 roundings; tan multiplies two functions and grows near its poles.
    tolerance = 0 if name in ROUNDING else 3e-6
    expected = UNARY[name](x.astype(np.float64))
    scale = 1 + expected**2 if name == "tan" else 1 + np.abs(expected)
    np.testing.assert_array_less(np.abs(result - expected) / scale, tolerance + 1e-6)


def test_sine_reduces_its_range():
    x = np.linspace(-100, 100, 401, dtype=np.float32).reshape(1, -1)
    result = run(lambda x: to_hbm(nl.sin(on_chip(x))), x)
    np.testing.assert_allclose(result, np.sin(x.astype(np.float64)), rtol=0, atol=100 * 2.0**-22)


@pytest.mark.parametrize("name", BINARY)
def test_binary_functions_of_tiles_and_numbers(name):
    x, y = values((4, 9)), values((4, 9), seed=1)

    def kernel(x, y):
        f, a, b = getattr(nl, name), on_chip(x), on_chip(y)
        return to_hbm(f(a, b)), to_hbm(f(a, 0.25)), to_hbm(f(0.25, a))

    both, right, left = run(kernel, x, y)
    np.testing.assert_array_equal(both, BINARY[name](x, y))
    np.testing.assert_array_equal(right, BINARY[name](x, np.float32(0.25)))
    np.testing.assert_array_equal(left, BINARY[name](np.float32(0.25), x))


@pytest.mark.parametrize("name", ["bitwise_and", "bitwise_or", "bitwise_xor"])
def test_bitwise_functions(name):
    x, y = values((4, 9), "int32"), values((4, 9), "int32", 1)
    result = run(lambda x, y: to_hbm(getattr(nl, name)(on_chip(x), on_chip(y))), x, y)
    np.testing.assert_array_equal(result, getattr(np, name)(x, y))


def test_invert_and_shifts():
    x = values((4, 9), "uint32")

    def kernel(x):
        tile = on_chip(x)
        return to_hbm(nl.invert(tile)), to_hbm(nl.right_shift(tile, 3)), to_hbm(nl.left_shift(tile, 3))

    inverted, right, left = run(kernel, x)
    np.testing.assert_array_equal(inverted, ~x)
    np.testing.assert_array_equal(right, x >> np.uint32(3))
    np.testing.assert_array_equal(left, x << np.uint32(3))


def test_where_broadcast_and_logic():
    x, y = values((4, 9)), values((4, 9), seed=1)
    condition = (values((4, 9), seed=2) > 0).astype(np.float32)

    def kernel(condition, x, y):
        c, a, b = on_chip(condition), on_chip(x), on_chip(y)
        return to_hbm(nl.where(c, a, b)), to_hbm(nl.logical_not(c)), to_hbm(nl.broadcast_to(a[:, 0:1], (4, 5)))

    chosen, inverse, wide = run(kernel, condition, x, y)
    np.testing.assert_array_equal(chosen, np.where(condition, x, y))
    np.testing.assert_array_equal(inverse, 1 - condition)
    np.testing.assert_array_equal(wide, np.broadcast_to(x[:, 0:1], (4, 5)))


@pytest.mark.parametrize("columns", [40, 700])
def test_one_partition_spreads_over_many(columns):
    x = values((1, columns))
    result = run(lambda x: to_hbm(nl.broadcast_to(on_chip(x), (96, columns))), x, perturb_fp32=True)
    np.testing.assert_array_equal(result, np.repeat(x, 96, 0))


def test_matmul_and_transpose_return_psum():
    x, y = values((16, 8)), values((16, 24), seed=1)

    def kernel(x, y):
        product, turned = nl.matmul(on_chip(x), on_chip(y), transpose_x=True), nl.transpose(on_chip(x))
        assert product.buffer == turned.buffer == nl.psum
        return to_hbm(product), to_hbm(turned)

    product, turned = run(kernel, x, y)
    np.testing.assert_array_equal(product, x.T @ y)
    np.testing.assert_array_equal(turned, x.T)


@pytest.mark.parametrize(
    ("statement", "rule"),
    [
        (lambda t: nl.divide(t, t), 34),
        (lambda t: nl.mod(t, 2.0), 34),
        (lambda t: nl.fmod(t, t), 34),
        (lambda t: nl.power(t, 2.0), 34),
        (lambda t: nl.matmul(t, t), 34),
        (lambda t: nl.rsqrt(nl.zeros((4, 4), nl.float32, nl.psum)), 34),
        (lambda t: nl.add(t, t[:, 0:1]), 28),
        (lambda t: nl.add(1.0, 2.0), None),
        (lambda t: nl.sum(t, 0), 29),
        (lambda t: nl.sum(t, (0, 1)), 29),
        (lambda t: nl.sum(t.reshape((4, 2, 2)), 1), 29),
        (lambda t: nl.broadcast_to(t, (4, 5)), None),
        (lambda t: nl.softmax(t, 0), 29),
    ],
)
def test_functions_without_hardware_behind_them_are_refused(statement, rule):
    def kernel():
        statement(nl.zeros((4, 4), nl.float32))

    refusal(kernel, rule=rule)
