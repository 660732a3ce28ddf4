"""Eigenproblems in pieces: families of spectra, pencils, parts that fit a rank, and what cannot be divided."""

import numpy as np
import pytest

from trnpy import dist
from trnpy.dist import _spectral
from trnpy.dist import linalg as module

N = 96
FAMILIES = {
    "random": lambda a: a + a.conj().T,
    "positive": lambda a: a @ a.conj().T / N,
    "graded": lambda a: of_spectrum(a, np.logspace(-8, 0, N)),
    "laplacian": lambda a: 2 * np.eye(N) - np.eye(N, k=1) - np.eye(N, k=-1),
    "of low rank": lambda a: a[:, : N // 3] @ a[:, : N // 3].conj().T,
    "clusters": lambda a: of_spectrum(a, np.repeat([1.0, 2.0, 3.0, 4.0], N // 4)),
    "one eigenvalue": lambda a: 3 * np.eye(N),
    "far from zero": lambda a: 1e3 * np.eye(N) + a + a.conj().T,
    "huge": lambda a: a + a.conj().T,
    "tiny": lambda a: a + a.conj().T,
}


def of_spectrum(a, w):
    q = np.linalg.qr(a)[0]
    return (q * w) @ q.conj().T


def random(dtype, seed=0):
    a = np.random.default_rng(seed).standard_normal((2, N, N))
    return a[0] + 1j * a[1] if np.dtype(dtype).kind == "c" else a[0]


def room(rows, dtype):
    """Bytes that a rank needs to solve a problem of so many rows."""
    return module.MATRICES * np.dtype(dtype).itemsize * rows**2


@pytest.mark.parametrize("ranks", [2, 3])
@pytest.mark.parametrize("dtype", ["f4", "f8", "c8", "c16"])
@pytest.mark.parametrize("family", FAMILIES)
def test_eigenpairs_are_as_accurate_as_lapacks(family, dtype, ranks):
    a = FAMILIES[family](random(dtype))
    info = np.finfo(dtype)
    scale = {"huge": float(info.max) / 1e4, "tiny": float(info.tiny) * 1e10}.get(family, 1.0)
    a = ((a + a.conj().T) / 2 * scale).astype(dtype)
    expected, eps = np.linalg.eigvalsh(a), np.finfo(dtype).eps
    size = abs(expected).max()

    def program():
        w, v = dist.linalg.eigh(dist.scatter(a, axis=1), memory=room(N // 2 + 8, dtype))
        assert v.axis == 1 and w.dtype == expected.dtype and v.dtype == a.dtype
        x = dist.gather(v)
        assert (np.diff(w) >= 0).all()
        np.testing.assert_allclose(w, expected, rtol=0, atol=40 * eps * size)
        assert np.linalg.norm(a / a.dtype.type(size) @ x - x * (w / size)) <= 4 * N * eps
        assert np.linalg.norm(x.conj().T @ x - np.eye(N)) <= 2 * N * eps
        np.testing.assert_array_equal(w, dist.comm().bcast(w))

    dist.threads(ranks, program)


def test_no_rank_solves_more_rows_than_it_has_room_for(monkeypatch):
    a = random("f8")
    a = a + a.T
    sizes, solve = [], module.local_eigh
    monkeypatch.setattr(module, "local_eigh", lambda m: sizes.append(len(m)) or solve(m))
    dist.threads(4, lambda: dist.linalg.eigh(dist.scatter(a), memory=room(30, "f8")))
    assert sum(sizes) == N and max(sizes) <= 30 and len(sizes) >= 4
    sizes.clear()
    dist.threads(4, lambda: dist.linalg.eigh(dist.scatter(a), memory=room(N, "f8")))
    assert sizes == [N]


@pytest.mark.parametrize("dtype", ["f8", "c16"])
def test_a_pencil_in_pieces(dtype):
    a, c = random(dtype), random(dtype, 1)
    a, b = a + a.conj().T, c @ c.conj().T / N + np.eye(N)

    def program():
        w, v = dist.linalg.eigh(dist.scatter(a), dist.scatter(b), memory=room(60, dtype))
        x = dist.gather(v)
        assert np.linalg.norm(a @ x - b @ x * w) <= 1e-12 * np.linalg.norm(a)
        assert np.linalg.norm(x.conj().T @ b @ x - np.eye(N)) <= 1e-12

    dist.threads(3, program)


def test_what_is_not_positive_definite_is_an_error_of_all_ranks():
    a = random("f8")
    a = a + a.T

    def program():
        with pytest.raises(np.linalg.LinAlgError, match="b is not positive definite"):
            dist.linalg.eigh(dist.scatter(a), dist.scatter(a), memory=room(60, "f8"))

    dist.threads(2, program)


def test_what_is_not_finite_is_an_error_of_all_ranks_and_the_smallest_numbers_are_none():
    a = np.eye(N)
    a[3, 3] = np.nan

    def program():
        with pytest.raises(ValueError, match="array must not contain infs or NaNs"):
            dist.linalg.eigh(dist.scatter(a), memory=room(60, "f8"))
        for small in (np.zeros((N, N)), 5e-324 * np.eye(N)):
            w = dist.linalg.eigh(dist.scatter(small), memory=room(60, "f8"))[0]
            np.testing.assert_array_equal(w, small.diagonal())

    dist.threads(3, program)


def test_a_wrong_part_is_refused(monkeypatch):
    """Planted: eigenvectors of one part that are not its own."""
    a, solve = random("f8"), module.local_eigh
    monkeypatch.setattr(module, "local_eigh", lambda m: (solve(m)[0], np.eye(len(m))[:, ::-1] + 1e-3 * solve(m)[1]))

    def program():
        with pytest.raises(np.linalg.LinAlgError, match=r"eigh of \(96, 96\) in pieces: residual or orthogonality is"):
            dist.linalg.eigh(dist.scatter(a + a.T), memory=room(60, "f8"))

    dist.threads(2, program)


def test_a_spectrum_that_no_shift_divides_is_an_error(monkeypatch):
    monkeypatch.setattr(_spectral, "DECIDED", -1.0)
    a = random("f8")

    def program():
        with pytest.raises(np.linalg.LinAlgError, match="no shift of 6 divides the spectrum"):
            dist.linalg.eigh(dist.scatter(a + a.T), memory=room(60, "f8"))

    dist.threads(2, program)


@pytest.mark.mpi
def test_in_pieces_over_mpi():
    a = random("f8")
    a = a + a.T
    w, v = dist.linalg.eigh(dist.scatter(a), memory=room(60, "f8"))
    x = dist.gather(v)
    assert np.linalg.norm(a @ x - x * w) <= 1e-12 * np.linalg.norm(a)
