"""Powers of matrices on the device path: integer ones of any, fractional ones of positive-definite matrices."""

import numpy as np
import pytest
from doubles import RecordingEngine

import trnpy
from linalg.rows import forced, gaussian, of_positive_matrices, scipys_unless_positive
from trnpy._engine.engines import engine
from trnpy.linalg._matrix_power import enlarged, prepare_matrix_power, rounding


@pytest.mark.parametrize("dtype", ["f4", "f8", "c16"])
@pytest.mark.parametrize("n", [2, 3, 7, 64, 100])
def test_powers(n, dtype):
    a = (gaussian((30, 30), dtype) / 8).astype(dtype)
    x, theirs = forced("numpy.linalg.matrix_power", a, n), np.linalg.matrix_power(a, n)
    assert x.dtype == dtype
    assert np.linalg.norm(x - theirs) <= 1e3 * n * float(np.finfo(dtype).eps) * np.linalg.norm(theirs)


def test_engines_get_matrices_in_the_machines_byte_order(monkeypatch):
    a, given, product = gaussian((30, 30), "f8"), [], RecordingEngine.matmul
    monkeypatch.setattr(RecordingEngine, "matmul", lambda e, x, *rest: given.append(x) or product(e, x, *rest))
    x = prepare_matrix_power(a.astype(">f8"), 2).run(RecordingEngine())
    assert given and all(y.dtype.isnative for y in given)
    np.testing.assert_array_equal(x, prepare_matrix_power(a, 2).run(RecordingEngine()))


@pytest.mark.parametrize("n, expected", [(1, 0.0), (2, 4.0), (3, 14.0), (4, 37.0), (5, 88.0)])
def test_rounding_errors_of_products_add_up(n, expected):
    """Worked by hand for A^2 = A A, A^3 = A A^2, A^4 = A^2 A^2 and A^5 = A A^4, with norms 2, 3, 5, 7 and 9."""
    assert rounding(n, [1.0, 2.0, 3.0, 5.0, 7.0, 9.0], 0.25) == expected


def cancelling(order, part):
    """A matrix of rank one whose square is ``part`` times as large as its norm's."""
    u, w = np.random.default_rng(order).standard_normal((2, order))
    return np.outer(u, w - u * (w @ u) / (u @ u) * (1 - part))


@pytest.mark.parametrize("part", [1e-3, 1e-8, 1e-14])
@pytest.mark.parametrize("n", [2, 5, 9])
def test_powers_that_cancel_are_no_fault(n, part):
    device = RecordingEngine()
    with engine(device), trnpy.policy(force=True, fallback="raise"):
        for order in (7, 16, 60):
            trnpy.linalg.matrix_power(cancelling(order, part), n)
    assert not device.health.causes


@pytest.mark.parametrize("part", [1e-3, 1e-8, 1e-14])
def test_probes_that_are_small_by_chance_are_no_fault(part):
    """Of rank one, one in 100 pairs of probes was so small that an error of rounding seemed large."""
    a = cancelling(16, part)
    problem, x = prepare_matrix_power(a, 2), a @ a
    assert max(problem.error(x) for _ in range(1000)) <= 10 * len(a) * np.finfo(float).eps


@pytest.mark.parametrize("size", [1e-62, 3.3e-63, 1e-64, 1e-100])
@pytest.mark.parametrize("order", [1, 7, 33])
def test_powers_that_underflow_are_no_fault(order, size):
    device = RecordingEngine()
    with engine(device), trnpy.policy(force=True, fallback="raise"):
        trnpy.linalg.matrix_power(gaussian((order, order), "f8") * size, 5)
    assert not device.health.causes


BETWEEN = {
    "underflow": [[-1e-139, 1e-78, 3e-117], [-2e-250, -3e-125, 4e-172], [-2e25, -1e92, 2e-105]],
    "overflow": [[1e4, 1e-82, 8e68], [1e-297, -1e-50, 5e-178], [-2e-61, -4e-219, 8e-239]],
}


@pytest.mark.parametrize("name", BETWEEN)
def test_powers_are_numpys_where_others_on_the_way_to_them_over_or_underflow(name):
    """The check multiplies by A one factor at a time, and lost what squares keep."""
    a, device = np.array(BETWEEN[name]), RecordingEngine()
    theirs = np.linalg.matrix_power(a, 8)
    with engine(device), trnpy.policy(force=True), trnpy.trace() as log:
        np.testing.assert_array_equal(trnpy.linalg.matrix_power(a, 8), theirs, strict=True)
    assert np.isfinite(theirs).all() and theirs.any() and not device.health.causes
    assert not log[0].on_device and "on the way" in log[0].detail


def test_the_check_of_a_power_sees_an_error_of_1e_9():
    a = gaussian((60, 60), "f8") / 8
    problem, x = prepare_matrix_power(a, 5), np.linalg.matrix_power(a, 5)
    allowed = 10 * len(a) * np.finfo(float).eps
    assert problem.error(x) <= allowed < problem.error(x * (1 + 1e-9))


@pytest.mark.parametrize("n", [0, 1, -1, 1000])
def test_powers_without_products_are_numpys(n):
    a = np.diag([0.5, 1.0, 0.25])
    with np.errstate(all="ignore"):
        ours = forced("numpy.linalg.matrix_power", a, n, runs=False)
        np.testing.assert_array_equal(ours, np.linalg.matrix_power(a, n))


@pytest.mark.parametrize("condition", [1e1, 1e4, 1e8])
@pytest.mark.parametrize("dtype", ["f8", "c16"])
@pytest.mark.parametrize("t, back", [(0.25, lambda x: x @ x @ x @ x), (-0.5, lambda x: np.linalg.inv(x @ x))])
def test_fractional_powers_of_positive_matrices(t, back, dtype, condition):
    of_positive_matrices("fractional_matrix_power", back, dtype, condition, t)


def test_fractional_powers_of_what_is_not_positive_definite_beyond_doubt_are_scipys():
    scipys_unless_positive("fractional_matrix_power", 0.3)


def test_an_error_grows_by_the_two_powers_beside_it():
    sizes = [1.0, 2.0, 8.0, 5.0, 40.0]
    for n in range(1, 5):
        pairs = [sizes[i] * sizes[j] for i in range(n) for j in range(n - i)]
        assert enlarged(n, sizes) == max(pairs)
