"""Tests of nki.language: creation, elementwise and reducing functions, ranges, printing."""

import math
from dataclasses import dataclass, field

import numpy as np
import pytest
from scipy import special

from nkisim import language as nl
from nkisim.chip.dtypes import STORAGE
from tests.simulator.kernels import on_chip, refusal, run, to_hbm, values

# --- creation -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int32", "uint8"])
@pytest.mark.parametrize("buffer", [nl.sbuf, nl.psum, nl.private_hbm])
def test_filled_tensors(dtype, buffer):
    def kernel():
        three = nl.full((5, 6), 3, dtype, buffer)
        return tuple(to_hbm(t) for t in (nl.zeros((5, 6), dtype, buffer), nl.ones((5, 6), dtype, buffer), three))

    zeros, ones, threes = run(kernel)
    assert zeros.dtype == STORAGE[dtype] and not zeros.any()
    assert (ones == 1).all() and (threes == 3).all()


def test_a_large_hbm_tensor_is_filled_in_pieces():
    result = run(lambda: nl.full((300, 2, 3), 4.0, nl.float32, nl.shared_hbm))
    np.testing.assert_array_equal(result, np.full((300, 2, 3), 4))


def test_like_tensors_take_shape_and_dtype():
    def kernel(x):
        tile = on_chip(x)
        empty, zeros = nl.empty_like(tile, dtype=nl.bfloat16), nl.zeros_like(tile)
        assert (empty.shape, empty.dtype, empty.buffer) == ((3, 4), "bfloat16", nl.sbuf)
        return to_hbm(zeros)

    assert not run(kernel, values((3, 4))).any()


def test_a_view_knows_the_tensor_that_it_is_of():
    def kernel(x):
        whole = on_chip(x)
        base = whole[0:2, 1:3].base_tensor
        assert (base.shape, base.dtype, base.buffer) == (whole.shape, whole.dtype, whole.buffer)
        return to_hbm(base)

    np.testing.assert_array_equal(run(kernel, values((3, 4))), values((3, 4)))


def test_constants_and_identities(tmp_path):
    table = np.arange(6, dtype=np.int16).reshape(2, 3)
    np.save(tmp_path / "table.npy", table)

    def kernel():
        first, second = nl.shared_constant(table), nl.shared_constant(str(tmp_path / "table.npy"))
        assert first.storage is second.storage and first.buffer == nl.shared_hbm
        return to_hbm(on_chip(first)), to_hbm(nl.shared_identity_matrix(5, nl.bfloat16))

    constant, identity = run(kernel)
    np.testing.assert_array_equal(constant, table)
    np.testing.assert_array_equal(identity.astype(np.float32), np.eye(5))


def test_load_store_and_their_transpose():
    def kernel(x):
        out, turned = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm), nl.load_transpose2d(x)
        nl.store(out, nl.copy(nl.load(x), nl.float32))
        return out, to_hbm(turned)

    x = values((5, 8))
    out, turned = run(kernel, x)
    np.testing.assert_array_equal(out, x)
    np.testing.assert_array_equal(turned, x.T)


@pytest.mark.parametrize(
    ("statement", "rule"),
    [
        (lambda: nl.ndarray((2, 2), "float64"), None),
        (lambda: nl.ndarray((2, 2), nl.float32, "sbuf"), 10),
        (lambda: nl.ndarray((2, 0), nl.float32), None),
        (lambda: nl.ndarray((2,) * 6, nl.float32), None),
        (lambda: nl.ndarray((2, 2.5), nl.float32), None),
        (lambda: nl.store(nl.zeros((2, 2), nl.float32), nl.zeros((2, 2), nl.float32)), None),
        (lambda: nl.store(nl.zeros((2, 2), "int8", nl.hbm), nl.zeros((2, 2), "int8", nl.psum)), 34),
        (lambda: nl.load(nl.zeros((2, 2), nl.float32)), None),
        (lambda: nl.shared_constant(np.eye(3)), None),
        (lambda: nl.shared_constant(3), None),
    ],
)
def test_bad_creation_is_refused(statement, rule):
    def kernel():
        statement()

    refusal(kernel, rule=rule)


# --- elementwise ----------------------------------------------------------------------------------------

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


# --- reductions -----------------------------------------------------------------------------------------

REDUCTIONS = {"sum": np.sum, "max": np.max, "min": np.min, "mean": np.mean}


