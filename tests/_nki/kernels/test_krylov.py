"""cg_iterations.py and gmres_steps.py against their twins: convergence, exits, limits, lint, model."""

import numpy as np
import pytest
import scipy.sparse
import scipy.sparse.linalg

from trnpy._nki.hardware import TRN2
from trnpy._nki.kernels import source
from trnpy._nki.kernels.solves import cg_iterations_reference, gmres_steps_reference
from trnpy._nki.kernels.sparse.bsr_spmm_reference import SLOTS, bounds_of
from trnpy._nki.simulator.lint.linter import errors, lint_file, lint_launch
from trnpy._nki.simulator.price.cost import price
from trnpy._nki.simulator.run.launch import Specification, run
from trnpy._nki.simulator.run.loader import load_kernel

CG, GMRES = (load_kernel(source(name), name) for name in ("cg_iterations", "gmres_steps"))
TILE = 128
EPS = 2.0**-23


def laplacian(side):
    line = scipy.sparse.diags_array([-1.0, 2, -1], offsets=(-1, 0, 1), shape=(side, side))
    one = scipy.sparse.eye_array(side)
    return (scipy.sparse.kron(line, one) + scipy.sparse.kron(one, line)).tocsr()


def dense_tiles(a, unit=4):
    """(tiles, left_at, column_of, bounds) of every non-empty tile of ``a``, by the definition."""
    blocks = -(-a.shape[0] // TILE)
    full = np.zeros((blocks * TILE, blocks * TILE), "f4")
    full[: a.shape[0], : a.shape[1]] = a.toarray() if scipy.sparse.issparse(a) else a
    cut = full.reshape(blocks, TILE, blocks, TILE).transpose(0, 2, 1, 3)
    rows, columns = np.nonzero(cut.any(axis=(2, 3)))
    tiles = cut[rows, columns].swapaxes(1, 2).reshape(-1, TILE)
    left = np.arange(len(rows), dtype=np.int32) * TILE**2
    pointer = np.searchsorted(rows, np.arange(blocks + 1))
    return tiles, left[np.newaxis], columns.astype(np.int32)[np.newaxis], bounds_of(pointer, unit)


def laid(x, blocks):
    padded = np.zeros(blocks * TILE, "f4")
    padded[: len(x)] = x
    return np.ascontiguousarray(padded.reshape(blocks, TILE).T)


def everywhere(value):
    return np.full((TILE, 1), value, "f4")


def cg_operands(a, b, reduction, unit=4):
    matrix = dense_tiles(a, unit)
    r = laid(b, matrix[3].shape[1])
    rho = np.sum(r * r)
    return (*matrix, np.zeros_like(r), r, r.copy(), everywhere(rho), everywhere(rho * reduction**2))


def gmres_operands(a, b, reduction, unit=4):
    matrix = dense_tiles(a, unit)
    r = laid(b, matrix[3].shape[1])
    return (*matrix, r, everywhere(np.sum(r * r) * reduction**2))


def right_hand_side(n):
    return np.random.default_rng(n).standard_normal(n)


@pytest.mark.parametrize("side, unit", [(1, 1), (5, 4), (12, 2), (19, 4)])
def test_conjugate_gradients_step_by_step(side, unit):
    a, b = laplacian(side), right_hand_side(side * side)
    operands = cg_operands(a, b, 1e-4, unit)
    ours = run(CG, operands, {"most": 40, "unit": unit}).outputs
    theirs = cg_iterations_reference.cg_iterations(*operands, most=40, unit=unit)
    assert ours[5] == theirs[5]
    taken = int(ours[5][0, 0])
    for mine, other in zip(ours[:3], theirs[:3], strict=True):
        assert np.abs(mine - other).max() <= 64 * max(taken, 1) * EPS * max(np.abs(theirs[0]).max(), np.abs(b).max())
    np.testing.assert_allclose(ours[4][0, :taken], theirs[4][0, :taken], rtol=0.05, atol=1e-12)
    assert not ours[4][0, taken:].any()
    x = ours[0].T.ravel()[: len(b)]
    assert np.linalg.norm(b - a @ x) <= 2e-4 * np.linalg.norm(b)
    assert ours[4][0, taken - 1] <= operands[-1][0, 0]


@pytest.mark.parametrize("most", [1, 7])
def test_a_launch_goes_on_where_the_one_before_ended(most):
    a, b = laplacian(12), right_hand_side(144)
    operands = cg_operands(a, b, 1e-5)
    whole = run(CG, operands, {"most": 14}).outputs
    state = operands[4:8]
    for _ in range(14 // most):
        outputs = run(CG, (*operands[:4], *state, operands[8]), {"most": most}).outputs
        state = outputs[:4]
    for mine, other in zip(state, whole[:4], strict=True):
        np.testing.assert_array_equal(mine, other)


def test_the_device_loop_ends_when_the_residual_is_small_and_at_once_when_it_is():
    operands = cg_operands(laplacian(12), right_hand_side(144), 1e-3)
    few = run(CG, operands, {"most": 100})
    taken = int(few.outputs[5][0, 0])
    assert 5 < taken < 60
    executed = next(loop.executions for loop in few.trace.loops)
    assert executed == taken  # not one more on the device either
    done = run(CG, (*operands[:8], operands[7]), {"most": 100}).outputs
    assert done[5] == 0 and not done[0].any()


def test_a_breakdown_ends_the_loop():
    """p . A p = 0: what is not positive definite leaves infinities, which are no reason to go on."""
    a = np.array([[0.0, 1.0], [1.0, 0.0]])
    outputs = run(CG, cg_operands(a, np.array([1.0, 0.0]), 1e-3), {"most": 50}).outputs
    assert outputs[5] == 1 and not np.isfinite(outputs[0]).all()


@pytest.mark.parametrize("side, unit", [(1, 1), (9, 4), (12, 2)])
def test_gmres_takes_the_steps_that_scipys_takes(side, unit):
    n = side * side
    a = laplacian(side) + scipy.sparse.diags_array([0.5] * (n - 1), offsets=1, shape=(n, n)) if n > 1 else laplacian(1)
    b = right_hand_side(n)
    operands = gmres_operands(a.tocsr(), b, 1e-4, unit)
    ours = run(GMRES, operands, {"most": 30, "unit": unit}).outputs
    theirs = gmres_steps_reference.gmres_steps(*operands, most=30, unit=unit)
    assert ours[3] == theirs[3]
    norms = []
    scipy.sparse.linalg.gmres(a, b, rtol=1e-4, restart=30, callback=norms.append, callback_type="pr_norm")
    taken = int(ours[3][0, 0])
    assert taken == len(norms)
    np.testing.assert_allclose(np.sqrt(ours[2][0, :taken]) / np.linalg.norm(b), norms, rtol=1e-3, atol=1e-6)
    x = ours[0].T.ravel()[:n]
    assert np.linalg.norm(b - a @ x) <= 2e-4 * np.linalg.norm(b)


def test_gmres_goes_on_from_the_residual_where_it_shrinks():
    """From the last image instead, powers of the matrix would leave float32 at step 16."""
    operands = gmres_operands(np.diag(np.geomspace(1, 100, 30)), right_hand_side(30), 1e-6)
    ours = run(GMRES, operands, {"most": 20}).outputs
    theirs = gmres_steps_reference.gmres_steps(*operands, most=20)
    assert ours[3] == theirs[3] == 20
    np.testing.assert_allclose(ours[2], theirs[2], rtol=1e-2)


def test_gmres_through_stagnation_and_through_a_matrix_of_zeros():
    """A cyclic shift: no step but the last shrinks the residual. Zeros: none does, and nothing is divided by them."""
    shift, b = np.roll(np.eye(8), 1, axis=0), np.eye(8)[0]
    ours = run(GMRES, gmres_operands(shift, b, 1e-6), {"most": 20}).outputs
    assert ours[3] == 8
    np.testing.assert_array_equal(ours[2][0, :8], [1, 1, 1, 1, 1, 1, 1, 0])
    np.testing.assert_allclose(shift @ ours[0].T.ravel()[:8], b, rtol=0, atol=1e-6)
    nothing = run(GMRES, gmres_operands(np.diag([1e-38, 0]), np.array([0.0, 1.0]), 1e-6), {"most": 3}).outputs
    assert nothing[3] == 3 and np.isfinite(nothing[0]).all() and np.isfinite(nothing[1]).all()


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("kernel, make", [(CG, cg_operands), (GMRES, gmres_operands)], ids=["cg", "gmres"])
def test_any_legal_order_gives_the_same(kernel, make, seed):
    operands = make(laplacian(12), right_hand_side(144), 1e-3)
    straight = run(kernel, operands, {"most": 6}).outputs
    for mine, other in zip(
        run(kernel, operands, {"most": 6}, mode="reorder", seed=seed).outputs, straight, strict=True
    ):
        np.testing.assert_array_equal(mine, other)


@pytest.mark.parametrize("target", ["trn1", "trn2", "trn3"])
@pytest.mark.parametrize("kernel, make", [(CG, cg_operands), (GMRES, gmres_operands)], ids=["cg", "gmres"])
def test_lint_finds_no_error(kernel, make, target):
    operands = make(laplacian(12), right_hand_side(144), 1e-2)
    name = "cg_iterations" if kernel is CG else "gmres_steps"
    assert not errors((*lint_launch(kernel, operands, {"most": 4}, target=target), *lint_file(source(name))))


def specified(blocks, cg):
    matrix = (
        Specification((SLOTS * TILE, TILE)), *(Specification((1, SLOTS), np.int32),) * 2,
        Specification((5, blocks), np.int32),
    )  # fmt: skip
    vector, number = Specification((TILE, blocks)), Specification((TILE, 1))
    return (*matrix, *(vector,) * 3, number, number) if cg else (*matrix, vector, number)


@pytest.mark.parametrize("kernel, blocks, most", [(CG, 1024, 32), (GMRES, 384, 32), (GMRES, 614, 20)])
def test_the_largest_launch_fits_and_the_program_is_short(kernel, blocks, most):
    trace = run(kernel, specified(blocks, kernel is CG), {"most": most}, mode="trace").trace
    print(f"{len(trace.instructions)} compiled instructions, {trace.sbuf_peak_bytes} bytes of SBUF")
    assert len(trace.instructions) < 1000
    assert trace.sbuf_peak_bytes <= TRN2.sbuf_bytes_per_partition and trace.psum_peak_banks <= 8


def test_modelled_seconds_of_an_iteration_on_trn2():
    """Of a dense matrix of 8 x 8 tiles: what one more iteration takes, by tiles."""
    rng = np.random.default_rng(0)
    a = rng.standard_normal((8 * TILE, 8 * TILE)) * 1e-3
    a = a + a.T + np.eye(8 * TILE)
    operands = cg_operands(a, right_hand_side(8 * TILE), 1e-30)
    short, long = (price(run(CG, operands, {"most": most}).trace).device_s for most in (2, 4))
    tile_s = (long - short) / 2 / 64
    print(f"an iteration, modelled: {(long - short) / 2 * 1e6:.0f} us for 64 tiles, {tile_s * 1e6:.2f} us each")
    assert tile_s <= 11.2e-6  # a turn of a device loop each


def test_what_they_refuse():
    operands = cg_operands(laplacian(5), right_hand_side(25), 1e-3)
    tiles, left, column, bounds, x = operands[:5]
    for bad in ((tiles[:100], left, column, bounds, x), (tiles, left[:, :0], column, bounds, x),
                (tiles, left, column, bounds, x.astype("f8")), (tiles, left, column, bounds, x[:, :0])):  # fmt: skip
        with pytest.raises(ValueError, match="expected"):
            cg_iterations_reference.check(*bad)
    with pytest.raises(ValueError, match="at most"):
        gmres_steps_reference.check(tiles, left, column, bounds, x, 100_000)
