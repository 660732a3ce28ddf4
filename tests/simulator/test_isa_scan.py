"""Tests of running operations along the free dimension."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nkisim import isa as nisa
from nkisim import language as nl
from nkisim.run.launch import Kernel, run
from tests.simulator.tiles import (
    FLOAT_TYPES,
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

NUMPY = {"multiply": np.multiply, "add": np.add, "subtract": np.subtract, "maximum": np.maximum, "greater": np.greater}
operators = st.sampled_from(list(NUMPY))
floats = st.sampled_from(list(FLOAT_TYPES.values()))


@thorough
@given(shapes, floats, floats, operators, operators, st.booleans(), st.booleans(), views, seeds)
def test_tensor_tensor_scan_is_the_documented_recurrence(shape, dtype, out, op0, op1, reverse0, reverse1, view, seed):
    a, b = sample(shape, dtype, seed, -1, 1), sample(shape, dtype, seed + 1, -1, 1)
    initial = sample((shape[0], 1), np.float32, seed + 2, -1, 1)
    other = "whole" if view == "psum" else view
    found = execute(
        nisa.tensor_tensor_scan, {"data0": a, "data1": b, "initial": initial}, {"dst": (shape, out)},
        {"data0": view, "data1": other, "dst": view}, op0=getattr(nl, op0), op1=getattr(nl, op1),
        reverse0=reverse0, reverse1=reverse1,
    )  # fmt: skip
    expected, state = np.empty(shape, np.float32), initial[:, 0]
    for i in range(shape[1]):
        x, y = f32(a)[:, i], f32(b)[:, i]
        inner = NUMPY[op0](state, x) if reverse0 else NUMPY[op0](x, state)
        inner = inner.astype(np.float32)
        state = (NUMPY[op1](y, inner) if reverse1 else NUMPY[op1](inner, y)).astype(np.float32)
        expected[:, i] = state
    same(found, cast(expected, out))


def test_a_scan_with_a_constant_start_is_a_cumulative_sum():
    x = np.arange(12, dtype=np.float32).reshape(2, 6)
    found = execute(
        nisa.tensor_tensor_scan, {"data0": np.ones_like(x), "data1": x}, {"dst": (x.shape, np.float32)},
        initial=5.0, op0=nl.multiply, op1=nl.add,
    )  # fmt: skip
    same(found, 5 + np.cumsum(x, 1))


def scan(data0=None, data1=None, initial=0.0, op0=None, op1=None):
    return lambda: nisa.tensor_tensor_scan(
        dst=filled((4, 8)), data0=(data0 or filled)((4, 8)), data1=(data1 or filled)((4, 8)),
        initial=initial() if callable(initial) else initial, op0=op0 or nl.multiply, op1=op1 or nl.add,
    )  # fmt: skip


def psum(shape):
    return filled(shape, buffer=nl.psum)


@pytest.mark.parametrize(
    ("body", "match", "rule"),
    [
        (scan(psum, psum), "data0 and data1 are both in PSUM", 27),
        (scan(data1=lambda _: filled((64, 8))[32:36]), "data1 at 32", 13),
        (scan(data1=lambda _: filled((4, 1))), "does not match", 28),
        (scan(initial=lambda: filled((4, 2))), "initial has shape", 28),
        (scan(initial=None), "a number or a", 28),
        (scan(op0=nl.bitwise_and), "kind arithmetic", 28),
        (scan(op1=nl.abs), "binary operator", 28),
        (scan(op0=nl.power), "GpSimd Engine only", 28),
    ],
)
def test_tensor_tensor_scan_refuses(body, match, rule):
    refused(body, match, rule)


# --- tensor_scalar_cumulative ---------------------------------------------------------------------------


@thorough
@given(
    shapes, floats, st.sampled_from(["add", "subtract", "multiply", "maximum", "minimum"]), views, st.booleans(), seeds
)
def test_cumulative_follows_the_pseudocode(shape, dtype, op1, view, loaded, seed):
    x, imm0 = sample(shape, dtype, seed, 0.5, 1.5), sample((shape[0], 1), np.float32, seed + 1, 0.9, 1.1)
    options = {"imm1": 0.5, "reduce_cmd": nisa.reduce_cmd.load_reduce} if loaded else {}
    found = execute(
        nisa.tensor_scalar_cumulative, {"src": x, "imm0": imm0}, {"dst": (shape, np.float32)},
        {"src": view, "dst": view}, op0=nl.multiply, op1=getattr(nl, op1), **options,
    )  # fmt: skip
    numpy = {
        "add": np.add,
        "subtract": np.subtract,
        "multiply": np.multiply,
        "maximum": np.maximum,
        "minimum": np.minimum,
    }[op1]
    start = 0.5 if loaded else {"multiply": 1.0, "maximum": -np.inf, "minimum": np.inf}.get(op1, 0.0)
    state, expected = np.full(shape[0], start, np.float32), np.empty(shape, np.float32)
    for i in range(shape[1]):
        state = numpy(f32(x)[:, i] * imm0[:, 0], state)
        expected[:, i] = state
    same(found, expected)


@pytest.mark.parametrize("mode", ["run", "reorder"])
def test_cumulative_continues_a_chain(mode):
    def kernel(x):
        data, dst = nl.load(x), nl.ndarray(x.shape, nl.float32)
        for half, cmd in ((slice(0, 4), nisa.reduce_cmd.reset_reduce), (slice(4, 8), nisa.reduce_cmd.reduce)):
            nisa.tensor_scalar_cumulative(
                dst=dst[:, half], src=data[:, half], op0=nl.add, op1=nl.add, imm0=0.0, reduce_cmd=cmd
            )
        out = nl.ndarray(x.shape, nl.float32, buffer=nl.shared_hbm)
        nl.store(out, dst)
        return out

    x = np.arange(16, dtype=np.float32).reshape(2, 8)
    same(run(Kernel(kernel), (x,), mode=mode).outputs, np.cumsum(x, 1))


def cumulative(dtype="float32", **options):
    settings = {"op0": nl.add, "op1": nl.add, "imm0": 1.0} | options
    return lambda: nisa.tensor_scalar_cumulative(dst=filled((4, 8), dtype), src=filled((4, 8), dtype), **settings)


@pytest.mark.parametrize(
    ("body", "match", "rule"),
    [
        (cumulative("int32"), "dst is int32", 32),
        (cumulative(op0=nl.bitwise_and), "kind arithmetic", 28),
        (cumulative(op1=nl.logical_and), "op1=nl.logical_and", 29),
        (cumulative(imm0=None), "imm0 is None", 28),
        (cumulative(imm1=1.0), "load_reduce, and only it", 29),
        (cumulative(reduce_cmd=nisa.reduce_cmd.load_reduce), "load_reduce, and only it", 29),
        (cumulative(reduce_cmd=nisa.reduce_cmd.idle), "is needed", 29),
        (cumulative(reduce_cmd=nisa.reduce_cmd.reduce), "none is open", 29),
    ],
)
def test_cumulative_refuses(body, match, rule):
    refused(body, match, rule)