@pytest.mark.parametrize("axis", [(1, 2), 2, -1])
@pytest.mark.parametrize("keepdims", [False, True])
@pytest.mark.parametrize("name", REDUCTIONS)
def test_reductions_over_trailing_dimensions(name, axis, keepdims):
    x = values((4, 4, 8))
    result = run(lambda x: to_hbm(getattr(nl, name)(on_chip(x), axis, keepdims=keepdims)), x)
    expected = REDUCTIONS[name](x, axis=axis, keepdims=keepdims)
    np.testing.assert_allclose(result, expected.reshape(result.shape), rtol=1e-6)
    assert result.shape == (expected.shape if expected.ndim > 1 else (4, 1))


def test_composite_reductions():
    rng = np.random.default_rng(0)
    x, w = rng.standard_normal((4, 64)).astype(np.float32), rng.standard_normal((4, 64)).astype(np.float32)

    def kernel(x, w):
        tile = on_chip(x)
        return (
            to_hbm(nl.var(tile, 1)), to_hbm(nl.softmax(tile)), to_hbm(nl.rms_norm(tile, on_chip(w), 1, 64)),
            to_hbm(nl.prod(tile[:, 0:4], 1)),
        )  # fmt: skip

    var, soft, norm, prod = run(kernel, x, w)
    np.testing.assert_allclose(var, x.var(axis=1, keepdims=True), rtol=1e-5)
    np.testing.assert_allclose(soft, special.softmax(x, axis=1), rtol=1e-5)
    np.testing.assert_allclose(norm, x / np.sqrt((x * x).mean(axis=1, keepdims=True) + 1e-6) * w, rtol=1e-5)
    np.testing.assert_allclose(prod, x[:, 0:4].prod(axis=1, keepdims=True), rtol=1e-5)


def test_random_values_repeat_with_their_seed():
    def kernel():
        seed = nl.full((1, 1), 42, nl.int32)
        nl.random_seed(seed)
        first = nl.rand((128, 64), nl.float32)
        nl.random_seed(seed)
        return to_hbm(first), to_hbm(nl.rand((128, 64), nl.float32))

    first, second = run(kernel)
    np.testing.assert_array_equal(first, second)
    assert first.min() >= 0 and first.max() < 1 and abs(first.mean() - 0.5) < 0.02


# --- the rest -------------------------------------------------------------------------------------------


def test_static_ranges_are_python_ranges():
    assert list(nl.affine_range(3)) == list(nl.sequential_range(3)) == list(nl.static_range(0, 3)) == [0, 1, 2]
    assert list(nl.range(1, 6, 2)) == [1, 3, 5]
    assert nl.is_hbm(nl.hbm) and nl.is_psum(nl.psum) and nl.is_sbuf(nl.sbuf) and nl.is_on_chip(nl.psum)
    assert not nl.is_on_chip(nl.shared_hbm) and nl.hbm == nl.private_hbm


def test_device_print_prints_values_at_once(capsys):
    def kernel(x):
        nl.device_print("tile", on_chip(x))

    run(kernel, np.full((2, 2), 7, np.int32))
    assert capsys.readouterr().out.startswith("tile [[7 7]")


def test_kernel_classes_take_their_fields_in_order():
    class Options(nl.NKIObject):
        width: int
        scale: float = 2.0
        note = None

        def doubled(self):
            return 2 * self.width

    assert vars(Options(3)) == vars(Options(width=3)) == {"width": 3, "scale": 2.0, "note": None}
    assert vars(Options(scale=1.0, note="a")) == {"width": None, "scale": 1.0, "note": "a"}
    assert Options(4).doubled() == 8

    @dataclass
    class Sizes(nl.NKIObject):
        tiles: list = field(default_factory=list)
        rows = None
        columns: int = 7

    assert vars(Sizes(rows=3)) == {"tiles": [], "rows": 3, "columns": 7}
    assert Sizes().tiles is not Sizes().tiles


def test_tile_sizes_are_those_of_the_machine():
    assert nl.tile_size.gemm_moving_fmax == nl.tile_size.psum_bank_fmax == 512
    assert nl.tile_size.sbuf_size_bytes == 128 * 212_984
    assert math.isclose(nl.tile_size.sbuf_fmax * 4, nl.tile_size.sbuf_fmax_bytes, rel_tol=1e-12)
