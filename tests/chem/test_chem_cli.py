"""``python -m trnpy chem mp2``: energies, timings and the what-if; one line and status 2 for what makes no sense."""

import os
import pathlib
import re
import subprocess
import sys

import pytest
from pyscf import gto, mp, scf

from trnpy.chem import _progress, cli

# PySCF leaves its scratch files to the garbage collector.
pytestmark = pytest.mark.filterwarnings(
    "ignore:unclosed file:ResourceWarning",
    "ignore:Exception ignored in. <_io.FileIO:pytest.PytestUnraisableExceptionWarning",
)

ROOT = pathlib.Path(__file__).parents[2]
WATER = ROOT / "examples" / "water.xyz"
HARTREE = 1e-9


def energies(text):
    return {name: float(value) for name, value in re.findall(r"^(E\(.*?\)) *= *(-?\d+\.\d{10}) Hartree$", text, re.M)}


def failure(capsys, *argv):
    """The line on standard error of a call that must exit with status 2."""
    with pytest.raises(SystemExit) as exit_:
        cli.main([*map(str, argv)])
    out, err = capsys.readouterr()
    assert exit_.value.code == 2 and not out and err.count("\n") == 1 and err.startswith("trnpy chem: ")
    return err


def test_every_option_has_a_help_text():
    (commands,) = [action.choices for action in cli._parser()._actions if action.choices]
    assert all(action.help for action in commands["mp2"]._actions)


def test_the_command_prints_energies_timings_and_the_what_if():
    run = subprocess.run(
        [sys.executable, "-m", "trnpy", "chem", "mp2", "water.xyz", "--basis", "6-31g", "--device", "null",
         "--machine", "trn3"],
        cwd=WATER.parent, env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}, capture_output=True,
        text=True, timeout=300, check=False,
    )  # fmt: skip
    assert run.returncode == 0, run.stderr
    mf = scf.RHF(gto.M(atom=str(WATER), basis="6-31g", verbose=0)).run()
    plain = mp.dfmp2.DFMP2(mf).run()
    expected = {"E(RHF)": mf.e_tot, "E(MP2 correlation)": plain.e_corr, "E(MP2)": plain.e_tot}
    expected |= {"E(MP2 opposite spin)": plain.e_corr_os, "E(MP2 same spin)": plain.e_corr_ss}
    expected["E(nuclear)"] = mf.energy_nuc()
    assert energies(run.stdout) == pytest.approx(expected, rel=0, abs=1e-7)  # the SCF's own threshold
    assert re.findall(r"^(SCF|integrals \(ia\|L\)|MP2 energy) +\d+\.\d{3} s$", run.stdout, re.M) == [
        "SCF", "integrals (ia|L)", "MP2 energy"
    ]  # fmt: skip
    assert re.search(r"^trnpy: Nothing is large enough for a trn3: \d+ calls took", run.stderr)


def test_a_limit_of_memory_is_for_ranks_whose_energies_are_the_same(capsys):
    command = ["mp2", str(WATER), "--basis", "sto-3g", "--device", "none"]
    assert cli.main(command) == 0
    expected = energies(capsys.readouterr().out)
    assert cli.main([*command, "--memory", "1e8"]) == 0
    printed = capsys.readouterr().out
    found = energies(printed)
    assert found.keys() == expected.keys()
    for name, energy in expected.items():
        assert found[name] == pytest.approx(energy, rel=0, abs=1e-8)
    assert "1 rank, 100 MB each" in printed and re.search(r"^   0 +\d+\.\d MB +\d+\.\d MB$", printed, re.M)


def test_open_shells_are_unrestricted(tmp_path, capsys):
    path = tmp_path / "nh2.xyz"
    path.write_text("3\n\nN 0 0 0\nH 0 .8034 .6347\nH 0 -.8034 .6347\n")
    assert cli.main(["mp2", str(path), "--basis", "sto-3g", "--spin", "1", "--device", "none"]) == 0
    plain = mp.dfump2.DFUMP2(scf.UHF(gto.M(atom=str(path), basis="sto-3g", spin=1, verbose=0)).run()).run()
    printed = energies(capsys.readouterr().out)
    assert printed["E(MP2 correlation)"] == pytest.approx(plain.e_corr, rel=0, abs=1e-7) and "E(UHF)" in printed


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "line 1: nothing: expected the number of atoms"),
        ("H 0 0 0\n", "line 1: 'H 0 0 0': expected the number of atoms"),
        ("2\n\nH 0 0 0\n", "1 atoms, but line 1 promises 2"),
        ("0\n\n", "0 atoms, but line 1 promises 0"),
        ("1\n\nH 0 0\n", "line 3: 'H 0 0': expected symbol x y z in Angstrom"),
        ("1\n\nH 0 0 z\n", "line 3: 'H 0 0 z': expected symbol"),
        ("1\n\nH 0 0 nan\n", "line 3: 'H 0 0 nan': expected symbol"),
        ("1\n\nH 0 0 inf\n", "line 3: 'H 0 0 inf': expected symbol"),
        ("2\n\nH 0 0 0.7\nH 0 0 .7\n", "line 4: the atom of line 3 is at the same place"),
        (b"\xff\xfe\x00", "not a text file"),
    ],
)
def test_bad_files_give_one_line(text, message, tmp_path, capsys):
    path = tmp_path / "bad.xyz"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    line = failure(capsys, "mp2", path)
    assert message in line and str(path) in line


