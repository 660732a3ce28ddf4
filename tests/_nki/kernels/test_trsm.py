"""trsm.py against its twin in float64: every side and triangle, sizes, accuracy, limits, lint, model."""

import numpy as np
import pytest
from scipy.linalg import lu, solve_triangular

from nkisim.lint.linter import errors, lint_file, lint_launch
from nkisim.price.cost import price
from nkisim.run.launch import Specification, run
from nkisim.run.loader import load_kernel
from tests._nki.kernels.budget import kept
from trnpy._nki.kernels import source
from trnpy._nki.kernels.solves import trsm_reference

FILE = source("trsm")
KERNEL = load_kernel(FILE, "trsm")
EPS = 2.0**-23
ALPHA = np.array([[-1.5]], "f4")
SMALL_TILES = {"tiles": 2}  # so that small operands have several panels


def well_conditioned(n, seed=0):
    """Full, with a triangle of condition below 100 on either side of the diagonal."""
    rng = np.random.default_rng([seed, n])
    a = rng.standard_normal((n, n)) / (2 * np.sqrt(n))
    a[np.diag_indices(n)] = rng.uniform(1, 2, n) * rng.choice([-1, 1], n)
    return a.astype("f4")


def sides(n, r, right=False):
    return np.random.default_rng([n, r]).standard_normal((r, n) if right else (n, r)).astype("f4")


def agree(ours, a, b, alpha=None, **settings):
    """Within 2 n eps |T^-1| |T| |X|, the forward error of a backward stable solve (Higham, 2nd ed., thm 8.5)."""
    theirs = trsm_reference.trsm(a.astype("f8"), b.astype("f8"), alpha, **settings)
    assert (ours.dtype, ours.shape) == (np.float32, theirs.shape)
    triangle = np.tril(a) if settings.get("lower", True) else np.triu(a)
    if settings.get("unit"):
        triangle[np.diag_indices(len(a))] = 1
    triangle = triangle.astype("f8").T if settings.get("transposed") else triangle.astype("f8")
    growth = np.abs(np.linalg.inv(triangle)), np.abs(triangle)
    x = np.abs(theirs)
    bound = x @ growth[1] @ growth[0] if settings.get("right") else growth[0] @ growth[1] @ x
    assert (np.abs(ours - theirs) <= 2 * len(a) * EPS * bound).all()


@pytest.mark.parametrize("unit", [True, False])
@pytest.mark.parametrize("transposed", [True, False])
@pytest.mark.parametrize("lower", [True, False])
@pytest.mark.parametrize("right", [True, False])
@pytest.mark.parametrize("n, r", [(1, 1), (17, 5), (127, 129), (129, 3), (513, 40), (300, 1100)])
def test_every_side_triangle_and_edge(n, r, right, lower, transposed, unit):
    """The triangle that is not named is NaN, and so is the diagonal where it is one."""
    a, b = well_conditioned(n), sides(n, r, right)
    read = np.tri(n, k=-1 if unit else 0, dtype=bool)
    given = np.where(read if lower else read.T, a, np.float32(np.nan))
    if unit:
        a[np.diag_indices(n)] = 1
    settings = {"right": right, "lower": lower, "transposed": transposed, "unit": unit}
    ours = run(KERNEL, (given, b, ALPHA), {**settings, **SMALL_TILES}).outputs
    agree(ours, a, b, ALPHA, **settings)


@pytest.mark.parametrize("n, r, lower", [(128, 1, True), (1025, 30, True), (1025, 30, False), (2100, 7, False)])
def test_the_default_panels(n, r, lower):
    a, b = well_conditioned(n), sides(n, r)
    agree(run(KERNEL, (a, b), {"lower": lower}).outputs, a, b, lower=lower)


