"""Products that a device computes together: recorded operations as one call with device-resident intermediate results.

A region is a set of matrix products of a graph that are connected only by transposes, sums and scalar factors. It is
one call of trnpy: ``decide`` uses the model, a check tests the results, and after a fault NumPy computes them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from numbers import Number
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import numpy as np

from trnpy._base.records import record
from trnpy._call import guards
from trnpy._call.dispatch import Cost, Op, Problem, accelerated, explain
from trnpy._einsum import rows
from trnpy._engine.engines import Engine, at_rest, current_engine
from trnpy._nki.kernels.products.batched_matmul_reference import SMALL
from trnpy._settings.policy import current_policy
from trnpy.xp._held import Held

if TYPE_CHECKING:
    from trnpy.xp._nodes import Node

MOST_PATHS = 64  # from a result to its arrays: a check multiplies a vector along each path
MOST_STEPS = 256  # of a region
PRODUCTS = frozenset({rows.matmul, rows.tensordot})
SIGNS: Mapping[Any, float] = {np.add: 1.0, np.subtract: -1.0}
Step = tuple[str, int, int, float]  # "matmul", "turn" (transpose), "scale" or "sum" of two earlier values, and a factor
MADE = ("matmul", "sum")  # other steps are forms of the same matrix


class Form(NamedTuple):
    """A matrix in an engine, transposed or not, times a factor that a later sum or the host applies."""

    made: int  # the number of the value that created the matrix
    turned: bool
    factor: float


@record(kw_only=True)
class Products(Problem):
    """Steps over matrices of one dtype; values are numbered, the arrays first."""

    unproven: ClassVar[str] = "products whose operands stayed on the device, but for a check of the results"
    steps: tuple[Step, ...]
    outputs: tuple[int, ...]

    def run(self, engine: Engine) -> tuple[np.ndarray, ...]:
        guards.finite(*self.arrays)
        count, forms, together = len(self.arrays), self._forms(), self._stacks(engine)
        uses: dict[int, list[int]] = {}
        for at, (name, i, j, _) in enumerate(self.steps, count):
            if name in MADE and at not in together:
                for x in (i, j):
                    uses.setdefault(forms[x].made, []).append(at)
        for i in self.outputs:
            uses.setdefault(forms[i].made, []).append(count + len(self.steps))
        held = Held(engine, self.arrays, uses)
        for at, (name, i, j, factor) in enumerate(self.steps, count):
            if name not in MADE or at in together:
                continue
            left, right = forms[i], forms[j]
            x, y = held.operands(left.made, right.made)
            x, y = x.T if left.turned else x, y.T if right.turned else y
            held.make_room(at, (x.shape[0], y.shape[1]), left.made, right.made)
            product = name == "matmul"
            made = engine.matmul(x, y) if product else engine.axpby(left.factor, x, factor * right.factor, y)
            held.add(at, made, left.made, right.made)
        results = []
        for i in self.outputs:
            made, turned, factor = forms[i]
            c = together[i] if i in together else held.read(made)
            c = c.T if turned else c
            results.append(c if factor == 1 else c * c.dtype.type(factor))
        return tuple(results)

    def _forms(self) -> list[Form]:
        """The form of each value: the matrix, its transposition and its factor."""
        forms = [Form(i, False, 1.0) for i in range(len(self.arrays))]
        for at, (name, i, j, factor) in enumerate(self.steps, len(self.arrays)):
            made, turned, f = forms[i]
            if name in MADE:
                forms.append(Form(at, False, f * forms[j].factor if name == "matmul" else 1.0))
            else:
                forms.append(Form(made, not turned, f) if name == "turn" else Form(made, turned, f * factor))
        return forms

    def _stacks(self, engine: Engine) -> dict[int, np.ndarray]:
        """Small products of arrays that no other step needs; all products of one shape form a batch."""
        count, used = len(self.arrays), {x for _, i, j, _ in self.steps for x in (i, j)}
        alike: dict[Any, list[tuple[int, int, int]]] = {}
        for at, (name, i, j, _) in enumerate(self.steps, count):
            if name == "matmul" and max(i, j) < count and at not in used:
                (m, k), n = self.arrays[i].shape, self.arrays[j].shape[1]
                if max(m, k, n) <= SMALL:
                    alike.setdefault((m, k, n), []).append((at, i, j))
        found: dict[int, np.ndarray] = {}
        for group in alike.values():
            if len(group) > 1:
                left, right = (np.stack([self.arrays[x[side]] for x in group]) for side in (1, 2))
                found |= zip([at for at, _, _ in group], engine.matmul(left, right), strict=True)
        return found

    def error(self, result: tuple[np.ndarray, ...]) -> float:
        """The largest error of a result times a random vector, relative to the norms of its factors."""
        random = np.random.default_rng()
        sizes = [float(np.linalg.norm(a)) for a in self.arrays]
        for name, i, j, factor in self.steps:
            if name == "matmul":
                sizes.append(sizes[i] * sizes[j])
            else:
                sizes.append(sizes[i] + sizes[j] if name == "sum" else sizes[i] * abs(factor))
        errors = []
        for i, c in zip(self.outputs, result, strict=True):
            x = np.asarray(random.standard_normal(c.shape[1])).astype(c.dtype)
            left = float(np.linalg.norm(c @ x - self._times(i, x)))
            scale = sizes[i] * float(np.linalg.norm(x))
            errors.append(left / scale if scale else left)
        return math.nan if any(math.isnan(e) for e in errors) else max(errors)

    def _times(self, i: int, x: Any, turned: bool = False) -> Any:
        """Value i, or its transpose, times a vector."""
        if i < len(self.arrays):
            return (self.arrays[i].T if turned else self.arrays[i]) @ x
        name, a, b, factor = self.steps[i - len(self.arrays)]
        if name == "matmul":
            first, then = (a, b) if turned else (b, a)
            return self._times(then, self._times(first, x, turned), turned)
        if name == "turn":
            return self._times(a, x, not turned)
        if name == "scale":
            return x.dtype.type(factor) * self._times(a, x, turned)
        return self._times(a, x, turned) + x.dtype.type(factor) * self._times(b, x, turned)


def _numpy(*arrays: np.ndarray, steps: tuple[Step, ...], outputs: tuple[int, ...]) -> tuple[np.ndarray, ...]:
    """The results by NumPy."""
    values = list(arrays)
    for name, i, j, factor in steps:
        x, y = values[i], values[j]
        if name == "matmul":
            values.append(np.matmul(x, y))
        elif name == "turn":
            values.append(x.T)
        else:
            values.append(x * x.dtype.type(factor) if name == "scale" else x + y if factor == 1 else x - y)
    return tuple([values[i] for i in outputs])


def _prepare(*arrays: np.ndarray, steps: tuple[Step, ...], outputs: tuple[int, ...]) -> Products:
    shapes, flops, most, moved = [a.shape for a in arrays], 0.0, 0.0, 0
    dtype = arrays[0].dtype
    for name, i, j, _ in steps:
        (m, k), n = shapes[i], shapes[j][1]
        if name == "matmul":
            shapes.append((m, n))
            flops, most = flops + 2.0 * m * k * n, max(most, float(m) * k * n)
        else:
            shapes.append((k, m) if name == "turn" else (m, k))
            moved += 0 if name == "turn" else 3 * m * k * dtype.itemsize
    real = 4.0 if dtype.kind == "c" else 1.0
    back = sum(math.prod(shapes[i]) for i in outputs) * dtype.itemsize
    cost = Cost("matmul", most ** (1 / 3), real * flops, sum(a.nbytes for a in arrays), back, moved)
    return Products(arrays, dtype, cost, steps=steps, outputs=outputs)


OP = Op("trnpy.xp.matmul", _numpy, _prepare, kind=None)
products = accelerated(OP)


@record(frozen=False)
class Region:
    """Connected nodes and the arrays that they use, in the order in which they were added."""

    nodes: list[Node]
    steps: list[Step]
    number: dict[int, int]  # of the value of each node, by id: 0, 1, ... for steps, -1, -2, ... for arrays
    leaves: list[Node]
    paths: list[int]  # number of paths of each step

    def take(self, node: Node, inputs: Sequence[Any]) -> bool:
        """Add a node if it is an operation on matrices that regions support."""
        step = self._step(node, inputs)
        if step is None:
            return False
        name, operands, factor = step
        ways = [self.paths[self.number[id(x)]] if self.number.get(id(x), -1) >= 0 else 1 for x in operands]
        if sum(ways) > MOST_PATHS or len(self.steps) == MOST_STEPS:
            return False
        i, j = (self._at(operands[0]), self._at(operands[-1]))
        self.number[id(node)] = len(self.steps)
        self.nodes.append(node)
        self.steps.append((name, i, j, factor))
        self.paths.append(sum(ways))
        return True

    def _at(self, x: Node) -> int:
        if id(x) not in self.number:
            self.leaves.append(x)
            self.number[id(x)] = -len(self.leaves)
        return self.number[id(x)]

    def _step(self, node: Node, inputs: Sequence[Any]) -> tuple[str, tuple[Node, ...], float] | None:
        """The step of a node: its name, its operands and a factor."""
        if len(node.shape) != 2 or node.dtype.char not in "fdFD":
            return None
        if node.options and (node.function is not rows.tensordot or node.options != {"axes": 1}):
            return None
        matrices = _nodes(inputs)
        if not all(x.shape and len(x.shape) == 2 and x.dtype == node.dtype for x in matrices):
            return None
        if node.function in PRODUCTS:
            return "matmul", matrices, 1.0
        inside = any(self.number.get(id(x), -1) >= 0 for x in matrices)
        if node.function is np.matrix_transpose:  # also of an array: products read it in its layout
            return "turn", matrices, 1.0
        if not inside:
            return None
        if node.function in SIGNS and len(matrices) == 2 and matrices[0].shape == matrices[1].shape:
            return "sum", matrices, SIGNS[node.function]
        if node.function is np.multiply and len(matrices) == 1:
            factor = next(x for x in inputs if isinstance(x, Number))
            if isinstance(factor, (int, float)) and math.isfinite(factor):
                return "scale", matrices, float(factor)
        return None

    def results(self, needed: set[int], values: Mapping[int, Any]) -> dict[int, np.ndarray] | None:
        """The values of those nodes whose ids are ``needed``, by id, from a device; None if the host computes them."""
        count = len(self.leaves)
        steps = tuple([(name, *(count + x if x >= 0 else -1 - x for x in (i, j)), f) for name, i, j, f in self.steps])
        wanted = [n for n in self.nodes if id(n) in needed]
        arrays = [values.get(id(x)) if x.value is None else x.value for x in self.leaves]
        outputs = tuple([count + self.number[id(n)] for n in wanted])
        if not wanted or any(a is None for a in arrays):  # one has failed
            return None
        if not explain(products, *arrays, steps=steps, outputs=outputs).on_device:
            return None
        found = products(*arrays, steps=steps, outputs=outputs)
        return {id(n): x for n, x in zip(wanted, found, strict=True)}


def _nodes(inputs: Sequence[Any]) -> tuple[Node, ...]:
    """The operands that are not numbers."""
    return tuple([x for x in inputs if not isinstance(x, Number)])


def _wanted() -> bool:
    """Whether there is an engine for regions: one that computes, and does not only model times."""
    policy = current_policy()
    if at_rest(policy):
        return False
    engine = current_engine(policy)
    return engine is not None and (engine.executes or policy.force)


def grouped(
    order: list[Node], same: Mapping[int, Node], kept: set[int]
) -> tuple[list[Node], dict[int, Region], set[int]]:
    """``order`` with the nodes of each region behind one another; the regions by the id of their first node; and the
    ids of their values that other nodes or Arrays need.

    Regions come in stages: if the host computes with the result of a region, its result belongs to the next stage.
    Within a stage the host's operations come first, then one region after another. If there is no engine, there are no
    regions.
    """
    if sum(node.function in PRODUCTS for node in order) < 2 or not _wanted():
        return order, {}, kept
    stages: dict[int, tuple[int, bool]] = {}  # stage of each node, and whether the node is in a region
    regions: list[list[Region]] = []  # by stage
    others: list[list[Node]] = []
    for node in order:
        inputs = [same.get(id(x), x) for x in node.inputs]
        original = same.get(id(node), node)
        needs = _nodes(inputs) if original is node else (original,)
        known = [stages.get(id(x), (0, False)) for x in needs]
        stage = max([s for s, _ in known], default=0)
        while len(regions) <= stage + 1:
            regions.append([])
            others.append([])
        inside = original is node and _taken(regions[stage], node, inputs)
        if not inside:
            stage = max([s + taken for s, taken in known], default=0)
            others[stage].append(node)
        stages[id(node)] = stage, inside
    place = {id(n): region for made in regions for region in made for n in region.nodes}
    needed = set(kept)
    for node in order:
        for x in node.inputs if id(node) not in same else ():
            original_id = id(same.get(id(x), x))
            if place.get(original_id) is not place.get(id(node)):
                needed.add(original_id)
    found: list[Node] = []
    first: dict[int, Region] = {}
    for nodes, made in zip(others, regions, strict=True):
        found += nodes
        for region in made:
            if sum(name == "matmul" for name, *_ in region.steps) > 1:
                first[id(region.nodes[0])] = region
            found += region.nodes
    return found, first, needed


def _taken(regions: list[Region], node: Node, inputs: Sequence[Any]) -> bool:
    """Whether the last region, or a new one, has taken a node."""
    if regions and regions[-1].take(node, inputs):
        return True
    fresh = Region([], [], {}, [], [])
    if not fresh.take(node, inputs):
        return False
    regions.append(fresh)
    return True
