"""Many contractions in one call: on a device, similar ones form one product, and shared operands are sent once."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from typing import Any, ClassVar

import numpy as np

from trnpy._base.records import record
from trnpy._call import guards
from trnpy._call.dispatch import Cost, Op, Problem, Reason, Unsupported, accelerated
from trnpy._call.fast_path import PRODUCTS
from trnpy._call.host_table import host_entry
from trnpy._call.namespace import settled
from trnpy._einsum import grammar
from trnpy._einsum.plan import Plan, contract, plan
from trnpy._einsum.product import extent
from trnpy._einsum.rows import einsum
from trnpy._engine.engines import Engine, at_rest
from trnpy._engine.tuning import rung
from trnpy._nki.kernels.products.batched_matmul_reference import SMALL as STACKED
from trnpy._settings.policy import current_policy

# NumPy's original function, bound before patching, for contractions that are not products.
_numpy_einsum = np.einsum

MEMORY = 256 * 2**20  # most bytes of the operands and result of one product that combines many
WASTE = 2.0  # a grid may compute this multiple of the products that are needed, as for a triangle of pairs
GREEDY = "auto"


Arrays = Sequence[np.ndarray]  # the distinct operands of a call


@record()
class Item:
    """One contraction that is a matrix product."""

    place: int  # in the list of contractions
    at: tuple[int, ...]  # the index of each operand among the distinct ones
    dtype: np.dtype
    plan: Plan
    alike: Hashable  # contractions with equal keys may be combined into one product


@functools.lru_cache(maxsize=4096)
def _planned(inputs: tuple[str, ...], output: str, shapes: grammar.Shapes) -> tuple[Plan, Hashable]:
    """The plan of a contraction, and its subscripts with the bucket of its shapes."""
    p = plan(inputs, output, shapes, GREEDY)
    if any(t.index is not None for t in p.taken) or any(len(set(x)) < len(x) for x in inputs):
        return p, (inputs, output, shapes)  # exact shapes: padding broadcast or repeated labels would change sums
    return p, (inputs, output, tuple((c, rung(n) if n <= STACKED else n) for c, n in sorted(p.sizes.items())))


def _parsed(contractions: Any) -> tuple[list[np.ndarray], list[Item], list[tuple[int, Any]]]:
    """The distinct operands, the contractions that are products, and all others with their places.

    Unsupported if there is no device path.
    """
    if not isinstance(contractions, (list, tuple)):
        raise Unsupported(Reason.PARAM, f"{type(contractions).__name__}: expected a list of contractions")
    different: dict[Any, tuple[int, np.ndarray]] = {}
    items, others = [], []
    for n, call in enumerate(contractions):
        if not isinstance(call, (list, tuple)):
            raise Unsupported(Reason.PARAM, f"item {n} is {type(call).__name__}: expected a tuple")
        try:
            inputs, output, arrays = grammar.parse(call)
            dtype = guards.floating(*arrays)
            if any(a.size == 0 for a in arrays):
                raise Unsupported(Reason.LAYOUT, "an operand is empty")
            p, kind = _planned(inputs, output, tuple([a.shape for a in arrays]))
        except Unsupported:
            others.append((n, call))
            continue
        if p.steps:
            at = tuple([different.setdefault(_identity(a), (len(different), a))[0] for a in arrays])
            items.append(Item(n, at, dtype, p, (kind, dtype)))
        else:
            others.append((n, call))
    if not items:
        raise Unsupported(Reason.LAYOUT, "no product of floating-point arrays among the contractions")
    return [a for _, a in different.values()], items, others


def _identity(a: np.ndarray) -> Hashable:
    """A key that is equal for arrays with the same memory, shape, strides and dtype."""
    return a.__array_interface__["data"][0], a.shape, a.strides, a.dtype


def _groups(items: Iterable[Item]) -> tuple[tuple[Item, ...], ...]:
    found: dict[Any, list[Item]] = {}
    for item in items:
        found.setdefault(item.alike, []).append(item)
    return tuple(map(tuple, found.values()))


def _distinct(arrays: Arrays, group: Sequence[Item], position: int) -> tuple[list[np.ndarray], list[int]]:
    """The distinct arrays among the operands in one position, and for each contraction the index of its array."""
    seen: dict[int, int] = {}
    which = [seen.setdefault(item.at[position], len(seen)) for item in group]
    return [arrays[n] for n in seen], which


def _is_grid(group: Sequence[Item], counts: Sequence[int]) -> bool:
    """Whether all products of a left with a right operand are at most WASTE times the needed ones."""
    first = group[0]
    one = len(first.plan.steps) == 1 and not first.plan.steps[0].batch and len(first.plan.inputs) == 2
    return one and len(group) > 1 and math.prod(counts) <= WASTE * len(group) and min(counts) > 1


def _stacked(arrays: Sequence[np.ndarray], dtype: np.dtype) -> np.ndarray:
    """Arrays stacked along a new first axis, padded with zeros to the largest extent of each axis."""
    shape = tuple(map(max, zip(*[a.shape for a in arrays], strict=True)))
    if all(a.shape == shape for a in arrays):
        return np.stack([a.astype(dtype, copy=False) for a in arrays])
    stack = np.zeros((len(arrays), *shape), dtype, like=arrays[0])
    for row, a in zip(stack, arrays, strict=True):
        row[tuple(map(slice, a.shape))] = a
    return stack


def _free(inputs: Sequence[str], count: int) -> list[str]:
    """``count`` labels that ``inputs`` do not use; Unsupported if there are too few."""
    used = set().union(*inputs)
    free = [c for c in grammar.LETTERS if c not in used][:count]
    if len(free) < count:
        raise Unsupported(Reason.PARAM, "no label is left for the stack of contractions")
    return free


def _result(item: Item, found: np.ndarray) -> Any:
    """A copy of ``found`` without its padding, in the contraction's shape."""
    c = found[tuple(slice(item.plan.sizes[x]) for x in item.plan.output)].copy()
    return c if item.plan.output else c[()]


