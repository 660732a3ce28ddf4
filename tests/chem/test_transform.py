"""Integral transformations by the kernel ao_to_mo: as good as the host's, in any memory, and checked."""

import ml_dtypes
import numpy as np
import pytest

import trnpy.chem
from trnpy import Reason, policy, trace
from trnpy._engine.engines import current_engine
from trnpy._nki.kernels.chem import ao_to_mo_reference
from trnpy._nki.kernels.products import digits_split_reference
from trnpy._nki.simulated import SimulatorRuntime
from trnpy.chem._ao2mo import unpacked
from trnpy.chem._transform import FIRST, SECOND, WORD_BYTES, by_kernel


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("extents", [(7, 20, 4, 9), (3, 20, 9, 4), (20, 12, 12, 1)])
def test_the_kernel_s_integrals_are_as_good_as_the_host_s(extents, packed):
    naux, nao, nleft, nright = extents
    rng = np.random.default_rng(nao)
    triangles = rng.standard_normal((naux, nao * (nao + 1) // 2))
    g = triangles if packed else unpacked(triangles)
    left, right = rng.standard_normal((nao, nleft)), rng.standard_normal((nao, nright)) * 1e3
    with policy(device="simulator", force=True, fallback="raise"), trace() as decisions:
        result = trnpy.chem.ao2mo(g, left, right)
    assert dict(decisions[0].launches) == {"ao_to_mo": 1, "digits_split": 3}
    size = np.einsum("Lmn,mi,na->iaL", *map(np.abs, (unpacked(triangles), left, right)))
    exact = np.einsum("Lmn,mi,na->iaL", unpacked(triangles), left, right)
    assert result.shape == exact.shape and result.flags.c_contiguous
    assert (np.abs(result - exact) <= 8 * np.finfo(float).eps * size).all()


@pytest.mark.parametrize("extents", [(20, 3, 9), (200, 100, 100), (7, 1, 7), (2000, 5, 1)])
def test_no_memory_makes_a_launch_of_more_than_its_offsets_count(extents):
    nao, nleft, nright = extents
    with policy(device="simulator", force=True, device_memory=1 << 40) as settings:
        transform = by_kernel(current_engine(settings), memory=2.0**60)
        n = transform.matrices(np.ones((nao, nleft)), np.ones((nao, nright)))
    raw = np.broadcast_to(np.uint8(0), (n * nao, WORD_BYTES * nao))
    assert digits_split_reference.check(raw, WORD_BYTES, tuple(range(FIRST))) == (n * nao, nao)
    shapes = (FIRST, n * nao, nao), (FIRST, nao, nleft), (SECOND, nao, nright)
    digits = [np.broadcast_to(np.zeros((), ml_dtypes.bfloat16), shape) for shape in shapes]
    assert ao_to_mo_reference.check(*digits, top=SECOND) == (n, nao)


@pytest.mark.parametrize("exponent", [-900, -600, 600])
def test_the_kernel_s_integrals_do_not_depend_on_their_unit(exponent):
    rng = np.random.default_rng(5)
    g, c = rng.uniform(0.5, 1, (3, 40, 40)), rng.uniform(0.5, 1, (40, 6))  # of one sign: the longest sums
    found = []
    for power in (0, exponent):
        with policy(device="simulator", force=True, fallback="raise"), trace() as decisions:
            found.append(trnpy.chem.ao2mo(np.ldexp(g, power), c, c))
        assert decisions[0].on_device
    np.testing.assert_array_equal(np.ldexp(found[0], exponent), found[1])


def test_a_wrong_transformation_is_noticed(monkeypatch):
    run = SimulatorRuntime.run

    def wrong(self, name, *operands, **parameters):
        out = run(self, name, *operands, **parameters)
        if name == "ao_to_mo":
            out.value[1, 7, 0] ^= 1 << 20  # one word of one integral
        return out

    monkeypatch.setattr(SimulatorRuntime, "run", wrong)
    rng = np.random.default_rng(6)
    g, c = rng.standard_normal((5, 12, 12)), rng.standard_normal((12, 3))
    with policy(device="simulator", force=True), trace() as decisions:
        result = trnpy.chem.ao2mo(g, c, c)
    assert decisions[0].reason == Reason.ACCURACY and "a transformation of (5, 12, 12)" in decisions[0].detail
    np.testing.assert_array_equal(result, trnpy.chem.ao2mo(g, c, c))


def test_sums_that_digits_have_no_room_for_are_the_host_s():
    g, c = np.full((1, 600, 600), 0.99), np.full((600, 1), 0.99)  # nearly the largest integers
    with policy(device="simulator", force=True), trace() as decisions:
        assert trnpy.chem.ao2mo(g, c, c) == pytest.approx((600 * 0.99) ** 2 * 0.99, rel=1e-12)
    assert decisions[0].reason == Reason.ACCURACY and "sums of the first half may need 71 bits" in decisions[0].detail


def test_four_index_integrals_by_the_kernel_in_any_memory():
    rng = np.random.default_rng(3)
    g, left, right = rng.standard_normal((6, 6, 6, 6)), rng.standard_normal((6, 2)), rng.standard_normal((6, 5))
    for memory in (2**28, 8 * 64 * 36):
        with policy(device="simulator", force=True, fallback="raise"), trace() as decisions:
            result = trnpy.chem.ao2mo(g, left, right, memory=memory)
        launches = dict(decisions[0].launches)
        # Integrals are sent with every launch, the orbitals of bra and ket, which are the same, once.
        assert decisions[0].on_device and launches["digits_split"] == launches["ao_to_mo"] + 2
        assert launches["ao_to_mo"] >= (2 if memory > 2**20 else 3)
        np.testing.assert_allclose(result, trnpy.chem.ao2mo(g, left, right), rtol=1e-11, atol=1e-12)


def test_single_precision_transformations_by_name():
    rng = np.random.default_rng(4)
    g, c = rng.standard_normal((5, 30, 30)), rng.standard_normal((30, 8))
    with policy(device="simulator", force=True, precision="fp32", fallback="raise"), trace() as decisions:
        result = trnpy.chem.ao2mo(g, c, c)
    assert dict(decisions[0].launches) == {"ao_to_mo": 1}
    expected = trnpy.chem.ao2mo(g, c, c)
    assert 1e-9 < np.abs(result - expected).max() / np.abs(expected).max() < 1e-5
