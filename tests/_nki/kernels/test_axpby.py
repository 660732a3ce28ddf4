"""axpby.py against its twin: every format, sizes around every tile edge, limits, model."""

import ml_dtypes
import numpy as np
import pytest

from nkisim.hardware import TRN2
from nkisim.lint.linter import errors, lint_file, lint_launch
from nkisim.price.cost import price
from nkisim.run.launch import Specification, run
from nkisim.run.loader import load_kernel
from tests._nki.kernels.budget import kept
from trnpy._nki.kernels import source
from trnpy._nki.kernels.products import axpby_reference

FILE = source("axpby")
KERNEL = load_kernel(FILE, "axpby")
BF16 = np.dtype(ml_dtypes.bfloat16)
ALPHA, BETA = np.array([[-0.3]], np.float32), np.array([[1.7]], np.float32)


def operand(shape, dtype="f4", seed=0):
    return np.random.default_rng([seed, *shape]).standard_normal(shape).astype(dtype)


def assert_rounded_once(ours, x, y, form, alpha=ALPHA, beta=BETA):
    """Two float32 roundings of the terms, one of the sum, and one to the format."""
    exact = alpha[0, 0].astype("d") * x.astype("d") + (0 if y is None else beta[0, 0].astype("d") * y.astype("d"))
    terms = np.abs(alpha[0, 0] * x.astype("d")) + (0 if y is None else np.abs(beta[0, 0] * y.astype("d")))
    unit = {"float32": 0.0, "bfloat16": 2.0**-8, "float16": 2.0**-11}[form]
    assert ours.dtype.name == form and ours.shape == x.shape
    assert (np.abs(ours.astype("d") - exact) <= 2.0**-23 * terms + unit * np.abs(exact) * 1.01 + 2.0**-25).all()


@pytest.mark.parametrize("m, n", [(1, 1), (127, 129), (128, 2048), (129, 2049), (300, 5000)])
@pytest.mark.parametrize("both", [False, True])
def test_every_edge(m, n, both):
    x, y = operand((m, n)), operand((m, n), seed=1) if both else None
    ours = run(KERNEL, (x, y, ALPHA, BETA if both else None)).outputs
    assert_rounded_once(ours, x, y, "float32")
    np.testing.assert_allclose(ours, axpby_reference.axpby(x, y, ALPHA, BETA), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("dtypes", [("f4", BF16), (BF16, "f2"), ("f2", "f4")], ids=str)
@pytest.mark.parametrize("form", ["float32", "bfloat16", "float16"])
def test_every_format(dtypes, form):
    x, y = (operand((200, 130), d, i) for i, d in enumerate(dtypes))
    assert_rounded_once(run(KERNEL, (x, y, ALPHA, BETA), {"form": form}).outputs, x, y, form)


@pytest.mark.parametrize("form", ["bfloat16", "float16"])
def test_a_cast_alone_is_the_nearest_number(form):
    x = operand((140, 70))
    np.testing.assert_array_equal(run(KERNEL, (x,), {"form": form}).outputs, axpby_reference.axpby(x, form=form))


def test_scales_that_are_left_out_are_one():
    x, y = operand((140, 70)), operand((140, 70), seed=1)
    np.testing.assert_array_equal(run(KERNEL, (x, y)).outputs, x + y)


@pytest.mark.parametrize("seed", range(2))
def test_any_legal_order_gives_the_same(seed):
    x, y = operand((300, 3000)), operand((300, 3000), seed=1)
    straight = run(KERNEL, (x, y, ALPHA, BETA)).outputs
    np.testing.assert_array_equal(run(KERNEL, (x, y, ALPHA, BETA), mode="reorder", seed=seed).outputs, straight)


@pytest.mark.parametrize("target", ["trn1", "trn2", "trn3"])
def test_lint_finds_no_error(target):
    x = operand((300, 200))
    launched = [lint_launch(KERNEL, operands, target=target) for operands in ((x, x, ALPHA, BETA), (x,))]
    assert not errors((*launched[0], *launched[1], *lint_file(FILE)))


@pytest.mark.parametrize("shape", [(512, 512), (8192, 8192), (23168, 23168)])
def test_the_program_does_not_grow_with_the_operand(shape):
    x = Specification(shape, np.dtype("f4"))
    trace = run(KERNEL, (x, x, ALPHA, BETA), mode="trace").trace
    assert kept(trace)


def test_modelled_share_of_the_hbm_bandwidth_on_trn2():
    x = Specification((8192, 8192), np.dtype("f4"))
    cost = price(run(KERNEL, (x, x, ALPHA, BETA), mode="trace").trace)
    print(f"axpby 8192 x 8192 float32, modelled: {cost.device_s * 1e6:.0f} us")
    assert 3 * 4 * 8192**2 / cost.device_s >= 0.6 * TRN2.hbm_bytes_per_s


def test_what_it_refuses():
    x = np.ones((4, 4), "f4")
    large = np.broadcast_to(np.float32(0), (2**16, 2**16))
    for bad in ((np.ones(4, "f4"),), (np.ones((4, 4)),), (x, x[:3]), (x, None, None, None, "int8"), (large,)):
        with pytest.raises(ValueError, match="expected"):
            axpby_reference.axpby(*bad)
