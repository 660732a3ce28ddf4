"""Tests of the modes of a launch: targets, in-place inputs, trace-only, reorder, two cores, errors, speed."""

import threading
import time

import ml_dtypes
import numpy as np
import pytest

from nkisim import isa as nisa
from nkisim import language as nl
from nkisim.chip.errors import SimulatorError
from nkisim.chip.record import Region
from nkisim.chip.reorder import Scheduler
from nkisim.run.launch import Kernel, Specification, simulate
from nkisim.run.loader import load, load_kernel
from tests.simulator.kernels import KERNELS, on_chip, refusal, run, to_hbm, values

matmul = load_kernel(KERNELS / "matmul.py")
gather = load(KERNELS / "gather.py")


def operands(n, dtype):
    rng = np.random.default_rng(0)
    return rng.integers(-4, 5, (n, n)).astype(dtype), rng.integers(-4, 5, (n, n)).astype(dtype)


# --- arguments and outputs ------------------------------------------------------------------------------


def test_inputs_are_written_in_place_whatever_their_layout():
    def kernel(x):
        tile = nl.full(x.shape, 3.0, x.dtype)
        nisa.dma_copy(dst=x, src=tile)

    for x in (np.zeros((4, 6), np.float32), np.zeros((6, 4), np.float32).T, np.zeros((8, 12), np.float32)[::2, ::2]):
        run(kernel, x)
        assert (x == 3).all()


def test_outputs_are_arrays_or_tuples_of_them():
    def kernel(x, factor, flag=None):
        assert flag == "yes"
        tile = on_chip(x)
        out = to_hbm(tile)
        nisa.tensor_scalar(dst=tile, data=tile, op0=nl.multiply, operand0=factor)
        return out, to_hbm(tile)

    x = values((4, 6))
    first, second = simulate(kernel)(x, 2.0, flag="yes")
    np.testing.assert_array_equal(first, x)
    np.testing.assert_array_equal(second, 2 * x)


def test_arguments_are_hbm_on_one_core_and_shared_on_two():
    seen = []

    def kernel(x):
        seen.append(x.buffer)

    x = values((4, 4))
    run(kernel, x)
    run(Kernel(kernel)[2], x)
    assert seen == [nl.hbm, nl.shared_hbm, nl.shared_hbm]


def test_a_returned_input_is_a_copy():
    x = values((4, 6))
    result = run(lambda x: x, x)
    result[...] = 0
    assert x.any()


def test_the_same_array_twice_is_one_tensor():
    def kernel(x, y):
        assert x.storage is y.storage
        nisa.dma_copy(dst=x, src=nl.full((4, 4), 2.0, nl.float32))
        return to_hbm(on_chip(y))

    x = np.ones((4, 4), np.float32)
    np.testing.assert_array_equal(run(kernel, x, x), np.full((4, 4), 2))


@pytest.mark.parametrize(
    ("argument", "message"),
    [
        (np.ones((2, 2)), "argument 0: dtype .*float64"),
        (np.ones((2, 2), np.int64), "int64"),
        (np.ones((2, 2), ">f4"), "native byte order"),
        (np.ones((0, 2), np.float32), "no empty dimensions"),
        ([np.ones((2, 2), np.float32)], "pass a tuple"),
        (np.ones((2,) * 6, np.float32), "6 dimensions"),
        (Specification((2, 2)), "mode='trace'"),
    ],
)
def test_arguments_the_device_cannot_take_are_refused(argument, message):
    def kernel(x):
        return x

    refusal(kernel, argument, match=message)


def test_bad_calls_are_one_line_too():
    def kernel(x):
        return x.shape[0] + "a"

    refusal(kernel, np.ones((2, 2), np.float32), match="TypeError")
    refusal(kernel, match="missing 1 required positional argument")
    for settings, message in [({"target": "trn9"}, "trn9"), ({"mode": "fast"}, "fast")]:
        with pytest.raises(SimulatorError, match=message):
            run(kernel, np.ones((2, 2), np.float32), **settings)
    with pytest.raises(SimulatorError, match="not a kernel"):
        run(3)


@pytest.mark.parametrize("value", [lambda x: on_chip(x), lambda x: 3.0, lambda x: {"a": x}])
def test_a_kernel_returns_hbm_tensors_only(value):
    def kernel(x):
        return value(x)

    refusal(kernel, values((4, 4)), rule=15)


