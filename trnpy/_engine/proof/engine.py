"""An engine whose products of arrays are checked before an algorithm uses them."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np

from trnpy._engine.abstract_arrays import StandIn
from trnpy._engine.engines import Engine
from trnpy._engine.handles import combined
from trnpy._engine.proof import checksums, integers
from trnpy._settings.policy import current_policy


class Proving:
    """``engine``, with a checksum test of every product and Gram matrix of arrays; Wrong if one fails.

    Products of handles with digits are checked when their words arrive (``float64_products``). float32 results that
    stay on the device are not checked: the check of the whole result covers them.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)

    def matmul(
        self, a: Any, b: Any, *, alpha: complex = 1.0, beta: complex = 0.0, c: Any = None, **options: Any
    ) -> Any:
        if not (_is_array(a) and _is_array(b)):
            return self._engine.matmul(a, b, alpha=alpha, beta=beta, c=c, **options)
        arrives = self._engine.overlaps and a.ndim == b.ndim == 2 and np.result_type(a, b) == np.float64
        return combined(alpha, self._proved(a, b, functools.partial(self._engine.matmul, a, b), arrives), beta, c)

    def gram(self, a: Any, **options: Any) -> Any:
        if not _is_array(a):
            return self._engine.gram(a, **options)
        return self._proved(a, a.conj().swapaxes(-1, -2), functools.partial(self._engine.gram, a))

    def _proved(
        self, a: np.ndarray, b: np.ndarray, multiplied: Callable[..., np.ndarray], arrives: bool = False
    ) -> np.ndarray:
        """The product of a and b, computed by ``multiplied``, while checksums of the operands are computed.

        If it ``arrives`` in rows, their checksums are computed while other rows are multiplied.
        """
        dtype = np.result_type(a.dtype, b.dtype)
        if dtype.kind not in "fc":
            c = multiplied()
            if c.dtype.kind in "iu":
                integers.prove(a, b, c)
            return c
        options = dtype, self._engine.format(dtype), current_policy().products != "matched"
        expected = checksums.expected(a, b, self._engine.parallel, *options)
        arriving = checksums.Arriving(expected)
        c = multiplied(arrived=arriving) if arrives else multiplied()
        checksums.accept(expected(), a, b, c, arriving.whole(len(c)))
        return c


def _is_array(x: Any) -> bool:
    return isinstance(x, (np.ndarray, StandIn))
