"""Tests of the comparison with AWS's spectral sample: its reference, its layouts, and that wrong kernels are found."""

import numpy as np
import pytest

from conformance.nki import main
from conformance.nki._spectral import ERROR, MANY, ONE, VISCOSITY, A, Grid, Sample, errors

IDLE = """
import nki, nki.isa as nisa, nki.language as nl

@nki.jit
def {name}(*arguments):
    outputs = []
    for x in arguments[:12]:
        out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
        nisa.dma_copy(dst=out, src=x)
        outputs.append(out)
    return tuple(outputs)
"""


def test_forces_of_the_reference_keep_a_real_solenoidal_velocity_and_its_energy():
    grid = Grid(32)
    start = grid.start(0.3)
    u, force = grid.stage(start, np.zeros_like(start), 0)
    assert np.abs((grid.waves * u).sum(axis=0)).max() <= 1e-13 * np.abs(u).max()
    assert np.abs(np.fft.ifftn(u, axes=(1, 2, 3)).imag).max() <= 1e-13
    work = np.conj(start) * force
    assert abs(work.sum().real) <= 1e-13 * np.abs(work).sum() and np.abs(force).max() > 1e-3 * np.abs(u).max()


def test_a_step_of_a_vortex_loses_the_energy_that_its_enstrophy_says():
    grid = Grid(32)
    u, rate = start, _ = grid.start(0.0), np.zeros((3, 32, 32, 32), complex)
    for which in range(len(A)):
        u, rate = grid.stage(u, rate, which)
    (energy, enstrophy), (later, less) = grid.sums(start), grid.sums(u)
    assert energy - later == pytest.approx(VISCOSITY * (enstrophy + less) * grid.dt, rel=1e-2)


def test_a_taylor_green_vortex_has_its_energy_and_enstrophy():
    assert Grid(32).sums(Grid(32).start(0.0)) == pytest.approx([1 / 8, 3 / 8], rel=1e-14)


@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_what_is_laid_out_for_ranks_comes_together_again(ranks, tmp_path):
    sample, field = Sample(tmp_path, Grid(32), ranks), np.random.default_rng(0).standard_normal((32, 32, 32))
    parts = sample.laid_out(field)
    assert len(parts) == ranks and all(p.dtype == np.float32 and p.flags.c_contiguous for p in parts)
    np.testing.assert_array_equal(sample.together(parts), field.astype(np.float32))


def test_rounding_to_float32_is_within_the_limit_and_a_wrong_force_is_not():
    grid = Grid(32)

    def rounded(force):
        def stage(u, rate, which):
            new, change = grid.stage(u, rate, which)
            change, new = change * force, new + A[which] * change * (force - 1)
            return (x.astype(np.complex64).astype(complex) for x in (new, change))

        return max(max(each) for each in errors(stage, grid, 2, 0.3))

    assert 0 < rounded(1.0) <= ERROR < rounded(1.0 + 1e-4)


def test_kernels_that_do_nothing_are_wrong_and_too_cheap(tmp_path, capsys):
    (tmp_path / "kernels").mkdir()
    (tmp_path / "kernels" / ONE).write_text(IDLE.format(name="tgv_stage"))
    assert main(["--spectral", str(tmp_path)]) == 2 and MANY in capsys.readouterr().out
    (tmp_path / "kernels" / MANY).write_text(IDLE.format(name="tgv_fused"))
    assert main(["--spectral", str(tmp_path), "--points", "32"]) == 1
    rows = [line.split() for line in capsys.readouterr().out.splitlines() if "vortex" in line or "^3  " in line]
    assert len(rows) == 8 and {row[-1] for row in rows} == {"NO"}
