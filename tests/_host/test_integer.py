"""Integer products by exact float64 BLAS: NumPy's bits, wrap-around included."""

import warnings

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import trnpy
from trnpy._call.dispatch import Reason
from trnpy._host import integer

DTYPES = ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "bool")


def operand(shape, dtype, rng, bits=64):
    """Every value of the dtype, its extremes included, or of fewer bits."""
    if dtype == "bool":
        return rng.random(shape) < 0.05  # of more NumPy's loop is the faster
    info = np.iinfo(dtype)
    low, high = max(info.min, -(2 ** (bits - 1))), min(info.max, 2 ** (bits - 1) - 1 if bits < 64 else info.max)
    a = rng.integers(max(low, info.min), high, shape, dtype=dtype, endpoint=True)
    a.flat[0], a.flat[-1] = high, max(low, info.min)
    return a


def routed(call):
    with trnpy.trace() as log:
        result = call()
    assert [d.reason for d in log] == [Reason.ROUTE] and log[0].route == "exact float64 products"
    return result


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("bits", [3, 16, 31, 64])
def test_matmul_is_numpys_bit_for_bit(dtype, bits):
    rng = np.random.default_rng(bits)
    a, b = operand((320, 310), dtype, rng, bits), operand((310, 337), dtype, rng, bits)
    ours, theirs = routed(lambda: trnpy.matmul(a, b)), np.matmul(a, b)
    assert ours.dtype == theirs.dtype
    np.testing.assert_array_equal(ours, theirs)


@pytest.mark.parametrize("name", ["dot", "inner", "tensordot", "einsum"])
@pytest.mark.parametrize("dtype", ["int64", "uint64", "int16", "bool"])
def test_the_other_products(name, dtype):
    rng = np.random.default_rng(0)
    a, b = operand((150, 150), dtype, rng), operand((150, 150), dtype, rng)
    args = ("ij,kj->ki", a, b) if name == "einsum" else (a, b, 1) if name == "tensordot" else (a, b)
    ours, theirs = getattr(trnpy, name)(*args), getattr(np, name)(*args)
    assert ours.dtype == theirs.dtype
    np.testing.assert_array_equal(ours, theirs)


@pytest.mark.parametrize(
    "shape", [(5, 1, 9), (7, 2, 4200), (4, 3, 1366), (9, 40, 110), (6, 511, 17), (3, 512, 9), (5, 700, 20)]
)
def test_panels_of_any_width_are_numpys(shape):
    m, k, n = shape
    rng = np.random.default_rng(0)
    a, b = operand((m, k), "int64", rng), operand((k, n), "int64", rng)
    np.testing.assert_array_equal(integer.exact(np.dot, a, b, k, a.dtype), np.dot(a, b))


EINSUMS = (
    "ij,jk->ik",
    "ij,kj->ik",
    "ij, jk",
    "ba,cb->ca",
    "ij,kj",
    "ij,jk->ki",
    "ji,jk->ik",
    "ij,jk->",
    "ii,ij->ij",
    "ij,kl->ik",
)


@pytest.mark.parametrize("subscripts", EINSUMS)
@pytest.mark.parametrize("dtypes", [("int64", "int64"), ("uint8", "uint8"), ("int8", "uint16"), ("int32", "uint32")])
def test_einsums_of_two_matrices_of_integers_are_numpys_each_time(subscripts, dtypes):
    rng = np.random.default_rng(len(subscripts))
    for n, bits in ((40, 64), (40, 3), (40, 64), (9, 64)):  # later calls run what the first ones have chosen
        a, b = (operand((n, n), dtype, rng, bits) for dtype in dtypes)
        for left, right in ((a, b), (a.T, b[::-1]), (a, a)):
            ours, theirs = trnpy.einsum(subscripts, left, right), np.einsum(subscripts, left, right)
            assert ours.dtype == theirs.dtype
            np.testing.assert_array_equal(ours, theirs)


def test_einsum_repeats_an_axis_of_length_one():
    a, b = np.arange(1600).reshape(1600, 1), np.arange(1600).reshape(40, 40)
    for _ in range(3):
        np.testing.assert_array_equal(trnpy.einsum("ij,jk->ik", a, b), np.einsum("ij,jk->ik", a, b))
        np.testing.assert_array_equal(trnpy.einsum("ij,kj->ik", a, b), np.einsum("ij,kj->ik", a, b))
    for function in (trnpy.einsum, np.einsum):
        with pytest.raises(ValueError, match=r"could not be broadcast|dimension"):
            function("ij,jk->ik", a.reshape(800, 2), b)


