"""The call tree of a kernel: every function that it reaches, in its own file and in other files."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeAlias

from nkisim.lint.scope import Module, body_nodes, is_jit, local_names

Place: TypeAlias = tuple[str, str]  # file and function
NKI = "nki"  # modules of the language itself are not in the tree
HIGHEST = 6  # folders above a file that are searched for an absolute import


@dataclass(frozen=True, slots=True)
class Reached:
    """One function of the tree, and its file."""

    place: Place
    module: Module
    node: ast.FunctionDef
    kernel: bool


@dataclass(slots=True)
class CallTree:
    """The functions that the kernels of one file reach, and the references between them."""

    kernels: tuple[str, ...]
    reached: dict[Place, Reached] = field(default_factory=dict)
    uses: dict[Place, list[Place]] = field(default_factory=dict)

    def recursive(self) -> Iterator[Reached]:
        """Recursive functions, direct or through others."""
        for place, found in self.reached.items():
            seen: set[Place] = set()
            waiting = list(self.uses[place])
            while waiting:
                called = waiting.pop()
                if called not in seen:
                    seen.add(called)
                    waiting += self.uses[called]
            if place in seen:
                yield found


def call_tree(tree: ast.Module, file: str, kernel: str | None) -> CallTree:
    """The tree below one kernel, or below every nki.jit function of the file."""
    modules = {file: module_of(tree, Path(file))}
    own = modules[file]
    kernels = (
        tuple(n for n in (kernel,) if n in own.functions)
        if kernel
        else tuple(n for n, f in own.functions.items() if any(is_jit(d, own) for d in f.decorator_list))
    )
    result = CallTree(kernels)
    waiting: list[Place] = [(file, name) for name in kernels]
    while waiting:
        place = waiting.pop()
        if place in result.reached:
            continue
        module = modules[place[0]]
        node = module.functions[place[1]]
        result.reached[place] = Reached(place, module, node, place[0] == file and place[1] in kernels)
        result.uses[place] = list(_references(node, module, place[0], modules))
        waiting += result.uses[place]
    return result


def module_of(tree: ast.Module, path: Path) -> Module:
    """The names that a file binds at its top level, and the files of its imports."""
    aliases: dict[str, str] = {}
    links: dict[str, tuple[Path, str | None]] = {}
    assigned: dict[str, list[ast.expr]] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for name in node.names:
                bound = name.asname or name.name.split(".")[0]
                aliases[bound] = name.name if name.asname else bound
                if target := _file(path, name.name, 0):
                    links[bound] = target, None
        elif isinstance(node, ast.ImportFrom):
            for name in node.names:
                bound = name.asname or name.name
                aliases[bound] = f"{node.module or ''}.{name.name}"
                dotted = ".".join(filter(None, (node.module, name.name)))
                if target := _file(path, node.module or "", node.level):
                    links[bound] = target, name.name
                elif target := _file(path, dotted, node.level):
                    links[bound] = target, None
    for statement in tree.body:
        if isinstance(statement, ast.Assign | ast.AnnAssign | ast.AugAssign) and statement.value is not None:
            targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
            for place in targets:
                if isinstance(place, ast.Name):
                    assigned.setdefault(place.id, []).append(statement.value)
    return Module(
        aliases,
        {n.name: n for n in tree.body if isinstance(n, ast.FunctionDef)},
        {n.name: n for n in tree.body if isinstance(n, ast.ClassDef)},
        assigned,
        links,
    )


def _references(node: ast.FunctionDef, module: Module, file: str, modules: dict[str, Module]) -> Iterator[Place]:
    """Functions that this one calls or passes on, in its own file or in a linked one."""
    local = local_names(node)
    for n in body_nodes(node):
        if isinstance(n, ast.Name) and n.id not in local:
            if n.id in module.functions:
                yield file, n.id
            elif n.id in module.links and module.links[n.id][1] is not None:
                yield from _linked(module.links[n.id][0], str(module.links[n.id][1]), modules)
        elif isinstance(n, ast.Attribute) and isinstance(n.value, ast.Name) and n.value.id not in local:
            link = module.links.get(n.value.id)
            if link is not None and link[1] is None:
                yield from _linked(link[0], n.attr, modules)


def _linked(path: Path, name: str, modules: dict[str, Module]) -> Iterator[Place]:
    file = str(path)
    if file not in modules:
        try:
            modules[file] = module_of(ast.parse(path.read_text()), path)
        except (SyntaxError, UnicodeDecodeError):
            modules[file] = Module({}, {}, {}, {}, {})  # when this file is imported, Python reports the error
    if name in modules[file].functions:
        yield file, name


def _file(path: Path, module: str, level: int) -> Path | None:
    """The source of an imported module, beside the file or in a folder above it."""
    if not path.is_file() or (level == 0 and module.partition(".")[0] in (NKI, "")):
        return None
    parts = [p for p in module.split(".") if p]
    folders = list(path.resolve().parents)[:HIGHEST]
    for folder in folders[level - 1 : level] if level else folders:
        target = folder.joinpath(*parts)
        if parts and target.with_suffix(".py").is_file():
            return target.with_suffix(".py")
    return None
