"""Contractions: plans of pairwise matrix products with as few copies as possible, and their execution."""

from __future__ import annotations

import functools
import itertools
import math
import operator
from collections.abc import Sequence
from typing import Any, ClassVar, Literal

import numpy as np

from nkisim.hardware import Hardware
from trnpy._base.records import record
from trnpy._call import guards
from trnpy._call.decisions import Work
from trnpy._call.dispatch import Cost, Decision, Problem, Reason, Unsupported, decide
from trnpy._einsum import grammar
from trnpy._einsum.loop import CAST, contiguous, loop
from trnpy._einsum.product import TRANSPOSES, Sizes, Step, copied_by_numpy, extent, on_host, product_of
from trnpy._engine.abstract_arrays import Shape, priced
from trnpy._engine.engines import HOST, Engine, Refused
from trnpy._engine.proof import integers
from trnpy._engine.proof.checksums import Wrong
from trnpy._engine.tuning import BLOCK, pieces
from trnpy._settings.host_rates import HostRates, current_rates
from trnpy._settings.policy import Policy, current_policy
from trnpy._settings.tile import TILE

_numpy_einsum = np.einsum  # NumPy's own, bound before anything is patched
Order = Literal["C", "F", "K"]  # of a result; K for any
GREEDY = "auto"  # opt_einsum's choice of search by the number of operands
BALANCE = 64  # flops in the time of moving one float64: 80 GF/s and 10 GB/s for one thread; a device has the same ratio
LAUNCH_FLOPS = 4e5  # flops in the time of the overhead of one step


@record()
class Taken:
    """The preparation of one operand: drop stretched labels, extract diagonals, sum labels that only it has."""

    index: tuple[int | slice, ...] | None
    subscripts: str | None
    labels: str

    def of(self, a: np.ndarray, dtype: np.dtype) -> np.ndarray:
        if self.index is not None:
            a = a[self.index]
        if a.dtype is not dtype:
            a = a.astype(dtype, copy=False)
        return a if self.subscripts is None else _numpy_einsum(self.subscripts, a)[...]  # a number as an array

    def units(self, labels: str, shape: tuple[int, ...], strides: tuple[int, ...], char: str, dtype: np.dtype) -> float:
        """Units of ``loop`` for preparing an operand, and for the copy that BLAS needs if it has gaps."""
        size = np.dtype(char).itemsize
        if self.index is not None:  # only the remaining elements
            kept = [i for i, part in enumerate(self.index) if part != 0]
            labels = "".join([labels[i] for i in kept])
            shape, strides = (tuple([own[i] for i in kept]) for own in (shape, strides))
        cast = 0.0
        if char != dtype.char:
            cast = CAST * math.prod(shape)
            strides = contiguous(shape, dtype.itemsize)
        elif self.subscripts is None and strides == contiguous(shape, size):
            return 0.0
        output = labels if self.subscripts is None else self.labels
        return cast + loop((labels,), output, (shape,), (strides,), dtype.char, dtype.char, dtype.itemsize)


@record(eq=False)  # compared by identity, because plans are cached
class Plan:
    """How ``inputs -> output`` is computed: prepare each operand, then compute one product after another."""

    inputs: tuple[str, ...]  # labels of each operand as given
    output: str
    sizes: Sizes
    taken: tuple[Taken, ...]
    steps: tuple[Step, ...]
    axes: tuple[int, ...] | None  # axes of the last product in the order of the output
    loop_flops: float  # operations of one loop over all labels, which NumPy runs without a plan

    @property
    def product_flops(self) -> float:
        """Operations of all steps, two for each multiply-add."""
        return sum(step.flops for step in self.steps)

    @property
    def subscripts(self) -> str:
        return f"{','.join(self.inputs)}->{self.output}"

    @property
    def terms(self) -> int:
        """Products that are summed for an element of the result."""
        return math.prod(n for label, n in self.sizes.items() if label not in self.output)

    def shape(self) -> tuple[int, ...]:
        return tuple(self.sizes[label] for label in self.output)

    def host_s(
        self, rates: HostRates, dtype: np.dtype, strides: grammar.Shapes | None = None, chars: str = ""
    ) -> float:
        """Predicted seconds of all steps on the host, for operands of these strides and dtypes, or in C order."""
        shapes = [tuple([self.sizes[c] for c in labels]) for labels in self.inputs]
        strides = strides or tuple([contiguous(shape, dtype.itemsize) for shape in shapes])
        operands = zip(self.taken, self.inputs, shapes, strides, chars or dtype.char * len(shapes), strict=True)
        units = sum([taken.units(labels, shape, own, char, dtype) for taken, labels, shape, own, char in operands])
        return rates.loop_s(units) + sum(step.host_s(rates, dtype) for step in self.steps)


