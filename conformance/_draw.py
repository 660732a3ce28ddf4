"""Mutations of a package's own source, drawn by a seed: what ``python -m conformance mutate --random`` plants.

Each is an edit of one place in one file: a comparison turned or shifted, a constant doubled, a guard dropped, two
arguments exchanged, a copy, conjugate or escape dropped, an option ignored, an exception swallowed.
"""

from __future__ import annotations

import ast
import random
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

TURNED: dict[type[ast.cmpop], str] = {
    ast.Lt: "<=", ast.LtE: "<", ast.Gt: ">=", ast.GtE: ">", ast.Eq: "!=", ast.NotEq: "==", ast.Is: "is not",
    ast.IsNot: "is", ast.In: "not in", ast.NotIn: "in",
}  # fmt: skip
# Calls and methods whose result is like their argument: without them a result is shared, not conjugated, not escaped,
# not ordered.
METHODS = frozenset({"copy", "conj", "conjugate", "astype", "ravel", "strip", "real"})
WRAPPERS = frozenset(
    {"abs", "adjoint", "array", "asarray", "ascontiguousarray", "conj", "conjugate", "copy", "deepcopy", "escape",
     "frozenset", "hermitian", "max", "min", "quote", "reversed", "sort", "sorted", "str", "tuple"}
)  # fmt: skip


class Mutation(NamedTuple):
    """One edit: ``new`` in the place of the bytes ``start`` to ``end`` of a file."""

    kind: str
    file: str  # relative to the root
    where: str  # the function or class around it, dotted
    line: int
    last_line: int
    start: int
    end: int
    old: str
    new: str

    @property
    def name(self) -> str:
        """What the mutation is, without line numbers, so that a list of reasons outlives other edits."""
        return f"{self.file} {self.where}: {_flat(self.old)} -> {_flat(self.new)}"

    def applied(self, source: bytes) -> bytes:
        """The mutated file."""
        return source[: self.start] + self.new.encode() + source[self.end :]


def _flat(code: str) -> str:
    return " ".join(code.split())


class Source:
    """A parsed file and the place of each node in it."""

    def __init__(self, path: Path, root: Path) -> None:
        self.bytes = path.read_bytes()
        self.file = str(path.relative_to(root))
        self.tree = ast.parse(self.bytes)
        self.starts = [0]
        for line in self.bytes.splitlines(keepends=True):
            self.starts.append(self.starts[-1] + len(line))

    def place(self, node: ast.AST) -> tuple[int, int]:
        """First byte of a node, and the first behind it."""
        n: ast.expr = node  # type: ignore[assignment]  # expressions and statements have these attributes
        return self.starts[n.lineno - 1] + n.col_offset, self.starts[(n.end_lineno or 0) - 1] + (n.end_col_offset or 0)

    def text(self, node: ast.AST) -> str:
        """The source of a node."""
        start, end = self.place(node)
        return self.bytes[start:end].decode()

    def holds(self, node: ast.expr) -> bool:
        """Whether the source at the place of ``node`` is that of ``node``."""
        if not isinstance(node, (ast.Call, ast.FormattedValue)):
            return True
        if isinstance(node, ast.FormattedValue):
            return self.holds(node.value)
        try:
            return ast.dump(ast.parse(f"({self.text(node)})", mode="eval").body) == ast.dump(node)
        except (SyntaxError, UnicodeDecodeError):
            return False


Found = Iterator[tuple[ast.AST, str]]  # a node, and the source that replaces it


def _comparisons(source: Source, node: ast.AST) -> Found:
    if isinstance(node, ast.Compare) and len(node.ops) == 1:
        right = source.text(node.comparators[0])
        yield node, f"{source.text(node.left)} {TURNED[type(node.ops[0])]} {right}"
    elif isinstance(node, ast.BoolOp):
        joint = " or " if isinstance(node.op, ast.And) else " and "
        yield node, f"({joint.join(f'({source.text(value)})' for value in node.values)})"
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
        yield node, f"({source.text(node.operand)})"


def _constants(source: Source, node: ast.AST) -> Found:
    if isinstance(node, ast.Constant) and isinstance(node.value, bool):
        yield node, str(not node.value)
    elif isinstance(node, ast.Constant) and isinstance(node.value, (int, float)):
        yield node, f"({source.text(node)} + 1)" if isinstance(node.value, int) else f"(2 * {source.text(node)})"
        if node.value > 1:
            yield node, f"(2 * {source.text(node)})"
    elif isinstance(node, ast.BinOp) and isinstance(node.op, (ast.Add, ast.Sub)):
        turned = "-" if isinstance(node.op, ast.Add) else "+"
        yield node, f"({source.text(node.left)} {turned} {source.text(node.right)})"
    elif isinstance(node, ast.BinOp) and isinstance(node.op, (ast.Pow, ast.LShift)):
        yield node, f"(2 * ({source.text(node)}))"


