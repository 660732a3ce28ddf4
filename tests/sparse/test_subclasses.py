"""Products of classes that users derive from SciPy's."""

import numpy as np
import pytest
import scipy.sparse as sp

import trnpy


class Users(sp.csr_matrix):
    """A user's class, whose products with itself SciPy makes of its class."""


@pytest.mark.parametrize("device", ["none", "null", "simulator"])
def test_a_product_of_a_users_class_is_of_its_class(device):
    a = sp.random(40, 40, 0.1, "csr", rng=np.random.default_rng(1)) + sp.eye(40)
    expected = Users(a) @ Users(a)
    with trnpy.policy(device=device, force=True), trnpy.patched(), trnpy.trace() as decisions:
        found = Users(a) @ Users(a)
    assert type(expected) is Users and type(found) is Users
    assert [d.on_device for d in decisions] == [True]
    error = abs(found - expected).max()
    assert error <= 8 * np.finfo(float).eps * abs(expected).max()
