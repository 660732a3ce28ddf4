"""Tests of nki.language's new tensors, constants, loads and stores."""

import numpy as np
import pytest

from nkisim import language as nl
from nkisim.chip.dtypes import STORAGE
from tests.simulator.kernels import on_chip, refusal, run, to_hbm, values


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int32", "uint8"])
@pytest.mark.parametrize("buffer", [nl.sbuf, nl.psum, nl.private_hbm])
def test_filled_tensors(dtype, buffer):
    def kernel():
        three = nl.full((5, 6), 3, dtype, buffer)
        return tuple(to_hbm(t) for t in (nl.zeros((5, 6), dtype, buffer), nl.ones((5, 6), dtype, buffer), three))

    zeros, ones, threes = run(kernel)
    assert zeros.dtype == STORAGE[dtype] and not zeros.any()
    assert (ones == 1).all() and (threes == 3).all()


def test_a_large_hbm_tensor_is_filled_in_pieces():
    result = run(lambda: nl.full((300, 2, 3), 4.0, nl.float32, nl.shared_hbm))
    np.testing.assert_array_equal(result, np.full((300, 2, 3), 4))


def test_like_tensors_take_shape_and_dtype():
    def kernel(x):
        tile = on_chip(x)
        empty, zeros = nl.empty_like(tile, dtype=nl.bfloat16), nl.zeros_like(tile)
        assert (empty.shape, empty.dtype, empty.buffer) == ((3, 4), "bfloat16", nl.sbuf)
        return to_hbm(zeros)

    assert not run(kernel, values((3, 4))).any()


def test_constants_and_identities(tmp_path):
    table = np.arange(6, dtype=np.int16).reshape(2, 3)
    np.save(tmp_path / "table.npy", table)

    def kernel():
        first, second = nl.shared_constant(table), nl.shared_constant(str(tmp_path / "table.npy"))
        assert first.storage is second.storage and first.buffer == nl.shared_hbm
        return to_hbm(on_chip(first)), to_hbm(nl.shared_identity_matrix(5, nl.bfloat16))

    constant, identity = run(kernel)
    np.testing.assert_array_equal(constant, table)
    np.testing.assert_array_equal(identity.astype(np.float32), np.eye(5))


def test_load_store_and_their_transpose():
    def kernel(x):
        out, turned = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm), nl.load_transpose2d(x)
        nl.store(out, nl.copy(nl.load(x), nl.float32))
        return out, to_hbm(turned)

    x = values((5, 8))
    out, turned = run(kernel, x)
    np.testing.assert_array_equal(out, x)
    np.testing.assert_array_equal(turned, x.T)


@pytest.mark.parametrize(
    ("statement", "rule"),
    [
        (lambda: nl.ndarray((2, 2), "float64"), None),
        (lambda: nl.ndarray((2, 2), nl.float32, "sbuf"), 10),
        (lambda: nl.ndarray((2, 0), nl.float32), None),
        (lambda: nl.ndarray((2,) * 6, nl.float32), None),
        (lambda: nl.ndarray((2, 2.5), nl.float32), None),
        (lambda: nl.store(nl.zeros((2, 2), nl.float32), nl.zeros((2, 2), nl.float32)), None),
        (lambda: nl.store(nl.zeros((2, 2), "int8", nl.hbm), nl.zeros((2, 2), "int8", nl.psum)), 34),
        (lambda: nl.load(nl.zeros((2, 2), nl.float32)), None),
        (lambda: nl.shared_constant(np.eye(3)), None),
        (lambda: nl.shared_constant(3), None),
    ],
)
def test_bad_creation_is_refused(statement, rule):
    def kernel():
        statement()

    refusal(kernel, rule=rule)


def test_device_print_prints_values_at_once(capsys):
    def kernel(x):
        nl.device_print("tile", on_chip(x))

    run(kernel, np.full((2, 2), 7, np.int32))
    assert capsys.readouterr().out.startswith("tile [[7 7]")
