"""NumPy's products down the forced path: NumPy's own values, shapes, dtypes, errors, on any layout."""

import copy
import pickle

import numpy as np
import pytest
from doubles import FaultyEngine, RecordingEngine
from hypothesis import given, settings
from hypothesis import strategies as st

import trnpy
from trnpy._call.dispatch import Reason
from trnpy._einsum import product, rows
from trnpy._engine.engines import engine

FLOATS = ("f4", "f8", "c8", "c16")
SIZES = (1, 2, 127, 128, 129)

# Awkward ones first: most are in docs/comparison.md#known-failures.
SUBSCRIPTS = [
    ("ij,jk->ki", (3, 4), (4, 5)),
    ("ij,kj->ki", (4, 4), (4, 4)),
    ("ji,jk->ki", (4, 4), (4, 4)),
    ("kl,ik->il", (3, 5), (4, 3)),
    ("ij,jk->i", (3, 4), (4, 5)),
    ("ij,jk->k", (3, 4), (4, 5)),
    ("ij,jk->", (3, 4), (4, 5)),
    ("ij,jj->i", (3, 4), (4, 4)),
    ("ii,ij->j", (4, 4), (4, 4)),
    ("ii,jj->", (4, 4), (3, 3)),
    ("iij,ijj->ij", (3, 3, 4), (3, 4, 4)),
    ("bij,bjk->bki", (2, 3, 4), (2, 4, 5)),
    ("bij,bjk->bk", (2, 3, 4), (2, 4, 5)),
    ("bij,bkj->bik", (2, 3, 4), (2, 5, 4)),
    ("bij,bkj->bik", (3, 3, 3), (3, 3, 3)),
    ("ibj,bjk->bik", (3, 3, 3), (3, 3, 3)),
    ("ijb,jkb->ikb", (3, 4, 2), (4, 5, 2)),
    ("bij,bjk->ikb", (2, 3, 4), (2, 4, 5)),
    ("i,j->ji", (3,), (4,)),
    ("i,i->", (5,), (5,)),
    ("i,i->i", (5,), (5,)),
    (",ij->ji", (), (3, 4)),
    ("ij,", (3, 4), ()),
    ("ij,jk", (3, 4), (4, 5)),
    ("ba,ca", (3, 4), (5, 4)),
    ("...ij,...jk->...ik", (2, 3, 4), (2, 4, 5)),
    ("...ij,jk", (2, 6, 3, 4), (4, 5)),
    ("i...,...j->...ij", (3, 2), (2, 4)),
    ("ij,ij->ij", (3, 1), (1, 4)),
    ("bij,bjk->bik", (1, 3, 4), (6, 4, 5)),
    ("ij,jk->ik", (3, 1), (7, 5)),
    (" i j , j k -> i k ", (3, 4), (4, 5)),
    ("ij,jk,kl->il", (3, 4), (4, 5), (5, 6)),
    ("ij,ij,ij->j", (3, 4), (3, 4), (3, 4)),
    ("pi,qj,pqrs,rk,sl->ijkl", (4, 2), (4, 3), (4, 4, 4, 4), (4, 2), (4, 3)),
    ("iajb,iajb,ia,jb->", (2, 3, 2, 3), (2, 3, 2, 3), (2, 3), (2, 3)),
    ("a,b,c,d->dbca", (2,), (3,), (4,), (5,)),
]


def operands(shapes, dtype, seed=0):
    rng = np.random.default_rng(seed)
    made = [rng.standard_normal(s) for s in shapes]
    if np.dtype(dtype).kind == "c":
        made = [m + 1j * rng.standard_normal(m.shape) for m in made]
    return [np.asarray(m, dtype) for m in made]


def agree(ours, theirs, *factors):
    """Same type, dtype and shape; values within 10 n eps of the product of norms."""
    assert type(ours) is type(theirs)
    assert (ours.dtype, ours.shape) == (theirs.dtype, theirs.shape)
    scale = np.prod([np.linalg.norm(np.ravel(f)) for f in factors])
    n = max((max(np.shape(f), default=1) for f in factors), default=1)
    assert np.abs(np.asarray(ours) - theirs).max() <= 10 * n * np.finfo(theirs.dtype).eps * scale


def forced(call, runs=True):
    """The result of ``call`` with every supported call forced, asserting that it took the device path."""
    e = RecordingEngine()
    with engine(e), trnpy.policy(force=True), trnpy.trace() as log:
        result = call()
    assert [d.on_device for d in log] == [runs], log
    assert bool(e.shapes) == runs
    return result


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("case", SUBSCRIPTS, ids=[c[0] for c in SUBSCRIPTS])
def test_einsum_is_numpys(case, dtype):
    subscripts, *shapes = case
    arrays = operands(shapes, dtype)
    agree(forced(lambda: trnpy.einsum(subscripts, *arrays)), np.einsum(subscripts, *arrays), *arrays)


