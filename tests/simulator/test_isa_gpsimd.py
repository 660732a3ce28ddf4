"""Tests of GpSimd Engine: affine patterns, gathers, nonzero, segment bounds."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nkisim import isa as nisa
from nkisim import language as nl
from nkisim.chip.errors import SimulatorError
from nkisim.run.launch import Kernel, run
from tests.simulator.tiles import TYPES, cast, execute, f32, filled, refused, same, sample, seeds, shapes, thorough

sbuf_views = st.sampled_from(["whole", "columns", "lower", "blocks"])
types = st.sampled_from(list(TYPES.values()))
patterns = st.lists(st.tuples(st.integers(-3, 3), st.integers(1, 4)), min_size=1, max_size=4)


def affine(pattern, offset, multiplier, partitions):
    """The documented loops."""
    counts = [count for _, count in pattern]
    values = np.empty((partitions, int(np.prod(counts))), np.int64)
    for p in range(partitions):
        for i, index in enumerate(np.ndindex(*counts)):
            values[p, i] = offset + p * multiplier + sum(k * step for k, (step, _) in zip(index, pattern, strict=True))
    return values


@thorough
@given(patterns, st.integers(-5, 50), st.integers(-2, 2), st.sampled_from([1, 5, 32]), sbuf_views, types)
def test_iota(pattern, offset, multiplier, partitions, view, dtype):
    expected = affine(pattern, offset, multiplier, partitions)
    if np.dtype(dtype).kind == "u":
        expected, offset = expected - expected.min(), offset - int(expected.min())
    found = execute(
        nisa.iota, {}, {"dst": (expected.shape, dtype)}, view, pattern=[list(pair) for pair in pattern], offset=offset,
        channel_multiplier=multiplier,
    )  # fmt: skip
    same(found, cast(expected, dtype))


COMPARE = {"equal": np.equal, "not_equal": np.not_equal, "greater": np.greater, "greater_equal": np.greater_equal,
           "less": np.less, "less_equal": np.less_equal}  # fmt: skip


@thorough
@given(patterns, st.sampled_from(list(COMPARE)), st.integers(-2, 2), sbuf_views, types, types, seeds)
def test_affine_select(pattern, op, multiplier, view, dtype, out, seed):
    values = affine(pattern, -1, multiplier, 5)
    x = sample(values.shape, dtype, seed)
    found = execute(
        nisa.affine_select, {"on_true_tile": x}, {"dst": (x.shape, out)}, view,
        pattern=[list(pair) for pair in pattern], channel_multiplier=multiplier,
        on_false_value=-3.0, cmp_op=getattr(nl, op), offset=-1,
    )  # fmt: skip
    same(found, cast(np.where(COMPARE[op](values, 0), f32(x), np.float32(-3)), out))


def test_affine_select_keeps_int32_exactly_and_makes_a_causal_mask():
    x = np.full((4, 4), 2**24 + 1, np.int32)
    found = execute(
        nisa.affine_select, {"on_true_tile": x}, {"dst": (x.shape, np.int32)}, pattern=[[-1, 4]], channel_multiplier=1,
        on_false_value=0.0, cmp_op=nl.greater_equal,
    )  # fmt: skip
    same(found, np.tril(x))


def test_iota_beyond_what_float32_holds_is_noted():
    result = execute(nisa.iota, {}, {"dst": ((1, 2), np.float32)}, full=True, pattern=[[1, 2]], offset=2**24)
    assert result.outputs[0].tolist() == [[2.0**24, 2.0**24]] and [note.rule for note in result.trace.notes] == [32]


def test_offsets_may_be_registers():
    def kernel():
        tile, register = nl.ndarray((2, 3), nl.int32), nisa.register_alloc(7)
        nisa.iota(dst=tile, pattern=[[1, 3]], offset=register, channel_multiplier=10)
        out = nl.ndarray((2, 3), nl.int32, buffer=nl.shared_hbm)
        nl.store(out, tile)
        return out

    assert run(Kernel(kernel)).outputs.tolist() == [[7, 8, 9], [17, 18, 19]]
    run(Kernel(kernel), mode="trace")


def iota(shape=(4, 8), dtype="int32", buffer=None, **options):
    settings = {"pattern": [[1, 8]]} | options
    return lambda: nisa.iota(dst=nl.ndarray(shape, dtype, buffer=buffer or nl.sbuf), **settings)


def select(on_true=None, **options):
    settings = {"pattern": [[1, 8]], "channel_multiplier": 0, "on_false_value": 0.0} | options
    return lambda: nisa.affine_select(dst=filled((4, 8)), on_true_tile=(on_true or filled)((4, 8)), **settings)


@pytest.mark.parametrize(
    ("body", "match", "rule"),
    [
        (iota(pattern=[[1, 7]]), "counts must multiply to 8", None),
        (iota(pattern=[[1, 2]] * 5), "one to 4 pairs", None),
        (iota(pattern=[]), "one to 4 pairs", None),
        (iota(pattern=[8]), r"a list of \[step, count\]", None),
        (iota(pattern=[[0.5, 8]]), "step is 0.5", None),
        (iota(offset=2**31), "offset is", None),
        (iota(offset=2**31 - 1), "values reach 2147483654, outside int32", 32),
        (iota(dtype="uint8", pattern=[[100, 8]]), "outside uint8", 32),
        (iota(buffer=nl.psum), "GpSimd Engine reaches SBUF only", 27),
        (select(lambda s: filled(s, buffer=nl.psum)), "GpSimd Engine reaches SBUF only", 27),
        (select(lambda s: filled((4, 9))), "does not match", 28),
        (select(offset=2**31 - 1), "values reach 2147483654, outside int32", 32),
        (select(cmp_op=nl.add), "cmp_op=nl.add", 28),
        (select(on_false_value=None), "a number or a", 28),
        (lambda: select(on_false_value=filled((4, 1)))(), "a float32 constant is needed", 28),
    ],
)
def test_affine_instructions_refuse(body, match, rule):
    refused(body, match, rule)


# --- gathers --------------------------------------------------------------------------------------------


@thorough
@given(shapes, types, sbuf_views, st.integers(1, 20), seeds)
def test_n_gather_takes_along_each_partition(shape, dtype, view, n, seed):
    x = sample(shape, dtype, seed)
    index = np.random.default_rng(seed).integers(0, shape[1], (shape[0], n)).astype(np.uint32)
    result = execute(nisa.nc_n_gather, {"data": x, "indices": index}, {"dst": (index.shape, dtype)}, view, full=True)
    same(result.outputs[0], np.take_along_axis(x, index.astype(int), 1))


def n_gather(dst=((4, 2), "float32"), data=((4, 8), "float32"), indices=((4, 2), "uint32")):
    return lambda: nisa.nc_n_gather(dst=filled(*dst), data=filled(*data), indices=filled(*indices))


@pytest.mark.parametrize(
    ("body", "match", "rule"),
    [
        (n_gather(dst=((4, 2), "bfloat16")), "the same dtype", None),
        (n_gather(indices=((4, 2), "int32")), "indices is int32", None),
        (n_gather(indices=((4, 3), "uint32")), "does not match", 28),
        (n_gather(data=((8, 8), "float32")), "the same partitions", 28),
        (n_gather(data=((4, 8), "float32", nl.psum)), "GpSimd Engine reaches SBUF only", 27),
        (n_gather(data=((4, 1), "float32")), r"index 1 at \[0, 0\] is out of bounds for 1", None),
    ],
)
def test_n_gather_refuses(body, match, rule):
    refused(body, match, rule)


@pytest.mark.parametrize("per_index", [1, 2, 4, 32])
@pytest.mark.parametrize("partitions", [16, 32, 128])
def test_local_gather_shares_indices_in_groups_of_16(per_index, partitions):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(partitions, 256)).astype(np.float32)
    index = (rng.integers(0, 256 // per_index, (partitions, 3)) * per_index).astype(np.uint16)
    valid = 40
    found = execute(
        nisa.local_gather, {"src_buffer": x, "index": index}, {"dst": ((partitions, valid * per_index), np.float32)},
        num_elem_per_idx=per_index, num_valid_indices=valid,
    )  # fmt: skip
    expected = np.empty((partitions, valid, per_index), np.float32)
    for core in range(partitions // 16):  # the documentation's NumPy meaning
        rows = slice(16 * core, 16 * core + 16)
        flat = index[rows].flatten(order="F")[:valid] // per_index
        expected[rows] = np.take(x[rows].reshape(16, -1, per_index), flat, axis=1)
    same(found, expected.reshape(partitions, -1))


def local_gather(dst=(16, 16), src=(16, 8), index=((16, 1), "uint16"), dtype="float32", **options):
    settings = {"num_elem_per_idx": 1, "num_valid_indices": 16} | options
    return lambda: nisa.local_gather(dst=filled(dst, dtype), src_buffer=filled(src), index=filled(*index), **settings)


@pytest.mark.parametrize(
    ("body", "match", "rule"),
    [
        (local_gather(index=((16, 1), "uint32")), "index is uint32", None),
        (local_gather(dst=(8, 16), src=(8, 8), index=((8, 1), "uint16")), "multiple of 16", None),
        (local_gather(dtype="bfloat16"), "the same dtype", None),
        (local_gather(src=(32, 8)), "multiple of 16", None),
        (local_gather(num_elem_per_idx=3), "num_elem_per_idx=3", None),
        (local_gather(num_valid_indices=None), "pass both", 36),
        (local_gather(num_valid_indices=17), "an integer from 1 to 16", None),
        (local_gather(num_valid_indices=8), "they must agree", 36),
        (local_gather(src=(16, 1)), "out of bounds for 1 elements", None),
    ],
)
def test_local_gather_refuses(body, match, rule):
    refused(body, match, rule)


# --- nonzero_with_count, sequence_bounds ----------------------------------------------------------------


def test_nonzero_of_the_documentation():
    x = np.array([[0, 1, 1, 0, 0, 1, 0, 0]], np.int32)
    found = execute(nisa.nonzero_with_count, {"src": x}, {"dst": ((1, 9), np.int32)}, index_offset=16, padding_val=-1)
    assert found.tolist() == [[17, 18, 21, -1, -1, -1, -1, -1, 3]]


@pytest.mark.parametrize("dtype", [np.float32, np.int32])
def test_nonzero_works_on_every_sixteenth_partition_only(dtype):
    x = sample((128, 30), dtype, 1, -1, 1)
    before = np.full((128, 31), 77, np.int32)
    found = execute(nisa.nonzero_with_count, {"src": x, "dst": before}, {"dst": "dst"})
    for partition in range(128):
        if partition % 16:
            assert np.all(found[partition] == 77)
        else:
            where = np.flatnonzero(x[partition])
            assert found[partition].tolist() == [*where, *[-1] * (30 - where.size), where.size]


def test_nonzero_reads_no_other_partition_and_initialises_none():
    def body(buffer_rows):
        src, dst = nl.ndarray((32, 4), nl.int32), nl.ndarray((32, 5), nl.int32)
        nisa.memset(dst=src[0:1], value=1)
        nisa.dma_copy(dst=src[16:17], src=src[0:1])
        nisa.nonzero_with_count(dst=dst, src=src)
        nisa.tensor_copy(dst=filled((buffer_rows, 5), "int32"), src=dst[0:buffer_rows])

    def kernel():
        body(1)

    run(Kernel(kernel))
    refused(lambda: body(2), r"uninitialised at element \[1, 0\]", 16)


def nonzero(src=((4, 8), "int32"), dst=((4, 9), "int32"), **options):
    return lambda: nisa.nonzero_with_count(dst=filled(*dst), src=filled(*src), **options)


@pytest.mark.parametrize(
    ("body", "match", "rule", "target"),
    [
        (nonzero(), "needs NeuronCore-v3", 30, "trn1"),
        (nonzero(src=((4, 8), "bfloat16")), "src is bfloat16", None, "trn2"),
        (nonzero(dst=((4, 9), "float32")), "dst is float32", None, "trn2"),
        (nonzero(dst=((4, 8), "int32")), "one more element", None, "trn2"),
        (nonzero(src=((4, 8), "int32", nl.psum)), "GpSimd Engine reaches SBUF only", 27, "trn2"),
        (nonzero(padding_val=0.5), "padding_val is 0.5", None, "trn2"),
    ],
)
def test_nonzero_refuses(body, match, rule, target):
    refused(body, match, rule, target)


def bounds(ids):
    """Each element's segment, found by walking both ways."""
    n, start, stop = len(ids), [], []
    for i, segment in enumerate(ids):
        low, high = i, i
        while low > 0 and ids[low - 1] == segment:
            low -= 1
        while high < n and ids[high] == segment:
            high += 1
        start.append(low if segment else n)
        stop.append(high if segment else -1)
    return [start, stop]


