"""numpy.einsum's whole grammar: values, shape, dtype, writeability and views are NumPy's, wherever a call runs."""

# ruff: noqa: E501 (tables of cases, a line each)
import itertools
import re

import numpy as np
import pytest
from doubles import RecordingEngine
from hypothesis import given, settings
from hypothesis import strategies as st

import trnpy
from trnpy import Reason
from trnpy._engine.engines import engine
from trnpy._host import pairwise
from trnpy._settings.policy import Attention, Policy, ProcessPolicy

SIZES = dict(zip("abcdefghijklmnopqrstuvwxyzL", itertools.cycle((3, 2, 4)), strict=False)) | {"i": 3, "j": 4, "k": 5}


def subsets(labels):
    """Every ordered choice of some of ``labels``: all outputs, of which all but one sum or permute."""
    return ["".join(p) for n in range(len(labels) + 1) for p in itertools.permutations(labels, n)]


PAIRS = [f"{a},{b}->{out}" for a in ("ij", "ji") for b in ("jk", "kj") for out in subsets("ijk")]
# The batch at any place of either operand and of the output.
BATCHES = [
    f"{a},{b}->{out}"
    for a in ("bij", "ibj", "ijb")
    for b in ("bjk", "jbk", "kjb")
    for out in ("bik", "ibk", "ikb", "kbi", "bk", "")
]
REPEATED = [
    "ii,ij->j", "ij,jj->i", "ii,jj->", "ii,jj->ij", "iij,ijj->ij", "iij,jk->ik", "ii,i->i", "iii,i->", "iij,iij->j",
    "ijij,jk->ik", "iji,jk->k", "ii,ii->i", "aab,bcc->ac", "aabb,b->a", "iijj,jk->ik",
]  # fmt: skip
OWN_SUMS = ["ijk,jl->l", "ijk,jl->", "ij,kl->", "ij,kl->ik", "ij,kl->l", "ijk,k->", "i,j->", "ij,k->j", "abc,bd->cd"]
OUTER = [
    "i,j->ij",
    "i,j->ji",
    "ij,kl->ijkl",
    "ij,kl->lkji",
    "i,j,k->kij",
    ",ij->ji",
    "ij,->ij",
    ",->",
    "i,->i",
    ",,i->i",
]
ELEMENTWISE = ["i,i->i", "ij,ij->ij", "ij,ij->ji", "ij,ji->ij", "ijk,jik->kij", "ij,j->ij", "i,ij->ji", "ijk,k->ijk"]
DOTS = ["i,i->", "ij,ij->", "ij,ji->", "ijk,kji->", "iajb,ibja->", "ij,j->i", "ij,i->j", "j,ij->i", "ijk,jk->i"]
IMPLICIT = ["ij,jk", "ba,ca", "ij", "ji", "ii", "i,i", "ij,", "ba,cb", "bij,bjk", "ijk,k", "ca,ab,bd"]
SINGLE = [
    "ij->ij", "ij->ji", "ij->i", "ij->j", "ij->", "ii->i", "ii->", "ii", "iij->ij", "iij->j", "ijj->ij", "ijk->kji", "ijk->ki",
    "iii->i", "iijj->ij", "iijj->ji", "ijij->ij", "->", "i->i", "i->", "ijkl->lkji", "aabc->cb",
]  # fmt: skip
MANY = [
    "ij,jk,kl->il", "ij,jk,kl->li", "ij,jk,kl->", "ij,ij,ij->j", "i,i,i->i", "i,ij,j->", "i,ij,j->ij", "pi,i,qi->pq",
    "pq,pi,qj->ij", "pq,qr,rs,sp->", "pi,qj,pqrs,rk,sl->ijkl", "pi,qj,pqrs,rk,sl->lkji", "iajb,iajb,ia,jb->",
    "a,b,c,d->dbca", "ab,bc,cd,de,ef->af", "ab,bc,cd,de,ef,fg->ga", "ab,bc,cd,de,ef,fg,ga->",
    "ab,bc,cd,de,ef,fg,gh,ha->", "ij,jk,ki->", "ijk,ijl,ilk->i", "ab,ab,ab,ab->ba", "ii,ij,jk->k", "abc,cd,de,ef->fab",
    "Lia,Ljb,ijab->", "kc,kcai,ia->", "ab,cd,ef->", "i,j,i,j->ij", "aij,bjk,cki->abc", "b,bij,bjk->bik", "ij,j,jk,k->i",
    "mi,nj,mnrs,rk,sl,ia,jb->abkl", "pr,qs,pqrs,rs->pq", "ia,jb,iajb->", "ijab,ijac->bc", "klcd,ijcd->ijkl",
]  # fmt: skip
CORPUS = [*PAIRS, *BATCHES, *REPEATED, *OWN_SUMS, *OUTER, *ELEMENTWISE, *DOTS, *IMPLICIT, *SINGLE, *MANY]
SHAPED = [  # what needs shapes of its own: sizes of one that stretch, ellipses, blanks
    ("ij,ij->ij", (3, 1), (1, 4)), ("ij,jk->ik", (3, 1), (7, 5)), ("ij,jk->ik", (3, 7), (1, 5)), ("i,i->", (1,), (5,)),
    ("i,i->i", (1,), (5,)), ("bij,bjk->bik", (1, 3, 4), (6, 4, 5)), ("bij,bjk->ki", (6, 3, 4), (1, 4, 5)),
    ("ij,ij,ij->ij", (3, 1), (1, 4), (1, 1)), ("ij,jk,kl->il", (3, 1), (4, 1), (5, 2)), ("ij->i", (3, 1)),
    ("...", (2, 3)), ("...->...", (2, 3)), ("...i->...", (2, 3)), ("i...->...i", (2, 3, 4)), ("...ij->...ji", (2, 3, 4)),
    ("...ii->...i", (2, 3, 3)), ("...ij,...jk->...ik", (2, 3, 4), (2, 4, 5)), ("...ij,jk", (2, 6, 3, 4), (4, 5)),
    ("...ij,...jk->...ik", (6, 1, 3, 4), (5, 4, 2)), ("i...,...j->...ij", (3, 2), (2, 4)), ("i...,i...->...", (3, 2), (3, 2)),
    ("...,...", (2, 3), (2, 3)), ("...,...->...", (2, 1), (3,)), ("...i,i->...", (2, 3), (3,)), ("i...,i", (3, 4), (3,)),
    ("i...j,jk...->k...i", (3, 2, 4), (4, 5, 2)), ("...a,...b,...->ab...", (2, 3), (2, 4), (2,)), ("...,ij->ij...", (2,), (3, 4)),
    ("b...,b...->b...", (3, 2, 2), (3, 2, 2)), (" i j , j k -> i k ", (3, 4), (4, 5)), ("ij ,jk", (3, 4), (4, 5)),
    ("ij,jk->ik", (1, 1), (1, 1)), ("ij,jk->ik", (1, 9), (9, 1)), ("ij,jk->ik", (64, 2), (2, 64)),
]  # fmt: skip
EMPTY = [
    ("ij,jk->ik", (0, 3), (3, 4)), ("ij,jk->ik", (3, 0), (0, 4)), ("ij,jk->ik", (3, 4), (4, 0)), ("i,i->", (0,), (0,)),
    ("ij->ji", (0, 3)), ("ii->i", (0, 0)), ("i->", (0,)), ("ij,jk,kl->il", (2, 0), (0, 0), (0, 3)), ("i,j->ij", (0,), (3,)),
    ("...i,...i->...", (0, 3), (1, 3)),
]  # fmt: skip
CASES = [(s, *[tuple(SIZES[c] for c in word) for word in s.partition("->")[0].split(",")]) for s in CORPUS]
CASES = [*CASES, *SHAPED, *EMPTY]


