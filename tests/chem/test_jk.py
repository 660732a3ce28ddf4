"""J and K from density-fitted integrals: the defining sums for any density, packing and memory."""

import numpy as np
import pytest
from doubles import FaultyEngine, RecordingEngine

import trnpy.chem
from benchmarks import scf
from nkisim.hardware import TRN2
from trnpy import Reason, policy, trace
from trnpy._engine.engines import engine
from trnpy.chem._ao2mo import unpacked
from trnpy.chem._rows import STACK
from trnpy.chem.jk import COPIES, _build_jk_df_naive, build_jk_df

NAO, NAUX = 6, 9
PACKED = np.random.default_rng(0).standard_normal((NAUX, 21))
FORMS = {"packed": PACKED, "full": unpacked(PACKED)}


def densities(*shape):
    return np.random.default_rng(1).standard_normal(shape)


def check(result, expected, tolerance=1e-12):
    for ours, theirs in zip(result, expected, strict=True):
        assert ours.shape == theirs.shape
        np.testing.assert_allclose(ours, theirs, rtol=tolerance, atol=tolerance * 100)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("shape", [(NAO, NAO), (1, NAO, NAO), (3, NAO, NAO)])
@pytest.mark.parametrize("force", [False, True])
def test_matrices_are_the_defining_sums_of_densities_symmetric_or_not(form, shape, force):
    dm = densities(*shape)
    with policy(force=force), trace() as decisions:
        result = build_jk_df(FORMS[form], dm)
    assert decisions[0].on_device == force
    check(result, _build_jk_df_naive(PACKED, dm))


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("force", [False, True])
def test_orbitals_give_the_same_exchange(form, force):
    c = [densities(NAO, 2), densities(NAO, 4), np.empty((NAO, 0))]
    dm = np.stack([x @ x.T for x in c])
    recording = RecordingEngine()
    with engine(recording), policy(force=force), trace() as decisions:
        check(build_jk_df(FORMS[form], dm, orbitals=c), _build_jk_df_naive(PACKED, dm))
        check(build_jk_df(FORMS[form], dm[0], orbitals=c[0]), _build_jk_df_naive(PACKED, dm[0]))
    assert bool(recording.shapes) == force == decisions[0].on_device


