"""The rows svd and svdvals: NumPy's types, any shape and layout, and bases that SciPy refuses."""

import numpy as np
import pytest
from doubles import RecordingEngine
from hypothesis import given, settings
from hypothesis import strategies as st

import trnpy.linalg
from linalg.rows import DTYPES, LAYOUTS, forced, gaussian
from tests.linalg.test_svd import check
from trnpy._call.dispatch import Reason
from trnpy._engine.engines import HOST, engine


def test_numpys_rows_have_numpys_types():
    a = gaussian((70, 50), "c16")
    result = forced("numpy.linalg.svd", a)
    assert type(result) is type(np.linalg.svd(a))
    check(a, result.U, result.S, result.Vh)
    values = forced("numpy.linalg.svdvals", a)  # perhaps by another method
    np.testing.assert_allclose(values, result.S, rtol=16 * np.finfo(float).eps)


@settings(max_examples=25, deadline=None)
@given(
    st.integers(1, 30), st.integers(1, 30), st.sampled_from(DTYPES), st.sampled_from(sorted(LAYOUTS)),
    st.booleans(), st.integers(0, 99),
)  # fmt: skip
def test_any_shape_and_layout(m, n, dtype, layout, full, seed):
    a = LAYOUTS[layout](gaussian((m, n), dtype, seed).astype(dtype))
    kept = a.copy()
    a.flags.writeable = False
    with engine(HOST), trnpy.policy(force=True), trnpy.trace() as log:
        u, s, vh = trnpy.linalg.svd(a, full_matrices=full)
    assert log[0].on_device
    check(kept, u, s, vh)


def test_bases_beyond_lapacks_integers_are_scipys_to_refuse():
    a = np.broadcast_to(np.zeros(1), (2, 50000))
    with engine(RecordingEngine()), trnpy.policy(force=True):
        decision = trnpy.explain(trnpy.linalg.svd, a)
    assert decision.reason is Reason.LAYOUT and not decision.on_device
    with engine(RecordingEngine()), trnpy.policy(force=True), pytest.raises(ValueError, match="integer overflow"):
        trnpy.linalg.svd(a)
