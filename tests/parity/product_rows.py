"""Generators and errors of NumPy's products, and of rows that multiply without a factorization."""

from __future__ import annotations

import functools
import itertools
from dataclasses import replace

import numpy as np

from parity.cases import FLOATS
from parity.measures import holds, over, wide
from parity.row import Row

EVERY = ("f2", "f4", "f8", "f8", "c8", "c16", "c16", "i1", "i8", "u1", "u4", "b1")
SUBSCRIPTS = (
    "ij,jk->ik", "ji,jk->ik", "ij,kj->ki", "ij,jk", "ij,j->i", "ij,ij->", "ij,ij->ji", "i,j->ij", "ij->ji", "ii->i",
    "ij->", "bij,bjk->bik", "bij,jk->bik", "bij,bij->b", "ij,jk,kl->il", "ijb,bk,kl->ijl", "iij,jk->ik", "ij,k->ijk",
    "...ij,...jk->...ik", "ij,jk,ik->", "b,ij->ij",
)  # fmt: skip
BY_ENGINES = ("host", "forced", "simulator")


def exact(call, result, theirs, function=None):
    """Products are exact for integers, and within rounding of the sizes of their terms for others."""
    x, function = np.asarray(result), function or call.reference
    if x.dtype.kind in "iub":
        return {"exact": holds(np.array_equal(x, theirs))}
    if x.dtype == "f2":  # whose sums NumPy's loops round more than once
        unit = np.float16
    else:
        unit = x.dtype
    options = call.options | ({"optimize": True} if function is np.einsum else {})
    expected, scale = (function(*_each(call.args, as_), **options) for as_ in (wide, _size))
    terms, wrong = max(call.case.sizes), np.abs(_finite(wide(x), expected, x.dtype))
    if x.dtype.kind in "fc":
        least = 4 * (terms + 1) * wide(np.finfo(x.dtype).smallest_subnormal)
        wrong = np.maximum(wrong - least * _following(call, function, options), 0)
    return {"forward": over(wrong, scale, unit, terms)}


def _following(call, function, options):
    """What the rounding of a product on the way, where that underflows, is multiplied by at most.

    Of three operands and more any may be multiplied first: those are ones here.
    """
    (operands,) = call.args if isinstance(call.args[0], list) else (call.args,)
    arrays = [i for i, a in enumerate(operands) if isinstance(a, np.ndarray)]
    found = 0.0
    for first in itertools.chain.from_iterable(itertools.combinations(arrays, n) for n in range(2, len(arrays))):
        sizes = [np.ones_like(a) if i in first else a for i, a in enumerate(operands)]
        found = found + function(*_each((sizes,) if operands is not call.args else sizes, _size), **options)
    return found


def _size(a):
    return np.abs(wide(a))


def _finite(x, expected, dtype):
    """Differences where the exact result is in the dtype's range."""
    inside = np.abs(expected) < np.finfo(dtype).max / 2
    return np.where(inside, x - expected, 0)


def _each(args, convert):
    return tuple(
        convert(a) if isinstance(a, np.ndarray) else type(a)(_each(a, convert)) if isinstance(a, (list, tuple)) else a
        for a in args
    )


def general(case, *shape, which=0):
    """An operand of any count of extents; a matrix is of the case's family."""
    case = case.changed(batch=())
    if len(shape) == 2:
        return case.finish(case.general(*shape, which), which)
    a = case.normal(*shape, which=which)
    return case.finish(a.reshape(1, -1), which)[0] if len(shape) == 1 else case.finish(a, which)


def make_matmul(case):
    m, k, n = case.sizes
    batch, other = case.batch, case.of(case.batch, (), (1, *case.batch))
    left, right = case.of(((m, k), (k, n)), ((m, k), (k, n)), ((k,), (k, n)), ((m, k), (k,)), ((k,), (k,)))
    a = general(case, *(batch if len(left) == 2 else ()), *left)
    return (a, general(case, *(other if len(right) == 2 else ()), *right, which=1)), {}


def make_dot(case):
    m, k, n = case.sizes
    left, right = case.of(
        ((m, k), (k, n)), ((m, k), (k, n)), ((k,), (k, n)), ((m, k), (k,)), ((k,), (k,)), ((2, m % 7, k), (3, k, n % 7))
    )
    return (general(case, *left), general(case, *right, which=1)), {}