def made(shape, dtype, rng):
    """Small whole numbers: exact in every dtype, and large enough for the narrow integers to wrap around."""
    dtype = np.dtype(dtype)
    if dtype.kind == "b":
        return rng.random(shape) < 0.6
    low, high = (0, 99) if dtype.kind in "iu" else (-9, 9) if dtype.itemsize > 8 or dtype.char == "d" else (-1, 2)
    values = rng.integers(low if dtype.kind != "i" else -9, high, shape)
    if dtype.kind == "c":
        values = values + 1j * rng.integers(low, high, shape)
    return np.asarray(values).astype(dtype)


def operands(case, dtype="f8", seed=0):
    rng = np.random.default_rng(seed)
    return [made(shape, dtype, rng) for shape in case[1:]]


def alike(ours, theirs, arrays, case):
    """Same class, shape, dtype, values, writeability, and views of the same memory."""
    assert type(ours) is type(theirs), case
    if not isinstance(theirs, (np.ndarray, np.generic)):  # a number out of an array of objects
        assert ours == theirs, case
        return
    assert (ours.dtype, ours.shape) == (theirs.dtype, theirs.shape), case
    np.testing.assert_array_equal(ours, theirs, err_msg=str(case))
    if isinstance(theirs, np.ndarray):
        assert ours.flags.writeable == theirs.flags.writeable, case
        shared = [[np.shares_memory(result, a) for a in arrays] for result in (ours, theirs)]
        assert shared[0] == shared[1], case


