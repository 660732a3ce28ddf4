"""Tests of control flow on the device: loops recorded once, registers without a value in Python."""

import numpy as np
import pytest

from nkisim import isa as nisa
from nkisim import language as nl
from nkisim.run.launch import simulate
from nkisim.run.loader import load
from tests.simulator.kernels import KERNELS, on_chip, refusal, run, to_hbm, values

gather = load(KERNELS / "gather.py")


@pytest.mark.parametrize("count", [0, 1, 5, 9])
def test_a_loop_with_a_bound_read_on_the_device(count):
    row = values((1, 9))
    expected = np.where(np.arange(9) < count, 2 * row, 0)
    np.testing.assert_array_equal(run(gather.doubled_columns, row, np.array([[count]], np.int32)), expected)


def test_a_while_loop_ends_when_its_register_is_zero():
    def kernel(x, count):
        step, left = on_chip(x), on_chip(count)
        total, one = nl.zeros((1, 1), nl.float32), nl.ones((1, 1), nl.int32)
        register = nisa.register_alloc()
        nisa.register_load(register, left)

        def body(r):
            nisa.tensor_tensor(dst=total, data1=total, data2=step, op=nl.add)
            nisa.tensor_tensor(dst=left, data1=left, data2=one, op=nl.subtract)
            nisa.register_load(r, left)
            return r

        nl.while_loop(register, body)
        return to_hbm(total)

    for count in (0, 1, 7):
        result = run(kernel, np.array([[1.5]], np.float32), np.array([[count]], np.int32))
        assert result == 1.5 * count


def test_memory_that_each_turn_makes_is_stored_to_in_each_turn():
    def kernel(x):
        tile = on_chip(x)

        def body(i):
            scratch = nl.ndarray(x.shape, x.dtype, buffer=nl.private_hbm)
            nisa.dma_copy(dst=scratch, src=tile)
            nisa.dma_copy(dst=tile, src=scratch)

        nl.fori_loop(0, 3, body)
        return to_hbm(tile)

    np.testing.assert_array_equal(run(kernel, values((4, 8))), values((4, 8)))


def nested(x):
    """Two nested device loops that add 1 to the first 2 x 3 elements of a row."""
    total = on_chip(x)
    one = nl.ones((1, 1), nl.float32)

    def outer(i):
        def inner(j):
            nisa.tensor_tensor(dst=total, data1=total, data2=one, op=nl.add)

        nisa.tensor_tensor(dst=total, data1=total, data2=one, op=nl.add)
        nl.fori_loop(0, 3, inner)

    nl.fori_loop(0, 2, outer)
    return to_hbm(total)


@pytest.mark.parametrize("mode", ["run", "trace"])
def test_loop_bodies_are_recorded_once_with_their_executions(mode):
    result = simulate(nested, mode=mode).run(np.zeros((1, 1), np.float32))
    if mode == "run":
        assert result.outputs == 8
    outer, inner = result.trace.loops
    assert (outer.executions, outer.stop - outer.first) == (2, 2)
    assert (inner.executions, inner.stop - inner.first) == (6, 1)
    assert outer.first < inner.first and inner.stop == outer.stop


def test_a_loop_that_appears_in_later_iterations_only_is_refused():
    def kernel():
        seen = []

        def outer(i):
            if seen:
                nl.fori_loop(0, 2, lambda j: None)
            seen.append(i)

        nl.fori_loop(0, 2, outer)

    refusal(kernel, rule=7)


def test_a_trace_runs_a_body_once():
    calls = []
    simulate(lambda: nl.fori_loop(0, 1000, calls.append), mode="trace").run()
    assert len(calls) == 1


def test_a_bound_known_on_the_device_only_has_no_count_in_a_trace():
    trace = simulate(gather.doubled_columns, mode="trace").run(values((1, 9)), np.array([[5]], np.int32)).trace
    assert [loop.executions for loop in trace.loops] == [None]
    executed = simulate(gather.doubled_columns).run(values((1, 9)), np.array([[5]], np.int32)).trace
    assert [loop.executions for loop in executed.loops] == [5]
    assert executed.instructions == trace.instructions


def test_tensors_of_a_loop_are_invisible_outside():
    def kernel():
        kept = []

        def body(i):
            kept.append(nl.zeros((4, 4), nl.float32))

        nl.fori_loop(0, 2, body)
        to_hbm(kept[0])

    refusal(kernel, rule=7)


def test_tensors_touched_in_a_loop_are_live_in_all_of_it():
    def kernel(x):
        early = on_chip(x)

        def body(i):
            nisa.tensor_copy(dst=nl.ndarray((4, 4), nl.float32), src=early)
            nisa.memset(dst=nl.ndarray((4, 4), nl.float32), value=0.0)

        nl.fori_loop(0, 2, body)

    trace = simulate(kernel).run(values((4, 4))).trace
    assert sorted((a.first, a.last) for a in trace.allocations if a.buffer == "sbuf") == [(0, 2), (1, 2), (1, 2)]


