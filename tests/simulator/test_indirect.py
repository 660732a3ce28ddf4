"""Tests of views at run-time addresses: gather, scatter, offsets, and indices out of bounds."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nkisim import isa as nisa
from nkisim import language as nl
from nkisim.run.loader import load
from tests.simulator.kernels import FLOATS, INTEGERS, KERNELS, on_chip, refusal, run, to_hbm, values

SKIP = nisa.oob_mode.skip


gather = load(KERNELS / "gather.py")


@settings(max_examples=40, deadline=None)
@given(
    st.sampled_from(FLOATS + INTEGERS), st.integers(1, 40), st.integers(1, 128), st.integers(1, 9), st.integers(0, 3),
    st.sampled_from(["int32", "uint32"]), st.integers(0, 99),
)  # fmt: skip
def test_gathers_of_any_table_are_numpy_indexing(dtype, rows, count, width, offset, index_dtype, seed):
    table = values((rows, width + offset), dtype, seed)
    index = np.random.default_rng(seed).integers(0, rows, (count, 1)).astype(index_dtype)

    def kernel(table, index):
        dst = nl.ndarray((count, width), dtype)
        pattern = [[width + offset, count], [1, width]]
        nisa.dma_copy(dst=dst, src=table.ap(pattern, offset=offset, vector_offset=on_chip(index)))
        return to_hbm(dst)

    result = run(kernel, table, index)
    assert result.tobytes() == np.ascontiguousarray(table[index[:, 0], offset:]).tobytes()


@settings(max_examples=30, deadline=None)
@given(st.sampled_from(FLOATS + INTEGERS), st.integers(1, 60), st.integers(1, 9), st.data())
def test_scatters_of_distinct_rows_are_numpy_assignment(dtype, rows, width, data):
    order = data.draw(st.permutations(range(rows)))[: data.draw(st.integers(1, rows))]
    moved, out = values((len(order), width), dtype), values((rows, width), dtype, 1)
    expected = out.copy()
    expected[order] = moved
    run(gather.scatter, moved, np.array(order, np.int32).reshape(-1, 1), out)
    assert out.tobytes() == expected.tobytes()


def test_gather_and_scatter_move_rows():
    rng = np.random.default_rng(0)
    table = rng.standard_normal((300, 40)).astype(np.float32)
    rows = rng.permutation(300)[:128].astype(np.int32).reshape(-1, 1)
    np.testing.assert_array_equal(run(gather.gather, table, rows), table[rows[:, 0]])
    out, moved = np.zeros((300, 40), np.float32), table[:128]
    expected = out.copy()
    expected[rows[:, 0]] = moved
    np.testing.assert_array_equal(run(gather.scatter, moved, rows, out), expected)
    np.testing.assert_array_equal(out, expected)  # written in place


def test_gather_takes_the_leading_stride_from_the_table():
    def kernel(table, rows):
        index = on_chip(rows)
        dst = nl.ndarray((3, 2), nl.float32)
        nisa.dma_copy(dst=dst, src=table.ap([[1, 3], [2, 2]], offset=1, vector_offset=index))
        return to_hbm(dst)

    table, rows = values((6, 5)), np.array([[5], [0], [2]], np.uint32)
    np.testing.assert_array_equal(run(kernel, table, rows), table[[5, 0, 2]][:, [1, 3]])


def test_vector_select_and_select_are_the_same_accesses():
    def kernel(cube, rows, one):
        many = nl.ndarray((2, 4, 3), nl.float32)
        nisa.dma_copy(dst=many, src=cube.vector_select(0, on_chip(rows)))
        single = nl.ndarray((4, 3), nl.float32)
        nisa.dma_copy(dst=single, src=cube.select(0, on_chip(one)))
        return to_hbm(many), to_hbm(single)

    cube = values((5, 4, 3))
    many, single = run(kernel, cube, np.array([[4], [1]], np.int32), np.array([[3]], np.int32))
    np.testing.assert_array_equal(many, cube[[4, 1]])
    np.testing.assert_array_equal(single, cube[3])


def test_a_scalar_offset_counts_in_the_base_tensor():
    def kernel(x, start):
        dst = nl.ndarray((2, 3), nl.float32)
        nisa.dma_copy(dst=dst, src=x.ap([[8, 2], [1, 3]], offset=1, scalar_offset=on_chip(start), indirect_dim=0))
        column = nl.ndarray((2, 3), nl.float32)
        register = nisa.register_alloc(4)
        nisa.dma_copy(dst=column, src=x.ap([[8, 2], [1, 3]], scalar_offset=register, indirect_dim=1))
        sliced = nl.ndarray((2, 3), nl.float32)
        nisa.dma_copy(dst=sliced, src=x[0:2, nl.ds(register, 3)])
        return to_hbm(dst), to_hbm(column), to_hbm(sliced)

    x = values((6, 8))
    dst, column, sliced = run(kernel, x, np.array([[3]], np.int32))
    np.testing.assert_array_equal(dst, x[3:5, 1:4])
    np.testing.assert_array_equal(column, x[0:2, 4:7])
    np.testing.assert_array_equal(sliced, x[0:2, 4:7])


def test_skipped_rows_keep_what_dst_held():
    def kernel(table, rows):
        dst = nl.full((4, 2), -1.0, nl.float32)
        source = table.ap([[2, 4], [1, 2]], vector_offset=on_chip(rows))
        nisa.dma_copy(dst=dst, src=source, oob_mode=SKIP)
        return to_hbm(dst)

    table = values((3, 2))
    rows = np.array([[2], [9], [-1], [0]], np.int32)
    expected = np.stack([table[2], [-1, -1], [-1, -1], table[0]])
    np.testing.assert_array_equal(run(kernel, table, rows), expected)
    np.testing.assert_array_equal(run(kernel, table, np.full((4, 1), -1, np.int32)), np.full((4, 2), -1))


def test_skipped_rows_of_fresh_memory_stay_uninitialised():
    def kernel(table, rows):
        dst = nl.ndarray((2, 2), nl.float32)
        nisa.dma_copy(dst=dst, src=table.ap([[2, 2], [1, 2]], vector_offset=on_chip(rows)), oob_mode=SKIP)
        return to_hbm(dst)

    table = values((3, 2))
    text = refusal(kernel, table, np.array([[2], [9]], np.int32), rule=16)
    assert "[1, 0]" in text
    np.testing.assert_array_equal(run(kernel, table, np.array([[2], [1]], np.int32)), table[[2, 1]])


def test_a_skipped_scatter_writes_the_rows_in_bounds():
    def kernel(values, rows, out):
        target = out.ap([[2, 3], [1, 2]], vector_offset=on_chip(rows))
        nisa.dma_copy(dst=target, src=on_chip(values), oob_mode=SKIP)
        return out

    empty, moved = np.zeros((4, 2), np.float32), values((3, 2))
    run(kernel, moved, np.full((3, 1), -1, np.int32), empty)
    assert not empty.any()
    out = np.zeros((4, 2), np.float32)
    run(kernel, moved, np.array([[3], [4], [0]], np.int32), out)
    np.testing.assert_array_equal(out, [moved[2], [0, 0], [0, 0], moved[0]])


def index(*rows, dtype="int32"):
    return nl.zeros((len(rows), 1), dtype)


@pytest.mark.parametrize("row", [5, -1, 2**31 - 1])
def test_an_index_out_of_bounds_is_an_error(row):
    text = refusal(gather.gather.function, values((5, 4)), np.array([[0], [row]], np.int32), rule=19)
    assert f"index {row} at position 1" in text


def test_a_scalar_index_out_of_bounds_is_an_error():
    def kernel(x):
        dst = nl.ndarray((1, 4), nl.float32)
        nisa.dma_copy(dst=dst, src=x.select(0, nisa.register_alloc(5)))

    refusal(kernel, values((5, 1, 4)), rule=19)


def test_an_index_beyond_its_view_is_out_of_bounds_even_inside_the_storage():
    def kernel(x):
        dst = nl.ndarray((1, 4), nl.float32)
        nisa.dma_copy(dst=dst, src=x[0:3].select(0, nisa.register_alloc(4)))

    refusal(kernel, values((5, 1, 4)), rule=19)


def test_a_scatter_with_repeated_rows_has_no_defined_result():
    rows = np.array([[3], [1], [3]], np.int32)
    text = refusal(gather.scatter.function, values((3, 4)), rows, np.zeros((5, 4), np.float32), rule=20)
    assert "positions 0 and 2" in text
    same = np.ones((3, 4), np.float32)
    expected = np.zeros((5, 4), np.float32)
    expected[[1, 3]] = 1
    np.testing.assert_array_equal(run(gather.scatter, same, rows, np.zeros((5, 4), np.float32)), expected)
