"""Level-3 BLAS with f2py's arguments: four types, triangles, results that may overwrite an operand."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any

import numpy as np
from scipy.linalg import blas as reference

from trnpy._base.records import record
from trnpy._call import guards
from trnpy._call.dispatch import Cost, Op, Problem, Reason, Unsupported
from trnpy._engine.abstract_arrays import usual
from trnpy._engine.engines import Engine
from trnpy.linalg import _triangular
from trnpy.linalg._lapack_panels import adjoint
from trnpy.linalg._matrices import SMALL, hermitian, norm, real, system_error

TYPES = {"s": np.dtype("f4"), "d": np.dtype("f8"), "c": np.dtype("c8"), "z": np.dtype("c16")}
OPS_OF = "NTC"


@record()
class Call:
    """The options of a call; the defaults apply when a routine does not have the option."""

    alpha: complex
    beta: complex = 0.0
    side: str = "left"
    lower: bool = False
    trans: str = "N"
    trans_b: str = "N"
    unit: bool = False
    overwrite: bool = False


def operand(a: Any, dtype: np.dtype) -> np.ndarray:
    """``a``, if it is one non-empty matrix of the routine's own type: f2py converts or rejects everything else."""
    if type(a) is not np.ndarray:
        raise Unsupported(Reason.SUBCLASS, f"{type(a).__name__} is not exactly a numpy.ndarray")
    if a.dtype != dtype:
        raise Unsupported(Reason.DTYPE, f"{a.dtype} for a routine of {dtype}")
    if a.ndim != 2 or a.size == 0:
        raise Unsupported(Reason.LAYOUT, f"shape {a.shape} is not one non-empty matrix")
    return a


def scalar(x: Any, dtype: np.dtype) -> complex:
    if isinstance(x, (int, float, np.floating, np.integer)):
        return float(x)
    if dtype.kind == "c" and isinstance(x, (complex, np.complexfloating)):
        return complex(x)
    raise Unsupported(Reason.PARAM, f"scalar {x!r}")


def flag(name: str, value: Any, largest: int = 1) -> int:
    if not isinstance(value, (int, np.integer)) or not 0 <= value <= largest:
        raise Unsupported(Reason.PARAM, f"{name}={value!r}")
    return int(value)


def op(a: np.ndarray, trans: str) -> np.ndarray:
    return a if trans == "N" else a.T if trans == "T" else adjoint(a)


def mirrored(a: np.ndarray, lower: bool, conjugate: bool) -> np.ndarray:
    """The symmetric or Hermitian matrix with the lower or upper triangle of a."""
    if conjugate:
        return hermitian(a, lower, a.dtype)
    strict = np.tril(a, -1) if lower else np.triu(a, 1)
    whole: np.ndarray = strict + strict.T + np.diag(a.diagonal())
    return whole


@record(kw_only=True)
class Blas(Problem):
    """A call of a routine; the last of ``arrays`` is C, if C was given."""

    kind: str  # the routine's name without its type letter
    call: Call
    c: np.ndarray | None = None  # C as the caller gave it
    place: np.ndarray | None = None  # the operand that the call allows to be overwritten by the result

    def _finite(self) -> None:
        call = self.call
        unread = self.c is not None and call.beta == 0
        guards.finite(*(self.arrays[:-1] if unread else self.arrays))
        if not np.isfinite([call.alpha, call.beta]).all():
            raise Unsupported(Reason.VALUE, "alpha or beta is not finite")

    def deliver(self, result: np.ndarray) -> np.ndarray:
        """In Fortran order; in the caller's C or B if f2py would overwrite it."""
        return placed(result, self.place if self.call.overwrite else None)


def _problem(
    make: type[Blas], kind: str, arrays: tuple[np.ndarray, ...], extents: tuple[int, int, int], share: float,
    call: Call, shape: tuple[int, int], c: Any, dtype: np.dtype,
) -> Blas:  # fmt: skip
    """The problem of one product of ``extents`` (m, k, n), of whose flops the routine needs the fraction ``share``."""
    if not call.alpha:
        raise Unsupported(Reason.PARAM, "alpha is 0: BLAS multiplies nothing")
    if c is not None and operand(c, dtype).shape != shape:
        raise Unsupported(Reason.PARAM, f"c {c.shape} for a result {shape}")
    m, k, n = extents
    operands = arrays if c is None else (*arrays, c)
    flops = share * 2.0 * m * k * n * real(dtype)
    size = dtype.itemsize
    cost = Cost("matmul", (float(m) * k * n) ** (1 / 3), flops, size * (m * k + k * n), size * m * n)
    return make(operands, dtype, cost, kind=kind, call=call, c=c, place=c)


# --- C = alpha L R + beta C -------------------------------------------------------------------------------------------


