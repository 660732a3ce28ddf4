"""Linear algebra of sharded arrays, over threads that stand for ranks: identities and bounds in eps, on every rank."""

import numpy as np
import pytest
import scipy.linalg
from hypothesis import given
from hypothesis import strategies as st

import trnpy
from trnpy import dist
from trnpy.dist import linalg as module

DTYPES = ("f4", "f8", "c8", "c16")


def random(m, n, dtype="f8", seed=0):
    rng = np.random.default_rng([seed, m, n])
    a = rng.standard_normal((m, n))
    return (a + 1j * rng.standard_normal((m, n)) if np.dtype(dtype).kind == "c" else a).astype(dtype)


def definite(n, dtype="f8"):
    a = random(n, n, dtype)
    return (a @ a.conj().T / n + np.eye(n)).astype(dtype)


def norm(a):
    return np.linalg.norm(np.asarray(a, complex))  # of float32, without overflow


def eps(a):
    return np.finfo(np.asarray(a).dtype).eps


def pieces(a, axis, edges):
    """``a`` in pieces of any lengths."""
    comm = dist.comm()
    first, last = edges[comm.rank], edges[comm.rank + 1]
    return dist.Sharded(a[first:last] if axis == 0 else a[:, first:last], axis, a.shape, comm)


def ragged(n, ranks, seed):
    return [0, *sorted(np.random.default_rng(seed).integers(0, n + 1, ranks - 1).tolist()), n]


def good_qr(a, q, r):
    n = a.shape[1]
    assert q.shape == a.shape and q.dtype == r.dtype == a.dtype and r.shape == (n, n)
    whole = dist.gather(q)
    assert norm(whole.conj().T @ whole - np.eye(n)) <= 10 * n * eps(a)
    assert norm(whole.astype(complex) @ r - a) <= 10 * n * eps(a) * norm(a)
    assert not np.tril(r, -1).any() and not np.imag(r.diagonal()).any() and (np.real(r.diagonal()) >= 0).all()


@given(
    st.integers(1, 4), st.integers(0, 60), st.integers(1, 9), st.sampled_from(DTYPES), st.sampled_from([0, 1]),
    st.integers(0, 99),
)  # fmt: skip
def test_tall_factors_of_any_shape_and_any_pieces(ranks, more, n, dtype, axis, seed):
    a = random(n + more, n, dtype, seed)
    edges = ragged(a.shape[axis], ranks, seed)

    def program():
        good_qr(a, *dist.linalg.qr(pieces(a, axis, edges)))
        u, s, vh = dist.linalg.svd(pieces(a, axis, edges))
        expected = np.linalg.svd(a, compute_uv=False)
        np.testing.assert_allclose(s, expected, rtol=0, atol=20 * n * eps(a) * expected[0])
        assert norm((dist.gather(u) * s) @ vh - a) <= 20 * n * eps(a) * norm(a)

    dist.threads(ranks, program)


@pytest.mark.parametrize("ranks", [1, 3])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("how", ["dependent", "zero", "graded", "scaled"])
def test_ill_conditioned_tall_matrices_have_orthonormal_factors(how, dtype, ranks):
    a = random(90, 8, dtype)
    if how == "dependent":
        a[:, 3] = a[:, 4]
    if how == "zero":
        a[:] = 0
    if how == "graded":
        a *= np.geomspace(1, 1e-12, 8).astype(a.real.dtype)
    if how == "scaled":
        a *= a.real.dtype.type(1e150 if a.real.dtype == "f8" else 1e18)  # whose Gram matrix overflows, or nearly
    dist.threads(ranks, lambda: good_qr(a, *dist.linalg.qr(dist.scatter(a))))


def test_what_decides_between_the_two_methods(monkeypatch):
    ran = []
    monkeypatch.setattr(module, "_by_rows", lambda a, real=module._by_rows: ran.append(1) or real(a))
    a = random(200, 10)
    dist.linalg.qr(dist.scatter(a))
    assert not ran
    a[:, 3] = a[:, 4]
    dist.linalg.qr(dist.scatter(a))
    assert ran == [1]


