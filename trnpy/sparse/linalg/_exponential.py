"""The row of expm_multiply: SciPy's algorithm, with products by the engine if the matrix is large and dense."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.sparse import linalg as scipy_linalg

from trnpy._call import guards
from trnpy._call.dispatch import Cost, Op, Problem, Reason, Unsupported
from trnpy._engine.engines import Engine
from trnpy._engine.proof.weights import probe

SMALL = 512 * 512  # elements; a smaller matrix stays in the host's cache
NORM, PER_NORM = (
    5.0,
    6.0,
)  # taken for granted when a call is priced; products by unit of the norm (degree 55 reaches 9.9)


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpmMultiply(Problem):
    """e^A B for dense A and B."""

    def run(self, engine: Engine) -> np.ndarray:
        a, b = self.arrays
        guards.finite(a, b)
        kept = engine.put(np.ascontiguousarray(a))

        def product(x: np.ndarray) -> np.ndarray:
            return engine.get(engine.matmul(kept, np.ascontiguousarray(x.astype(self.dtype, copy=False))))

        def adjoint_product(x: np.ndarray) -> np.ndarray:
            return engine.get(engine.matmul(kept.H, np.ascontiguousarray(x.astype(self.dtype, copy=False))))

        operator: Any = scipy_linalg.LinearOperator(
            a.shape, dtype=self.dtype, matmat=product, rmatmat=adjoint_product,
            matvec=lambda x: product(x.reshape(-1, 1)), rmatvec=lambda x: adjoint_product(x.reshape(-1, 1)),
        )  # fmt: skip
        with np.errstate(all="ignore"):
            result: np.ndarray = scipy_linalg.expm_multiply(operator, b, traceA=a.trace())
        guards.finite(result)
        return result

    def error(self, x: np.ndarray) -> float:
        """Relative difference from the Taylor series of e^A B, on the host, for random combinations of columns."""
        from trnpy.linalg._expm import expm_action  # only here: importing trnpy.sparse does not load scipy.linalg

        a, b = self.arrays
        v = probe(b.shape[1], self.dtype)
        size = float(np.linalg.norm(x)) * math.sqrt(v.shape[1])
        difference = float(np.linalg.norm(x @ v - expm_action(a, b @ v)))
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
    count = int(NORM * PER_NORM)
    flops = count * 2.0 * n * n * k * (4 if dtype.kind == "c" else 1)
    cost = Cost("matmul", (n * n * k) ** (1 / 3), flops, A.nbytes + count * B.nbytes, count * B.nbytes, flops,
                launches=count)  # fmt: skip
    return ExpmMultiply((A, B), dtype, cost)


EXPONENTIAL_OPS = (
    Op("scipy.sparse.linalg.expm_multiply", scipy_linalg.expm_multiply, prepare_expm_multiply, small=SMALL),
)
