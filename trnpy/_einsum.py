"""Contractions of labelled arrays: a plan of pairwise batched products, and the few lines that run it."""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from trnpy import _guards
from trnpy._dispatch import Reason, Unsupported
from trnpy._engine import Engine

# NumPy's own, bound before anything is patched: sums and diagonals of one operand.
_numpy_einsum = np.einsum

LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"  # einsum's labels, in the order of its integers
THIN = 8  # rows, columns or terms below which a product of matrices is no faster than a loop
Shapes = tuple[tuple[int, ...], ...]


@dataclass(frozen=True, slots=True)
class Step:
    """One batched product: C[batch, left, right] = sum over inner of A[batch, left, inner] B[batch, inner, right]."""

    operands: tuple[int, int]  # positions in the list of what is left to contract
    batch: str
    left: str
    inner: str
    right: str

    @property
    def result(self) -> str:
        return self.batch + self.left + self.right

    def around(self, labels: str, sizes: Mapping[str, int]) -> tuple[str, str] | None:
        """(before, after) where the summed labels lie inside ``labels``: a stack of matrices as it is."""
        if self.batch or not self.inner:
            return None
        before, found, after = labels.partition(self.inner)
        if not (found and before and after):
            return None
        large = min(_extent(sizes, self.inner), _extent(sizes, after)) >= THIN
        return (before, after) if large else None


@dataclass(frozen=True, slots=True)
class Plan:
    """How ``inputs -> output`` is computed: what becomes of each operand first, then one product after another."""

    inputs: tuple[str, ...]  # labels of each operand as given
    output: str
    sizes: Mapping[str, int]
    reduced: tuple[str, ...]  # labels of each operand once diagonals are taken and labels of its own summed
    steps: tuple[Step, ...]
    product_flops: float  # of the steps, two for each multiply-add
    loop_flops: float  # of one loop over all labels: what NumPy does when it does not plan

    def shape(self) -> tuple[int, ...]:
        return tuple(self.sizes[label] for label in self.output)

    def extent(self, labels: str) -> int:
        return math.prod(self.sizes[label] for label in labels)

    def step_flops(self, step: Step) -> float:
        return 2.0 * self.extent(step.batch + step.left + step.inner + step.right)

    def copied(self) -> float:
        """Elements that must be copied, transposed, before BLAS takes them; operands are taken to be C-contiguous."""
        left, copies = list(self.reduced), 0.0
        for step in self.steps:
            i, j = step.operands
            for labels, own in ((left[i], step.left), (left[j], step.right)):
                in_place = step.batch + own + step.inner, step.batch + step.inner + own
                if labels not in in_place and step.around(labels, self.sizes) is None:
                    copies += self.extent(labels)
            left = [labels for m, labels in enumerate(left) if m not in (i, j)]
            left.append(step.result)
        return copies

    def blas_size(self, step: Step) -> float:
        """The n of a cube that BLAS multiplies as efficiently: the harmonic mean, for thin products are slow ones."""
        return 3.0 / (1 / self.extent(step.left) + 1 / self.extent(step.inner) + 1 / self.extent(step.right))


def parse(operands: Sequence[Any]) -> tuple[tuple[str, ...], str, tuple[np.ndarray, ...]]:
    """Labels of each input, of the output, and the arrays of an einsum call in either form.

    Only what NumPy accepts passes: everything else is Unsupported, so that NumPy words the error.
    """
    if not operands:
        raise Unsupported(Reason.PARAM, "no operands")
    if isinstance(operands[0], str):
        subscripts, arrays = operands[0].replace(" ", ""), tuple(operands[1:])
        if not set(subscripts) <= set(LETTERS + ".,->"):
            raise Unsupported(Reason.PARAM, f"subscripts {subscripts!r} have characters that are no labels")
        _check_ellipsis(subscripts)
    else:
        pairs = len(operands) // 2
        arrays = tuple(operands[0 : 2 * pairs : 2])
        sublists = [*operands[1 : 2 * pairs : 2], *operands[2 * pairs :]]
        if not arrays or any(isinstance(s, (str, np.ndarray)) for s in sublists):
            raise Unsupported(Reason.PARAM, "operands and sublists do not alternate")
        words = ["".join("..." if s is Ellipsis else _letter(s) for s in sublist) for sublist in sublists]
        subscripts = ",".join(words[:pairs]) + ("->" + words[pairs] if len(words) > pairs else "")
        _check_ellipsis(subscripts)
    plain = tuple([_guards.array(a) for a in arrays])
    return (*_parsed(subscripts, tuple([a.ndim for a in plain])), plain)


@functools.lru_cache(maxsize=4096)
def _parsed(subscripts: str, dimensions: tuple[int, ...]) -> tuple[tuple[str, ...], str]:
    from opt_einsum.parser import parse_einsum_input

    inputs, output, _ = parse_einsum_input((subscripts, *[(1,) * n for n in dimensions]), shapes=True)
    return tuple(inputs.split(",")), output


