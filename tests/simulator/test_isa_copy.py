"""Tests of copies, fills and shuffles on chip."""

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nkisim import isa as nisa
from nkisim import language as nl
from nkisim.chip.errors import SimulatorError
from nkisim.run.launch import Kernel, run
from tests.simulator.tiles import (
    INT_TYPES,
    TYPES,
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
)

types = st.sampled_from([*TYPES.values(), ml_dtypes.float8_e4m3, ml_dtypes.float8_e5m2])


def bits(shape, dtype, seed):
    """Random patterns of a dtype, NaN and infinities among them."""
    n = np.dtype(dtype).itemsize
    return np.random.default_rng(seed).integers(0, 256, (*shape[:-1], shape[-1] * n), dtype=np.uint8).view(dtype)


@thorough
@given(shapes, types, views, views, seeds)
def test_a_copy_of_one_dtype_keeps_every_bit(shape, dtype, view, view2, seed):
    x = bits(shape, dtype, seed)
    found = execute(nisa.tensor_copy, {"src": x}, {"dst": (shape, dtype)}, {"src": view, "dst": view2})
    assert found.tobytes() == x.tobytes()


@thorough
@given(shapes, types, types, views, seeds)
def test_a_copy_to_another_dtype_passes_through_float32(shape, dtype, out, view, seed):
    x = sample(shape, dtype, seed)
    found = execute(nisa.tensor_copy, {"src": x}, {"dst": (shape, out)}, view)
    same(found, cast(f32(x), out))


@pytest.mark.parametrize("dtype", list(INT_TYPES.values()))
def test_floats_round_to_nearest_even_and_saturate(dtype):
    x = np.array([[0.5, 1.5, 2.5, -0.5, -1.5, 1e12, -1e12, np.inf, -np.inf]], np.float32)
    found = execute(nisa.tensor_copy, {"src": x}, {"dst": (x.shape, dtype)})
    limits = np.iinfo(dtype)
    low = 0 if limits.min == 0 else -2
    assert found.tolist() == [[0, 2, 2, 0, low, limits.max, limits.min, limits.max, limits.min]]


def test_int32_to_float_notes_lost_digits():
    x = np.array([[2**24 + 1]], np.int32)
    result = execute(nisa.tensor_copy, {"src": x}, {"dst": (x.shape, np.float32)}, full=True)
    assert result.outputs[0].tolist() == [[2.0**24]] and [note.rule for note in result.trace.notes] == [32]
    result = execute(nisa.tensor_copy, {"src": x}, {"dst": (x.shape, np.int32)}, full=True)
    assert result.outputs[0].tolist() == x.tolist() and not result.trace.notes


def copy(engine=None, **buffers):
    return lambda: nisa.tensor_copy(
        dst=filled((4, 8), buffer=buffers.get("dst")), src=filled((4, 8), buffer=buffers.get("src")),
        engine=engine or nisa.engine.unknown,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("body", "match", "rule", "target"),
    [
        (copy(nisa.engine.scalar), "engine=scalar; gpsimd or vector", 30, "trn1"),
        (copy(nisa.engine.gpsimd, src=nl.psum), "GpSimd Engine reaches SBUF only", 27, "trn2"),
        (copy(nisa.engine.tensor), "engine=tensor", 30, "trn2"),
        (lambda: nisa.tensor_copy(dst=filled((4, 8)), src=filled((4, 9))), "does not match", 28, "trn2"),
        (lambda: nisa.tensor_copy(dst=filled((4, 8)), src=filled((8, 4))), "does not match", 28, "trn2"),
    ],
)
def test_tensor_copy_refuses(body, match, rule, target):
    refused(body, match, rule, target)


# --- tensor_copy_predicated -----------------------------------------------------------------------------