def prepare_gemm(
    kind: str, dtype: np.dtype, alpha: Any, a: Any, b: Any, beta: Any = 0.0, c: Any = None, trans_a: Any = 0,
    trans_b: Any = 0, overwrite_c: Any = 0,
) -> Problem:  # fmt: skip
    a, b = operand(a, dtype), operand(b, dtype)
    call = Call(
        scalar(alpha, dtype), scalar(beta, dtype), trans=OPS_OF[flag("trans_a", trans_a, 2)],
        trans_b=OPS_OF[flag("trans_b", trans_b, 2)], overwrite=bool(flag("overwrite_c", overwrite_c)),
    )  # fmt: skip
    (m, k), (j, n) = op(a, call.trans).shape, op(b, call.trans_b).shape
    if k != j:
        raise Unsupported(Reason.PARAM, f"shapes {(m, k)} and {(j, n)}")
    return _problem(Product, kind, (a, b), (m, k, n), 1.0, call, (m, n), c, dtype)


def prepare_symm(
    kind: str, dtype: np.dtype, alpha: Any, a: Any, b: Any, beta: Any = 0.0, c: Any = None, side: Any = 0,
    lower: Any = 0, overwrite_c: Any = 0,
) -> Problem:  # fmt: skip
    a, b = operand(a, dtype), operand(b, dtype)
    right = flag("side", side)
    call = Call(
        scalar(alpha, dtype), scalar(beta, dtype), side="right" if right else "left",
        lower=bool(flag("lower", lower)), overwrite=bool(flag("overwrite_c", overwrite_c)),
    )  # fmt: skip
    (m, n), order = b.shape, b.shape[right]
    if a.shape != (order, order):
        raise Unsupported(Reason.PARAM, f"shapes {a.shape} and {b.shape}")
    return _problem(Product, kind, (a, b), (m, order, n), 1.0, call, (m, n), c, dtype)


def prepare_trmm(
    kind: str, dtype: np.dtype, alpha: Any, a: Any, b: Any, side: Any = 0, lower: Any = 0, trans_a: Any = 0,
    diag: Any = 0, overwrite_b: Any = 0,
) -> Problem:  # fmt: skip
    a, b = operand(a, dtype), operand(b, dtype)
    right = flag("side", side)
    call = Call(
        scalar(alpha, dtype), side="right" if right else "left", lower=bool(flag("lower", lower)),
        trans=OPS_OF[flag("trans_a", trans_a, 2)], unit=bool(flag("diag", diag)),
        overwrite=bool(flag("overwrite_b", overwrite_b)),
    )  # fmt: skip
    (m, n), order = b.shape, b.shape[right]
    if a.shape != (order, order):
        raise Unsupported(Reason.PARAM, f"shapes {a.shape} and {b.shape}")
    make = Product if kind == "trmm" else TriangularSystem
    return replace(_problem(make, kind, (a, b), (m, order, n), 0.5, call, (m, n), None, dtype), place=b)


def triangle(a: np.ndarray, call: Call) -> np.ndarray:
    """op(T) for the triangle T of a that the call reads."""
    t = np.tril(a, -call.unit) if call.lower else np.triu(a, int(call.unit))
    if call.unit:
        t += np.eye(len(a), dtype=a.dtype, like=a)
    return op(t, call.trans)


@record(kw_only=True)
class Product(Blas):
    """C = alpha L R + beta C."""

    def _factors(self) -> tuple[np.ndarray, np.ndarray]:
        """L and R of the product alpha L R."""
        (a, b), call, kind = self.arrays[:2], self.call, self.kind
        if kind == "gemm":
            return op(a, call.trans), op(b, call.trans_b)
        whole = triangle(a, call) if kind == "trmm" else mirrored(a, call.lower, kind == "hemm")
        return (whole, b) if call.side == "left" else (b, whole)

    def run(self, engine: Engine) -> np.ndarray:
        self._finite()
        call, c = self.call, self.c
        l, r = self._factors()
        return engine.matmul(l, r, alpha=call.alpha, beta=call.beta, c=c if call.beta else None)

    def error(self, result: np.ndarray) -> float:
        return 0.0  # each of its products is checked separately


# --- Symmetric updates, one triangle ----------------------------------------------------------------------------------


def prepare_rank_k(
    kind: str, dtype: np.dtype, alpha: Any, a: Any, beta: Any = 0.0, c: Any = None, trans: Any = 0, lower: Any = 0,
    overwrite_c: Any = 0,
) -> Problem:  # fmt: skip
    return _update(kind, dtype, alpha, (a,), beta, c, trans, lower, overwrite_c)


def prepare_rank_2k(
    kind: str, dtype: np.dtype, alpha: Any, a: Any, b: Any, beta: Any = 0.0, c: Any = None, trans: Any = 0,
    lower: Any = 0, overwrite_c: Any = 0,
) -> Problem:  # fmt: skip
    return _update(kind, dtype, alpha, (a, b), beta, c, trans, lower, overwrite_c)