def forced(*args, device=None, **kwargs):
    """A call down the device path, on the host's engine unless a device is named; what it gives, and whether it went there."""
    policy = {"force": True} | ({"device": device} if device else {})
    with trnpy.policy(**policy), trnpy.trace() as log:
        result = trnpy.einsum(*args, **kwargs)
    assert len(log) == 1 and log[0].reason not in (Reason.ERROR, Reason.ACCURACY), log
    return result, log[0].on_device


def everywhere(args, arrays, case, **kwargs):
    """Compare a call with NumPy's on the host, recorded or not, and forced; whether it was on the device path."""
    theirs = np.einsum(*args, **kwargs)
    alike(trnpy.einsum(*args, **kwargs), theirs, arrays, case)
    with trnpy.trace():
        alike(trnpy.einsum(*args, **kwargs), theirs, arrays, case)
    result, on_device = forced(*args, **kwargs)
    alike(result, theirs, arrays, case)
    return on_device


def test_the_corpus_is_as_large_as_it_says():
    assert len({case[0] for case in CASES}) >= 200


@pytest.mark.parametrize("dtype", ["?", *"bBhHiIqQ", *"efdgFDG", "O"])
def test_every_case_in_every_dtype(dtype):
    """Whole numbers: exact in any order of sums, wrapped around where NumPy wraps them."""
    taken = 0
    for case in CASES:
        arrays = operands(case, dtype)
        with np.errstate(over="ignore"):  # float16's own
            taken += everywhere((case[0], *arrays), arrays, case)
    # bool, half and long double have no device path; of integers those of two operands whose result is an array.
    assert taken > (230 if dtype in "fdFD" else 170 if dtype in "bBhHiIqQ" else -1)


LAYOUTS = {
    "F": lambda a: a.copy(order="F"),
    "strided": lambda a: np.repeat(a, 2, axis=-1)[..., ::2] if a.ndim else a,
    "negative": lambda a: a[..., ::-1].copy()[..., ::-1] if a.ndim else a,
    "big-endian": lambda a: a.astype(a.dtype.newbyteorder(">")),
    "unaligned": lambda a: np.frombuffer(b"\0" + a.tobytes(), np.uint8)[1:].view(a.dtype).reshape(a.shape),
    "read-only": lambda a: np.broadcast_to(a, a.shape),
    "constant": lambda a: np.broadcast_to(a.ravel()[:1].reshape(()) if a.size else np.zeros((), a.dtype), a.shape),
    "a subclass": lambda a: a.view(np.matrix) if a.ndim == 2 else a,
    "nested lists": lambda a: a.tolist(),
}


@pytest.mark.parametrize("dtype", ["i4", "f8", "c8"])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_case_on_every_layout(layout, dtype):
    for case in CASES if layout != "nested lists" else CASES[: -len(EMPTY)]:  # lists forget empty dimensions
        arrays = [LAYOUTS[layout](a) for a in operands(case, dtype)]
        everywhere((case[0], *arrays), [a for a in arrays if isinstance(a, np.ndarray)], case)