@thorough
@given(shapes, types, st.sampled_from([np.uint8, np.uint16, np.uint32]), views, st.booleans(), seeds)
def test_predicated_copy_leaves_the_rest(shape, dtype, mask_type, view, reverse, seed):
    x, y, p = bits(shape, dtype, seed), bits(shape, dtype, seed + 1), sample(shape, mask_type, seed, 0, 2)
    found = execute(
        nisa.tensor_copy_predicated, {"src": x, "dst": y, "predicate": p}, {"dst": "dst"},
        {"src": view, "dst": view}, reverse_pred=reverse,
    )  # fmt: skip
    chosen = (p == 0) if reverse else (p != 0)
    word = f"u{np.dtype(dtype).itemsize}"
    assert np.array_equal(found.view(word), np.where(chosen, x.view(word), y.view(word)))


def test_predicated_copy_of_a_number():
    y, p = np.zeros((2, 3), np.float16), np.array([[1, 0, 1], [0, 0, 9]], np.uint8)
    found = execute(nisa.tensor_copy_predicated, {"dst": y, "predicate": p}, {"dst": "dst"}, src=-1.5)
    same(found, np.where(p != 0, np.float16(-1.5), y))


@pytest.mark.parametrize("mode", ["run", "reorder"])
def test_a_comparison_of_the_host_is_a_predicate(mode):
    x = sample((4, 8), np.float32, 1)

    def kernel(x, mask):
        tile = nl.load(x)
        nisa.tensor_copy_predicated(dst=tile, src=0.0, predicate=nl.load(mask))
        nisa.select_reduce(dst=tile, predicate=nl.load(mask), on_true=tile, on_false=tile[:, 0:1])
        out = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm)
        nl.store(out, tile)
        return out

    first = np.where(x < 0, 0, x)
    same(run(Kernel(kernel), (x, x < 0), mode=mode).outputs, np.where(x < 0, first, first[:, :1]))


def test_predicated_copy_initialises_only_what_it_writes():
    p = np.array([[1, 0]], np.uint8)
    with pytest.raises(SimulatorError, match=r"uninitialised at element \[0, 1\]"):
        execute(nisa.tensor_copy_predicated, {"predicate": p}, {"dst": (p.shape, np.float32)}, src=1.0)


def predicated(dst="float32", src="float32", predicate="uint8", buffer=None):
    return lambda: nisa.tensor_copy_predicated(
        dst=filled((4, 8), dst), src=filled((4, 8), src, buffer), predicate=filled((4, 8), predicate, buffer)
    )


@pytest.mark.parametrize(
    ("body", "match", "rule"),
    [
        (predicated(predicate="int8"), "predicate is int8", 36),
        (predicated(src="bfloat16"), "the same dtype is needed", 36),
        (predicated(buffer=nl.psum), "src and predicate are both in PSUM", 27),
        (
            lambda: nisa.tensor_copy_predicated(dst=filled((4, 8)), src="1", predicate=filled((4, 8), "uint8")),
            "a number or",
            28,
        ),
        (
            lambda: nisa.tensor_copy_predicated(dst=filled((4, 8)), src=1.0, predicate=filled((4, 4), "uint8")),
            "does not match",
            28,
        ),
    ],
)
def test_predicated_copy_refuses(body, match, rule):
    refused(body, match, rule)


# --- memset ---------------------------------------------------------------------------------------------


@thorough
@given(shapes, types, views, st.integers(0, 7))
def test_memset_fills(shape, dtype, view, value):
    number = value if np.dtype(dtype).kind in "iu" else value / 4
    found = execute(nisa.memset, {}, {"dst": (shape, dtype)}, view, value=number)
    same(found, np.full(shape, number).astype(dtype))


def memset(dtype, value, **options):
    return lambda: nisa.memset(
        dst=nl.ndarray((4, 8), dtype, buffer=options.pop("buffer", nl.sbuf)), value=value, **options
    )


