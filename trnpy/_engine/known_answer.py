"""The known-answer test of an engine, run on a doubtful result and after a back-off; and the handling of faults."""

from __future__ import annotations

import contextlib
import functools

import numpy as np

from trnpy._engine import health
from trnpy._engine.engines import Engine, Refused
from trnpy._engine.precision import eps

KNOWN = 128  # order of that product
ALLOWED = 10.0  # times its order and eps
LARGE = 16  # times the bytes of a call's operands: device memory that its digits and results may need


def sound(engine: Engine, dtype: np.dtype, unit: float) -> bool:
    """Whether ``engine`` computes a known product correctly; True if it refuses it, unless for accuracy."""
    a, known = _operand(dtype), _square(dtype)
    try:
        found = engine.matmul(a, a)
    except Refused as why:
        return not why.accuracy
    return bool(np.abs(found.astype(known.dtype) - known).max() <= ALLOWED * KNOWN * unit * np.abs(known).max())


def _operand(dtype: np.dtype) -> np.ndarray:
    return np.random.default_rng(0).uniform(0.0, 3.0, (KNOWN, KNOWN)).astype(dtype)


@functools.cache
def _square(dtype: np.dtype) -> np.ndarray:
    """The known product, in double precision. NumPy takes 7 ms for float16."""
    a = _operand(dtype)
    return np.asarray(np.matmul(a, a).astype(np.complex128 if dtype.kind == "c" else np.float64))


def retry(engine: Engine) -> None:
    """End the back-off of ``engine`` if it passes the known-answer test."""
    dtype = np.dtype(np.float32)
    try:
        fit = sound(engine, dtype, eps(dtype, "matched"))
    except Exception as why:  # a driver may raise anything; the report counts it
        engine.health.causes[health.cause(why, large=False)] += 1
        fit = False
    engine.health.tried(fit)


def fault(engine: Engine, why: Exception, arrays: tuple[np.ndarray, ...], kind: str) -> None:
    """Count a fault of a call of this kind by its cause, and handle it as ``health.CAUSES`` states."""
    large = sum(a.nbytes for a in arrays) * LARGE > engine.room
    cause = health.cause(why, large)
    engine.health.failed(cause, kind)
    if cause == health.WRONG:
        engine.cache.doubt()
    if cause in (health.MEMORY, health.SIZE):
        engine.cache.clear()
    if engine.compiles.active:  # only for a device: `doctor` reports no earlier faults of other engines
        with contextlib.suppress(OSError):  # `doctor` reports that the cache cannot be written
            health.remember(cause, engine.name, engine.machine.name)