@pytest.mark.skipif(integer.without_lapack() is None, reason="trnpy was installed without a C compiler")
@pytest.mark.parametrize("args", [("ij,jk->ik",), ("ij,kj->ik",), ("ij , kj",)])
def test_einsums_of_two_matrices_run_the_compiled_loop(args, monkeypatch):
    ran, rng = [], np.random.default_rng(0)
    monkeypatch.setattr(integer, "_in_c", lambda *given, run=integer._in_c: ran.append(given[0]) or run(*given))
    for _ in range(3):
        a, b = operand((50, 50), "int64", rng), operand((50, 50), "int64", rng)
        np.testing.assert_array_equal(trnpy.einsum(*args, a, b), np.einsum(*args, a, b))
    assert ran == 3 * [np.dot if "jk" in args[0] else np.inner]


@pytest.mark.parametrize("axes", [{"axes": 1}, {"axes": ((1,), (0,))}, {"axes": ([0], [0])}])
def test_tensordots_of_two_matrices_of_integers_are_numpys_each_time(axes):
    rng = np.random.default_rng(0)
    for bits in (64, 3, 64):
        a, b = operand((40, 40), "int64", rng, bits), operand((40, 40), "int64", rng, bits)
        np.testing.assert_array_equal(trnpy.tensordot(a, b, **axes), np.tensordot(a, b, **axes))


def test_mixed_integers_promote_as_numpys():
    rng = np.random.default_rng(0)
    for first, second in (
        ("int8", "int64"),
        ("uint8", "int16"),
        ("bool", "int32"),
        ("uint32", "int32"),
        ("int64", "uint64"),
    ):
        a, b = operand((150, 150), first, rng, 20), operand((150, 150), second, rng, 20)
        ours, theirs = trnpy.matmul(a, b), np.matmul(a, b)
        assert ours.dtype == theirs.dtype
        np.testing.assert_array_equal(ours, theirs)


def test_stacks_and_layouts():
    rng = np.random.default_rng(0)
    a, b = operand((3, 90, 80), "int64", rng, 20)[:, ::-1], operand((1, 150, 80), "int64", rng, 20).transpose(0, 2, 1)
    np.testing.assert_array_equal(routed(lambda: trnpy.matmul(a, b)), np.matmul(a, b))


@settings(max_examples=60, deadline=None)
@given(
    st.integers(1, 12),
    st.integers(1, 300),
    st.integers(1, 12),
    st.sampled_from(DTYPES),
    st.integers(2, 64),
    st.integers(0, 9),
)
def test_exact_at_any_shape_and_range(m, k, n, dtype, bits, seed):
    rng = np.random.default_rng(seed)
    a, b = operand((m, k), dtype, rng, bits), operand((k, n), dtype, rng, bits)
    np.testing.assert_array_equal(integer.exact(np.matmul, a, b, k, a.dtype), np.matmul(a, b))


@pytest.mark.parametrize("k", [1, 2, 3, 127, 128, 4096, 2**20])
def test_digits_sum_exactly(k):
    """The largest balanced digits, k times: still below 2^53."""
    w = integer.digit_bits(k)
    assert k * 4 ** (w - 1) <= 2**53
    a = np.array([np.iinfo(np.int64).min, -1, 0, 1, np.iinfo(np.int64).max])
    back = sum(d.astype(np.int64).astype(object) << (w * i) for i, d in enumerate(integer._digits(a, w, 64)))
    np.testing.assert_array_equal([int(x) % 2**64 for x in back], [int(x) % 2**64 for x in a])


@pytest.mark.parametrize("dtype", ["u1", "i2", "u4", "i8"])
def test_products_that_wrap_around_are_checked_without_a_warning(dtype):
    """The check compares modulo the width what wrapped around at 64 bits: here scalars, whose overflow warns."""
    for seed in range(4):
        rng = np.random.default_rng(seed)
        a, b = (rng.integers(0, np.iinfo(dtype).max, shape, dtype) for shape in ((5, 5, 9), (1, 5, 9, 5)))
        with trnpy.policy(force=True), trnpy.trace() as log:
            got = trnpy.tensordot(a, b, ([2, 0, 1], [2, 3, 1]))
        assert log[0].on_device
        np.testing.assert_array_equal(got, np.tensordot(a, b, ([2, 0, 1], [2, 3, 1])))


