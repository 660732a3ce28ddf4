"""expm_multiply: SciPy's algorithm with the engine's products, if the matrix is large and dense."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from typing import Any

import numpy as np
from scipy.sparse import linalg as scipy_linalg

from trnpy._base.records import record
from trnpy._call import guards
from trnpy._call.dispatch import Cost, Op, Problem, Reason, Unsupported
from trnpy._engine.abstract_arrays import StandIn, priced
from trnpy._engine.engines import Engine
from trnpy._engine.proof import checksums
from trnpy._engine.proof.weights import probe
from trnpy._settings.tile import area

Product = Callable[[np.ndarray], np.ndarray]
SMALL = area(512 * 512)  # elements; a smaller matrix stays in the host's cache
REACH = 9.9  # the 1-norm of A for which SciPy's series needs one step, of degree 55
NORM, PER_NORM = 5.0, 6.0  # assumed 1-norm of A; products per unit of it
# SciPy estimates the 1-norm of A by ROUNDS rounds of products with ESTIMATED columns. If NORM times the columns of B
# exceeds EXACT, it does the same for the powers 2 to 9, in 180 products, to need fewer products with B (Al-Mohy and
# Higham, SIAM J. Sci. Comput. 33, 488 (2011), eq. 3.13). A device multiplies A by any block in about the same time.
# SciPy therefore gets B as one long vector, and A as its Kronecker product with the identity, up to a norm of LARGEST.
EXACT, ROUNDS, ESTIMATED, HIGHEST_POWER = 63.0, 2, 2, 9
LARGEST = 180 / PER_NORM


def columns_on_host(columns: int) -> int:
    """The number of columns that SciPy multiplies for a B of ``columns``."""
    powers = range(1, 2 if NORM * columns <= EXACT else HIGHEST_POWER + 1)
    return 2 * ROUNDS * ESTIMATED * sum(powers) + columns * int(NORM * PER_NORM)


def usual_products(columns: int) -> list[tuple[int, bool]]:
    """The products that a device needs for a B of ``columns``: their columns, and whether A is the adjoint."""
    estimates = [(ESTIMATED * columns, adjoint) for adjoint in (False, True) * ROUNDS]
    return estimates + [(columns, False)] * int(NORM * PER_NORM)


@priced("", lambda a: (a.nbytes, (NORM,)))
def bound(a: np.ndarray) -> float:
    """An upper bound of the 1-norm of a (n, n), 1.25 times that of a random matrix, in one pass without work arrays."""
    return math.sqrt(len(a)) * float(checksums.lengths(a.T).max())


@record(kw_only=True)
class ExpmMultiply(Problem):
    """e^A B for dense A and B."""

    def run(self, engine: Engine) -> np.ndarray:
        a, b = self.arrays
        guards.finite(a, b)
        kept = engine.put(a.astype(a.dtype, order="C", copy=False))

        def product(x: np.ndarray) -> np.ndarray:
            return engine.get(engine.matmul(kept, x.astype(self.dtype, order="C", copy=False)))

        def adjoint_product(x: np.ndarray) -> np.ndarray:
            return engine.get(engine.matmul(kept.H, x.astype(self.dtype, order="C", copy=False)))

        run = self._dry if isinstance(b, StandIn) else self._scipys
        result = run(product, adjoint_product)
        guards.finite(result)
        return result

    def _scipys(self, product: Product, adjoint_product: Product) -> np.ndarray:
        a, b = self.arrays
        columns = b.shape[1] if bound(a) <= LARGEST else 1

        def of_blocks(product: Product) -> Product:
            """``product`` of vectors that hold ``columns`` columns, row by row."""
            return lambda x: product(x.reshape(len(a), -1)).reshape(x.shape)

        forward, backward = of_blocks(product), of_blocks(adjoint_product)
        operator: Any = scipy_linalg.LinearOperator(
            (len(a) * columns,) * 2, dtype=self.dtype, matvec=forward, rmatvec=backward, matmat=forward,
            rmatmat=backward,
        )  # fmt: skip
        trace = a.trace() * columns
        with np.errstate(all="ignore"):
            result = scipy_linalg.expm_multiply(operator, b.ravel() if columns > 1 else b, traceA=trace)
        return np.asarray(result.reshape(b.shape))

    def _dry(self, product: Product, adjoint_product: Product) -> np.ndarray:
        """A placeholder for the result after the assumed products; SciPy's algorithm cannot run without values."""
        a, b = self.arrays
        bound(a)
        for columns, adjoint in usual_products(b.shape[1]):
            (adjoint_product if adjoint else product)(np.zeros_like(b, shape=(len(b), columns)))
        return b

    def error(self, x: np.ndarray) -> float:
        """Difference from the Taylor series of e^A B, on the host, for random combinations V of columns.

        Divided by |X|, or the allowed rounding error: the sum of |A| and the largest term of the series, times the
        sizes of e^(A t) B V and of e^(A (1 - t)) for the t with the largest product.
        """
        from trnpy.linalg import _expm  # imported here, because importing trnpy.sparse must not load scipy.linalg

        a, b = self.arrays
        v, w = probe(b.shape[1], self.dtype), probe(len(a), self.dtype)
        count, sizes = v.shape[1], list[np.ndarray]()
        expected = _expm.expm_action(a, np.concatenate((b @ v, w), axis=1), sizes)[:, :count]
        before = [float(np.linalg.norm(found[:count])) for found in sizes]
        after = [float(np.linalg.norm(found[count:])) / math.sqrt(w.shape[1]) for found in reversed(sizes)]
        added = (float(np.linalg.norm(a)) + _expm.largest_term(a, w, REACH)) * max(map(operator.mul, before, after))
        if not math.isfinite(added):  # any result would be within it
            raise Unsupported(Reason.VALUE, "the allowed rounding error overflows")
        # The bound of a check grows with the order of a matrix, but this does not.
        size = max(float(np.linalg.norm(x)) * math.sqrt(count), added / len(a))
        difference = float(np.linalg.norm(x @ v - expected))
        return difference / size if size else difference


def prepare_expm_multiply(
    A: Any, B: Any, start: Any = None, stop: Any = None, num: Any = None, endpoint: Any = None, traceA: Any = None
) -> Problem:
    if not all(option is None for option in (start, stop, num, endpoint, traceA)):
        raise Unsupported(Reason.PARAM, "options")
    if type(A) is not np.ndarray or type(B) is not np.ndarray:
        raise Unsupported(Reason.LAYOUT, f"{type(A).__name__} and {type(B).__name__} are not two arrays")
    dtype = guards.floating(A, B)
    if A.ndim != 2 or A.shape[0] != A.shape[1] or B.ndim != 2 or len(A) != len(B) or not B.size:
        raise Unsupported(Reason.LAYOUT, f"shapes {A.shape} and {B.shape} are not a square matrix and a block")
    if dtype.char not in "dD" or A.dtype != dtype or B.dtype != dtype:
        raise Unsupported(Reason.DTYPE, f"dtypes {A.dtype} and {B.dtype}: the device path is of one double precision")
    n, k = B.shape
    columns = columns_on_host(k)
    flops, moved = 2.0 * n * n * columns * (4 if dtype.kind == "c" else 1), columns * n * dtype.itemsize
    cost = Cost("matmul", (n * n * k) ** (1 / 3), flops, A.nbytes + moved, moved)
    return ExpmMultiply((A, B), dtype, cost)


OPS = (
    Op(
        "scipy.sparse.linalg.expm_multiply", scipy_linalg.expm_multiply, prepare_expm_multiply, small=SMALL, dtypes="dD"
    ),
)
