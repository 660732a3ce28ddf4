"""scipy.linalg.khatri_rao, the column-wise Kronecker product, as a contraction."""

from __future__ import annotations

from typing import Any

from trnpy._call import guards
from trnpy._call.dispatch import Problem, Reason, Unsupported
from trnpy._einsum import rows as products
from trnpy.linalg._matrices import SMALL
from trnpy.linalg._reference_forms import scipy_function


def prepare_khatri_rao(a: Any, b: Any) -> Problem:
    a, b = guards.array(a), guards.array(b)
    if a.ndim != 2 or b.ndim != 2 or a.shape[1] != b.shape[1]:
        raise Unsupported(Reason.LAYOUT, f"shapes {a.shape} and {b.shape} are not matrices of equal width")
    return products._problem(("ak", "bk"), "abk", (a, b), shape=(len(a) * len(b), a.shape[1]))


OPS = (scipy_function("khatri_rao", prepare_khatri_rao, small=SMALL),)