@pytest.mark.parametrize(
    "optimize", [True, "greedy", "optimal", ["einsum_path", (0, 1), (0, 1)], ["einsum_path", (0, 1, 2)]]
)
def test_every_optimize_gives_the_same(optimize):
    arrays = operands([(3, 4), (4, 5), (5, 6)], "f8")
    agree(
        forced(lambda: trnpy.einsum("ij,jk,kl->il", *arrays, optimize=optimize)),
        np.einsum("ij,jk,kl->il", *arrays, optimize=optimize),
        *arrays,
    )


def test_interleaved_operands():
    a, b = operands([(3, 4), (4, 5)], "f8")
    agree(forced(lambda: trnpy.einsum(a, [0, 1], b, [1, 2], [2, 0])), np.einsum(a, [0, 1], b, [1, 2], [2, 0]), a, b)
    agree(forced(lambda: trnpy.einsum(a, [0, 1], b, [1, 2])), np.einsum(a, [0, 1], b, [1, 2]), a, b)
    c, d = operands([(2, 3, 4), (2, 4, 5)], "f8")
    interleaved = (c, [Ellipsis, 0, 1], d, [Ellipsis, 1, 2], [Ellipsis, 2, 0])
    agree(forced(lambda: trnpy.einsum(*interleaved)), np.einsum(*interleaved), c, d)


def test_views_stay_views():
    a = np.arange(16.0).reshape(4, 4)
    with engine(RecordingEngine()), trnpy.policy(force=True):
        trnpy.einsum("ii->i", a)[:] = 1
        assert np.shares_memory(trnpy.einsum("ij->ji", a), a)
    assert (a.diagonal() == 1).all()


LAYOUTS = {
    "C": lambda a: a,
    "F": np.asfortranarray,
    "strided": lambda a: np.repeat(a, 2, axis=-1)[..., ::2],
    "negative": lambda a: a[..., ::-1].copy()[..., ::-1],
    "big-endian": lambda a: a.astype(a.dtype.newbyteorder(">")),
    "unaligned": lambda a: np.frombuffer(b"\0" + a.tobytes(), np.uint8)[1:].view(a.dtype).reshape(a.shape),
}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("n", SIZES)
def test_matmul_on_every_layout(n, dtype, layout):
    a, b = operands([(n, n), (n, max(n - 1, 1))], dtype)
    a, b = LAYOUTS[layout](a), LAYOUTS[layout](b)
    a.flags.writeable = False
    agree(forced(lambda: trnpy.matmul(a, b)), np.matmul(a, b), a, b)


PRODUCTS = [
    ("matmul", ((2, 3, 4), (4, 5))),
    ("matmul", ((4,), (2, 4, 5))),
    ("matmul", ((2, 3, 4), (4,))),
    ("matmul", ((6, 1, 3, 4), (5, 4, 2))),
    ("matmul", ((4,), (4,))),
    ("dot", ((4,), (4,))),
    ("dot", ((3, 4), (4,))),
    ("dot", ((2, 3, 4), (5, 4, 6))),
    ("dot", ((4,), (2, 4, 3))),
    ("inner", ((2, 3, 4), (5, 4))),
    ("inner", ((4,), (4,))),
]


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("name, shapes", PRODUCTS)
def test_products_are_numpys(name, shapes, dtype):
    a, b = operands(shapes, dtype)
    agree(forced(lambda: getattr(trnpy, name)(a, b)), getattr(np, name)(a, b), a, b)


@pytest.mark.parametrize("axes", [0, 1, 2, ([1, 0], [0, 1]), (1, 0), ([-1], [0]), ((0, 1), (1, 0))])
def test_tensordot_axes(axes):
    a, b = operands([(4, 4, 4), (4, 4, 4)], "f8")
    agree(forced(lambda: trnpy.tensordot(a, b, axes)), np.tensordot(a, b, axes), a, b)


@pytest.mark.parametrize(
    "first, second", [("f4", "f8"), ("f4", "c8"), ("f8", "c8"), ("i4", "f8"), ("f4", "i8"), ("?", "f4")]
)
def test_mixed_dtypes_promote_as_numpys(first, second):
    rng = np.random.default_rng(0)
    a, b = rng.integers(0, 2, (5, 6)).astype(first), rng.integers(-9, 9, (6, 7)).astype(second)
    agree(forced(lambda: trnpy.matmul(a, b)), np.matmul(a, b), a, b)


