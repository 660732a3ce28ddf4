"""PySCF's functions one call at a time: forced, unforced, refused, and any call that hypothesis can think of."""

import functools

import numpy as np
import pytest
from doubles import ReadOnlyEngine, RecordingEngine
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyscf import lib, scf
from pyscf.lib import numpy_helper

import trnpy
from trnpy import Reason, policy, trace
from trnpy._engine.engines import engine
from trnpy.chem import patch_pyscf


@pytest.fixture
def patched():
    with patch_pyscf() as handle:
        yield handle


rng = np.random.default_rng(5)


def real(*shape):
    return rng.standard_normal(shape)


def compl(*shape):
    return real(*shape) + 1j * real(*shape)


def f4(*shape):
    return real(*shape).astype(np.float32)


def tagged(*shape):
    return lib.tag_array(real(*shape), mo_coeff=1)


SUPPORTED = {  # what is called: the arguments, made anew for each side
    "ddot": lambda: (lib.ddot, (real(30, 20), real(20, 9)), {}),
    "ddot, transposed": lambda: (lib.ddot, (real(20, 30).T, real(9, 20).T), {}),
    "ddot, strided": lambda: (lib.ddot, (real(60, 40)[::2, ::2], real(20, 18)[:, ::2]), {}),
    "ddot, scaled and added": lambda: (lib.ddot, (real(30, 20), real(20, 9), -0.5, real(30, 9), 2), {}),
    "ddot, into new memory": lambda: (lib.ddot, (real(4, 3), real(3, 2)), {"c": np.full((4, 2), np.nan)}),
    "ddot, by keyword": lambda: (lib.ddot, (real(4, 3), real(3, 2)), {"c": np.ones((4, 2)), "alpha": 3, "beta": 1}),
    "ddot, tagged": lambda: (lib.ddot, (tagged(5, 4), real(4, 5)), {}),
    "zdot": lambda: (numpy_helper.zdot, (compl(7, 5), compl(6, 5).T), {}),
    "zdot, complex factors": lambda: (numpy_helper.zdot, (compl(7, 5), compl(5, 6), 2j, compl(7, 6), 1 - 1j), {}),
    "dot, real": lambda: (lib.dot, (real(7, 5), real(5, 6), 2.0, real(7, 6), -1.0), {}),
    "dot, complex": lambda: (lib.dot, (compl(7, 5), compl(5, 6)), {"alpha": -1}),
    "dot, real and complex": lambda: (lib.dot, (real(7, 5), compl(5, 6), 3), {}),
    "dot, complex and real": lambda: (lib.dot, (compl(5, 7).T, real(5, 6)), {}),
    "dot, single": lambda: (lib.dot, (f4(7, 5), f4(5, 6)), {"alpha": 2, "c": f4(7, 6), "beta": 1}),
    "dot, single and double": lambda: (lib.dot, (f4(7, 5), real(5, 6)), {}),
    "dgemm": lambda: (numpy_helper._dgemm, ("N", "N", 4, 5, 6, real(4, 6), real(6, 5), np.empty((4, 5))), {}),
    "dgemm, blocks": lambda: (
        numpy_helper._dgemm, ("T", "N", 4, 5, 6, real(6, 9), real(6, 11), real(4, 13), 2, 0.5, 3, 4, 7), {},
    ),
    "dgemm, transposed": lambda: (
        numpy_helper._dgemm, ("N", "T", 4, 5, 6, real(4, 9), real(5, 11), real(4, 13)), {"beta": 1, "offsetb": 2},
    ),
    "contract, small": lambda: (lib.contract, ("ij,jk->ik", real(4, 3), real(3, 2)), {}),
    "contract, by gemm": lambda: (lib.contract, ("iajb,jbc->aic", real(6, 7, 5, 4), real(5, 4, 30)), {}),
    "contract, batched": lambda: (lib.contract, ("bij,bjk->bik", real(5, 12, 13), real(5, 13, 14)), {"alpha": 2}),
    "contract, added": lambda: (lib.contract, ("ij,jk->ki", real(30, 40), real(40, 20), 2, 3, real(20, 30)), {}),
    "contract, spaces and no arrow": lambda: (lib.contract, ("ij, jk", compl(30, 40), real(40, 20)), {}),
    "contract, to a number": lambda: (lib.contract, ("ij,ij", real(30, 40), real(30, 40)), {}),
    "contract, a diagonal": lambda: (lib.contract, ("iij,jk->ik", real(30, 30, 8), real(8, 80)), {}),
    "contract, lists": lambda: (lib.contract, ("ij,j->i", [[1.0, 2.0], [3.0, 4.0]], [1.0, 2.0]), {}),
    "contract, unknown options": lambda: (lib.contract, ("ij,jk->ik", real(4, 3), real(3, 2)), {"optimize": "what"}),
    "einsum, two": lambda: (lib.einsum, ("ijk,kl->lij", real(9, 8, 7), real(7, 30)), {"out": np.empty((30, 9, 8))}),
    "einsum, three": lambda: (lib.einsum, ("pi,pqrs,qj->ijrs", real(8, 3), real(8, 8, 8, 8), real(8, 4)), {}),
    "einsum, four, a path": lambda: (
        lib.einsum, ("ij,jk,kl,lm->im", *(real(5, 5) for _ in range(4))), {"optimize": "optimal"},
    ),
    "einsum, unplanned": lambda: (lib.einsum, ("ij,jk,kl->il", *(real(5, 5) for _ in range(3))), {"optimize": False}),
    "einsum, ellipsis": lambda: (lib.einsum, ("...ij,jk->...ik", real(2, 3, 4), real(4, 5)), {"alpha": 3}),
    "einsum, tagged": lambda: (lib.einsum, ("pqrs,rs->pq", real(6, 6, 6, 6), tagged(6, 6)), {}),
    "eig": lambda: (scf.hf.eig, (symmetric(20), positive(20)), {}),
    "eig, complex": lambda: (scf.hf.eig, (hermitian(20), positive(20)), {}),
    "eig, no overlap": lambda: (scf.hf.eig, (symmetric(20), None), {"overwrite": True}),
}  # fmt: skip


