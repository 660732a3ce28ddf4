"""polynomial_sign.py, orthonormal_polar.py, projected_matrix.py and their twins: edges, measures, lint, model."""

import numpy as np
import pytest

from nkisim.lint.linter import errors, lint_file, lint_launch
from nkisim.price.cost import price
from nkisim.run.launch import Specification, run
from nkisim.run.loader import load_kernel
from tests._nki.kernels.budget import kept
from trnpy._engine import iterations
from trnpy._nki.kernels import source
from trnpy._nki.kernels.spectra import (
    orthonormal_polar_reference,
    polynomial_sign_reference,
    projected_matrix_reference,
)
from trnpy.linalg._polynomials import POLISH, sign_coefficients

SIGN = load_kernel(source("polynomial_sign"), "polynomial_sign")
POLAR = load_kernel(source("orthonormal_polar"), "orthonormal_polar")
PROJECTED = load_kernel(source("projected_matrix"), "projected_matrix")
EPS = 2.0**-23


def symmetric(n, seed=0):
    """Norm 1/2, half the eigenvalues above zero, none below 2^-8 in magnitude."""
    rng = np.random.default_rng([seed, n])
    w = rng.uniform(2.0**-8, 0.5, n) * np.where(np.arange(n) < -(-n // 2), 1, -1)
    q = np.linalg.qr(rng.standard_normal((n, n)))[0]
    a = (q * w) @ q.T
    return ((a + a.T) / 2).astype("f4"), (q * np.sign(w)) @ q.T


def block(n, columns, seed=0):
    rng = np.random.default_rng([seed, n, columns])
    return (rng.standard_normal((n, columns)) / (2 * np.sqrt(columns) + 6)).astype("f4")


@pytest.mark.parametrize("n", [1, 31, 128, 160, 257])
def test_the_sign_is_its_twins_and_is_measured(n):
    a, exact = symmetric(n)
    sign, sums = run(SIGN, (a, sign_coefficients(10))).outputs
    twin, measured = polynomial_sign_reference.polynomial_sign(a, sign_coefficients(10))
    # Rounding of early steps grows by the slope of the polynomials at zero, 2^8 and a factor for their number.
    assert np.abs(sign - exact).max() <= 2**10 * EPS
    assert np.abs(sign - twin).max() <= 2**10 * EPS
    trace, squares = sums.sum(axis=0, dtype="f8")
    assert abs(trace - sign.trace(dtype="f8")) <= 1e-5 * n
    assert abs(squares - n) <= 1e-4 * n
    assert measured.dtype == sums.dtype and np.abs(measured[0] - (trace, squares)).max() <= 1e-4 * n


def test_a_step_is_three_products_exactly_in_their_order():
    """One step of small integers is exact whatever the order of sums."""
    x = np.random.default_rng(1).integers(-2, 3, (40, 40)).astype("f4")
    x = np.tril(x) + np.tril(x, -1).T
    coefficients = np.array([[2, -1, 0], [1, 0, 0]], "f4")
    sign, _ = run(SIGN, (x, coefficients)).outputs
    np.testing.assert_array_equal(sign, 2 * x - x @ x @ x)


@pytest.mark.parametrize("steps", [1, 2, 3, 4])
def test_any_number_of_steps_of_a_block_of_columns(steps):
    x, coefficients = block(150, 70), sign_coefficients(6)[:steps]
    found, sums = run(SIGN, (x, coefficients)).outputs
    twin, none = polynomial_sign_reference.polynomial_sign(x, coefficients)
    assert np.abs(found - twin).max() <= 2**10 * EPS and not sums.any() and not none.any()


@pytest.mark.parametrize("n, r", [(33, 33), (300, 140)])
def test_a_matrix_in_a_basis(n, r):
    a, _ = symmetric(n)
    q = block(n, r)
    inside, sums = run(PROJECTED, (a, q)).outputs
    twin, measured = projected_matrix_reference.projected_matrix(a, q)
    np.testing.assert_allclose(inside, twin, rtol=0, atol=2 * n * EPS)
    np.testing.assert_allclose(sums.sum(axis=0), measured[0], rtol=1e-5)


@pytest.mark.parametrize("complement", [False, True])
@pytest.mark.parametrize("n, padding", [(33, 0), (128, 3), (300, 20)])
def test_a_basis_of_an_invariant_subspace(n, padding, complement):
    """Columns of zeros stay zeros, and each counts one."""
    a, exact = symmetric(n)
    rank = n // 2 if complement else -(-n // 2)
    operator = exact.astype("f4")
    if complement:
        w, v = np.linalg.eigh(exact)
        operator = np.ascontiguousarray(v[:, w > 0], "f4")
    omega = np.pad(block(n, rank), ((0, 0), (0, padding)))
    q, inside, sums = run(
        POLAR, (a, operator, omega, sign_coefficients(16), POLISH), {"complement": complement}
    ).outputs
    assert not q[:, rank:].any()
    q = q[:, :rank].astype("f8")
    assert np.linalg.norm(q.T @ q - np.eye(rank)) <= 1e-5 * np.sqrt(n)
    projector = (np.eye(n) + (-1 if complement else 1) * exact) / 2
    assert np.linalg.norm(q - projector @ q) <= 1e-5 * np.sqrt(n)
    assert np.abs(inside[:rank, :rank] - q.T @ a @ q).max() <= 1e-5
    assert abs(sums[:, 1].sum(dtype="f8") - padding) <= 1e-5 * max(padding, 1)


@pytest.mark.parametrize("complement", [False, True])
def test_the_basis_is_its_twins_where_the_block_is_well_conditioned(complement):
    a, exact = symmetric(150)
    w, v = np.linalg.eigh(exact)
    mine = v[:, (w > 0) != complement]
    operator = (v[:, w > 0] if complement else exact).astype("f4")
    omega = (mine @ np.linalg.qr(np.random.default_rng(2).standard_normal((75, 75)))[0] * 0.9).astype("f4")
    q, _, _ = run(POLAR, (a, operator, omega, sign_coefficients(6), POLISH), {"complement": complement}).outputs
    twin, _, _ = orthonormal_polar_reference.orthonormal_polar(
        a, operator, omega, sign_coefficients(6), POLISH, complement=complement
    )
    assert np.abs(q - twin).max() <= 200 * EPS


@pytest.mark.parametrize("seed", range(2))
def test_any_legal_order_gives_the_same(seed):
    a, _ = symmetric(160)
    coefficients = sign_coefficients(3)[:2]
    straight, other = (run(SIGN, (a, coefficients), mode=m, seed=seed).outputs for m in ("run", "reorder"))
    np.testing.assert_array_equal(other[0], straight[0])
    np.testing.assert_array_equal(other[1], straight[1])
    operands = (a, straight[0], block(160, 50), coefficients, POLISH)
    for complement in (False, True):
        outputs = [
            run(POLAR, operands, {"complement": complement}, mode=m, seed=seed).outputs for m in ("run", "reorder")
        ]
        for mine, theirs in zip(*outputs, strict=True):
            np.testing.assert_array_equal(mine, theirs)


@pytest.mark.parametrize("target", ["trn1", "trn2", "trn3"])
def test_lint_finds_no_error(target):
    a, exact = symmetric(160)
    sign_args = (a, sign_coefficients(3))
    polar_args = (a, exact.astype("f4"), block(160, 96), sign_coefficients(3), POLISH)
    assert not errors(
        (
            *lint_launch(SIGN, sign_args, {}, target=target),
            *lint_launch(POLAR, polar_args, {}, target=target),
            *lint_launch(POLAR, polar_args, {"complement": True}, target=target),
            *lint_launch(PROJECTED, polar_args[:3:2], {}, target=target),
            *(
                x
                for name in ("polynomial_sign", "orthonormal_polar", "projected_matrix")
                for x in lint_file(source(name))
            ),
        )
    )


def of_sign(n, columns=None, steps=None):
    """A launch of as many steps as the engine gives one."""
    columns = columns or n
    each = max(int(iterations.PROGRAM // (3 * iterations.TILE_STEPS * n * columns**2)), 1)
    return SIGN, (Specification((n, columns)), Specification((steps or min(each, 12), 3))), {}


def of_basis(n, r, complement):
    operator = Specification((n, r if complement else n))
    operands = Specification((n, n)), operator, Specification((n, r)), Specification((10, 3)), Specification((2, 3))
    return POLAR, operands, {"complement": complement}


@pytest.mark.parametrize(
    "kernel, operands, settings",
    [*(of_sign(n) for n in (512, 1300, 2048, 4096, 8192)), of_sign(4096, 2048), of_sign(8192, 4096),
     (PROJECTED, (Specification((8192, 8192)), Specification((8192, 4096))), {}),
     *(of_basis(*s) for s in ((320, 192, False), (1300, 700, True), (1500, 600, False), (1500, 600, True)))],
)  # fmt: skip
def test_programs_are_short_and_have_no_loop_below_4096(kernel, operands, settings):
    trace = run(kernel, operands, settings, mode="trace").trace
    assert kept(trace) and bool(trace.loops) == (operands[0].shape[0] > 4096)


@pytest.mark.parametrize(
    "kernel, operands, settings, share",
    [(*of_sign(1024), 0.59), (*of_sign(2048), 0.76), (*of_basis(1500, 600, False), 0.50)],
)
def test_modelled_utilisation_on_trn2(kernel, operands, settings, share):
    cost = price(run(kernel, operands, settings, mode="trace").trace)
    busy = 100 * cost.tensor_utilisation
    print(f"{kernel.__name__} {operands[0].shape}, modelled: {cost.device_s * 1e6:.0f} us, {busy:.0f} % of PE")
    assert cost.tensor_utilisation >= share


def test_what_they_refuse():
    a, _ = symmetric(8)
    fine = sign_coefficients(3)
    for x, coefficients in (
        (a[:3], fine),
        (a.astype("f8"), fine),
        (a, fine.astype("f8")),
        (a, fine[:0]),
    ):
        with pytest.raises(ValueError, match="expected"):
            polynomial_sign_reference.check(x, coefficients)
    for operator, omega in ((a[:, :3], a), (a, a[:3]), (a, a[:, :0])):
        with pytest.raises(ValueError, match="expected"):
            orthonormal_polar_reference.check(a, operator, omega, fine, POLISH, complement=False)
    with pytest.raises(ValueError, match="even"):
        orthonormal_polar_reference.check(a, a, a, fine[:1], POLISH, complement=False)
    for h, q in ((a[:3], a), (a, a[:3]), (a, a.astype("f8"))):
        with pytest.raises(ValueError, match="expected"):
            projected_matrix_reference.check(h, q)