@pytest.mark.parametrize(
    ("body", "match", "rule"),
    [
        (memset("int32", 2.0), "an integer literal is needed", 31),
        (memset("uint8", 256), "outside uint8", 31),
        (memset("uint8", -1), "outside uint8", 31),
        (memset("float16", 1e6), "outside float16", 31),
        (memset("float8_e4m3", 500.0), "outside float8_e4m3", 31),
        (memset("float32", True), "a number is needed", 31),
        (memset("float32", "0"), "compile-time number", 31),
        (memset("float8_e4m3fn_x4", 1), "only 0 fills packed types", 31),
        (memset("float32", 0.0, engine=nisa.engine.scalar), "engine=scalar", 30),
        (memset("float32", 0.0, engine=nisa.engine.gpsimd, buffer=nl.psum), "GpSimd Engine reaches SBUF only", 27),
    ],
)
def test_memset_refuses(body, match, rule):
    refused(body, match, rule)


@pytest.mark.parametrize("value", [np.inf, -np.inf, np.nan, 3])
def test_memset_takes_infinities_and_whole_numbers_for_floats(value):
    found = execute(nisa.memset, {}, {"dst": ((2, 2), ml_dtypes.bfloat16)}, value=value)
    same(found, np.full((2, 2), value).astype(ml_dtypes.bfloat16))


# --- nc_stream_shuffle ----------------------------------------------------------------------------------


@thorough
@given(st.sampled_from([32, 64, 96, 128]), types, st.sampled_from(["whole", "columns", "blocks", "psum"]), seeds)
def test_shuffle_permutes_inside_quadrants(partitions, dtype, view, seed):
    mask = np.random.default_rng(seed).integers(0, 32, 32)
    mask[::5] = 255
    x, y = bits((partitions, 6), dtype, seed), bits((partitions, 6), dtype, seed + 1)
    found = execute(nisa.nc_stream_shuffle, {"src": x, "dst": y}, {"dst": "dst"}, view, shuffle_mask=mask.tolist())
    for partition in range(partitions):
        source = int(mask[partition % 32])
        expected = y[partition] if source == 255 else x[partition // 32 * 32 + source]
        assert found[partition].tobytes() == expected.tobytes()


def test_shuffle_broadcasts_one_partition_and_works_in_place():
    x = np.arange(4, dtype=np.float32)[None]
    same(
        execute(nisa.nc_stream_shuffle, {"src": x}, {"dst": ((32, 4), np.float32)}, shuffle_mask=[0] * 32),
        np.repeat(x, 32, 0),
    )
    x = np.arange(32, dtype=np.int32)[:, None]

    def rotate(data):
        nisa.nc_stream_shuffle(dst=data, src=data, shuffle_mask=[(i - 1) % 32 for i in range(32)])

    same(execute(rotate, {"data": x}, {"data": "data"}), np.roll(x, 1, 0))


def shuffle(dst=(32, 8), src=(32, 8), dtype="float32", mask=None):
    def body():
        made = [filled(t) if isinstance(t, tuple) else t() for t in (dst, src)]
        nisa.nc_stream_shuffle(
            dst=made[0], src=made[1] if dtype == "float32" else filled(src, dtype), shuffle_mask=mask or [0] * 32
        )

    return body


@pytest.mark.parametrize(
    ("body", "match", "rule"),
    [
        (shuffle(dtype="bfloat16"), "the same dtype", None),
        (shuffle(src=(32, 4)), "same elements per partition", 28),
        (shuffle(mask=[0] * 31), "a list of 32 integers", None),
        (shuffle(mask=[0] * 31 + [256]), "an integer from 0 to 255", None),
        (shuffle(mask=[0] * 31 + [40]), "reads partition 40", None),
        (shuffle(src=(1, 8), mask=[1] * 32), "reads partition 1 of a src of 1", None),
        (shuffle(dst=(96, 8), src=lambda: filled((128, 8))[32:64]), "starts at partition 32 with 96 active", 12),
        (shuffle(dst=lambda: filled((128, 8))[32:64], src=(64, 8)), "starts at partition 32 with 64 active", 12),
    ],
)
def test_shuffle_refuses(body, match, rule):
    refused(body, match, rule)
