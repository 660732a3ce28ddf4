"""Stacks of small matrices: which pieces are left to SciPy, after a look at how many, and in what chunks."""

import warnings

import numpy as np
import pytest
import scipy.linalg
from stack_calls import COUNT, SQUARE, definite, every_route_pays, ill_conditioned, run, untraced  # noqa: F401

from trnpy._host import stacks
from trnpy._report.reasons import Unsupported


@pytest.mark.parametrize("name", ["inv", "pinv", "lstsq"])
@pytest.mark.parametrize("condition", [1e10, 1e15])
def test_ill_conditioned_stacks_are_left_to_scipy_after_a_look_at_a_few(name, condition, monkeypatch):
    a = ill_conditioned(COUNT, condition, 1.0)

    def refused(*args, **options):
        raise AssertionError("more than a look")

    for function in ("_inv", "_svd"):
        monkeypatch.setattr(stacks, function, refused)
    args = (a, a[..., :1]) if name == "lstsq" else (a,)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", scipy.linalg.LinAlgWarning)
        ours, theirs = untraced(name, *args)
    for mine, other in zip(*((x if isinstance(x, (list, tuple)) else [x]) for x in (ours, theirs)), strict=True):
        np.testing.assert_array_equal(mine, other)


@pytest.mark.parametrize("name", ["inv", "pinv", "lstsq"])
def test_what_follows_a_piece_of_ill_conditioned_matrices_is_scipys(name, monkeypatch):
    """Where the look was lucky, no more than a piece is computed in vain."""
    monkeypatch.setattr(stacks, "PIECE", 16 * 100)
    monkeypatch.setattr(stacks, "SPREAD", (0.0, 0.05))
    a = ill_conditioned(COUNT, 1e10, 0.7)
    sizes = []
    for function in ("_inv", "_svd"):
        kept = getattr(stacks, function)
        monkeypatch.setattr(stacks, function, lambda x, *r, kept=kept, **o: sizes.append(len(x)) or kept(x, *r, **o))
    ours, theirs = run(name, *((a, a[..., :1]) if name == "lstsq" else (a,)))
    assert sizes == [stacks.FIRST, 100, 100, 100]
    ours, theirs = (x[0] if name == "lstsq" else x for x in (ours, theirs))
    np.testing.assert_array_equal(ours[300:], theirs[300:])
    np.testing.assert_allclose(ours[:300], theirs[:300], rtol=1e-6, atol=1e-6)


def test_of_a_stack_that_is_mostly_scipys_a_small_piece_is_computed_in_vain(monkeypatch):
    monkeypatch.setattr(stacks, "PIECE", 16 * COUNT // 2)
    monkeypatch.setattr(stacks, "SPREAD", (0.9, 0.95))
    a = ill_conditioned(COUNT, 1e10, 0.7)[::-1].copy()
    sizes, kept = [], stacks._inv
    monkeypatch.setattr(stacks, "_inv", lambda x: sizes.append(len(x)) or kept(x))
    ours, theirs = run("inv", a, route=False)
    assert sizes == [stacks.FIRST]
    np.testing.assert_array_equal(ours, theirs)


@pytest.mark.parametrize("name", [*SQUARE, "qr", "svd", "svdvals", "pinv", "lstsq", "fractional_matrix_power"])
def test_large_stacks_go_in_chunks(name, monkeypatch):
    a = definite(4, "f8", (7, 150))
    second = {"lstsq": (a,), "fractional_matrix_power": (0.3,)}.get(name, ())
    whole, _ = run(name, a, *second)
    for elements in ("CHUNK", "PIECE"):
        monkeypatch.setattr(stacks, elements, 16 * 11)  # matrices at a time, and ten are left
    parts, _ = run(name, a, *second)
    for one, other in zip(*((x if isinstance(x, (list, tuple)) else [x]) for x in (whole, parts)), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-12, atol=1e-13)
    if name == "solve":  # broadcast operands are not cut
        run(name, a, np.ones(4))
        run(name, a, np.ones((30, 4, 2)))


def test_a_matrix_that_numpy_cannot_factor_is_left_to_scipy():
    a = definite(4, "f8")
    a[-1, 0, 0] = -1.0
    with pytest.raises(Unsupported, match="not positive definite"):
        stacks.cholesky(a, True)
