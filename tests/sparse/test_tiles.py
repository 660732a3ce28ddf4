"""Blocks of sparse matrices: counted as a dense count would, and once until the pattern changes."""

import numpy as np
import pytest
import scipy.sparse
from hypothesis import given, settings
from hypothesis import strategies as st

import trnpy
import trnpy.sparse
from nkisim.hardware import TRN2
from trnpy._engine.engines import DeviceEngine
from trnpy._nki.simulated import SimulatorRuntime
from trnpy.sparse import _device, _tiles

FORMATS = ("bsr", "coo", "csc", "csr", "dia", "dok", "lil")


def counted(dense, block):
    """Non-empty blocks of each block row of a dense pattern."""
    rows, columns = (-(-n // block) for n in dense.shape)
    padded = np.zeros((rows * block, columns * block), bool)
    padded[: dense.shape[0], : dense.shape[1]] = dense
    return padded.reshape(rows, block, columns, block).any(axis=(1, 3)).sum(axis=1)


@settings(max_examples=60, deadline=None)
@given(
    st.integers(0, 2**32),
    st.tuples(st.sampled_from((1, 7, 16, 50)), st.sampled_from((1, 8, 33))),
    st.sampled_from((0.0, 0.02, 0.5)),
    st.sampled_from(FORMATS),
    st.sampled_from((1, 4, 8)),
)
def test_blocks_are_counted_as_in_a_dense_pattern(seed, shape, density, layout, block):
    dense = np.random.default_rng(seed).random(shape) < density
    a = getattr(trnpy.sparse, f"{layout}_array")(scipy.sparse.coo_array(dense.astype(float)))
    stored = a.tocsr()
    stored.data[:] = 1
    pattern = stored.toarray() != 0
    blocks = _tiles.count_blocks(a, block)
    np.testing.assert_array_equal(blocks.in_row, counted(pattern, block))
    assert blocks.nnz == pattern.sum() and blocks.count == blocks.in_row.sum()
    if blocks.count:
        assert blocks.density == pattern.sum() / (blocks.count * block**2)
        assert blocks.padding == len(blocks.in_row) * blocks.in_row.max() / blocks.count


def test_slabs_of_any_size_count_the_same(monkeypatch):
    a = scipy.sparse.random_array((200, 300), density=0.05, rng=0, format="csr")
    for matrix in (a, a.T):
        whole = _tiles.count_blocks(trnpy.sparse.csr_array(a) if matrix is a else trnpy.sparse.csc_array(matrix), 8)
        for slab in (1, 100, 1000):
            monkeypatch.setattr(_tiles, "SLAB", slab)
            again = _tiles.count_blocks(type(matrix)(matrix), 8)
            np.testing.assert_array_equal(again.in_row, whole.in_row)
        monkeypatch.undo()


def brute_buckets(lengths, buckets):
    """The fewest blocks of rows padded to the longest of their bucket, by trying every cut of the sorted lengths."""
    if not len(lengths):
        return 0
    if buckets == 1:
        return len(lengths) * lengths[-1]
    return min(
        brute_buckets(lengths[:cut], buckets - 1) + len(lengths[cut:]) * lengths[-1] for cut in range(len(lengths))
    )


@given(st.lists(st.integers(0, 9), min_size=1, max_size=9))
def test_buckets_are_the_best_there_are(lengths):
    blocks = _tiles.Blocks(8, (8 * len(lengths), 80), sum(lengths), *[np.array(lengths)] * 2)
    assert blocks.bucket_padding == brute_buckets(
        sorted(min(_tiles.rung(n, 1), max(lengths)) for n in lengths if n), _tiles.BUCKETS
    ) / max(sum(lengths), 1)


def test_the_arrow_matrix_is_padded_by_no_more_than_a_ninth():
    a = scipy.sparse.lil_array((8192, 8192))
    a[:128, :] = a[:, :128] = 1
    a.setdiag(1)
    blocks = _tiles.count_blocks(trnpy.sparse.csr_array(a))
    assert blocks.padding > 21 and blocks.bucket_padding <= 1.11 and 0.67 < blocks.density < 0.68


@pytest.mark.parametrize("layout", ("csr", "csc", "bsr"))
def test_the_count_is_kept_until_the_pattern_changes(layout):
    rng = np.random.default_rng(1)
    a = getattr(trnpy.sparse, f"{layout}_array")(scipy.sparse.random_array((64, 64), density=0.1, rng=rng))
    first = _tiles.count_blocks(a, 8)
    assert _tiles.count_blocks(a, 8) is first
    a.data *= 2
    a *= 3
    a.data[:] = 0
    assert _tiles.count_blocks(a, 8) is first  # of the pattern, whatever the values
    assert _tiles.count_blocks(a, 16) is not first
    before = a.indices[0]
    a.indices[0] = 63 - before if layout != "bsr" else a.shape[1] // a.blocksize[1] - 1 - before
    assert _tiles.count_blocks(a, 8) is not first
    a.indptr[-1] -= 1
    assert _tiles.count_blocks(a, 8).nnz < first.nnz
    a.eliminate_zeros()
    assert _tiles.count_blocks(a, 8).count == 0


def test_a_last_row_shorter_than_its_launch_starts_at_earlier_tiles():
    """16 tiles fill their operand, and the 9 of the last row are in a launch of rows of 10."""
    place = [(0, i) for i in range(7)] + [(1, i) for i in range(9)]
    rows, columns = 128 * np.array(place).T
    a = scipy.sparse.csr_array((np.arange(1.0, 17), (rows, columns)), shape=(256, 9 * 128)).astype("f4")
    x = np.arange(2.0 * 9 * 128).reshape(-1, 2).astype("f4")
    found = _device.tiled(DeviceEngine(SimulatorRuntime(TRN2)), a, x)
    np.testing.assert_array_equal(found, a @ x)  # integers
