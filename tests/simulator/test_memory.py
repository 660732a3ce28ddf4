"""Tests of hostile memory: uninitialised reads, start partitions, capacity; one planted bug per rule."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nkisim import isa as nisa
from nkisim import language as nl
from nkisim.chip.memory import Marks
from nkisim.hardware import MACHINES
from nkisim.run.launch import simulate
from tests.simulator.kernels import on_chip, refusal, run, to_hbm, values


def test_an_output_that_is_partly_written_is_refused():
    def kernel(x):
        out = nl.ndarray((4, 6), nl.float32, buffer=nl.shared_hbm)
        nisa.dma_copy(dst=out[0:3], src=x[0:3])
        return out

    assert "[3, 0]" in refusal(kernel, values((4, 6)), rule=15)


def test_bytes_written_through_another_dtype_count():
    def kernel(x):
        tile = nl.ndarray((4, 6), nl.int32)
        halves = tile.view(nl.uint16)
        nisa.memset(dst=halves[:, 0::2], value=7)
        nisa.memset(dst=halves[:, 1:11:2], value=0)
        nisa.dma_copy(dst=nl.ndarray((4, 5), nl.int32), src=tile[:, 0:5])
        to_hbm(tile)

    assert "element [0, 5]" in refusal(kernel, values((4, 6)), rule=16)


def test_elements_written_twice_do_not_stand_for_others():
    def kernel():
        tile = nl.ndarray((1, 4), nl.float32)
        nisa.memset(dst=tile.ap([[4, 1], [1, 2], [1, 2]]), value=0.0)  # elements 0, 1, 1, 2
        to_hbm(tile)

    assert "element [0, 3]" in refusal(kernel, rule=16)


def test_rows_of_a_gather_are_checked_one_by_one():
    def kernel(x, rows):
        table = nl.ndarray((8, 4), nl.float32, buffer=nl.private_hbm)
        nisa.dma_copy(dst=table[0:6], src=x)
        dst = nl.ndarray((2, 4), nl.float32)
        nisa.dma_copy(dst=dst, src=table.vector_select(0, on_chip(rows)))
        return to_hbm(dst)

    x = values((6, 4))
    np.testing.assert_array_equal(run(kernel, x, np.array([[5], [0]], np.int32)), x[[5, 0]])
    assert "row 6" in refusal(kernel, x, np.array([[5], [6]], np.int32), rule=16)


def test_an_uninitialised_index_is_called_so():
    def kernel(x):
        dst = nl.ndarray((2, 4), nl.float32)
        nisa.dma_copy(dst=dst, src=x.vector_select(0, nl.ndarray((2, 1), nl.int32)))

    assert "src.index is uninitialised" in refusal(kernel, values((6, 4)), rule=16)

    def partly(x):
        table = nl.ndarray((8, 4), nl.float32, buffer=nl.private_hbm)
        nisa.dma_copy(dst=table[0:6], src=x)
        nisa.dma_copy(dst=nl.ndarray((2, 4), nl.float32), src=table.vector_select(0, nl.ndarray((2, 1), nl.int32)))

    assert "src.index is uninitialised" in refusal(partly, values((6, 4)), rule=16)


def test_scattered_rows_become_readable():
    def kernel(x, rows):
        table = nl.ndarray((4, 4), nl.float32, buffer=nl.private_hbm)
        nisa.dma_copy(dst=table.vector_select(0, on_chip(rows)), src=on_chip(x))
        return to_hbm(table[0:2])

    x = values((2, 4))
    np.testing.assert_array_equal(run(kernel, x, np.array([[1], [0]], np.int32)), x[::-1])
    refusal(kernel, x, np.array([[1], [2]], np.int32), rule=16)


def test_constants_and_read_only_arrays_cannot_be_written():
    def constant():
        nisa.dma_copy(dst=nl.shared_constant(np.eye(4, dtype=np.float32)), src=nl.zeros((4, 4), nl.float32))

    def argument(x):
        nisa.dma_copy(dst=x, src=nl.zeros((4, 4), nl.float32))

    x = np.ones((4, 4), np.float32)
    x.flags.writeable = False
    refusal(constant, match="constant")
    refusal(argument, x, match="read-only input array")
    assert (x == 1).all()


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.booleans(), st.integers(0, 5), st.integers(1, 6), st.integers(1, 3)), max_size=8))
def test_marks_are_the_set_of_elements(steps):
    """Marks against a plain boolean array, under random adds and discards of strided columns."""
    expected = np.zeros((4, 6), bool)

    def kernel():
        tile = nl.ndarray((4, 6), nl.float32)
        marks = Marks(tile.storage.nbytes, 4, False)
        for adding, start, length, step in steps:
            stop = min(start + length, 6)
            view = tile[:, start:stop:step]
            (marks.add if adding else marks.discard)(view)
            expected[:, start:stop:step] = adding
        assert marks.full == expected.all()
        for column in range(6):
            assert marks.covers(tile[:, column]) == expected[:, column].all()
        assert marks.touches(tile) == expected.any()

    run(kernel)


# --- partitions and patterns ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("start", "count", "legal"),
    [
        (0, 128, True), (0, 65, True), (32, 65, False), (64, 64, True), (32, 33, False), (64, 33, True),
        (32, 32, True), (96, 32, True), (16, 32, False), (1, 1, False), (96, 1, True),
    ],
)  # fmt: skip
def test_start_partitions_of_compute_engines(start, count, legal):
    def kernel():
        tile = nl.ndarray((128, 4), nl.float32)
        nisa.memset(dst=tile[start : start + count], value=0.0)

    if legal:
        run(kernel)
    else:
        refusal(kernel, rule=12)


def test_dma_may_start_anywhere():
    def kernel(x):
        tile = on_chip(x)
        return to_hbm(tile[17:100])

    x = values((128, 4))
    np.testing.assert_array_equal(run(kernel, x), x[17:100])


def test_strides_beyond_16_bits_are_refused():
    def strides():
        tile = nl.ndarray((4, 40000), nl.float32)
        nisa.memset(dst=tile[:, 0:36000:35000], value=0.0)

    refusal(strides, rule=12, target="trn2")


@pytest.mark.parametrize("buffer", [nl.sbuf, nl.psum])
def test_more_than_128_partitions_are_refused(buffer):
    def kernel():
        nl.ndarray((129, 4), nl.float32, buffer)

    refusal(kernel, rule=12)


# --- capacity -------------------------------------------------------------------------------------------


def many_tiles(count, nbytes, buffer, together):
    """A kernel that keeps ``count`` tiles alive at once, or one after the other."""

    def kernel():
        tiles = []
        for _ in range(count):
            tile = nl.ndarray((128, nbytes // 4), nl.float32, buffer)
            nisa.memset(dst=tile, value=1.0)
            tiles.append(tile)
            if not together:
                nisa.tensor_copy(dst=nl.ndarray((128, 1), nl.float32), src=tile[:, 0:1])
        if together:
            for tile in tiles:
                nisa.tensor_copy(dst=nl.ndarray((128, 1), nl.float32), src=tile[:, 0:1])

    return kernel


@pytest.mark.parametrize("mode", ["run", "trace"])
@pytest.mark.parametrize("target", ["trn1", "trn2", "trn3"])
def test_sbuf_beyond_the_target_is_refused(target, mode):
    limit = MACHINES[target].sbuf_bytes_per_partition
    part = limit // 4 // 8 * 4
    run(many_tiles(7, part, nl.sbuf, True), target=target, mode=mode)
    run(many_tiles(20, part, nl.sbuf, False), target=target, mode=mode)
    text = refusal(many_tiles(9, part, nl.sbuf, True), rule=11, target=target, mode=mode)
    assert f"{target} has {limit}" in text


@pytest.mark.parametrize("mode", ["run", "trace"])
def test_psum_beyond_eight_banks_is_refused(mode):
    run(many_tiles(8, 2048, nl.psum, True), mode=mode)
    run(many_tiles(30, 2048, nl.psum, False), mode=mode)
    refusal(many_tiles(9, 2048, nl.psum, True), rule=11, mode=mode)


def mixed_sums(*sizes):
    """A kernel with a tensor in PSUM of each of so many bytes a partition, all live at once."""

    def kernel(x):
        tiles = [nl.ndarray((x.shape[0], nbytes // 4), nl.float32, buffer=nl.psum) for nbytes in sizes]
        total = on_chip(x)
        for tile in tiles:
            nisa.tensor_copy(dst=tile[:, 0:4], src=total)
        for tile in tiles:
            nisa.tensor_tensor(dst=total, data1=total, data2=tile[:, 0:4], op=nl.add)
        return to_hbm(total)

    return kernel


def test_sums_share_a_bank_and_none_crosses_one():
    x = values((4, 4))
    for sizes, banks in (
        ([1536] * 6 + [512] * 6, 6),  # of a published kernel, which runs on trn1 and trn2
        ([1536, 512] * 8, 8), ([64] * 9, 1), ([1028] * 8, 8), ([4096, 2048, 1024, 1024], 4), ([16384], 8),
    ):  # fmt: skip
        result = simulate(mixed_sums(*sizes)).run(x)
        assert result.trace.psum_peak_banks == banks
        np.testing.assert_allclose(result.outputs, x * (1 + len(sizes)), rtol=1e-6)
    for sizes in ([1536, 512] * 8 + [16], [1028] * 9, [4096] * 4 + [16]):  # though few bytes in all
        refusal(mixed_sums(*sizes), x, rule=11, match="PSUM banks of 2048 bytes are live at once, trn2 has 8")


def test_one_tensor_larger_than_the_memory_is_refused_at_once():
    refusal(many_tiles(1, 16384 + 4, nl.psum, False), rule=11)
    refusal(many_tiles(1, 212_984 + 8, nl.sbuf, False), rule=11)


def test_a_bad_address_is_refused():
    def bank():
        nl.ndarray((128, 4), nl.float32, nl.psum, address=(0, 100))

    def outside():
        nl.ndarray((128, 4), nl.float32, nl.sbuf, address=(1, 0))

    refusal(bank, rule=11)
    refusal(outside, rule=11)


@pytest.mark.parametrize(
    ("second", "together", "legal"),
    [
        ((0, 0), True, False), ((0, 0), False, True), ((0, 60), True, False), ((0, 64), True, True),
        ((32, 0), True, True), ((31, 0), True, False),
    ],
)  # fmt: skip
def test_tensors_placed_by_hand_do_not_share_bytes_while_live(second, together, legal):
    def kernel():
        tiles = []
        for address in ((0, 0), second):
            tile = nl.ndarray((32, 16), nl.float32, nl.sbuf, address=address)
            nisa.dma_copy(dst=tile, src=nl.shared_constant(np.zeros((32, 16), np.float32)))
            tiles.append(tile)
            if not together:
                to_hbm(tile)
        if together:
            [to_hbm(tile) for tile in tiles]

    if legal:
        run(kernel)
    else:
        refusal(kernel, rule=11, match="overlaps")


def test_the_trace_tells_the_peaks_and_the_lives():
    def kernel(x):
        tile = on_chip(x)
        dst = nl.ndarray((8, 4), nl.float32, nl.psum)
        nisa.nc_matmul(dst=dst, stationary=tile, moving=tile[:, 0:4])
        return to_hbm(dst)

    trace = simulate(kernel).run(values((16, 8))).trace
    assert (trace.sbuf_peak_bytes, trace.psum_peak_banks) == (32, 1)
    lives = {a.shape: (a.first, a.last) for a in trace.allocations if a.buffer != "hbm"}
    assert lives[(16, 8)] == (0, 1)
    assert [i.opcode for i in trace.instructions] == ["dma_copy", "nc_matmul", "tensor_copy", "dma_copy"]
    assert [i.engine for i in trace.instructions][:2] == ["dma", "tensor"]


def test_memory_stays_within_three_times_the_operands():
    import tracemalloc

    from nkisim.run.loader import load_kernel
    from tests.simulator.kernels import KERNELS

    kernel = load_kernel(KERNELS / "matmul.py")
    a, b = np.ones((1024, 1024), np.float32), np.ones((1024, 1024), np.float32)
    simulate(kernel)(a[:128, :128].copy(), b[:128, :512].copy())
    tracemalloc.start()
    simulate(kernel)(a, b)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    on_chip_bytes = 28 * 2**20 + 2 * 2**20
    assert peak <= 3 * 3 * a.nbytes + on_chip_bytes
