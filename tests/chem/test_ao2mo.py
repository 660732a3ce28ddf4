"""AO to MO: the defining sums for any shape, order, packing and memory; the engine's products checked."""

import numpy as np
import pytest
from doubles import FaultyEngine, RecordingEngine
from pyscf import ao2mo as pyscf_ao2mo
from pyscf import gto

import trnpy.chem
from trnpy import Reason, policy, trace
from trnpy._engine.engines import engine
from trnpy.chem._ao2mo import COPIES, _ao2mo_naive, ao2mo, unpacked
from trnpy.chem._rows import STACK

NAO, NAUX = 5, 7


def integrals(kind, seed=0):
    shapes = {"three-index": (NAUX, NAO, NAO), "packed": (NAUX, 15), "four-index": (NAO,) * 4}
    return np.random.default_rng(seed).standard_normal(shapes[kind])


def orbitals(*counts):
    rng = np.random.default_rng(1)
    return [rng.standard_normal((NAO, n)) for n in counts]


@pytest.mark.parametrize("kind", ["three-index", "packed", "four-index"])
@pytest.mark.parametrize("counts", [(2, 4), (4, 2), (1, 1), (6, 3)])
@pytest.mark.parametrize("force", [False, True])
def test_integrals_are_the_defining_sums(kind, counts, force):
    g, c = integrals(kind), orbitals(*counts)
    with policy(force=force), trace() as decisions:
        result = ao2mo(g, *c)
    assert decisions[0].on_device == force
    np.testing.assert_allclose(result, _ao2mo_naive(g, *c), rtol=1e-12, atol=1e-12)
    assert result.flags.c_contiguous and result.flags.writeable and result.dtype == np.float64