def _update(
    kind: str, dtype: np.dtype, alpha: Any, arrays: tuple[Any, ...], beta: Any, c: Any, trans: Any, lower: Any,
    overwrite_c: Any,
) -> Problem:  # fmt: skip
    arrays = tuple(operand(a, dtype) for a in arrays)
    turned = flag("trans", trans, 2)
    of_hermitian = kind.startswith("her")
    if dtype.kind == "c" and turned == (1 if of_hermitian else 2):  # BLAS has no such routine
        raise Unsupported(Reason.PARAM, f"trans={trans!r} of {kind} and {dtype}")
    call = Call(
        scalar(alpha, dtype), scalar(beta, dtype), lower=bool(flag("lower", lower)),
        trans="N" if not turned else "C" if of_hermitian else "T", overwrite=bool(flag("overwrite_c", overwrite_c)),
    )  # fmt: skip
    if of_hermitian:  # BLAS requires real factors here; f2py also accepts complex ones
        call = replace(call, beta=call.beta.real, alpha=call.alpha if len(arrays) > 1 else call.alpha.real)
    if arrays[0].shape != arrays[-1].shape:
        raise Unsupported(Reason.PARAM, f"shapes {arrays[0].shape} and {arrays[-1].shape}")
    n, k = op(arrays[0], call.trans).shape
    return _problem(RankUpdate, kind, arrays, (n, k, n), 0.5 * len(arrays), call, (n, n), c, dtype)


def _turned(kind: str, a: np.ndarray) -> np.ndarray:
    return adjoint(a) if kind.startswith("her") else a.T


def _half(a: np.ndarray, lower: bool, strict: int) -> np.ndarray:
    return np.tril(a, -strict) if lower else np.triu(a, strict)


@record(kw_only=True)
class RankUpdate(Blas):
    """C with one triangle updated; the other triangle is unchanged, or zero if no C was given."""

    def run(self, engine: Engine) -> np.ndarray:
        self._finite()
        call, c, kind = self.call, self.c, self.kind
        arrays = [op(a, call.trans) for a in self.arrays[: 2 if kind.endswith("2k") else 1]]
        a, b = arrays[0], arrays[-1]
        if kind.endswith("2k"):
            product = call.alpha * engine.matmul(a, _turned(kind, b))
            product = product + _turned(kind, product)
        elif kind == "herk" or self.dtype.kind == "f":
            product = call.alpha * engine.gram(a)
        else:
            product = call.alpha * engine.matmul(a, a.T)
        if c is None:
            return _half(product.astype(self.dtype, copy=False), call.lower, 0)
        old = mirrored(c, call.lower, kind.startswith("her")) if call.beta else 0
        new = (product + call.beta * old).astype(self.dtype, copy=False)
        whole: np.ndarray = _half(new, call.lower, 0) + _half(c, not call.lower, 1)
        return whole

    def error(self, result: np.ndarray) -> float:
        return 0.0  # each of its products is checked separately


# --- Triangular systems -----------------------------------------------------------------------------------------------


@record(kw_only=True)
class TriangularSystem(Blas):
    """op(A) X = alpha B, or X op(A) = alpha B."""

    def run(self, engine: Engine) -> np.ndarray:
        self._finite()
        (a, b), call = self.arrays, self.call
        if not call.unit and not usual(a.diagonal().all(), True):
            raise Unsupported(Reason.VALUE, "singular: a zero on the diagonal")
        sides = (call.alpha * b).astype(b.dtype, copy=False)
        return _triangular.solve(a, sides, engine, lower=call.lower, side=call.side, trans=call.trans, unit=call.unit)

    def error(self, x: np.ndarray) -> float:
        (a, b), call = self.arrays, self.call
        t = triangle(a, call)
        sides = call.alpha * b
        return system_error((t @ x if call.side == "left" else x @ t) - sides, norm(t), x, sides)


# --- The table --------------------------------------------------------------------------------------------------------


def placed(result: np.ndarray, place: np.ndarray | None) -> np.ndarray:
    """``result`` in Fortran order, copied to ``place`` if that is in Fortran order and writeable."""
    if place is None or not place.flags.f_contiguous or not place.flags.writeable:
        return np.asfortranarray(result)
    place[...] = result
    return place


PREPARE: Mapping[str, Callable[..., Problem]] = MappingProxyType(
    {
        "gemm": prepare_gemm, "symm": prepare_symm, "hemm": prepare_symm, "trmm": prepare_trmm, "trsm": prepare_trmm,
        "syrk": prepare_rank_k, "herk": prepare_rank_k, "syr2k": prepare_rank_2k, "her2k": prepare_rank_2k,
    }
)  # fmt: skip


def _row(prefix: str, kind: str) -> Op:
    name, prepare = prefix + kind, functools.partial(PREPARE[kind], kind, TYPES[prefix])
    return Op(f"scipy.linalg.blas.{name}", getattr(reference, name), prepare, small=SMALL, dtypes="")


HERMITIAN = ("hemm", "herk", "her2k")
OPS = tuple(
    _row(prefix, kind)
    for kind in ("gemm", "symm", "syrk", "syr2k", "trmm", "trsm", *HERMITIAN)
    for prefix in ("cz" if kind in HERMITIAN else "sdcz")
)
