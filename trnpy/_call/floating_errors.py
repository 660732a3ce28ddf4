"""Calls for which the program has asked NumPy to report underflow: a device reports none."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from trnpy._report.reasons import Reason, Unsupported

# NumPy's functions that report an underflow of their products. Its LAPACK functions and SciPy's report none.
REPORTING = frozenset(
    {
        *("numpy.matmul", "numpy.dot", "numpy.inner", "numpy.tensordot", "numpy.einsum", "numpy.kron"),
        *("numpy.linalg.det", "numpy.linalg.matrix_power", "numpy.linalg.multi_dot"),
    }
)


def refuse_underflow(name: str, arrays: Sequence[np.ndarray]) -> None:
    """Unsupported if NumPy may have to report an underflow in a call of ``name``, under the current ``np.errstate``."""
    if name in REPORTING and np.geterr()["under"] != "ignore" and not (len(arrays) == 2 and _normal(*arrays)):
        raise Unsupported(Reason.VALUE, f"NumPy reports underflow: np.errstate(under={np.geterr()['under']!r})")


def _normal(a: np.ndarray, b: np.ndarray) -> bool:
    """Whether no product of an element of ``a`` and one of ``b`` is below the normal numbers of the result's dtype."""
    dtype = np.result_type(a, b)
    return dtype.kind not in "fc" or _least(a) * _least(b) >= float(np.finfo(dtype).tiny)


def _least(a: np.ndarray) -> float:
    """The least magnitude of a real or imaginary part that is not zero; 1 if all are zero."""
    parts = (a.real, a.imag) if a.dtype.kind == "c" else (a,)
    return min(float(np.abs(part).min(initial=1.0, where=part != 0)) for part in parts)
