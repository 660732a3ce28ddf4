"""Refusals of NKI 0.6's parsing front end, found in the kernel's source and reported with the compiler's messages.

The messages are from the open source of the front end (leanprover/KLR: interop/klr/gather.cpp, KLR/NKI/Simplify.lean,
KLR/Trace) and from users of NKI 0.5 and 0.6 who published them. A tracing front end accepts all of these forms.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType

from nkisim.chip.dialects import PARSER
from nkisim.lint.scope import LOOPS, Function, Module, Violation, body_nodes, dotted, is_jit, local_names

SUPPORTED_STATEMENT = "unsupported statement"
EXPRESSION = "unsupported expression"
INNER = "NKI does not support inner function definitions. Move function definition outside this function."
NO_SUCH_BUILTIN = "failed to resolve name"
TWO_ARGUMENTS = ("min", "max")  # the front end's own versions accept exactly two integers
BUILTINS = (
    "enumerate", "zip", "sum", "sorted", "reversed", "map", "filter", "any", "all", "set", "frozenset", "iter", "next",
    "getattr", "setattr", "hasattr", "vars", "dir", "id", "hash", "callable", "open", "super",
)  # fmt: skip

NODES: Mapping[type[ast.AST], str] = MappingProxyType(
    {
        ast.ListComp: f"{EXPRESSION}: a list comprehension",
        ast.SetComp: f"{EXPRESSION}: a set comprehension",
        ast.DictComp: f"{EXPRESSION}: a dict comprehension",
        ast.GeneratorExp: f"{EXPRESSION}: a generator",
        ast.Lambda: f"{EXPRESSION}: a lambda",
        ast.Yield: f"{EXPRESSION}: yield",
        ast.YieldFrom: f"{EXPRESSION}: yield from",
        ast.Await: f"{EXPRESSION}: await",
        ast.NamedExpr: f"{EXPRESSION}: an assignment by :=",
        ast.Set: f"{EXPRESSION}: a set",
        ast.ClassDef: "NKI does not support 'class' definitions within a function. Move class definition outside this "
        "function.",
        ast.Delete: "NKI does not support 'del' statements at this time.",
        ast.Match: "NKI does not support 'match' statements at this time. Use 'if/elif' or dict lookups instead.",
        ast.Raise: "NKI does not support 'raise' statements. Use 'if/else' control flow within kernels, or 'assert' "
        "for fatal errors.",
        ast.Try: f"{SUPPORTED_STATEMENT}: try",
        ast.Global: f"{SUPPORTED_STATEMENT}: global",
        ast.Nonlocal: f"{SUPPORTED_STATEMENT}: nonlocal",
        ast.AsyncFunctionDef: "NKI does not support 'async'. Use only synchronous functions within kernels.",
        ast.Starred: "tuple expansion is not supported",
    }
)


def parser_findings(function: Function, module: Module) -> Iterator[Violation]:
    """Everything that the parser refuses in one function of the call tree."""
    for node, message in _refusals(function, module):
        yield node, 1, "E", message, (PARSER,)


def _refusals(function: Function, module: Module) -> Iterator[tuple[ast.AST, str]]:
    yield from _signature(function.node, module)
    dictionaries = _named(function, module, _is_dictionary)
    strings = _named(function, module, _is_string) | _said_to_be_strings(function.node)
    negatives = _named(function, module, _is_negative)
    for node in body_nodes(function.node):
        if type(node) in NODES:
            yield node, NODES[type(node)]
        elif isinstance(node, ast.Import | ast.ImportFrom):
            name = node.names[0].asname or node.names[0].name
            yield node, f"{NO_SUCH_BUILTIN} '{name}': names imported inside a function are not known"
        elif isinstance(node, ast.FunctionDef):
            if node.name not in function.loop_bodies:
                yield node, INNER
            yield from _signature(node, module)
        elif isinstance(node, ast.With) and not _is_no_reorder(node, module):
            yield node, "NKI does not support 'with' statements at this time."
        elif isinstance(node, ast.For | ast.While):
            yield from _loop(node, dictionaries)
        elif isinstance(node, ast.Call):
            yield from _call(node, function, module)
        elif isinstance(node, ast.Dict):
            if any(not (isinstance(k, ast.Constant) and isinstance(k.value, str)) for k in node.keys):
                yield node, "expecting string: a dictionary's keys are string literals"
        elif isinstance(node, ast.Subscript):
            if _is_string(node.value) or (isinstance(node.value, ast.Name) and node.value.id in strings):
                yield node, "string subscript not implemented"
        elif isinstance(node, ast.FormattedValue):
            yield from _format(node)
        elif isinstance(node, ast.Compare):
            yield from _membership(node, module)
        elif isinstance(node, ast.BinOp):
            yield from _operator(node, node.op, node.right, negatives)
        elif isinstance(node, ast.AugAssign):
            yield from _operator(node, node.op, node.value, negatives)
        elif isinstance(node, ast.Assign):
            yield from _targets(node)
        elif isinstance(node, ast.Constant) and isinstance(node.value, bytes | complex):
            yield node, f"{EXPRESSION}: a value of {type(node.value).__name__}"


def _signature(node: ast.FunctionDef, module: Module) -> Iterator[tuple[ast.AST, str]]:
    if node.args.vararg:
        yield node, "varargs are not supported in NKI"
    if node.args.kwarg:
        yield node, "variable keyword arguments are not supported in NKI"
    if node.args.kwonlyargs:
        yield node, f"keyword-only arguments are not supported in NKI: {node.name}"
    for decorator in node.decorator_list:
        if not is_jit(decorator, module):
            yield decorator, f"unsupported decorator {ast.unparse(decorator)}"


def _loop(node: ast.For | ast.While, dictionaries: set[str]) -> Iterator[tuple[ast.AST, str]]:
    word = "for" if isinstance(node, ast.For) else "while"
    if node.orelse:
        yield node, f"{word}-orelse is not supported in NKI"
    if isinstance(node, ast.For):
        if not isinstance(node.target, ast.Name):
            yield node, "expecting simple variable: unpack in the loop's first statement"
        if _is_dictionary(node.iter) or (isinstance(node.iter, ast.Name) and node.iter.id in dictionaries):
            yield node, "not an iterable object: a dictionary; iterate its keys()"


def _call(node: ast.Call, function: Function, module: Module) -> Iterator[tuple[ast.AST, str]]:
    if any(k.arg is None for k in node.keywords):
        yield node, "keyword expansion is not supported"
    if dotted(node.func, module) in LOOPS:
        for argument in (*node.args, *(k.value for k in node.keywords)):
            if isinstance(argument, ast.Call) and (dotted(argument.func, module) or "").endswith("partial"):
                yield argument, "inner functions can only be used as fori_loop/while_loop body arguments: not a partial"
    if not isinstance(node.func, ast.Name):
        return
    name = node.func.id
    if name in function.loop_bodies:
        yield node, "inner functions can only be used as fori_loop/while_loop body arguments"
    if name in module.functions or name in module.aliases:
        return
    if name in TWO_ARGUMENTS and (len(node.args) != 2 or node.keywords):
        yield node, f"invalid arguments: {name} takes two integers"
    elif name in BUILTINS:
        yield node, f"{NO_SUCH_BUILTIN} '{name}'"


def _format(node: ast.FormattedValue) -> Iterator[tuple[ast.AST, str]]:
    if node.format_spec is not None:
        yield node, "unsupported format specifier in an f-string"
    elif node.conversion not in (-1, ord("s"), ord("a"), ord("r")):
        yield node, f"unsupported conversion specifier {node.conversion}"


def _membership(node: ast.Compare, module: Module) -> Iterator[tuple[ast.AST, str]]:
    for op, right in zip(node.ops, node.comparators, strict=True):
        if isinstance(op, ast.In | ast.NotIn) and _is_frozen(right, module):
            yield node, "the 'in' operator is not supported in NKI for a frozenset"


def _operator(node: ast.AST, op: ast.operator, right: ast.expr, negatives: set[str]) -> Iterator[tuple[ast.AST, str]]:
    """Products of arrays, and division that rounds differently from Python's."""
    if isinstance(op, ast.MatMult):
        yield node, "the matmul operator is not supported in NKI"
    if isinstance(op, ast.FloorDiv | ast.Mod) and (
        _is_negative(right) or (isinstance(right, ast.Name) and right.id in negatives)
    ):
        word = "//" if isinstance(op, ast.FloorDiv) else "%"
        yield node, f"{word} by a negative number is Euclidean here, Python rounds down: the two differ"


