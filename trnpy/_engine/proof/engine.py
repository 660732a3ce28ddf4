"""An engine whose products of arrays are proved before an algorithm uses them."""

from __future__ import annotations

from typing import Any

import numpy as np

from trnpy._engine.engines import Engine
from trnpy._engine.handles import combined
from trnpy._engine.proof import integers, products
from trnpy._engine.stand_ins import StandIn
from trnpy._settings.policy import current_policy


class Proving:
    """``engine``, with a proof of every product and Gram matrix of arrays; Wrong if one fails.

    Products of handles by digits are proved where their words arrive (``certified``). Numbers of float32 that stay on
    the device are not proved: the check of the whole result covers them.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)

    def matmul(
        self, a: Any, b: Any, *, alpha: complex = 1.0, beta: complex = 0.0, c: Any = None, digits: int | None = None
    ) -> Any:
        if not (_is_array(a) and _is_array(b)):
            options = {} if digits is None else {"digits": digits}
            return self._engine.matmul(a, b, alpha=alpha, beta=beta, c=c, **options)
        product = self._engine.matmul(a, b)
        self._prove(a, b, product)
        return combined(alpha, product, beta, c)

    def gram(self, a: Any, *, digits: int | None = None) -> Any:
        if not _is_array(a):
            return self._engine.gram(a, **({} if digits is None else {"digits": digits}))
        product = self._engine.gram(a)
        self._prove(a, a.conj().swapaxes(-1, -2), product)
        return product

    def _prove(self, a: np.ndarray, b: np.ndarray, c: np.ndarray) -> None:
        if c.dtype.kind in "iu":
            integers.prove(a, b, c)
        if c.dtype.kind in "fc":
            products.prove(a, b, c, self._engine.format(c.dtype), current_policy().products != "matched")


def _is_array(x: Any) -> bool:
    return isinstance(x, (np.ndarray, StandIn))
