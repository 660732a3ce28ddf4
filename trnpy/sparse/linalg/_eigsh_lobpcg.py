"""eigsh and lobpcg: solvers that keep their matrix on the engine while they iterate."""

from __future__ import annotations

import math
from typing import Any, ClassVar

import numpy as np
from scipy.sparse import linalg as scipy_linalg

from trnpy._base.conventions import uncounted
from trnpy._base.records import record
from trnpy._call import guards
from trnpy._call.dispatch import Cost, Op, Problem, Reason, Unsupported
from trnpy._call.fast_path import ITERATED
from trnpy._engine.abstract_arrays import StandIn, priced, usual
from trnpy._engine.engines import Engine, at_rest
from trnpy._engine.proof.checksums import DIGITS
from trnpy._settings.policy import current_policy
from trnpy.sparse._matmul import NO_DEVICE, whole_blocks
from trnpy.sparse._outline import PATTERNED
from trnpy.sparse._tiles import compressed
from trnpy.sparse.linalg import _block_lanczos
from trnpy.sparse.linalg._operator_products import (
    Product,
    Raised,
    delivered,
    dry_options,
    iterated,
    product_of,
    square,
)

BLOCK_PRODUCTS = 40  # assumed products of A with a block, for eigenvalues


@priced("", lambda plain: (8 * plain.data.nbytes, (True,)))
def _is_hermitian(plain: Any) -> bool:
    return not abs(plain - plain.conj().T).max() > 0


@priced("random", lambda plain, columns: (plain.shape[0] * columns, (((plain.shape[0], columns), plain.dtype),)))
def _start(plain: Any, columns: int) -> np.ndarray:
    """Random columns, equal for all matrices of one order."""
    n = plain.shape[0]
    return np.random.default_rng(n).standard_normal((n, columns)).astype(plain.dtype)