def test_factors_of_lu_are_solved_as_accurately_as_by_lapack():
    """Multipliers up to 1 make powers of the nilpotent part grow: what rules out their product form."""
    l = lu(np.random.default_rng(3).standard_normal((500, 500)))[1]
    for a in (l.astype("f4"), np.tril(-np.ones((300, 300), "f4"), -1) * np.float32(0.1) + np.eye(300, dtype="f4")):
        b = sides(len(a), 20)
        ours = run(KERNEL, (a, b)).outputs
        agree(ours, a, b)
        exact = trsm_reference.trsm(a.astype("f8"), b.astype("f8"))
        lapack = np.abs(solve_triangular(a, b, lower=True) - exact).max()
        assert np.abs(ours - exact).max() <= 8 * lapack


def test_cholesky_factor_of_condition_1e5():
    rng = np.random.default_rng(4)
    q = np.linalg.qr(rng.standard_normal((300, 300)))[0]
    a = np.linalg.cholesky((q * np.geomspace(1, 1e-10, 300)) @ q.T).astype("f4")
    b = sides(300, 10)
    agree(run(KERNEL, (a, b), {"transposed": True}).outputs, a, b, transposed=True)


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("settings", [{}, {"lower": False}, {"right": True}], ids=str)
def test_any_legal_order_gives_the_same(settings, seed):
    a, b = well_conditioned(600), sides(600, 600)
    straight = run(KERNEL, (a, b), {**settings, **SMALL_TILES}).outputs
    other = run(KERNEL, (a, b), {**settings, **SMALL_TILES}, mode="reorder", seed=seed).outputs
    np.testing.assert_array_equal(other, straight)


@pytest.mark.parametrize("target", ["trn1", "trn2", "trn3"])
@pytest.mark.parametrize("settings", [{}, {"lower": False}, {"right": True, "unit": True}], ids=str)
def test_lint_finds_no_error(target, settings):
    a, b = well_conditioned(600), sides(600, 600)
    assert not errors(
        (*lint_launch(KERNEL, (a, b, ALPHA), {**settings, **SMALL_TILES}, target=target), *lint_file(FILE))
    )


@pytest.mark.parametrize("n, r, target", [(1024, 1024, "trn2"), (3000, 3000, "trn1"), (8192, 1, "trn2")])
@pytest.mark.parametrize("settings", [{}, {"lower": False}, {"transposed": True}, {"right": True}], ids=str)
def test_the_program_grows_with_the_panels_only(n, r, target, settings):
    a, b = Specification((n, n)), Specification((r, n) if "right" in settings else (n, r))
    trace = run(KERNEL, (a, b, Specification((1, 1))), settings, mode="trace", target=target).trace
    assert kept(trace)


@pytest.mark.parametrize("settings, share", [({"lower": False, "transposed": True}, 0.68), ({}, 0.66)], ids=str)
def test_modelled_utilisation_on_trn2(settings, share):
    """Of three panels: 0 + 1 + 2 turns over those before are one each, as the model takes it for unknown lengths."""
    n = 3072
    s = Specification((n, n))
    cost = price(run(KERNEL, (s, s), settings, mode="trace").trace)
    share_of_peak = 100 * cost.tensor_utilisation
    print(f"trsm {n} x {n} {settings}, modelled: {cost.device_s * 1e6:.0f} us, {share_of_peak:.0f} % of PE")
    assert n**3 <= cost.flops <= 1.15 * n**3  # all products of tiles on the diagonal are whole ones
    assert cost.tensor_utilisation >= share
    panels, block = 3, 1024**2 * 4
    least = panels * block + 2 * n * n * 4 + panels * (panels - 1) // 2 * panels * 2 * block
    assert cost.hbm_bytes <= 1.3 * least


def test_what_it_refuses():
    a, b = np.eye(4, dtype="f4"), np.ones((4, 3), "f4")
    bads = [
        (a, b, True), (a[:3], b, False), (a.astype("f8"), b, False), (a, b[:, :0], False), (a * 0, b, False),
        (a[0], b, False), (np.broadcast_to(np.float32(1), (1, 1)), np.broadcast_to(np.float32(1), (1, 2**22)), False),
    ]  # fmt: skip
    for matrix, right_sides, right in bads:
        with pytest.raises(ValueError, match="expected"):
            trsm_reference.check(matrix, right_sides, right, unit=False)
