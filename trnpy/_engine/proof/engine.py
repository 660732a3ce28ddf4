"""An engine whose products of arrays are proved before an algorithm uses them."""

from __future__ import annotations

from typing import Any

import numpy as np

from trnpy._engine.engines import Engine, Refused
from trnpy._engine.handles import combined
from trnpy._engine.proof import integers, products
from trnpy._settings.policy import current_policy


class Wrong(ArithmeticError):
    """A result fails its proof."""


class Proving:
    """``engine``, with a proof of every product and Gram matrix of arrays; Wrong if one fails.

    What stays on the device is not proved here: the check of the whole result covers it.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)

    def matmul(
        self, a: Any, b: Any, *, alpha: complex = 1.0, beta: complex = 0.0, c: Any = None, digits: int | None = None
    ) -> Any:
        if not (isinstance(a, np.ndarray) and isinstance(b, np.ndarray)):
            options = {} if digits is None else {"digits": digits}
            return self._engine.matmul(a, b, alpha=alpha, beta=beta, c=c, **options)
        product = self._engine.matmul(a, b)
        self._prove(a, b, product)
        return combined(alpha, product, beta, c)

    def gram(self, a: Any, *, digits: int | None = None) -> Any:
        if not isinstance(a, np.ndarray):
            return self._engine.gram(a, **({} if digits is None else {"digits": digits}))
        product = self._engine.gram(a)
        self._prove(a, a.conj().swapaxes(-1, -2), product)
        return product

    def _prove(self, a: np.ndarray, b: np.ndarray, c: np.ndarray) -> None:
        shape = f"{c.dtype} product {' x '.join(map(str, c.shape))}"
        if c.dtype.kind in "iu":
            if not integers.agree(a, b, c):
                raise Wrong(f"the {shape} is not exact")
            return
        if c.dtype.kind not in "fc":
            return
        single = current_policy().precision != "matched"
        error = products.excess(a, b, c, self._engine.format(c.dtype), single)
        if error <= 1:
            return
        if not np.isfinite(c).all() and products.may_overflow(a, b, c.dtype):
            raise Refused(f"the {shape} may overflow", accuracy=True)
        raise Wrong(f"the {shape} is wrong by {error:.2g} tolerances")
