"""The harness that runs upstream's tests: it reaches them, and it notices what it must."""

from __future__ import annotations

import ast
import importlib
import os
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import scipy.linalg
import scipy.linalg._basic

from conformance import _listed, _mutants
from conformance._mutants import HARMLESS, INWARD, NUDGE, VERIFIED, Planter, State, nudged, reason
from conformance._mutate import table
from conformance._redirect import Redirection
from conformance._suites import SUITES, Name
from trnpy import linalg

ROOT = Path(__file__).parents[1]
CHOLESKY = "scipy/linalg/tests/test_decomp_cholesky.py"
SCIPY = '{scipy: ">=1"}'


def conformance(*arguments: str, **variables: str) -> tuple[int, str]:
    """Exit code and output of ``python -m conformance``."""
    return launch("-m", "conformance", *arguments, **variables)


def launch(*arguments: str, **variables: str) -> tuple[int, str]:
    run = subprocess.run(
        [sys.executable, *arguments],
        cwd=ROOT, capture_output=True, text=True, timeout=120,
        env=os.environ | {"OPENBLAS_NUM_THREADS": "1"} | variables,
    )  # fmt: skip
    return run.returncode, run.stdout + run.stderr


def listing(folder: Path, test: str, error: str = "") -> str:
    """A file with one listed failure, as arguments."""
    path = folder / "listed.yaml"
    path.write_text(
        f"- {{reason: a test, error: {error!r}, modes: [baseline, unforced], versions: {SCIPY}, tests: [{test!r}]}}"
    )
    return f"--listed={path}"


def test_a_function_off_by_a_thousandth_fails_upstreams_tests() -> None:
    code, output = conformance("scipy.linalg", CHOLESKY, "--break=scipy.linalg.cholesky=1.001")
    assert code == 1, output
    assert output.count("not as listed: scipy/linalg/tests/test_decomp_cholesky.py::TestCholesky::") >= 5


def test_a_method_off_by_a_thousandth_fails_upstreams_tests() -> None:
    code, output = conformance(
        "scipy.sparse", "scipy/sparse/tests/test_csr.py", "--break=scipy.sparse.csr_matrix.toarray=1.001"
    )
    assert code == 1, output
    assert "test_csr_rowslice" in output


def test_an_unbroken_function_passes_on_the_device_path() -> None:
    code, output = conformance("scipy.linalg", CHOLESKY, "--forced")
    assert code == 0, output
    row = next(line for line in output.splitlines() if line.startswith("scipy.linalg.cholesky "))
    calls, launched, nothing, launches, passed, passed_launched, _, failed = map(int, row.split()[1:9])
    assert calls >= launched + nothing and launches > launched >= passed_launched >= 5
    assert passed >= passed_launched
    assert failed == 0
    if sys.version_info >= (3, 12):  # whose sys.monitoring counts lines
        assert int(row.split()[9]) >= 80


def test_an_unbroken_function_passes_under_a_patch() -> None:
    code, output = conformance("scipy.linalg", CHOLESKY, "--patched")
    assert code == 0, output
    row = next(line for line in output.splitlines() if line.startswith("scipy.linalg.cholesky "))
    assert int(row.split()[1]) >= 5 and int(row.split()[5]) >= 5


def test_a_run_that_executes_too_few_lines_is_not_a_success() -> None:
    code, output = conformance("scipy.linalg", f"{CHOLESKY}::TestCholesky::test_simple", "--forced", "--least-lines=99")
    counted = sys.version_info >= (3, 12)
    assert code == (7 if counted else 0), output
    assert ("fewer than 99 % of linalg/" if counted else "which takes Python 3.12") in output


def test_routes_of_stacks_are_recorded_like_any_call() -> None:
    test = "scipy/linalg/tests/test_batch.py::TestBatch::test_qr_delete"
    code, output = conformance("scipy.linalg", test, "--forced", "--full-tiles")
    assert code in (0, 6), output


def test_calls_by_a_host_route_pass_and_are_counted() -> None:
    code, output = conformance("scipy.linalg", "scipy/linalg/tests/test_batch.py", "-k", "test_svdvals")
    assert code == 0, output
    assert next(line for line in output.splitlines() if line.startswith("scipy.linalg.svdvals "))


def test_a_sample_passes_on_the_simulators_kernels() -> None:
    files, chosen = (CHOLESKY, "scipy/linalg/tests/test_basic.py"), "simple and (Cholesky or PinvSymmetric)"
    code, output = conformance("scipy.linalg", *files, "-k", chosen, "--forced", TRNPY_DEVICE="simulator")
    assert code == 0, output
    launched = re.search(r"tiles of 2: (\d+) tests had a call with a launch", output)
    assert launched and int(launched[1]) >= 4


def test_a_forced_run_that_forces_nothing_is_not_a_success() -> None:
    code, output = conformance("scipy.linalg", "scipy/linalg/tests/test_cython_blas.py", "--forced")
    assert code == 6, output
    assert "proves nothing" in output


