"""Checked products of a square sparse matrix on an engine, for SciPy's iterations; a test of whether they may pay."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from trnpy._base.conventions import uncounted
from trnpy._base.records import record
from trnpy._call import guards
from trnpy._call.dispatch import Problem, Reason, Unsupported
from trnpy._engine.abstract_arrays import StandIn, priced
from trnpy._engine.engines import Engine, Refused
from trnpy._engine.precision import eps
from trnpy._engine.proof.checksums import Wrong
from trnpy._engine.proof.weights import probe
from trnpy._settings.policy import current_policy
from trnpy.sparse._device import Source, Tiled
from trnpy.sparse._matmul import is_sparse, whole_blocks
from trnpy.sparse._outline import host_s, launch_pays, outlined
from trnpy.sparse._tiles import compressed

Product = Callable[[np.ndarray], np.ndarray]
Sums = tuple[np.ndarray, np.ndarray, np.ndarray]
ALLOWED, OWN = 64.0, 8.0  # eps for the engine's sums, and for those of the random check, times sqrt(n)


def square(a: Any) -> np.dtype:
    """The dtype of ``a``; Unsupported unless it is one square sparse matrix with elements."""
    if not is_sparse(a):
        raise Unsupported(Reason.LAYOUT, f"{type(a).__name__} is not a sparse matrix")
    if not a.dtype.isnative:
        raise Unsupported(Reason.DTYPE, f"dtype {a.dtype} has no device path")
    if a.ndim != 2 or a.shape[0] != a.shape[1] or not a.shape[0] or not a.nnz:
        raise Unsupported(Reason.LAYOUT, f"shape {a.shape} with {a.nnz} elements is not one non-empty square matrix")
    whole_blocks(a)
    dtype: np.dtype = a.dtype
    return dtype


def dry_options(problem: Problem, launches: int, **instead: Any) -> tuple[Any, ...] | None:
    """The options of a dry run, some replaced by ``instead``; None if the launches alone take longer than the host."""
    if not launch_pays(host_s(problem.cost, problem.dtype), launches):
        return None
    return outlined([instead[name] if name in instead else getattr(problem, name) for name in problem.option_names()])


def product_of(a: Any, dtype: np.dtype, engine: Engine, digits: int | None = None) -> Product:
    """X -> A X in ``dtype`` for finite A: on ``engine``, or on the host if the engine refuses the values of X.

    Accurate for each element or, with ``digits``, relative to the largest of each row, in half the launches.
    """
    plain = compressed(a, dtype)
    guards.finite(plain.data)
    sums, tiles = _sums(plain), Tiled(engine, Source.of(a, dtype))

    def product(x: np.ndarray) -> np.ndarray:
        block = x.astype(dtype, order="C", copy=False).reshape(x.shape[0], -1)
        try:
            guards.finite(block)
            found = tiles.times(block, digits)
        except (Unsupported, Refused):
            if isinstance(x, StandIn):
                raise
            found = plain @ block
        else:
            _prove(sums, block, found)
        return found.reshape(x.shape)

    return product


@record()
class Raised:
    """An exception that SciPy, or a function of the caller, raised in an iteration."""

    why: Exception


@uncounted
def iterated(iteration: Callable[[Product], Any], product: Product) -> Any:
    """The result of SciPy's ``iteration`` with ``product``, or Raised. Exceptions of the product propagate."""
    failures = []

    @uncounted
    def proved(x: np.ndarray) -> np.ndarray:
        try:
            return product(x)
        except Exception as why:
            failures.append(why)
            raise

    try:
        return iteration(proved)
    except Exception as why:
        if failures:
            raise
        return Raised(why)


def delivered(result: Any) -> Any:
    """``result`` of ``iterated`` for the caller; an exception in it is raised."""
    if isinstance(result, Raised):
        raise result.why
    return result


@priced("", lambda plain: (8 * plain.data.nbytes, (None,)))
def _sums(plain: Any) -> Sums | None:
    """Random weights W (n, 2), A^T W and |A|^T |W|."""
    w = probe(plain.shape[0], plain.data.real.dtype).astype(np.result_type(plain.data, np.float64))
    sizes = type(plain)((np.abs(plain.data), plain.indices, plain.indptr), shape=plain.shape)
    return w, plain.T @ w, sizes.T @ np.abs(w)


@priced("proof", lambda sums, x, y: (2.0 * (x.size + y.size), ()))
def _prove(sums: Sums | None, x: np.ndarray, y: np.ndarray) -> None:
    """Raises Wrong unless W^T y = (W^T A) x, column by column, up to rounding errors of |W|^T |A| |x|."""
    assert sums is not None
    w, by_columns, sizes = sums
    with np.errstate(all="ignore"):
        difference = np.abs(w.T @ y - by_columns.T @ x)
        unit = eps(x.dtype, current_policy().products) * (ALLOWED + OWN * np.sqrt(len(x)))
        allowed = unit * (sizes.T @ np.abs(x)) + len(x) * float(np.finfo(x.dtype).smallest_normal)
    if not (difference <= allowed).all():
        raise Wrong(f"a product of a sparse matrix is wrong by {float((difference / allowed).max()):.2g} tolerances")
