"""Tests of the instructions that choose between two values."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nkisim import isa as nisa
from nkisim import language as nl
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

FP32_MIN = np.finfo(np.float32).min
floats = st.sampled_from(list(FLOAT_TYPES.values()))
COMPARE = {"equal": np.equal, "less": np.less, "less_equal": np.less_equal, "greater": np.greater,
           "greater_equal": np.greater_equal}  # fmt: skip
RESET = nisa.reduce_cmd.reset_reduce


@thorough
@given(shapes, floats, floats, st.sampled_from([np.int8, np.uint8, np.int16, np.uint16]), views, st.booleans(), seeds)
def test_select_reduce_is_where_with_a_maximum(shape, dtype, out, mask_type, view, reverse, seed):
    x, p, y = (
        sample(shape, dtype, seed),
        sample(shape, mask_type, seed + 1, 0, 1),
        sample((shape[0], 1), np.float32, seed),
    )
    dst, res = execute(
        nisa.select_reduce, {"on_true": x, "predicate": p, "on_false": y},
        {"dst": (shape, out), "reduce_res": ((shape[0], 1), np.float32)},
        {"on_true": view, "dst": view}, reduce_cmd=RESET, reduce_op=nl.max, reverse_pred=reverse,
    )  # fmt: skip
    expected = np.where((p == 0) if reverse else (p != 0), f32(x), y)
    same(dst, cast(expected, out))
    same(res, expected.max(1, keepdims=True))


def select(dst=None, predicate=None, on_true=None, on_false=0.0, **options):
    def body():
        nisa.select_reduce(
            dst=(dst or filled)((4, 8)), predicate=predicate() if predicate else filled((4, 8), "uint8"),
            on_true=(on_true or filled)((4, 8)), on_false=on_false() if callable(on_false) else on_false,
            **{key: value() if key == "reduce_res" else value for key, value in options.items()},
        )  # fmt: skip

    return body


@pytest.mark.parametrize(
    ("body", "match", "rule"),
    [
        (select(predicate=lambda: filled((4, 8), "uint32")), "predicate is uint32", 36),
        (select(predicate=lambda: filled((4, 8))), "predicate is float32", 36),
        (select(on_true=lambda s: filled(s, "int32")), "on_true is int32", 36),
        (select(on_true=lambda s: filled(s, "tfloat32")), "on_true is tfloat32", 36),
        (
            select(predicate=lambda: filled((4, 8), "uint8", nl.psum), on_true=lambda s: filled(s, buffer=nl.psum)),
            "both in PSUM",
            27,
        ),
        (select(on_false=lambda: filled((4, 2))), "on_false has shape", 28),
        (select(reduce_op=nl.add), "reduce_op=nl.add", 29),
        (select(reduce_cmd=nisa.reduce_cmd.load_reduce), "is needed", 29),
        (select(reduce_cmd=nisa.reduce_cmd.reduce), "none is open", 29),
        (select(reduce_res=lambda: nl.ndarray((4, 1), "float32")), "no chain on these partitions", 29),
        (select(reduce_cmd=RESET, reduce_res=lambda: filled((4, 1), "int32")), "reduce_res is int32", 36),
        (select(predicate=lambda: filled((4, 4), "uint8")), "does not match", 28),
    ],
)
def test_select_reduce_refuses(body, match, rule):
    refused(body, match, rule)


@thorough
@given(shapes, floats, st.sampled_from(list(COMPARE)), st.sampled_from(list(COMPARE)), views, st.integers(0, 40), seeds)
def test_range_select_compares_positions_with_bounds(shape, dtype, op0, op1, view, start, seed):
    x = sample(shape, dtype, seed)
    low, high = sample((shape[0], 1), np.float32, seed + 1, 0, 50), sample((shape[0], 1), np.float32, seed + 2, 0, 50)
    dst, res = execute(
        nisa.range_select, {"on_true_tile": x, "bound0": low, "bound1": high},
        {"dst": (shape, np.float32), "reduce_res": ((shape[0], 1), np.float32)}, {"on_true_tile": view, "dst": view},
        comp_op0=getattr(nl, op0), comp_op1=getattr(nl, op1), range_start=start, on_false_value=float(FP32_MIN),
    )  # fmt: skip
    index = np.arange(start, start + shape[1], dtype=np.float32)
    expected = np.where(COMPARE[op0](index, low) & COMPARE[op1](index, high), f32(x), FP32_MIN)
    same(dst, expected)
    same(res, expected.max(1, keepdims=True))


def ranged(data="float32", bound="float32", **options):
    settings = {"comp_op0": nl.greater_equal, "comp_op1": nl.less} | options
    return lambda: nisa.range_select(
        dst=filled((4, 8)),
        on_true_tile=filled((4, 8), data),
        bound0=filled((4, 1), bound),
        bound1=filled((4, 1)),
        **settings,
    )


@pytest.mark.parametrize(
    ("body", "match", "rule", "target"),
    [
        (ranged(), "needs NeuronCore-v3", 30, "trn1"),
        (ranged(data="int32"), "on_true_tile is int32", 28, "trn2"),
        (ranged(bound="bfloat16"), "bound0 is bfloat16", 28, "trn2"),
        (ranged(comp_op0=nl.not_equal), "comp_op0=nl.not_equal", 28, "trn2"),
        (ranged(on_false_value=0.0), "FP32_MIN", 28, "trn2"),
        (ranged(range_start=2**24), "range_start", None, "trn2"),
        (ranged(range_start=1.0), "an integer from", None, "trn2"),
        (ranged(reduce_op=nl.add), "reduce_op=nl.add", 29, "trn2"),
    ],
)
def test_range_select_refuses(body, match, rule, target):
    refused(body, match, rule, target)
