"""Limits and conditions of host routes, each at the values where leaving it out would give a wrong result."""

import itertools

import numpy as np
import pytest
import scipy.linalg
import scipy.sparse

import trnpy
from trnpy._host import integer, spmm

RNG = np.random.default_rng(0)


@pytest.mark.parametrize(("bits", "terms"), [(12, 5), (12, 4), (12, 3), (27, 3), (27, 2), (26, 9), (11, 17)])
def test_sums_just_above_and_below_the_significand_are_exact(bits, terms):
    """Odd sums of a few products of 2^(bits-1) + 1: above 2^24 float32 rounds them, above 2^53 float64."""
    value = 2 ** (bits - 1) + 1
    for n in (1, 2, 33):
        a = np.full((n, terms), value, np.int64)
        b = np.full((terms, n), value, np.int64)
        b[:, 0] -= 2 * (np.arange(terms) % 2)
        for left, right in ((a, b), (-a, b), (a, -b)):
            found = integer.exact(np.matmul, left, right, terms, np.dtype(np.int64))
            np.testing.assert_array_equal(found, np.matmul(left, right))


@pytest.mark.parametrize("terms", [1, 2, 3, 4, 5, 8, 9, 16, 17, 33, 64, 65, 129])
@pytest.mark.parametrize("dtype", ["i8", "u8", "i4", "u4"])
def test_digits_at_their_extremes_sum_exactly(terms, dtype):
    """Operands whose digits are all as large as digits may be, in either sign and nearly so."""
    width, size = integer.digit_bits(terms), 8 * np.dtype(dtype).itemsize
    half = 1 << (width - 1)
    for high, low in itertools.product((half - 1, -half, 1 - half, half // 2 + 1), repeat=2):
        a, b = (sum(d << (width * i) for i in range(-(-size // width))) % 2**size for d in (high, low))
        left, right = (np.full(shape, x, np.uint64).astype(dtype) for shape, x in (((2, terms), a), ((terms, 2), b)))
        right[0] += np.array(1, dtype)
        found = integer.exact(np.matmul, left, right, terms, np.dtype(dtype))
        np.testing.assert_array_equal(found, np.matmul(left, right))


@pytest.mark.parametrize(
    "options",
    [
        {}, {"trans_a": 1}, {"trans_b": 1}, {"trans_a": 1, "trans_b": 1}, {"trans_a": 1, "beta": 0.5, "c": 1},
        {"trans_b": 1, "c": 1}, {"trans_b": 1, "beta": 2.0, "c": 1},
        {"trans_b": 1, "beta": 1.0, "c": 1, "overwrite_c": 1},
        {"trans_a": 2}, {"trans_a": True},
    ],
)  # fmt: skip
@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("square", [True, False])
def test_a_product_of_one_array_with_itself_is_gemm_s_with_all_options(options, order, square):
    """A A^T and A^T A are symmetric; A A, A^T A^T and updates of C are not."""
    shape = (520, 520) if square else (800, 400)
    a = np.asarray(RNG.standard_normal(shape), order=order)
    if not square and bool(options.get("trans_a")) == bool(options.get("trans_b")):
        return  # the shapes do not fit
    n = a.shape[1] if options.get("trans_a") else a.shape[0]
    c = np.asarray(RNG.standard_normal((n, n)), order="F")

    def called(gemm):
        given = {k: (c.copy("F") if k == "c" else v) for k, v in options.items()}
        return gemm(1.5, a, a, **given)

    with trnpy.policy(device="none"):
        found, expected = called(trnpy.linalg.blas.dgemm), called(scipy.linalg.blas.dgemm)
    np.testing.assert_allclose(found, expected, atol=16 * np.finfo(float).eps * np.abs(expected).max() * 30, rtol=0)


def test_blocks_of_a_sparse_product_have_scipys_order():
    """Indices that are not sorted, rows that meet the same column more than once, and empty rows."""
    for seed in range(6):
        rng = np.random.default_rng(seed)
        a, b = (
            scipy.sparse.random(60, 60, 0.15, "csr", rng=rng).tobsr((5, 3)),
            scipy.sparse.random(60, 60, 0.15, "csr", rng=rng).tobsr((3, 4)),
        )
        for m in (a, b):
            for i in range(len(m.indptr) - 1):
                row = slice(m.indptr[i], m.indptr[i + 1])
                order = rng.permutation(row.stop - row.start)
                m.indices[row], m.data[row] = m.indices[row][order], m.data[row][order]
        blocks, indices, indptr = spmm.bsr_bsr(a, b)
        expected = a @ b
        np.testing.assert_array_equal(indptr, expected.indptr)
        np.testing.assert_array_equal(indices, expected.indices)
        np.testing.assert_allclose(blocks, expected.data, rtol=0, atol=60 * np.finfo(float).eps)


def halves(n):
    """A stack of matrices whose two triangles belong to different positive definite matrices."""
    x, y = RNG.standard_normal((2, 600, n, n))
    lower, upper = (m @ m.mT + n * np.eye(n) for m in (x, y))
    both = np.tril(lower) + np.triu(upper, 1)
    return np.ascontiguousarray(both)


STACKED = {
    "eigh": (["lower", "eigvals_only"], lambda a: (a,)), "eigvalsh": (["lower"], lambda a: (a,)),
    "cholesky": (["lower"], lambda a: (a,)), "cho_factor": (["lower"], lambda a: (a,)),
    "pinvh": (["lower", "return_rank"], lambda a: (a,)),
    "svd": (["full_matrices", "compute_uv"], lambda a: (a[:, :, :3],)),
    "solve": (["lower", "transposed"], lambda a: (a, a[:, :, :2])),
    "lu": (["permute_l", "p_indices"], lambda a: (a,)),
    "solve_triangular": (["lower", "unit_diagonal"], lambda a: (a, a[:, :, :2])), "inv": (["lower"], lambda a: (a,)),
    "qr": (["pivoting"], lambda a: (a,)), "pinv": (["return_rank"], lambda a: (a[:, :, :3],)),
}  # fmt: skip
MORE = {
    "solve": [{"assume_a": k} for k in ("pos", "sym", "her", "gen")] + [{}],
    "inv": [{"assume_a": k} for k in ("pos", "sym", "her", "gen", "upper triangular", "lower triangular")] + [{}],
    "solve_triangular": [{"trans": k} for k in (0, 1, 2, "N", "T", "C")],
    "qr": [{"mode": k} for k in ("full", "r", "economic", "raw")],
}


def arrays_of(result):
    """The members of a result one by one: SciPy 1.18's qr of mode "raw" returns a tuple in a tuple."""
    return [a for part in result for a in arrays_of(part)] if isinstance(result, (tuple, list)) else [result]


@pytest.mark.parametrize("name", STACKED)
def test_no_option_of_a_stack_is_ignored(name):
    """One triangle is another matrix's: a route that reads the wrong one, or both, is far off."""
    flags, make = STACKED[name]
    ours, theirs = getattr(trnpy.linalg, name), getattr(scipy.linalg, name)
    for values in itertools.product((False, True), repeat=len(flags)):
        for more in MORE.get(name, [{}]):
            options = dict(zip(flags, values, strict=True)) | more
            args = make(halves(4))

            def outcome(function, args=args, options=options):
                try:
                    found = function(*args, **options)
                except Exception as why:
                    return why
                return tuple(arrays_of(found))

            with trnpy.policy(device="none"):
                found, expected = outcome(ours), outcome(theirs)
            if isinstance(expected, Exception):
                assert type(found) is type(expected) and str(found) == str(expected), options
                continue
            assert len(found) == len(expected), options
            for mine, other in zip(found, expected, strict=True):
                mine, other = np.asarray(mine), np.asarray(other)
                assert mine.shape == other.shape and mine.dtype == other.dtype, options
                if name in ("eigh", "svd", "qr"):  # vectors have signs of their own
                    mine, other = np.abs(mine), np.abs(other)
                scale = max(1.0, float(np.abs(other).max()))
                np.testing.assert_allclose(
                    mine, other, atol=1e5 * np.finfo(float).eps * scale, rtol=0, err_msg=str(options)
                )
