"""Linear systems on the device path: small residuals, SciPy's errors and warnings."""

import numpy as np
import pytest
import scipy.linalg
from doubles import RecordingEngine

import trnpy.linalg
from linalg.matrices import positive
from linalg.rows import CONDITIONS, DTYPES, both, eps, forced, general, no_worse, residual
from trnpy._call.dispatch import Reason
from trnpy._engine.engines import engine
from trnpy.linalg import _solve


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("n", [2, 127, 128, 129, 300])
@pytest.mark.parametrize("assume_a", [None, "gen", "pos", "sym", "her"])
def test_solve_has_a_small_residual(n, dtype, assume_a):
    rng = np.random.default_rng(n)
    a = (
        positive(n, dtype, 1e2).astype(dtype)
        if assume_a in ("pos", "her")
        else rng.standard_normal((n, n)).astype(dtype)
    )
    if assume_a == "sym":
        a = a + a.T
    b = rng.standard_normal((n, 3)).astype(dtype)
    if assume_a is None and n == 2:
        return  # two by two is tridiagonal: the host's
    x = forced("solve", a, b, assume_a=assume_a)
    theirs = scipy.linalg.solve(a, b, assume_a=assume_a)
    assert (x.dtype, x.shape) == (theirs.dtype, theirs.shape)

    def error(x):
        return np.linalg.norm(a @ x - b) / (np.linalg.norm(a) * np.linalg.norm(x) + np.linalg.norm(b))

    assert error(x) <= max(3 * error(theirs), 10 * eps(dtype))


def test_solve_reads_one_triangle_when_told_so():
    a = positive(150, "f8", 1e2)
    b = np.ones(150)
    for lower in (True, False):
        half = (np.tril(a) if lower else np.triu(a)) + 0.0
        for kind in ("sym", "her", "pos"):
            x = forced("solve", half, b, assume_a=kind, lower=lower)
            np.testing.assert_allclose(x, scipy.linalg.solve(half, b, assume_a=kind, lower=lower), rtol=1e-11)


@pytest.mark.parametrize("shape", [(150,), (150, 1), (150, 150)])
def test_solve_keeps_the_shape_of_b(shape):
    a = np.random.default_rng(0).standard_normal((150, 150))
    assert forced("solve", a, np.ones(shape), assume_a="gen").shape == shape


def test_singular_and_ill_conditioned_are_scipys():
    rng = np.random.default_rng(0)
    a = rng.standard_normal((150, 150))
    a[:, 3] = 0
    with pytest.raises(scipy.linalg.LinAlgError, match="singular"), trnpy.policy(force=True):
        trnpy.linalg.solve(a, np.ones(150), assume_a="gen")
    a[:, 3] = a[:, 4] * (1 + 1e-16) + 1e-18
    with pytest.warns(scipy.linalg.LinAlgWarning, match="[Ii]ll-conditioned"), trnpy.policy(force=True):
        trnpy.linalg.solve(a, np.ones(150), assume_a="gen")


@pytest.mark.parametrize(
    "structured", [np.diag(np.arange(1.0, 100)), np.tri(99) + np.eye(99), np.eye(99) + np.eye(99, k=1)]
)
def test_structured_matrices_are_the_hosts(structured):
    with engine(RecordingEngine()), trnpy.policy(force=True), trnpy.trace() as log:
        trnpy.linalg.solve(structured, np.ones(99))
    assert log[0].reason is Reason.LAYOUT and "bandwidths" in log[0].detail


@pytest.mark.parametrize("assume_a", ["diagonal", "tridiagonal", "banded"])
def test_what_the_host_solves_in_linear_time_is_its_own(assume_a):
    a = np.diag(np.arange(1.0, 100))
    with engine(RecordingEngine()), trnpy.policy(force=True), trnpy.trace() as log:
        trnpy.linalg.solve(a, np.ones(99), assume_a=assume_a)
    assert log[0].reason is Reason.PARAM and "O(n)" in log[0].detail


@pytest.mark.filterwarnings("ignore::scipy.linalg.LinAlgWarning")  # SciPy's, where trnpy leaves the call to it
@pytest.mark.parametrize("dtype, condition", CONDITIONS)
@pytest.mark.parametrize("n", [127, 128, 129, 261])
def test_backward_errors_are_lapacks(n, dtype, condition):
    a, b = general(n, n, dtype, condition), general(n, 3, dtype, 1.0)
    pair = both("scipy", "solve", a, b, assume_a="gen", runs=True if condition < 1e10 else None)
    no_worse(residual(a, b), pair, dtype)


@pytest.mark.parametrize("structure", ["positive", "hermitian", "symmetric", "lower", "upper", "general"])
@pytest.mark.parametrize("lower", [False, True])
@pytest.mark.parametrize("stack", [(), (2,)])
def test_a_structure_is_completed_from_the_triangle_that_is_read(structure, lower, stack):
    a = np.random.default_rng(0).standard_normal((2, *stack, 4, 4))
    a = a[0] + 1j * a[1]
    found, half = _solve.whole(a, structure, lower, a.dtype), (np.tril if lower else np.triu)
    if structure in ("lower", "upper", "general"):
        np.testing.assert_array_equal(found, {"lower": np.tril, "upper": np.triu, "general": np.copy}[structure](a))
        return
    turned = found.swapaxes(-1, -2)
    np.testing.assert_array_equal(found, turned if structure == "symmetric" else turned.conj())
    strict = half(a, -1 if lower else 1)
    np.testing.assert_array_equal(half(found, -1 if lower else 1), strict)
    np.testing.assert_array_equal(found.diagonal(axis1=-2, axis2=-1).real, a.diagonal(axis1=-2, axis2=-1).real)


def test_systems_in_other_byte_order():
    a, b = general(40, 40, "f8", 10.0), general(40, 3, "f8", 10.0)
    ours, theirs = both("scipy", "solve", a.astype(">f8"), b.astype(">f8"))
    np.testing.assert_array_equal(ours, both("scipy", "solve", a, b)[0])
    np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e3 * eps("f8") * np.abs(theirs).max())
