"""Wrong command lines: one line that says what is wrong, with the name that was probably meant."""

import io
import re

import numpy as np
import pytest

from nkisim import cli, status
from nkisim.price.cost import _memory
from trnpy._cli import doctor, runner
from trnpy.sparse import cli as blocks


def refused(capsys, call, *argv):
    """What a command prints on standard error for a wrong command line."""
    try:
        assert call([*map(str, argv)]) == 2
    except SystemExit as exit_:
        assert exit_.code == 2
    out, err = capsys.readouterr()
    assert not out and err.count("\n") == 1
    return err.rstrip("\n")


@pytest.mark.parametrize(
    ("call", "argv", "expected"),
    [
        (doctor.doctor, ["--prob"], "trnpy doctor: unknown option --prob: did you mean --probe?"),
        (doctor.doctor, ["--xyz"], "trnpy doctor: unknown option --xyz"),
        (doctor.doctor, ["--device", "simulatr"], "trnpy doctor: unknown option --device: it follows --probe"),
        (
            doctor.doctor,
            ["--probe", "--device", "simulatr"],
            "trnpy doctor --probe: --device 'simulatr': expected neuron or simulator: did you mean simulator?",
        ),
        (
            doctor.doctor,
            ["--probe", "--devcie", "simulator"],
            "trnpy doctor --probe: unknown argument --devcie: did you mean --device?",
        ),
        (
            doctor.doctor,
            ["--probe", "--device"],
            "trnpy doctor --probe: expected one device after --device: neuron or simulator",
        ),
        (doctor.calibrate, ["--kernel"], "trnpy calibrate: unknown argument --kernel: did you mean --kernels?"),
        (runner.main, ["--devcie", "null", "x.py"], "trnpy: unrecognized arguments: --devcie: did you mean --device?"),
        (runner.main, ["--quiet", "x.py"], "trnpy: unrecognized arguments: --quiet"),
        (runner.main, ["--html"], "trnpy: argument --html: expected one argument"),
        (blocks.main, ["nofile.npz"], "trnpy blocks: nofile.npz: No such file or directory"),
        (runner.main, ["--html=/no/x.html", __file__], "trnpy: --html /no/x.html: there is no directory /no"),
        (cli.main, ["simulate", "nofile.py:k"], "nkisim simulate: no file nofile.py"),
    ],
)  # fmt: skip
def test_a_wrong_command_line_is_named(capsys, call, argv, expected):
    assert refused(capsys, call, *argv).endswith(expected)


@pytest.mark.parametrize(("option", "file"), [("--html", "run.html"), ("--report", "run.json")])
def test_a_directory_in_place_of_a_file_is_named_with_a_file_in_it(capsys, tmp_path, option, file):
    said = refused(capsys, runner.main, option, tmp_path, __file__)
    assert said == f"trnpy: {option} {tmp_path}: this is a directory; give a file, such as {tmp_path / file}"


@pytest.mark.parametrize("content", [b"no archive at all", b"", None])
def test_a_file_that_scipy_has_not_written_is_refused_without_numpys_hint(capsys, tmp_path, content):
    path = tmp_path / "bad.npz"
    if content is None:
        np.savez(path, a=np.eye(3))
    else:
        path.write_bytes(content)
    said = refused(capsys, blocks.main, path)
    assert "pickle" not in said
    assert said.startswith(f"trnpy blocks: {path}: ")
    assert said.endswith("expected a file that scipy.sparse.save_npz has written")


def test_a_file_with_a_dense_matrix_is_refused(capsys, tmp_path):
    path = tmp_path / "dense.mtx"
    path.write_text("%%MatrixMarket matrix array real general\n1 1\n2.0\n")
    said = refused(capsys, blocks.main, path)
    assert said == f"trnpy blocks: {path}: a dense matrix: expected a sparse one"


def test_the_doctors_list_of_patched_names_is_wrapped(capsys):
    assert doctor.doctor([]) == 0
    lines = capsys.readouterr().out.splitlines()
    first = next(i for i, line in enumerate(lines) if line.startswith("patch "))
    wrapped = [lines[first]]
    while len(lines) > first + len(wrapped) and re.match(" {14}[a-z_.]+,", lines[first + len(wrapped)]):
        wrapped.append(lines[first + len(wrapped)])
    assert len(wrapped) > 5 and max(map(len, wrapped)) <= 100


@pytest.mark.parametrize(("size", "expected"), [(2e3, "1 MB"), (4.6e7, "46 MB"), (1.23e9, "1.2 GB")])
def test_small_amounts_of_memory_are_not_zero(size, expected):
    assert _memory(size) == expected


class Terminal(io.StringIO):
    def isatty(self):
        return True


def test_long_work_shows_what_runs_on_a_terminal_only(monkeypatch):
    monkeypatch.setattr(status, "INTERVAL_S", 0.001)
    terminal, file = Terminal(), io.StringIO()
    with status.Status("simulating k", terminal) as line:
        line.step = "step 2"
        while "step 2" not in terminal.getvalue():
            pass
    assert re.search(r"simulating k, step 2: \d+ s", terminal.getvalue())
    assert terminal.getvalue().endswith(status.ERASE)
    with status.Status("simulating k", file):
        pass
    assert not file.getvalue()
    quick = Terminal()
    monkeypatch.setattr(status, "INTERVAL_S", 1000.0)
    with pytest.raises(KeyError), status.Status("simulating k", quick):
        raise KeyError
    assert not quick.getvalue()
