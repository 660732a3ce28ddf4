"""Analysis of the blocks of a sparse matrix: density, padding, modelled seconds, and orders that gather points."""

import tracemalloc

import numpy as np
import pytest
import scipy.io
import scipy.sparse
import scipy.spatial

import trnpy
import trnpy.sparse
from trnpy.sparse._analysis import block_analysis


@pytest.mark.route
def test_the_analysis_prints_density_padding_modelled_seconds_and_the_decision(capsys):
    rng = np.random.default_rng(2)
    blocks = [trnpy.sparse.coo_matrix(rng.standard_normal((300, 300))) for _ in range(8)]
    a = trnpy.sparse.block_diag(blocks, format="csr")
    with trnpy.policy(machine="trn1"):
        result = trnpy.sparse.block_analysis(a, columns=64)
    printed = capsys.readouterr().out
    assert printed == f"{result}\n"
    for phrase in ("density within them", "in 4 buckets", "on trn1", "modelled", "predicted", "share columns"):
        assert phrase in printed
    assert 0 < result.resident_s < result.one_shot_s
    with trnpy.trace() as log:
        a @ rng.standard_normal((2400, 64))
    assert (log[0].reason, log[0].route) == (result.decision.reason, result.decision.route)


def test_reordering_gathers_a_shuffled_band(capsys):
    n = 1024
    band = scipy.sparse.diags_array([1.0] * 9, offsets=range(-4, 5), shape=(n, n), format="csr")
    shuffle = np.random.default_rng(3).permutation(n)
    a = trnpy.sparse.csr_array(band[shuffle][:, shuffle])
    as_it_is, rcm, back = (trnpy.sparse.block_analysis(a, order=o) for o in (None, "rcm", np.argsort(shuffle)))
    assert as_it_is.blocks.count == 64 and rcm.blocks.count <= 30 and back.blocks.count == 22


def test_what_cannot_be_analysed_says_what_is_expected(capsys):
    with pytest.raises(TypeError, match=r"ndarray.*expected a sparse"):
        trnpy.sparse.block_analysis(np.eye(3))
    with pytest.raises(ValueError, match=r"3 x 4.*square"):
        trnpy.sparse.block_analysis(trnpy.sparse.csr_array((3, 4)), order="rcm")
    with pytest.raises(ValueError, match=r"'mmd'.*'rcm'"):
        trnpy.sparse.block_analysis(trnpy.sparse.csr_array((3, 3)), order="mmd")
    for a in (
        trnpy.sparse.csr_array((0, 5)),
        trnpy.sparse.csr_array(np.eye(3, dtype=int)),
        scipy.sparse.dok_array((3, 3)),
    ):
        trnpy.sparse.block_analysis(a)
    assert "no path for int64" in capsys.readouterr().out
    a = scipy.sparse.csr_array(
        scipy.sparse.kron(np.ones((400, 400)), scipy.sparse.csr_array(([1.0], ([0], [0])), shape=(128, 128)))
    )
    assert trnpy.sparse.block_analysis(a, columns=8).one_shot_s is None
    assert "its tiles exceed one operand" in capsys.readouterr().out


@pytest.mark.parametrize("n", (10**5, pytest.param(10**6, marks=pytest.mark.slow)))
def test_a_million_rows_are_analysed_and_multiplied_without_a_copy_of_the_matrix(n, capsys):
    """Peak memory of both together over SciPy's own of the product, both above the operands."""
    each = 10
    rng = np.random.default_rng(4)
    arrays = rng.random(n * each), rng.integers(0, n, n * each, dtype=np.int32), np.arange(0, n * each + 1, each)
    theirs = scipy.sparse.csr_array(arrays, shape=(n, n))
    ours = trnpy.sparse.csr_array(arrays, shape=(n, n))
    x = rng.standard_normal((n, 8))
    peaks = []
    for a in (theirs, ours):
        tracemalloc.start()
        a @ x
        if a is ours:
            trnpy.sparse.block_analysis(ours, 8)
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert peaks[1] <= 2 * peaks[0]


def test_the_curve_visits_a_quadrant_before_the_next():
    points = np.array([(x, y) for x in range(4) for y in range(4)], float)
    order = trnpy.sparse.morton_order(points)
    assert sorted(order) == list(range(16))
    for quarter in np.split(points[order], 4):
        assert (np.ptp(quarter, axis=0) == 1).all()


def test_the_curve_makes_a_screened_cluster_denser():
    rng = np.random.default_rng(0)
    points = rng.random((4000, 3))
    near = scipy.spatial.cKDTree(points).sparse_distance_matrix(scipy.spatial.cKDTree(points), 0.1).tocsr()
    a = trnpy.sparse.csr_array(near)
    by_chance, along = block_analysis(a).blocks, block_analysis(a, order=trnpy.sparse.morton_order(points)).blocks
    assert along.nnz == by_chance.nnz and along.count < by_chance.count / 2


@pytest.mark.parametrize("points", [np.ones(3), np.ones((3, 0)), [[np.nan, 1]], np.ones((2, 63))])
def test_points_that_have_no_curve(points):
    with pytest.raises(ValueError, match="points"):
        trnpy.sparse.morton_order(points)


def test_no_points_and_equal_points_keep_their_order():
    assert len(trnpy.sparse.morton_order(np.empty((0, 2)))) == 0
    assert np.array_equal(trnpy.sparse.morton_order(np.ones((5, 2))), np.arange(5))
