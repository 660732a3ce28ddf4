"""Tests of nki.language: creation, elementwise and reducing functions, ranges, printing."""

import math
from dataclasses import dataclass, field

import numpy as np
import pytest
from scipy import special

from nkisim import language as nl
from tests.simulator.kernels import on_chip, run, to_hbm, values

# --- creation -------------------------------------------------------------------------------------------


def test_a_view_knows_the_tensor_that_it_is_of():
    def kernel(x):
        whole = on_chip(x)
        base = whole[0:2, 1:3].base_tensor
        assert (base.shape, base.dtype, base.buffer) == (whole.shape, whole.dtype, whole.buffer)
        return to_hbm(base)

    np.testing.assert_array_equal(run(kernel, values((3, 4))), values((3, 4)))


# --- elementwise ----------------------------------------------------------------------------------------


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
