"""Calls of sound engines on hostile data: whether a check takes a right result for a fault."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType
from typing import Any

import numpy as np
from scipy.sparse.linalg import ArpackError

from conformance.fault_injection import sound_engines
from trnpy import linalg, sparse
from trnpy._call.dispatch import EXCUSE, trace
from trnpy._einsum.multi_einsum import multi_einsum
from trnpy._einsum.rows import dot, einsum, inner, kron, matmul, tensordot
from trnpy._engine.engines import Engine, engine
from trnpy._engine.health import Health
from trnpy._settings.policy import policy
from trnpy.linalg import blas, lapack
from trnpy.sparse.linalg import cg, eigsh, expm_multiply, gmres, lobpcg

# Data on which a check with a wrong scale would fail healthy results. An array of random numbers becomes another one.
HOSTILE: Mapping[str, Callable[[np.ndarray, np.random.Generator], np.ndarray]] = MappingProxyType(
    {
        "normal": lambda a, rng: a,
        "constant": lambda a, rng: np.full_like(a, 1 / 3),
        "positive": lambda a, rng: np.abs(a),
        "scaled rows": lambda a, rng: a * 10.0 ** rng.uniform(-10, 10, (len(a), 1)),
        "scaled columns": lambda a, rng: a * 10.0 ** rng.uniform(-10, 10, a.shape[1]),
        "scaled entries": lambda a, rng: a * 10.0 ** rng.uniform(-10, 10, a.shape),
        "huge": lambda a, rng: a * 1e150,
        "tiny": lambda a, rng: a * 1e-150,
        "vanishing": lambda a, rng: a * 1e-200,
        "subnormal": lambda a, rng: a * 1e-310,
        "all scales": lambda a, rng: a * 10.0 ** rng.uniform(-300, 100, a.shape),
        "sparse": lambda a, rng: np.where(rng.random(a.shape) < 0.02, a, 0.0),
        "zero rows": lambda a, rng: np.where(np.arange(len(a))[:, np.newaxis] % 3 == 0, 0.0, a),
        "integers": lambda a, rng: np.round(3 * a),
        "rank one": lambda a, rng: np.outer(a[:, 0], a[0]),
    }
)
DTYPES = ("f8", "f8", "c16", "f4", "c8", "f2", "i8", "i4", "?")  # of products; of other functions the first five
ORDERS = (1, 2, 3, 7, 16, 33, 60)
LARGE, LARGER = 160, 400  # the order of one call in 50: of several panels; of products, of long sums
TOGETHER = 100  # calls for which settings are made once: they take a tenth of the time of a call


def _hermitian(a: np.ndarray) -> np.ndarray:
    return np.asarray(a + a.conj().T)


def _definite(a: np.ndarray) -> np.ndarray:
    """A positive definite matrix of condition 11 at most, of ``a`` without its scale."""
    size, one = np.linalg.norm(a), np.eye(len(a), dtype=a.dtype)
    a = a / size if 0 < size < np.inf else one
    return np.asarray(a @ a.conj().T + 0.1 * one).astype(a.dtype, copy=False)


def _of_norm(size: float, a: np.ndarray) -> np.ndarray:
    return size * a / (np.abs(a).sum(axis=0).max() or 1)


def _tall(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    return np.concatenate((a, b))


def _wide(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    return np.concatenate((a, b), axis=1)


def _eigsh(a: np.ndarray) -> Any:
    return eigsh(sparse.csr_array(_hermitian(a)), k=1) if len(a) > 6 else None


def _lobpcg(a: np.ndarray, b: np.ndarray) -> Any:
    return lobpcg(sparse.csr_array(_definite(a)), b[:, :1], maxiter=9) if len(a) > 6 else None


F = np.asfortranarray
HEALTHY: Mapping[str, Callable[[np.ndarray, np.ndarray], Any]] = MappingProxyType(
    {
        "matmul": matmul,
        "einsum": lambda a, b: einsum("ij,jk->ki", a, b),
        "tensordot": lambda a, b: tensordot(a, b, 1),
        "dot": dot,
        "inner": inner,
        "kron": lambda a, b: kron(a[:60, :60], b[:60, :60]),
        "multi_einsum": lambda a, b: multi_einsum([("ij,jk->ik", a, b), ("ij,jk->ki", b, a)]),
        "multi_dot": lambda a, b: linalg.multi_dot([a, b, a]),
        "khatri_rao": linalg.khatri_rao,
        "cholesky": lambda a, b: linalg.cholesky(a.conj().T @ a),
        "lu": lambda a, b: linalg.lu(a),
        "qr": lambda a, b: linalg.qr(a),
        "qr of tall": lambda a, b: linalg.qr(_tall(a, b), mode="economic"),
        "solve": linalg.solve,
        "solve of definite": lambda a, b: linalg.solve(_definite(a), b, assume_a="pos"),
        "solve_triangular": linalg.solve_triangular,
        "lu_solve": lambda a, b: linalg.lu_solve(linalg.lu_factor(a), b),
        "cho_solve": lambda a, b: linalg.cho_solve(linalg.cho_factor(a.conj().T @ a), b),
        "cho_solve of definite": lambda a, b: linalg.cho_solve(linalg.cho_factor(_definite(a)), b),
        "inv": lambda a, b: linalg.inv(a),
        "det": lambda a, b: linalg.det(a),
        "slogdet": lambda a, b: linalg.slogdet(a),
        "lstsq": linalg.lstsq,
        "lstsq of tall": lambda a, b: linalg.lstsq(_tall(a, b), _tall(b, a)),
        "lstsq of wide": lambda a, b: linalg.lstsq(_wide(a, b), b),
        "pinv": lambda a, b: linalg.pinv(a),
        "pinv of wide": lambda a, b: linalg.pinv(_wide(a, b)),
        "pinvh": lambda a, b: linalg.pinvh(_hermitian(a)),
        "eigh": lambda a, b: linalg.eigh(a),
        "eigh of some": lambda a, b: linalg.eigh(_hermitian(a), subset_by_index=(0, 0)),
        "eigh of two": lambda a, b: linalg.eigh(_hermitian(a), _definite(b)),
        "eigvalsh": lambda a, b: linalg.eigvalsh(_hermitian(a)),
        "eigvalsh of two": lambda a, b: linalg.eigvalsh(_hermitian(a), _definite(b)),
        "svd": lambda a, b: linalg.svd(a),
        "svd of tall": lambda a, b: linalg.svd(_tall(a, b), full_matrices=False),
        "svdvals": lambda a, b: linalg.svdvals(a),
        "polar": lambda a, b: linalg.polar(a),
        "orth": lambda a, b: linalg.orth(a),
        "null_space": lambda a, b: linalg.null_space(a),
        "expm": lambda a, b: linalg.expm(a),
        "expm of norm 20": lambda a, b: linalg.expm(_of_norm(20, a)),
        "sqrtm": lambda a, b: linalg.sqrtm(_definite(a)),
        "inv_sqrtm": lambda a, b: linalg.inv_sqrtm(_definite(a)),
        "logm": lambda a, b: linalg.logm(_definite(a)),
        "fractional_matrix_power": lambda a, b: linalg.fractional_matrix_power(_definite(a), 0.3),
        "matrix_power": lambda a, b: linalg.matrix_power(a, 5),
        "expm_multiply": lambda a, b: expm_multiply(_of_norm(20, a), b),
        "csr @ matrix": lambda a, b: sparse.csr_array(a) @ b,
        "csr @ vector": lambda a, b: sparse.csr_array(a) @ b[:, 0],
        "csr @ csr": lambda a, b: sparse.csr_array(a) @ sparse.csr_array(b),
        "cg": lambda a, b: cg(sparse.csr_array(_definite(a)), b[:, 0], rtol=1e-8),
        "gmres": lambda a, b: gmres(sparse.csr_array(_definite(a)), b[:, 0], rtol=1e-8),
        "eigsh": lambda a, b: _eigsh(a),
        "lobpcg": _lobpcg,
        "dgemm": lambda a, b: blas.dgemm(-2.0, F(a), F(b), trans_a=1),
        "dsymm": lambda a, b: blas.dsymm(1.0, F(a), F(b)),
        "dsyrk": lambda a, b: blas.dsyrk(1.0, F(a)),
        "dsyr2k": lambda a, b: blas.dsyr2k(1.0, F(a), F(b)),
        "dtrmm": lambda a, b: blas.dtrmm(1.0, F(a), F(b)),
        "dtrsm": lambda a, b: blas.dtrsm(1.0, F(a), F(b)),
        "dpotrf": lambda a, b: lapack.dpotrf(F(_definite(a))),
        "dposv": lambda a, b: lapack.dposv(F(_definite(a)), F(b)),
        "dgetrf": lambda a, b: lapack.dgetrf(F(a)),
        "dgesv": lambda a, b: lapack.dgesv(F(a), F(b)),
        "dsyevd": lambda a, b: lapack.dsyevd(F(_hermitian(a))),
        "dsygvd": lambda a, b: lapack.dsygvd(F(_hermitian(a)), F(_definite(b))),
    }
)
PRODUCTS = ("matmul", "einsum", "tensordot")
OF_DOUBLES = tuple(name for name in HEALTHY if name.startswith("d") and name not in ("dot", "det"))


def alarms(count: int, seed: int, names: list[str] | None = None) -> Iterator[tuple[str, str]]:
    """Call functions on hostile data ``count`` times, on engines of the host, which are sound: each fault and its call.

    Every call on the host's engine or on the engine of the what-if, which takes decisions for a machine. ``names``: of
    HEALTHY, called in turn. By default one call in 50 is of any, the others of products: others take 100 times as long.
    """
    rng, engines = np.random.default_rng(seed), sound_engines()
    for first in range(0, count, TOGETHER):
        with _quiet():
            turns = range(first, min(first + TOGETHER, count))
            found = [_alarm(_called(turn, rng, names), rng, engines[turn % 2]) for turn in turns]
        yield from filter(None, found)


def _called(turn: int, rng: np.random.Generator, names: list[str] | None) -> str:
    """The function to call in this turn. Turns alternate between two engines."""
    if names is not None:
        return names[turn // 2 % len(names)]
    return PRODUCTS[turn % 3] if turn % 50 else list(HEALTHY)[int(rng.integers(len(HEALTHY)))]


def _alarm(name: str, rng: np.random.Generator, sound: Engine) -> tuple[str, str] | None:
    """A call and why it was taken for a fault; None if it was not."""
    dtypes = DTYPES if name in PRODUCTS else ("f8",) if name in OF_DOUBLES else DTYPES[:5]
    dtype = dtypes[int(rng.integers(len(dtypes)))]
    n = ORDERS[int(rng.integers(len(ORDERS)))] if rng.integers(50) else LARGER if name in PRODUCTS else LARGE
    chosen = [list(HOSTILE)[int(i)] for i in rng.integers(len(HOSTILE), size=2)]
    operands = [hostile(family, n, dtype, rng) for family in chosen]
    why = _refused(sound, HEALTHY[name], operands)
    return (f"{name} {dtype} {n} {' by '.join(chosen)} on {sound.name}", why) if why else None


def hostile(family: str, n: int, dtype: str, rng: np.random.Generator) -> np.ndarray:
    a = HOSTILE[family](rng.standard_normal((n, n)), rng)
    if np.dtype(dtype).kind in "ib":
        a = np.round(np.nan_to_num(np.clip(a, -1e9, 1e9)))
    if np.dtype(dtype).kind == "c":
        a = a + 1j * HOSTILE[family](rng.standard_normal((n, n)), rng)
    found: np.ndarray = a.astype(dtype)
    return found


def refused(sound: Engine, call: Callable[..., Any], operands: list[np.ndarray]) -> str:
    """Why a call on a sound engine was taken for a fault, or would have been, had its check not failed on the host too.

    "" if it was not.
    """
    with _quiet():
        return _refused(sound, call, operands)


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """The settings of healthy calls."""
    quiet, settings = warnings.catch_warnings(action="ignore"), policy(force=True, fallback="log")
    with quiet, settings, np.errstate(all="ignore"):
        yield


def _refused(sound: Engine, call: Callable[..., Any], operands: list[np.ndarray]) -> str:
    sound.health = Health()
    own = contextlib.suppress(np.linalg.LinAlgError, ValueError, ArpackError)  # the reference's
    with engine(sound), trace() as log, own:
        call(*operands)
    excused = [d.detail for d in log if EXCUSE in d.detail]
    return excused[0] if excused else f"{sound.health}: {log[-1].detail}" if sound.health.causes else ""
