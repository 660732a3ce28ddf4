"""Lint rules that the source of a kernel decides: the Python subset (parser.py), purity, values, called names."""

from __future__ import annotations

import ast
import math
import operator
import struct
from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType
from typing import Any

from nkisim.chip.dialects import DIALECTS, PARSER, Dialect
from nkisim.lint.calls import call_findings, host_findings
from nkisim.lint.parser import parser_findings
from nkisim.lint.rules import RULES, Finding
from nkisim.lint.scope import (
    Function,
    Module,
    Violation,
    body_nodes,
    dotted,
    is_jit,
    local_names,
    loop_bodies,
)
from nkisim.lint.tree import call_tree

INT32 = (-(2**31), 2**31 - 1)
FLOAT32_MAX = 3.4028234663852886e38
FLOAT32_TINY = 1.1754943508222875e-38  # smallest normal number; the documentation guarantees nothing for smaller ones
FLOAT32_DIGITS = 9  # decimal digits that identify every float32
HOST_LIBRARIES = ("numpy", "cmath", "torch", "jax", "scipy", "torch_neuronx", "torch_xla")
IMPURE = ("os.environ", "os.getenv", "time", "random", "datetime", "secrets", "uuid", "builtins.open")
CONVERSIONS = ("int", "float", "str", "bool", "tuple", "min", "max")
BASES = ("NKIObject", "Enum")
LARGEST_POWER = 1024  # a literal with a larger power or shift exceeds every range and is not computed
ARITHMETIC: Mapping[type[ast.operator], Callable[[Any, Any], Any]] = MappingProxyType(
    {
        ast.Add: operator.add,
        ast.Sub: operator.sub,
        ast.Mult: operator.mul,
        ast.Pow: lambda a, b: a**b if abs(b) < LARGEST_POWER else math.inf,
        ast.LShift: lambda a, b: a << b if b < LARGEST_POWER else math.inf,
    }
)


def lint_source(
    text: str, file: str, kernel: str | None = None, nki: tuple[Dialect, ...] = DIALECTS
) -> tuple[Finding, ...]:
    """All findings in the source text, ordered by line.

    ``kernel`` limits the check to one function and the functions it calls, in this file and in files that ``file``
    imports from. If ``kernel`` is not given, every function decorated with nki.jit is a kernel. Raises ValueError if
    there is no kernel. Findings that hold for none of the dialects ``nki`` are omitted.
    """
    try:
        tree = ast.parse(text)
    except SyntaxError as error:
        return (Finding(file, error.lineno or 1, 1, "E", f"Python cannot parse this: {error.msg}"),)
    calls = call_tree(tree, file, kernel)
    if not calls.kernels:
        expected = f"function {kernel!r}" if kernel else "function decorated with nki.jit"
        raise ValueError(f"{file}: no {expected}; a kernel is a module-level function")
    found: set[Finding] = set()
    for reached in calls.reached.values():
        module, node = reached.module, reached.node
        function = Function(reached.place[1], node, reached.kernel, loop_bodies(node, module))
        for check in CHECKS:
            found |= {_finding(reached.place[0], violation) for violation in check(function, module)}
    for reached in calls.recursive():
        message = f"{reached.place[1]} calls itself; the compiler inlines every call and cannot recurse"
        found.add(_finding(reached.place[0], (reached.node, 1, "E", message, (PARSER,))))
    own = calls.reached[file, calls.kernels[0]].module
    found |= {_finding(file, v) for v in (*_imports(tree), *host_findings(tree, own, calls.kernels))}
    return tuple(sorted(f for f in found if set(f.dialects) & set(nki)))


def _finding(file: str, violation: Violation) -> Finding:
    node, rule, severity, message, *dialects = violation
    holds = dialects[0] if dialects else RULES[rule].dialects
    return Finding(file, getattr(node, "lineno", 1), rule, severity, message, holds)


