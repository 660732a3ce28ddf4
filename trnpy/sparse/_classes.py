"""Subclasses of SciPy's sparse arrays and matrices in all formats, whose methods return trnpy's classes."""

from __future__ import annotations

import copy
import functools
import types
from abc import ABCMeta
from collections.abc import Callable
from types import ModuleType
from typing import Any

from scipy import sparse

from trnpy._base.conventions import uncounted
from trnpy._call.namespace import settled
from trnpy.sparse import _matmul, _tiles

_ABSTRACT = (sparse.sparray, sparse.spmatrix)
_BASES = tuple(
    cls
    for cls in vars(sparse).values()
    if isinstance(cls, type) and issubclass(cls, _ABSTRACT) and cls not in _ABSTRACT
)

# SciPy's methods that construct one of SciPy's classes instead of the class of ``self``: n dimensions, power 0.
_STRAYING = {
    "coo": (
        "__getitem__",
        "_matmul_sparse",
        "_min_or_max_axis_nd",
        "_sparse_dot",
        "_sparse_tensordot",
        "_sub_sparse",
    ),
    "matrix": ("__pow__",),
}


def _recast(a: Any, cls: Any) -> Any:
    """``a`` as an instance of ``cls``, which has the same format. The arrays are shared."""
    result = cls.__new__(cls)
    result.__dict__.update(a.__dict__)
    result.__dict__.pop(_tiles.CACHE, None)  # valid for ``a`` only, and must not be pickled
    return result


def adopt(result: Any) -> Any:
    """``result`` converted from SciPy's sparse classes to trnpy's, also inside a tuple."""
    if (cls := OURS.get(type(result))) is not None:
        return _recast(result, cls)
    return tuple(map(adopt, result)) if type(result) is tuple else result


def adopting(function: Callable[..., Any]) -> Callable[..., Any]:
    """``function`` with `adopt` applied to its result."""

    @uncounted
    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        return adopt(function(*args, **kwargs))

    return call


def makers(module: ModuleType, plain: str, home: str) -> dict[str, Callable[..., Any]]:
    """The functions of ``module`` with adopted results and ``home`` as their module.

    ``plain`` names the functions that never return sparse results and remain SciPy's. Functions added by a newer SciPy
    are adopted.
    """
    names = [name for name in dir(module) if not name.startswith("_") and name not in plain.split()]
    functions = [getattr(module, name) for name in names]
    return settled([adopting(f) for f in functions if callable(f) and not isinstance(f, type)], home)


class _Sparse(_matmul.Products):
    """Methods that trnpy's sparse classes add to SciPy's."""

    @classmethod
    def __subclasshook__(cls, other: type) -> bool:
        # isinstance(x, trnpy.sparse.csr_matrix) is also true for SciPy's class, which libraries and pickles return.
        return True if SCIPY.get(cls) in other.__mro__ else NotImplemented

    def __reduce_ex__(self, protocol: Any) -> Any:
        base = SCIPY.get(type(self))
        if base is None:  # a user's subclass
            return super().__reduce_ex__(protocol)
        # Pickled as SciPy's object, so that it loads without trnpy. Protocol 2 would require type(self).
        return _recast(self, base).__reduce_ex__(1)

    def __copy__(self) -> Any:
        return _recast(self, type(self))

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        result = _recast(self, type(self))
        result.__dict__.update(copy.deepcopy(result.__dict__, memo))
        return result


def _container(base: type) -> property:
    """The property in which SciPy's methods look up the class of one format."""
    return property(lambda self: OURS[base])


def _subclass(base: type) -> type:
    """trnpy's subclass of ``base`` with the same name, docstring and signature; conversions return trnpy's classes."""
    layout, _, flavour = base.__name__.partition("_")
    body: dict[str, Any] = {"__doc__": base.__doc__, "__module__": __name__.rpartition(".")[0]}
    for other in _BASES:
        if other.__name__.endswith(flavour):
            body[f"_{other.__name__.partition('_')[0]}_container"] = _container(other)
    for name in _STRAYING.get(layout, ()) + _STRAYING.get(flavour, ()):
        if hasattr(base, name):
            body[name] = adopting(getattr(base, name))
    if layout == "csr":
        csr: Any = base
        body["tobsr"] = _matmul.tobsr(csr.tobsr)
    kind = {"metaclass": ABCMeta}  # __subclasshook__ needs it; SciPy sets it from 1.16 on
    return types.new_class(base.__name__, (_Sparse, base), kind, lambda namespace: namespace.update(body))


OURS = {base: _subclass(base) for base in _BASES}
SCIPY = {cls: base for base, cls in OURS.items()}
