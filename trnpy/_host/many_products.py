"""Many products of two matrices on the host, as fast as a loop of ``@``: calls of the same form share one plan."""

from __future__ import annotations

import functools
import re
from collections.abc import Sequence
from operator import attrgetter
from typing import Any, NamedTuple

import numpy as np
from numpy import ndarray

from trnpy._call import guards

# Bound before anything is patched. dot takes 0.6 to 0.9 times the time of matmul at 4 x 4 to 32 x 32, because a ufunc
# selects its loop in each call. It clears its result first, so results of LARGE elements take it 1.0 to 1.14 times as
# long (Haswell and SkylakeX kernels, one thread of an EPYC, 2026-11-28).
_numpy_dot, _numpy_matmul = np.dot, np.matmul
LARGE = 64 * 64

PRODUCT = re.compile(r"([a-zA-Z]{1,2}),([a-zA-Z]{1,2})->([a-zA-Z]{0,2})").fullmatch
_dimensions, _dtype = attrgetter("ndim"), attrgetter("dtype")


class Form(NamedTuple):
    """A contraction as a product of its operands in either order, each as given or transposed."""

    exchanged: bool
    turned: tuple[bool, bool]


@functools.lru_cache(maxsize=4096)
def _form(subscripts: str, dimensions: tuple[int, int], char: str) -> Form | None:
    found = PRODUCT(subscripts)
    if found is None or char not in "fdFD":
        return None
    left, right, output = found.groups()
    inner = set(left) & set(right)
    once = len({*left, *right}) == len(left) + len(right) - 1
    if (len(left), len(right)) != dimensions or len(inner) != 1 or not once:
        return None
    (k,) = inner
    rest = left.replace(k, "") + right.replace(k, "")
    if sorted(rest) != sorted(output):
        return None
    turned = left[0] == k and len(left) == 2, right[-1] == k and len(right) == 2
    return Form(False, turned) if output == rest else Form(True, (not turned[1], not turned[0]))


def products(calls: Sequence[Sequence[Any]]) -> list[Any]:
    """Results of ``calls`` of einsum if each multiplies two matrices or vectors of floats, otherwise None.

    BLAS computes them, as with ``optimize=True``. It adds in another order than NumPy's loop, so a sum near the largest
    number may overflow in one and not in the other.
    """
    if (whole := _uniform(calls)) is not None and (computed := _products(*whole)) is not None:
        return computed
    found: list[Any] = [None] * len(calls)
    groups: dict[tuple[Any, ...], list[int]] = {}
    for n, call in enumerate(calls):
        if len(call) == 3 and type(call[0]) is str and type(call[1]) is type(call[2]) is ndarray:
            key = call[0], *(x for a in call[1:] for x in (a.shape, a.dtype.str))
            groups.setdefault(key, []).append(n)
    for (subscripts, *_), places in groups.items():
        computed = _products(subscripts, [calls[n][1] for n in places], [calls[n][2] for n in places])
        for n, c in zip(places, computed or (), strict=computed is not None):
            found[n] = c
    return found


def _uniform(calls: Sequence[Sequence[Any]]) -> tuple[str, Sequence[ndarray], Sequence[ndarray]] | None:
    """The subscripts and the operands of calls that differ at most in shapes, otherwise None.

    The tests of an operand take no longer than a tenth of a small product.
    """
    try:
        subscripts, lefts, rights = zip(*calls, strict=True)
    except ValueError:  # not three arguments each
        return None
    first = subscripts[0]
    if type(first) is not str or subscripts.count(first) != len(calls):
        return None
    if {*map(type, lefts)} != {ndarray} or {*map(type, rights)} != {ndarray}:
        return None
    if len({*map(_dimensions, lefts)}) > 1 or len({*map(_dimensions, rights)}) > 1:
        return None
    dtypes = [*map(_dtype, lefts), *map(_dtype, rights)]
    return (first, lefts, rights) if dtypes.count(dtypes[0]) == len(dtypes) else None


def _products(subscripts: str, lefts: Sequence[ndarray], rights: Sequence[ndarray]) -> list[Any] | None:
    """The products of ``lefts`` with ``rights``, pair by pair, of one dtype; None if BLAS cannot compute one."""
    a, b = lefts[0], rights[0]
    form = _form(subscripts, (a.ndim, b.ndim), a.dtype.char) if a.dtype is b.dtype else None
    if form is None:
        return None
    if form.exchanged:
        lefts, rights = rights, lefts
    left, right = form.turned
    if left:
        lefts = [a.T for a in lefts]
    if right:
        rights = [b.T for b in rights]
    matrices = lefts[0].ndim == rights[0].ndim == 2
    large = matrices and lefts[0].shape[0] * rights[0].shape[1] >= LARGE
    try:
        # BLAS's products warn of overflow, but NumPy's einsum loop does not.
        return guards.QUIET.copy().run(list, map(_numpy_matmul if large else _numpy_dot, lefts, rights))
    except ValueError:  # einsum stretches an operand, or raises its own error
        return None


ROUTES = {"many_products": products}
