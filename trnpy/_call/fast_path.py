"""State that every call reads first, and the sizes of its operands.

Hooks import no other part of ``_call`` until a call is recorded or not small.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from contextvars import ContextVar
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import numpy as np

from trnpy._base import ranks_env
from trnpy._settings.policy import Attention
from trnpy._settings.tile import area, volume

if TYPE_CHECKING:
    from trnpy._report.reasons import Decision

BLAS = frozenset("fdFD")  # characters of the dtypes that NumPy multiplies with BLAS

WALKED = 64  # members of lists that ``sizes`` looks at one by one
NUMBERS = frozenset({int, float, complex})
COMPRESSED = "scipy.sparse._csr", "scipy.sparse._csc"  # modules of its classes of CSR and CSC matrices


class Limits(NamedTuple):
    """The limits of small calls, which run the original function whatever their arguments are."""

    elements: float  # of all arrays: up to here, a device is never faster
    product: float = math.inf  # of the arrays' sizes: up to here there is no CPU fast path; an empty array counts as 1
    blas: bool = False  # whether ``product`` does not limit calls whose arrays all have a dtype of BLAS


UNSEEN = area(63, least=0)  # no row has a CPU fast path for operands of at most this many elements in total
PRODUCTS = area(64 * 64 * 2)  # two 64 x 64 operands take 10 us on a host, less than any launch
ITERATED = area(128 * 128)  # a sparse matrix of so many stored elements is multiplied in less time than a launch takes
_MATRICES = Limits(PRODUCTS, volume(250_000), blas=True)
# Limits that must be known before a row is loaded. Loops of the given sizes take 5 us over square matrices of integers,
# but 100 us over float16 with few terms; in einsum 5 us over square matrices, and 100 us if operands share no label.
LIMITS: Mapping[str, Limits] = MappingProxyType(
    {f"numpy.{name}": _MATRICES for name in ("matmul", "dot", "inner", "tensordot")}
    | {"numpy.einsum": Limits(PRODUCTS, volume(90_000))}
    # trnpy copies some small matrices that SciPy would overwrite.
    | {f"scipy.linalg.{name}": Limits(UNSEEN, 1) for name in ("inv", "solve")}
    | {f"scipy.sparse.linalg.{name}": Limits(ITERATED) for name in ("cg", "gmres", "eigsh", "lobpcg")}
)
# ``a @ b`` also calls this ufunc. If trnpy is compiled, a patch leaves it in place and its calls enter the hook.
ENTERED = "numpy.matmul"

_trace: ContextVar[list[Decision] | None] = ContextVar("trnpy_trace", default=None)


class Entered:
    """The loaders of rows by the ``id`` of a NumPy function that stays in place while its calls enter a hook."""

    rows: ClassVar[dict[int, Callable[[], Any]]] = {}


def sizes(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[float, float, bool]:
    """The sum and the product of the arrays' sizes, and whether all arrays have a dtype that BLAS multiplies.

    Lists and tuples count with all they hold, CSR and CSC matrices of SciPy with their stored elements. The sizes are
    infinite if there is an Array, anything by position that is no operand or option of these, or too long a list of
    arrays.
    """
    elements, product, blas = 0, 1, True
    given = [*args, *(a for a in kwargs.values() if isinstance(a, np.ndarray) or type(a) is Attention.array)]
    for a in given:  # which grows by what lists hold
        if type(a) is np.ndarray:
            elements += a.size
            product *= a.size or 1
            blas = blas and a.dtype.char in BLAS
        elif type(a) in (list, tuple):
            elements += len(a)
            if not NUMBERS.issuperset(map(type, a)):
                if len(given) + len(a) > WALKED:
                    return math.inf, math.inf, False
                given += a
        elif type(a).__module__ in COMPRESSED:
            elements += a.data.size
            product *= a.data.size or 1
            blas = False
        elif a is not None and not isinstance(a, (str, int, float, complex, np.number)):
            return math.inf, math.inf, False
    return elements, product, blas


# Called here, because every program that computes loads this module; `import trnpy` alone should cost nothing.
ranks_env.notice_at_end()