def test_other_mistakes_give_one_line(tmp_path, capsys):
    assert "none.xyz: No such file" in failure(capsys, "mp2", tmp_path / "none.xyz")
    assert "Is a directory" in failure(capsys, "mp2", tmp_path)
    assert "nonsense" in failure(capsys, "mp2", WATER, "--basis", "nonsense")
    assert "basis ' ': expected the name" in failure(capsys, "mp2", WATER, "--basis", " ")
    assert "charge 10: expected less than 10" in failure(capsys, "mp2", WATER, "--charge", "10")
    assert "spin 1" in failure(capsys, "mp2", WATER, "--spin", "1")
    assert "device='gpu': expected one of" in failure(capsys, "mp2", WATER, "--device", "gpu")
    assert "machine='trn9': expected one of" in failure(capsys, "mp2", WATER, "--machine", "trn9")
    assert "TRNPY_DEVICE=neuron: " in failure(capsys, "mp2", WATER, "--device", "neuron")
    assert "required" in failure(capsys)
    path = tmp_path / "unknown.xyz"
    path.write_text("1\n\nXy 0 0 0\n")  # which PySCF takes for a ghost of yttrium
    assert "'Xy': expected the symbol of an element" in failure(capsys, "mp2", path)


def test_a_missing_pyscf_is_one_line(monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "pyscf", None)
    monkeypatch.delitem(sys.modules, "trnpy.chem.pyscf_methods", raising=False)
    assert "pip install 'trnpy-nki[pyscf]'" in failure(capsys, "mp2", WATER)


def test_an_scf_that_does_not_converge_is_no_energy(monkeypatch, capsys):
    monkeypatch.setattr(scf.hf.SCF, "max_cycle", 1)
    assert cli.main(["mp2", str(WATER), "--basis", "6-31g", "--device", "none"]) == 1
    out, err = capsys.readouterr()
    assert not out and err == "trnpy chem: the SCF did not converge in 1 cycles: no MP2\n"


def test_what_fails_after_the_call_made_sense_keeps_its_traceback(monkeypatch):
    def broken(*_):
        raise ValueError("operands could not be broadcast")

    monkeypatch.setattr(cli, "mp2", broken)
    with pytest.raises(ValueError, match="broadcast"):
        cli.main(["mp2", str(WATER), "--device", "none"])


class Terminal:
    def __init__(self, stream, is_terminal):
        self.stream, self.isatty = stream, lambda: is_terminal

    def __getattr__(self, name):
        return getattr(self.stream, name)


@pytest.mark.parametrize("rich", [False, True])
@pytest.mark.parametrize("is_terminal", [False, True])
def test_long_runs_show_progress_on_a_terminal_only(is_terminal, rich, monkeypatch, capsys):
    monkeypatch.setattr(_progress, "PATIENCE_S", 0.0)
    monkeypatch.setattr(sys, "stderr", Terminal(sys.stderr, is_terminal))
    monkeypatch.setenv("TERM", "xterm")
    if not rich:
        monkeypatch.setitem(sys.modules, "rich.console", None)
    assert list(_progress.track(range(7), "pairs")) == list(range(7))
    out, err = capsys.readouterr()
    assert not out and ("pairs" in err) == is_terminal
    if rich and is_terminal:
        assert "100%" in err[err.rindex("pairs") :]
        assert "\x1b[2K" in err[err.rindex("pairs") :]  # the line of the bar is erased at the end


def test_short_runs_show_nothing(monkeypatch, capsys):
    monkeypatch.setattr(sys, "stderr", Terminal(sys.stderr, True))
    assert list(_progress.track([3, 1], "pairs")) == [3, 1]
    assert capsys.readouterr() == ("", "")