@pytest.mark.parametrize("optimize", [True, "greedy", "optimal", ("greedy", 1000), ["einsum_path", (0, 1)], None])
def test_every_case_optimized(optimize):
    """As NumPy itself does it: views, classes and writeability are other ones than without."""
    for case in CASES:
        path = optimize
        if isinstance(optimize, list):
            path = ["einsum_path", *[(0, 1)] * (len(case) - 2)] if len(case) > 2 else ["einsum_path", (0,)]
        arrays = operands(case)
        everywhere((case[0], *arrays), arrays, case, optimize=path)


def interleaved(case, arrays):
    """The same call as operands and sublists of integers."""
    inputs, arrow, output = case[0].replace(" ", "").partition("->")

    def sublist(word):
        head, dots, tail = word.partition("...")
        return [*map(ord, head), *([Ellipsis] if dots else []), *map(ord, tail)]

    numbers = {c: n for n, c in enumerate(sorted({c for word in inputs.split(",") for c in sublist(word) if c != ...}))}
    words = [[x if x is ... else numbers[x] for x in sublist(word)] for word in [*inputs.split(","), output]]
    pairs = [x for pair in zip(arrays, words, strict=False) for x in pair]
    return (*pairs, words[-1]) if arrow else tuple(pairs)


def test_every_case_interleaved():
    for case in CASES:
        arrays = operands(case)
        everywhere(interleaved(case, arrays), arrays, case)


OPTIONS = [
    {"order": "C"}, {"order": "F"}, {"order": "A"}, {"order": "K"}, {"dtype": "f8"}, {"dtype": "c16"}, {"dtype": np.float64},
    {"casting": "no"}, {"casting": "equiv"}, {"casting": "same_kind"}, {"casting": "unsafe"}, {"dtype": "f4", "casting": "same_kind"},
    {"dtype": "i4", "casting": "unsafe"}, {"dtype": "c8", "casting": "unsafe"}, {"order": "F", "dtype": "c16", "casting": "unsafe"},
]  # fmt: skip


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_every_case_with_every_option(options):
    for case in CASES:
        arrays = operands(case)
        everywhere((case[0], *arrays), arrays, case, **options)
        if options.get("order", "K") != "K":
            theirs, ours = np.einsum(case[0], *arrays, **options), forced(case[0], *arrays, **options)[0]
            if len(arrays) > 1 and isinstance(theirs, np.ndarray):
                assert ours.flags.c_contiguous >= (options["order"] == "C"), case
                assert ours.flags.f_contiguous >= (options["order"] == "F"), case


@pytest.mark.parametrize("dtype", ["?", "i8", "f2", "f8", "c16", "O"])
@pytest.mark.parametrize("options", [{}, {"optimize": True}, {"order": "F"}, {"casting": "no"}], ids=str)
def test_a_process_that_asked_for_nothing_gets_the_same(dtype, options, monkeypatch):
    """Twice: calls are answered by what the first ones found."""
    monkeypatch.setattr(Attention, "asked", False)
    monkeypatch.setattr(ProcessPolicy, "policy", Policy(device="none"))
    large = (
        ("ij,jk->ki", (130, 70), (70, 90)),
        ("ij,jk,kl->il", (30, 70), (70, 40), (40, 30)),
        ("ij,ji->", (300, 200), (200, 300)),
    )
    for case in [*CASES, *large, *CASES[::7], *large]:
        arrays = operands(case, dtype)
        with np.errstate(over="ignore"):
            ours, theirs = trnpy.einsum(case[0], *arrays, **options), np.einsum(case[0], *arrays, **options)
        alike(ours, theirs, arrays, case)
    assert not Attention.asked


@pytest.mark.parametrize("dtype", ["i4", "f4", "f8", "c16"])
@pytest.mark.parametrize("order", ["C", "F"])
def test_out_is_filled_and_returned(order, dtype):
    for case in CASES:
        arrays = operands(case, dtype)
        expected = np.einsum(case[0], *arrays)
        for call in (trnpy.einsum, lambda *args, **kw: forced(*args, **kw)[0]):
            out = np.full(expected.shape, 7, expected.dtype, order=order)
            assert call(case[0], *arrays, out=out) is out, case
            np.testing.assert_array_equal(out, expected, err_msg=str(case))


