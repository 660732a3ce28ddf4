"""What all factorizations on the device path share: stacks, layouts, checks, and where the model sends them."""

import numpy as np
import pytest
from doubles import Float32Engine, RecordingEngine
from hypothesis import given, settings
from hypothesis import strategies as st

import trnpy.linalg
from linalg.matrices import positive
from linalg.rows import DTYPES, LAYOUTS, PLAIN_INV, ROWS, both, eps, general, norm, takes
from nkisim.hardware import MACHINES
from trnpy._call.decisions import work_of
from trnpy._call.dispatch import Reason
from trnpy._engine.engines import engine


@pytest.mark.parametrize("dtype", DTYPES)
def test_stacks_share_launches(dtype):
    a, p = (
        np.stack([f(136, s) for s in range(4)]).reshape(2, 2, 136, 136).astype(dtype)
        for f in (lambda n, s: general(n, n, dtype, 1e2, s), lambda n, s: positive(n, dtype, 1e2, s))
    )
    b = a[..., :2].copy()
    for library in ("scipy", "numpy"):
        for name, args in (("cholesky", (p,)), ("inv", (a,)), ("det", (a,)), ("solve", (a, b)), ("qr", (a,))):
            if not takes(library, name, *args):
                continue
            with engine(RecordingEngine()) as e, trnpy.policy(force=True):
                getattr(ROWS[library], name)(*args)
            assert e.shapes and all(shape[:2] == (2, 2) for shape in e.shapes)  # of all matrices at once
            ours, theirs = both(library, name, *args)
            if name != "qr":
                # SciPy from 1.18 on multiplies the pivots of a determinant in the precision of a.
                least = max(2e4 * eps(dtype) * np.abs(theirs).max(), np.finfo(dtype).tiny)
                np.testing.assert_allclose(ours, theirs, rtol=1e-7, atol=least)
            else:
                assert norm(ours[0] @ ours[1] - a) <= 1e3 * eps(dtype) * norm(a)
    pl, u = both("scipy", "lu", a, permute_l=True)[0]
    assert norm(pl @ u - a) <= 1e3 * eps(dtype) * norm(a)
    if takes("scipy", "cholesky", p):  # a SciPy that does not gives pivots of no matrix here
        both("scipy", "lu_factor", a)


@pytest.mark.parametrize("name, launches", [("cholesky", 1), ("det", 1), ("inv", 3), ("qr", 9)])
def test_stacks_and_large_matrices_go_where_the_model_says_they_pay(name, launches):
    """Modelled on trn2: large float32 matrices pay; of a stack all matrices are multiplied in one launch."""

    def decision(shape, dtype):
        with trnpy.policy(device="null", machine="trn2"):
            return trnpy.explain(getattr(trnpy.linalg, name), np.broadcast_to(np.zeros((), dtype), shape))

    assert not decision((64, 64, 64), "f8").on_device and not decision((512, 512), "f8").on_device
    assert decision((8192, 8192), "f4").on_device
    op = getattr(trnpy.linalg, name).__trnpy_op__
    work = work_of(op.prepare(np.broadcast_to(np.float32(0), (64, 256, 256))))
    assert work.tally(MACHINES["trn2"], trnpy.Policy()).launched == launches  # for all matrices together


@settings(max_examples=60, deadline=None)
@given(
    st.sampled_from(["cholesky", "cho_factor", "lu", "qr", "solve", "inv", "solve_triangular", "det"]),
    st.integers(2, 140), st.sampled_from(DTYPES), st.sampled_from(sorted(LAYOUTS)), st.booleans(), st.integers(0, 9),
)  # fmt: skip
def test_any_shape_dtype_and_layout(name, n, dtype, layout, lower, seed):
    a = general(n, n, dtype, 10.0, seed) + 0
    if name.startswith("cho"):
        a = positive(n, dtype, 10.0, seed).astype(dtype)
    a = LAYOUTS[layout](a)
    a.flags.writeable = False
    b = LAYOUTS[layout](general(n, 3, dtype, 1.0, seed))
    options = {"lower": lower} if name in ("cholesky", "cho_factor", "solve_triangular") else {}
    if name in ("solve", "inv"):
        options |= {"assume_a": "gen"} if name == "solve" else PLAIN_INV
    if name == "solve_triangular":
        a = a + 2 * np.eye(n, dtype=dtype)
    runs = None if name == "inv" and not options else True  # banded ones are the host's where nothing is said of them
    ours, theirs = both("scipy", name, a, *((b,) if name.startswith("solve") else ()), runs=runs, **options)
    allowed = 1e3 * n * eps(dtype)
    if name == "lu":
        assert norm(ours[0] @ ours[1] @ ours[2] - a) <= allowed * norm(a)
    elif name == "qr":
        assert norm(ours[0] @ ours[1] - a) <= allowed * norm(a)
    else:
        ours, theirs = (x[0] if isinstance(x, tuple) else x for x in (ours, theirs))
        # SciPy from 1.18 on multiplies the pivots of a determinant in the precision of a: what is tiny there, is lost.
        assert norm(ours - theirs) <= 10 * allowed * norm(theirs) + (np.finfo(dtype).tiny if name == "det" else 0)


def test_a_product_of_less_accuracy_is_not_accepted():
    a, p = general(300, 300, "f8", 10.0), positive(300, "f8", 10.0)
    tall = general(600, 132, "f8", 10.0)
    calls = (
        lambda: trnpy.linalg.lu(a),
        lambda: trnpy.linalg.inv(a),
        lambda: trnpy.linalg.qr(a),
        lambda: trnpy.linalg.qr(tall, mode="economic"),
        lambda: trnpy.linalg.det(a),
        lambda: trnpy.linalg.cho_factor(p),
        lambda: trnpy.linalg.solve_triangular(a + 2 * np.eye(300), a),
    )
    for call in calls:
        warned = pytest.warns(trnpy.NkiFallbackWarning, match="wrong by|backward error|known answer wrong")
        with engine(Float32Engine()), trnpy.policy(force=True), trnpy.trace() as log, warned:
            call()
        assert [d.reason for d in log] == [Reason.ACCURACY]


@pytest.mark.parametrize("dtype", ["f4", "f8"])
def test_on_the_simulator(dtype):
    n = 140
    a, p = general(n, n, dtype, 10.0), positive(n, dtype, 10.0).astype(dtype)
    with trnpy.policy(device="simulator", force=True, fallback="raise"), trnpy.trace() as log:
        l = trnpy.linalg.cholesky(p, lower=True)
        x = trnpy.linalg.solve(a, p[:, :3], assume_a="gen")
    assert all(d.on_device and d.launches for d in log), log
    assert norm(l @ l.T - p) <= 10 * eps(dtype) * norm(p)
    # Sums of n terms round by sqrt(n) eps of them at random, in factors and in solutions; |a| = 1.
    assert norm(a @ x - p[:, :3]) <= 2 * np.sqrt(n) * eps(dtype) * norm(x)
