"""Products of one matrix with blocks of few columns: the proof keeps W^T A, sees wrong blocks, passes healthy ones."""

import numpy as np
import pytest
from dry_runs import tallied

import trnpy
import trnpy.sparse.linalg
from conformance.healthy import HOSTILE
from nkisim.hardware import TRN2
from trnpy._engine.engines import DeviceEngine
from trnpy._engine.handles import Refused, stored
from trnpy._engine.proof import checksums
from trnpy._engine.proof.engine import Proving
from trnpy._nki.simulated import SimulatorRuntime
from trnpy.sparse.linalg._expm_multiply import usual_products

N = 150


def matrix(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape)


def excess(a, b, c, **options):
    return checksums.excess_by(checksums.kept(a), b, c, **options)


@pytest.mark.parametrize("right", HOSTILE)
@pytest.mark.parametrize("left", HOSTILE)
def test_products_of_blas_of_hostile_data_pass(left, right):
    rng = np.random.default_rng(1)
    with np.errstate(all="ignore"):
        a = HOSTILE[left](rng.standard_normal((60, 60)), rng)
        b = HOSTILE[right](rng.standard_normal((60, 60)), rng)[:, :7]
        c = a @ b
    if all(np.isfinite(x).all() for x in (a, b, c)):
        assert excess(a, b, c) <= 1


@pytest.mark.parametrize("shape", [(1, 1, 1), (5, 1, 1), (1, 5, 1), (N, 70, 3), (70, N, 3)])
def test_products_of_any_shape_and_layout_pass_and_wrong_ones_do_not(shape):
    m, k, n = shape
    a, b = matrix(2 * m, 2 * k)[::2, ::2], matrix(2 * k, 2 * n, seed=1)[::2, ::2]
    for left in (a, a.copy(), np.asfortranarray(a)):
        for found in (a @ b, np.asfortranarray(a @ b)):
            assert excess(left, b, found) <= 1 < excess(left, b, found + 1)


def test_constants_whose_roundings_have_one_sign_pass():
    a, b = np.full((600, 4096), 0.7), np.ones((4096, 2))
    assert excess(a, b, np.full((600, 2), 4096 * 0.7)) <= 1


def test_every_element_that_is_wrong_by_what_the_proof_of_a_whole_product_sees_is_seen():
    a = np.exp(8 * matrix(N, 1)) * matrix(N, N, seed=1)  # rows of unlike size
    b = matrix(N, 3, seed=2)
    c, of = a @ b, checksums.kept(a)
    seen = 4 * checksums.CERTIFIED * np.finfo(float).eps / 2 * np.sqrt(1.08 * N)
    least = seen * np.outer(np.linalg.norm(a, axis=1), np.linalg.norm(b, axis=0))
    for i, j in np.ndindex(c.shape):
        wrong = c.copy()
        wrong[i, j] += 1.01 * least[i, j]
        assert checksums.excess_by(of, b, wrong) > 1


def test_blocks_of_other_operands_and_exchanged_elements_are_seen():
    a, b = matrix(N, N), matrix(N, 3, seed=1)
    of, c = checksums.kept(a), a @ b
    assert checksums.excess_by(of, b, a @ matrix(N, 3, seed=2)) > 1
    assert checksums.excess_by(of, b, c[:, ::-1]) > 1
    for i in range(N - 1):
        wrong = c.copy()
        wrong[[i, i + 1]] = wrong[[i + 1, i]]
        assert checksums.excess_by(of, b, wrong) > 1


@pytest.mark.parametrize("digits", [3, 5, 7])
def test_products_of_few_digits_have_as_much_tolerance_as_the_proof_of_a_whole_product_gives(digits):
    a, b = matrix(N, N), matrix(N, 3, seed=1)
    error = 256.0 ** (7 - digits) * np.sqrt(N) * np.finfo(float).eps / 2
    off = error * np.outer(np.abs(a).max(axis=1), np.abs(b).max(axis=0))
    assert excess(a, b, a @ b + off, digits=digits) <= 1
    assert excess(a, b, a @ b + 1e5 * off, digits=digits) > 1


def test_what_may_overflow_is_refused_and_what_may_not_is_wrong():
    a, b = np.full((40, 40), 1e200), np.full((40, 1), 1e200)
    with pytest.raises(Refused, match="may overflow"):
        checksums.prove_by(checksums.kept(a), a, b, np.full((40, 1), np.inf))
    with pytest.raises(checksums.Wrong):
        checksums.prove_by(checksums.kept(a / 1e200), a / 1e200, b / 1e200, np.full((40, 1), np.nan))


def test_weights_are_of_one_operand_and_both_its_sides_and_of_no_other():
    a, b, wide = (stored(matrix(*shape)) for shape in ((40, 40), (40, 2), (2, 40)))
    for _ in range(3):
        checksums.prove_kept(a, b, a.values @ b.values)
        checksums.prove_kept(wide, a, wide.values @ a.values)  # of the transpose
    with pytest.raises(checksums.Wrong):
        checksums.prove_kept(a, b, a.values @ b.values + 1)
    with pytest.raises(checksums.Wrong):
        checksums.prove_kept(wide, a, wide.values @ a.values + 1)
    assert set(a.store.proofs) == {False, True} and not b.store.proofs and not wide.store.proofs
    again = stored(a.values)
    checksums.prove_kept(again, b, a.values @ b.values)
    assert not np.array_equal(again.store.proofs[False].weights, a.store.proofs[False].weights)


class Planted(SimulatorRuntime):
    """A chip of whose results the third comes back with one element changed."""

    def __init__(self):
        super().__init__(TRN2)
        self.results = 0

    def get(self, buffer):
        a = super().get(buffer)
        if a.ndim == 3:
            self.results += 1
            if self.results == 3:
                a[1, 5, 1] ^= 1 << 7
        return a


def test_a_fault_in_a_later_product_of_a_handle_is_noticed():
    engine = Proving(DeviceEngine(Planted()))
    a = engine.put(matrix(N, N))
    with trnpy.policy(force=True):
        for seed in (1, 2):
            b = matrix(N, 3, seed=seed)
            np.testing.assert_allclose(engine.get(engine.matmul(a, b)), matrix(N, N) @ b, rtol=1e-10, atol=1e-12)
        with pytest.raises(checksums.Wrong):
            engine.get(engine.matmul(a, matrix(N, 3, seed=3)))


def test_a_dry_run_counts_the_matrix_once_for_all_its_products():
    a, b = np.empty((1024, 1024)), np.empty((1024, 8))
    problem = trnpy.sparse.linalg.expm_multiply.__trnpy_op__.prepare(a, b)
    tally = tallied(problem)
    proved = sum(elements for (kind, *_), elements in tally.host if "proof" in kind)
    assert dict(tally.launches)["float64_matmul"] == 34
    columns = sum(width for width, _ in usual_products(8))  # of each operand and result, with two columns of weights
    assert proved == 2 * a.size + 2 * 2 * columns * len(a)  # A, and its transpose for estimates of norms


def test_products_of_handles_are_added_to_what_is_given():
    engine, shape = Proving(DeviceEngine(SimulatorRuntime(TRN2))), (20, 20)
    a, b, c = (matrix(*shape, seed=seed) for seed in (1, 2, 3))
    with trnpy.policy(force=True):
        for operands in ((a, b, c), tuple(map(engine.put, (a, b, c)))):
            found = engine.matmul(*operands[:2], alpha=2.0, beta=3.0, c=operands[2])
            found = found if isinstance(found, np.ndarray) else engine.get(found)
            np.testing.assert_allclose(found, 2 * a @ b + 3 * c, rtol=0, atol=1e-12)
