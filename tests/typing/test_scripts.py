"""Type checkers know every public name of trnpy, and no others."""

import dataclasses
import importlib
import importlib.metadata
import importlib.util
import pathlib
import re
import subprocess
import sys

import make_stubs
import pytest

from trnpy._settings.policy import Policy, Settings

FOLDER = pathlib.Path(__file__).parent
ROOT = FOLDER.parent.parent
SCRIPTS = [str(FOLDER / name) for name in ("accepted.py", "rejected.py")]
# Names of earlier SciPy and NumPy that the newest have not.
GONE = {
    "trnpy.linalg": {"kron"},
    "trnpy.linalg.interpolative": {"rand", "seed"},
    "trnpy.sparse": {"msg", "test"},
}
UNTYPED = {"HAS_ILP64", "find_best_lapack_type", "routine", "test"}  # by scipy-stubs
WRONG = re.compile(r"# error: (.*)")


def listed(module):
    """The names in the stub of ``module``."""
    text = make_stubs.path(module).read_text()
    return set(re.findall(r"(\w+) as \1\b", text)) | set(re.findall(r"^(\w+):", text, re.M))


def of_the_same_scipy():
    """Whether scipy-stubs are those of the installed SciPy."""
    versions = [importlib.metadata.version(name).split(".")[:2] for name in ("scipy", "scipy-stubs")]
    return versions[0] == versions[1]


@pytest.mark.parametrize("module", make_stubs.MODULES)
def test_a_stub_lists_exactly_the_names_at_run_time(module):
    there = set(make_stubs.names(module))
    assert there - listed(module) <= GONE.get(module, set())
    known = "numpy" if module == "trnpy" else module.replace("trnpy", "scipy")
    theirs = importlib.import_module(known) if module not in ("trnpy.chem", "trnpy.dist") else None
    new = {name for name in listed(module) - there if theirs is None or hasattr(theirs, name)}
    assert not new  # what the installed NumPy or SciPy lacks came with a later one


@pytest.mark.parametrize("module", make_stubs.MODULES)
def test_stubs_are_as_their_script_writes_them(module):
    if set(make_stubs.names(module)) != listed(module):
        pytest.skip("the installed SciPy is not the newest")
    assert make_stubs.stub(module) == make_stubs.path(module).read_text()


def test_a_type_checker_has_the_fields_of_policy():
    assert {f.name: f.type for f in dataclasses.fields(Policy)} == {
        name: value.__forward_arg__ for name, value in Settings.__annotations__.items()
    }


@pytest.mark.parametrize("path", ["linalg.blas", "linalg.lapack", "linalg.interpolative"])
def test_modules_have_no_names_of_their_own_making(path):
    theirs, ours = (importlib.import_module(f"{root}.{path}") for root in ("scipy", "trnpy"))
    assert {n for n in dir(ours) if not n.startswith("_")} == {n for n in dir(theirs) if not n.startswith("_")}


def wrong_lines():
    """The lines of rejected.py with what is expected of them, by number."""
    lines = enumerate((FOLDER / "rejected.py").read_text().splitlines(), 1)
    return {n: found[1] for n, line in lines if (found := WRONG.search(line))}


def said_by(tool, *command):
    """What a type checker says of the scripts; skips where it cannot run."""
    if importlib.util.find_spec(tool) is None:
        pytest.skip(f"{tool} is not installed")
    if not of_the_same_scipy():
        pytest.skip("scipy-stubs are not those of the installed SciPy")
    done = subprocess.run([sys.executable, "-m", tool, *command, *SCRIPTS], capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 1, done.stderr + done.stdout  # it ran, and found errors
    return done.stdout


def test_mypy_accepts_a_users_script_rejects_wrong_lines_and_knows_every_name(tmp_path):
    names = tmp_path / "names.py"
    used = [f"{module}.{name}" for module in make_stubs.MODULES for name in sorted(listed(module))]
    imports = [f"import {module}\n" for module in make_stubs.MODULES]
    names.write_text("".join([*imports, *(f"reveal_type({name})\n" for name in used)]))
    cache = ROOT / ".mypy_cache" / "scripts"
    said = said_by("mypy", "--config-file=", "--strict", f"--cache-dir={cache}", str(names))
    assert not [line for line in said.splitlines() if "accepted.py" in line]
    wrong = {}
    for line, message in re.findall(r"rejected.py:(\d+): error: (.*)", said):
        wrong[int(line)] = wrong.get(int(line), "") + message
    assert wrong.keys() == wrong_lines().keys()
    assert not {n: wrong[n] for n, part in wrong_lines().items() if part not in wrong[n]}
    types = re.findall(r'names.py:\d+: note: Revealed type is "(.*)"', said)
    unknown = [name.rpartition(".")[::2] for name, shown in zip(used, types, strict=True) if shown == "Any"]
    assert {name for module, name in unknown if name in make_stubs.names(module)} <= UNTYPED


def test_pyright_accepts_a_users_script_and_rejects_wrong_lines():
    said = said_by("pyright", "--pythonpath", sys.executable)
    wrong = {(name, int(n)) for name, n in re.findall(r"(\w+\.py):(\d+):\d+ - error", said)}
    assert wrong == {("rejected.py", n) for n in wrong_lines()}, said
