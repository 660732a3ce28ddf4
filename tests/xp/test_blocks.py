"""Chains of elementwise functions in blocks: the bits of NumPy on whole arrays, in any layout, with its warnings."""

import numpy as np
import pytest

from trnpy import xp
from trnpy.xp import _blocks, _evaluate
from trnpy.xp._nodes import Small


@pytest.fixture(autouse=True)
def ran(monkeypatch):
    """Chains of eight elements are computed in blocks of three; which of them were."""
    found = []
    compute = _blocks.compute_chain

    def watched(nodes, *args):
        result = compute(nodes, *args)
        found.append((len(nodes), result is not None))
        return result

    monkeypatch.setattr(Small, "elements", -1)
    monkeypatch.setattr(_blocks, "LEAST", 8)
    monkeypatch.setattr(_blocks, "BLOCK", 3)
    monkeypatch.setattr(_evaluate, "compute_chain", watched)
    return found


def chain(n, a, b):
    return n.exp(n.sin(a) * b + 2.0)


@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("other", [(5, 7), (7,), (1,), (5, 1)])
def test_a_chain_has_numpys_bits_whatever_its_operands_broadcast(order, other, ran):
    rng = np.random.default_rng(0)
    a, b = np.asarray(rng.standard_normal((5, 7)), order=order), np.asarray(rng.standard_normal(other), order=order)
    found = np.asarray(chain(xp, xp.asarray(a), xp.asarray(b)))
    np.testing.assert_array_equal(found, chain(np, a, b))
    assert ran  # it came as a chain


def test_a_chain_that_warns_warns_as_numpy_and_has_its_bits(ran):
    a = np.full(10, -1.0)
    with pytest.warns(RuntimeWarning, match="invalid value encountered in sqrt"):
        found = np.asarray(xp.sqrt(xp.asarray(a) * 2.0) + 1.0)
    assert np.isnan(found).all() and (3, False) in ran


def test_arrays_below_the_limit_take_no_blocks(ran):
    a = np.arange(7.0)
    np.testing.assert_array_equal(np.asarray(xp.sin(xp.asarray(a) * 2.0) + 1.0), np.sin(a * 2.0) + 1.0)
    assert not ran
