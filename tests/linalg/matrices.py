"""Hermitian matrices that break eigensolvers: the families of docs/spectra.md#eigenproblems."""

import numpy as np


def orthogonal(n, rng, dtype):
    g = rng.standard_normal((n, n))
    if np.dtype(dtype).kind == "c":
        g = g + 1j * rng.standard_normal((n, n))
    q, r = np.linalg.qr(g)
    return q * np.sign(r.diagonal().real)


def with_spectrum(w, rng, dtype):
    q = orthogonal(len(w), rng, dtype)
    a = (q * w) @ q.conj().T
    return (a + a.conj().T) / 2


def spectrum(family, n, rng):
    half, quarter = n // 2, n // 4
    return {
        "uniform": lambda: rng.uniform(-1, 1, n),
        "graded to 1e-12": lambda: 10.0 ** -np.linspace(0, 12, n) * rng.choice([-1, 1], n),
        "clustered 1e-10": lambda: np.concatenate(
            [
                1 + 1e-10 * rng.standard_normal(half),
                -0.3 + 1e-8 * rng.standard_normal(quarter),
                rng.uniform(-1, 1, n - half - quarter),
            ]
        ),
        "two-valued": lambda: np.concatenate([np.ones(half), 2 * np.ones(n - half)]),
        "clusters of 4": lambda: np.repeat(rng.uniform(-1, 1, -(-n // 4)), 4)[:n] + 1e-7 * rng.standard_normal(n),
        "rank 1 plus identity": lambda: np.concatenate([np.ones(n - 1), [n + 1.0]]),
        "identity": lambda: np.ones(n),
        "tiny": lambda: 1e-140 * rng.uniform(-1, 1, n),
        "huge": lambda: 1e140 * rng.uniform(-1, 1, n),
    }[family]()


SPECTRA = (
    "uniform", "graded to 1e-12", "clustered 1e-10", "two-valued", "clusters of 4", "rank 1 plus identity", "identity",
    "tiny", "huge",
)  # fmt: skip
SHAPED = ("random", "graded entries", "wilkinson", "hilbert", "laplacian")
FAMILIES = SPECTRA + SHAPED
TO_SINGLE = {"tiny": 1e110, "huge": 1e-110}  # factors that bring a family into the range of float32


def hermitian(family, n, dtype, seed=0):
    """The (n, n) matrix of a family; a phase similarity makes the complex version of a real one."""
    rng = np.random.default_rng([seed, n])
    if family in SPECTRA:
        return with_spectrum(spectrum(family, n, rng), rng, dtype)
    if family == "random":
        a = rng.standard_normal((n, n))
        a = a + 1j * rng.standard_normal((n, n)) if np.dtype(dtype).kind == "c" else a
        return (a + a.conj().T) / 2
    if family == "graded entries":
        d = 10.0 ** -np.linspace(0, 6, n)
        return hermitian("random", n, dtype, seed) * d * d[:, np.newaxis]
    if family == "wilkinson":
        a = np.diag(np.abs(np.arange(n) - (n - 1) / 2)) + np.eye(n, k=1) + np.eye(n, k=-1)
    elif family == "hilbert":
        a = 1.0 / (np.arange(n)[:, np.newaxis] + np.arange(n) + 1)
    else:
        k = max(int(np.sqrt(n)), 1)
        t = 2 * np.eye(k) - np.eye(k, k=1) - np.eye(k, k=-1)
        a = np.zeros((n, n))
        a[: k * k, : k * k] = np.kron(t, np.eye(k)) + np.kron(np.eye(k), t)
    if np.dtype(dtype).kind == "c":
        phase = np.exp(2j * np.pi * rng.uniform(size=n))
        a = a * phase * phase.conj()[:, np.newaxis]
        np.fill_diagonal(a, a.diagonal().real)
    return a


def positive(n, dtype, condition, seed=0):
    """A Hermitian positive-definite (n, n) matrix with that condition number."""
    rng = np.random.default_rng([seed, n])
    return with_spectrum(np.geomspace(1, 1 / condition, n) if n > 1 else np.ones(1), rng, dtype)
