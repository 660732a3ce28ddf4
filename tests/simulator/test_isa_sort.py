"""Tests of the search for largest elements."""

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nkisim import isa as nisa
from nkisim import language as nl
from tests.simulator.tiles import cast, execute, f32, filled, refused, same, sample, seeds, thorough, views

shapes = st.tuples(st.sampled_from([1, 5, 32, 128]), st.sampled_from([8, 10, 64]))
types = st.sampled_from([np.float32, ml_dtypes.bfloat16, np.float16, np.int16, np.uint8])


@thorough
@given(shapes, types, types, views, seeds)
def test_max8_gives_the_largest_in_descending_order(shape, dtype, out, view, seed):
    x = sample(shape, dtype, seed)  # with repeated values in the narrow types
    found = execute(nisa.max8, {"src": x}, {"dst": ((shape[0], 8), out)}, {"src": view})
    same(found, cast(-np.sort(-f32(x), axis=1)[:, :8], out))


def test_max8_notes_nan():
    x = np.r_[np.nan, np.arange(9.0)].astype(np.float32)[None]
    result = execute(nisa.max8, {"src": x}, {"dst": ((1, 8), np.float32)}, full=True)
    assert [note.rule for note in result.trace.notes] == [33]


@thorough
@given(shapes, st.sampled_from([np.uint16, np.uint32]), views, st.integers(2, 30), seeds)
def test_find_index8_pairs_repeated_values_in_ascending_order(shape, out, view, distinct, seed):
    rng = np.random.default_rng(seed)
    x = rng.integers(0, distinct, shape).astype(np.float32)
    wanted = rng.integers(-1, distinct, (shape[0], 8)).astype(np.float32)
    found = execute(nisa.nc_find_index8, {"data": x, "vals": wanted}, {"dst": ((shape[0], 8), out)}, {"data": view})
    for line, values, positions in zip(x, wanted, found, strict=True):
        seen: dict[float, int] = {}
        for value, position in zip(values, positions, strict=True):
            places = np.flatnonzero(line == value)
            k = seen.get(value, 0)
            seen[value] = k + 1
            assert position == (places[k] if k < places.size else np.iinfo(out).max)


@thorough
@given(shapes, st.sampled_from([np.uint16, np.uint32]), views, st.integers(2, 30), seeds)
def test_match_replace8_pairs_repeated_values_in_descending_order(shape, index, view, distinct, seed):
    rng = np.random.default_rng(seed)
    x = rng.integers(0, distinct, shape).astype(np.float32)
    wanted = rng.integers(-1, distinct, (shape[0], 8)).astype(np.float32)
    dst, positions = execute(
        nisa.nc_match_replace8, {"data": x, "vals": wanted},
        {"dst": (shape, np.float32), "dst_idx": ((shape[0], 8), index)},
        {"data": view, "dst": view}, imm=float("-inf"),
    )  # fmt: skip
    for line, values, result, places in zip(x, wanted, dst, positions, strict=True):
        left, expected = line.copy(), np.full(8, np.iinfo(index).max, index)
        for i in reversed(range(8)):
            at = np.flatnonzero(left == values[i])
            if at.size:
                expected[i], left[at[0]] = at[0], -np.inf
        assert np.array_equal(places, expected) and np.array_equal(result, left)


def test_match_replace8_of_the_documentation():
    x = np.array([[1, 2, 3, 4, 8, 8, 8, 8, 8, 8, 8]], np.float32)
    wanted = np.array([[3, 8, 8, 8, 8, 8, 8, 8]], np.float32)
    _, positions = execute(
        nisa.nc_match_replace8,
        {"data": x, "vals": wanted},
        {"dst": (x.shape, np.float32), "dst_idx": ((1, 8), np.uint32)},
        imm=0.0,
    )
    assert positions.tolist() == [[2, 10, 9, 8, 7, 6, 5, 4]]
    found = execute(nisa.nc_find_index8, {"data": x, "vals": wanted}, {"dst": ((1, 8), np.uint32)})
    assert found.tolist() == [[2, 4, 5, 6, 7, 8, 9, 10]]


def test_match_replace8_in_place():
    x = np.arange(16, dtype=np.float32)[None]

    def top_twice(data, dst):
        nisa.max8(dst=dst, src=data)
        nisa.nc_match_replace8(dst=data, data=data, vals=dst, imm=-1.0)
        nisa.max8(dst=dst, src=data)

    assert execute(top_twice, {"data": x}, {"dst": ((1, 8), np.float32)}).tolist() == [list(range(7, -1, -1))]