@pytest.mark.parametrize("name", ["matmul", "dot"])
def test_out_is_filled_and_returned(name):
    a, b = operands([(5, 6), (6, 7)], "f8")
    out = np.empty((5, 7))
    assert forced(lambda: getattr(trnpy, name)(a, b, out=out)) is out
    agree(out, np.matmul(a, b), a, b)


@pytest.mark.parametrize(
    "make", [lambda: np.empty((5, 7), "f4"), lambda: np.empty((5, 7), order="F"), lambda: np.empty((7, 7))]
)
def test_an_awkward_out_is_numpys_to_judge(make):
    a, b = operands([(5, 6), (6, 7)], "f8")
    outcomes = []
    for function in (np.dot, lambda *args, **kw: forced(lambda: trnpy.dot(*args, **kw), runs=False)):
        try:
            outcomes.append(function(a, b, out=make()).tolist())
        except ValueError as why:
            outcomes.append(str(why))
    assert outcomes[0] == outcomes[1]


def test_an_overlapping_out_is_as_numpys():
    a, b = operands([(6, 6), (6, 6)], "f8")
    ours, theirs = a.copy(), a.copy()
    np.matmul(theirs, b, out=theirs)
    forced(lambda: trnpy.matmul(ours, b, out=ours), runs=False)
    np.testing.assert_array_equal(ours, theirs)


@st.composite
def contractions(draw):
    """Random subscripts of two to four operands with repeats, stretched dimensions and any output."""
    labels = draw(st.lists(st.sampled_from("abcde"), min_size=1, max_size=5, unique=True))
    sizes = {c: draw(st.integers(1, 4)) for c in labels}
    inputs = draw(st.lists(st.text(alphabet=labels, max_size=4), min_size=2, max_size=4))
    used = sorted(set("".join(inputs)))
    output = "".join(draw(st.permutations(used))[: draw(st.integers(0, len(used)))])
    explicit = draw(st.booleans())
    shapes = [tuple(sizes[c] for c in word) for word in inputs]
    return ",".join(inputs) + (f"->{output}" if explicit else ""), shapes


@settings(max_examples=150, deadline=None)
@given(contractions(), st.sampled_from(FLOATS), st.integers(0, 99))
def test_any_contraction(contraction, dtype, seed):
    subscripts, shapes = contraction
    arrays = operands(shapes, dtype, seed)
    agree(forced(lambda: trnpy.einsum(subscripts, *arrays)), np.einsum(subscripts, *arrays), *arrays)


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 7), st.integers(0, 7), st.integers(0, 7), st.sampled_from(FLOATS))
def test_any_matmul_empty_ones_included(m, k, n, dtype):
    a, b = operands([(m, k), (k, n)], dtype)
    agree(forced(lambda: trnpy.matmul(a, b), runs=bool(m * k * n)), np.matmul(a, b), a, b) if m * n else None
    assert trnpy.matmul(a, b).shape == (m, n)


def test_a_ufuncs_stand_in_is_like_one():
    """It does not bind as a method, has a ufunc's attributes, and pickles by name."""

    class Holder:
        product = trnpy.matmul

    a = np.ones((2, 2))
    np.testing.assert_array_equal(Holder().product(a, a), a @ a)
    assert trnpy.matmul.signature == np.matmul.signature and trnpy.matmul.nin == 2
    assert pickle.loads(pickle.dumps(trnpy.matmul)) is trnpy.matmul
    assert pickle.loads(pickle.dumps(trnpy.einsum)) is trnpy.einsum
    assert copy.copy(trnpy.matmul) is trnpy.matmul


@pytest.mark.parametrize(
    "subscripts, shapes",
    [
        ("ij,ji->", ((600, 600), (600, 600))),  # memory bound, and a copy for BLAS
        ("bi,bi->b", ((600, 600), (600, 600))),  # a stack of vectors
        ("i,j->ij", ((600,), (600,))),
        ("i,i,i->i", ((90,), (90,), (90,))),
        ("ij,jk->ik", ((3, 300), (300, 300))),  # thin
        ("ij,jk->ik", ((20, 20), (20, 20))),  # small
        ("ij->ji", ((600, 600),)),
    ],
)
def test_what_loops_well_stays_numpys(subscripts, shapes):
    arrays = operands(shapes, "f8")
    with trnpy.trace() as log:
        ours = trnpy.einsum(subscripts, *arrays)
    assert not log[0].route
    np.testing.assert_array_equal(ours, np.einsum(subscripts, *arrays))


PRODUCTS = {  # of one product each, by gemm, gemv, syrk and stacks of gemm
    "ij,jk->ik": ((64, 64), (64, 64)),
    "ji,kj->ki": ((64, 64), (64, 64)),
    "ij,kj->ik": ((64, 64), (64, 64)),
    "ijk,k->ij": ((64, 64, 64), (64,)),
    "bij,bjk->bik": ((8, 40, 40), (8, 40, 40)),
    "pi,pqr->iqr": ((30, 20), (30, 30, 30)),
}