def test_an_out_of_a_wider_dtype_or_over_an_operand_is_as_numpys():
    a, b = operands(("ij,jk->ik", (4, 4), (4, 4)))
    for make in (lambda x: np.empty((4, 4), "c16"), lambda x: x, lambda x: x.T, lambda x: np.empty((4, 8))[:, ::2]):
        x, y = a.copy(), a.copy()
        theirs = np.einsum("ij,jk->ik", x, b, out=make(x))
        np.testing.assert_array_equal(forced("ij,jk->ik", y, b, out=make(y))[0], theirs)


def test_views_are_writeable_into_the_operand():
    for subscripts in ("ii->i", "ij->ji", "iij->ji", "...ij->...ji"):
        a = np.zeros((4, 4, 4) if subscripts[:3] in ("iij", "...") else (4, 4))
        forced(subscripts, a)[0][...] = 1
        b = np.zeros_like(a)
        np.einsum(subscripts, b)[...] = 1
        np.testing.assert_array_equal(a, b)


@st.composite
def calls(draw):
    """A call of one to four operands: repeats, sizes of one that stretch, ellipses, any output, any layout and dtype."""
    labels = draw(st.lists(st.sampled_from("abcdef"), min_size=1, max_size=6, unique=True))
    sizes = {c: draw(st.integers(1, 4)) for c in labels}
    dots = draw(st.lists(st.integers(1, 3), max_size=2))
    inputs, shapes = [], []
    for _ in range(draw(st.integers(1, 4))):
        word = draw(st.text(alphabet=labels, max_size=4))
        shape = [sizes[c] if word.count(c) > 1 or draw(st.integers(0, 5)) else 1 for c in word]
        if dots and draw(st.booleans()):
            at = draw(st.integers(0, len(word)))
            own = [n if draw(st.integers(0, 5)) else 1 for n in dots[draw(st.integers(0, len(dots))) :]]
            word, shape = f"{word[:at]}...{word[at:]}", [*shape[:at], *own, *shape[at:]]
        inputs.append(word)
        shapes.append(tuple(shape))
    used = sorted(set("".join(inputs)) - {"."})
    output = "".join(draw(st.permutations(used))[: draw(st.integers(0, len(used)))])
    if any("..." in word for word in inputs):
        at = draw(st.integers(0, len(output)))
        output = f"{output[:at]}...{output[at:]}"
    subscripts = ",".join(inputs) + (f"->{output}" if draw(st.integers(0, 3)) else "")
    dtypes = [draw(st.sampled_from(["f8", "f8", "f4", "c16", "c8", "i8", "i2", "u1", "?", "f2"])) for _ in inputs]
    layouts = [draw(st.sampled_from(["plain", *list(LAYOUTS)[:7]])) for _ in inputs]
    return subscripts, shapes, dtypes, layouts, draw(st.sampled_from([{}, {}, {"optimize": True}, {"order": "F"}]))


@settings(max_examples=250, deadline=None)
@given(calls(), st.integers(0, 99))
def test_any_call(call, seed):
    subscripts, shapes, dtypes, layouts, options = call
    rng = np.random.default_rng(seed)
    arrays = [made(shape, dtype, rng) for shape, dtype in zip(shapes, dtypes, strict=True)]
    arrays = [LAYOUTS.get(layout, np.asarray)(a) for a, layout in zip(arrays, layouts, strict=True)]
    with np.errstate(over="ignore"):
        try:
            np.einsum(subscripts, *arrays, **options)
        except ValueError as why:  # operands that do not fit, or too many dimensions
            for function in (trnpy.einsum, forced):
                with pytest.raises(ValueError) as ours:
                    function(subscripts, *arrays, **options)
                assert str(ours.value) == str(why)
            return
        everywhere((subscripts, *arrays), arrays, call, **options)


WRONG = [
    ("ij,jk->il",), ("ij,jk->ii",), ("ij,jk,kl->il",), ("ij->ij",), ("ij,jkl->il",), ("i.j,jk->ik",), ("ij,jk-ik",), ("ij;jk->ik",),
    ("...,...->",), ("ij,jk->i->k",), (7,), (None,), ("",), ("ij,jk->IK",),
]  # fmt: skip