def symmetric(n):
    a = real(n, n)
    return a + a.T


def hermitian(n):
    a = compl(n, n)
    return a + a.conj().T


def positive(n):
    a = real(n, n)
    return a @ a.T + n * np.eye(n)


def made(case):
    global rng
    rng = np.random.default_rng(len(case))
    return SUPPORTED[case]()


def arrays_of(args, kwargs):
    return [a for a in (*args, *kwargs.values()) if isinstance(a, np.ndarray)]


def parts(result):
    return result if isinstance(result, tuple) else (result,)


@pytest.mark.parametrize("case", SUPPORTED)
def test_a_forced_call_is_the_call_that_pyscf_makes(case, patched):
    function, args, kwargs = made(case)
    with trnpy.original():
        expected = function(*args, **kwargs)
    _, theirs, their_options = made(case)
    recording = RecordingEngine()
    with engine(recording), policy(force=True), trace() as decisions:
        result = function(*theirs, **their_options)
    (decision,) = decisions
    assert decision.on_device and decision.reason is Reason.FORCED and recording.shapes, decision
    for ours, plain in zip(parts(result), parts(expected), strict=True):
        assert type(ours) is type(plain)
        assert ours.dtype == plain.dtype and ours.shape == plain.shape
        np.testing.assert_allclose(ours, plain, rtol=0, atol=1e3 * np.finfo(plain.dtype).eps * (1 + abs(plain).max()))
    # An output is written, and returned itself; nothing else is touched.
    for after, before in zip(arrays_of(theirs, their_options), arrays_of(args, kwargs), strict=True):
        assert (after is result) == (before is expected)
        np.testing.assert_allclose(after, before, rtol=1e-4 if after.dtype == np.float32 else 1e-12, atol=1e-12)


@pytest.mark.parametrize("case", SUPPORTED)
def test_an_unforced_call_is_bit_identical(case, patched):
    function, args, kwargs = made(case)
    _, theirs, their_options = made(case)
    with trnpy.original():
        expected = function(*args, **kwargs)
    for device in ("none", "null"):
        _, theirs, their_options = made(case)
        with policy(device=device), trace() as decisions:
            result = function(*theirs, **their_options)
        assert len(decisions) == 1  # what PySCF calls in turn is part of it
        for ours, plain in zip(parts(result), parts(expected), strict=True):
            assert ours.strides == plain.strides and (decisions[0].route or ours.tobytes() == plain.tobytes())
            # A route on the host sums in another order.
            scale = np.abs(plain).max(initial=0.0) * np.finfo(plain.dtype).eps
            np.testing.assert_allclose(ours, plain, rtol=0, atol=100 * float(scale))


