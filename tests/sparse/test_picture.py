"""The picture of a matrix' blocks and the command that draws it."""

import re

import numpy as np
import pytest
import scipy.io
import scipy.sparse
import scipy.spatial
from hypothesis import given, settings
from hypothesis import strategies as st

import trnpy.sparse
from trnpy._cli import runner
from trnpy.sparse import _picture
from trnpy.sparse._analysis import block_analysis


def drawn(page, shape):
    """The shade of every cell, as a browser would fill the paths."""
    shade = np.zeros(shape, int)
    opacities = [f"{_picture.opacity(value):.2f}" for value in range(1, _picture.SHADES + 1)]
    for opacity, path in re.findall(r'<path opacity="([\d.]+)" d="([^"]*)"', page):
        for x, y, length in re.findall(r"M(\d+) (\d+)h(\d+)v1h-\d+z", path):
            run = shade[int(y), int(x) : int(x) + int(length)]
            assert (run == 0).all()  # nothing is drawn twice
            run[:] = opacities.index(opacity) + 1
    return shade


@settings(max_examples=40, deadline=None)
@given(
    st.integers(0, 2**32),
    st.sampled_from((1, 7, 128, 300)),
    st.sampled_from((1, 130, 257)),
    st.sampled_from((0.0, 0.01, 0.3, 1.0)),
    st.sampled_from(("csr", "csc")),
)
def test_the_picture_shows_the_density_of_every_cell(seed, m, n, density, layout):
    rng = np.random.default_rng(seed)
    pattern = rng.random((m, n)) < density
    a = scipy.sparse.coo_array(pattern.astype(float)).asformat(layout)
    counts, side = _picture.cells(a, 16)
    assert side == 16
    expected = [[pattern[i : i + 16, j : j + 16] for j in range(0, n, 16)] for i in range(0, m, 16)]
    assert np.array_equal(counts, [[cell.sum() for cell in row] for row in expected])
    shade = _picture.shades(counts, side, a.shape)
    for i, row in enumerate(expected):
        for j, cell in enumerate(row):
            full = cell.mean()
            wanted = 0 if full == 0 else min(s for s in range(1, 7) if s == 6 or full <= 4.0 ** (s - 6))
            # At a border of two shades rounding decides.
            assert shade[i, j] == wanted or full * 4.0 ** (6 - shade[i, j]) == pytest.approx(1, rel=1e-12)
    ours = getattr(trnpy.sparse, f"{layout}_array")(a)
    analysis = block_analysis(ours)
    page = _picture.page(analysis.blocks, str(analysis), ours)
    counts, side = _picture.cells(ours, 128)
    assert np.array_equal(drawn(page, counts.shape), _picture.shades(counts, side, a.shape))


def test_a_large_matrix_has_a_cell_for_several_blocks():
    n = 128 * 1000
    a = scipy.sparse.eye_array(n, format="csr")
    counts, side = _picture.cells(a, 128)
    assert side == 4 * 128 and counts.shape == (250, 250)
    assert counts.sum() == n and np.array_equal(counts, np.diag(counts.diagonal()))


def test_slabs_count_the_same(monkeypatch):
    a = scipy.sparse.random_array((500, 400), density=0.1, rng=0, format="csr")
    whole = _picture.cells(a, 16)[0]
    for slab in (1, 77, 1000):
        monkeypatch.setattr(_picture, "SLAB", slab)
        assert np.array_equal(_picture.cells(a, 16)[0], whole)


@pytest.mark.parametrize("suffix", [".npz", ".mtx"])
def test_the_command_draws_what_a_file_holds(suffix, tmp_path, capsys):
    a = scipy.sparse.random_array((300, 300), density=0.02, rng=0, format="csr")
    path, out, points = tmp_path / f"a{suffix}", tmp_path / "a.html", tmp_path / "points.npy"
    (scipy.sparse.save_npz if suffix == ".npz" else scipy.io.mmwrite)(path, a)
    np.save(points, np.random.default_rng(0).random((300, 3)))
    assert runner.main(["blocks", str(path), "--html", str(out), "--machine", "trn1"]) == 0
    assert "300 x 300, 1800 stored elements" in capsys.readouterr().out
    assert drawn(out.read_text(), (3, 3)).all() and "modelled" in out.read_text()
    assert runner.main(["blocks", str(path), "--order", "morton", "--points", str(points)]) == 0
    assert runner.main(["blocks", str(path), "--order", "rcm"]) == 0


@pytest.mark.parametrize(
    ("argv", "says"),
    [
        (["{}/none.npz"], "No such file"),
        (["{}/text.mtx"], "Matrix Market"),
        (["{}/text.npz"], ""),
        (["{}/dense.mtx"], "a dense matrix: expected a sparse one"),
        (["{}/tall.npz", "--order", "rcm"], "expected a square one"),
        (["{}/tall.npz", "--order", "morton"], "--order morton and --points go together"),
        (["{}/tall.npz", "--order", "spiral"], "invalid choice"),
    ],
)
def test_the_command_says_what_is_wrong_in_one_line(argv, says, tmp_path, capsys):
    for name in ("text.mtx", "text.npz"):
        (tmp_path / name).write_text("not a matrix\n")
    scipy.io.mmwrite(tmp_path / "dense.mtx", np.eye(3))
    scipy.sparse.save_npz(tmp_path / "tall.npz", scipy.sparse.csr_array(np.ones((4, 3))))
    with pytest.raises(SystemExit) as stop:
        runner.main(["blocks", *(a.format(tmp_path) for a in argv)])
    said = capsys.readouterr().err
    assert stop.value.code == 2 and says in said and said.count("\n") == 1 and said.startswith("trnpy blocks: ")
