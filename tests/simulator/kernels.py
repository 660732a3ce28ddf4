"""What the tests of the simulator share: kernels of one statement, arrays of every dtype, refusals."""

from pathlib import Path

import numpy as np
import pytest

from nkisim import isa as nisa
from nkisim import language as nl
from nkisim.chip.dtypes import STORAGE
from nkisim.chip.errors import HERE, SimulatorError
from nkisim.run.launch import simulate

KERNELS = Path(__file__).parent / "sources"
FLOATS = ("float32", "bfloat16", "float16", "float8_e4m3", "float8_e5m2")
INTEGERS = ("int8", "int16", "int32", "uint8", "uint16", "uint32")


def values(shape, dtype="float32", seed=0):
    """Random values that the dtype holds exactly: small integers, and eighths in the wider floats."""
    rng = np.random.default_rng(seed)
    if dtype in INTEGERS:
        limits = np.iinfo(STORAGE[dtype])
        return rng.integers(limits.min, limits.max, shape, dtype=STORAGE[dtype], endpoint=True)
    step = 1.0 if dtype.startswith("float8") else 8.0
    return (rng.integers(-7, 8, shape) / step).astype(STORAGE[dtype])


def on_chip(array, dtype=None):
    """An HBM tensor copied to SBUF."""
    tile = nl.ndarray(array.shape, dtype or array.dtype)
    nisa.dma_copy(dst=tile, src=array)
    return tile


def to_hbm(tile):
    """A tile, copied out of PSUM if it is there, as a kernel output."""
    if tile.buffer == nl.psum:
        copy = nl.ndarray(tile.shape, tile.dtype)
        nisa.tensor_copy(dst=copy, src=tile)
        tile = copy
    out = nl.ndarray(tile.shape, tile.dtype, buffer=nl.shared_hbm)
    nisa.dma_copy(dst=out, src=tile)
    return out


def run(kernel, *arrays, **settings):
    return simulate(kernel, **settings)(*arrays)


def refusal(kernel, *arrays, rule=None, match=None, **settings):
    """The error a kernel is refused with: one line that names the kernel, this test's line and the rule."""
    with pytest.raises(SimulatorError, match=match) as caught:
        run(kernel, *arrays, **settings)
    text = str(caught.value)
    assert "\n" not in text and text.startswith(f"{kernel.__name__} (")
    assert caught.value.line > 0 and not caught.value.file.startswith(HERE)
    if rule is not None:
        assert caught.value.rule == rule, text
    return text
