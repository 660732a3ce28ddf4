"""Calls drawn at random over every host route: patterns, shapes, dtypes, memory orders, two to four operands.

A draw knows nothing of what a route looks for, except which matrices a function accepts.
"""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
import scipy.linalg
import scipy.sparse

import trnpy
import trnpy.sparse
from trnpy._call.dispatch import Op, accelerated
from trnpy._call.rows import row
from trnpy._einsum.rows import OPS as PRODUCTS
from trnpy._host import TABLE
from trnpy.linalg import blas
from trnpy.sparse._matmul import MATMUL

Generator = np.random.Generator
LABELS = "abcdefghij"
VOLUME = 1e4, 2e7  # products of the sizes of all labels
ELEMENTS = 3e6  # of an operand or a result
FLOATS = "dddddffDF"
OTHERS = "qqibe?"  # dtypes that NumPy multiplies without BLAS
SHARES = {"einsum": 0.5, "products": 0.14, "linalg": 0.22, "sparse": 0.08, "lists": 0.06}  # of all draws


class Call(NamedTuple):
    """One call: of the original, and through trnpy."""

    family: str
    what: str
    original: Callable[[], Any]
    ours: Callable[[], Any]
    op: Op | None  # None if no row decides
    args: tuple[Any, ...]
    kwargs: dict[str, Any]


def values(rng: Generator, shape: tuple[int, ...], char: str) -> np.ndarray:
    """Random numbers of dtype ``char``; integers of all their bits half of the time, else small ones."""
    if char in "fdFDe":
        a = rng.standard_normal(shape)
        return (a + 1j * rng.standard_normal(shape) if char in "FD" else a).astype(char)
    if char == "?":
        return rng.random(shape) < 10 ** rng.uniform(-3, 0)
    most = np.iinfo(char).max if rng.random() < 0.5 else 9
    return rng.integers(-most, most, shape).astype(char)


def laid_out(rng: Generator, a: np.ndarray) -> np.ndarray:
    """``a`` in C or Fortran order, in another order of axes, with a stride, or reversed."""
    draw = rng.random()
    if draw < 0.55 or not a.ndim:
        return a
    if draw < 0.75:
        return np.asfortranarray(a)
    if draw < 0.9:
        order = rng.permutation(a.ndim)
        return np.ascontiguousarray(a.transpose(order)).transpose(np.argsort(order))
    axis = rng.integers(a.ndim)
    if draw < 0.95:
        return np.repeat(a, 2, axis)[(slice(None),) * axis + (slice(None, None, 2),)]
    return np.flip(a, axis)


def extents(rng: Generator, count: int, volume: tuple[float, float] = VOLUME) -> list[int]:
    """``count`` sizes whose product is random in ``volume``."""
    log = rng.uniform(*map(math.log, volume))
    return [max(2, round(math.exp(log * part))) for part in rng.dirichlet(np.full(count, 2.0))]


def einsum(rng: Generator) -> Call | None:
    """A contraction of two to four operands, with diagonals, traces and operands that are stretched now and then."""
    count = int(rng.integers(1, 7))
    sizes = dict(zip(LABELS, extents(rng, count), strict=False))
    labels, inputs, shapes = list(sizes), [], []
    for _ in range(int(rng.choice([2, 2, 2, 2, 3, 3, 4]))):
        own = list(rng.permutation(labels)[: rng.integers(1, min(count, 4) + 1)])
        if rng.random() < 0.07:
            own.append(str(rng.choice(own)))
        stretched = {str(rng.choice(own))} if rng.random() < 0.05 and len(set(own)) == len(own) else set()
        inputs.append("".join(own))
        shapes.append(tuple(1 if c in stretched else sizes[c] for c in own))
    used = {c for x in inputs for c in x}
    largest = dict.fromkeys(used, 1)
    for own, shape in zip(inputs, shapes, strict=True):
        largest |= {c: max(largest[c], n) for c, n in zip(own, shape, strict=True)}
    output = "".join(rng.permutation([c for c in sorted(used) if rng.random() < 0.5]))
    everything = [*shapes, tuple(largest[c] for c in output)]
    if math.prod(largest.values()) < VOLUME[0] or max(map(math.prod, everything)) > ELEMENTS:
        return None
    chars = [_char(rng, 0.12)] * len(inputs)
    if rng.random() < 0.06:
        chars = [_char(rng, 0.2) for _ in inputs]
    arrays = [laid_out(rng, values(rng, shape, char)) for shape, char in zip(shapes, chars, strict=True)]
    subscripts = ",".join(inputs) + "->" + output
    kwargs = {"optimize": True} if rng.random() < 0.08 else {}
    return called("einsum", _row("numpy.einsum"), (subscripts, *arrays), kwargs)


