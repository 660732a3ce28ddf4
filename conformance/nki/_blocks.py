"""Code blocks of documentation pages and docstrings, and how a block becomes a kernel that can be launched."""

from __future__ import annotations

import ast
import builtins
import re
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

HEADER = (
    "import numpy as np\nimport nki\nimport nki.isa as nisa\nimport nki.language as nl\n"
    "from conformance.nki._checks import documented_equal, documented_shape\n"
)
KNOWN = {"np", "nki", "nisa", "nl", "documented_equal", "documented_shape", *dir(builtins)}
BLOCK = re.compile(r"^(\s*)\.\. code-block:: python\s*$")
OWNER = re.compile(r"^\s*(?:def|class) (\w+)")
# A statement and the shape that a comment claims: "t.permute((0, 2, 1))  # shape becomes (128, 8, 4)".
SHAPE = re.compile(r"^(\s*(?:\w+ = )?)(\S.*?)\s+# shape (?:becomes|stays) (\([\d, ]+\)).*$", re.MULTILINE)
RESULT_SHAPE = re.compile(r"^(\s*)(\S.*?)\n\s*# Result shape: (\([\d, ]+\))", re.MULTILINE)
HAS_SHAPE = re.compile(r"^(\s*)# (\w+) has shape (\([\d, ]+\)).*$", re.MULTILINE)


@dataclass(frozen=True)
class Block:
    """One code block: the definition whose docstring contains it, and its first line."""

    file: Path
    line: int
    owner: str
    text: str

    @property
    def defines(self) -> str | None:
        """The name of the kernel function, if the block is one."""
        match = re.search(r"^def (\w+)\(", self.text, re.MULTILINE)
        return match.group(1) if match else None


def blocks(path: Path) -> Iterator[Block]:
    lines = path.read_text().split("\n")
    owner, at = path.stem, 0
    while at < len(lines):
        if path.suffix == ".py" and (named := OWNER.match(lines[at])):
            owner = named.group(1)
        start = BLOCK.match(lines[at])
        at += 1
        if not start:
            continue
        first, indent = at, len(start.group(1))
        while at < len(lines) and (not lines[at].strip() or len(lines[at]) - len(lines[at].lstrip()) > indent):
            at += 1
        text = textwrap.dedent("\n".join(lines[first:at])).strip("\n")
        text = re.sub(r'"""\s*$', "", text)  # a block that ends the docstring
        yield Block(path, first + 1, owner, text)


def parsed(text: str) -> ast.Module | None:
    try:
        return ast.parse(text)
    except SyntaxError:
        return None


def free_names(text: str) -> list[str]:
    """Names that a block uses without assigning them: its inputs."""
    tree = ast.parse(text)
    bound = {n.id for n in ast.walk(tree) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}
    bound |= {a.arg for a in ast.walk(tree) if isinstance(a, ast.arg)}
    bound |= {f.name for f in ast.walk(tree) if isinstance(f, ast.FunctionDef)}
    bound |= {(n.asname or n.name).split(".")[0] for i in ast.walk(tree)
              if isinstance(i, ast.Import | ast.ImportFrom) for n in i.names}  # fmt: skip
    used = [n.id for n in ast.walk(tree) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Load)]
    return list(dict.fromkeys(name for name in used if name not in bound and name not in KNOWN))


def claims(text: str) -> int:
    """The number of assertions and shapes that the block claims."""
    return text.count("assert ") + sum(len(p.findall(text)) for p in (SHAPE, RESULT_SHAPE, HAS_SHAPE))


def as_kernel(text: str, parameters: Sequence[str]) -> str:
    """A file whose kernel ``snippet`` is the block; its claims on values and shapes are checked."""
    text = RESULT_SHAPE.sub(r"\1documented_shape(\2, \3)", text)
    text = SHAPE.sub(r"\1documented_shape(\2, \3)", text)
    text = HAS_SHAPE.sub(r"\1documented_shape(\2, \3)", text)
    tree = _Equal().visit(ast.parse(text))
    tree.body = [n for n in tree.body if not isinstance(n, ast.Import | ast.ImportFrom)]
    body = textwrap.indent(ast.unparse(ast.fix_missing_locations(tree)), "    ")
    return f"{HEADER}\n\n@nki.jit\ndef snippet({', '.join(parameters)}):\n{body}\n"


class _Equal(ast.NodeTransformer):
    """``assert nl.equal(a, b)`` compares values on the device, where Python cannot see them: our check reads them."""

    def visit_Assert(self, node: ast.Assert) -> ast.stmt:
        test = node.test
        if isinstance(test, ast.Call) and ast.unparse(test.func) == "nl.equal":
            call = ast.Call(ast.Name("documented_equal", ast.Load()), test.args, test.keywords)
            return ast.copy_location(ast.Expr(call), node)
        return node
