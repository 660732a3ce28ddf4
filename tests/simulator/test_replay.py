"""A recorded launch that runs again: the bits of a whole launch, and faults that depend on values."""

import ml_dtypes
import numpy as np
import pytest

from conformance.nki._ours import CASES
from nkisim import isa as nisa
from nkisim import language as nl
from nkisim.chip.errors import SimulatorError
from nkisim.run.launch import Kernel, Simulation
from nkisim.run.replay import places, record
from tests.simulator.kernels import on_chip, to_hbm, values
from trnpy._nki.simulated import kernel as own_kernel

BF16 = np.dtype(ml_dtypes.bfloat16)
ON_VALUES = {"mp2_energy", "probes.register_offsets", "probes.sums_of_loops"}  # kernels that load registers


def flat(outputs):
    return [outputs] if isinstance(outputs, np.ndarray) else [x for one in outputs or () for x in flat(one)]


def same(mine, expected):
    assert len(flat(mine)) == len(flat(expected)) > 0
    for x, y in zip(flat(mine), flat(expected), strict=True):
        assert (x.dtype, x.shape, x.tobytes()) == (y.dtype, y.shape, y.tobytes())


def operand(specification, seed):
    """Values for an operand of a kernel of trnpy: numbers, digits, or the first row for indices.

    Square matrices of numbers are symmetric: rotations of any others grow without bound.
    """
    if specification is None:
        return None
    dtype = BF16 if specification.dtype == "bfloat16" else np.dtype(specification.dtype)
    rng = np.random.default_rng(seed)
    if dtype.kind in "iu":
        return np.zeros(specification.shape, dtype)
    if dtype == BF16:
        return rng.integers(-100, 100, specification.shape).astype(dtype)
    x = rng.standard_normal(specification.shape).astype(dtype)
    return x + x.swapaxes(-1, -2) if x.ndim > 1 and x.shape[-1] == x.shape[-2] else x


@pytest.mark.parametrize("name", CASES)
def test_each_kernel_of_trnpy_gives_the_bits_of_a_whole_launch(name):
    case, simulation = CASES[name][0], Simulation(own_kernel(name))
    first, second = ([operand(x, 2 * i + k) for i, x in enumerate(case.operands)] for k in (0, 1))
    result, program = record(simulation, first, case.settings)
    same(result.outputs, simulation(*first, **case.settings))
    assert (program is None) == (name in ON_VALUES)
    if program is not None:
        for given in (second, first, second):
            before = [None if x is None else x.copy() for x in given]
            same(program.again(given), simulation(*given, **case.settings))
            for x, y in zip(given, before, strict=True):
                np.testing.assert_array_equal(x, y)


def recorded(kernel, *arrays, **parameters):
    return record(Simulation(Kernel(kernel)), arrays, parameters)[1]


def squares(x, y):
    tile = on_chip(x)
    nisa.tensor_tensor(dst=tile, data1=tile, data2=on_chip(y), op=nl.multiply)
    return to_hbm(tile), to_hbm(tile)


def test_outputs_are_the_callers_own():
    program = recorded(squares, values((4, 6)), values((4, 6)))
    first = program.again([values((4, 6), seed=1), values((4, 6), seed=2)])
    kept = [x.copy() for x in first]
    first[0][...] = 7
    program.again([values((4, 6), seed=3), values((4, 6), seed=4)])
    np.testing.assert_array_equal(first[1], kept[1])
    assert (first[0] == 7).all()


def test_an_array_that_is_given_twice_is_one_tensor():
    x, y = values((4, 6), seed=1), values((4, 6), seed=2)
    assert places([x, x, None, y]) == (0, 0, 2, 3) and places([x, x.copy()]) == (0, 1)
    assert places([x[:3], x[1:]]) is None and recorded(squares, x[:3], x[1:]) is None
    program = recorded(squares, x, x)
    np.testing.assert_array_equal(program.again([y, y])[0], y * y)


def roots(x):
    tile = on_chip(x)
    nisa.activation(dst=tile, op=nl.sqrt, data=tile)
    return to_hbm(tile)


