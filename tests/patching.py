"""What tests of patches share: the names, their originals, and the demand that nothing stays behind."""

import copyreg
import types

import numpy as np
import pytest

import trnpy
from trnpy._call.dispatch import Reason
from trnpy._patch.hook import METHODS, compiled, enters
from trnpy._patch.hook import resolve as standing
from trnpy._patch.patch import _select
from trnpy._settings.policy import process_policy

NAMES = sorted(_select(None))
A = np.array([[2.0, 1.0], [1.0, 3.0]])
LARGE = np.eye(200) + np.arange(200)  # beyond ``small`` of every row


ORIGINALS = {name: standing(name) for name in NAMES}
# Names that lead to a hook while patched: not those of methods, nor that of numpy.matmul where trnpy is compiled.
FUNCTIONS = [name for name in NAMES if name not in METHODS and not enters(name, ORIGINALS[name])]


@pytest.fixture(autouse=True)
def pristine():
    """Every test leaves every name, pickle's table and the policy as it found them."""
    kinds = {type(original) for original in ORIGINALS.values()}
    reducers, settings = {k: copyreg.dispatch_table.get(k) for k in kinds}, process_policy()
    yield
    assert {name: standing(name) for name in NAMES if standing(name) is not ORIGINALS[name]} == {}
    assert {k: copyreg.dispatch_table.get(k) for k in kinds} == reducers
    assert process_policy() == settings
    assert not trnpy.is_patched()
    assert compiled is None or not compiled.is_entered()
    assert trnpy.patch_status() == {"active": [], "installed": [], "escaped": {}, "rebound": {}, "covered": {}}


def routed(call):
    """(op, reason) of the calls that trnpy saw during ``call()``."""
    with trnpy.trace() as decisions:
        call()
    return [(d.op, d.reason) for d in decisions]


SMALL_EINSUM = [("numpy.einsum", Reason.SMALL)]


def einsum():
    return np.einsum("ij,jk->ik", A, A)


def calling(name, source="def call(): return np.einsum('ij,jk->ik', A, A)"):
    """A function ``call`` of a module of that name."""
    module = types.ModuleType(name)
    vars(module).update(np=np, A=A)
    exec(source, vars(module))
    return module.call
