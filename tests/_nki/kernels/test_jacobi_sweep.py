"""jacobi_sweep.py: a tournament, an orthogonal similarity that converges as its twin's, limits, lint, model."""

import numpy as np
import pytest

from nkisim.hardware import TRN2
from nkisim.lint.linter import errors, lint_file, lint_launch
from nkisim.price.cost import price
from nkisim.run.launch import Specification, run
from nkisim.run.loader import load_kernel
from trnpy._nki.kernels import source
from trnpy._nki.kernels.spectra import jacobi_sweep_reference as reference

FILE = source("jacobi_sweep")
KERNEL = load_kernel(FILE, "jacobi_sweep")
EPS = 2.0**-23


def symmetric(n, seed=0):
    a = np.random.default_rng([seed, n]).standard_normal((n, n))
    return ((a + a.T) / np.sqrt(8 * n)).astype("f4")


def sweep(a, w):
    return run(KERNEL, (a, w, reference.order(len(a)))).outputs


def off(a):
    return np.linalg.norm(a - np.diag(np.diag(a)))


@pytest.mark.parametrize("players", [2, 4, 6, 128])
def test_everybody_meets_everybody_once(players):
    rounds = reference.tournament(players)
    assert [sorted(sum(r, ())) for r in rounds] == [list(range(players))] * (players - 1)
    assert len({pair for r in rounds for pair in r}) == players * (players - 1) // 2
    assert sorted(reference.moves(players)) == list(range(players))


@pytest.mark.parametrize("n", [128, pytest.param(256, marks=pytest.mark.slow)])
def test_a_sweep_is_an_orthogonal_similarity(n):
    a, w = symmetric(n), symmetric(n, 1)
    turned, vectors = sweep(a, np.eye(n, dtype="f4"))
    wide = vectors.astype("f8")
    assert np.abs(wide @ wide.T - np.eye(n)).max() <= 40 * EPS
    assert np.abs(wide @ a @ wide.T - turned).max() <= 40 * EPS
    assert np.abs(turned - turned.T).max() <= 10 * EPS
    np.testing.assert_allclose(sweep(a, w)[1], wide @ w, rtol=0, atol=40 * EPS)


def test_it_is_its_twin_where_rounding_does_not_grow():
    """Rotations of nearly equal entries turn on their last bits: here all are apart, but for exact zeros."""
    n = 192 + 64
    a = symmetric(n) / 500 + np.diag(np.arange(n, dtype="f4") / 100)
    a[200:, :] = a[:, 200:] = 0  # padding, whose couplings and gaps are zero
    ours, theirs = (
        f(a, np.eye(n, dtype="f4")) for f in (sweep, lambda a, w: reference.jacobi_sweep(a, w, reference.order(n)))
    )
    assert off(ours[0]) <= 0.05 * off(a)
    for mine, twin in zip(ours, theirs, strict=True):
        assert np.abs(mine - twin).max() <= 200 * EPS
    assert (ours[1][200:, 200:] == np.eye(56)).all() and not ours[1][200:, :200].any()


@pytest.mark.slow
def test_sweeps_converge():
    a, w = symmetric(128), np.eye(128, dtype="f4")
    x, left = a, []
    for _ in range(8):
        x, w = sweep(x, w)
        left.append(off(x))
    assert left[-1] <= 3e-6 * np.linalg.norm(a) and (np.diff(left[:6]) < 0).all()
    assert np.abs(np.sort(np.diag(x)) - np.linalg.eigvalsh(a.astype("f8"))).max() <= 1e-5


@pytest.mark.parametrize("seed", [0])
def test_any_legal_order_gives_the_same(seed):
    a = symmetric(128)
    operands = (a, np.eye(128, dtype="f4"), reference.order(128))
    straight, other = (run(KERNEL, operands, mode=mode, seed=seed).outputs for mode in ("run", "reorder"))
    np.testing.assert_array_equal(other[0], straight[0])
    np.testing.assert_array_equal(other[1], straight[1])


@pytest.mark.parametrize("target", ["trn1", "trn2", "trn3"])
def test_lint_finds_no_error(target):
    operands = (symmetric(128), np.eye(128, dtype="f4"), reference.order(128))
    assert not errors((*lint_launch(KERNEL, operands, {}, target=target), *lint_file(FILE)))


@pytest.mark.parametrize("n", [128, 512, 4096])
def test_the_program_does_not_grow_with_the_operands(n):
    pairs = reference.order(n).shape[1]
    operands = Specification((n, n)), Specification((n, n)), Specification((4, pairs), np.int32)
    trace = run(KERNEL, operands, mode="trace").trace
    cost = price(trace)
    print(f"a sweep of order {n}: {len(trace.instructions)} instructions, {1e3 * cost.device_s:.0f} ms, modelled")
    assert len(trace.instructions) < 6000
    assert trace.sbuf_peak_bytes <= TRN2.sbuf_bytes_per_partition and trace.psum_peak_banks <= 8


def test_what_it_refuses():
    a, order = symmetric(128), reference.order(128)
    for x, w, o in (
        (a[:100, :100], a[:100, :100], order),
        (a, a[:64], order),
        (a.astype("f8"), a, order),
        (a, a, order[:2]),
    ):
        with pytest.raises(ValueError, match="expected"):
            reference.check(x, w, o)
