"""A file as the source rules see it: its imports, its functions, and the values of its names."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

from nkisim.chip.dialects import Dialect
from nkisim.lint.rules import Severity

# Node, rule, severity, sentence, and the dialects if the finding does not hold for all dialects of the rule.
Violation: TypeAlias = tuple[ast.AST, int, Severity, str] | tuple[ast.AST, int, Severity, str, tuple[Dialect, ...]]

JIT = ("nki.jit", "nki.compiler.jit", "torch_neuronx.nki_jit", "neuronxcc.nki.jit")
LOOPS = ("nki.language.fori_loop", "nki.language.while_loop")


@dataclass(frozen=True, slots=True)
class Module:
    """The names a file binds at its top level."""

    aliases: Mapping[str, str]  # local name -> dotted import
    functions: Mapping[str, ast.FunctionDef]
    classes: Mapping[str, ast.ClassDef]
    assigned: Mapping[str, list[ast.expr]]  # all values assigned to a global
    links: Mapping[str, tuple[Path, str | None]]  # imported name -> file, and the name in it; None for a module


@dataclass(frozen=True, slots=True)
class Function:
    """One function of a kernel's call tree."""

    name: str
    node: ast.FunctionDef
    kernel: bool  # whether it is the outermost one: its parameters are the arguments of the launch
    loop_bodies: Mapping[str, ast.FunctionDef]  # nested functions given to fori_loop or while_loop


def dotted(node: ast.expr, module: Module) -> str | None:
    """``nisa.dma_copy`` -> ``nki.isa.dma_copy``, from the file's imports; None if it is not a plain name."""
    parts: list[str] = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    if not isinstance(node, ast.Name):
        return None
    parts.append(module.aliases.get(node.id, node.id))
    return ".".join(reversed(parts))


def is_jit(decorator: ast.expr, module: Module) -> bool:
    call = decorator.func if isinstance(decorator, ast.Call) else decorator
    return dotted(call, module) in JIT


def body_nodes(function: ast.FunctionDef) -> Iterator[ast.AST]:
    """Every node of the body; the decorators, defaults and annotations of the signature are host code."""
    for statement in function.body:
        yield from ast.walk(statement)


def local_names(function: ast.FunctionDef) -> set[str]:
    """Parameters and names assigned anywhere in the function, including nested functions."""
    parameters = {a.arg for a in ast.walk(function) if isinstance(a, ast.arg)}
    return parameters | {n.id for n in body_nodes(function) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}


def loop_bodies(function: ast.FunctionDef, module: Module) -> dict[str, ast.FunctionDef]:
    """Nested functions that are passed by name to a device loop."""
    nested = {n.name: n for n in body_nodes(function) if isinstance(n, ast.FunctionDef)}
    passed = {
        argument.id
        for node in body_nodes(function)
        if isinstance(node, ast.Call) and dotted(node.func, module) in LOOPS
        for argument in (*node.args, *(k.value for k in node.keywords))
        if isinstance(argument, ast.Name)
    }
    return {name: node for name, node in nested.items() if name in passed}