def test_an_error_inside_numpy_becomes_one_line_of_the_kernel():
    from nkisim.chip.context import issue

    def kernel(x):
        tile = on_chip(x)
        issue("imaginary", "vector", {"src": tile}, {"dst": tile}, lambda: tile.write(np.zeros((3, 5))))

    refusal(kernel, values((4, 4)), match="imaginary: ValueError")


# --- targets --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("target", "name", "sbuf"),
    [("trn1", "gen2", 180_224), ("trn2", "gen3", 212_984), ("trn3", "gen4", 245_752), ("inf2", "gen2", 180_224)],
)
def test_the_kernel_sees_its_target(target, name, sbuf):
    seen = []

    def kernel():
        assert nisa.get_nc_version() == nisa.nc_version[name]
        seen.append((nl.tile_size.sbuf_fmax_bytes, nl.tile_size.pmax, nl.tile_size.psum_num_banks))

    run(kernel, target=target)
    assert seen == [(sbuf, 128, 8)]


# --- trace only -----------------------------------------------------------------------------------------


def test_trace_only_records_what_a_run_records():
    a, b = operands(512, np.float32)
    executed, traced = simulate(matmul).run(a, b), simulate(matmul, mode="trace").run(a, b)
    assert traced.outputs is None
    assert traced.trace == executed.trace


@pytest.mark.slow
def test_trace_only_records_4096_cubed_in_two_seconds():
    s = Specification((4096, 4096), "bfloat16")
    simulate(matmul, mode="trace").run(Specification((128, 128)), Specification((128, 512)))
    started = time.process_time()
    trace = simulate(matmul, mode="trace").run(s, s).trace
    assert time.process_time() - started < 2.0
    assert sum(i.opcode == "nc_matmul" for i in trace.instructions) == 8192


def test_trace_only_takes_no_memory_for_data():
    import tracemalloc

    tracemalloc.start()
    small = Specification((2048, 2048), "bfloat16")
    simulate(matmul, mode="trace").run(small, small)
    assert tracemalloc.get_traced_memory()[1] < 100 * 2**20
    tracemalloc.stop()


def test_trace_only_does_not_touch_inputs_and_still_refuses():
    def kernel(x):
        nisa.dma_copy(dst=x, src=nl.zeros((4, 4), nl.float32))
        tile = nl.ndarray((4, 4), nl.float32)
        nisa.tensor_copy(dst=nl.ndarray((4, 4), nl.float32), src=tile)

    x = np.ones((4, 4), np.float32)
    refusal(kernel, x, rule=16, mode="trace")
    assert (x == 1).all()


def test_trace_only_takes_what_depends_on_values_as_written():
    def kernel(table, rows):
        dst = nl.ndarray((2, 4), nl.float32)
        nisa.dma_copy(dst=dst, src=table.vector_select(0, on_chip(rows)), oob_mode=nisa.oob_mode.skip)
        return to_hbm(dst)

    table, rows = values((6, 4)), np.array([[5], [0]], np.int32)
    np.testing.assert_array_equal(run(kernel, table, rows), table[[5, 0]])
    assert len(simulate(kernel, mode="trace").run(table, rows).trace.instructions) == 3


# --- reorder --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(4))
def test_reordered_instructions_give_the_same_result(seed):
    a, b = operands(512, np.float32)
    np.testing.assert_array_equal(run(matmul, a, b, mode="reorder", seed=seed), a.T @ b)
    table, rows = values((50, 8)), np.arange(20, dtype=np.int32)[::-1].reshape(-1, 1).copy()
    np.testing.assert_array_equal(run(gather.gather, table, rows, mode="reorder", seed=seed), table[rows[:, 0]])
    row, count = values((1, 9)), np.array([[5]], np.int32)
    expected = np.where(np.arange(9) < 5, 2 * row, 0)
    np.testing.assert_array_equal(run(gather.doubled_columns, row, count, mode="reorder", seed=seed), expected)


def region(storage, start, stop, partitions=(0, 128)):
    return Region(storage, "sbuf", partitions, start, stop)


