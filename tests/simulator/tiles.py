"""Runs one instruction on tiles in any memory and view, for tests against a plain NumPy meaning.

The meanings use ``f32`` and ``cast`` below, written from nki.api.shared.rst and not from the simulator.
"""

import ml_dtypes
import numpy as np
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

from nkisim import isa as nisa
from nkisim import language as nl
from nkisim.chip.errors import SimulatorError
from nkisim.run.launch import Kernel, Result
from nkisim.run.launch import run as launch

VIEWS = ("whole", "columns", "lower", "blocks", "psum")
FLOAT_TYPES = {
    "float32": np.float32, "bfloat16": ml_dtypes.bfloat16, "float16": np.float16,
    "float8_e4m3": ml_dtypes.float8_e4m3, "float8_e5m2": ml_dtypes.float8_e5m2,
}  # fmt: skip
INT_TYPES = {name: np.dtype(name).type for name in ("int8", "uint8", "int16", "uint16", "int32", "uint32")}
TYPES = {**FLOAT_TYPES, **INT_TYPES}

thorough = settings(
    max_examples=30, deadline=None, derandomize=True, database=None, suppress_health_check=list(HealthCheck)
)
shapes = st.tuples(st.sampled_from([1, 5, 32, 64, 128]), st.sampled_from([1, 2, 6, 30, 64]))
views = st.sampled_from(VIEWS)
seeds = st.integers(0, 2**16)


def f32(array):
    """What an engine sees: float32."""
    return np.asarray(array).astype(np.float32)


def cast(array, dtype):
    """What it writes: nearest even, integers saturated."""
    dtype = np.dtype(dtype)
    if dtype.kind in "iu" and np.asarray(array).dtype != dtype:
        limits = np.iinfo(dtype)
        return np.clip(np.rint(np.asarray(array).astype(np.float64)), limits.min, limits.max).astype(dtype)
    return np.asarray(array).astype(dtype)


def sample(shape, dtype, seed, low=-8.0, high=8.0):
    """Random values of a dtype; small ones, so that no result overflows."""
    rng = np.random.default_rng(seed)
    dtype = np.dtype(dtype)
    if dtype.kind in "iu":
        return rng.integers(max(int(low), np.iinfo(dtype).min), int(high) + 1, shape).astype(dtype)
    return rng.uniform(low, high, shape).astype(dtype)


def same(found, expected):
    """Bit for bit, with NaN equal to NaN."""
    assert found.shape == expected.shape and found.dtype == expected.dtype, (found.dtype, expected.dtype)
    equal = (found == expected) | ((found != found) & (expected != expected))
    assert np.all(equal), f"{found[~equal][:4]} != {expected[~equal][:4]}"


def tile(shape, dtype, view="whole"):
    """An on-chip view of P x N elements: all of a tile, odd columns, high partitions, two dimensions, PSUM."""
    p, n = shape
    name = np.dtype(dtype).name
    if view == "columns":
        return nl.ndarray((p, 2 * n), name)[:, 1::2]
    if view == "lower" and p <= 32:
        return nl.ndarray((32 + p, n), name)[32 : 32 + p]
    if view == "blocks" and n % 2 == 0:
        return nl.ndarray((p, n // 2, 2), name).permute((0, 2, 1))
    return nl.ndarray((p, n), name, buffer=nl.psum if view == "psum" else nl.sbuf)


def fill(view, array):
    """Write an HBM tensor of P x N elements into an on-chip view."""
    if view.buffer == nl.psum:
        staged = nl.ndarray(view.shape, view.dtype)
        nisa.dma_copy(dst=staged, src=array.reshape(view.shape))
        nisa.tensor_copy(dst=view, src=staged)
    else:
        nisa.dma_copy(dst=view, src=array.reshape(view.shape))


def drain(view, shape):
    """An on-chip view as a kernel output of P x N elements."""
    if view.buffer == nl.psum:
        staged = nl.ndarray(view.shape, view.dtype)
        nisa.tensor_copy(dst=staged, src=view)
        view = staged
    out = nl.ndarray(shape, view.dtype, buffer=nl.shared_hbm)
    nisa.dma_copy(dst=out.reshape(view.shape), src=view)
    return out


def execute(instruction, inputs, outputs, view="whole", target="trn2", mode="run", full=False, **options) -> Result:
    """``instruction(**inputs, **outputs, **options)``: inputs name -> array (P, N), outputs name -> (shape, dtype).

    ``view`` is one name for all tiles, or name -> view. An output that is an array starts with its values.
    Returns the outputs in order (one alone), with ``full`` the whole Result.
    """

    def view_of(name):
        return view.get(name, "whole") if isinstance(view, dict) else view

    names = list(inputs)

    def kernel(*arrays):
        tiles = {}
        for name, array in zip(names, arrays, strict=True):
            tiles[name] = tile(array.shape, inputs[name].dtype, view_of(name))
            fill(tiles[name], array)
        found = {}
        for name, output in outputs.items():
            if isinstance(output, str):
                found[name] = tiles[output]
            else:
                found[name] = tile(output[0], output[1], view_of(name))
        instruction(**tiles, **{k: v for k, v in found.items() if k not in tiles}, **options)
        return tuple(
            drain(v, outputs[k][0] if not isinstance(outputs[k], str) else inputs[k].shape) for k, v in found.items()
        )

    result = launch(Kernel(kernel), tuple(inputs.values()), target=target, mode=mode)
    if full:
        return result
    return result.outputs[0] if len(result.outputs) == 1 else result.outputs


def refused(body, match, rule=None, target="trn2", lnc=1):
    """``body()`` inside a kernel is refused in one line that contains ``match`` and names the rule."""

    def kernel():
        body()

    with pytest.raises(SimulatorError, match=match) as caught:
        launch(Kernel(kernel, lnc=lnc), target=target)
    assert "\n" not in str(caught.value) and caught.value.line > 0
    assert caught.value.rule == rule, f"rule {caught.value.rule}: {caught.value}"


def filled(shape, dtype="float32", buffer=None, value=1):
    """A tile that has been written."""
    t = nl.ndarray(shape, dtype, buffer=buffer or nl.sbuf)
    nisa.memset(dst=t, value=value if "int" in dtype else float(value))
    return t