@pytest.mark.parametrize("out", [None, "new", "added"])
def test_a_route_scales_and_adds_as_pyscf_does(out, patched):
    """Where PySCF loops the host multiplies matrices: alpha, beta and the output are still the caller's."""
    a, b = np.random.default_rng(0).standard_normal((2, 60, 40, 40))
    options = {"alpha": 2.0} | ({"out": np.ones((60, 40, 40)), "beta": float(out == "added")} if out else {})
    with trnpy.original():
        expected = lib.contract("bij,bjk->bik", a, b, **{**options, **({"out": options["out"].copy()} if out else {})})
    with trace() as decisions:
        result = lib.contract("bij,bjk->bik", a, b, **options)
    assert decisions[0].reason is Reason.ROUTE
    np.testing.assert_allclose(result, expected, rtol=1e-13, atol=1e-12)
    assert not out or result is options["out"]


def test_numpy_s_einsum_reads_tagged_arrays_as_it_always_does(patched):
    dm, h = tagged(6, 6), real(6, 6)
    for subscripts, operands in (("ij,ji->", (dm, h)), ("pq,qr->pr", (h, dm)), ("ij->ji", (dm,))):
        with trnpy.original():
            expected = np.einsum(subscripts, *operands)
        with engine(RecordingEngine()), policy(force=True), trace() as decisions:
            ours = np.einsum(subscripts, *operands)
        assert decisions[0].on_device == (len(operands) == 2)
        assert type(ours) is type(expected) and np.shares_memory(ours, dm) == np.shares_memory(expected, dm)
        np.testing.assert_allclose(ours, expected, rtol=1e-13)


def test_a_read_only_result_of_an_engine_is_no_obstacle(patched):
    for case in ("ddot", "contract, batched", "eig"):
        function, args, kwargs = made(case)
        with engine(ReadOnlyEngine()), policy(force=True), trace() as decisions:
            result = parts(function(*args, **kwargs))
        assert decisions[0].on_device and all(a.flags.writeable for a in result)


REFUSED = {
    "shapes": lambda: (lib.ddot, (real(4, 3), real(4, 3)), {}),
    "one dimension": lambda: (lib.dot, (real(4), real(4)), {}),
    "a list": lambda: (lib.dot, ([[1.0]], real(1, 1)), {}),
    "output of another shape": lambda: (lib.ddot, (real(4, 3), real(3, 2), 1, real(2, 4)), {}),
    "Fortran output": lambda: (lib.ddot, (real(4, 3), real(3, 2), 1, np.ones((2, 4)).T), {}),
    "read-only output": lambda: (lib.contract, ("ij,jk->ik", real(30, 40), real(40, 20)), {"out": read_only(30, 20)}),
    "complex factor": lambda: (lib.ddot, (real(4, 3), real(3, 2), 1j), {}),
    "a word for a factor": lambda: (lib.ddot, (real(4, 3), real(3, 2), "1"), {}),
    "strided complex": lambda: (numpy_helper.zdot, (compl(8, 6)[::2, ::2], compl(3, 2)), {}),
    "stretching, large": lambda: (lib.contract, ("ijk,kl->ijl", real(30, 20, 1), real(5, 100)), {}),
    "stretching, the other": lambda: (lib.contract, ("ijk,kl->ijl", real(30, 20, 5), real(1, 500)), {}),
    "sizes": lambda: (lib.contract, ("ij,jk->ik", real(30, 40), real(41, 20)), {}),
    "subscripts": lambda: (lib.einsum, ("ij,jk->il", real(3, 4), real(4, 2)), {}),
    "subscripts of no sense": lambda: (lib.einsum, (7, real(3, 4), real(4, 2)), {}),
    "operands": lambda: (lib.einsum, ("ij,jk->ik", real(3, 4)), {}),
    "option": lambda: (lib.einsum, ("...i,i->...", real(3, 4), real(4)), {"what": 1}),
    "an indefinite overlap": lambda: (scf.hf.eig, (symmetric(5), -positive(5)), {}),
    "a rectangle": lambda: (scf.hf.eig, (real(5, 4), positive(5)), {}),
    "an infinity": lambda: (scf.hf.eig, (np.full((3, 3), np.inf), positive(3)), {}),
}


