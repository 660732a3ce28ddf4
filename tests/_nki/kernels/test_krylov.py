"""cg_iterations.py and gmres_steps.py against their twins: convergence, the end, limits, lint, model."""

import numpy as np
import pytest
import scipy.sparse
import scipy.sparse.linalg

from nkisim.hardware import TRN2
from nkisim.lint.linter import errors, lint_file, lint_launch
from nkisim.price.cost import price
from nkisim.run.launch import Specification, run
from nkisim.run.loader import load_kernel
from trnpy._nki.kernels import source
from trnpy._nki.kernels.solves import cg_iterations_reference, gmres_steps_reference

CG, GMRES = (load_kernel(source(name), name) for name in ("cg_iterations", "gmres_steps"))
TILE, ITEMS, TOGETHER = 128, cg_iterations_reference.ITEMS, cg_iterations_reference.TOGETHER
EPS = 2.0**-23


def laplacian(side):
    line = scipy.sparse.diags_array([-1.0, 2, -1], offsets=(-1, 0, 1), shape=(side, side))
    one = scipy.sparse.eye_array(side)
    return (scipy.sparse.kron(line, one) + scipy.sparse.kron(one, line)).tocsr()


def in_turns(tiles, rows, columns):
    """(tiles, column_of, row_of, first_row) of tiles (T, 128, 128) with K on the rows, by the definition."""
    turns = -(-len(rows) // ITEMS)
    padded = np.zeros((turns * ITEMS, TILE, TILE), "f4")
    padded[: len(rows)] = tiles
    together = padded.reshape(-1, TOGETHER, TILE, TILE).swapaxes(1, 2).reshape(-1, TOGETHER * TILE)
    column_of, row_of = np.zeros((ITEMS, turns), np.int32), np.full((ITEMS, turns), -1, "f4")
    first_row = np.zeros((1, turns), np.int32)
    for j, (row, column) in enumerate(zip(rows, columns, strict=True)):
        t, q = divmod(j, ITEMS)
        first_row[0, t] = rows[t * ITEMS]
        column_of[q, t], row_of[q, t] = column, row - rows[t * ITEMS]
    return together, column_of, row_of, first_row


def dense_tiles(a):
    """The operands of every non-empty tile of ``a``, and its block rows."""
    blocks = -(-a.shape[0] // TILE)
    full = np.zeros((blocks * TILE, blocks * TILE), "f4")
    full[: a.shape[0], : a.shape[1]] = a.toarray() if scipy.sparse.issparse(a) else a
    cut = full.reshape(blocks, TILE, blocks, TILE).transpose(0, 2, 1, 3)
    rows, columns = np.nonzero(cut.any(axis=(2, 3)))
    return in_turns(cut[rows, columns].swapaxes(1, 2), rows, columns), blocks


def laid(x, blocks):
    padded = np.zeros(blocks * TILE, "f4")
    padded[: len(x)] = x
    return padded.reshape(TILE, blocks)


def everywhere(value):
    return np.full((TILE, 1), value, "f4")


def cg_operands(a, b, reduction):
    matrix, blocks = dense_tiles(a)
    r = laid(b, blocks)
    rho = np.sum(r * r)
    return (*matrix, np.zeros_like(r), r, r.copy(), everywhere(rho), everywhere(rho * reduction**2))


def gmres_operands(a, b, reduction):
    matrix, blocks = dense_tiles(a)
    r = laid(b, blocks)
    return (*matrix, r, everywhere(np.sum(r * r) * reduction**2))


def right_hand_side(n):
    return np.random.default_rng(n).standard_normal(n)


def taken(history, limit):
    """Steps until the residual is small enough."""
    return 1 + np.count_nonzero(history[0, :-1] > limit)


def sparse_rows(lengths, blocks, seed=0):
    """Rows of so many tiles as operands, with a vector, and their product in float64."""
    rng = np.random.default_rng(seed)
    rows = np.repeat(np.arange(len(lengths)), lengths)
    tiles, columns = rng.standard_normal((len(rows), TILE, TILE)).astype("f4"), rng.integers(0, blocks, len(rows))
    return in_turns(tiles, rows, columns)


@pytest.mark.parametrize("lengths", [(1,), (1,) * 140, (3, 1, 200, 2), (127, 1, 1), (128, 128, 1)], ids=len)
def test_rows_begin_and_end_in_any_turn(lengths):
    """By the first step of conjugate gradients with a square of the direction that no rounding hides."""
    operands = sparse_rows(lengths, len(lengths))
    times = cg_iterations_reference.operator(*operands)
    x = np.random.default_rng(1).standard_normal((TILE, len(lengths))).astype("f4")
    zero = np.zeros_like(x)
    # After one step r = -(rho / p . A p) A p.
    got = run(CG, (*operands, zero, zero, x, everywhere(1), everywhere(0)), {"most": 1}).outputs[1]
    image = times(x.astype("f8"))
    bound = cg_iterations_reference.operator(np.abs(operands[0]), *operands[1:])(np.abs(x).astype("f8"))
    curvature = np.sum(x * image)
    assert np.abs(got * -curvature - image).max() <= 64 * EPS * (bound.max() + np.abs(image).max())


@pytest.mark.parametrize("side", [1, 5, 12, 19])
def test_conjugate_gradients_step_by_step(side):
    a, b = laplacian(side), right_hand_side(side * side)
    operands = cg_operands(a, b, 1e-4)
    ours = run(CG, operands, {"most": 45}).outputs
    theirs = cg_iterations_reference.cg_iterations(*operands, most=45)
    limit = operands[-1][0, 0]
    steps = taken(ours[4], limit)
    assert steps == taken(theirs[4], limit) < 45
    for mine, other in zip(ours[:3], theirs[:3], strict=True):
        assert np.abs(mine - other).max() <= 64 * steps * EPS * max(np.abs(theirs[0]).max(), np.abs(b).max())
    np.testing.assert_allclose(ours[4], theirs[4], rtol=0.05, atol=1e-12)
    assert (ours[4][0, steps - 1 :] == ours[3][0, 0]).all() and ours[3][0, 0] <= limit
    x = ours[0].ravel()[: len(b)]
    assert np.linalg.norm(b - a @ x) <= 2e-4 * np.linalg.norm(b)


@pytest.mark.parametrize("most", [1, 7])
def test_a_launch_goes_on_where_the_one_before_ended(most):
    a, b = laplacian(12), right_hand_side(144)
    operands = cg_operands(a, b, 1e-5)
    whole = run(CG, operands, {"most": 14}).outputs
    state = operands[4:8]
    for _ in range(14 // most):
        state = run(CG, (*operands[:4], *state, operands[8]), {"most": most}).outputs[:4]
    for mine, other in zip(state, whole[:4], strict=True):
        np.testing.assert_array_equal(mine, other)


def test_steps_after_the_residual_is_small_change_nothing():
    """Also where it is zero, by which nothing is divided then."""
    operands = cg_operands(laplacian(12), right_hand_side(144), 1e-3)
    few, more = (run(CG, operands, {"most": most}).outputs for most in (30, 50))
    assert few[3][0, 0] <= operands[-1][0, 0]
    for i in (0, 1, 3):
        np.testing.assert_array_equal(few[i], more[i])
    done = run(CG, (*operands[:8], operands[7] * np.float32(1.01)), {"most": 5}).outputs
    assert not done[0].any() and (done[4] == done[4][0, 0]).all()
    exact = run(CG, cg_operands(np.eye(3), np.ones(3), 1e-6), {"most": 5}).outputs
    np.testing.assert_array_equal(exact[0].ravel()[:4], [1, 1, 1, 0])


def test_a_breakdown_shows():
    """p . A p = 0: what is not positive definite leaves infinities, which no later step hides."""
    a = np.array([[0.0, 1.0], [1.0, 0.0]])
    outputs = run(CG, cg_operands(a, np.array([1.0, 0.0]), 1e-3), {"most": 50}).outputs
    assert not np.isfinite(outputs[0]).all() and not outputs[3][0, 0] <= 1


@pytest.mark.parametrize("side", [1, 9, 12])
def test_gmres_takes_the_steps_that_scipys_takes(side):
    n = side * side
    a = laplacian(side) + scipy.sparse.diags_array([0.5] * (n - 1), offsets=1, shape=(n, n)) if n > 1 else laplacian(1)
    b = right_hand_side(n)
    operands = gmres_operands(a.tocsr(), b, 1e-4)
    ours = run(GMRES, operands, {"most": 30}).outputs
    theirs = gmres_steps_reference.gmres_steps(*operands, most=30)
    steps, limit = taken(ours[2], operands[-1][0, 0]), operands[-1][0, 0]
    assert steps == taken(theirs[2], limit)
    norms = []
    scipy.sparse.linalg.gmres(a, b, rtol=1e-4, restart=30, callback=norms.append, callback_type="pr_norm")
    assert steps == len(norms)
    np.testing.assert_allclose(np.sqrt(ours[2][0, :steps]) / np.linalg.norm(b), norms, rtol=1e-3, atol=1e-6)
    assert (ours[2][0, steps - 1 :] == ours[2][0, steps - 1]).all()
    x = ours[0].ravel()[:n]
    assert np.linalg.norm(b - a @ x) <= 2e-4 * np.linalg.norm(b)


def test_gmres_goes_on_from_the_residual_where_it_shrinks():
    """From the last image instead, powers of the matrix would leave float32 at step 16."""
    operands = gmres_operands(np.diag(np.geomspace(1, 100, 30)), right_hand_side(30), 1e-6)
    ours = run(GMRES, operands, {"most": 20}).outputs
    theirs = gmres_steps_reference.gmres_steps(*operands, most=20)
    np.testing.assert_allclose(ours[2], theirs[2], rtol=1e-2)


def test_gmres_through_stagnation_and_through_a_matrix_of_zeros():
    """A cyclic shift: no step but the last shrinks the residual. Zeros: none does, and nothing is divided by them."""
    shift, b = np.roll(np.eye(8), 1, axis=0), np.eye(8)[0]
    ours = run(GMRES, gmres_operands(shift, b, 1e-6), {"most": 20}).outputs
    np.testing.assert_array_equal(ours[2][0, :9], [1, 1, 1, 1, 1, 1, 1, 0, 0])
    np.testing.assert_allclose(shift @ ours[0].ravel()[:8], b, rtol=0, atol=1e-6)
    nothing = run(GMRES, gmres_operands(np.diag([1e-38, 0]), np.array([0.0, 1.0]), 1e-6), {"most": 3}).outputs
    assert np.isfinite(nothing[0]).all() and np.isfinite(nothing[1]).all()


def near_inverse(a):
    """A sparse matrix near the inverse of ``a``, whose tiles are not those of ``a``."""
    full = np.linalg.inv(a.toarray())
    return np.where(np.abs(full) > 0.05 * full.max(), full, 0).astype("f4")


def test_preconditioned_steps_are_the_twins():
    """And fewer than without the preconditioner, which is of other tiles than the matrix."""
    a, b = laplacian(12), right_hand_side(144)
    matrix, blocks = dense_tiles(a)
    inverse = near_inverse(a)
    m, _ = dense_tiles(inverse)
    r, z = laid(b, blocks), laid(inverse @ b, blocks)
    rho = np.sum(r * z)
    steps = []
    for kernel, twin, operands in (
        (CG, cg_iterations_reference.cg_iterations,
         (*matrix, np.zeros_like(r), r, z, everywhere(rho), everywhere(rho * 1e-8), *m)),
        (GMRES, gmres_steps_reference.gmres_steps, (*matrix, z, everywhere(np.sum(z * z) * 1e-8), *m)),
    ):  # fmt: skip
        ours, theirs = run(kernel, operands, {"most": 20}).outputs, twin(*operands, most=20)
        np.testing.assert_allclose(ours[-1], theirs[-1], rtol=0.05, atol=1e-9)
        limit = operands[8 if kernel is CG else 5][0, 0]
        assert taken(ours[-1], limit) == taken(theirs[-1], limit)
        x = ours[0].ravel()[: len(b)]
        assert np.linalg.norm(b - a @ x) <= 1e-3 * np.linalg.norm(b)
        steps.append(taken(ours[-1], limit))
    plain = taken(cg_iterations_reference.cg_iterations(*cg_operands(a, b, 1e-4), most=45)[4], np.sum(r * r) * 1e-8)
    assert max(steps) * 3 <= plain * 2


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("kernel, make", [(CG, cg_operands), (GMRES, gmres_operands)], ids=["cg", "gmres"])
def test_any_legal_order_gives_the_same(kernel, make, seed):
    operands = make(laplacian(12), right_hand_side(144), 1e-3)
    straight = run(kernel, operands, {"most": 4}).outputs
    for mine, other in zip(
        run(kernel, operands, {"most": 4}, mode="reorder", seed=seed).outputs, straight, strict=True
    ):
        np.testing.assert_array_equal(mine, other)


@pytest.mark.parametrize("target", ["trn1", "trn2", "trn3"])
@pytest.mark.parametrize("kernel, make", [(CG, cg_operands), (GMRES, gmres_operands)], ids=["cg", "gmres"])
def test_lint_finds_no_error(kernel, make, target):
    operands = make(laplacian(12), right_hand_side(144), 1e-2)
    name = "cg_iterations" if kernel is CG else "gmres_steps"
    assert not errors((*lint_launch(kernel, operands, {"most": 2}, target=target), *lint_file(source(name))))


def specified(turns, blocks, cg):
    matrix = (
        Specification((turns * ITEMS // TOGETHER * TILE, TOGETHER * TILE)), Specification((ITEMS, turns), np.int32),
        Specification((ITEMS, turns)), Specification((1, turns), np.int32),
    )  # fmt: skip
    vector, number = Specification((TILE, blocks)), Specification((TILE, 1))
    return (*matrix, *(vector,) * 3, number, number) if cg else (*matrix, vector, number)


@pytest.mark.parametrize(
    "kernel, turns, blocks, most", [(CG, 32, 1024, 4), (CG, 7, 1024, 32), (GMRES, 12, 384, 20), (GMRES, 7, 614, 20)]
)
def test_the_largest_launch_fits_and_has_no_loop(kernel, turns, blocks, most):
    trace = run(kernel, specified(turns, blocks, kernel is CG), {"most": most}, mode="trace").trace
    print(f"{len(trace.instructions)} compiled instructions, {trace.sbuf_peak_bytes} bytes of SBUF")
    stated = most * (turns * cg_iterations_reference.TURN_STEPS + cg_iterations_reference.VECTOR_STEPS)
    stated += 0 if kernel is CG else gmres_steps_reference.BASIS_STEPS * most**2 // 2
    assert 0.8 * stated <= len(trace.instructions) <= 1.1 * stated and not trace.loops
    assert trace.sbuf_peak_bytes <= TRN2.sbuf_bytes_per_partition and trace.psum_peak_banks <= 8


def test_modelled_seconds_of_an_iteration_on_trn2():
    """What one more turn of 128 tiles takes, and all else of an iteration."""

    def iteration_s(turns):
        short, long = (
            price(run(CG, specified(turns, 128, True), {"most": most}, mode="trace").trace).device_s for most in (2, 4)
        )
        return (long - short) / 2

    few, many = iteration_s(4), iteration_s(8)
    tile_s, rest_s = (many - few) / 512, few - (many - few)
    print(f"an iteration, modelled: {tile_s * 1e6:.2f} us a tile of 64 KiB, {rest_s * 1e6:.0f} us for all else")
    assert tile_s <= 0.25e-6 and rest_s <= 40e-6


def test_what_they_refuse():
    operands = cg_operands(laplacian(5), right_hand_side(25), 1e-3)
    tiles, column, row, first, x = operands[:5]
    for bad in ((tiles[:100], column, row, first, x), (tiles, column[:, :0], row, first, x),
                (tiles, column, row, first, x.astype("f8")), (tiles, column, row, first, x[:, :0])):  # fmt: skip
        with pytest.raises(ValueError, match="expected"):
            cg_iterations_reference.check(*bad)
    with pytest.raises(ValueError, match="at most"):
        gmres_steps_reference.check(tiles, column, row, first, x, 100_000)