def _guards(source: Source, node: ast.AST) -> Found:
    leaves = (ast.Raise, ast.Return, ast.Continue, ast.Break)
    if isinstance(node, ast.If) and not node.orelse and isinstance(node.body[-1], leaves):
        yield node, "pass"
    elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
        yield node, "pass"  # a check, a step of ordering, a counter


def _exchanges(source: Source, node: ast.AST) -> Found:
    if isinstance(node, ast.Call) and len(node.args) >= 2 and not any(isinstance(a, ast.Starred) for a in node.args):
        first, second = (source.text(a) for a in node.args[:2])
        if first != second:
            rest = [source.text(a) for a in node.args[2:]] + [source.text(k) for k in node.keywords]
            yield node, f"{source.text(node.func)}({', '.join([second, first, *rest])})"


def _drops(source: Source, node: ast.AST) -> Found:
    if not isinstance(node, ast.Call):
        return
    name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
    if isinstance(node.func, ast.Attribute) and name in METHODS and len(node.args) <= (name == "astype"):
        yield node, source.text(node.func.value)
    elif name in WRAPPERS and len(node.args) == 1 and not isinstance(node.args[0], (ast.Starred, ast.GeneratorExp)):
        yield node, f"({source.text(node.args[0])})"


def _options(source: Source, node: ast.AST) -> Found:
    if isinstance(node, ast.Call):
        for dropped in [k for k in node.keywords if k.arg is not None]:
            kept = [source.text(a) for a in node.args] + [source.text(k) for k in node.keywords if k is not dropped]
            yield node, f"{source.text(node.func)}({', '.join(kept)})"


def _swallowed(source: Source, node: ast.AST) -> Found:
    if isinstance(node, ast.Raise):
        yield node, "pass"
    elif isinstance(node, ast.ExceptHandler) and len(node.body) == 1 and not isinstance(node.body[0], ast.Pass):
        yield node.body[0], "pass"


KINDS: dict[str, Callable[[Source, ast.AST], Found]] = {
    "comparison": _comparisons, "constant": _constants, "guard dropped": _guards, "arguments exchanged": _exchanges,
    "copy, conjugate or escape dropped": _drops, "option ignored": _options, "exception swallowed": _swallowed,
}  # fmt: skip


def mutations(source: Source) -> Iterator[Mutation]:
    """Every mutation of a file. Docstrings, annotations, messages of exceptions and ``__all__`` have none."""
    yield from _inside(source, source.tree, "module")


def _inside(source: Source, node: ast.AST, where: str) -> Iterator[Mutation]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, (ast.arguments, ast.ImportFrom, ast.Import)) or _typing_only(child):
            continue
        if isinstance(child, ast.expr) and not isinstance(child, ast.JoinedStr) and not source.holds(child):
            continue  # inside an f-string, of whose parts Python 3.11 does not know the places
        inner = where
        if isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            inner = child.name if where == "module" else f"{where}.{child.name}"
        for kind, operator in KINDS.items():
            for place, new in operator(source, child):
                start, end = source.place(place)
                first, last = place.lineno, place.end_lineno  # type: ignore[attr-defined]
                yield Mutation(kind, source.file, inner, first, last, start, end, source.text(place), new)
        if isinstance(child, ast.AnnAssign):
            if child.value is not None:
                yield from _inside(source, ast.Expression(child.value), inner)
        elif not isinstance(child, ast.Raise):
            yield from _inside(source, child, inner)


def _typing_only(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and getattr(node.test, "id", "") == "TYPE_CHECKING"


def draw(files: Iterable[Path], root: Path, n: int, seed: int) -> list[Mutation]:
    """``n`` mutations of these files: a kind first, then a place, so that rare kinds are not lost among constants."""
    rng = random.Random(seed)
    by_kind: dict[str, list[Mutation]] = {kind: [] for kind in KINDS}
    for path in sorted(files):
        for mutation in mutations(Source(path, root)):
            by_kind[mutation.kind].append(mutation)
    drawn: list[Mutation] = []
    while len(drawn) < n and any(by_kind.values()):
        kind = rng.choice([kind for kind, left in by_kind.items() if left])
        mutation = by_kind[kind].pop(rng.randrange(len(by_kind[kind])))
        try:
            ast.parse(mutation.applied((root / mutation.file).read_bytes()))
        except SyntaxError:
            continue
        drawn.append(mutation)
    return drawn