@pytest.mark.parametrize("n", [50, 64, 100])
@pytest.mark.parametrize("dtype", DTYPES[:-1])
def test_small_operands_of_small_values(n, dtype):
    rng = np.random.default_rng(n)
    a, b = operand((n, n), dtype, rng, 6), operand((n, n), dtype, rng, 6)
    for x, y in ((a, b), (b, a), (a.T, b)):  # the second finds the decision about the first
        np.testing.assert_array_equal(routed(lambda x=x, y=y: trnpy.matmul(x, y)), np.matmul(x, y))


@pytest.mark.parametrize("dtype", ["int64", "uint64"])
def test_small_operands_of_large_values_are_numpys_without_the_compiled_loop(dtype, monkeypatch):
    monkeypatch.setattr(integer, "without_lapack", lambda: None)
    rng = np.random.default_rng(0)
    a, b = operand((64, 64), dtype, rng), operand((64, 64), dtype, rng)
    hidden = operand((64, 64), dtype, rng, 6)
    hidden[3, 7] = np.iinfo(dtype).max  # where no element is looked at before
    for x, y in ((a, b), (hidden, b), (hidden, hidden)):
        with trnpy.trace() as log:
            np.testing.assert_array_equal(trnpy.matmul(x, y), np.matmul(x, y))
        assert not log[0].route


HALVES = {
    "inf and -inf": (np.inf, -np.inf), "nan": (np.nan, 1), "inf and zeros": (np.inf, 0), "large": (6e4, 6e4),
    "tiny": (6e-8, 6e-8), "small": (1e-3, 1e-3), "plain": (1, 2),
}  # fmt: skip


@pytest.mark.parametrize("values", HALVES)
@pytest.mark.parametrize("name", ["matmul", "dot", "einsum", "tensordot"])
@pytest.mark.parametrize("n", [40, 130])
def test_half_products_complain_as_numpys_do(name, values, n):
    rng = np.random.default_rng(n)
    a = np.ones((n, n), np.float16) * np.float16(HALVES[values][1] or 1)
    a[0, :2] = HALVES[values]
    b = rng.integers(0, 2, (n, n)).astype(np.float16)
    args = ("ij,kj->ki", a, b) if name == "einsum" else (a, b, 1) if name == "tensordot" else (a, b)
    for state in ("warn", "raise", "ignore"):
        outcomes = []
        for function in (getattr(trnpy, name), getattr(np, name)):
            with warnings.catch_warnings(record=True) as caught, np.errstate(all=state):
                warnings.simplefilter("always")
                try:
                    result = function(*args)
                except FloatingPointError as why:
                    result = np.array(str(why))
            outcomes.append((result, [str(w.message) for w in caught]))
        (ours, warned), (theirs, expected) = outcomes
        assert warned == expected
        if theirs.dtype.kind == "U":
            assert ours == theirs
        else:  # sums in another order
            np.testing.assert_allclose(ours, theirs, rtol=2 * np.finfo(np.float16).eps, atol=1e-7)


# --- The compiled loop ------------------------------------------------------------------------------------------------

compiled = pytest.mark.skipif(integer.without_lapack() is None, reason="the loop is not compiled here")


def unsigned(shape, rng):
    return rng.integers(0, 2**64, shape, dtype=np.uint64, endpoint=False)


@compiled
@pytest.mark.parametrize("shape", [(1, 1, 1), (3, 5, 7), (4, 8, 8), (5, 9, 17), (9, 513, 8), (2, 1025, 30), (40, 1, 3)])
def test_the_compiled_loop_is_numpys_bit_for_bit(shape):
    m, k, n = shape
    rng = np.random.default_rng(shape)
    a, b, c = unsigned((m, k), rng), unsigned((k, n), rng), np.empty((m, n), np.uint64)
    integer.without_lapack().multiply(a, b, c)
    np.testing.assert_array_equal(c, a @ b)


@compiled
@pytest.mark.parametrize("dtype", ["int64", "uint16"])
def test_stacks_of_integers_are_numpys_bit_for_bit(dtype):
    rng = np.random.default_rng(0)
    a, b = operand((7, 40, 30), dtype, rng), operand((7, 30, 20), dtype, rng)
    for x, y in ((a, b), (np.asfortranarray(a), b[::-1]), (a[:, :, ::2], b[:, ::2])):
        ours, theirs = routed(lambda x=x, y=y: trnpy.matmul(x, y)), np.matmul(x, y)
        assert (ours.dtype, ours.strides, ours.flags.owndata) == (theirs.dtype, theirs.strides, theirs.flags.owndata)
        np.testing.assert_array_equal(ours, theirs)
    np.testing.assert_array_equal(trnpy.matmul(a, b[:1]), np.matmul(a, b[:1]))