def max8(src=(4, 8), dst=(4, 8)):
    return lambda: nisa.max8(dst=filled(dst), src=filled(src))


def find(dtype="uint32", data=(4, 16), vals=(4, 8), dst=(4, 8)):
    return lambda: nisa.nc_find_index8(dst=filled(dst, dtype), data=filled(data), vals=filled(vals))


def replace(vals=(4, 8), imm=0.0, dst=(4, 16), index="uint32", data=(4, 16), idx=(4, 8)):
    return lambda: nisa.nc_match_replace8(
        dst=filled(dst), data=filled(data), vals=filled(vals), imm=imm, dst_idx=filled(idx, index)
    )


@pytest.mark.parametrize(
    ("body", "match", "rule"),
    [
        (max8(src=(4, 7)), "7 elements per partition; 8 to 16384", 36),
        (max8(src=(4, 16_385)), "16385 elements per partition", 36),
        (max8(src=(4, 2, 2, 4)), "at most 3", 36),
        (max8(dst=(4, 9)), r"\(4, 8\) is needed", 36),
        (max8(dst=(3, 8)), r"\(4, 8\) is needed", 36),
        (max8(dst=(4, 2, 4)), r"dst has shape \(4, 2, 4\)", 36),
        (find(vals=(4, 2, 2, 2)), "vals has shape", 36),
        (find("int32"), "dst is int32", None),
        (find(vals=(4, 7)), r"vals has shape \(4, 7\)", 36),
        (find(data=(4, 6)), "8 to 16384", 36),
        (replace(vals=(4, 4)), "vals has shape", 36),
        (replace(data=(4, 6), dst=(4, 6)), "8 to 16384", 36),
        (replace(idx=(4, 7)), "dst_idx has shape", 36),
        (replace(index="int32"), "dst_idx is int32", None),
        (replace(dst=(4, 8)), "does not match", 28),
        (replace(imm=None), "a number or a", 28),
        (lambda: replace(imm=filled((4, 1)))(), "a float constant is needed", 28),
    ],
)
def test_max8_family_refuses(body, match, rule):
    refused(body, match, rule)


# --- topk -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("partitions", "n", "k"), [(16, 42, 8), (32, 8, 8), (128, 100, 1), (16, 48, 48)])
def test_topk_selects_from_each_group_of_16_partitions(partitions, n, k):
    columns = -(-n // 16)
    rng = np.random.default_rng(0)
    x = np.stack([rng.permutation(16 * columns) for _ in range(partitions // 16)])  # distinct, exact in bfloat16
    x = x.reshape(-1, columns, 16).transpose(0, 2, 1).reshape(partitions, columns).astype(ml_dtypes.bfloat16)
    values, places = execute(
        nisa.topk,
        {"src": x},
        {"val_dst": ((partitions, k), ml_dtypes.bfloat16), "idx_dst": ((partitions, k), np.uint32)},
        n=n,
    )
    for p in range(partitions):
        group = f32(x[p // 16 * 16 : p // 16 * 16 + 16])
        listed = [group[i % 16, i // 16] for i in range(n)]  # element i of the snake
        assert f32(values[p]).tolist() == sorted(listed)[-k:]
        assert [listed[i] for i in places[p]] == f32(values[p]).tolist()


def topk(src=((16, 3), "bfloat16"), val=((16, 8), "bfloat16"), idx=((16, 8), "uint32"), n=42):
    return lambda: nisa.topk(val_dst=filled(*val), idx_dst=filled(*idx), src=filled(*src), n=n)


@pytest.mark.parametrize(
    ("body", "match", "rule"),
    [
        (topk(src=((16, 3), "float32")), "src is float32", None),
        (topk(val=((16, 8), "float32")), "val_dst is float32", None),
        (topk(idx=((16, 8), "int32")), "idx_dst is int32", None),
        (topk(idx=((16, 7), "uint32")), "idx_dst has shape", None),
        (topk(src=((8, 3), "bfloat16"), val=((8, 8), "bfloat16"), idx=((8, 8), "uint32")), "multiple of 16", None),
        (topk(n=7), "an integer from 8", None),
        (topk(n=65_536), "an integer from 8", None),
        (topk(n=49), "n=49", None),
        (topk(val=((16, 50), "bfloat16"), idx=((16, 50), "uint32")), "K=50", None),
        (topk(src=((16, 3), "bfloat16", nl.psum)), "GpSimd Engine reaches SBUF only", 27),
    ],
)
def test_topk_refuses(body, match, rule):
    refused(body, match, rule)
