"""The rows of functions of matrices: exponentials, roots, logarithms, powers, and products of many."""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from trnpy._call import guards
from trnpy._call.dispatch import Op, Problem, Reason, Unsupported
from trnpy._einsum import rows as products
from trnpy._einsum.grammar import LETTERS
from trnpy._engine import lapack
from trnpy._engine.engines import Engine
from trnpy._engine.precision import probe
from trnpy._engine.stand_ins import priced, usual
from trnpy._settings.host_rates import FLOPS
from trnpy.linalg import _eigh, _functions, _positive, _routes
from trnpy.linalg._matrices import SMALL, norm, square, useful

MOST_FACTORS = 128  # of a power: its check multiplies as often


def _refuse(reason: bool, what: str) -> None:
    if reason:
        raise Unsupported(Reason.PARAM, what)


def _double(dtype: np.dtype, what: str) -> None:
    if dtype.char not in "dD":
        raise Unsupported(Reason.DTYPE, f"{what} of {dtype} on a device")


# --- Exponentials -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Exponential(Problem):
    """e^A of matrices a (..., n, n)."""

    def run(self, engine: Engine) -> _functions.Exponential:
        (a,) = self.arrays
        guards.finite(a)
        if usual(np.abs(a).max() > _functions.LARGEST, False):
            raise Unsupported(Reason.VALUE, f"an entry above {_functions.LARGEST:.0e}")
        if _triangular(a):
            raise Unsupported(Reason.LAYOUT, "triangular: SciPy computes two of its diagonals without products")
        with np.errstate(all="ignore"):  # overflow shows in the result
            result = _functions.expm(a.astype(self.dtype, copy=False), engine)
        guards.finite(result.value, result.root)
        return result

    def error(self, result: Any) -> float:
        """e^A V against products of A with V; of our own result the root, and then its powers."""
        (a,) = self.arrays
        if not isinstance(result, _functions.Exponential):  # the reference's
            result = _functions.Exponential(result, result, np.zeros(a.shape[:-2], int))
        v = probe(a.shape[-1], self.dtype)
        width, worst = math.sqrt(v.shape[1]), 0.0
        for i in np.ndindex(a.shape[:-2]):
            x, root, squarings = result.value[i], result.root[i], int(result.squarings[i])
            once = _functions.expm_action(np.ldexp(1.0, -squarings) * a[i], v)
            powers = v
            for _ in range(2**squarings):
                powers = root @ powers
            worst = max(worst, norm(root @ v - once) / (norm(root) * width), norm(x @ v - powers) / (norm(x) * width))
        return worst

    def deliver(self, result: _functions.Exponential) -> np.ndarray:
        return result.value


def prepare_expm(A: Any) -> Problem:
    a = guards.array(A)
    dtype = guards.floating(a)
    if a.ndim < 2 or a.shape[-1] != a.shape[-2] or a.size == 0 or a.shape[-1] == 1:
        raise Unsupported(Reason.LAYOUT, f"shape {a.shape} is not of non-empty square matrices")
    _double(dtype, "exponentials")
    n = a.shape[-1]
    return Exponential((a,), dtype, useful("expm", n, FLOPS["expm"] * float(n) ** 3, (a,), dtype, a.size))


@priced("", lambda a: (a.nbytes, (False,)))
def _triangular(a: np.ndarray) -> bool:
    """Whether some matrix of a (..., n, n) is."""
    return any(0 in lapack.bandwidth(matrix) for matrix in a.reshape(-1, *a.shape[-2:]))


# --- Functions of positive-definite matrices --------------------------------------------------------------------------


def _of_positive(name: str, a: Any, function: _positive.Function) -> Problem:
    """``function`` of the eigenvalues of positive-definite matrices a (..., n, n) for SciPy's ``name``."""
    a = _positive.operand(name, a)
    dtype, n = guards.floating(a), a.shape[-1]
    norms, route = _positive.FUNCTIONS[name].norms, _positive.route(name, a, function)
    of = functools.partial(_positive.OfPositive, (a,), dtype, function=function, norms=norms, route=route)
    cost = useful(name, n, FLOPS[name] * float(n) ** 3, (a,), dtype, a.size)
    if a.ndim > 2 or dtype.char not in "dD":
        if route is None:
            raise Unsupported(Reason.LAYOUT, f"shape {a.shape}, {dtype}: SciPy is done before a route is chosen")
        refusal = (Reason.LAYOUT, f"shape {a.shape}, {dtype}: no device path for functions of such matrices")
        return of(cost, on_device=False, refusal=refusal)
    return of(cost, methods=_eigh.methods(n, dtype))


def _no_options(options: tuple[Any, ...], named: dict[str, Any]) -> None:
    _refuse(bool(options or named), f"options {', '.join([*map(repr, options), *named])}")