def _signature(function: Function, module: Module) -> Iterator[Violation]:
    """Rule 2: identity tests, and defaults that are lists."""
    for node in body_nodes(function.node):
        if isinstance(node, ast.Compare) and any(isinstance(op, ast.Is | ast.IsNot) for op in node.ops):
            sentence = "'is' tests identity, which the compiler does not have; compare with == or !="
            yield node, 2, "E", sentence, (PARSER,)
    arguments = function.node.args
    if function.kernel:
        for default in (*arguments.defaults, *(d for d in arguments.kw_defaults if d)):
            if isinstance(default, ast.List | ast.Dict | ast.Set):
                yield default, 2, "E", f"{function.name} has a list or dict default; kernels take tuples"
        for argument in arguments.args:
            if argument.annotation is not None and ast.unparse(argument.annotation).split("[")[0] in ("list", "List"):
                yield argument, 2, "E", f"{function.name} takes the list {argument.arg!r}; kernels take tuples"


def _host_library(function: Function, module: Module) -> Iterator[Violation]:
    """Rule 3: names of NumPy, math and frameworks, which the compiler cannot resolve."""
    inner: set[int] = set()
    for node in body_nodes(function.node):
        if not isinstance(node, ast.Attribute | ast.Name) or id(node) in inner:
            continue
        inner |= {id(n) for n in ast.walk(node)}
        name = dotted(node, module)
        if name and name.startswith("math."):
            yield (
                node,
                3,
                "W",
                f"{name} inside the call tree of a kernel: the documentation has examples, but no rule allows it",
            )
        elif name and name.split(".")[0] in HOST_LIBRARIES and isinstance(node.ctx, ast.Load):
            yield node, 3, "E", f"{name} inside the call tree of a kernel; compute it at module level as a plain number"


def _outputs(function: Function, module: Module) -> Iterator[Violation]:
    """Rule 15: every returned tensor is a buffer of the launch, so no tensor can be returned twice."""
    for node in body_nodes(function.node):
        if function.kernel and isinstance(node, ast.Return) and isinstance(node.value, ast.Tuple):
            names = [n.id for n in node.value.elts if isinstance(n, ast.Name)]
            twice = next((n for n in names if names.count(n) > 1), None)
            if twice:
                yield node, 15, "E", f"{twice} is returned twice; outputs are separate buffers"


def _imports(tree: ast.Module) -> Iterator[Violation]:
    for node in ast.walk(tree):
        modules = (
            [n.name for n in node.names]
            if isinstance(node, ast.Import)
            else [node.module or ""]
            if isinstance(node, ast.ImportFrom)
            else []
        )
        if any(m.split(".")[0] == "neuronxcc" for m in modules):
            yield node, 3, "E", "neuronxcc.nki is the legacy dialect, a compile error since 0.4; import nki"


def _purity(function: Function, module: Module) -> Iterator[Violation]:
    """Rule 4: compiled kernels are cached by their arguments; other values that they read become stale."""
    local = local_names(function.node)
    for node in body_nodes(function.node):
        if isinstance(node, ast.Attribute | ast.Name) and isinstance(node.ctx, ast.Load):
            name = dotted(node, module)
            source = next((i for i in IMPURE if name == i or (name or "").startswith(i + ".")), None)
            if source and not (isinstance(node, ast.Name) and name == source):
                yield node, 4, "E", f"{name} is not an argument: a cached kernel keeps its first value"
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load) and node.id not in local:
            values = module.assigned.get(node.id, [])
            if len(values) > 1:
                yield node, 4, "E", f"global {node.id!r} is assigned more than once; pass it as an argument"
            elif values and not _is_constant(values[0], module):
                yield node, 4, "E", f"global {node.id!r} is not a plain constant; pass it as an argument"