def chosen(x, index):
    rows = nl.ndarray((2, x.shape[1]), x.dtype)
    nisa.dma_copy(dst=rows, src=x.ap([[x.shape[1], 2], [1, x.shape[1]]], vector_offset=on_chip(index)))
    return to_hbm(rows)


def masked(x, mask):
    tile = nl.ndarray(x.shape, x.dtype)
    nisa.tensor_copy_predicated(dst=tile, src=on_chip(x), predicate=on_chip(mask))
    nisa.tensor_copy_predicated(dst=tile, src=0.0, predicate=on_chip(mask), reverse_pred=True)
    return to_hbm(tile)


def half_masked(x, mask):
    tile = nl.ndarray(x.shape, x.dtype)
    nisa.tensor_copy_predicated(dst=tile, src=on_chip(x), predicate=on_chip(mask))
    return to_hbm(tile)


def largest(x):
    found = nl.ndarray((x.shape[0], 1), x.dtype)
    nisa.tensor_reduce(dst=found, op=nl.maximum, data=on_chip(x), axis=1)
    return to_hbm(found)


X, ONES = values((4, 6)), np.ones((4, 6), np.uint8)
INDEX = np.array([[1], [3]], np.int32)
FAULTS = {
    "the domain of an activation": (roots, (abs(X) + 1,), (abs(X) + 2,), (X - 1,)),
    "an index out of bounds": (chosen, (X, INDEX), (X, 3 - INDEX), (X, INDEX + 1)),
    "an element that no instruction initialises": (half_masked, (X, ONES), (X + 1, ONES), (X, ONES * 0)),
}


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_that_depends_on_values_is_left_to_a_whole_launch(name):
    kernel, first, sound, bad = FAULTS[name]
    program, simulation = recorded(kernel, *first), Simulation(Kernel(kernel))
    same(program.again(sound), simulation(*sound))
    assert program.again(bad) is None
    with pytest.raises(SimulatorError):
        simulation(*bad)
    same(program.again(sound), simulation(*sound))  # the fault leaves nothing behind


def test_complementary_masks_may_change():
    mask = np.tile([0, 1, 1], (4, 2)).astype(np.uint8)
    program, simulation = recorded(masked, X, mask), Simulation(Kernel(masked))
    for seed in range(3):
        mask = np.random.default_rng(seed).integers(0, 2, X.shape).astype(np.uint8)
        same(program.again([X + seed, mask]), simulation(X + seed, mask))


def test_a_note_is_left_to_a_whole_launch():
    program = recorded(largest, X)
    assert program.again([X + 1]) is not None
    assert program.again([np.where(X[0, 0] == X, np.nan, X)]) is None  # the order of NaN is not documented
    assert program.again([X + 1]) is not None


def counted(x, count):
    register = nisa.register_alloc()
    nisa.register_load(register, on_chip(count))
    tile = on_chip(x)
    nl.fori_loop(0, register, lambda i: nisa.tensor_scalar(dst=tile, data=tile, op0=nl.add, operand0=1.0) and None)
    return to_hbm(tile)


def random(x):
    tile = nl.ndarray(x.shape, nl.uint32)
    nisa.rng(dst=tile)
    return to_hbm(tile)


def written(x):
    tile = on_chip(x)
    nisa.tensor_scalar(dst=tile, data=tile, op0=nl.add, operand0=1.0)
    nisa.dma_copy(dst=x, src=tile)
    return to_hbm(tile)


def test_programs_that_depend_on_values_or_have_a_state_are_not_recorded():
    count = np.array([[2]], np.int32)
    assert recorded(counted, X, count) is None
    assert recorded(random, X) is None
    given = X.copy()
    result, program = record(Simulation(Kernel(written)), [given], {})
    assert program is None
    np.testing.assert_array_equal(given, X + 1)  # written once
    np.testing.assert_array_equal(result.outputs, X + 1)
    for simulation in (Simulation(Kernel(roots), mode="reorder"), Simulation(Kernel(roots), rules={16: "warn"})):
        assert record(simulation, [abs(X) + 1], {})[1] is None


def test_a_program_in_use_by_another_thread_is_left_to_a_whole_launch():
    program = recorded(roots, abs(X) + 1)
    with program._lock:
        assert program.again([abs(X) + 2]) is None
    assert program.again([abs(X) + 2]) is not None
