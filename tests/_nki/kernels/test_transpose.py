"""transpose.py against its twin: every dtype bit for bit, sizes around every tile edge, limits, model."""

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
from trnpy._nki.kernels.products import transpose_reference

FILE = source("transpose")
KERNEL = load_kernel(FILE, "transpose")
BF16 = np.dtype(ml_dtypes.bfloat16)
SMALL_TILES = {"m_tiles": 2, "n_tiles": 2}  # so that small operands have several blocks


def bits(shape, dtype, seed=0):
    """Every bit pattern alike, so NaN with payloads, infinities and denormals among them."""
    size = np.dtype(dtype).itemsize * int(np.prod(shape))
    return np.random.default_rng([seed, *shape]).integers(0, 256, size, np.uint8).view(dtype).reshape(shape)


def same_bits(ours, theirs):
    assert (ours.dtype, ours.shape) == (theirs.dtype, theirs.shape)
    np.testing.assert_array_equal(ours.view(np.uint8), theirs.view(np.uint8))


@pytest.mark.parametrize("dtype", ["f4", BF16, "f2", "i4"], ids=str)
@pytest.mark.parametrize("n", [1, 127, 128, 129, 511, 513])
@pytest.mark.parametrize("m", [1, 127, 129, 511, 513, 1300])
def test_every_edge_bit_for_bit(m, n, dtype):
    x = bits((m, n), dtype)
    same_bits(run(KERNEL, (x,), SMALL_TILES).outputs, transpose_reference.transpose(x))


@pytest.mark.parametrize("dtype", ["f4", BF16, "i4"], ids=str)
def test_the_default_blocks(dtype):
    x = bits((2051, 1029), dtype)
    same_bits(run(KERNEL, (x,)).outputs, transpose_reference.transpose(x))


@pytest.mark.parametrize("seed", range(3))
def test_any_legal_order_gives_the_same(seed):
    x = bits((1100, 700), "f4")
    same_bits(run(KERNEL, (x,), SMALL_TILES, mode="reorder", seed=seed).outputs, transpose_reference.transpose(x))


@pytest.mark.parametrize("target", ["trn2", "trn3"])  # trn1 multiplies by the identity: NaN would spread
@pytest.mark.parametrize("dtype", ["f4", "i4", BF16], ids=str)
def test_lint_finds_no_error(target, dtype):
    assert not errors((*lint_launch(KERNEL, (bits((600, 300), dtype),), SMALL_TILES, target=target), *lint_file(FILE)))


@pytest.mark.parametrize("shape", [(512, 512), (23168, 23168), (1, 2_000_000), (700_000, 700)])
def test_the_program_does_not_grow_with_the_operand(shape):
    trace = run(KERNEL, (Specification(shape, np.dtype("f4")),), mode="trace").trace
    assert kept(trace)


@pytest.mark.parametrize("dtype", ["f4", BF16], ids=str)
def test_modelled_share_of_the_hbm_bandwidth_on_trn2(dtype):
    """Each element is read once and written once; moving them takes most of the time, by the model."""
    s = Specification((8192, 8192), np.dtype(dtype))
    cost = price(run(KERNEL, (s,), mode="trace").trace)
    moved = 2 * 8192**2 * s.dtype.itemsize
    print(f"transpose 8192 x 8192 {s.dtype}, modelled: {cost.device_s * 1e6:.0f} us")
    assert moved <= cost.hbm_bytes <= moved + 4096  # tables of places
    assert moved / cost.device_s >= 0.77 * TRN2.hbm_bytes_per_s


def test_what_it_refuses():
    for bad in (np.ones(4, "f4"), np.ones((0, 4), "f4"), np.ones((4, 4)), np.broadcast_to(np.int32(0), (2**16, 2**16))):
        with pytest.raises(ValueError, match="expected"):
            transpose_reference.check(bad)