@pytest.mark.parametrize("stack", [1, 2, 9, 100])
@pytest.mark.parametrize("known", [False, True])
def test_any_budget_gives_the_same_matrices(stack, known):
    c = densities(NAO, 3)
    recording = RecordingEngine()
    with engine(recording), policy(force=True), trace() as decisions:
        result = build_jk_df(PACKED, c @ c.T, orbitals=c if known else None, memory=stack * COPIES * NAO**2 * 8)
    check(result, _build_jk_df_naive(PACKED, c @ c.T))
    assert decisions[0].on_device and len(recording.shapes) == 2 * -(-NAUX // stack)


@pytest.mark.parametrize("naux", [STACK - 1, STACK, STACK + 1])
def test_the_host_builds_them_a_stack_at_a_time(naux):
    b, c = np.random.default_rng(naux).standard_normal((naux, 21)), densities(NAO, 3)
    for known in (c, None):
        check(build_jk_df(b, c @ c.T, orbitals=known), _build_jk_df_naive(b, c @ c.T))


@pytest.mark.parametrize("naux", [0, 2])
@pytest.mark.parametrize("nao", [0, 1, 3])
@pytest.mark.parametrize("shape", [(), (0,), (2,)])
@pytest.mark.parametrize("known", [False, True])
def test_nothing_gives_nothing(naux, nao, shape, known):
    c = np.ones((nao, 2))
    dm = np.broadcast_to(c @ c.T, (*shape, nao, nao))
    orbitals = None if not known else [c] * shape[0] if shape else c
    for b in (np.ones((naux, nao, nao)), np.ones((naux, nao * (nao + 1) // 2))):
        j, k = build_jk_df(b, dm, orbitals=orbitals)
        np.testing.assert_allclose(j, np.full(dm.shape, 2.0 * naux * nao**2), rtol=1e-13)
        np.testing.assert_allclose(k, np.full(dm.shape, 2.0 * naux * nao**2), rtol=1e-13)


def test_only_what_is_asked_for_is_built():
    dm = densities(NAO, NAO)
    j, k = _build_jk_df_naive(PACKED, dm)
    with policy(force=True), trace() as decisions:
        only_j, only_k = build_jk_df(PACKED, dm, with_k=False), build_jk_df(PACKED, dm, with_j=False)
    assert only_j[1] is None and only_k[0] is None
    check((only_j[0], only_k[1]), (j, k))
    assert [d.reason for d in decisions] == [Reason.MEMORY_BOUND, Reason.FORCED]


@pytest.mark.parametrize("fault", FaultyEngine.FAULTS)
def test_a_faulty_engine_leaves_the_host_s_matrices(fault):
    dm = densities(2, NAO, NAO)
    with engine(FaultyEngine(fault)), policy(force=True, fallback="log", time_limit=0.02), trace() as decisions:
        result = build_jk_df(PACKED, dm)
    check(result, build_jk_df(PACKED, dm), 0)
    assert decisions[0].reason in (Reason.ERROR, Reason.OOM, Reason.ACCURACY)


def test_the_error_measure_sees_a_wrong_exchange():
    op, dm = build_jk_df.__trnpy_op__, densities(2, NAO, NAO)
    problem = op.prepare(PACKED, dm)
    j, k = build_jk_df(PACKED, dm)
    assert problem.error((j, k)) < 1e-14 and problem.error((j, k * 1.001)) > 1e-7


@pytest.mark.parametrize(
    ("b", "dm", "options", "error", "message"),
    [
        (np.ones((2, 5)), np.ones((2, 2)), {}, ValueError, "5 columns are no lower triangle"),
        (np.ones((2, 3, 2)), np.ones((2, 2)), {}, ValueError, r"b has shape \(2, 3, 2\)"),
        (np.ones((2, 3)), np.ones((3, 3)), {}, ValueError, r"dm has shape \(3, 3\): expected \(2, 2\)"),
        (np.ones((2, 3)), np.ones((2, 2), complex), {}, TypeError, "dm is complex128"),
        (np.ones((2, 3)), np.ones((2, 2)), {"orbitals": [np.ones((2, 1))] * 2}, ValueError, "2 sets of orbitals for 1"),
        (np.ones((2, 3)), np.ones((2, 2)), {"orbitals": np.ones((3, 1))}, ValueError, "orbitals have 3 rows"),
        (np.ones((2, 3)), np.ones((2, 2)), {"memory": 1}, ValueError, "memory=1 bytes: one matrix of 2 atomic"),
    ],
)
@pytest.mark.parametrize("force", [False, True])
def test_arguments_that_do_not_fit_are_said_so(b, dm, options, error, message, force):
    with policy(force=force), pytest.raises(error, match=message):
        build_jk_df(b, dm, **options)


def test_the_public_name():
    assert trnpy.chem.build_jk_df is build_jk_df


def test_what_a_device_would_take_is_known_under_a_patch():
    b = np.random.default_rng(0).standard_normal((20, 40, 40))
    densities = np.stack([np.eye(40)] * 2)
    plain = build_jk_df(b, densities)[1]
    with trnpy.patched(), trnpy.trace():
        np.testing.assert_array_equal(build_jk_df(b, densities)[1], plain)


def test_the_what_if_of_a_run_without_a_device_counts_integrals_that_recur():
    b, c = np.zeros((558, 114 * 115 // 2)), np.zeros((114, 21))
    with policy(device="none"), trnpy.profile() as run, trace() as decisions:
        for _ in range(9):
            build_jk_df(b, c @ c.T, orbitals=c)
        build_jk_df(b.copy(), c @ c.T, orbitals=c)
    assert [d.model_reason for d in decisions] == [Reason.SLOWER] * 8 + [Reason.FASTER] + [Reason.SLOWER]
    assert decisions[7].device_s > decisions[8].device_s and run.what_if().modelled == 10
    assert "operands of 8 earlier calls" in decisions[8].model_detail


def test_cycles_of_an_scf_move_to_the_device_and_those_in_float32_where_float64_does_not_fit():
    found = {molecule.name: molecule for molecule in scf.MOLECULES}
    small, large, largest = (found[f"{name}, cc-pVDZ"] for name in ("benzene", "40 atoms", "60 atoms"))
    assert scf.cycles(found["water, cc-pVTZ"], TRN2, trusted=False, early=0)[2] == "-" * scf.CYCLES
    host_s, total_s, where = scf.cycles(small, TRN2, trusted=False, early=0)
    assert where == "--------mmmm"
    assert scf.cycles(small, TRN2, trusted=True, early=0)[1] * 1.2 < host_s < total_s  # moving late does not pay
    host_s, total_s, where = scf.cycles(large, TRN2, trusted=True, early=0)
    assert where == "--mmmmmmmmmm" and total_s * 1.5 < host_s  # digits do not fit, but the numbers stay
    assert scf.cycles(largest, TRN2, trusted=False, early=0)[2] == "-" * scf.CYCLES
    host_s, total_s, where = scf.cycles(largest, TRN2, trusted=False, early=0, cores=2)
    assert where == "--mmmmmmmmmm" and total_s * 1.5 < host_s  # half of them on each
    host_s, total_s, where = scf.cycles(largest, TRN2, trusted=False, early=scf.EARLY)
    assert where == "-fffff------" and total_s < host_s