@pytest.mark.parametrize("dtype", [np.float32, np.int32])
@pytest.mark.parametrize("ids", [[0, 1, 1, 2, 2, 2, 0, 3, 3], [5], [0], [1, 1, 1], [0, 0, 4], list(range(30))])
def test_sequence_bounds(ids, dtype):
    def body(dst, segment_ids):
        nisa.sequence_bounds(dst=dst.reshape((1, 2, len(ids))), segment_ids=segment_ids)

    found = execute(body, {"segment_ids": np.array([ids], dtype)}, {"dst": ((1, 2 * len(ids)), dtype)})
    assert found.reshape(2, -1).tolist() == bounds(ids)


@pytest.mark.parametrize(
    ("shape", "dst", "dtype", "match"),
    [
        ((2, 8), (2, 2, 8), "int32", r"\(1, n\) and \(1, 2, n\)"),
        ((1, 8), (1, 16), "int32", r"\(1, n\) and \(1, 2, n\)"),
        ((1, 8), (1, 2, 8), "int16", "is int16"),
    ],
)
def test_sequence_bounds_refuses(shape, dst, dtype, match):
    refused(lambda: nisa.sequence_bounds(dst=filled(dst, dtype), segment_ids=filled(shape, dtype)), match)


def test_sequence_bounds_refuses_negative_ids():
    with pytest.raises(SimulatorError, match="segment id -1"):
        execute(
            lambda dst, ids: nisa.sequence_bounds(dst=dst.reshape((1, 2, 2)), segment_ids=ids),
            {"ids": np.array([[1, -1]], np.int32)}, {"dst": ((1, 4), np.int32)},
        )  # fmt: skip
