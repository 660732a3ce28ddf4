"""A folder imports only folders below it, and no modules import each other in a circle, types included."""

import ast
import graphlib
import pathlib

ROOT = pathlib.Path(__file__).parents[1] / "trnpy"
SIMULATOR = ROOT.parent / "nkisim"  # knows nothing of trnpy, and is below all of its folders
# From the bottom to the top; "" stands for trnpy/__init__.py, __main__.py and whatever else lies beside the folders.
LAYERS = (
    "nkisim", "_base", "_nki", "_settings", "_engine", "_report", "_call", "_patch", "_einsum", "linalg", "sparse",
    "_host", "xp", "dist", "chem", "_cli", "",
)  # fmt: skip
MOST_ROOMS = 18  # folders and modules at the top of the package
ONLY = {
    "nki": ("_nki/device.py",),
    "torch": ("_nki/device.py", "sparse/torch_bridge.py"),
    "mpi4py": ("dist/_mpi.py",),
    "pyscf": (
        "chem/pyscf_patch.py",
        "chem/pyscf_methods.py",
        "chem/pyscf_ranks.py",
        "chem/pyscf_fitted.py",
        "chem/pyscf_ladder.py",
        "chem/pyscf_cycles.py",
    ),
}


def imports(path):
    """Every dotted name imported anywhere in a file: in functions and for type checkers, too."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def dotted(path):
    parts = path.relative_to(ROOT.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {dotted(path): path for root in (ROOT, SIMULATOR) for path in sorted(root.rglob("*.py"))}


def folder(module):
    top, first, *_ = [*module.split("."), ""]
    return top if top == "nkisim" else first if first in LAYERS else ""


def imported_modules(path):
    """Our modules that a file imports: ``trnpy.a.b`` for a name of b, or for b itself."""
    for name in imports(path):
        if name.split(".")[0] in ("trnpy", "nkisim"):
            yield name if name in MODULES else name.rpartition(".")[0]


def test_folders_import_only_folders_below_them():
    broken = [
        f"{module} imports {other}"
        for module, path in MODULES.items()
        for other in imported_modules(path)
        if LAYERS.index(folder(other)) > LAYERS.index(folder(module))
    ]
    assert not broken


def test_the_simulator_imports_nothing_of_trnpy():
    found = [f"{m} imports {n}" for m, p in MODULES.items() if folder(m) == "nkisim" for n in imports(p)]
    assert not [line for line in found if line.split()[-1].split(".")[0] == "trnpy"]
    assert len(found) > 500  # the search has found imports


def test_only_the_table_reaches_host_routes():
    outside = {module for module in MODULES if folder(module) != "_host"}
    assert not {m for m in outside if any(folder(other) == "_host" for other in imported_modules(MODULES[m]))}
    assert [m for m in outside if "trnpy._host" in MODULES[m].read_text()] == ["trnpy._call.host_table"]


def circle(graph):
    """Modules that import each other, or None."""
    try:
        graphlib.TopologicalSorter(graph).prepare()
    except graphlib.CycleError as why:
        return why.args[1]
    return None


def test_no_circles():
    # A package's own __init__ and its modules are one: importing the module runs both.
    graph = {m: set(imported_modules(p)) - {m, "trnpy", "nkisim"} for m, p in MODULES.items()}
    assert circle(graph) is None


def test_a_circle_is_seen():
    assert circle({"a": {"b"}, "b": {"c"}, "c": {"a"}}) is not None


def test_the_package_has_few_rooms():
    rooms = {p.name for p in ROOT.iterdir() if p.suffix == ".py" or (p / "__init__.py").exists()}
    assert len(rooms) <= MOST_ROOMS
    assert rooms - {"__init__.py", "__main__.py"} == set(LAYERS) - {"", "nkisim"}


def test_heavy_packages_are_imported_in_one_file_only():
    broken = [
        f"{path.relative_to(ROOT)} imports {name}"
        for path in ROOT.rglob("*.py")
        for name in imports(path)
        if str(path.relative_to(ROOT)) not in ONLY.get(name.split(".")[0], (str(path.relative_to(ROOT)),))
        and "kernels" not in path.parts
    ]
    assert not broken


# All others ask an engine, and do not know which one they have.
ENGINE = {"_engine", "_nki"}
CLASSES = {
    "DeviceEngine", "HostEngine", "Runtime", "SimulatorRuntime", "NeuronRuntime", "Buffer",
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
        if path.relative_to(ROOT).parts[0] not in ENGINE
        for node in ast.walk(ast.parse(path.read_text()))
        if (what := which_engine(node))
    ]
    assert found == []


def test_the_look_behind_an_engine_is_seen():
    for line in (
        "isinstance(engine, X)", "isinstance(x, DeviceEngine)", "hasattr(self.engine, 'x')", "engine.name == 'host'",
        "engine.runtime.put(a)", "e.facts.digits", "h.parts[0]", "from trnpy._nki.runtime import Buffer",
        "engines.HostEngine()",
    ):  # fmt: skip
        assert any(which_engine(node) for node in ast.walk(ast.parse(line))), line
    for line in ("engine.kernel('matmul', a, b)", "product.parts(x)", "path.parts", "facts(outcomes)", "x.name == 'y'"):
        assert not any(which_engine(node) for node in ast.walk(ast.parse(line))), line


def test_no_two_files_of_tests_have_one_name():
    """Outside of packages pytest would collect the first only."""
    files = [p for p in pathlib.Path(__file__).parent.rglob("test_*.py") if not (p.parent / "__init__.py").exists()]
    names = [p.name for p in files]
    assert sorted(names) == sorted(set(names))


TESTS = pathlib.Path(__file__).parent
LEAST_LINES = 150  # of a module, above which it has a file of tests of its name
ELSEWHERE = {  # modules that another file tests, and why
    "trnpy/_nki/kernels/products/probes.py": ("_cli/test_probes.py", "doctor --probe launches each of its kernels"),
    "trnpy/_nki/kernels/solves/triangular.py": ("_nki/kernels/test_trsm.py", "a part of the kernel trsm"),
    "trnpy/chem/_mp2_ranks.py": ("dist/test_mp2_ranks.py", "tests under MPI share dist/conftest.py"),
    "trnpy/chem/_block_pairs.py": ("dist/test_block_pairs.py", "it continues test_mp2_ranks.py"),
}


def files_of_tests(path):
    """Where tests of a module may be: under its name, or its name after that of a folder it is in."""
    *folders, name = [part.strip("_") for part in path.with_suffix("").parts]
    if name == "init":
        name = folders.pop()
    if path.parts[0] == "nkisim":
        place = TESTS / "simulator"
    elif path.parts[:3] == ("trnpy", "_nki", "kernels"):
        place = TESTS / "_nki" / "kernels"
    else:
        place = TESTS / path.parts[1] if len(path.parts) > 2 else TESTS
    return [place / f"test_{name}.py", *(place / f"test_{above}_{name}.py" for above in folders)]


def without_tests(paths):
    return [str(path) for path in paths if not any(file.exists() for file in files_of_tests(path))]


def large_modules():
    """Paths of modules of more than 150 lines; parts that kernels share are tested by the kernels' own files."""
    for path in MODULES.values():
        short = path.relative_to(ROOT.parent)
        if len(path.read_text().splitlines()) > LEAST_LINES and short.parts[2:4] != ("kernels", "shared"):
            yield short


def test_each_large_module_has_a_file_of_tests_of_its_name():
    large = list(large_modules())
    assert {*without_tests(large)} == {*ELSEWHERE}
    assert all((TESTS / file).exists() for file, _ in ELSEWHERE.values())
    assert len(large) > 100 and len(ELSEWHERE) < 8


def test_a_module_without_tests_is_seen():
    assert without_tests([pathlib.Path("trnpy/linalg/_no_such_module.py")]) == ["trnpy/linalg/_no_such_module.py"]
    assert without_tests([pathlib.Path("trnpy/linalg/_eigh.py"), pathlib.Path("nkisim/price/schedule.py")]) == []
