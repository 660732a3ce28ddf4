"""The name that pip knows trnpy by, the command ``trnpy``, and another project's ``trnpy`` in the same place."""

import os
import pathlib
import re
import shutil
import subprocess
import sys
import tomllib

import pytest
import yaml

import trnpy
from trnpy._base import distribution
from trnpy._cli import doctor

ROOT = pathlib.Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
THEIRS = "Metadata-Version: 2.4\nName: trnpy\nVersion: 0.2.1\nSummary: A Python wrapper for transient simulations.\n"
OURS_ONCE = "Metadata-Version: 2.4\nName: trnpy\nVersion: 0.1.0\nSummary: NumPy and SciPy on AWS Trainium: the same\n"


def run(folder, *argv, **variables):
    """(exit status, stdout, stderr) of ``python argv`` in ``folder``."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("TRNPY_", "PYTHON"))}
    environ = {**kept, "PYTHONDONTWRITEBYTECODE": "1", "PYTHONPATH": str(ROOT), **variables}
    done = subprocess.run([sys.executable, *argv], cwd=folder, env=environ, capture_output=True, text=True, check=False)
    return done.returncode, done.stdout, done.stderr


def installed(site, metadata, name="trnpy-0.2.1.dist-info"):
    """A distribution of ``metadata`` in folder ``site``."""
    (site / name).mkdir(parents=True)
    if metadata:
        (site / name / "METADATA").write_text(metadata)
    return site


def test_one_place_in_the_code_holds_the_name_of_the_distribution():
    assert PROJECT["name"] == distribution.NAME == "trnpy-nki"
    own = [r for extra in PROJECT["optional-dependencies"].values() for r in extra if r.startswith("trnpy")]
    assert own and all(re.match(r"trnpy-nki\[", requirement) for requirement in own)
    assert distribution.OUR_SUMMARY in PROJECT["description"]
    named = [path.name for path in (ROOT / "trnpy").rglob("*.py") if "trnpy-nki" in path.read_text()]
    assert named == ["distribution.py"]


def test_no_message_installs_another_projects_trnpy():
    text = [path for pattern in ("trnpy/**/*.py", "examples/*.py", "*.md", "*/*.md") for path in ROOT.glob(pattern)]
    wrong = re.compile(r"pip install(?: -\S+)* '?trnpy(?!-nki)\b|\btrnpy\[(?:pyscf|neuron|report|simulator|test|dev)\]")
    assert wrong.search("pip install -q trnpy") and wrong.search("pip install trnpy[report]")
    assert [path.name for path in text if wrong.search(path.read_text())] == []


def test_messages_name_extras_that_exist():
    for path in (ROOT / "trnpy").rglob("*.py"):
        assert set(re.findall(r"\binstall\('(\w+)'\)", path.read_text())) <= PROJECT["optional-dependencies"].keys()
    assert distribution.install("report") == "pip install 'trnpy-nki[report]'"


def test_the_citation_names_the_same_authors_and_licence():
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert citation["cff-version"] == "1.2.0"
    assert [{"name": a["name"]} for a in citation["authors"]] == PROJECT["authors"]
    assert citation["license"] == PROJECT["license"]


def test_the_minima_and_pythons_of_the_metadata_are_those_that_are_tested():
    minor = re.compile(r"Programming Language :: Python :: 3\.(\d+)$")
    stated = [int(m.group(1)) for m in map(minor.match, PROJECT["classifiers"]) if m]
    assert stated == list(range(min(stated), max(stated) + 1)) and PROJECT["requires-python"] == f">=3.{min(stated)}"
    assert not any("<" in requirement for requirement in PROJECT["dependencies"])


@pytest.fixture
def command(tmp_path):
    """The command ``trnpy`` as pip writes it, in a folder of its own."""
    module, function = PROJECT["scripts"]["trnpy"].split(":")
    script = tmp_path / "bin" / "trnpy"
    script.parent.mkdir()
    lines = ("import sys", f"from {module} import {function}", f"if __name__ == '__main__': sys.exit({function}())\n")
    script.write_text("\n".join(lines))
    return script


@pytest.mark.parametrize(
    "argv",
    [
        ["--no-report", "sub/program.py", "-x"],
        ["--no-report", "-m", "sub.program", "1"],
        ["--no-report", "-c", "import sys; print(sys.argv, sys.path[0]); sys.exit(7)"],
        ["--no-report", "-c", "import os, signal; os.kill(os.getpid(), signal.SIGINT)"],
        ["doctor", "sub.program"],
        [],
    ],
    ids=lambda argv: " ".join(argv)[:40],
)
def test_the_command_does_what_python_m_trnpy_does(command, tmp_path, argv):
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "program.py").write_text("import sys\nprint(sys.argv[1:], sys.path[0])\n")
    theirs, ours = (run(tmp_path, *start, *argv) for start in (["-m", "trnpy"], [command]))
    assert ours == theirs


def test_the_command_has_the_directory_of_the_script_first(command, tmp_path):
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "program.py").write_text("import sys, beside\nprint(sys.path[0])\n")
    (tmp_path / "sub" / "beside.py").touch()
    assert run(tmp_path, command, "--no-report", "sub/program.py") == (0, f"{tmp_path / 'sub'}\n", "")
    safe = run(tmp_path, command, "--no-report", "sub/program.py", PYTHONSAFEPATH="1")
    assert safe[0] == 1 and "No module named 'beside'" in safe[2]


def test_no_other_trnpy_is_no_line(tmp_path):
    assert run(tmp_path, "-m", "trnpy", "--no-report", "-c", "") == (0, "", "")


@pytest.mark.parametrize("metadata", [OURS_ONCE, ""], ids=["ours, by its former name", "what an interrupted pip left"])
def test_a_trnpy_that_is_no_other_project_is_no_line(tmp_path, metadata):
    site = installed(tmp_path / "site", metadata)
    path = os.pathsep.join((str(ROOT), str(site)))
    assert run(tmp_path, "-m", "trnpy", "--no-report", "-c", "", PYTHONPATH=path) == (0, "", "")


def test_another_trnpy_beside_ours_is_one_line_of_the_runner_and_the_doctor(tmp_path):
    site = installed(tmp_path / "site", THEIRS)
    path = os.pathsep.join((str(ROOT), str(site)))
    line = (
        f"another project's trnpy 0.2.1 (A Python wrapper for transient simulations.) is in {site / 'trnpy'}; Python "
        f"imports it or {ROOT / 'trnpy'}, by sys.path: pip uninstall trnpy"
    )
    ran = run(tmp_path, "-m", "trnpy", "--no-report", "-c", "print(1)", PYTHONPATH=path)
    assert ran == (0, "1\n", f"trnpy: {line}\n")
    status, out, err = run(tmp_path, "-m", "trnpy", "doctor", PYTHONPATH=path)
    assert (status, err) == (1, "")
    assert f"WRONG: {line}\n" in out


@pytest.fixture
def overwritten(tmp_path):
    """A folder in which ours was installed, and then the other over it, whose ``__init__.py`` is empty."""
    site = installed(tmp_path / "site", THEIRS)
    for package in ("trnpy", "nkisim"):
        shutil.copytree(ROOT / package, site / package, ignore=shutil.ignore_patterns("__pycache__"))
    (site / "trnpy" / "__init__.py").write_text("")
    # The tests' environment may have an editable installation of ours, which is not in that folder.
    (site / "sitecustomize.py").write_text(f"import sys\nsys.path[:] = [p for p in sys.path if p != {str(ROOT)!r}]\n")
    return site


def test_another_trnpy_over_ours_is_one_line_and_programs_run(overwritten, tmp_path):
    ran = run(tmp_path, "-m", "trnpy", "--no-report", "-c", "print(1)", PYTHONPATH=str(overwritten))
    assert ran[:2] == (0, "1\n")
    assert ran[2] == (
        "trnpy: another project's trnpy 0.2.1 (A Python wrapper for transient simulations.) and trnpy-nki "
        f"overwrite each other in {overwritten / 'trnpy'}: pip uninstall trnpy, then reinstall trnpy-nki\n"
    )
    status, out, err = run(tmp_path, "-m", "trnpy", "doctor", PYTHONPATH=str(overwritten))
    assert (status, err) == (1, "")
    assert "of unknown version" in out and "WRONG: another project's trnpy 0.2.1 (" in out


@pytest.mark.parametrize("left", [True, False])
def test_what_the_other_trnpy_leaves_behind_is_one_line(overwritten, tmp_path, left):
    """After ``pip uninstall trnpy`` our ``__init__.py`` is gone with theirs."""
    shutil.rmtree(overwritten / "trnpy-0.2.1.dist-info")
    if not left:
        (overwritten / "trnpy" / "__init__.py").unlink()
    ran = run(tmp_path, "-m", "trnpy", "--no-report", "-c", "print(1)", PYTHONPATH=str(overwritten))
    assert ran[:2] == (0, "1\n")
    missing = overwritten / "trnpy" / "__init__.py"
    assert ran[2] == f"trnpy: {missing} is missing or another project's: reinstall trnpy-nki\n"


def test_the_doctor_shows_where_it_is_installed_and_by_which_name(capsys):
    doctor.doctor([])
    assert f"{trnpy.__version__} (trnpy-nki), {ROOT / 'trnpy'}\n" in capsys.readouterr().out


def test_a_program_runs_and_is_reported_with_the_dependencies_alone():
    extras = {re.split(r"[\[>=]", r)[0] for extra in PROJECT["optional-dependencies"].values() for r in extra}
    code = f"""