@compiled
def test_the_compiled_loop_refuses_other_arrays():
    multiply, a = integer.without_lapack().multiply, np.ones((4, 4), np.uint64)
    for args in (
        (a[:, :3], a, a), (a.view(np.int64), a, a), (a, a.T[::-1], a), (a, a, a[:2]), (a, a, a[:, 0]),
        (a[:, :0].copy(), a[:0].copy(), a.copy()), (a[None], a[None], a), (a[None], np.stack([a, a]), a[None].copy()),
    ):  # fmt: skip
        with pytest.raises(ValueError, match="in C order"):
            multiply(*args)
    locked = a.copy()
    locked.flags.writeable = False
    with pytest.raises(ValueError, match="in C order"):
        multiply(a, a, locked)


@compiled
@pytest.mark.parametrize("name", ["matmul", "dot", "inner"])
@pytest.mark.parametrize("dtype", ["int64", "uint64", "int32", "int8"])
@pytest.mark.parametrize("order", ["C", "F", "reversed"])
def test_small_matrices_are_multiplied_unread(name, dtype, order):
    rng = np.random.default_rng(0)
    laid = {"C": np.ascontiguousarray, "F": np.asfortranarray, "reversed": lambda a: a[::-1, ::-1]}[order]
    a, b = laid(operand((40, 40), dtype, rng)), laid(operand((40, 40), dtype, rng))
    ours, theirs = routed(lambda: getattr(trnpy, name)(a, b)), getattr(np, name)(a, b)
    assert (ours.dtype, ours.strides, ours.flags.owndata) == (theirs.dtype, theirs.strides, theirs.flags.owndata)
    np.testing.assert_array_equal(ours, theirs)


SUMMED = [
    ("bdae,bc->e", (41, 4, 3, 77), (41, 11)),
    ("a,b->b", (171,), (10_227,)),
    ("ab,dca->bc", (16, 18), (21, 86, 16)),
    ("aab,bc->b", (60, 60, 90), (90, 120)),
    ("ab,cd->a", (160, 12), (50, 10)),
    ("ab,bc->b", (60, 1), (90, 200)),  # an axis of length one is repeated
]


@pytest.mark.parametrize("dtype", ["i1", "u2", "i4", "i8", "u8", "?"])
@pytest.mark.parametrize("subscripts, a, b", SUMMED, ids=lambda x: x if isinstance(x, str) else "")
def test_labels_of_one_operand_are_summed_first_modulo_the_width_of_the_dtype(subscripts, a, b, dtype):
    """Sums of the result's dtype, so an int8 operand of an int64 product does not wrap around early."""
    rng = np.random.default_rng(len(subscripts))
    info = None if dtype == "?" else np.iinfo(dtype)

    def drawn(shape, dtype):
        if info is None:
            return rng.random(shape) < 0.01
        low, high = np.iinfo(dtype).min, np.iinfo(dtype).max
        return rng.integers(low, high, shape, dtype=dtype, endpoint=True)

    for other in {dtype, "?" if dtype == "?" else "i1" if info.min < 0 else "u1"}:
        x, y = drawn(a, dtype), drawn(b, other)
        if subscripts.startswith("ab,dca"):
            y = y[:, ::-1]
        with trnpy.policy(device="none"):
            assert trnpy.explain(trnpy.einsum, subscripts, x, y).route == "sums before products"
        ours, theirs = trnpy.einsum(subscripts, x, y), np.einsum(subscripts, x, y)
        assert (ours.dtype, type(ours)) == (theirs.dtype, type(theirs))
        np.testing.assert_array_equal(ours, theirs)
        assert getattr(ours, "flags", np.empty(0).flags).writeable


@pytest.mark.parametrize("subscripts, a, b, dtype", [
    ("ab,bc->ac", (90, 90), (90, 90), "i8"), ("a,b->ab", (400,), (400,), "i8"), ("ab,bc->a", (60, 90), (90, 2), "i8"),
    ("a,b->b", (171,), (10_227,), "f2"),
])  # fmt: skip
def test_nothing_is_summed_first_if_it_would_save_little_or_round_twice(subscripts, a, b, dtype):
    with trnpy.policy(device="none"):
        decision = trnpy.explain(trnpy.einsum, subscripts, np.ones(a, dtype), np.ones(b, dtype))
    assert decision.route != "sums before products"