def _char(rng: Generator, others: float) -> str:
    return str(rng.choice(list(OTHERS if rng.random() < others else FLOATS)))


def products(rng: Generator) -> Call | None:
    """matmul, dot, inner or tensordot of two operands of up to three dimensions."""
    name, char = str(rng.choice(["matmul", "matmul", "dot", "inner", "tensordot"])), _char(rng, 0.7)
    m, k, n, b = extents(rng, 4)
    if name == "matmul" and rng.random() < 0.3:
        shapes = [(b, m, k), (b, k, n)]
    else:
        shapes = [(m * b, k), (n, k) if name == "inner" else (k, n)]
    if max(map(math.prod, shapes)) > ELEMENTS or m * b * n > ELEMENTS:
        return None
    operands = [laid_out(rng, values(rng, shape, char)) for shape in shapes]
    args = (*operands, 1) if name == "tensordot" else tuple(operands)
    return called("products", _row(f"numpy.{name}"), args, {})


def _row(name: str) -> Op:
    return next(op for op in PRODUCTS if op.name == name)


def _definite(g: np.ndarray) -> np.ndarray:
    return np.asarray(g @ g.conj().swapaxes(-1, -2) / g.shape[-1] + np.eye(g.shape[-1]))


def linalg(rng: Generator) -> Call | None:
    """A function of matrices that has a route: of one matrix, or of a stack."""
    name = str(rng.choice([x for x in TABLE if ".linalg." in x]))
    short, char = name.rpartition(".")[2], str(rng.choice(list("ddddDDff")))
    if ".blas." in name:
        n = extents(rng, 1, (100, 1000))[0]
        a = np.asfortranarray(values(rng, (n, n // 2), "f" if short[0] == "s" else "d"))
        b = a if rng.random() < 0.5 else a.copy()
        op = getattr(blas, short).__trnpy_op__
        return called("linalg", op, (1.0, a, b), {"trans_b": 1})
    stack = rng.random() < 0.6
    n = extents(rng, 1, (2, 80) if stack else (24, 500))[0]
    shape = (extents(rng, 1, (8, max(3e4 / n**2, 9)))[0],) if stack else ()
    g = values(rng, (*shape, n, n), char)
    kind = str(rng.choice(["definite", "symmetric", "general"]))
    if short == "cholesky" or (short == "logm" and stack and len(g) > 100):
        kind = "definite"
    elif short in ("eigh", "eigvalsh", "pinvh") and kind == "general":
        kind = "symmetric"
    a = {"definite": _definite, "symmetric": lambda x: x + x.conj().swapaxes(-1, -2), "general": lambda x: x}[kind](g)
    a = laid_out(rng, a.astype(char))
    further: tuple[Any, ...] = ()
    if short in ("solve", "lstsq"):
        further = (values(rng, (*shape, n, int(rng.integers(1, 5))), char),)
    elif short == "fractional_matrix_power":
        further = (0.3,)
    call = called("linalg", row(name), (a, *further), {})
    return call._replace(what=f"{call.what} {kind}")


def sparse(rng: Generator) -> Call | None:
    """A sparse matrix, of blocks or of single elements, times a dense or a sparse one."""
    block, side = int(2 ** rng.uniform(1, 7)), int(2 ** rng.uniform(3, 7))
    n, char = block * side, str(rng.choice(list("dddfD")))
    pattern = scipy.sparse.random_array((side, side), density=rng.uniform(0.02, 0.3), rng=rng, format="csr")
    blocks = values(rng, (pattern.nnz, block, block), char)
    a = scipy.sparse.bsr_array((blocks, pattern.indices, pattern.indptr), shape=(n, n))
    if a.nnz > 2 * ELEMENTS or not a.nnz:
        return None
    layout = str(rng.choice(["bsr", "bsr", "csr", "csc"]))
    theirs = a.asformat(layout)
    mine = getattr(trnpy.sparse, f"{layout}_array")(theirs)
    columns = int(2 ** rng.uniform(0, 8))
    if rng.random() < 0.3:
        other = (theirs, mine)
    else:
        x = laid_out(rng, values(rng, (n, columns), char))
        other = (x, x)
    what = f"{layout} of {side}^2 blocks of {block} {char} @ {'itself' if other[0] is theirs else f'{n} x {columns}'}"
    original, ours = (functools.partial(operator.matmul, x, y) for x, y in zip((theirs, mine), other, strict=True))
    return Call("sparse", what, original, ours, MATMUL, (mine, other[1]), {})


def lists(rng: Generator) -> Call | None:
    """multi_einsum of many small products, against the same list of ``@``."""
    count = extents(rng, 1, (20, 2000))[0]
    m, k, n = extents(rng, 3, (60, 3e5))
    if count * m * k * n > VOLUME[1]:
        return None
    char, same = str(rng.choice(list("dddfD"))), rng.random() < 0.3
    lefts = list(values(rng, (count, m, k), char))
    rights = [values(rng, (k, n), char)] * count if same else list(values(rng, (count, k, n), char))
    pairs = list(zip(lefts, rights, strict=True))
    calls = [("ij,jk->ik", a, b) for a, b in pairs]
    what = f"multi_einsum of {count} {m} x {k} x {n} {char}"
    return Call("lists", what, lambda: [a @ b for a, b in pairs], lambda: trnpy.multi_einsum(calls), None, (), {})


def called(family: str, op: Op, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Call:
    words = [f"{_order(a)}{a.dtype.char}{list(a.shape)}" if isinstance(a, np.ndarray) else repr(a) for a in args]
    what = f"{op.name.rpartition('.')[2]}({', '.join(words)}{', optimize=True' if kwargs.get('optimize') else ''})"
    original, ours = (functools.partial(f, *args, **kwargs) for f in (op.reference, _accelerated(op)))
    return Call(family, what.replace("'", ""), original, ours, op, args, kwargs)


@functools.cache
def _accelerated(op: Op) -> Callable[..., Any]:
    return accelerated(op)


def _order(a: np.ndarray) -> str:
    """ "" in C order, F in Fortran order, T in another order of axes without gaps, S with gaps."""
    if a.flags.c_contiguous:
        return ""
    if a.flags.f_contiguous:
        return "F"
    order = np.argsort([-stride for stride in a.strides])
    return "T" if a.transpose(order).flags.c_contiguous else "S"


FAMILIES = {"einsum": einsum, "products": products, "linalg": linalg, "sparse": sparse, "lists": lists}


def draws(seed: int, families: list[str]) -> Iterator[Call]:
    """Calls without end. Each comes from a generator of its own, so that one call can be repeated alone."""
    names = [name for name in SHARES if not families or name in families]
    shares = np.array([SHARES[name] for name in names])
    for n in range(10**9):
        rng = np.random.default_rng([seed, n])
        found = FAMILIES[str(rng.choice(names, p=shares / shares.sum()))](rng)
        if found is not None:
            yield found._replace(what=f"{n}: {found.what}")
