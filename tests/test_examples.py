"""The example scripts, run as a user runs them: the same energies with and without trnpy, wherever calls go."""

import collections
import json
import os
import pathlib
import re
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).parents[1]
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))
HARTREE = 1e-9  # what energies may differ by; ten digits are printed
RUNS = {"none": ["--device", "none"], "null": ["--device", "null"], "forced": ["--device", "none", "--force"]}
REQUIRED = {  # rows that a run must have come through
    "benzene_dfmp2": {"numpy.einsum", "scipy.linalg.eigh", "scipy.linalg.cholesky", "pyscf.lib.dot"},
    "water_clusters": {"scipy.linalg.eigh", "numpy.dot"},
    "glycine_mp2": {"scipy.linalg.eigh", "numpy.dot"},
    "water_ccsd": {"pyscf.lib.einsum", "pyscf.lib.dot", "pyscf.cc.ccsd._contract_vvvv_t2", "scipy.linalg.eigh"},
}


def run(arguments, tmp_path, **settings):
    """Standard output and error of python with ``arguments``, in a directory of its own."""
    threads = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "2"}  # PySCF's own wait for each other on a busy machine
    environment = {**os.environ, **settings, **threads, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, *arguments], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=900
    )
    assert done.returncode == 0, done.stderr
    return done.stdout, done.stderr


def energies(text):
    found = {name: float(value) for name, value in re.findall(r"^(E\(.*?\)) *= (-\d+\.\d{10})\b", text, re.MULTILINE)}
    assert found
    return found


def check(script, arguments, tmp_path):
    """Plain Python against the runner, for every place that calls can go to."""
    plain = energies(run([script, *arguments], tmp_path)[0])
    for name, options in RUNS.items():
        report = tmp_path / f"{name}.json"
        out, err = run(["-m", "trnpy", "-v", *options, "--report", report, script, *arguments], tmp_path)
        assert energies(out) == pytest.approx(plain, rel=0, abs=HARTREE)
        assert "(modelled" in err and "trn2" in err
        rows = json.loads(report.read_text())["by_function"]
        assert REQUIRED[script.stem] <= {row["op"] for row in rows}
        taken = {row["op"] for row in rows if row["ran_on"] == "host engine" and row["calls"]}
        assert REQUIRED[script.stem] <= taken if name == "forced" else not taken


@pytest.mark.parametrize("script", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_has_never_heard_of_trnpy(script):
    assert "trnpy" not in script.read_text()
    assert script.stem in REQUIRED


def test_one_water_molecule_through_the_runner(tmp_path):
    check(ROOT / "examples" / "water_clusters.py", ["1"], tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("script", EXAMPLES, ids=lambda path: path.stem)
def test_energies_of_an_example_through_the_runner(script, tmp_path):
    check(script, [], tmp_path)


@pytest.mark.slow
def test_the_main_job_through_the_kernels_of_the_simulator(tmp_path):
    """DF-MP2 of benzene in a small basis: every product by launches, the energies those of plain PySCF."""
    job = [ROOT / "examples" / "benzene_dfmp2.py", "sto-3g"]
    plain = energies(run(job, tmp_path)[0])
    report = tmp_path / "report.json"
    options = ["-m", "trnpy", "-v", "--force", "--report", report]
    out, err = run([*options, *job], tmp_path, TRNPY_DEVICE="simulator")
    assert energies(out) == pytest.approx(plain, rel=0, abs=HARTREE)
    rows = json.loads(report.read_text())["by_function"]
    launches = collections.Counter()
    for row in rows:
        launches.update(row["launches"])
    assert {"float64_matmul", "digits_split", "abs_bound", "batched_matmul"} <= launches.keys()
    assert "simulator engine: launches by kernel" in err
    taken = {row["op"] for row in rows if row["ran_on"] == "simulator engine" and row["calls"]}
    assert REQUIRED["benzene_dfmp2"] <= taken


def test_the_readmes_snippet_records_what_it_runs(tmp_path):
    (snippet,) = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    given = (
        "import numpy as np\n"
        "f, s, eri, dm = np.diag(np.arange(12.0)), np.eye(12), np.ones((3, 3, 3, 3)), np.eye(3)\n"
        "def legacy_code(): np.einsum('pqrs,rs->pq', eri, dm)\n"
    )
    out, _ = run(["-c", given + snippet + "\nassert run.what_if().calls == 1"], tmp_path)
    assert "numpy.einsum: host: " in out and "is large enough for a trn2: 1 call" in out