import sys
for name in {sorted(extras - {distribution.NAME})}:
    sys.modules[name.replace("-", "_")] = None
import numpy as np, scipy.linalg, scipy.sparse, trnpy
a = np.random.default_rng(0).standard_normal((300, 300)) + 300 * np.eye(300)
with trnpy.patched(), trnpy.profile() as ledger:
    for x in (a, a.astype("f4"), a.astype("c16")):
        np.linalg.inv(x), scipy.linalg.eigh(x + x.conj().T), np.einsum("ij,kj,kl->il", x, x, x)
        trnpy.sparse.csr_array(x) @ x
print(ledger.what_if())
print("calls:", len(ledger.calls))
"""
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert ran.returncode == 0 and "calls: 12" in ran.stdout, ran.stderr


def test_every_file_of_tests_is_collected():
    """pytest's default leaves out folders with names such as ``dist`` and ``build``."""
    command = [sys.executable, "-m", "pytest", "--collect-only", "-q", "-m", "", "-p", "no:cacheprovider"]
    said = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    collected = {line.partition("::")[0] for line in said.splitlines() if "::" in line}
    files = {str(path.relative_to(ROOT)): path.read_text() for path in (ROOT / "tests").rglob("test_*.py")}
    skipped = {name for name, text in files.items() if re.search(r"^(\w+ = )?pytest.importorskip", text, re.M)}
    assert files.keys() - skipped <= collected <= files.keys()  # files of a package that is not installed are skipped