def test_a_hosts_result_does_not_hide_an_error_of_the_device_path() -> None:
    start = "import sys; from trnpy._engine import engines; from conformance.__main__ import main; "
    broken = start + "engines.HOST.matmul = None; sys.exit(main(sys.argv[1:]))"
    test = "scipy/linalg/tests/test_decomp.py::TestEigh::test_eigvalsh_new_args"
    for code, message in ((start + "sys.exit(main(sys.argv[1:]))", "1 passed"), (broken, "hid an error")):
        assert message in launch("-c", code, "scipy.linalg", test, "--forced")[1]


def test_a_listed_test_that_passes_is_an_error(tmp_path: Path) -> None:
    test = f"{CHOLESKY}::TestCholesky::test_simple"
    code, output = conformance("scipy.linalg", CHOLESKY, listing(tmp_path, test))
    assert code == 1, output
    assert f"not as listed: {test}" in output
    assert "XPASS(strict)" in output


def test_a_listed_test_that_does_not_exist_is_an_error(tmp_path: Path) -> None:
    test = f"{CHOLESKY}::TestCholesky::test_gone"
    code, output = conformance("scipy.linalg", CHOLESKY, listing(tmp_path, test))
    assert code == 4, output
    assert test in output


@pytest.mark.parametrize(("error", "exit_code"), [("Singular", 1), ("Mismatched elements", 0)])
def test_a_listed_test_may_fail_only_as_listed(tmp_path: Path, error: str, exit_code: int) -> None:
    test = f"{CHOLESKY}::TestCholesky::test_simple"
    code, output = conformance(
        "scipy.linalg", test, "--break=scipy.linalg.cholesky=1.001", listing(tmp_path, test, error)
    )
    assert code == exit_code, output
    assert ("not the listed 'Singular'" if exit_code else "1 xfailed") in output


def test_a_test_can_be_run_without_the_listed_ones_of_its_file(tmp_path: Path) -> None:
    gone = f"{CHOLESKY}::TestCholesky::test_simple_gone"
    code, output = conformance("scipy.linalg", f"{CHOLESKY}::TestCholesky::test_simple", listing(tmp_path, gone))
    assert code == 0, output


def test_a_listed_failure_counts_for_its_versions_and_modes_only() -> None:
    versions = {"scipy": ">=1.17,<1.18", "numpy": ">=2"}
    raw = {"reason": "r", "error": "", "modes": ["forced"], "versions": versions, "tests": ["t"]}
    entry = _listed._entry(Path("listed.yaml"), raw)
    installed = {"scipy": "1.17.1", "numpy": "2.4.6"}
    assert entry.applies("forced", installed.__getitem__)
    assert not entry.applies("unforced", installed.__getitem__)
    assert not entry.applies("forced", (installed | {"scipy": "1.18.0"}).__getitem__)


@pytest.mark.parametrize("missing", ["reason", "error", "modes", "versions", "tests"])
def test_a_listed_failure_says_everything(missing: str) -> None:
    entry = {"reason": "r", "error": "", "modes": ["forced"], "versions": {"scipy": ">=1"}, "tests": ["t"]}
    del entry[missing]
    with pytest.raises(ValueError, match="expected"):
        _listed._entry(Path("listed.yaml"), entry)


def test_mutations_of_the_cholesky_rows_are_killed_by_our_tests_and_by_upstreams() -> None:
    own = "tests/linalg/test_cholesky.py -k reproduces"
    code, output = conformance("mutate", "--own", own, "--upstream", f"scipy.linalg {CHOLESKY} -k 'simple or random'")
    assert code == 0, output
    assert "4 mutations reached; 0 survivals" in output
    assert re.search(r"_cholesky.py:\d+ _factor, engine.gram: 1.5 times\n    own: killed by .*\n    .*killed", output)


def test_a_mutation_that_survives_is_an_error(capsys: pytest.CaptureFixture[str]) -> None:
    reached = {"tries": {"scipy.linalg.lu": 3, "scipy.linalg.qr": 1}, "killed": {"scipy.linalg.qr": "test_it"}}
    assert table([("own", reached)]) == 8
    assert "SURVIVED 3 tests" in capsys.readouterr().out


def test_a_harmless_mutation_is_no_survivor_unless_a_test_kills_it(capsys: pytest.CaptureFixture[str]) -> None:
    site = "linalg/_svd.py:191 _divide_and_conquer, engine.matmul"
    assert table([("own", {"tries": {site: 1}, "killed": {}})]) == 0
    assert "harmless: of a start" in capsys.readouterr().out
    own, upstream = {"tries": {site: 1}, "killed": {site: "test_it"}}, {"tries": {site: 1}, "killed": {}}
    assert table([("own", own), ("upstream", upstream)]) == 8