def read_only(*shape):
    a = real(*shape)
    a.flags.writeable = False
    return a


@pytest.mark.parametrize("case", REFUSED)
def test_what_pyscf_refuses_is_refused_in_its_own_words(case, patched):
    function, args, kwargs = REFUSED[case]()
    before = [a.copy() for a in arrays_of(args, kwargs)]
    with trnpy.original(), pytest.raises(Exception) as plain:
        function(*args, **kwargs)
    with policy(force=True), pytest.raises(type(plain.value)) as ours, trace():
        function(*args, **kwargs)
    assert str(ours.value) == str(plain.value)
    for a, b in zip(arrays_of(args, kwargs), before, strict=True):
        np.testing.assert_array_equal(a, b)


UNUSUAL = {  # what PySCF allows and the device path leaves alone: (reason, call)
    "small operands may stretch": (Reason.LAYOUT, lambda: (lib.contract, ("ij,jk->ik", real(3, 1), real(4, 2)), {})),
    "integers": (Reason.DTYPE, lambda: (lib.dot, (np.arange(6).reshape(2, 3), np.arange(6).reshape(3, 2)), {})),
    "a factor that changes the dtype": (
        Reason.PARAM,
        lambda: (lib.dot, (f4(3, 3), f4(3, 3)), {"alpha": np.float64(2)}),
    ),
    "nothing": (Reason.LAYOUT, lambda: (lib.ddot, (np.ones((3, 0)), np.ones((0, 4))), {})),
    "a factor of zero": (Reason.VALUE, lambda: (lib.ddot, (real(3, 3), real(3, 3), 0), {})),
    "infinities": (Reason.VALUE, lambda: (lib.ddot, (np.diag([1.0, 2.0, np.inf]), np.eye(3)), {})),
    "an output that is another's memory": (Reason.LAYOUT, lambda: (lib.dot, (m := real(4, 4), real(4, 4), 1, m), {})),
    "single operands": (Reason.LAYOUT, lambda: (lib.einsum, ("ij->ji", real(3, 4)), {})),
    "a contraction of the caller's own": (
        Reason.PARAM,
        lambda: (lib.einsum, ("ij,jk->ik", real(3, 4), real(4, 5)), {"_contract": lambda s, a, b: a @ b}),
    ),
    "a complex output of real matrices": (
        Reason.LAYOUT,
        lambda: (lib.dot, (real(3, 4), real(4, 5)), {"c": compl(3, 5), "beta": 1}),
    ),
    "an output of three operands, which PySCF forgets": (
        Reason.PARAM,
        lambda: (lib.einsum, ("ij,jk,kl->il", real(3, 3), real(3, 3), real(3, 3)), {"out": np.ones((3, 3))}),
    ),
    "printing": (Reason.PARAM, lambda: (lib.contract, ("ij,jk->ik", real(30, 40), real(40, 20)), {"DEBUG": True})),
    "an output of mixed matrices": (Reason.PARAM, lambda: (lib.dot, (real(3, 4), compl(4, 5)), {"c": compl(3, 5)})),
}


@pytest.mark.parametrize("case", UNUSUAL)
@pytest.mark.filterwarnings("ignore:invalid value:RuntimeWarning")  # of infinities, in NumPy's own words
def test_what_pyscf_alone_can_do_is_left_to_it(case, patched):
    global rng
    reason, make = UNUSUAL[case]
    results = []
    for block in (trnpy.original(), policy(force=True)):
        rng = np.random.default_rng(3)
        function, args, kwargs = make()
        with block, trace() as decisions:
            results.append((function(*args, **kwargs), *arrays_of(args, kwargs)))
    assert [(d.on_device, d.reason) for d in decisions] == [(False, reason)]
    for plain, ours in zip(*results, strict=True):
        np.testing.assert_array_equal(ours, plain)


DTYPES = [np.float32, np.float64, np.complex64, np.complex128, np.int64]


