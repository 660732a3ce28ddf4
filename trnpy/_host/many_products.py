"""Many products of two matrices on the host, as fast as a loop of ``@``: calls of one form share one plan."""

from __future__ import annotations

import contextlib
import functools
import re
from collections.abc import Iterator, Sequence
from operator import attrgetter
from typing import Any, NamedTuple

import numpy as np
from numpy import ndarray

from trnpy._call import guards
from trnpy._settings.tile import area, length

_numpy_matmul = np.matmul  # bound before anything is patched

PRODUCT = re.compile(r"([a-zA-Z]{1,2}),([a-zA-Z]{1,2})->([a-zA-Z]{0,2})").fullmatch
# Elements of an operand: smaller ones are copied into a stack, as NumPy's loop over a stack is shorter than Python's.
# Of the time of a loop of ``@``, stacks took 0.8 to 1.0 at 20 x 20 to 28 x 28 and calls one by one 1.1 to 1.3; at
# 32 x 32 0.85 to 1.14 and 1.04 to 1.11 (1,000 products, Haswell and SkylakeX kernels, 1 and 2 threads, a busy EPYC).
COPIED = length(28 * 28)
TOGETHER = area(2**13)  # elements of a stack: the allocator reuses memory of this size, larger arrays get new pages
_shape, _dtype = attrgetter("shape"), attrgetter("dtype")


class Form(NamedTuple):
    """A contraction as a product of its operands, or of the second and the first, each as it is or transposed."""

    exchanged: bool
    turned: tuple[bool, bool]


@functools.lru_cache(maxsize=4096)
def _form(subscripts: str, a: tuple[int, ...], b: tuple[int, ...], char: str) -> Form | None:
    found = PRODUCT(subscripts)
    if found is None or char not in "fdFD" or 0 in (*a, *b):
        return None
    left, right, output = found.groups()
    inner = set(left) & set(right)
    once = len({*left, *right}) == len(left) + len(right) - 1
    if (len(left), len(right)) != (len(a), len(b)) or len(inner) != 1 or not once:
        return None
    (k,) = inner
    rest = left.replace(k, "") + right.replace(k, "")
    if a[left.index(k)] != b[right.index(k)] or sorted(rest) != sorted(output):
        return None
    turned = left[0] == k and len(left) == 2, right[-1] == k and len(right) == 2
    return Form(False, turned) if output == rest else Form(True, (not turned[1], not turned[0]))


def products(calls: Sequence[Sequence[Any]]) -> list[Any]:
    """Results of the ``calls`` of einsum that multiply two matrices or vectors of floats; None for all other calls.

    BLAS computes them, as with ``optimize=True``. It adds in another order than NumPy's loop, so a sum near the largest
    number may overflow in one and not in the other.
    """
    found: list[Any] = [None] * len(calls)
    for places, subscripts, lefts, rights in _alike(calls):
        a, b = lefts[0], rights[0]
        form = _form(subscripts, a.shape, b.shape, a.dtype.char) if a.dtype is b.dtype else None
        if form is not None:
            lefts, rights = (rights, lefts) if form.exchanged else (lefts, rights)
            # matmul warns of overflow, but NumPy's einsum loop does not.
            computed = guards.QUIET.copy().run(_products, form, lefts, rights)
            if len(computed) == len(calls):
                return computed
            for n, c in zip(places, computed, strict=True):
                found[n] = c
    return found


def _alike(calls: Sequence[Sequence[Any]]) -> Iterator[tuple[Sequence[int], str, Sequence[ndarray], Sequence[ndarray]]]:
    """(places, subscripts, left operands, right operands) of each group of calls of one form; usually there is one."""
    with contextlib.suppress(ValueError):  # three arguments each
        subscripts, *operands = zip(*calls, strict=True)
        lefts, rights = operands
        if type(subscripts[0]) is str and {*map(type, lefts), *map(type, rights)} == {ndarray} and _same(subscripts):
            aspects = map(_shape, lefts), map(_shape, rights), map(_dtype, lefts), map(_dtype, rights)
            if all(_same([*aspect]) for aspect in aspects):
                yield range(len(calls)), subscripts[0], lefts, rights
                return
    groups: dict[tuple[Any, ...], list[int]] = {}
    for n, call in enumerate(calls):
        if len(call) == 3 and type(call[0]) is str and type(call[1]) is type(call[2]) is ndarray:
            key = call[0], *(x for a in call[1:] for x in (a.shape, a.dtype.str))
            groups.setdefault(key, []).append(n)
    for (subscripts, *_), places in groups.items():
        yield places, subscripts, [calls[n][1] for n in places], [calls[n][2] for n in places]


def _same(values: Sequence[Any]) -> bool:
    return values.count(values[0]) == len(values)


def _products(form: Form, lefts: Sequence[ndarray], rights: Sequence[ndarray]) -> list[Any]:
    """The products of ``lefts`` with ``rights``, pair by pair; each list has operands of one shape."""
    left, right = form.turned
    largest = max(lefts[0].size, rights[0].size)
    if lefts[0].ndim == rights[0].ndim == 2 and largest <= COPIED:
        found, step = [], TOGETHER // largest
        for start in range(0, len(lefts), step):
            x, y = (_stacked(some[start : start + step]) for some in (lefts, rights))
            found += list(_numpy_matmul(x.swapaxes(1, 2) if left else x, y.swapaxes(1, 2) if right else y))
        return found
    if left:
        lefts = [a.T for a in lefts]
    if right:
        rights = [b.T for b in rights]
    return list(map(_numpy_matmul, lefts, rights))


def _stacked(matrices: Sequence[ndarray]) -> ndarray:
    return np.concatenate(matrices).reshape(len(matrices), *matrices[0].shape)


ROUTES = {"many_products": products}