def _is_constant(value: ast.expr, module: Module) -> bool:
    if isinstance(value, ast.Constant):
        return True
    if isinstance(value, ast.Tuple):
        return all(_is_constant(v, module) for v in value.elts)
    if isinstance(value, ast.UnaryOp):
        return _is_constant(value.operand, module)
    if isinstance(value, ast.BinOp):
        return _is_constant(value.left, module) and _is_constant(value.right, module)
    if isinstance(value, ast.Name):
        known = module.assigned.get(value.id, [])
        return value.id in module.aliases or (len(known) == 1 and _is_constant(known[0], module))
    if isinstance(value, ast.Call):  # a number after the module is loaded
        return isinstance(value.func, ast.Name) and value.func.id in CONVERSIONS
    name = dotted(value, module) if isinstance(value, ast.Attribute) else None
    return name is not None and name.split(".")[0] in ("nki", "math")


def _nested_kernels(function: Function, module: Module) -> Iterator[Violation]:
    """Rule 5: only the outermost function is compiled. Also: instructions should be called with keywords."""
    for node in body_nodes(function.node):
        if not isinstance(node, ast.Call):
            continue
        if isinstance(node.func, ast.Name) and node.func.id in module.functions:
            callee = module.functions[node.func.id]
            if any(is_jit(d, module) for d in callee.decorator_list):
                yield node, 5, "E", f"{node.func.id} is itself decorated with nki.jit; call an undecorated function"
        name = dotted(node.func, module) or ""
        if name.startswith("nki.isa.") and len(node.args) > 1 and not name.startswith("nki.isa.register_"):
            yield node, 5, "W", f"{name.split('.')[-1]} by position: its parameters have moved, name them"


def _values(function: Function, module: Module) -> Iterator[Violation]:
    """Rule 8: integers are int32, floats are float32, and classes are NKIObjects."""
    inner: set[int] = set()
    for node in body_nodes(function.node):
        if isinstance(node, ast.Name) and node.id in module.classes and isinstance(node.ctx, ast.Load):
            bases = [ast.unparse(b).split(".")[-1] for b in module.classes[node.id].bases]
            if len(bases) != 1 or bases[0] not in BASES:
                yield node, 8, "E", f"class {node.id} must inherit from NKIObject and nothing else"
        elif isinstance(node, ast.expr) and id(node) not in inner:
            value = _number(node)
            if value is not None:
                inner |= {id(n) for n in ast.walk(node)}
                yield from _number_fits(node, value)


def _number(node: ast.expr) -> int | float | None:
    """The value of an arithmetic expression of literals; None for other expressions."""
    if isinstance(node, ast.Constant) and type(node.value) in (int, float):
        return node.value  # type: ignore[return-value]
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        value = _number(node.operand)
        return None if value is None else -value
    if isinstance(node, ast.BinOp) and type(node.op) in ARITHMETIC:
        left, right = _number(node.left), _number(node.right)
        if left is None or right is None:
            return None
        try:
            value = ARITHMETIC[type(node.op)](left, right)
            return value if isinstance(value, int | float) else None
        except (ArithmeticError, TypeError, ValueError):
            return None
    return None


def _number_fits(node: ast.expr, value: int | float) -> Iterator[Violation]:
    if isinstance(value, int):
        if not INT32[0] <= value <= INT32[1]:
            yield node, 8, "E", f"integer {value} does not fit int32, the only integer of the kernel language"
        return
    if not math.isfinite(value):
        return
    if abs(value) > FLOAT32_MAX:
        yield node, 8, "E", f"{value!r} overflows float32"
    elif 0 < abs(value) < FLOAT32_TINY:
        yield node, 8, "W", f"{value!r} is below the smallest normal float32"
    elif isinstance(node, ast.Constant):
        digits = repr(value).split("e")[0].replace(".", "").replace("-", "").strip("0")
        if len(digits) > FLOAT32_DIGITS and struct.unpack("f", struct.pack("f", value))[0] != value:
            yield node, 8, "W", f"{value!r} has more digits than float32 keeps"


CHECKS: tuple[Callable[[Function, Module], Iterator[Violation]], ...] = (
    parser_findings, _signature, _host_library, _purity, _nested_kernels, _values, _outputs, call_findings
)  # fmt: skip