def executed_order(seed, instructions, ordered=False, state=None):
    """Order in which a scheduler runs instructions given as (reads, writes)."""
    order = []
    scheduler = Scheduler(np.random.default_rng(seed))
    for number, (reads, writes) in enumerate(instructions):
        scheduler.add(lambda n=number: order.append(n), reads, writes, state, ordered)
    scheduler.flush()
    return order


def test_independent_instructions_do_change_places_and_dependent_ones_do_not():
    free = [([], [region(i, 0, 4)]) for i in range(6)]
    assert len({tuple(executed_order(seed, free)) for seed in range(10)}) > 5
    assert all(executed_order(seed, free, ordered=True) == list(range(6)) for seed in range(5))
    assert all(executed_order(seed, free, state="accumulator") == list(range(6)) for seed in range(5))
    chain = [([region(0, 0, 4)], [region(0, 2, 6)]) for _ in range(6)]
    assert all(executed_order(seed, chain) == list(range(6)) for seed in range(5))
    apart = [([], [region(0, 0, 4, (0, 32))]), ([], [region(0, 0, 4, (32, 64))])]
    assert {tuple(executed_order(seed, apart)) for seed in range(10)} == {(0, 1), (1, 0)}


def test_reordering_unmasks_memory_touched_behind_the_record():
    """The planted bug: an instruction writes a tile that it does not declare."""
    from nkisim.chip.context import issue

    def kernel(x):
        tile, other = on_chip(x), nl.zeros((4, 4), nl.float32)
        undeclared = lambda: tile.write(np.zeros((4, 4), np.float32))  # noqa: E731
        issue("sloppy", "vector", {}, {"dst": other}, undeclared)
        return to_hbm(tile)

    x = np.ones((4, 4), np.float32)
    results = {bool(run(kernel, x, mode="reorder", seed=seed).any()) for seed in range(20)}
    assert results == {True, False}


def test_an_error_in_a_deferred_instruction_names_the_line_that_issued_it():
    def kernel(x):
        tile = on_chip(x)
        dst = nl.ndarray((4, 4), nl.float32, nl.psum)
        nisa.nc_matmul(dst=dst, stationary=tile, moving=tile, is_moving_onezero=True)  # holds other values
        return to_hbm(dst)

    lines = {refusal(kernel, values((4, 4)), rule=26, mode=mode) for mode in ("run", "reorder")}
    assert len(lines) == 1


def two_named(x):
    tile = on_chip(x)
    for name in ("first", "second"):
        nisa.memset(dst=nl.ndarray((4, 4), nl.float32), value=0.0, name=name)
    return to_hbm(tile)


@pytest.mark.parametrize("producers", ["first", ["first"]])
def test_a_schedule_adds_dependencies_by_name(producers):
    kernel = Kernel(two_named).with_schedule([("second", producers)])
    trace = simulate(kernel, mode="reorder").run(values((4, 4))).trace
    assert trace.dependencies == ((2, 1),)
    assert simulate(Kernel(two_named)).run(values((4, 4))).trace.dependencies == ()


@pytest.mark.parametrize(
    ("edge", "message"), [(("second", "third"), "no instruction has that name"), (("first", "second"), "program order")]
)
def test_a_schedule_that_makes_no_sense_is_refused(edge, message):
    with pytest.raises(SimulatorError, match=message):
        run(Kernel(two_named).with_schedule([edge]), values((4, 4)))


# --- two cores ------------------------------------------------------------------------------------------


def halves(x):
    """Each core doubles half of the rows; shared outputs are one allocation."""
    core, cores = nl.program_id(0), nl.num_programs()
    rows = x.shape[0] // cores
    out = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm)
    tile = on_chip(x[core * rows : (core + 1) * rows])
    nisa.tensor_scalar(dst=tile, data=tile, op0=nl.multiply, operand0=2.0)
    for _ in range(2):  # a core may write its own rows again
        nisa.dma_copy(dst=out[core * rows : (core + 1) * rows], src=tile)
    return out


@pytest.mark.parametrize("mode", ["run", "reorder"])
def test_two_cores_share_their_outputs(mode):
    x = values((64, 8))
    result = simulate(Kernel(halves)[2], mode=mode).run(x)
    np.testing.assert_array_equal(result.outputs, 2 * x)
    assert [t.core for t in result.traces] == [0, 1]
    np.testing.assert_array_equal(simulate(Kernel(halves)[1])(x), 2 * x)


