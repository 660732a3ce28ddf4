"""precision="mixed": early cycles in float32, never the last one, and energies as if all had been matched."""

import numpy as np
import pytest
from doubles import TwinEngine
from pyscf import gto, scf
from systems import WATER

from trnpy import explain, policy, trace
from trnpy._engine.engines import engine
from trnpy.chem import _fitted, _formats, accelerate, build_jk_df, patch_pyscf, pyscf_cycles
from trnpy.chem.pyscf_fitted import rows

# PySCF leaves its scratch files to the garbage collector.
pytestmark = pytest.mark.filterwarnings(
    "ignore:unclosed file:ResourceWarning",
    "ignore:Exception ignored in. <_io.FileIO:pytest.PytestUnraisableExceptionWarning",
)

HARTREE = 1e-9  # what energies may differ by
JK = next(iter(rows()))
MIXED = {"force": True, "precision": "mixed"}


@pytest.fixture(autouse=True)
def device():
    with engine(TwinEngine()):
        yield


def field(kind=scf.RHF, spin=0, **options):
    return kind(gto.M(atom=WATER, basis="sto-3g", spin=spin, verbose=0), **options).density_fit()


def kernels(decisions):
    """What J and K of each cycle launched: words of digits, or numbers of float32."""
    taken = [dict(d.launches) for d in decisions if d.op in (JK, "trnpy.chem.build_jk_df") and d.on_device]
    return ["syrk" if "syrk" in found else "words_matmul" if "words_matmul" in found else "products" for found in taken]


def test_the_last_cycles_are_matched_and_the_energy_is_pyscf_s():
    expected = field().run().e_tot
    for run in (lambda mf: mf.run(), lambda mf: accelerate(mf).run()):
        mf = field()
        with patch_pyscf(), policy(**MIXED), trace() as decisions:
            run(mf)
        launched = kernels(decisions)
        assert mf.converged and abs(mf.e_tot - expected) < HARTREE and mf.check_convergence is None
        early = launched.count("syrk")
        assert 2 <= early < len(launched) - 2 and launched == sorted(launched)


@pytest.mark.parametrize("kind, spin, options", [(scf.UHF, 2, {}), (scf.RKS, 0, {"xc": "b3lyp"})])
def test_other_fields(kind, spin, options):
    expected = field(kind, spin, **options).run().e_tot
    with patch_pyscf(), policy(**MIXED), trace() as decisions:
        mf = field(kind, spin, **options).run()
    assert mf.converged and abs(mf.e_tot - expected) < HARTREE
    launched = kernels(decisions)  # the first guess may have no orbitals: then J and K are products
    assert launched.count("syrk") > 1 and launched[-2:] == ["words_matmul"] * 2


def test_large_errors_of_early_cycles_do_not_change_the_energy(monkeypatch):
    """K of early cycles is wrong by a hundredth, and the check of results does not see it."""
    expected = field().run().e_tot
    right, planted = _formats.Single.added_squares, []

    def wrong(self, terms):
        found = right(self, terms)
        noise = np.random.default_rng(len(planted)).standard_normal(found.shape)
        planted.append(0.01 * (noise + noise.T) * found)
        return found + planted[-1]

    monkeypatch.setattr(_formats.Single, "added_squares", wrong)
    monkeypatch.setattr(_fitted, "_wrong", lambda *_: 0.0)
    mf = field()
    energies = []
    mf.callback = lambda envs: energies.append(envs["e_tot"])
    with patch_pyscf(), policy(**MIXED):
        mf.run()
    assert planted and max(abs(e - expected) for e in energies[: len(planted) - 1]) > 1e-4
    assert mf.converged and abs(mf.e_tot - expected) < HARTREE


def test_an_early_cycle_is_not_taken_for_converged(monkeypatch):
    """Even from the converged density, and where PySCF would accept any energy."""
    plain = field().run()
    monkeypatch.setattr(pyscf_cycles, "ROUGH", 0.0)  # no gradient is small enough: half of the cycles are early
    mf = field()
    mf.conv_tol, mf.conv_tol_grad, mf.max_cycle = 1.0, 1.0, 8
    with patch_pyscf(), policy(**MIXED), trace() as decisions:
        mf.kernel(dm0=plain.make_rdm1())
    assert mf.converged and kernels(decisions) == ["syrk"] * 5 + ["words_matmul"] * 2  # with the first guess's


def test_a_user_s_own_criterion_is_asked_of_matched_cycles_only_and_put_back():
    asked = []
    mf = field()
    mf.check_convergence = own = lambda envs: asked.append(envs["cycle"]) or len(asked) > 1
    with patch_pyscf(), policy(**MIXED), trace() as decisions:
        mf.run()
    assert mf.check_convergence is own and asked[0] == kernels(decisions).count("syrk") - 1


def test_an_error_puts_the_criterion_back_and_ends_float32():
    mf = field()
    mf.callback = lambda envs: 1 / 0
    with patch_pyscf(), policy(**MIXED), pytest.raises(ZeroDivisionError):
        mf.run()
    assert "check_convergence" not in vars(mf) and not pyscf_cycles._early.get()


def test_a_criterion_set_in_a_matched_cycle_stays():
    mf = field()

    def done(envs):
        return True

    mf.callback = lambda envs: pyscf_cycles._early.get() or setattr(mf, "check_convergence", done)
    with patch_pyscf(), policy(**MIXED):
        mf.run()
    assert mf.check_convergence is done


@pytest.mark.parametrize("change", ["direct_scf", "one cycle"])
def test_where_cycles_build_on_each_other_or_there_is_one_all_are_matched(change):
    mf = field()
    if change == "direct_scf":
        mf.direct_scf = True
    else:
        mf.max_cycle = 1
    with patch_pyscf(), policy(**MIXED), trace() as decisions:
        mf.run()
    assert kernels(decisions) and "syrk" not in kernels(decisions)


def test_other_calls_are_matched():
    b, c = np.random.default_rng(0).standard_normal((9, 21)), np.random.default_rng(1).standard_normal((6, 3))
    found = []
    for precision in ("matched", "mixed"):
        with policy(force=True, precision=precision):
            found.append(build_jk_df(b, c @ c.T, orbitals=c))
            decision = explain(build_jk_df, b, c @ c.T, orbitals=c)
        found[-1] += (decision.device_s,)
    for one, other in zip(*found, strict=True):
        np.testing.assert_array_equal(one, other)