def _is_negative(node: ast.expr) -> bool:
    """Whether the source shows a minus sign."""
    return isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub)


def _is_string(node: ast.expr) -> bool:
    return isinstance(node, ast.JoinedStr) or (isinstance(node, ast.Constant) and isinstance(node.value, str))


def _is_dictionary(node: ast.expr) -> bool:
    called = isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "dict"
    return called or isinstance(node, ast.Dict)


def _is_frozen(node: ast.expr, module: Module) -> bool:
    values = module.assigned.get(node.id, []) if isinstance(node, ast.Name) else [node]
    return any(isinstance(v, ast.Call) and isinstance(v.func, ast.Name) and v.func.id == "frozenset" for v in values)


def _targets(node: ast.Assign) -> Iterator[tuple[ast.AST, str]]:
    """A target that is a tuple holds only plain names, or such tuples."""
    for target in node.targets:
        if isinstance(target, ast.Tuple | ast.List):
            for part in ast.walk(target):
                if isinstance(part, ast.Subscript | ast.Attribute):
                    yield node, "expecting pattern: a tuple target holds plain names only"
                    break


def _is_no_reorder(node: ast.With, module: Module) -> bool:
    calls = [item.context_expr for item in node.items]
    return all(isinstance(c, ast.Call) and dotted(c.func, module) == "nki.language.no_reorder" for c in calls)


def _assigned(node: ast.FunctionDef) -> Iterator[tuple[str, ast.expr]]:
    for inner in body_nodes(node):
        if isinstance(inner, ast.Assign):
            for target in inner.targets:
                if isinstance(target, ast.Name):
                    yield target.id, inner.value


def _defaults(node: ast.FunctionDef) -> Iterator[tuple[str, ast.expr]]:
    """Parameters and their defaults, of the function and of its loop bodies."""
    for inner in (node, *body_nodes(node)):
        if isinstance(inner, ast.FunctionDef):
            names = [*inner.args.posonlyargs, *inner.args.args]
            for parameter, value in zip(names[::-1], inner.args.defaults[::-1], strict=False):
                yield parameter.arg, value


def _said_to_be_strings(node: ast.FunctionDef) -> set[str]:
    """Parameters with the annotation str."""
    parameters = (*node.args.posonlyargs, *node.args.args)
    return {a.arg for a in parameters if isinstance(a.annotation, ast.Name) and a.annotation.id == "str"}


def _named(function: Function, module: Module, kind: Callable[[ast.expr], bool]) -> set[str]:
    """Names with a value of this kind: assigned in the function, a parameter's default, or the value of a global."""
    local = local_names(function.node)
    known = [(name, value) for name, values in module.assigned.items() if name not in local for value in values]
    return {name for name, value in (*known, *_defaults(function.node), *_assigned(function.node)) if kind(value)}