@pytest.mark.parametrize(
    "use",
    [
        lambda r: int(r), lambda r: bool(r), lambda r: range(r), lambda r: r + 1, lambda r: 2 * r, lambda r: r < 3,
        lambda r: [1, 2][r], lambda r: nl.affine_range(r), lambda r: r == 3, lambda r: float(r),
    ],
)  # fmt: skip
def test_a_register_has_no_value_in_python(use):
    def kernel():
        def body(i):
            use(i)

        nl.fori_loop(0, 2, body)

    refusal(kernel, rule=6)


@pytest.mark.parametrize(
    ("statement", "rule"),
    [
        (lambda: nl.fori_loop(0, 2, lambda i: nisa.register_move(i, 3)), 7),
        (lambda: nl.fori_loop(0, 2, print, step=0), 6),
        (lambda: nl.fori_loop(0, 2, print, step=nisa.register_alloc(1)), 6),
        (lambda: nl.fori_loop(0.0, 2, print), 6),
        (lambda: nl.fori_loop(0, nisa.register_alloc(), print), 16),
        (lambda: nl.while_loop(nisa.register_alloc(1), lambda r: None), 7),
        (lambda: nl.while_loop(3, lambda r: r), 6),
        (lambda: nisa.register_load(nisa.register_alloc(), nl.zeros((2, 1), nl.int32)), None),
        (lambda: nisa.register_load(nisa.register_alloc(), nl.ndarray((1, 1), nl.int32)), 16),
        (lambda: nisa.register_alloc(1.5), None),
    ],
)
def test_bad_loops_and_registers_are_refused(statement, rule):
    def kernel():
        statement()

    refusal(kernel, rule=rule)


def test_no_reorder_holds_no_device_loops():
    def kernel():
        with nl.no_reorder():
            nl.fori_loop(0, 2, lambda i: None)

    refusal(kernel, rule=7)


@pytest.mark.parametrize("value", [7, -(2**24) - 1, 2**31 - 1])
def test_registers_move_and_store(value):
    def kernel():
        a, b = nisa.register_alloc(value), nisa.register_alloc()
        nisa.register_move(b, a)
        tile = nl.ndarray((1, 1), nl.int32)
        nisa.register_store(tile, b)
        return to_hbm(tile)

    assert run(kernel) == value


def test_a_register_selects_slices_of_a_tile_on_chip():
    def kernel(x):
        tile, out = on_chip(x), nl.ndarray((4, 6), nl.float32, buffer=nl.shared_hbm)
        part = nl.ndarray((4, 2), nl.float32)

        def body(i):
            nisa.tensor_copy(dst=part, src=tile[:, nl.ds(i, 2)])
            nisa.dma_copy(dst=out[:, nl.ds(i, 2)], src=part)

        nl.fori_loop(0, 6, body, step=2)
        return out

    x = values((4, 6))
    np.testing.assert_array_equal(run(kernel, x), x)


def test_a_register_indexes_any_free_dimension():
    def kernel(x):
        register = nisa.register_alloc(2)
        first, second = nl.ndarray((4, 5), nl.float32), nl.ndarray((4, 2, 5), nl.float32)
        nisa.tensor_copy(dst=first, src=on_chip(x)[:, register, :])
        nisa.tensor_copy(dst=second, src=on_chip(x)[:, nl.ds(register, 2)])
        return to_hbm(first), to_hbm(second)

    x = values((4, 6, 5))
    first, second = run(kernel, x)
    np.testing.assert_array_equal(first, x[:, 2])
    np.testing.assert_array_equal(second, x[:, 2:4])
    refusal(partition_by_register, rule=12)


def partition_by_register():
    nl.zeros((4, 6), nl.float32)[nl.ds(nisa.register_alloc(1), 2)]


def test_the_deprecated_dynamic_range_works_and_is_noted():
    def kernel(x):
        out, part = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm), nl.ndarray((2, 3), nl.float32)
        for i in nl.dynamic_range(0, 8, 2):
            nisa.dma_copy(dst=part, src=x.ap([[3, 2], [1, 3]], scalar_offset=i))
            nisa.dma_copy(dst=out.ap([[3, 2], [1, 3]], scalar_offset=i), src=part)
        return out

    x = values((8, 3))
    result = simulate(kernel).run(x)
    np.testing.assert_array_equal(result.outputs, x)
    assert [n.rule for n in result.trace.notes] == [6] and len(result.trace.loops) == 1