@st.composite
def products(draw):
    """A call of lib.dot or lib.contract, most of them legal: what to call it with, made anew from a seed."""
    sizes = [draw(st.sampled_from([0, 1, 2, 5, 30])) for _ in range(3)]
    dtypes = [draw(st.sampled_from(DTYPES)) for _ in range(2)]
    layouts = [draw(st.sampled_from(["C", "F", "strided", "reversed", "read-only"])) for _ in range(2)]
    mismatch = draw(st.sampled_from([0, 0, 0, 1]))
    factors = [draw(st.sampled_from([1, 0, -2.5, 1j, np.float64(3), "2"])) for _ in range(2)]
    target = draw(st.sampled_from([None, "fits", "fits", "complex", "misshapen"]))
    function = draw(st.sampled_from(["dot", "contract", "einsum"]))

    def make():
        (m, k, n), seeded = sizes, np.random.default_rng(1)

        def array(rows, columns, dtype, layout):
            a = (seeded.standard_normal((2 * rows, columns)) * 9).astype(dtype)
            a = a + (1j * a[::-1]).astype(dtype) if a.dtype.kind == "c" else a
            a = {
                "C": a[:rows].copy(),
                "F": np.asfortranarray(a[:rows]),
                "strided": a[::2],
                "reversed": a[:rows][::-1],
            }.get(layout, a[:rows].copy())
            a.flags.writeable = layout != "read-only"
            return a

        a, b = array(m, k, dtypes[0], layouts[0]), array(k + mismatch, n, dtypes[1], layouts[1])
        dtype = np.complex128 if target == "complex" else np.result_type(a, b)
        c = None if target is None else array(m + (target == "misshapen"), n, dtype, "C")
        if function == "dot":
            return lib.dot, (a, b, factors[0], c, factors[1])
        return functools.partial(getattr(lib, function), alpha=factors[0], beta=factors[1], out=c), ("ij,jk->ik", a, b)

    return make


def outcome(make):
    function, args = make()
    try:
        result = function(*args)
    # All there is: the classes are compared.
    except Exception as why:
        result = why
    return result, [a for a in (*args, *getattr(function, "keywords", {}).values()) if isinstance(a, np.ndarray)]


@pytest.mark.filterwarnings("ignore::numpy.exceptions.ComplexWarning")
@given(make=products())
@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_product_is_what_it_is_without_a_patch(make, patched):
    with trnpy.original():
        plain, theirs = outcome(make)
    with policy(force=True):
        result, ours = outcome(make)
    assert type(result) is type(plain)
    if isinstance(plain, Exception):
        assert str(result) == str(plain)
    else:
        assert result.dtype == plain.dtype and result.shape == plain.shape
        assert [a is result for a in ours] == [a is plain for a in theirs]
        eps = np.finfo(plain.dtype).eps if plain.dtype.kind in "fc" else 0
        np.testing.assert_allclose(result, plain, rtol=0, atol=100 * eps * abs(plain).max(initial=0))
    for after, before in zip(ours, theirs, strict=True):
        if after is not result:
            np.testing.assert_array_equal(after, before)


@pytest.mark.parametrize("dtype", [np.float32, np.complex128, np.int64])
def test_memory_that_pyscf_would_take_for_doubles_is_left_to_it(dtype, patched):
    a = np.ones((9, 9), dtype)
    decisions = [
        trnpy.explain(lib.ddot, a, np.ones((9, 9))),
        trnpy.explain(numpy_helper._dgemm, "N", "N", 9, 9, 9, np.ones((9, 9)), np.ones((9, 9)), a),
    ]
    assert [d.reason for d in decisions] == [Reason.DTYPE, Reason.DTYPE]


def test_a_view_stays_a_view(patched):
    a = real(4, 4)
    with policy(force=True):
        lib.einsum("ii->i", a)[:] = 0
    assert (a.diagonal() == 0).all()


def test_a_verified_call_is_right_also_where_it_adds(patched):
    a, c = real(20, 20), np.ones((20, 20))
    square = a @ a  # here, because a product with @ would be traced, too
    with policy(force=True, verify=1.0), trace() as decisions:
        np.testing.assert_allclose(lib.dot(a, a, 2, c, 1), 1 + 2 * square, rtol=0, atol=1e-12)
        np.testing.assert_allclose(lib.dot(a, a, 1e6), 1e6 * square, rtol=1e-9, atol=1e-6)
    assert [(d.on_device, d.reason) for d in decisions] == [(False, Reason.POLICY), (True, Reason.FORCED)]
