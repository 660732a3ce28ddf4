"""Tests of DMA: copies, conversions, gather and scatter, transposes, sums; and what is refused."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nkisim import isa as nisa
from nkisim import language as nl
from nkisim.chip.dtypes import STORAGE
from tests.simulator.kernels import FLOATS, INTEGERS, on_chip, refusal, run, to_hbm, values

HWDGE, SWDGE, NONE = nisa.dge_mode.hwdge, nisa.dge_mode.swdge, nisa.dge_mode.none
SKIP = nisa.oob_mode.skip


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
