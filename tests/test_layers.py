"""Imports go down only: the rule of ARCHITECTURE.md, read from the source."""

import ast
import pathlib

ROOT = pathlib.Path(__file__).parents[1] / "trnpy"
LEVELS = {  # a module may import its own level and those below
    "_nki": 0, "_host": 0, "_conventions": 0, "_distribution": 0, "_faults": 0,
    "_blocks": 0, "_policy": 1, "_precision": 1, "_calibration": 1, "_engine": 2, "_report": 2, "_residency": 2,
    "_products": 2, "_numbers": 2, "_handles": 1, "_solve": 1, "_shapes": 0, "_probes": 6, "_matched": 1,
    "_matched_stacks": 1, "_store": 0, "_locks": 0, "_tuning": 1, "_timings": 6,
    "_decisions": 3, "_dispatch": 3, "_iterations": 3, "_names": 4, "_guards": 4, "_einsum": 4, "_contraction": 4,
    "_steps": 4, "_pairwise": 4, "_einsum_plan": 6, "_integer": 0, "_digits": 0,
    "_ops": 5, "linalg": 5, "sparse": 5,
    "_many_products": 5, "_multi_einsum": 6,
    "_hook": 6, "_patch": 6, "chem": 7, "_program": 7, "_doctor": 7, "_runner": 8, "__main__": 9, "": 9,
}  # fmt: skip
ONLY = {
    "nki": ("_nki/device.py",),
    "torch": ("_nki/device.py", "sparse/torch_bridge.py"),
    "pyscf": ("chem/pyscf_patch.py", "chem/pyscf_methods.py"),
}


def level(module):
    """The report's parts are all one level."""
    return LEVELS.get("_report" if module.startswith("_report") else module)


def imports(path):
    """Every dotted name imported anywhere in a file, type-checking blocks excepted."""
    tree = ast.parse(path.read_text())
    typing_only = {
        id(inner)
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and getattr(node.test, "id", "") == "TYPE_CHECKING"
        for inner in ast.walk(node)
    }
    for node in ast.walk(tree):
        if id(node) in typing_only:
            continue
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            yield from (
                f"{node.module}.{alias.name}" if node.module == "trnpy" else node.module for alias in node.names
            )


def test_imports_go_down():
    broken = []
    for path in ROOT.rglob("*.py"):
        me = path.relative_to(ROOT).parts[0].removesuffix(".py").replace("__init__", "")
        for name in imports(path):
            part = [*name.split("."), ""][1] if name.split(".")[0] == "trnpy" else None
            if part is not None and (level(part) or 0) > level(me):
                broken.append(f"{path.relative_to(ROOT)} imports {name}")
    assert not broken


def test_every_module_has_a_level():
    modules = {p.name.removesuffix(".py") for p in ROOT.iterdir() if p.suffix == ".py" or (p / "__init__.py").exists()}
    assert [m for m in modules - {"__init__"} if level(m) is None] == []


def test_heavy_packages_are_imported_in_one_file_only():
    broken = [
        f"{path.relative_to(ROOT)} imports {name}"
        for path in ROOT.rglob("*.py")
        for name in imports(path)
        if str(path.relative_to(ROOT)) not in ONLY.get(name.split(".")[0], (str(path.relative_to(ROOT)),))
        and "kernels" not in path.parts
    ]
    assert not broken


# The engine's own files: all others ask an engine, and do not know which one they have.
ENGINE = {"_engine", "_products", "_numbers", "_handles", "_matched", "_matched_stacks", "_tuning", "_nki"}
CLASSES = {
    "DeviceEngine", "HostEngine", "NullEngine", "Runtime", "SimulatorRuntime", "NeuronRuntime", "Buffer",
    "HostHandle", "Numbers", "Digits",
}  # fmt: skip


def which_engine(node):
    """What in ``node`` looks behind the interface of engines, or None."""
    match node:
        case ast.Name(id=name) | ast.alias(name=name) | ast.Attribute(attr=name) if name in CLASSES:
            return name
        case ast.Attribute(attr="runtime" | "facts" as name):
            return f".{name}"
        case ast.Subscript(value=ast.Attribute(attr="parts")):
            return ".parts[...]"
        case ast.Call(func=ast.Name(id="isinstance" | "hasattr" | "getattr" | "type" as name), args=[first, *_]):
            return f"{name}(engine)" if named_engine(first) else None
        case ast.Compare(left=ast.Attribute(value=value, attr="name")):
            return "engine.name ==" if named_engine(value) else None
    return None


def named_engine(node):
    return (isinstance(node, ast.Name) and node.id == "engine") or getattr(node, "attr", "") == "engine"


def test_nothing_above_an_engine_asks_which_one_it_is():
    found = [
        f"{path.relative_to(ROOT)}:{node.lineno}: {what}"
        for path in sorted(ROOT.rglob("*.py"))
        if path.relative_to(ROOT).parts[0].removesuffix(".py") not in ENGINE
        for node in ast.walk(ast.parse(path.read_text()))
        if (what := which_engine(node))
    ]
    assert found == []


def test_the_look_behind_an_engine_is_seen():
    for line in (
        "isinstance(engine, X)", "isinstance(x, DeviceEngine)", "hasattr(self.engine, 'x')", "engine.name == 'host'",
        "engine.runtime.put(a)", "e.facts.digits", "h.parts[0]", "from trnpy._nki.runtime import Buffer",
        "_engine.HostEngine()",
    ):  # fmt: skip
        assert any(which_engine(node) for node in ast.walk(ast.parse(line))), line
    for line in ("engine.kernel('matmul', a, b)", "product.parts(x)", "path.parts", "facts(outcomes)", "x.name == 'y'"):
        assert not any(which_engine(node) for node in ast.walk(ast.parse(line))), line