@pytest.mark.parametrize("ranks", [1, 3])
def test_least_squares_and_eigenvalues(ranks):
    a, b, s = random(120, 7), random(120, 2), definite(40)
    c = definite(40)[::-1, ::-1] + np.eye(40)
    deficient = a.copy()
    deficient[:, 2] = deficient[:, 5]

    def program():
        for matrix in (a, deficient):
            for sides in (b, b[:, 0], dist.scatter(b)):
                x, rank, sv = dist.linalg.lstsq(dist.scatter(matrix), sides, cond=1e-12)
                expected = scipy.linalg.lstsq(matrix, dist.gather(sides), cond=1e-12)
                np.testing.assert_allclose(x, expected[0], rtol=0, atol=1e-13)
                np.testing.assert_allclose(sv, expected[3], rtol=0, atol=1e-13)
                assert rank == expected[2]
        for root in range(ranks):
            w, v = dist.linalg.eigh(dist.scatter(s), root=root)
            assert v.axis == 1 and norm(s @ dist.gather(v) - dist.gather(v) * w) <= 1e-13 * norm(s)
            w, v = dist.linalg.eigh(dist.scatter(s, 1), dist.scatter(c), root=root)
            whole = dist.gather(v)
            assert norm(s @ whole - c @ whole * w) <= 1e-12 * norm(s)

    dist.threads(ranks, program)


def test_an_error_of_one_rank_is_raised_on_all():
    s = definite(300)
    s[280, 280] = -1.0  # in the last panel
    singular = np.ones((150, 150))

    def program():
        caught = []
        for call in (
            lambda: dist.linalg.cholesky(dist.scatter(s)),
            lambda: dist.linalg.solve(dist.scatter(s), np.ones(300), "pos"),
            lambda: dist.linalg.solve(dist.scatter(singular), np.ones(150)),
            lambda: dist.linalg.eigh(dist.scatter(s), dist.scatter(s)),
        ):
            with pytest.raises(np.linalg.LinAlgError) as error:
                call()
            caught.append(str(error.value))
        return caught

    found = dist.threads(3, program)
    assert found[0] == found[1] == found[2] and all(found[0])


@pytest.mark.parametrize(
    "call, error",
    [
        (lambda: dist.linalg.qr(np.eye(3)), TypeError),
        (lambda: dist.linalg.qr(dist.scatter(np.ones((2, 3)))), ValueError),
        (lambda: dist.linalg.cholesky(dist.scatter(np.ones((2, 3)))), ValueError),
        (lambda: dist.linalg.solve(dist.scatter(np.eye(3)), np.ones(2)), ValueError),
        (lambda: dist.linalg.solve(dist.scatter(np.eye(3)), np.ones(3), "sym"), ValueError),
        (lambda: dist.linalg.svd(dist.scatter(np.ones(3))), TypeError),
    ],
)
def test_wrong_arguments(call, error):
    with pytest.raises(error):
        call()


def test_the_same_bits_twice():
    a, s, b = random(500, 20), definite(200), random(200, 2)

    def program():
        q, r = dist.linalg.qr(dist.scatter(a))
        return q.local, r, dist.linalg.solve(dist.scatter(s), b), dist.linalg.cholesky(dist.scatter(s)).local

    for first, second in zip(dist.threads(3, program), dist.threads(3, program), strict=True):
        for x, y in zip(first, second, strict=True):
            np.testing.assert_array_equal(x, y)


def test_what_a_rank_computes_by_itself_goes_to_the_device():
    a = random(400, 30, "f4")
    with trnpy.policy(device="simulator", force=True, fallback="raise"), trnpy.trace() as log:
        good_qr(a, *dist.linalg.qr(dist.scatter(a)))
    assert {d.op for d in log} >= {"scipy.linalg.cholesky", "scipy.linalg.solve_triangular"}
    assert any(d.launches for d in log)