def prepare_sqrtm(A: Any, *options: Any, **named: Any) -> Problem:
    _no_options(options, named)
    return _of_positive("sqrtm", A, np.sqrt)


def prepare_logm(A: Any, *options: Any, **named: Any) -> Problem:
    _no_options(options, named)
    return _of_positive("logm", A, np.log)


def prepare_fractional_matrix_power(A: Any, t: Any) -> Problem:
    finite = isinstance(t, (int, float)) and math.isfinite(t)
    _refuse(not finite or t == int(t), f"t={t!r}: an integer is for products, not for eigenvectors")
    return _of_positive("fractional_matrix_power", A, Power(t))


@dataclass(frozen=True, slots=True)
class Power:
    """w^t: equal to another of the same t, as functions of decisions that are remembered must be."""

    t: float

    def __call__(self, w: np.ndarray) -> np.ndarray:
        powers: np.ndarray = w**self.t
        return powers


# --- Powers and products of many --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class MatrixPower(Problem):
    """A^n for n > 1."""

    n: int

    def run(self, engine: Engine) -> np.ndarray:
        (a,) = self.arrays
        guards.finite(a)
        with np.errstate(all="ignore"):
            result = _functions.power(a.astype(self.dtype, copy=False), self.n, engine)
        guards.finite(result)
        return result

    def error(self, x: np.ndarray) -> float:
        (a,) = self.arrays
        v = probe(len(a), self.dtype)
        powers = v
        for _ in range(self.n):
            powers = a @ powers
        size = norm(x) * math.sqrt(v.shape[1])
        return norm(x @ v - powers) / size if size else norm(powers)


def prepare_matrix_power(a: Any, n: Any) -> Problem:
    n = operator.index(n)
    _refuse(not 2 <= n <= MOST_FACTORS, f"n={n}: no product, an inverse, or more factors than a check takes")
    a = square(a)
    size, dtype = len(a), guards.floating(a)
    count = n.bit_length() - 1 + n.bit_count() - 1
    return MatrixPower((a,), dtype, useful("matmul", size, 2.0 * count * size**3, (a,), dtype, a.size), n=n)


def prepare_multi_dot(arrays: Any, *, out: Any = None) -> Problem:
    operands = [guards.array(a) for a in arrays]
    ends = {operands[0].ndim, operands[-1].ndim} if operands else set()
    if not 2 <= len(operands) < len(LETTERS) or not ends <= {1, 2} or any(a.ndim != 2 for a in operands[1:-1]):
        raise Unsupported(Reason.LAYOUT, "not a chain of matrices")
    labels = [LETTERS[i : i + 2] for i in range(len(operands))]
    if operands[0].ndim == 1:
        labels[0] = labels[0][1]
    if operands[-1].ndim == 1:
        labels[-1] = labels[-1][0]
    output = labels[0][: operands[0].ndim - 1] + labels[-1][labels[-1].index(LETTERS[len(operands) - 1]) + 1 :]
    sizes: dict[str, int] = {}
    for label, a in zip(labels, operands, strict=True):
        for c, extent in zip(label, a.shape, strict=True):
            if sizes.setdefault(c, extent) != extent:
                raise Unsupported(Reason.LAYOUT, f"shapes {[a.shape for a in operands]} do not match")
    return products._problem(tuple(labels), output, operands, out)


def prepare_khatri_rao(a: Any, b: Any) -> Problem:
    a, b = guards.array(a), guards.array(b)
    if a.ndim != 2 or b.ndim != 2 or a.shape[1] != b.shape[1]:
        raise Unsupported(Reason.LAYOUT, f"shapes {a.shape} and {b.shape} are not matrices of as many columns")
    return products._problem(("ak", "bk"), "abk", (a, b), shape=(len(a) * len(b), a.shape[1]))


PRODUCTS = (prepare_multi_dot, prepare_khatri_rao)  # whose plan has what they cost


def _op(name: str, prepare: Callable[..., Problem], look: _routes.Look | None = None) -> Op:
    module, _, attribute = name.rpartition(".")
    function = getattr(lapack.linalg if module == "scipy.linalg" else np.linalg, attribute)
    return Op(name, function, prepare, small=SMALL, look=look, dry=prepare not in PRODUCTS)


def function_ops() -> tuple[Op, ...]:
    positive = {
        "sqrtm": prepare_sqrtm, "logm": prepare_logm, "fractional_matrix_power": prepare_fractional_matrix_power
    }  # fmt: skip
    return (
        _op("scipy.linalg.expm", prepare_expm),
        *(_op(f"scipy.linalg.{name}", prepare, _positive.positive(name)) for name, prepare in positive.items()),
        _op("scipy.linalg.khatri_rao", prepare_khatri_rao),
    )


NUMPY_FUNCTION_OPS = (
    _op("numpy.linalg.matrix_power", prepare_matrix_power),
    _op("numpy.linalg.multi_dot", prepare_multi_dot),
)
