"""Digits: exact round trips, exact sums, certified errors on the families that break fixed schemes."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trnpy._engine import digits as _digits
from trnpy._nki.kernels.products import float64_matmul_reference
from trnpy._nki.kernels.shared.parameters import words_for

U = 2.0**-53


def product(a, b, digits):
    """The whole scheme with the reference's group sums."""
    x, y = _digits.split(a, digits, 1), _digits.split(b, digits, 0)
    sums = list(_digits.group_sums(x, y).astype(np.int64)[::-1])
    words = float64_matmul_reference.to_words(sums, words_for(digits))
    return _digits.assemble(words, digits, x.shift, y.shift)


def certified(a, b):
    """(digits, a, b) of the cheaper of the raw and the equilibrated product."""
    found = []
    for x, y in filter(None, ((a, b), _digits.equilibrate(a, b))):
        sums = _digits.magnitudes(x, 1) @ _digits.magnitudes(y, 0)
        digits = _digits.digits_for(sums.min(where=sums > 0, initial=2.0**100), a.shape[1])
        if digits is not None:
            found.append((digits, x, y))
    return min(found, key=lambda f: f[0], default=None)


def error(c, a, b):
    """Largest error over |A||B|, in u, against long double."""
    wide, magnitude = a.astype(np.longdouble) @ b, np.abs(a).astype(np.longdouble) @ np.abs(b)
    difference = np.abs(c - wide)
    assert not difference[magnitude == 0].any()
    return float((difference[magnitude > 0] / magnitude[magnitude > 0]).max(initial=0)) / U