Axes = tuple[tuple[int, int], ...]  # (argument, axis) where the size of each of some labels is found


@functools.lru_cache(maxsize=4096)
def _label_axes(subscripts: str) -> tuple[Axes, ...]:
    """Where the sizes of labels are found: of all but three groups, then of left, inner and right of a product of two.

    Of more than two operands all are in the first.  Empty where there is nothing to gain: one operand, or two of
    which one has no label of its own or none is summed.
    """
    inputs, arrow, output = subscripts.replace(" ", "").partition("->")
    operands = inputs.split(",")
    if "." in inputs or not arrow or len(operands) < 2:
        return ()
    where = {c: (i + 1, axis) for i, labels in enumerate(operands) for axis, c in enumerate(labels)}
    if len(operands) > 2:
        return (tuple(where.values()),)
    a, b = map(set, operands)
    groups = a - b, (a & b) - set(output), b - a
    rest = set(where).difference(*groups)
    return tuple(tuple(where[c] for c in group) for group in (rest, *groups)) if all(groups) else ()


def loops(args: tuple[Any, ...]) -> float:
    """Multiply-adds that NumPy's loop takes for an einsum of floating-point arrays; 0 where BLAS cannot help."""
    if len(args) < 3 or type(args[0]) is not str or not (groups := _label_axes(args[0])):
        return 0.0
    for a in args[1:]:
        if type(a) is not np.ndarray or a.dtype.kind not in "fc":
            return 0.0
    try:
        extents = [math.prod([args[i].shape[axis] for i, axis in group]) for group in groups]
    except IndexError:  # subscripts that do not fit the operands
        return 0.0
    thin = len(extents) > 1 and min(extents[1:]) < THIN
    return 0.0 if thin else float(math.prod(extents))


def _letter(index: Any) -> str:
    position = operator.index(index)
    if not 0 <= position < len(LETTERS):
        raise Unsupported(Reason.PARAM, f"label {position} is not in 0..{len(LETTERS) - 1}")
    return LETTERS[position]


def _check_ellipsis(subscripts: str) -> None:
    inputs, arrow, output = subscripts.partition("->")
    if arrow and "..." in inputs and "..." not in output:
        raise Unsupported(Reason.PARAM, "an ellipsis is summed")


def label_sizes(inputs: Sequence[str], output: str, shapes: Shapes) -> dict[str, int]:
    """The size of every label; operands of size 1 stretch."""
    sizes: dict[str, int] = {}
    for labels, shape in zip(inputs, shapes, strict=True):
        if len(labels) != len(shape):
            raise Unsupported(Reason.PARAM, f"labels {labels!r} for an operand of shape {shape}")
        for label, size in zip(labels, shape, strict=True):
            if sizes.setdefault(label, size) == 1:
                sizes[label] = size
            elif size not in (1, sizes[label]):
                raise Unsupported(Reason.PARAM, f"label {label!r} has sizes {sizes[label]} and {size}")
        if any(
            labels.count(label) > 1 and size == 1 != sizes[label] for label, size in zip(labels, shape, strict=True)
        ):
            raise Unsupported(Reason.PARAM, f"a repeated label of {labels!r} stretches")
    if len(set(output)) != len(output) or not set(output) <= set(sizes):
        raise Unsupported(Reason.PARAM, f"output {output!r} repeats or invents a label")
    return sizes


def plan(inputs: tuple[str, ...], output: str, shapes: Shapes, optimize: str | tuple[tuple[int, ...], ...]) -> Plan:
    """The contraction order (opt_einsum's, for ``optimize`` a name it knows, or a path as given)."""
    import opt_einsum

    sizes = label_sizes(inputs, output, shapes)
    # An operand of size 1 along a label that is longer elsewhere does not have that label: it is constant along it.
    present = [
        "".join(dict.fromkeys(c for c, n in zip(labels, shape, strict=True) if n == sizes[c]))
        for labels, shape in zip(inputs, shapes, strict=True)
    ]
    reduced = tuple(
        "".join(c for c in labels if c in output or any(c in other for j, other in enumerate(present) if j != i))
        for i, labels in enumerate(present)
    )
    expression = ",".join(reduced) + "->" + output
    if len(reduced) > 2:
        shapes_left = [tuple(sizes[c] for c in labels) for labels in reduced]
        path, _ = opt_einsum.contract_path(
            expression, *shapes_left, shapes=True, optimize=list(optimize) if isinstance(optimize, tuple) else optimize
        )
    else:
        path = [tuple(range(len(reduced)))]
    steps, flops = _steps(list(reduced), output, path, sizes)
    loop = float(len(inputs)) * math.prod(sizes.values())
    return Plan(inputs, output, sizes, reduced, steps, flops, max(loop, 1.0))


