"""Abstract arrays: the shapes, dtypes, layouts and views of arrays, and an error where a value is asked for."""

import numpy as np
import pytest

import trnpy._engine.abstract_functions  # noqa: F401  # registers NumPy's functions
from trnpy._engine.abstract_arrays import Count, Unknown, new, usual

RNG = np.random.default_rng(0)


@pytest.fixture(autouse=True)
def seeded():
    RNG.bit_generator.state = np.random.default_rng(0).bit_generator.state


def test_a_value_of_a_stand_in_is_an_error():
    x = new((3, 3), np.float64, Count())
    asked = bool, float, int, np.asarray, np.linalg.det, lambda x: x[x > 0], lambda x: np.zeros(3).__setitem__(0, x)
    for ask in asked:
        with pytest.raises((Unknown, ValueError)):
            ask(x)
    assert usual(x.max() > 1, True) is True and usual(2.0, 1.0) == 2.0


def test_stand_ins_are_what_arrays_are():
    """Shapes, dtypes and layouts of what NumPy makes of both."""
    rng = np.random.default_rng(0)
    real, complex_ = rng.standard_normal((4, 5)), rng.standard_normal((2, 4, 5)) * 1j
    for a in (real, complex_, np.asfortranarray(real), real.astype("f")):
        x = new(a.shape, a.dtype, Count(), "F" if a.flags.f_contiguous else "C")
        for make in (
            lambda y: y.T, lambda y: y.conj(), lambda y: np.abs(y) + 1, lambda y: y @ y.mT, lambda y: y[..., 1:, ::2],
            lambda y: y.sum(axis=-1), lambda y: y.max(), lambda y: np.where(np.abs(y) > 0, y, 0), lambda y: y.real,
            lambda y: np.tril(y), lambda y: y[..., None, :, 0], lambda y: y.astype("F"), lambda y: y.reshape(-1, 5).T,
            lambda y: np.concatenate([y, y], axis=-1), lambda y: np.stack([y, y]), lambda y: y.copy(), lambda y: 2 / y,
            lambda y: np.linalg.norm(y, axis=0), lambda y: np.sqrt(np.abs(y)), lambda y: y.swapaxes(-1, -2),
            lambda y: np.zeros_like(y, "f", shape=(3,)), lambda y: y[..., [0, 2], :], lambda y: y == y.conj(),
            lambda y: np.argsort(np.abs(y)), lambda y: np.eye(3, 4, like=y), lambda y: np.frexp(np.abs(y))[1],
            lambda y: np.diff(np.abs(y)), lambda y: np.ldexp(y.real, np.frexp(y.real)[1]),
            lambda y: np.moveaxis(y, 0, 1),
        ):  # fmt: skip
            expected, found = make(a), make(x)
            assert (found.shape, found.dtype) == (expected.shape, expected.dtype)
        for make in (lambda y: y.T, np.abs, lambda y: y.astype("F"), lambda y: y.copy(), lambda y: y[..., 1:]):
            assert make(x).flags.c_contiguous == make(a).flags.c_contiguous


@pytest.mark.parametrize("dtype", ["f8", "c16"])
def test_stand_ins_are_reshaped_without_a_copy_where_arrays_are(dtype):
    a = new((4, 6), dtype, Count())
    for whole in (a, a[:2], a.T):
        for shape in ((-1,), (2, -1), (whole.shape[0], 2, whole.shape[1] // 2)):
            actual = np.zeros((4, 6), dtype).T if whole.shape == (6, 4) else np.zeros(whole.shape, dtype)
            reshaped = whole.reshape(*shape)
            assert reshaped.shape == actual.reshape(shape).shape
            assert np.shares_memory(reshaped.memory, whole.memory) == np.shares_memory(actual.reshape(shape), actual)


@pytest.mark.parametrize("order", ["C", "F", "K"])
@pytest.mark.parametrize("n", [16, 1000])  # with and without memory
def test_stand_ins_have_the_layout_of_arrays(n, order):
    """Shapes, strides in elements, contiguity and overlaps of views, of copies and of results of ufuncs."""
    count = Count()
    real, actual = new((n, 2, n), np.dtype("f8"), count), np.empty((n, 2, n), "i1")
    for path in (
        lambda x: x[:, 0].T, lambda x: x[1:, :, ::-1], lambda x: x.swapaxes(0, 2).copy(order), lambda x: x.T + x.T,
        lambda x: x.transpose(1, 2, 0).astype(x.dtype, order=order), lambda x: x[3, 1, 4], lambda x: x[..., 2, None],
    ):  # fmt: skip
        mine, theirs = path(real), path(actual)
        assert mine.shape == theirs.shape and mine.strides == np.asarray(theirs).strides
        assert mine.flags.c_contiguous == np.asarray(theirs).flags.c_contiguous
    assert np.shares_memory(real[1:].memory, real[:2].memory) and not np.shares_memory(real.memory, real.copy().memory)
    assert real[0].memory.ctypes.data + 2 * n == real[1].memory.ctypes.data


def test_joined_shapes_are_tuples():
    x, y = (new((2, n), np.float64, Count()) for n in (3, 4))
    joined, stacked = np.concatenate([x, y], axis=1), np.stack([x, x], axis=-1)
    assert (joined.shape, stacked.shape) == ((2, 7), (2, 3, 2)) and hash(joined.shape) and hash(stacked.shape)


def test_a_view_has_few_elements_only_if_it_begins_on_the_diagonal():
    x = np.eye(6, like=new((6, 6), "f8", Count()))
    assert x.few and [x[i:, j:].few for i, j in ((2, 2), (2, 1), (0, 3))] == [True, False, False]