def plan(
    inputs: tuple[str, ...], output: str, shapes: grammar.Shapes, optimize: grammar.Optimize, host: bool = False
) -> Plan:
    """The plan of a contraction. ``optimize`` is the name of a search of opt_einsum, or a path.

    ``host``: only the host runs it.
    """
    sizes = grammar.label_sizes(inputs, output, shapes)
    # An operand of size 1 along a label that is longer elsewhere is constant along it: the label is dropped.
    present = [
        "".join(dict.fromkeys(c for c, n in zip(labels, shape, strict=True) if n == sizes[c]))
        for labels, shape in zip(inputs, shapes, strict=True)
    ]
    reduced = [
        "".join(c for c in labels if c in output or any(c in other for j, other in enumerate(present) if j != i))
        for i, labels in enumerate(present)
    ]
    taken = tuple(map(_taken, inputs, shapes, reduced, itertools.repeat(sizes)))
    paths = _paths(reduced, output, sizes, optimize)
    steps, last = min(
        (_steps(reduced, output, path, sizes, host) for path in paths), key=lambda found: _worth(found[0], sizes)
    )
    axes = None if last == output else tuple(map(last.index, output))
    loop = float(len(inputs)) * math.prod(sizes.values())
    return Plan(inputs, output, sizes, taken, steps, axes, max(loop, 1.0))


def _taken(labels: str, shape: tuple[int, ...], kept: str, sizes: Sizes) -> Taken:
    stretched = [n != sizes[c] for c, n in zip(labels, shape, strict=True)]
    present = "".join(c for c, dropped in zip(labels, stretched, strict=True) if not dropped)
    index = tuple(0 if dropped else slice(None) for dropped in stretched) if any(stretched) else None
    return Taken(index, None if present == kept else f"{present}->{kept}", kept)


def _paths(
    reduced: Sequence[str], output: str, sizes: Sizes, optimize: grammar.Optimize
) -> Sequence[Sequence[Sequence[int]]]:
    """opt_einsum's paths: the named one, or two: the fewest flops, and the fewest flops and elements."""
    if len(reduced) < 3:
        return [[tuple(range(len(reduced)))]]
    import opt_einsum

    searches: list[Any] = [list(optimize) if isinstance(optimize, tuple) else optimize]
    if optimize == GREEDY:
        searches.append(opt_einsum.DynamicProgramming(minimize=f"combo-{BALANCE}"))
    shapes = [tuple(sizes[c] for c in labels) for labels in reduced]
    subscripts = ",".join(reduced) + "->" + output
    return [opt_einsum.contract_path(subscripts, *shapes, shapes=True, optimize=search)[0] for search in searches]


def _worth(steps: Sequence[Step], sizes: Sizes) -> float:
    """The cost of a path in flops, with its memory traffic and its launches converted to flops."""
    elements = sum(extent(sizes, labels) for step in steps for labels in (*step.labels, step.result))
    return sum(step.flops for step in steps) + BALANCE * elements + LAUNCH_FLOPS * len(steps)


def _steps(
    left: Sequence[str], output: str, path: Sequence[Sequence[int]], sizes: Sizes, host: bool
) -> tuple[tuple[Step, ...], str]:
    """Pairwise products along ``path``, and the labels of the remaining operand.

    An entry of more than two operands is contracted from left to right.
    """
    steps, left = [], list(left)
    for entry in path:
        group = sorted(entry)
        while len(group) > 1:
            i, j = group[0], group[1]
            b, a = left.pop(j), left.pop(i)
            kept = set(output).union(*left)
            steps.append(product_of((i, j), a, b, kept, "" if left else output, sizes, host))
            left.append(steps[-1].result)
            group = [m - (m > i) - (m > j) for m in group[2:]] + [len(left) - 1] if len(group) > 2 else []
            group.sort()
    return tuple(steps), left[0]