def test_the_grid_is_the_lnc_degree():
    seen = []

    def kernel():
        seen.append((nl.program_ndim(), nl.num_programs(0), nl.program_id(0)))

    run(kernel)
    run(Kernel(kernel)[2])
    assert seen == [(0, 1, 0), (1, 2, 0), (1, 2, 1)]
    for bad in (0, 3, (1, 2), "a"):
        with pytest.raises(SimulatorError, match="LNC degree"):
            Kernel(kernel)[bad]
    with pytest.raises(SimulatorError, match="no logical cores"):
        run(Kernel(kernel)[2], target="trn1")


def test_cores_that_allocate_different_shared_tensors_are_refused():
    def kernel():
        nl.ndarray((4 + nl.program_id(0), 4), nl.float32, buffer=nl.shared_hbm)

    refusal(Kernel(kernel)[2], rule=37)


def test_cores_that_write_the_same_shared_rows_are_refused():
    def kernel(x):
        out = nl.ndarray(x.shape[1:], x.dtype, buffer=nl.shared_hbm)
        nisa.dma_copy(dst=out, src=on_chip(x[nl.program_id(0)]))
        return out

    x = values((2, 4, 4))
    refusal(Kernel(kernel)[2], x, rule=37)
    x[1] = x[0]  # equal bytes are no race
    np.testing.assert_array_equal(simulate(Kernel(kernel)[2])(x), x[0])
    x[1] += 1
    noted = simulate(Kernel(kernel)[2], rules={37: "warn"}).run(x)
    assert [note.rule for note in noted.traces[1].notes] == [37] and not noted.traces[0].notes
    assert not simulate(Kernel(kernel)[2], rules={37: "off"}).run(x).traces[1].notes


def test_a_core_reads_back_what_both_have_written():
    def kernel(x):
        out = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm)
        nisa.dma_copy(dst=out[0:2], src=on_chip(x[0:2]))
        nisa.dma_copy(dst=out[2:4], src=on_chip(out[0:2]))
        return out

    x = np.ones((4, 4), np.float32)
    np.testing.assert_array_equal(simulate(Kernel(kernel)[2])(x), x)


def test_a_barrier_orders_what_two_cores_do_to_the_same_rows():
    def kernel(x):
        core = nl.program_id(0)
        out = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm)
        nisa.dma_copy(dst=out[2 * core : 2 * core + 2], src=on_chip(x[2 * core : 2 * core + 2]))
        nisa.core_barrier(out, (0, 1))
        other = on_chip(out[2 - 2 * core : 4 - 2 * core])
        nisa.core_barrier(out, (0, 1))
        nisa.dma_copy(dst=out[2 * core : 2 * core + 2], src=other)
        return out

    x = values((4, 4))
    np.testing.assert_array_equal(simulate(Kernel(kernel)[2])(x), x[[2, 3, 0, 1]])


def test_a_read_of_the_other_cores_rows_without_a_barrier_is_refused():
    def kernel(x):
        core = nl.program_id(0)
        out = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm)
        if core == 0:
            nisa.dma_copy(dst=out, src=on_chip(x))
        else:
            on_chip(out)
        return out

    assert "core_barrier" in refusal(Kernel(kernel)[2], values((4, 4)), rule=37)


# --- threads and speed ----------------------------------------------------------------------------------


def test_simulations_run_in_threads():
    a, b = operands(512, np.float32)
    expected, found = a.T @ b, []
    threads = [threading.Thread(target=lambda: found.append(run(matmul, a, b))) for _ in range(4)]
    [t.start() for t in threads]
    [t.join() for t in threads]
    assert len(found) == 4 and all((f == expected).all() for f in found)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [np.float32, ml_dtypes.bfloat16])
@pytest.mark.parametrize(("n", "limit_s"), [(1024, 2.0), (2048, 10.0)])
def test_matmul_kernels_simulate_within_their_time(n, limit_s, dtype):
    a, b = operands(n, dtype)
    started = time.perf_counter()
    result = run(matmul, a, b)
    elapsed = time.perf_counter() - started
    np.testing.assert_array_equal(result, a.astype(np.float32).T @ b.astype(np.float32))
    assert elapsed < limit_s