def _run_group(arrays: Arrays, group: Sequence[Item], engine: Engine) -> Iterator[tuple[int, Any]]:
    """(place, result) for contractions that can be combined."""
    first = group[0]
    distinct = [_distinct(arrays, group, position) for position in range(len(first.plan.inputs))]
    counts = [len(found) for found, _ in distinct]
    if max(counts) == 1:
        c = _product(first.plan.inputs, first.plan.output, [arrays[n] for n in first.at], first.dtype, engine)
        for item in group:
            yield item.place, _result(item, c)
    elif _is_grid(group, counts):
        yield from _run_grid(group, distinct, engine)
    elif (position := _shared(distinct, len(group), engine)) is not None:
        found, which = distinct[position]
        for n in range(len(found)):
            yield from _run_group(arrays, [item for item, own in zip(group, which, strict=True) if own == n], engine)
    else:
        size = sum(arrays[at].nbytes for at, n in zip(first.at, counts, strict=True) if n > 1)
        step = max(1, int(MEMORY // (size + first.dtype.itemsize * extent(first.plan.sizes, first.plan.output))))
        for start in range(0, len(group), step):
            yield from _run_stack(arrays, group[start : start + step], counts, engine)


def _shared(distinct: Sequence[tuple[list[np.ndarray], list[int]]], count: int, engine: Engine) -> int | None:
    """The position whose operands are shared so often that a launch for each costs less than sending copies."""
    if engine.hardware is None:
        return None
    gains = []
    for position, (arrays, _) in enumerate(distinct):
        copies = (count - len(arrays)) * arrays[0].nbytes / engine.hardware.link_bytes_per_s
        gains.append((copies - (len(arrays) - 1) * engine.hardware.launch_s, position))
    gain, position = max(gains)
    return position if gain > 0 and len(distinct[position][0]) > 1 else None


def _run_grid(
    group: Sequence[Item], distinct: Sequence[tuple[list[np.ndarray], list[int]]], engine: Engine
) -> Iterator[tuple[int, Any]]:
    """One product of all left operands, joined into one matrix, with all right operands."""
    first = group[0]
    (lefts, i), (rights, j) = distinct
    u, w = _free(first.plan.inputs, 2)
    inputs, output = (u + first.plan.inputs[0], w + first.plan.inputs[1]), u + w + first.plan.output
    right = _stacked(rights, first.dtype)
    each = len(rights) * first.dtype.itemsize * extent(first.plan.sizes, first.plan.output)
    step = max(1, int(MEMORY // each))
    for start in range(0, len(lefts), step):
        c = _product(inputs, output, (_stacked(lefts[start : start + step], first.dtype), right), first.dtype, engine)
        for item, row, column in zip(group, i, j, strict=True):
            if start <= row < start + step:
                yield item.place, _result(item, c[row - start, column])


def _run_stack(
    arrays: Arrays, group: Sequence[Item], counts: Sequence[int], engine: Engine
) -> Iterator[tuple[int, Any]]:
    """One product of stacks; an operand that all contractions share is not stacked."""
    first = group[0]
    (z,) = _free(first.plan.inputs, 1)
    inputs = tuple(labels if n == 1 else z + labels for labels, n in zip(first.plan.inputs, counts, strict=True))
    stacks = [
        arrays[at] if n == 1 else _stacked([arrays[item.at[position]] for item in group], first.dtype)
        for position, (at, n) in enumerate(zip(first.at, counts, strict=True))
    ]
    c = _product(inputs, z + first.plan.output, stacks, first.dtype, engine)
    for n, item in enumerate(group):
        yield item.place, _result(item, c[n])


def _product(
    inputs: tuple[str, ...], output: str, arrays: Sequence[np.ndarray], dtype: np.dtype, engine: Engine
) -> np.ndarray:
    """One contraction, computed by ``engine``."""
    p = plan(inputs, output, tuple(a.shape for a in arrays), GREEDY)
    c = contract(p, arrays, dtype, (engine,) * len(p.steps))
    guards.finite(c)  # if a sum overflows, NumPy decides the result
    return c


@record(kw_only=True)
class Contractions(Problem):
    """Many contractions: groups of products of ``arrays``, and the other contractions with their places."""

    unproven: ClassVar[str] = ""
    groups: tuple[tuple[Item, ...], ...]
    others: Sequence[tuple[int, Any]]

    def outlined(self) -> tuple[Any, ...] | None:
        return self.groups, ()  # NumPy computes the others, wherever the products run

    def run(self, engine: Engine) -> list[Any]:
        guards.finite(*self.arrays)
        results: dict[int, Any] = {}
        for n, call in self.others:
            try:
                results[n] = _numpy_einsum(*call)
            except (TypeError, ValueError) as why:  # the original raises it again, with the number of the item
                raise Unsupported(Reason.PARAM, f"item {n}: {why}") from why
        for group in self.groups:
            results.update(_run_group(self.arrays, group, engine))
        return [results[n] for n in sorted(results)]

    def error(self, results: list[Any]) -> float:
        return 0.0  # every combined product was checked when it was computed


def _prepare(contractions: Any) -> Problem:
    arrays, items, others = _parsed(contractions)
    cost = Cost(
        kind="matmul",
        n=min(item.plan.steps[0].blas_size for item in items),
        flops=sum(item.plan.product_flops * (4.0 if item.dtype.kind == "c" else 1.0) for item in items),
        bytes_in=sum(a.nbytes for a in arrays),
        bytes_out=sum(item.dtype.itemsize * extent(item.plan.sizes, item.plan.output) for item in items),
    )
    dtype = np.result_type(*{item.dtype for item in items})
    return Contractions(tuple(arrays), dtype, cost, groups=_groups(items), others=others)


def _one_by_one(contractions: Iterable[Sequence[Any]]) -> list[Any]:
    """Many contractions in one call: the list of ``numpy.einsum(*c)`` for each c.

    Parameters
    ----------
    contractions : iterable of tuples
        Arguments of `numpy.einsum`: ``("ij,jk->ik", a, b)`` or ``(a, [0, 1], b, [1, 2], [0, 2])``.

    Returns
    -------
    list of ndarray
        Results in the same order, with the shape, dtype and writeability that `numpy.einsum` gives them.

    Raises
    ------
    TypeError, ValueError
        The exceptions of `numpy.einsum`; the message starts with the number of the item.

    Notes
    -----
    On the host, BLAS multiplies pairs of matrices, as with ``optimize=True``.

    On a device, contractions with the same subscripts and dtype are one launch. If many operands are multiplied with
    many others, as in the loop over pairs in DF-MP2, that launch computes one product of all; otherwise it computes a
    stack, in which similar shapes are padded with zeros. An array shared by several contractions is sent once.

    Examples
    --------
    >>> import numpy as np, trnpy
    >>> a, b = np.ones((2, 3)), np.ones((3, 4))
    >>> [c.shape for c in trnpy.multi_einsum([("ij,jk->ik", a, b), ("ij->j", a)])]
    [(2, 4), (3,)]
    """
    calls = list(contractions)
    if not {*map(type, calls)} <= {list, tuple}:  # a third of the time of testing each one
        for n, call in enumerate(calls):
            if not isinstance(call, (list, tuple)):
                raise TypeError(f"item {n} is {type(call).__name__}: expected a tuple of einsum's arguments")
    products = host_entry("many_products") if calls and at_rest(current_policy()) else None
    results = [None] * len(calls) if products is None else products(calls)
    for n, result in enumerate(results):
        if result is not None:
            continue
        try:
            results[n] = einsum(*calls[n])
        except (TypeError, ValueError) as why:
            kind = TypeError if isinstance(why, TypeError) else ValueError
            raise kind(f"item {n}: {why}") from why
    return results


_one_by_one.__name__ = _one_by_one.__qualname__ = "multi_einsum"
OP = Op("trnpy.multi_einsum", _one_by_one, _prepare, small=PRODUCTS, kind=None)
multi_einsum: Callable[[Iterable[Sequence[Any]]], list[Any]] = settled([accelerated(OP)], "trnpy")["multi_einsum"]

__all__ = ["OP", "multi_einsum"]