def make_inner(case):
    m, k, n = case.sizes
    left, right = case.of(((m, k), (n, k)), ((k,), (n, k)), ((k,), (k,)), ((2, m % 7, k), (n, k)))
    return (general(case, *left), general(case, *right, which=1)), {}


def make_tensordot(case):
    m, k, n = (min(size, 33) for size in case.sizes)
    left, right, axes = case.of(
        ((m, k), (k, n), 1), ((m, k, 3), (k, 3, n), 2), ((m, k), (n, k), (1, 1)),
        ((k, m, 3), (3, k, n), ([0, 2], [1, 0])), ((m, 2), (3, n), 0), ((m, k), (m, k), 2),
    )  # fmt: skip
    return (general(case, *left), general(case, *right, which=1)), {"axes": axes}


def make_einsum(case):
    subscripts = SUBSCRIPTS[case.option % len(SUBSCRIPTS)]
    m, k, n = case.sizes
    inputs = subscripts.replace("...", "b").partition("->")[0].split(",")
    # NumPy's loop over all labels at once, in a wide dtype too, takes a minute for three matrices of 257.
    most = 17 if max(map(len, inputs)) > 2 else 129 if len(inputs) > 2 else max(case.sizes)
    # Not empty: NumPy's einsum writes outside an empty result (2.4.6, by valgrind), of which processes abort later.
    extents = dict(zip("ijklb", [min(max(x, 1), most) for x in (m, k, n, m)] + [3], strict=True))
    arrays = [general(case, *(extents[x] for x in labels), which=i % 2) for i, labels in enumerate(inputs)]
    return (subscripts, *arrays), {"optimize": True} if case.option // len(SUBSCRIPTS) % 3 == 2 else {}


def make_kron(case):
    m, k, n = (min(size, 16) for size in case.sizes)
    left, right = case.of(((m, k), (n, k)), ((k,), (n, m)), ((m,), (n,)))
    return (general(case, *left), general(case, *right, which=1)), {}


def make_khatri_rao(case):
    m, k, n = (min(size, 33) for size in case.sizes)
    return (general(case, m, k), general(case, n, k, which=1)), {}


def make_multi_dot(case):
    m, k, n = case.sizes
    extents = case.of((m, k, n), (m, k, n, k), (k, n, m, n, k))
    pairs = itertools.pairwise(extents)
    return ([general(case, *pair, which=i % 2) for i, pair in enumerate(pairs)],), {}


def of_multi_dot(call, result, theirs):
    return exact(call, result, theirs, lambda arrays: functools.reduce(np.matmul, arrays))


def make_multi_einsum(case):
    one, two = make_einsum(case)[0], make_einsum(case.changed(option=case.option // 7))[0]
    return ([one, two, one],), {}


def of_multi_einsum(call, result, theirs):
    largest = 0.0
    for item, x, y in zip(call.args[0], result, theirs, strict=True):
        found = exact(replace(call, args=item, options={}, reference=np.einsum), x, y)
        largest = max(largest, *found.values())
    return {"largest": largest}


ROWS = {
    "numpy.matmul": Row(make_matmul, exact, dtypes=EVERY, engines=BY_ENGINES),
    "numpy.dot": Row(make_dot, exact, dtypes=EVERY, engines=BY_ENGINES),
    "numpy.inner": Row(make_inner, exact, dtypes=EVERY, engines=BY_ENGINES),
    "numpy.tensordot": Row(make_tensordot, exact, dtypes=EVERY, engines=BY_ENGINES),
    "numpy.einsum": Row(make_einsum, exact, dtypes=EVERY, engines=BY_ENGINES),
    "numpy.kron": Row(make_kron, exact, dtypes=EVERY, engines=BY_ENGINES),
    "scipy.linalg.khatri_rao": Row(make_khatri_rao, exact, dtypes=EVERY),
    "numpy.linalg.multi_dot": Row(make_multi_dot, of_multi_dot, dtypes=EVERY, engines=BY_ENGINES),
    "trnpy.multi_einsum": Row(make_multi_einsum, of_multi_einsum, dtypes=FLOATS, engines=("host", "forced")),
}