def family(kind, m, k, n, rng):
    """(m, k) and (k, n) of docs/digits.md#certificate: scaled, cancelling, of wide range, and structured ones."""
    r, u = rng.standard_normal, rng.uniform
    inner = 10.0 ** u(-8, 8, k)
    half = r((m, -(-k // 2)))
    partner = r((-(-k // 2), n))
    rows, columns = rng.integers(0, k, m), rng.integers(0, k, n)  # of structured k x k matrices
    diagonal, points = np.arange(k), u(0, 1, k)

    def lognormal(phi):
        return lambda: tuple((u(0, 1, s) - 0.5) * np.exp(phi * r(s)) for s in ((m, k), (k, n)))

    def kernel(x, y):
        return np.exp(-50 * np.subtract.outer(x, y) ** 2)

    def stochastic(s, axis):
        p = u(0, 1, s) ** 8
        return p / p.sum(axis, keepdims=True)

    return {
        "uniform(-1,1)": lambda: (u(-1, 1, (m, k)), u(-1, 1, (k, n))),
        "uniform(0,1)": lambda: (u(0, 1, (m, k)), u(0, 1, (k, n))),
        "normal": lambda: (r((m, k)), r((k, n))),
        "constant": lambda: (np.full((m, k), 0.1), np.full((k, n), 1 / 3)),
        "phi 0.5": lognormal(0.5),
        "phi 1": lognormal(1),
        "phi 2": lognormal(2),
        "phi 3": lognormal(3),
        "phi 4": lognormal(4),
        "rows 1e+-30": lambda: (r((m, k)) * 10.0 ** u(-30, 30, (m, 1)), r((k, n)) * 10.0 ** u(-30, 30, (1, n))),
        "inner 1e+-8": lambda: (r((m, k)) * inner, r((k, n)) / inner[:, np.newaxis]),
        "entries 1e+-8": lambda: (r((m, k)) * 10.0 ** u(-8, 8, (m, k)), r((k, n)) * 10.0 ** u(-8, 8, (k, n))),
        "cancelling": lambda: (
            np.hstack([half, half * (1 + 1e-12 * r(half.shape))])[:, :k],
            np.vstack([partner, -partner])[:k],
        ),
        "orthogonal": lambda: (lambda q: (q.T.copy(), q))(np.linalg.qr(r((k, min(m, n, k))))[0]),
        "symmetry": lambda: (
            np.where(np.add.outer(np.arange(m), diagonal) % 2, 1e-17, 1.0) * r((m, k)),
            np.where(np.add.outer(diagonal, np.arange(n)) % 2, 1e-17, 1.0) * r((k, n)),
        ),
        "zero rows": lambda: (r((m, k)) * (u(size=(m, 1)) > 0.5), r((k, n)) * (u(size=(1, n)) > 0.5)),
        "sparse": lambda: (r((m, k)) * (u(size=(m, k)) > 0.9), r((k, n)) * (u(size=(k, n)) > 0.9)),
        "identity": lambda: (np.eye(k)[rows], r((k, n))),
        "near identity": lambda: (np.eye(k)[rows] + 1e-3 * r((m, k)), np.eye(k)[:, columns] + 1e-3 * r((k, n))),
        "triangular": lambda: (
            r((m, k)) * (diagonal <= rows[:, np.newaxis]),
            r((k, n)) * (diagonal[:, np.newaxis] <= columns),
        ),
        "banded": lambda: (r((m, k)) * (np.abs(np.subtract.outer(rows, diagonal)) <= 3), r((k, n))),
        "Gaussian kernel": lambda: (kernel(points[rows], points), kernel(points, points[columns])),
        "stochastic": lambda: (stochastic((m, k), 1), stochastic((k, n), 0)),
        "graded diagonal": lambda: (
            np.diag(-np.geomspace(20, 0.1, k))[rows] + 0.1 * r((m, k)),
            r((k, n)) / np.sqrt(k),
        ),
    }[kind]()


FAMILIES = (
    "uniform(-1,1)", "uniform(0,1)", "normal", "constant", "phi 0.5", "phi 1", "phi 2", "phi 3", "phi 4", "rows 1e+-30",
    "inner 1e+-8", "entries 1e+-8", "cancelling", "orthogonal", "symmetry", "zero rows", "sparse", "identity",
    "near identity", "triangular", "banded", "Gaussian kernel", "stochastic", "graded diagonal",
)  # fmt: skip


@pytest.mark.parametrize("k", [1, 32, 129, 512])
@pytest.mark.parametrize("kind", FAMILIES)
def test_a_certified_product_is_as_good_as_dgemm(kind, k):
    a, b = family(kind, 30, k, 30, np.random.default_rng(k))
    choice = certified(a, b)
    if choice is None:
        assert kind == "symmetry" or (kind in ("entries 1e+-8", "phi 4") and k < 128)  # parts, or the host
        return
    digits, x, y = choice
    ours = error(product(x, y, digits), a, b)
    assert ours <= 4.0
    if k >= 32:  # a single product is exact to one rounding in dgemm, to four in seven digits
        assert ours <= 2 * max(error(a @ b, a, b), 0.5)


@pytest.mark.parametrize("n", [1, 2, 100, 257])
def test_identity_and_permutations_are_exact(n):
    rng = np.random.default_rng(n)
    x = rng.standard_normal((n, 7)) * 10.0 ** rng.uniform(-5, 5, (n, 7))
    for p in (np.eye(n), np.eye(n)[rng.permutation(n)]):
        digits, a, b = certified(p, x)
        np.testing.assert_array_equal(product(a, b, digits), p @ x)


def test_scales_at_the_ends_of_the_range():
    rng = np.random.default_rng(0)
    a, b = rng.standard_normal((9, 50)), rng.standard_normal((50, 9))
    for left, right in ((900, -1000), (-1040, 0), (1000, 0), (-1000, 900)):
        x, y = np.ldexp(a, left), np.ldexp(b, right)
        exact = x.astype(np.longdouble) @ y  # dgemm itself rounds fifty products to denormals
        assert (np.abs(product(x, y, 8) - exact) <= 1e-14 * np.abs(exact) + 2.0**-1074).all()


@settings(max_examples=80, deadline=None)
@given(st.integers(1, 12), st.integers(1, 9), st.integers(1, 9), st.integers(0, 99), st.integers(-300, 300))
def test_digits_say_what_they_stand_for(digits, rows, columns, seed, exponent):
    """Within half a unit of the last digit; and never outside a byte."""
    a = np.random.default_rng(seed).standard_normal((rows, columns)) * 10.0**exponent
    s = _digits.split(a, digits, 1)
    planes = s.planes()
    assert planes.shape == (digits, rows, columns) and planes.dtype == np.int8
    first = min(digits, _digits.WORD)
    value = sum(planes[i].astype(object) * 256 ** (digits - 1 - i) for i in range(digits))
    for i in range(rows):
        # Python integers: neither rounding nor overflow in the check itself.
        for j in range(columns):
            exact = int(a[i, j].as_integer_ratio()[0]), int(a[i, j].as_integer_ratio()[1])
            power = int(s.shift[i, 0]) + 8 * (digits - first)
            scaled = exact[0] * 2 ** max(power, 0), exact[1] * 2 ** max(-power, 0)
            assert abs(2 * (value[i, j] * scaled[1] - scaled[0])) <= scaled[1]


def test_extreme_words_are_balanced():
    q = np.array([[127 * (256**7 - 1) // 255, -127 * (256**7 - 1) // 255, 0, 1, -1, 127, 128, -128, -129, 255, 256]])
    planes = _digits.Split((q.astype(np.int64),), np.zeros((1, 1), int), 7).planes()
    back = sum(planes[i].astype(object) * 256 ** (6 - i) for i in range(7))
    np.testing.assert_array_equal(back, q.astype(object))


@pytest.mark.parametrize(
    "bits, blocks", [(8, [1024, 512, 256, 256, 128, 128, 128]), (7, [4096, 2048, 1024, 1024, 512, 512, 512])]
)
def test_blocks_keep_float32_sums_exact(bits, blocks):
    """The blocks of docs/digits.md#exact-sums: every digit at its most negative, summed in float32."""
    assert [_digits.block_k(group, bits) for group in range(len(blocks))] == blocks
    for group, k in enumerate(blocks):
        largest = np.float32(4.0 ** (bits - 1))
        total = np.float32(0)
        for _ in range(k * (group + 1)):
            total += largest
        assert float(total) == k * (group + 1) * 4.0 ** (bits - 1)


def test_tiny_entries_do_not_hide_from_the_certificate():
    """(A B)_00 = 1e-50 has no other term: no number of digits here finds it."""
    a, b = np.array([[1.0, 1e-50]]), np.array([[0.0, 1.0], [1.0, 1.0]])
    assert certified(a, b) is None


def test_equilibration_leaves_what_it_would_round():
    a, b = np.array([[1e300], [1e-300]]), np.array([[1e-250, 1e-260]])
    assert _digits.equilibrate(a, b) is None


def test_equilibration_is_exact_and_never_worse_than_needed():
    a, b = family("inner 1e+-8", 20, 64, 20, np.random.default_rng(0))
    x, y = _digits.equilibrate(a, b)
    np.testing.assert_allclose(x @ y, a @ b, rtol=1e-13, atol=1e-13 * np.abs(a @ b).max())
    assert certified(a, b)[0] <= 8


def test_a_number_of_digits_out_of_range():
    with pytest.raises(ValueError, match="expected 1 to 12"):
        _digits.split(np.ones((2, 2)), 13, 1)


@pytest.mark.parametrize("words", [3, 4])
def test_half_the_products_of_a_symmetric_one_give_all_of_it(words):
    """Exactly, over all bits: U + U^T = 2 V for words of any sign."""
    rng = np.random.default_rng(words)
    v, skew = (rng.integers(-(2**62), 2**62, (5, 5)).astype(object) * 2 ** (32 * words - 70) for _ in range(2))
    v, skew = v + v.T + rng.integers(-9, 9), skew - skew.T
    u = v + skew

    def to_words(x):
        parts = [[[int(e) >> 32 * w & 0xFFFFFFFF for e in row] for row in x] for w in range(words)]
        return np.array(parts, np.uint32).view(np.int32)

    np.testing.assert_array_equal(_digits.symmetrised(to_words(u)), to_words(v))


@pytest.mark.parametrize("bits", [_digits.BITS, 4])
@pytest.mark.parametrize("digits", [2, 5, 7, 9])
def test_dry_runs_have_the_shapes_and_places_of_digits(digits, bits):
    a = np.random.default_rng(0).standard_normal((6, 5))
    for axis in (0, 1):
        _, ((bytes_, dtype), places, (shift, _)) = _digits._linked(a, digits, axis, bits)
        found = _digits.link_bytes(a, digits, axis, bits)
        assert (bytes_, dtype, places, shift) == (found[0].shape, found[0].dtype, found[1], found[2].shape)


@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("kind", ["symmetry", "entries 1e+-8", "normal"])
def test_parts_add_up_exactly_and_are_narrow(kind, axis):
    a = family(kind, 20, 30, 20, np.random.default_rng(0))[0]
    found = _digits.parts(a, axis)
    np.testing.assert_array_equal(sum(found), a)
    assert len(found) == {"normal": 1, "symmetry": 2, "entries 1e+-8": 3}[kind]
    for part in map(np.abs, found[:2]):
        assert (
            part[part > 0] >= np.broadcast_to(_digits.FAINT * part.max(axis, keepdims=True), a.shape)[part > 0]
        ).all()


def test_parts_that_are_nothing_beside_the_whole_need_few_digits():
    """1 times 1 hides what 1e-17 times 1e-17 is; where the sums of both are only of one kind it does not."""
    ones, faint = np.ones((3, 4)), np.full((3, 4), 1e-17)
    left, right = [ones, faint], [ones.T, faint.T]
    pairs = [(i, j) for i in range(2) for j in range(2)]
    sums = {(i, j): _digits.magnitudes(left[i], 1) @ _digits.magnitudes(right[j], 0) for i, j in pairs}
    assert _digits.digits_of_parts(left, right, sums) == {(0, 0): 7, (1, 0): 2, (0, 1): 2}
    left[1] = faint * 1e10
    needed = _digits.digits_of_parts(left, right, sums)
    assert needed[0, 0] == 7 and _digits.FEWEST < needed[1, 0] < 7 and (1, 1) not in needed
    sums[0, 0] = sums[1, 0] = sums[0, 1] = np.zeros((3, 3))
    assert _digits.digits_of_parts(left, right, sums).keys() == {(1, 1)}