@pytest.mark.parametrize("scale", [1e-170, 1.0, 1e170])
def test_a_wrong_product_is_seen_at_any_scale(scale):
    rng = np.random.default_rng(3)
    a, b = rng.standard_normal((30, 20)) * scale, rng.standard_normal((20, 10))
    with engine(FaultyEngine("wrong")), trnpy.policy(force=True, fallback="log"), trnpy.trace() as log:
        result = trnpy.matmul(a, b)
    assert not log[0].on_device and log[0].reason is Reason.ACCURACY
    np.testing.assert_array_equal(result, a @ b)


@pytest.mark.parametrize("dtype", ["f4", "f8", "c16"])
def test_kronecker_products(dtype):
    a, b = operands(((4, 6), (5, 3)), dtype)
    with engine(RecordingEngine()) as e, trnpy.policy(force=True), trnpy.trace() as log:
        ours = trnpy.kron(a, b)
    assert log[0].on_device and e.shapes
    assert ours.dtype == dtype and ours.flags.c_contiguous
    np.testing.assert_allclose(ours, np.kron(a, b), rtol=4 * float(np.finfo(dtype).eps))


@pytest.mark.parametrize(
    ("a", "b", "kept"),
    [
        ("iqrs", "qj", "irsj"), ("pi", "pqrs", "iqrs"), ("Pmi", "Pni", "mn"), ("mPi", "Pni", "mn"),
        ("nij", "njk", "nik"), ("inj", "njk", "nik"), ("ijk", "ijk", ""),
    ],
)  # fmt: skip
def test_numpy_copies_what_it_cannot_see_as_a_matrix(a, b, kept):
    sizes = dict.fromkeys(a + b, 5)
    step = product.product_of((0, 1), a, b, set(kept), "", sizes)
    copied = 0
    for labels, own in ((a, step.left), (b, step.right)):
        x = np.zeros([sizes[c] for c in labels])
        groups = [g for g in (step.batch, own, step.inner) if g]
        seen = x.transpose([labels.index(c) for c in "".join(groups)])
        copied += 0 if np.shares_memory(seen.reshape([product.extent(sizes, g) for g in groups]), x) else x.size
    assert product.copied_by_numpy(step, sizes) == copied


def test_a_loop_over_a_stack_is_as_fast_as_over_one_matrix():
    one, stack = np.zeros((1, 4, 4)), np.zeros((3000, 4, 4))
    n = [rows.prepare_einsum("nij,njk->nik", a, a).cost.n for a in (one, stack)]
    assert n == pytest.approx([4, 4], rel=1e-12)


def test_dot_beside_an_out_of_no_dimension_returns_a_number():
    for policy in ({}, {"force": True}):
        out = np.zeros(())
        with trnpy.policy(**policy):
            found = trnpy.dot(np.ones(3), np.ones(3), out=out)
        expected = np.dot(np.ones(3), np.ones(3), out=np.zeros(()))
        assert type(found) is type(expected) and found == out == expected


@pytest.mark.parametrize("axes", [1, ([1], [0]), ((1, 0), (0, 1)), [[0, 1], [1, 0]], np.array([[1], [0]])])
def test_axes_of_tensordot_decide_for_themselves(axes):
    """Calls are remembered by the axes, unless these are arrays: then each call is decided by itself."""
    a = np.random.default_rng(0).integers(-9, 9, (130, 130))
    kind = rows._kind_tensordot((a, a, axes), {})
    assert (kind is None) == isinstance(axes, np.ndarray)
    assert kind is None or kind != rows._kind_tensordot((a, a, 2), {})
    for _ in range(2):
        np.testing.assert_array_equal(trnpy.tensordot(a, a, axes), np.tensordot(a, a, axes))
        np.testing.assert_array_equal(trnpy.tensordot(a, a, axes=axes), np.tensordot(a, a, axes=axes))


@pytest.mark.parametrize("name", ["dot", "inner", "kron", "matmul", "tensordot"])
def test_nested_lists_are_operands(name):
    a, b = operands(((4, 4), (4, 4)), "f8")
    function = getattr(trnpy, name, None) or getattr(trnpy.linalg, name)
    with engine(RecordingEngine()), trnpy.policy(force=True), trnpy.trace() as log:
        results = [function(x, y) for x in (a, a.tolist()) for y in (b, b.tolist())]
    assert len({d.on_device for d in log}) == 1 and len(log) == 4, log
    for found in results[1:]:
        np.testing.assert_array_equal(found, results[0])