@pytest.mark.parametrize("wrong", WRONG, ids=str)
def test_what_numpy_refuses_is_refused_in_its_words(wrong):
    arrays = operands(("", (3, 4), (4, 5)))
    with pytest.raises(Exception) as theirs:
        np.einsum(*wrong, *arrays)
    for call in (trnpy.einsum, forced):
        with pytest.raises(type(theirs.value)) as ours:
            call(*wrong, *arrays)
        assert str(ours.value) == str(theirs.value)


ON_SIMULATOR = [
    "ij,jk->ki",
    "ij,jj->i",
    "ibj,bjk->bik",
    "ij,kl->ik",
    "i,j->ji",
    "ij,ij->ij",
    "pi,qj,pqrs,rk->srjk",
    "ij,jk->",
]


@pytest.mark.parametrize("dtype", ["f4", "f8", "c8", "i4"])
@pytest.mark.parametrize("subscripts", ON_SIMULATOR)
def test_the_simulators_kernels_give_the_same(subscripts, dtype):
    case = next(
        c for c in [*CASES, ("pi,qj,pqrs,rk->srjk", (4, 2), (4, 3), (4, 4, 4, 4), (4, 2))] if c[0] == subscripts
    )
    arrays = operands(case, dtype)
    result, on_device = forced(subscripts, *arrays, device="simulator")
    assert on_device or dtype == "i4"
    alike(result, np.einsum(subscripts, *arrays), arrays, case)


def test_the_device_path_multiplies_pairs():
    """Every product of a forced call is the engine's, thin ones included."""
    recording = RecordingEngine()
    with engine(recording), trnpy.policy(force=True):
        trnpy.einsum("pi,i,qi->pq", *operands(("", (9, 5), (5,), (7, 5))))
    assert len(recording.shapes) == 2


@pytest.mark.parametrize("subscripts", ["ij,jk->ik", "bij,bjk->bik", "ij,jk,kl->il"])
def test_large_finite_results_come_without_a_warning(subscripts):
    """Their squares overflow, which is the route's look at them and nobody's concern."""
    arrays = [np.full((64,) * len(word), 1e80) for word in subscripts.partition("->")[0].split(",")]
    ours = trnpy.einsum(subscripts, *arrays)
    np.testing.assert_allclose(ours, np.einsum(subscripts, *arrays), rtol=1e-13)
    assert np.isfinite(ours).all() and ours.max() > 1e160


@pytest.mark.parametrize("n", [300, 362, 363])
def test_sums_of_two_operands_of_two_dtypes_are_numpy_s_where_they_are_few(n):
    a, b = operands(("", (n, n), (n, n)), "f4")
    wide = b.astype("f8")
    ours, theirs = trnpy.einsum("ij,ij->", a, wide), np.einsum("ij,ij->", a, wide)
    assert type(ours) is type(theirs) and ours == pytest.approx(theirs, rel=1e-12)
    assert ours == theirs or n * n >= pairwise.CAST


@pytest.mark.parametrize("subscripts", [". . .ij,jk->. . .ik", "ij,jk- >ik", "ij , jk -> i k", "... ij, jk->... ik"])
@pytest.mark.parametrize("optimize", [False, True])
def test_spaces_are_taken_where_numpy_takes_them(subscripts, optimize):
    a = np.ones((200, 200))  # large enough for a route
    for block in (trnpy.policy(), trnpy.policy(force=True)):
        with block:
            try:
                expected = np.einsum(subscripts, a, a, optimize=optimize)
            except ValueError as why:
                with pytest.raises(ValueError, match=re.escape(str(why))):
                    trnpy.einsum(subscripts, a, a, optimize=optimize)
            else:
                np.testing.assert_array_equal(trnpy.einsum(subscripts, a, a, optimize=optimize), expected)


@pytest.mark.parametrize("label", [True, np.True_, np.bool_(False)])
@pytest.mark.parametrize("n", [4, 130])
def test_bools_are_no_labels(label, n):
    """At any size: the list form of large operands does not go another way than that of small ones."""
    a = np.ones((n, n))
    for call in ((a, [label, 2], a, [2, 3]), (a, [0, 2], a, [2, 3], [0, label])):
        for function in (np.einsum, trnpy.einsum):
            with pytest.raises(TypeError):
                function(*call)
