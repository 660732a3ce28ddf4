"""NumPy's functions other than ufuncs, for abstract arrays. Importing this module registers them."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np

from trnpy._engine.abstract_arrays import FUNCTIONS, StandIn, broadcast, real_dtype


def _joined(x: StandIn, arrays: Any, axis: int = 0, stacked: bool = False) -> StandIn:
    arrays = list(arrays)
    shape = list(arrays[0].shape)
    if stacked:
        shape.insert(axis % (len(shape) + 1), len(arrays))
    else:
        shape[axis] = sum(a.shape[axis] for a in arrays)
    result = x._new(tuple(shape), np.result_type(*(a.dtype for a in arrays)))
    x.count.moved(2 * result.nbytes)
    return result


def _blocks(x: StandIn, rows: Any) -> StandIn:
    shape = sum(r[0].shape[0] for r in rows), sum(c.shape[1] for c in rows[0])
    result = x._new(shape, np.result_type(*(c.dtype for r in rows for c in r)))
    x.count.moved(2 * result.nbytes)
    return result


def _where(x: StandIn, condition: Any, *choices: Any) -> StandIn:
    shape = broadcast(condition, *choices)
    kinds = [c.dtype if hasattr(c, "dtype") else c for c in choices]
    result = x._new(shape, np.result_type(*kinds))
    x.count.moved(result.nbytes + sum(c.nbytes for c in (condition, *choices) if isinstance(c, (StandIn, np.ndarray))))
    result.few = any(isinstance(c, StandIn) and c.few for c in choices)
    return result


def _einsum(x: StandIn, subscripts: str, *operands: Any, **_: Any) -> StandIn:
    """einsum with NumPy's loop: counts the bytes that it reads."""
    terms, output = subscripts.replace(" ", "").split("->")
    sizes: dict[str, int] = {}
    rest: tuple[int, ...] = ()
    for term, o in zip(terms.split(","), operands, strict=True):
        x.count.moved(o.nbytes)
        labels = term.replace("...", "")
        rest = np.broadcast_shapes(rest, o.shape[: o.ndim - len(labels)])
        sizes |= dict(zip(labels, o.shape[o.ndim - len(labels) :], strict=True))
    shape = (rest if "..." in output else ()) + tuple(sizes[c] for c in output.replace("...", ""))
    return x._new(shape, np.result_type(*(o.dtype for o in operands)))._written()


def _norm(x: StandIn, a: StandIn, ord: Any = None, axis: Any = None, keepdims: bool = False) -> StandIn:
    return a._reduced(axis, keepdims, real_dtype(a.dtype))


def _alike(x: StandIn, a: Any, dtype: Any = None, order: str = "K", subok: bool = True, shape: Any = None) -> StandIn:
    shape = a.shape if shape is None else (shape,) if isinstance(shape, int) else tuple(shape)
    return x._new(shape, a.dtype if dtype is None else dtype)


def _filled(x: StandIn, shape: Any, dtype: Any = float, order: str = "C", **_: Any) -> StandIn:
    return x._new((shape,) if isinstance(shape, int) else tuple(shape), dtype)


def _eye(x: StandIn, N: int, M: int | None = None, k: int = 0, dtype: Any = float, **_: Any) -> StandIn:
    result = _triangle(x, x._new((N, N if M is None else M), dtype))
    result.identity = True
    return result


def _triangle(x: StandIn, a: StandIn, *_: Any) -> StandIn:
    result: StandIn = a.copy()
    result.few = True
    return result


def _same_shape(x: StandIn, a: StandIn, *_: Any, **__: Any) -> StandIn:
    return a.copy()


def _indices(x: StandIn, a: StandIn, *_: Any, **__: Any) -> StandIn:
    return a._read()._new(a.shape, np.intp)


def _diff(x: StandIn, a: StandIn, n: int = 1, axis: int = -1, **ends: Any) -> StandIn:
    shape = list(a.shape)
    shape[axis] += len(ends) - n
    return a._read()._new(tuple(shape))


def _diag(x: StandIn, a: StandIn, k: int = 0) -> StandIn:
    return a.diagonal() if a.ndim == 2 else x._new((len(a), len(a)))._written()


def _in_place(x: StandIn, a: StandIn, *_: Any, **__: Any) -> None:
    a.writes[0] += 1


def _copyto(x: StandIn, place: StandIn, source: Any, **_: Any) -> None:
    place[...] = source


def _method(name: str) -> Callable[..., Any]:
    return lambda x, a, *args, **options: getattr(a, name)(*args, **options)


FUNCTIONS |= {
    **dict.fromkeys(("copy", "round", "clip", "sort", "cumsum", "nan_to_num"), _same_shape),
    **{name: _method(name) for name in ("sum", "max", "min", "any", "all", "mean", "prod", "trace", "diagonal",
                                        "swapaxes", "transpose", "ravel", "reshape", "astype", "real", "imag")},
    **dict.fromkeys(("zeros_like", "empty_like", "ones_like"), _alike),
    "full_like": lambda x, a, value, *args, **options: _alike(x, a, *args, **options)._written(),
    **dict.fromkeys(("zeros", "empty", "ones"), _filled),
    "full": lambda x, shape, value, dtype=None, **_: _filled(x, shape, dtype or np.result_type(value)),
    "amax": _method("max"), "amin": _method("min"), "median": _method("mean"),
    "tril": _triangle, "triu": _triangle, "eye": _eye,
    "argsort": _indices,
    "concatenate": _joined,
    "stack": functools.partial(_joined, stacked=True),
    "hstack": lambda x, arrays: _joined(x, arrays, axis=1 if arrays[0].ndim > 1 else 0),
    "block": _blocks,
    "where": _where,
    "einsum": _einsum,
    "norm": _norm,
    "diff": _diff,
    "searchsorted": lambda x, a, v, *_, **__: x._new(np.shape(v), np.intp),
    "diag": _diag,
    "fill_diagonal": _in_place,
    "copyto": _copyto,
    "broadcast_to": lambda x, a, shape, subok=False: a._view(np.broadcast_to(a.memory, shape)),
    "moveaxis": lambda x, a, source, destination: a._view(np.moveaxis(a.memory, source, destination)),
    "expand_dims": lambda x, a, axis: a._view(np.expand_dims(a.memory, axis)),
    "take_along_axis": lambda x, a, p, axis=-1: a.copy(),
    "ix_": lambda x, *axes: tuple(
        a.reshape(tuple(len(a) if i == j else 1 for j in range(len(axes)))) for i, a in enumerate(axes)
    ),
    "result_type": lambda x, *args: np.result_type(*(a.dtype if isinstance(a, StandIn) else a for a in args)),
    "shape": lambda x, a: a.shape,
    "ndim": lambda x, a: a.ndim,
    "may_share_memory": lambda x, a, b: False,
}  # fmt: skip
