"""Inverse square roots of positive-definite matrices, a function that neither NumPy nor SciPy has."""

from __future__ import annotations

import math
from typing import Any, Literal, overload

import numpy as np
from numpy.linalg import eigh as _numpy_eigh

from trnpy._base.records import record
from trnpy._call import guards
from trnpy._call.dispatch import Op, Problem, Reason, Unsupported
from trnpy._engine import lapack
from trnpy._engine.abstract_arrays import usual
from trnpy._engine.engines import HOST, Engine
from trnpy._engine.proof.weights import probe
from trnpy.linalg import _eigh, _matrix_functions
from trnpy.linalg._matrices import SMALL, norm, square, useful

METHODS = ("eigh", "newton-schulz")
EIGH_FLOPS = 11.0  # times n^3: eigenvectors and one symmetric product
USUAL_STEPS = 20  # default estimate, of three products each: for a condition number of 1e4
MOST_STEPS = 100  # a condition number of 1e14 needs about 60
SETTLED = 8.0  # times sqrt(n) u: a smaller residual |Z Y - I| is rounding
CLOSE, HALVED = 0.1, 0.5  # a step should square a residual below CLOSE; if it does not halve it, it has stopped
DIVERGED = 2.0  # limit of the residual: for a positive-definite matrix it begins below 1 and falls


@record(frozen=True)
class Convergence:
    """How an iteration ended: its steps, its estimate of |X A X - I|_F / sqrt(n), and whether it converged."""

    steps: int
    residual: float
    converged: bool


InverseRoot = np.ndarray | tuple[np.ndarray, Convergence]


@overload
def inv_sqrtm(a: Any, method: str = "eigh", *, full_output: Literal[False] = False) -> np.ndarray: ...
@overload
def inv_sqrtm(a: Any, method: str = "eigh", *, full_output: Literal[True]) -> tuple[np.ndarray, Convergence]: ...
@overload
def inv_sqrtm(a: Any, method: str = "eigh", *, full_output: bool) -> InverseRoot: ...


def inv_sqrtm(a: Any, method: str = "eigh", *, full_output: bool = False) -> InverseRoot:
    """Inverse square root of a Hermitian positive-definite matrix.

    Parameters
    ----------
    a : (n, n) array_like
        Hermitian and positive definite, of any numeric dtype. All of it is read.
    method : {"eigh", "newton-schulz"}, optional
        ``eigh`` uses eigenvectors, A^(-1/2) = X diag(w)^(-1/2) X^H. ``newton-schulz`` is the coupled Newton-Schulz
        iteration [1]_, which needs only products, in about 2 log2(condition number) steps.
    full_output : bool, optional
        Whether to return also how the method ended.

    Returns
    -------
    x : (n, n) ndarray
        The Hermitian matrix with x a x = I, in the dtype of `a` if that is floating, otherwise in float64. Its
        relative error is about the condition number times the unit roundoff.
    convergence : Convergence
        Only with `full_output`: ``steps`` taken, ``residual``, the norm ``|x a x - I|_F / sqrt(n)``, and whether it
        ``converged``.

    Raises
    ------
    ValueError
        If `method` is not known, or `a` is not one square matrix, is empty, or is not finite.
    numpy.linalg.LinAlgError
        If `a` is not positive definite or, without `full_output`, the iteration does not converge.

    References
    ----------
    .. [1] N. J. Higham, Functions of Matrices, SIAM, 2008, sec. 6.3.

    Examples
    --------
    >>> import numpy as np
    >>> from trnpy.linalg import inv_sqrtm
    >>> inv_sqrtm(np.diag([4.0, 16.0]))
    array([[0.5 , 0.  ],
           [0.  , 0.25]])
    """
    if method not in METHODS:
        raise ValueError(f"method={method!r}: expected one of {', '.join(METHODS)}")
    m = np.asarray(a)
    m = m.astype(np.result_type(m.dtype, np.float32) if m.dtype.kind in "fc" else np.float64, copy=False)
    if m.ndim != 2 or m.shape[0] != m.shape[1] or not m.size:
        raise ValueError(f"shape {m.shape}: expected one square matrix that is not empty")
    if not np.isfinite(m).all():
        raise ValueError("array must not contain infs or NaNs")
    if method == "eigh":
        w, x = _numpy_eigh(m)  # ?syevd as in SciPy, from the library whose BLAS computes the products of HOST
        return _finished(_of_eigenvectors(w, x, HOST), m, full_output, HOST)
    return _settled(*inverse_square_root(m, HOST), full_output)


