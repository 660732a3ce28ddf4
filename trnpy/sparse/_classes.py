"""SciPy's sparse classes, every format in both flavours, as subclasses whose results are theirs again."""

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
from trnpy._call.names import settled
from trnpy.sparse import _blocks, _ops

_ABSTRACT = (sparse.sparray, sparse.spmatrix)
_BASES = tuple(
    cls
    for cls in vars(sparse).values()
    if isinstance(cls, type) and issubclass(cls, _ABSTRACT) and cls not in _ABSTRACT
)

# Methods that name one of SciPy's classes where they could ask for ``self``'s: in n dimensions, and power 0.
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
    """``a`` as an instance of ``cls``, SciPy's class of its format or a subclass of it; the arrays are shared."""
    result = cls.__new__(cls)
    result.__dict__.update(a.__dict__)
    result.__dict__.pop(_blocks.CACHE, None)  # of this object, and no part of a pickle
    return result


def adopt(result: Any) -> Any:
    """``result`` with SciPy's sparse arrays and matrices, also those in a tuple, as trnpy's."""
    if (cls := OURS.get(type(result))) is not None:
        return _recast(result, cls)
    return tuple(map(adopt, result)) if type(result) is tuple else result


def adopting(function: Callable[..., Any]) -> Callable[..., Any]:
    """``function``, its result adopted."""

    @uncounted
    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        return adopt(function(*args, **kwargs))

    return call


def makers(module: ModuleType, plain: str, home: str) -> dict[str, Callable[..., Any]]:
    """The functions of ``module`` with adopted results and at home in ``home``.

    But for those named in ``plain``, whose results are never sparse: a function that a newer SciPy brings is adopted.
    """
    names = [name for name in dir(module) if not name.startswith("_") and name not in plain.split()]
    functions = [getattr(module, name) for name in names]
    return settled([adopting(f) for f in functions if callable(f) and not isinstance(f, type)], home)


class _Sparse(_ops.Products):
    """What trnpy's sparse classes have that SciPy's have not."""

    @classmethod
    def __subclasshook__(cls, other: type) -> bool:
        # Code that asks for csr_matrix means SciPy's too: what others return, and what pickles hold.
        return True if SCIPY.get(cls) in other.__mro__ else NotImplemented

    def __reduce_ex__(self, protocol: Any) -> Any:
        base = SCIPY.get(type(self))
        if base is None:  # a user's subclass
            return super().__reduce_ex__(protocol)
        # As SciPy's object, for readers that have no trnpy; from protocol 2 on, objects may name their own class only.
        return _recast(self, base).__reduce_ex__(1)

    def __copy__(self) -> Any:
        return _recast(self, type(self))

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        result = _recast(self, type(self))
        result.__dict__.update(copy.deepcopy(result.__dict__, memo))
        return result


def _container(base: type) -> property:
    """Where SciPy's methods look up the class of one format."""
    return property(lambda self: OURS[base])


def _subclass(base: type) -> type:
    """trnpy's subclass of ``base``: same name, doc and signature, and conversions to trnpy's classes."""
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
        body["tobsr"] = _ops.tobsr(csr.tobsr)
    kind = {"metaclass": ABCMeta}  # SciPy's own from 1.16 on; __subclasshook__ needs it
    return types.new_class(base.__name__, (_Sparse, base), kind, lambda namespace: namespace.update(body))


OURS = {base: _subclass(base) for base in _BASES}
SCIPY = {cls: base for base, cls in OURS.items()}
