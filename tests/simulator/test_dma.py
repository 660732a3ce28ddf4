"""Tests of DMA: copies, conversions, gather and scatter, transposes, sums; and what is refused."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nkisim import isa as nisa
from nkisim import language as nl
from nkisim.chip.dtypes import STORAGE
from nkisim.run.loader import load
from tests.simulator.kernels import FLOATS, INTEGERS, KERNELS, on_chip, refusal, run, to_hbm, values

HWDGE, SWDGE, NONE = nisa.dge_mode.hwdge, nisa.dge_mode.swdge, nisa.dge_mode.none
SKIP = nisa.oob_mode.skip
gather = load(KERNELS / "gather.py")


def sb(*shape, dtype="float32"):
    return nl.zeros(shape, dtype)


def hbm(*shape, dtype="float32"):
    return nl.zeros(shape, dtype, nl.private_hbm)


def copied(x, dtype):
    out = nl.ndarray(x.shape, dtype, buffer=nl.shared_hbm)
    nisa.dma_copy(dst=out, src=x)
    return out


# --- meaning --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", FLOATS + INTEGERS)
def test_a_copy_of_one_dtype_moves_bits(dtype):
    x = values((5, 7), dtype)
    result = run(lambda x: copied(x, dtype), x)
    assert result.tobytes() == x.tobytes()


@pytest.mark.parametrize("source", FLOATS + INTEGERS)
@pytest.mark.parametrize("target", FLOATS + INTEGERS)
def test_a_copy_between_dtypes_passes_through_float32(source, target):
    x = values((5, 7), source)
    wide = x.astype(np.float32)
    if source == target:
        expected = x
    elif target in INTEGERS:
        limits = np.iinfo(STORAGE[target])
        expected = np.clip(np.rint(wide).astype(np.float64), limits.min, limits.max).astype(STORAGE[target])
    else:
        with np.errstate(over="ignore"):
            expected = wide.astype(STORAGE[target])
    np.testing.assert_array_equal(run(lambda x: copied(x, target), x), expected)


def test_integers_beyond_2_to_24_are_rounded_when_converted():
    x = np.array([[2**24 + 1, -(2**31)]], np.int32)
    np.testing.assert_array_equal(run(lambda x: copied(x, "uint32"), x), [[2**24, 0]])


@settings(max_examples=30, deadline=None)
@given(st.integers(1, 6), st.integers(1, 6), st.integers(1, 3), st.integers(1, 3), st.integers(0, 9))
def test_elements_move_in_row_major_order_between_views(rows, columns, row_step, column_step, seed):
    x = values((rows * row_step, columns * column_step), seed=seed)

    def kernel(x):
        source = x[::row_step, ::column_step]
        out = nl.ndarray((columns, rows), nl.float32, buffer=nl.shared_hbm)
        nisa.dma_copy(dst=out, src=source)
        return out

    np.testing.assert_array_equal(run(kernel, x), x[::row_step, ::column_step].reshape(columns, rows))


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


@pytest.mark.parametrize(
    ("shape", "axes"), [((16, 32), (1, 0)), ((4, 3, 32), (2, 1, 0)), ((2, 3, 4, 32), (3, 1, 2, 0))]
)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "uint8"])
def test_dma_transposes(shape, axes, dtype):
    x = values(shape, dtype)

    def kernel(x):
        dst = nl.ndarray(tuple(shape[a] for a in axes), dtype)
        nisa.dma_transpose(dst=dst, src=x, axes=axes)
        return to_hbm(dst)

    np.testing.assert_array_equal(run(kernel, x), x.transpose(axes))


def test_a_gathered_transpose_flattens_indices_by_column():
    x = values((300, 128), "bfloat16")
    rows = np.random.default_rng(0).permutation(300)[:256].astype(np.uint32).reshape(128, 2)

    def kernel(x, rows):
        dst = nl.zeros((128, 256), "bfloat16")
        source = x.ap([[128, 256], [1, 128]], vector_offset=on_chip(rows), indirect_dim=0)
        nisa.dma_transpose(dst=dst, src=source, axes=(1, 0))
        return to_hbm(dst)

    np.testing.assert_array_equal(run(kernel, x, rows), x[rows.T.reshape(-1)].T)


def test_dma_compute_adds_in_float32():
    def kernel(a, b, c):
        out = nl.ndarray(a.shape, "bfloat16", buffer=nl.shared_hbm)
        nisa.dma_compute(out, [a, on_chip(b), c], nl.add, scales=[1.0, 1.0, 1.0])
        return out

    arrays = [values((4, 6), dtype, seed) for seed, dtype in enumerate(("float32", "bfloat16", "int8"))]
    expected = sum(a.astype(np.float32) for a in arrays).astype(STORAGE["bfloat16"])
    np.testing.assert_array_equal(run(kernel, *arrays), expected)


def test_dma_compute_scatters_and_gathers_sums():
    def scatter(values, rows, table):
        place = table.ap([[3, 4], [1, 3]], vector_offset=on_chip(rows))
        nisa.dma_compute(place, [place, on_chip(values)], nl.add, unique_indices=True)
        return table

    def collect(values, rows, table):
        tile = on_chip(values)
        nisa.dma_compute(tile, [table.ap([[3, 4], [1, 3]], vector_offset=on_chip(rows)), tile], nl.add)
        return to_hbm(tile)

    table, added, rows = values((6, 3)), values((4, 3), seed=1), np.array([[5], [0], [2], [1]], np.int32)
    expected = table.copy()
    expected[rows[:, 0]] += added
    np.testing.assert_array_equal(run(collect, added, rows, table), added + table[rows[:, 0]])
    np.testing.assert_array_equal(run(scatter, added, rows, table.copy()), expected)
    refusal(scatter, added, np.array([[5], [0], [5], [1]], np.int32), table.copy(), rule=20)
    # Even equal rows: each would add to what the other has not written yet.
    refusal(scatter, np.ones_like(added), np.array([[5], [0], [5], [1]], np.int32), table.copy(), rule=20)


# --- refusals -------------------------------------------------------------------------------------------


def index(*rows, dtype="int32"):
    return nl.zeros((len(rows), 1), dtype)


BAD_TRANSFERS = {
    "PSUM": (lambda: nisa.dma_copy(dst=sb(4, 4), src=nl.zeros((4, 4), "float32", nl.psum)), 18, "trn2"),
    "element count": (lambda: nisa.dma_copy(dst=sb(4, 4), src=sb(4, 5)), 18, "trn2"),
    "not a tensor": (lambda: nisa.dma_copy(dst=sb(4, 4), src=1.0), 18, "trn2"),
    "hwdge conversion": (lambda: nisa.dma_copy(sb(4, 4), sb(4, 4, dtype="int32"), dge_mode=HWDGE), 18, "trn2"),
    "hwdge on trn1": (lambda: nisa.dma_copy(sb(4, 4), sb(4, 4), dge_mode=HWDGE), 18, "trn1"),
    "engine without hwdge": (lambda: nisa.dma_copy(sb(4, 4), sb(4, 4), engine=nisa.engine.sync), 18, "trn2"),
    "engine": (lambda: nisa.dma_copy(sb(4, 4), sb(4, 4), dge_mode=HWDGE, engine=nisa.engine.vector), 18, "trn2"),
    "priority on trn2": (lambda: nisa.dma_copy(sb(4, 4), sb(4, 4), priority=1), 18, "trn2"),
    "priority of 4": (lambda: nisa.dma_copy(sb(4, 4), sb(4, 4), priority=4), 18, "trn3"),
    "gather by hwdge": (
        lambda: nisa.dma_copy(sb(2, 4), hbm(8, 4).vector_select(0, index(0, 1)), dge_mode=HWDGE),
        19,
        "trn2",
    ),
    "run-time address without dge": (
        lambda: nisa.dma_copy(sb(1, 4), hbm(8, 1, 4).select(0, nisa.register_alloc(1)), dge_mode=NONE),
        19,
        "trn2",
    ),
    "transpose rank": (lambda: nisa.dma_transpose(sb(4, 4), hbm(16)), 21, "trn2"),
    "transpose axes": (lambda: nisa.dma_transpose(sb(4, 2, 3), hbm(2, 3, 4), axes=(2, 0, 1)), 21, "trn2"),
    "transpose dst shape": (lambda: nisa.dma_transpose(sb(4, 5), hbm(4, 5)), 21, "trn2"),
    "transpose dtype": (lambda: nisa.dma_transpose(sb(5, 4, dtype="bfloat16"), hbm(4, 5)), 21, "trn2"),
    "transpose to HBM": (lambda: nisa.dma_transpose(hbm(5, 4), hbm(4, 5)), 21, "trn2"),
    "transpose hwdge of 4 bytes": (lambda: nisa.dma_transpose(sb(64, 16), hbm(16, 64), dge_mode=HWDGE), 21, "trn2"),
    "transpose hwdge of 15 rows": (
        lambda: nisa.dma_transpose(sb(64, 15, dtype="float16"), hbm(15, 64, dtype="float16"), dge_mode=HWDGE),
        21,
        "trn2",
    ),
    "transpose swdge": (lambda: nisa.dma_transpose(sb(5, 4), hbm(4, 5), dge_mode=SWDGE), 21, "trn2"),
    "transpose skip": (lambda: nisa.dma_transpose(sb(5, 4), hbm(4, 5), oob_mode=SKIP), 21, "trn2"),
    "gathered transpose of float32": (
        lambda: nisa.dma_transpose(sb(64, 16), hbm(32, 64).vector_select(0, nl.zeros((16, 1), "uint32"))),
        21,
        "trn2",
    ),
    "gathered transpose by int32": (
        lambda: nisa.dma_transpose(
            sb(64, 16, dtype="float16"), hbm(32, 64, dtype="float16").vector_select(0, nl.zeros((16, 1), "int32"))
        ),
        21,
        "trn2",
    ),
    "gathered transpose by 24 rows of indices": (
        lambda: nisa.dma_transpose(
            sb(64, 16, dtype="float16"),
            hbm(32, 64, dtype="float16").ap([[64, 16], [1, 64]], vector_offset=nl.zeros((24, 1), "uint32")),
        ),
        21,
        "trn2",
    ),
    "gathered transpose on trn1": (
        lambda: nisa.dma_transpose(
            sb(64, 16, dtype="float16"), hbm(32, 64, dtype="float16").vector_select(0, nl.zeros((16, 1), "uint32"))
        ),
        21,
        "trn1",
    ),
    "sum by another operator": (lambda: nisa.dma_compute(sb(4, 4), [sb(4, 4)], nl.multiply), 18, "trn2"),
    "sum with scales": (lambda: nisa.dma_compute(sb(4, 4), [sb(4, 4)], nl.add, scales=[2.0]), 18, "trn2"),
    "sum of 17": (lambda: nisa.dma_compute(sb(4, 4), [sb(4, 4)] * 17, nl.add), 18, "trn2"),
    "sum of other sizes": (lambda: nisa.dma_compute(sb(4, 4), [sb(4, 3)], nl.add), 18, "trn2"),
    "sum of indices that repeat": (
        lambda: nisa.dma_compute(
            sb(2, 4), [sb(2, 4), hbm(8, 4).vector_select(0, index(0, 1))], nl.add, unique_indices=False
        ),
        20,
        "trn2",
    ),
    "gathered sum elsewhere": (
        lambda: nisa.dma_compute(sb(2, 4), [sb(2, 4), hbm(8, 4).vector_select(0, index(0, 1))], nl.add),
        19,
        "trn2",
    ),
}


@pytest.mark.parametrize("case", BAD_TRANSFERS)
def test_a_documented_constraint_is_refused(case):
    statement, rule, target = BAD_TRANSFERS[case]

    def kernel():
        statement()

    refusal(kernel, rule=rule, target=target)


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