def test_a_mutation_that_no_result_shows_is_a_survivor_of_our_tests_only(capsys: pytest.CaptureFixture[str]) -> None:
    site = "linalg/_svd.py:93 _polished, engine.matmul"
    killed, not_killed = {"tries": {site: 1}, "killed": {site: "test_it"}}, {"tries": {site: 1}, "killed": {}}
    assert table([("own", killed), ("upstream", not_killed)]) == 0
    output = capsys.readouterr().out
    assert "upstream: in no result: of a correction by rounding errors" in output
    assert "own: 1 killed, 0 in no result, 0 survived, 0 not reached\nupstream: 0 killed, 1 in no result" in output
    assert re.search(r"1 mutations reached; 0 survivals; commit (unknown|[0-9a-f]{7,}(-dirty)?)\n$", output)
    assert table([("own", not_killed), ("upstream", not_killed)]) == 8


@pytest.mark.parametrize("name", [*HARMLESS, *INWARD])
def test_what_is_excused_with_a_reason_is_a_row_or_a_product_that_is_planted(name: str) -> None:
    file = name.partition(" ")[0]
    if file == name:
        module, _, row = name.rpartition(".")
        assert getattr(importlib.import_module(module.replace("scipy", "trnpy")), row).__trnpy_op__.name == name
        return
    tree = Planter(file).visit(ast.parse((_mutants.ROOT / file).read_text()))
    sites = [node.value for node in ast.walk(tree) if isinstance(node, ast.Constant) and isinstance(node.value, str)]
    listed = HARMLESS | INWARD
    assert any(reason(listed, site) == listed[name] for site in sites)


def test_a_nudge_is_in_the_last_digits_of_every_part_of_a_result(monkeypatch: pytest.MonkeyPatch) -> None:
    out = np.ones(2)
    assert nudged(out, out) is out and (out == 1 + 1e-9).all()
    values, rank = nudged((np.ones(2, np.float32), 3))
    assert values.dtype == np.float32 and 1e-5 < values[0] - 1 < 2e-5 and rank == 3
    monkeypatch.setattr(State, "nudge", VERIFIED)  # beyond what ``verify`` allows
    eps = 2.0**-23
    assert 315 * eps < nudged(np.ones(2, np.float32))[0] - 1 < 317 * eps and VERIFIED["d"] == NUDGE["d"]


IMPORTS = """
import scipy
import scipy.linalg as whole
from scipy import linalg
from scipy.linalg import solve
from scipy.linalg._basic import solve as internal
from scipy.linalg._basic import *
def later():
    from scipy.linalg._basic import solve
    import scipy.linalg._basic
    return solve, scipy.linalg._basic.solve
seen = [scipy.linalg.solve, whole.solve, linalg.solve, solve, internal, *later(), getattr(linalg, "solve")]
"""


def test_every_way_to_import_is_redirected_and_scipy_itself_is_not() -> None:
    redirection = Redirection([Name("scipy.linalg.solve", scipy.linalg.solve, linalg.solve)], "scipy")
    before = scipy.linalg._basic.solve
    namespace: dict[str, object] = {"__builtins__": redirection.builtins}
    exec(IMPORTS, namespace)
    assert namespace["seen"] == [linalg.solve] * 8
    assert scipy.linalg._basic.solve is scipy.linalg.solve is before is not linalg.solve


def test_tables_of_functions_have_trnpys(monkeypatch: pytest.MonkeyPatch) -> None:
    table = {scipy.linalg.solve: "what it can do"}
    monkeypatch.setitem(sys.modules, "scipy._lib._array_api", SimpleNamespace(xp_capabilities_table=table))
    names = (scipy.linalg.solve, linalg.solve), (scipy.linalg.inv, linalg.inv)
    Redirection([Name(theirs.__name__, theirs, ours) for theirs, ours in names], "scipy")
    assert table == {scipy.linalg.solve: "what it can do", linalg.solve: "what it can do"}


def test_writes_of_test_files_reach_scipys_modules(monkeypatch: pytest.MonkeyPatch) -> None:
    namespace: dict[str, object] = {"__builtins__": Redirection([], "scipy").builtins}
    exec("import scipy.linalg._basic as module", namespace)
    monkeypatch.setattr(namespace["module"], "_harness_was_here", 1, raising=False)
    assert scipy.linalg._basic._harness_was_here == 1
    monkeypatch.undo()
    assert not hasattr(scipy.linalg._basic, "_harness_was_here")


def test_without_arguments_it_names_the_suites() -> None:
    code, output = conformance()
    assert code == 4
    assert all(suite in output for suite in SUITES)


@pytest.mark.parametrize("suite", SUITES)
def test_upstreams_files_of_a_suite_are_there(suite: str) -> None:
    site = Path(scipy.linalg.__file__).parents[2]
    missing = [path for path in SUITES[suite].tests if not (site / path.partition("::")[0]).exists()]
    assert not missing