def _of_eigenvectors(w: np.ndarray, x: np.ndarray, engine: Engine) -> np.ndarray:
    if not usual(w[0] > 0, True):
        raise lapack.LinAlgError(f"matrix is not positive definite: its smallest eigenvalue is {w[0]:.3g}")
    return engine.gram(x * w**-0.25)


def _finished(x: np.ndarray, a: np.ndarray, full_output: bool, engine: Engine) -> InverseRoot:
    if not full_output:
        return x
    residual = norm(engine.matmul(x, engine.matmul(a, x)) - np.eye(len(a), like=a)) / math.sqrt(len(a))
    return x, Convergence(1, residual, True)


def _settled(x: np.ndarray, how: Convergence, full_output: bool) -> InverseRoot:
    if full_output:
        return x, how
    if not how.converged:
        raise lapack.LinAlgError(f"no convergence in {how.steps} steps: not positive definite, or nearly so")
    return x


def inverse_square_root(a: np.ndarray, engine: Engine) -> tuple[np.ndarray, Convergence]:
    """A^(-1/2) of Hermitian positive-definite a (n, n) and how the iteration ended.

    In the coupled Newton-Schulz iteration Y converges to the square root and Z to its inverse, with products only and
    quadratically once |I - Z Y| < 1. Higham, Functions of Matrices, 2008, sec. 6.3 and (6.35).
    """
    n = len(a)
    norm = float(min(usual(np.abs(a).sum(axis=0).max(), 1.0), usual(np.linalg.norm(a), 1.0)))
    y, z, eye = a / norm, np.eye(n, dtype=a.dtype, like=a), np.eye(n, like=a)
    residual, floor = math.inf, SETTLED * float(np.finfo(a.dtype).eps) / 2
    for step in range(MOST_STEPS):
        product = engine.matmul(z, y)
        left = usual(np.linalg.norm(product - eye), CLOSE if step < USUAL_STEPS else 0.0)
        previous, residual = residual, float(left) / math.sqrt(n)
        if not residual < DIVERGED:
            break
        if residual <= floor or (previous < CLOSE and residual > HALVED * previous):
            return _symmetrized(z) / math.sqrt(norm), Convergence(step, residual, True)
        t = (3 * eye - product) / 2
        y, z = engine.matmul(y, t), engine.matmul(t, z)
    return _symmetrized(z) / math.sqrt(norm), Convergence(step, residual, False)


def _symmetrized(z: np.ndarray) -> np.ndarray:
    mean: np.ndarray = (z + z.conj().T) / 2
    return mean


@record(kw_only=True)
class InverseSquareRoot(Problem):
    """A^(-1/2) of a Hermitian positive-definite matrix."""

    by: str  # one of METHODS
    full_output: bool

    def run(self, engine: Engine) -> InverseRoot:
        (a,), full_output = self.arrays, self.full_output
        _matrix_functions.certify(a)
        a = a.astype(self.dtype, copy=False)
        if self.by != "eigh":
            x, how = inverse_square_root(a, engine)
            if not how.converged:
                raise Unsupported(Reason.VALUE, f"no convergence in {how.steps} steps")
            return (x, how) if full_output else x
        w, x = _eigh.eigh(a, engine, self.method)
        return _finished(_of_eigenvectors(w, x, engine), a, full_output, engine)

    def error(self, result: InverseRoot) -> float:
        """|X A X - I| on random test vectors, over |A| |X|^2, which estimates the condition number."""
        (a,) = self.arrays
        x = result[0] if isinstance(result, tuple) else result
        v = probe(len(a), self.dtype)
        return norm(x @ (a @ (x @ v)) - v) / (norm(a) * norm(x) ** 2 * math.sqrt(v.shape[1]))


def prepare_inv_sqrtm(a: Any, method: Any = "eigh", *, full_output: Any = False) -> Problem:
    if not isinstance(method, str) or method not in METHODS:
        raise Unsupported(Reason.PARAM, f"method={method!r}")
    a = square(a)
    n, dtype = len(a), guards.floating(a)
    if dtype.char not in "dD":
        raise Unsupported(Reason.DTYPE, f"inverse square roots of {dtype} on a device")
    cost = useful("eigh", n, EIGH_FLOPS * float(n) ** 3, (a,), dtype, a.size)
    methods = _eigh.methods(n, dtype) if method == "eigh" else ()
    return InverseSquareRoot((a,), dtype, cost, methods=methods, by=method, full_output=bool(full_output))


OPS = (Op("trnpy.linalg.inv_sqrtm", inv_sqrtm, prepare_inv_sqrtm, small=SMALL),)