@pytest.mark.parametrize("naux", [STACK - 1, STACK, STACK + 1, 2 * STACK + 5])
def test_the_host_transforms_a_stack_at_a_time(naux):
    g, c = np.random.default_rng(naux).standard_normal((naux, NAO, NAO)), orbitals(4, 2)
    for given in (g, g[:, ::-1], g.swapaxes(1, 2), np.asfortranarray(g)):
        np.testing.assert_allclose(ao2mo(given, *c), _ao2mo_naive(given, *c), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("nao", [0, 1, 3])
@pytest.mark.parametrize("counts", [(0, 0), (0, 2), (2, 0), (2, 2)])
def test_nothing_gives_nothing(nao, counts):
    c = [np.ones((nao, n)) for n in counts]
    for g in (np.ones((0, nao, nao)), np.ones((2, nao, nao)), np.ones((2, nao * (nao + 1) // 2)), np.ones((nao,) * 4)):
        shape = (*counts, *counts) if g.ndim == 4 else (*counts, len(g))
        np.testing.assert_allclose(ao2mo(g, *c), np.full(shape, float(nao) ** (4 if g.ndim == 4 else 2)), rtol=1e-13)


def test_bra_and_ket_may_differ():
    g, (i, a, k, l) = integrals("four-index"), orbitals(2, 4, 3, 1)
    with policy(force=True):
        forced = ao2mo(g, i, a, (k, l))
    np.testing.assert_allclose(forced, _ao2mo_naive(g, i, a, (k, l)), rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(ao2mo(g, i, a, (k, l)), forced, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("kind", ["three-index", "packed", "four-index"])
@pytest.mark.parametrize("stack", [1, 3, 7, 100])
def test_any_budget_gives_the_same_integrals(kind, stack):
    g, c = integrals(kind), orbitals(2, 4)
    recording = RecordingEngine()
    with engine(recording), policy(force=True), trace() as decisions:
        result = ao2mo(g, *c, memory=stack * COPIES * NAO**2 * 8)
    np.testing.assert_allclose(result, _ao2mo_naive(g, *c), rtol=1e-12, atol=1e-12)
    assert sum(2 * np.prod(shape) for shape in recording.shapes) == decisions[0].flops
    if kind != "four-index":
        assert len(recording.shapes) == 2 * -(-NAUX // stack)


def test_a_molecule_s_integrals_are_pyscf_s():
    mol = gto.M(atom="O 0 0 0; H 0 0.757 0.587; H 0 -0.757 0.587", basis="6-31g", verbose=0)
    eri = mol.intor("int2e")
    c = np.linalg.qr(np.random.default_rng(0).standard_normal((mol.nao, mol.nao)))[0]
    i, a = c[:, :5], c[:, 5:]
    expected = pyscf_ao2mo.general(eri, (i, a, i, a), compact=False).reshape(5, 8, 5, 8)
    np.testing.assert_allclose(ao2mo(eri, i, a), expected, rtol=0, atol=1e-12)


def test_triangles_are_unpacked_row_by_row():
    full = unpacked(np.arange(6.0)[None])[0]
    np.testing.assert_array_equal(full, [[0, 1, 3], [1, 2, 4], [3, 4, 5]])


TINY = 2.0**-700  # squares underflow


@pytest.mark.parametrize("scale", [1.0, TINY])
@pytest.mark.parametrize("fault", FaultyEngine.FAULTS)
def test_a_faulty_engine_leaves_the_host_s_integrals(fault, scale):
    g, c = integrals("three-index") * scale, orbitals(2, 4)
    with engine(FaultyEngine(fault)), policy(force=True, fallback="log", time_limit=0.02), trace() as decisions:
        result = ao2mo(g, *c)
    np.testing.assert_array_equal(result, ao2mo(g, *c))
    assert decisions[0].reason in (Reason.ERROR, Reason.OOM, Reason.ACCURACY)


@pytest.mark.parametrize("scale", [1.0, TINY])
@pytest.mark.parametrize("kind", ["three-index", "packed", "four-index"])
def test_the_error_measure_sees_a_wrong_result(kind, scale):
    op = ao2mo.__trnpy_op__
    g, c = integrals(kind) * scale, orbitals(2, 4)
    problem = op.prepare(g, *c)
    good = ao2mo(g, *c)
    assert problem.error(good) < 1e-14 and problem.error(good * 1.001) > 1e-7


def test_empty_orbitals_give_empty_integrals():
    assert ao2mo(integrals("packed"), *orbitals(0, 4)).shape == (0, 4, NAUX)
    assert ao2mo(integrals("four-index"), *orbitals(0, 4)).shape == (0, 4, 0, 4)


@pytest.mark.parametrize(
    ("g", "c", "error", "message"),
    [
        (np.ones(3), (5, 5), ValueError, r"integrals has shape \(3,\): expected \(naux, nao, nao\)"),
        (np.ones((3, 14)), (5, 5), ValueError, "14 columns are no lower triangle"),
        (np.ones((3, 5, 4)), (5, 5), ValueError, r"integrals has shape \(3, 5, 4\)"),
        (np.ones((5, 5, 5, 4)), (5, 5), ValueError, r"integrals has shape \(5, 5, 5, 4\)"),
        (np.ones((3, 15), complex), (5, 5), TypeError, "integrals is complex128"),
        (np.ones((3, 15)), (5, 4), ValueError, "c_right has 4 rows: expected nao = 5"),
    ],
)
@pytest.mark.parametrize("force", [False, True])
def test_arguments_that_do_not_fit_are_said_so(g, c, error, message, force):
    with policy(force=force), pytest.raises(error, match=message):
        ao2mo(g, *(np.ones((rows, 2)) for rows in c))


def test_other_mistakes_are_said_so():
    g, c = integrals("packed"), orbitals(2, 4)
    with pytest.raises(ValueError, match="three-index integrals have no ket"):
        ao2mo(g, *c, tuple(c))
    with pytest.raises(ValueError, match=r"ket has 1 entries: expected \(c_left, c_right\)"):
        ao2mo(integrals("four-index"), *c, (c[0],))
    with pytest.raises(ValueError, match="memory=10 bytes: one matrix of 5 atomic orbitals takes 600 bytes"):
        ao2mo(g, *c, memory=10)


def test_the_public_name_is_the_function_and_not_a_module():
    assert trnpy.chem.ao2mo is ao2mo and "ao2mo" in dir(trnpy.chem)