def _steps(
    left: list[str], output: str, path: Sequence[Sequence[int]], sizes: Mapping[str, int]
) -> tuple[tuple[Step, ...], float]:
    """Pairwise products along ``path``; an entry of more than two operands is contracted from its left."""
    steps, flops = [], 0.0
    for entry in path:
        group = sorted(entry)
        while len(group) > 1:
            i, j = group[0], group[1]
            a, b = left[i], left[j]
            kept = set(output).union(*(left[m] for m in range(len(left)) if m not in (i, j)))
            step = Step(
                (i, j),
                batch="".join(c for c in a if c in b and c in kept),
                left="".join(c for c in a if c not in b),
                inner="".join(c for c in a if c in b and c not in kept),
                right="".join(c for c in b if c not in a),
            )
            steps.append(step)
            flops += 2.0 * math.prod(sizes[c] for c in set(a + b))
            left = [labels for m, labels in enumerate(left) if m not in (i, j)]
            left.append(step.result)
            group = [m - (m > i) - (m > j) for m in group[2:]] + [len(left) - 1] if len(group) > 2 else []
            group.sort()
    return tuple(steps), flops


def contract(p: Plan, arrays: Sequence[np.ndarray], dtype: np.dtype, engine: Engine) -> np.ndarray:
    """The contraction of ``arrays`` in ``dtype``, every product by ``engine``; perhaps a view of the last one."""
    left = []
    for a, labels, kept in zip(arrays, p.inputs, p.reduced, strict=True):
        stretched = tuple(0 if n != p.sizes[c] else slice(None) for c, n in zip(labels, a.shape, strict=True))
        present = "".join(c for c, s in zip(labels, stretched, strict=True) if s != 0)
        a = a[stretched].astype(dtype, copy=False)
        left.append((kept, a if present == kept else _numpy_einsum(f"{present}->{kept}", a)))
    for step in p.steps:
        i, j = step.operands
        (la, a), (lb, b) = left[i], left[j]
        left = [item for m, item in enumerate(left) if m not in (i, j)]
        left.append((step.result, _product(step, la, a, lb, b, p.sizes, engine)))
    ((labels, c),) = left
    return np.asarray(_numpy_einsum(f"{labels}->{p.output}", c)) if labels != p.output else c


def _product(
    step: Step, la: str, a: np.ndarray, lb: str, b: np.ndarray, sizes: Mapping[str, int], engine: Engine
) -> np.ndarray:
    """One step: both operands as stacks of matrices, one batched product, the labels' shape back."""
    extent = functools.partial(_extent, sizes)
    for labels, whole, other, others, own in ((la, a, b, lb, step.right), (lb, b, a, la, step.left)):
        if (around := step.around(labels, sizes)) is not None:
            matrix = other.transpose([others.index(c) for c in own + step.inner])
            cubes = whole.reshape(extent(around[0]), extent(step.inner), extent(around[1]))
            c = engine.matmul(matrix.reshape(extent(own), extent(step.inner)), cubes)
            made = around[0] + own + around[1]
            return c.reshape([sizes[x] for x in made]).transpose([made.index(x) for x in step.result])
    left = a.transpose([la.index(c) for c in step.batch + step.left + step.inner])
    right = b.transpose([lb.index(c) for c in step.batch + step.inner + step.right])
    stack = (extent(step.batch),) if step.batch else ()
    c = engine.matmul(
        left.reshape(*stack, extent(step.left), extent(step.inner)),
        right.reshape(*stack, extent(step.inner), extent(step.right)),
    )
    return c.reshape([sizes[label] for label in step.result])


def _extent(sizes: Mapping[str, int], labels: str) -> int:
    return math.prod(sizes[label] for label in labels)


def probe_error(p: Plan, arrays: Sequence[np.ndarray], result: np.ndarray) -> float:
    """|s(C) - s(A, B, ...)| / (|A|_F |B|_F ...), s a contraction with random signs along every output label.

    Costs a pass over the operands: a wrong C passes each of the signs' trials with probability at most 1/2.
    """
    signs = [np.random.default_rng(i).integers(0, 2, p.sizes[c]) * 2.0 - 1.0 for i, c in enumerate(p.output)]
    ones = ",".join(p.output)
    inputs = ",".join(p.inputs)
    separator = "," if ones else ""
    theirs = _numpy_einsum(f"{inputs}{separator}{ones}->", *arrays, *signs, optimize="greedy")
    ours = _numpy_einsum(f"{p.output}{separator}{ones}->", result, *signs, optimize="greedy") if signs else result
    scale = math.prod(float(np.linalg.norm(np.asarray(a, np.result_type(a, np.float64)))) for a in arrays)
    difference = float(abs(np.asarray(ours, np.complex128) - theirs))
    return difference / scale if scale else difference