def contract(
    p: Plan, arrays: Sequence[np.ndarray], dtype: np.dtype, engines: Sequence[Engine], counts: bool = False
) -> np.ndarray:
    """The contraction of ``arrays`` in ``dtype``, each product on its engine; it may be a view of the last product.

    ``counts``: the elements are numbers of pairs, so each product must be exact.
    """
    left = [taken.of(a, dtype) for taken, a in zip(p.taken, arrays, strict=True)]
    for step, engine in zip(p.steps, engines, strict=True):
        i, j = step.operands
        b, a = left.pop(j), left.pop(i)
        if engine is HOST:
            left.append((_by_loop if step.looped else _by_blas)(a, b, step))
        else:
            x, y = step.factors(a, b)
            c = multiplied(step, x, y, engine)
            if counts and not _exact(x, y, c):
                raise Wrong(f"numbers of pairs, {c.shape}, are not exact")
            left.append(c.reshape(step.shape))
    (c,) = left
    return c if p.axes is None else c.transpose(p.axes)


def multiplied(step: Step, x: np.ndarray, y: np.ndarray, engine: Engine) -> np.ndarray:
    """The product of the factors of ``step`` on ``engine``, in any shape.

    Rows times columns are the diagonals of products of up to TILE rows, which take as long as one row. A longer row
    than a block becomes several, whose sums the host adds.
    """
    if not step.dots:
        return engine.matmul(x, y)
    k = x.shape[-1]
    x, y = x.reshape(-1, k), y.reshape(-1, k)
    count = len(x)
    parts = max(TILE // count, -(-k // BLOCK))  # of each row
    length = k // parts
    whole = parts * length
    left, right = (z[:, :whole].reshape(count * parts, length) for z in (x, y))
    sums = np.empty_like(left, shape=(count * parts,))
    for rows in pieces(count * parts, TILE):
        sums[rows] = engine.matmul(left[rows], right[rows].T).diagonal()
    total: np.ndarray = sums.reshape(count, parts).sum(axis=1, dtype=x.dtype)
    return total if whole == k else total + (x[:, whole:] * y[:, whole:]).sum(axis=1, dtype=x.dtype)


def _priced(a: np.ndarray, b: np.ndarray, step: Step) -> tuple[float, tuple[Any, ...]]:
    return step.flops * (4.0 if a.dtype.kind == "c" else 1.0), ((step.shape, a.dtype),)


@priced("einsum", _priced)
def _by_loop(a: np.ndarray, b: np.ndarray, step: Step) -> np.ndarray:
    return on_host(step)(a, b)


@priced("matmul", _priced)
def _by_blas(a: np.ndarray, b: np.ndarray, step: Step) -> np.ndarray:
    return on_host(step)(a, b)


@functools.lru_cache(maxsize=4096)  # a plan takes as long as a small call
def costed(
    inputs: tuple[str, ...],
    output: str,
    shapes: grammar.Shapes,
    sizes: tuple[int, ...],
    dtype: np.dtype,
    optimize: grammar.Optimize,
    strides: grammar.Shapes = (),
    chars: str = "",
) -> tuple[Plan, Cost]:
    """The plan and the cost of a contraction of operands of the given shapes and item sizes.

    ``strides`` and dtypes ``chars`` of the operands are given if the original function is NumPy's loop without a plan.
    """
    loops = bool(strides)
    p = plan(inputs, output, shapes, optimize)
    if not p.steps:
        raise Unsupported(Reason.LAYOUT, "one operand: no product, perhaps a view")
    real = 4.0 if dtype.kind == "c" else 1.0
    largest = max(p.steps, key=operator.attrgetter("flops"))
    copied = TRANSPOSES * sum(copied_by_numpy(step, p.sizes) for step in p.steps)
    between = sum(math.prod(step.shape) for step in p.steps[:-1])
    cost = Cost(
        kind="einsum" if loops else "matmul",
        n=math.prod(largest.extents) ** (1 / 3) if loops or largest.vector else largest.blas_size,
        flops=real * (p.loop_flops if loops else p.product_flops),
        moved=0.0 if loops else dtype.itemsize * (copied + 2 * between),
        bytes_in=sum(size * math.prod(shape) for size, shape in zip(sizes, shapes, strict=True)),
        bytes_out=dtype.itemsize * math.prod(p.shape()),
        units=loop(inputs, output, shapes, strides, chars, dtype.char, dtype.itemsize) if loops else 0.0,
    )
    return p, cost


@record(kw_only=True)
class OneStep(Problem):
    """One step of a plan, as a device computes it."""

    unproven: ClassVar[str] = ""
    step: Step

    def run(self, engine: Engine) -> np.ndarray:
        a, b = self.arrays
        return multiplied(self.step, *self.step.factors(a, b), engine).reshape(self.step.shape)


def _step_work(p: Plan, step: Step, dtype: np.dtype) -> Work:
    extents = [tuple([p.sizes[c] for c in labels]) for labels in step.labels]
    return Work(OneStep, tuple([Shape(e, dtype, "C", i) for i, e in enumerate(extents)]), dtype, (step,))


@functools.lru_cache(maxsize=4096)
def placed(
    p: Plan, dtype: np.dtype, machine: Hardware | None, policy: Policy, rates: HostRates
) -> tuple[Decision, ...]:
    """Whether each step of a call that may use a device runs there; memory-bound steps stay on the host."""
    return tuple(
        decide(
            step.subscripts,
            Problem((), dtype, step.cost(p.sizes, dtype)),
            machine,
            policy,
            rates,
            work=_step_work(p, step, dtype),
        )
        for step in p.steps
    )


def engines(p: Plan, dtype: np.dtype, engine: Engine) -> list[Engine]:
    """The engine of each step of a call that goes to ``engine``: the host for steps that a device would slow down.

    If it would slow down every step, none stays on the host, so the cost of the call shows that the device is slower.
    """
    if len(p.steps) == 1 or dtype.kind not in "fc":
        return [engine] * len(p.steps)
    decisions = placed(p, dtype, engine.hardware, current_policy(), current_rates())
    there = [decision.on_device for decision in decisions]
    return [engine if on or not any(there) else HOST for on in there]


# --- The problem ------------------------------------------------------------------------------------------------------


@record(kw_only=True)
class Contraction(Problem):
    """A contraction of labelled arrays by a plan."""

    unproven: ClassVar[str] = ""
    plan: Plan
    out: np.ndarray | None = None
    scalar: bool = True  # whether a result of no dimensions is a scalar
    order: Order = "C"  # of the result: K for any
    shape: tuple[int, ...] | None = None  # of the result, if it differs from the plan's

    @property
    def _product(self) -> bool:
        """Whether it is one product, whose checksum test rejects infs and NaNs in operands and result."""
        return len(self.plan.steps) == 1 and self.dtype.kind in "fc"

    def run(self, engine: Engine) -> Any:
        if not self._product:
            guards.finite(*self.arrays)
        counted = self.dtype.kind == "b"
        dtype = np.dtype(np.float32) if counted else self.dtype
        try:
            result = contract(self.plan, self.arrays, dtype, engines(self.plan, dtype, engine), counted)
        except Refused:
            guards.finite(*self.arrays)
            raise
        if counted:
            result = result != 0
        result = result.astype(result.dtype, order=self.order, copy=not result.flags.writeable)
        return result[()] if self.scalar else result

    def error(self, result: Any) -> float:
        """0 if all elements are finite, because each product of an engine has its own checksum test; otherwise NaN."""
        tested = self._product and not self.plan.steps[0].dots  # the host adds the sums of a long row after their test
        return 0.0 if tested or np.isfinite(result).all() else math.nan

    def deliver(self, result: Any) -> Any:
        """The result, in ``out`` if the caller gave one. It is not written to before the result is accepted."""
        if self.shape is not None:
            return result.reshape(self.shape)
        if self.out is None:
            return result
        np.copyto(self.out, result)
        return self.out


@priced("", lambda x, y, c: (24 * (x.size + y.size + c.size), (True,)))
def _exact(x: np.ndarray, y: np.ndarray, c: np.ndarray) -> bool:
    """Whether c is the exact product of x and y, whose elements are all numbers of pairs."""
    return integers.agree(*(np.rint(z).astype(np.int32) for z in (x, y, c)))