@record(kw_only=True)
class Lanczos(Problem):
    """Some eigenpairs of a real symmetric matrix by block Lanczos."""

    unproven: ClassVar[str] = "that no wanted eigenvalue is missing"
    a: Any
    k: int
    which: str
    tol: float
    vectors: bool

    def outlined(self) -> tuple[Any, ...] | None:
        return dry_options(self, BLOCK_PRODUCTS)

    def run(self, engine: Engine) -> Any:
        plain = compressed(self.a, self.dtype)
        guards.finite(plain.data)
        if not _is_hermitian(plain):
            raise Unsupported(Reason.VALUE, "not exactly Hermitian")
        largest, info = float(usual(np.abs(plain.data).max(initial=0.0), 1.0)), np.finfo(self.dtype)
        if largest < float(info.tiny) / float(info.eps):
            raise Unsupported(Reason.VALUE, "all elements are zero, or an eps of the largest underflows")
        k, exponent = self.k, math.frexp(largest)[1]
        start = _start(plain, min(max(k, _block_lanczos.COLUMNS), plain.shape[0] // 4))
        product = product_of(self.a, self.dtype, engine, DIGITS)
        # A divided by a power of two: squares of its elements neither underflow nor overflow.
        values, found = _block_lanczos.block_lanczos(
            lambda x: np.ldexp(product(x), -exponent), start, k, self.which, self.tol
        )
        values = np.ldexp(values, exponent)
        return (values, found) if self.vectors else values[_block_lanczos.wanted(values, self.which)[::-1]]

    def unique(self, result: Any) -> Any:
        return ()  # determined only to the tolerance of the call

    def error(self, result: Any) -> float:
        """The larger of the eigenpairs' worst residual beyond ``tol`` and their error of orthonormality.

        If there are only eigenvalues, they are only checked to be finite.
        """
        if not self.vectors:
            return 0.0 if np.isfinite(result).all() else math.inf
        values, found = result
        scale = float(np.abs(values).max()) or 1.0
        residual = np.abs(compressed(self.a, self.dtype) @ found - found * values).max() / scale
        gram = np.abs(found.conj().T @ found - np.eye(len(values))).max()
        return float(max(max(residual - self.tol, 0.0), gram))


@record(kw_only=True)
class Lobpcg(Problem):
    """SciPy's iteration, which works on blocks already, with the engine's products with A."""

    unproven: ClassVar[str] = "that no wanted eigenvalue is missing"
    a: Any
    x: np.ndarray
    b: Any
    options: tuple[Any, ...]  # SciPy's options from M on

    def outlined(self) -> tuple[Any, ...] | None:
        return dry_options(self, BLOCK_PRODUCTS)

    @uncounted
    def run(self, engine: Engine) -> Any:
        guards.finite(self.x)
        product = product_of(self.a, self.dtype, engine, DIGITS)
        if isinstance(self.x, StandIn):  # SciPy's iteration cannot run without values; it is mostly products
            for _ in range(BLOCK_PRODUCTS):
                product(self.x)
            return None

        @uncounted
        def pairs(proved: Product) -> Any:
            # SciPy orthonormalizes X in place, and may have to start again.
            return scipy_linalg.lobpcg(proved, self.x.copy(), self.b, *self.options)

        return iterated(pairs, product)

    def error(self, result: Any) -> float:
        """The difference between the values and the vectors' Rayleigh quotients, over the norm of A."""
        if isinstance(result, Raised):
            return 0.0
        b, values, found = self.b, np.asarray(result[0]), np.asarray(result[1])
        plain = compressed(self.a, self.dtype)
        image = found if b is None else b(found) if callable(b) else b @ found
        below = np.einsum("ij,ij->j", found.conj(), image).real
        quotients = np.einsum("ij,ij->j", found.conj(), plain @ found).real / below
        scale = float(np.abs(plain).sum(axis=1).max()) or 1.0
        return float(np.abs(quotients - values).max() / scale)

    def deliver(self, result: Any) -> Any:
        return delivered(result)


def _pairs_priced(a: Any, k: int, columns: int) -> Problem:
    """The estimated cost of eigenpairs from products of A with blocks of ``columns``."""
    dtype, policy = square(a), current_policy()
    if dtype.char not in "fdFD":
        raise Unsupported(Reason.DTYPE, f"dtype {dtype} has no device path")
    n, real = a.shape[0], 4.0 if dtype.kind == "c" else 1.0
    moved = BLOCK_PRODUCTS * n * columns * dtype.itemsize
    flops = BLOCK_PRODUCTS * 2.0 * real * a.nnz * columns
    cost = Cost("csr", columns, flops, a.nnz * (dtype.itemsize + 4) + moved, moved)
    if at_rest(policy):
        return Problem((), dtype, cost, on_device=False, refusal=NO_DEVICE)
    return Problem((a.data,) if a.format in PATTERNED else (np.empty((n, k), dtype),), dtype, cost)


def prepare_eigsh(
    A: Any, k: int = 6, M: Any = None, sigma: Any = None, which: str = "LM", v0: Any = None, ncv: Any = None,
    maxiter: Any = None, tol: float = 0, return_eigenvectors: bool = True, Minv: Any = None, OPinv: Any = None,
    mode: str = "normal", rng: Any = None,
) -> Problem:  # fmt: skip
    options = {"M": M, "sigma": sigma, "v0": v0, "ncv": ncv, "maxiter": maxiter, "Minv": Minv, "OPinv": OPinv}
    refused = [name for name, value in (options | {"rng": rng}).items() if value is not None]
    if refused or which not in ("LM", "LA", "SA") or mode != "normal":
        raise Unsupported(Reason.PARAM, f"options {', '.join(refused)}, which={which!r}, mode={mode!r}")
    if square(A).kind == "c":  # SciPy orders the eigenvalues of complex matrices differently
        raise Unsupported(Reason.DTYPE, f"dtype {A.dtype} has no device path")
    if type(k) is not int or not 0 < k < A.shape[0] // 4:
        raise Unsupported(Reason.PARAM, f"k={k} of {A.shape[0]}: expected less than a quarter of the order")
    return Lanczos.of(
        _pairs_priced(A, k, max(k, _block_lanczos.COLUMNS)),
        a=A,
        k=k,
        which=which,
        tol=float(tol),
        vectors=bool(return_eigenvectors),
    )


def prepare_lobpcg(
    A: Any, X: Any, B: Any = None, M: Any = None, Y: Any = None, tol: Any = None, maxiter: Any = None,
    largest: bool = True, verbosityLevel: int = 0, retLambdaHistory: bool = False,
    retResidualNormsHistory: bool = False, restartControl: int = 20,
) -> Problem:  # fmt: skip
    dtype = square(A)
    if type(X) is not np.ndarray or X.ndim != 2 or X.shape[0] != A.shape[0] or not X.shape[1]:
        raise Unsupported(Reason.LAYOUT, f"X is {type(X).__name__}, not vectors of {A.shape[0]}")
    if X.dtype != dtype or verbosityLevel:
        raise Unsupported(Reason.PARAM, f"X of {X.dtype} for {dtype}, verbosityLevel={verbosityLevel}")
    if B is not None:
        whole_blocks(B)
    options = M, Y, tol, maxiter, largest, verbosityLevel, retLambdaHistory, retResidualNormsHistory, restartControl
    return Lobpcg.of(_pairs_priced(A, X.shape[1], X.shape[1]), a=A, x=X, b=B, options=options)


OPS = (
    Op("scipy.sparse.linalg.eigsh", scipy_linalg.eigsh, prepare_eigsh, small=ITERATED, dtypes="fd"),
    Op("scipy.sparse.linalg.lobpcg", scipy_linalg.lobpcg, prepare_lobpcg, small=ITERATED),
)
