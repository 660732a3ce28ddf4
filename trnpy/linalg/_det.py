"""Determinants and their logarithms, from LU factors."""

from __future__ import annotations

from typing import Any

import numpy as np

from trnpy._call.dispatch import Problem, Reason, Unsupported
from trnpy._engine.abstract_arrays import usual
from trnpy.linalg._lu import Factored, Factorization, lu_problem
from trnpy.linalg._matrices import SMALL, in_double
from trnpy.linalg._reference_forms import numpy_function, scipy_function

FACTORS = 512  # the largest count of numbers from 1/2 to 1 whose product cannot underflow
SlogdetResult = type(np.linalg.slogdet(np.eye(1)))


def _pivots_and_sign(factored: Factored, dtype: np.dtype) -> tuple[np.ndarray, np.ndarray]:
    """The diagonal of U (..., n) in ``dtype``, and the sign of the swaps (...)."""
    u = np.diagonal(factored.lu, axis1=-2, axis2=-1).astype(dtype)
    swaps = (factored.pivots != np.arange(u.shape[-1])).sum(axis=-1)
    return u, 1 - 2 * (swaps % 2)


def _slogdet(factored: Factored) -> tuple[Any, Any]:
    u, sign = _pivots_and_sign(factored, factored.lu.dtype)
    size = np.abs(u)
    phases = np.zeros_like(u)
    parts = ((phases.real, u.real), (phases.imag, u.imag)) if u.dtype.kind == "c" else ((phases, u),)
    with np.errstate(divide="ignore", invalid="ignore"):
        for phase, part in parts:  # separately: the reciprocal of a complex number may overflow
            np.divide(part, size, out=phase, where=size > 0)
        return (phases.prod(axis=-1) * sign).astype(u.dtype)[()], np.log(size).sum(axis=-1)[()]


def _product(u: np.ndarray) -> np.ndarray:
    """The product of u (..., n) along its last axis; it overflows or underflows only if the result does."""
    exponent = np.zeros(u.shape[:-1], int)
    while u.shape[-1] > 1:
        size = np.frexp(np.abs(u))[1]  # 0 for zeros, infinities and NaN
        exponent += size.sum(axis=-1)
        u = u * np.ldexp(1.0, -size // 2) * np.ldexp(1.0, -size - -size // 2)  # two factors, because 2^1074 overflows
        places = range(0, u.shape[-1], FACTORS)
        u = np.stack([u[..., i : i + FACTORS].prod(axis=-1) for i in places], axis=-1)
    for part in (exponent // 2, exponent - exponent // 2):
        u = u * np.ldexp(1.0, part)[..., np.newaxis]
    return u[..., 0]


def _numpy_det(factored: Factored) -> Any:
    """The determinant from its logarithm, as in NumPy, so that no intermediate value overflows."""
    phase, logarithm = _slogdet(factored)
    with np.errstate(over="ignore", under="ignore"):
        return (phase * np.exp(logarithm)).astype(factored.lu.dtype)[()]


def _no_overflow(factored: Factored) -> None:
    if not usual(np.isfinite(_numpy_det(factored)).all(), True):
        raise Unsupported(Reason.VALUE, "the determinant overflows")  # NumPy then warns


class Determinant(Factorization):
    __slots__ = ()

    def deliver(self, factored: Factored) -> Any:
        """The determinant in double precision, as in SciPy."""
        u, sign = _pivots_and_sign(factored, np.result_type(factored.lu.dtype, np.float64))
        with np.errstate(all="ignore"):  # SciPy gives no overflow warning
            return (_product(u) * sign)[()]


class LogDeterminant(Factorization):
    __slots__ = ()

    def deliver(self, factored: Factored) -> Any:
        return SlogdetResult(*_slogdet(factored))


class NumpyDeterminant(Factorization):
    __slots__ = ()

    def deliver(self, factored: Factored) -> Any:
        return _numpy_det(factored)


def prepare_det(a: Any, overwrite_a: Any = False, check_finite: Any = True) -> Problem:
    return Determinant.of(lu_problem(a, square=True))


def prepare_slogdet(a: Any) -> Problem:
    return LogDeterminant.of(in_double(lu_problem(a, square=True)))


def prepare_numpy_det(a: Any) -> Problem:
    return NumpyDeterminant.of(in_double(lu_problem(a, square=True)), check=_no_overflow)


OPS = (
    scipy_function("det", prepare_det, small=SMALL),
    numpy_function("det", prepare_numpy_det, small=SMALL),
    numpy_function("slogdet", prepare_slogdet, small=SMALL),
)
