"""``python -m trnpy``: a program cannot tell that it is run, and its user is told what happened."""

import importlib.util
import json
import re
import subprocess
import sys
import time
import types

import numpy as np
import pytest
from programs import TRNPY, run

import trnpy
from trnpy._call import dispatch
from trnpy._cli import doctor, runner
from trnpy._report.small_calls import EXACT, STRIDE

NUMPY_ONLY = """
import sys
import numpy as np
{before}
a = np.eye({n}) + 0.1
np.linalg.inv(a), np.linalg.solve(a, a), np.linalg.svd(a), np.linalg.eigh(a), np.linalg.lstsq(a, a), np.linalg.pinv(a)
np.linalg.matrix_power(a, 3), np.linalg.multi_dot([a, a, a]), np.linalg.inv(np.stack([a, a])), np.linalg.det(a), a @ a
np.linalg.qr(a), np.linalg.cholesky(a), np.linalg.slogdet(a), np.linalg.eigvalsh(a), np.linalg.svdvals(a), np.dot(a, a)
heavy = {{"scipy", "rich", "opt_einsum", "platformdirs", "ml_dtypes"}}
print(*sorted({{m.partition(".")[0] for m in sys.modules}} & heavy))
"""


def test_the_report_comes_after_all_that_the_program_prints(folder):
    both = "import subprocess, sys; subprocess.run([sys.executable, '-m', 'trnpy', '-v', 'program.py'], stderr=1)"
    status, out, err = run(folder, "-c", both)
    assert (status, err) == (0, "")
    assert "\nhello\ngoodbye\ntrnpy: " in out  # -v also prints a line before the program
    assert "modelled" in out
    for line in ("program.py:7", "program.py:8", "program.py:9"):
        assert line in out


def test_report_and_page_are_written_and_the_table_is_not_printed(folder):
    argv = ["--device", "null", "--machine=trn3", "--no-report", "--report", "r.json", "--html", "r.html", "program.py"]
    assert run(folder, "-m", "trnpy", *argv) == (0, "hello\ngoodbye\n", "")
    report = json.loads((folder / "r.json").read_text())
    assert report["title"] == "program.py"
    assert report["what_if"]["machine"] == "trn3"
    calls = {t["op"]: (t["calls"], t["ran_on"], t["reason"]) for t in report["by_function"]}
    assert calls["numpy.einsum"] == (1, "host by pairwise products", "route")
    assert calls["numpy.dot"] == (1, "host", "small")
    assert calls["scipy.linalg.eigh"][0] == 1
    assert "numpy.einsum" in (folder / "r.html").read_text()


def test_a_program_that_fails_is_reported_all_the_same(folder):
    code = "import numpy as np; np.dot(np.eye(2), np.eye(2)); raise SystemExit(5)"
    status, _, err = run(folder, "-m", "trnpy", "--report", "r.json", "-c", code)
    assert (status, json.loads((folder / "r.json").read_text())["what_if"]["calls"]) == (5, 1)
    assert "1 call took" in err


@pytest.mark.parametrize("code", ["raise SystemExit", "import sys; sys.exit(3)", "1 / 0", "1 +"])
def test_a_program_that_ends_before_it_calls_anything_is_not_judged(folder, code):
    _, out, err = run(folder, "-m", "trnpy", "-c", code)
    assert "trnpy:" not in out + err


def test_files_are_where_the_command_line_meant_whatever_directory_the_program_goes_to(folder):
    code = "import os; os.chdir('package')"
    assert run(folder, *TRNPY, "--report", "r.json", "--html", "r.html", "-c", code) == (0, "", "")
    assert (folder / "r.json").exists() and (folder / "r.html").exists()


def test_a_report_without_standard_error_stays_out_of_the_output(folder):
    assert run(folder, "-m", "trnpy", "-c", "import sys; sys.stderr = None; print(1)")[1] == "1\n"


def test_a_page_may_go_into_a_pipe(folder):
    status, out, err = run(folder, *TRNPY, "--html", "/dev/stdout", "-c", "")
    assert (status, err) == (0, "")
    assert out.startswith("<!doctype html>")


def test_the_first_call_is_not_charged_with_what_trnpy_loads(monkeypatch):
    monkeypatch.setattr(dispatch, "_ready", lambda searches: time.sleep(0.2))
    with trnpy.profile() as ledger:
        trnpy.einsum("ijx,jk->ikx", np.ones((60, 60, 3)), np.ones((60, 60)))
    (tally,) = ledger.tallies
    assert 0 < tally.seconds < 0.2


RESTS = """
import os, time, numpy as np
np.ones((500, 500)) @ np.ones((500, 500))
used = time.process_time()
time.sleep(0.08)
print(os.environ["OPENBLAS_THREAD_TIMEOUT"], time.process_time() - used < 0.02)
"""


@pytest.mark.parametrize("given, cycles", [({}, "22"), ({"OPENBLAS_THREAD_TIMEOUT": "20"}, "20")])
def test_threads_of_openblas_that_wait_sleep_soon_or_when_the_user_says(folder, monkeypatch, given, cycles):
    """Their own choice is to use a processor for a tenth of a second. The variable is read when a BLAS is loaded."""
    monkeypatch.delenv("OPENBLAS_THREAD_TIMEOUT", raising=False)
    assert run(folder, *TRNPY, "-c", RESTS, OPENBLAS_NUM_THREADS="2", **given)[:2] == (0, f"{cycles} True\n")
    _, said, _ = run(folder, "-m", "trnpy", "doctor", **given)
    assert f"sleep after 2^n cycles without work, n = {cycles} (OPENBLAS_THREAD_TIMEOUT)" in said


@pytest.mark.parametrize("program", ["", "import numpy", "import numpy as np; np.linalg.inv(np.eye(3))"])
def test_a_program_without_scipy_runs_without_it(folder, program):
    code = f"{program}\nimport sys; print('scipy.linalg' in sys.modules, 'rich' in sys.modules)"
    assert run(folder, "-m", "trnpy", "-c", code)[:2] == (0, "False False\n")


def test_a_start_loads_what_patching_and_recording_take(folder):
    """Loading a module takes half a millisecond to two, and defining a dataclass one: every program pays them."""
    code = "import sys; print(*(n for n in sys.modules if n.startswith(('trnpy._', 'nkisim')) or n in {found!r}))"
    given = {"argparse", "json", "html", "logging", "tempfile", "platformdirs", "concurrent.futures"}
    loaded = run(folder, "-m", "trnpy", "-c", code.format(found=given))[1].split()
    assert not given & {*loaded}
    assert {name.removeprefix("trnpy.") for name in loaded} - {"_call._gate", "_patch._entry"} == {
        *("_cli", "_cli.runner", "_cli.program", "_patch", "_patch.patch", "_patch.hook", "_call"),
        *("_call.fast_path", "_call.cache_key", "_call.rows", "_call.gate"),
        *("_report", "_report.ledger", "_report.small_calls", "_report.tally", "_report.comparisons", "_report.files"),
        *(
            "_report.sampler",
            "_report.elsewhere",
            "_report.instructions",
            "_report.program_lines",
            "_report.sites",
            "_engine",
            "_engine.time_parts",
            "_settings",
            "_settings.policy",
            "_settings.tile",
        ),
        *("_nki", "_nki.instances", "nkisim", "nkisim.hardware"),
        *(
            "_base",
            "_base.context_settings",
            "_base.conventions",
            "_base.garbage",
            "_base.distribution",
            "_base.ranks_env",
            "_base.locks",
        ),
        *("_base.processors", "_base.records"),
    }


def test_the_collector_takes_what_a_program_leaves_and_not_what_was_loaded_before(folder):
    code = "import gc, weakref\nclass Ring: pass\na = Ring()\na.a = a\nw = weakref.ref(a)\ndel a\n"
    code += "print(gc.isenabled(), gc.get_freeze_count() > 10_000, gc.collect() > 0, w())"
    assert run(folder, *TRNPY, "-c", code)[1] == "True True True None\n"


def test_calls_of_numpy_linalg_do_not_import_scipy(folder):
    """They are priced and reported all the same, and the route that needs SciPy says what it waits for."""
    (folder / "only.py").write_text(NUMPY_ONLY.format(before="", n=512))
    status, out, _ = run(folder, "-m", "trnpy", "--report", "report.json", "only.py")
    assert (status, out) == (0, "opt_einsum\n")  # for multi_dot of three
    functions = json.loads((folder / "report.json").read_text())["by_function"]
    names = {f["op"].rpartition(".")[2] for f in functions}
    assert names >= {"inv", "solve", "svd", "eigh", "lstsq", "qr", "cholesky", "matrix_power", "multi_dot", "dot"}
    assert all(f["seconds"] > 0 for f in functions)
    assert all(f["modelled"] == f["calls"] for f in functions if f["op"] in ("numpy.linalg.svd", "numpy.linalg.solve"))
    tallies = [f for f in functions if f["op"] == "numpy.linalg.inv"]
    assert sum(f["calls"] for f in tallies) == 2 and all(f["ran_on"] == "host" for f in tallies)


def test_a_route_that_needs_scipy_is_taken_where_the_program_has_it(folder):
    (folder / "both.py").write_text(NUMPY_ONLY.format(before="import scipy.linalg", n=512))
    run(folder, "-m", "trnpy", "--report", "report.json", "both.py")
    functions = json.loads((folder / "report.json").read_text())["by_function"]
    assert ("numpy.linalg.inv", "route") in {(f["op"], f["reason"]) for f in functions}


def test_what_is_imported_later_is_accelerated_too(folder):
    code = (
        "import numpy as np\nw = np.linalg.eigvalsh(np.eye(100))\nfrom scipy.linalg import eigh, blas\n"
        "eigh(np.eye(300)), eigh(np.eye(3)), blas.dgemm(1.0, np.eye(3), np.eye(3))\n"
        "print(type(eigh).__mro__[1].__name__)"
    )
    assert run(folder, *TRNPY, "--report", "r.json", "-c", code) == (0, "Hook\n", "")
    calls = {(t["op"], t["ran_on"]): t["calls"] for t in json.loads((folder / "r.json").read_text())["by_function"]}
    assert calls == {
        ("numpy.linalg.eigvalsh", "host"): 1, ("scipy.linalg.eigh", "host by evd"): 1, ("scipy.linalg.eigh", "host"): 1
    }  # fmt: skip


def test_small_calls_are_all_counted_and_what_is_estimated_of_their_time_is_said(folder):
    code = (
        "import numpy as np, threading\na = np.eye(4)\n"
        "def work():\n    for i in range(5000):\n        np.dot(a, a)\n"
        "threads = [threading.Thread(target=work) for _ in range(4)]\n"
        "[t.start() for t in threads], [t.join() for t in threads], np.dot(a, a)"
    )
    _, _, err = run(folder, "-m", "trnpy", "-v", "--report", "r.json", "-c", code)
    report = json.loads((folder / "r.json").read_text())
    (line, once) = sorted(report["by_line"], key=lambda t: -t["calls"])
    assert (line["calls"], once["calls"], report["what_if"]["calls"]) == (20_000, 1, 20_001)
    # Each thread may have made a counter of its own, if all began at once.
    assert 20_000 // STRIDE <= line["timed"] <= 20_000 // STRIDE + 4 * (EXACT + 1) and once["timed"] == 1
    assert line["seconds"] > 0 and re.search(r"20,001 +~\d", err)
    assert re.search(
        rf"~ are estimated: one of {STRIDE} small calls of a line is timed, and \S+ of all 20,001 calls were", err
    )


def test_a_fork_leaves_the_report_to_its_parent(folder):
    code = "import os, sys\npid = os.fork()\nif pid: os.waitpid(pid, 0)\n"
    status, _, err = run(folder, "-m", "trnpy", "-c", code)
    assert (status, err.count("trnpy: no accelerated function was called")) == (0, 1)


def test_strict_makes_a_fallback_an_error_and_force_makes_a_device_call(folder):
    status, _, err = run(folder, "-m", "trnpy", "--no-report", "--strict", "program.py")
    assert status == 1
    assert re.search(r"FallbackError: numpy.einsum: host: no_device .*trn2 \S+ to \S+ s modelled\)\n$", err)
    status, out, _ = run(folder, "-m", "trnpy", "--force", "--no-report", "--report", "r.json", "program.py")
    assert (status, out) == (0, "hello\ngoodbye\n")
    report = json.loads((folder / "r.json").read_text())
    assert {(t["op"], t["reason"]) for t in report["by_function"]} >= {
        ("numpy.dot", "forced"),
        ("numpy.einsum", "forced"),
    }


def test_options_win_over_variables(folder):
    code = "import trnpy; p = trnpy.current_policy(); print(p.device, p.machine, p.precision, p.verify)"
    options = ["--device", "null", "--precision", "fp32", "--no-report"]
    variables = {"TRNPY_DEVICE": "none", "TRNPY_MACHINE": "trn1", "TRNPY_VERIFY": "0.5"}
    assert run(folder, "-m", "trnpy", *options, "-c", code, **variables)[1] == "null trn1 fp32 0.5\n"


def test_verbose_says_what_is_patched_and_what_escapes(folder):
    code = "import numpy; e = numpy.einsum.__wrapped__"
    _, _, err = run(folder, "-m", "trnpy", "-v", "-c", code)
    assert re.search(r"^trnpy: device auto: no Neuron device.* modelled on trn2$", err, re.M)
    assert re.search(r"^trnpy: patched numpy.dot, numpy.einsum", err, re.M)
    assert "trnpy: __main__.e is numpy.einsum from before the patch" in err


def test_a_variable_that_makes_no_sense_is_one_line(folder):
    status, out, err = run(folder, "-m", "trnpy", "program.py", TRNPY_DEVICE="gpu")
    assert (status, out) == (2, "")
    assert err == (
        "trnpy: environment variable TRNPY_DEVICE='gpu': device='gpu': "
        "expected one of auto, neuron, simulator, null, none\n"
    )


def test_a_variable_that_trnpy_does_not_read_is_one_line_with_the_nearest_name(folder):
    variables = {"TRNPY_DEVCIE": "null", "TRNPY_TILE": "128", "TRNPY_FORCE": "0"}
    status, out, err = run(folder, "-m", "trnpy", "--no-report", "-c", "print(1)", **variables)
    assert (status, out) == (0, "1\n")
    assert err == "trnpy: TRNPY_DEVCIE is not a variable of trnpy's: did you mean TRNPY_DEVICE?\n"


@pytest.mark.parametrize(
    "argv, message",
    [
        (["-m"], "nothing to run: expected a module after -m"),
        (["-c"], "nothing to run: expected code after -c"),
        (["--device", "gpu", "x.py"], "--device='gpu': expected one of auto, neuron, simulator, null, none"),
        (["--device=gpu", "x.py"], "--device='gpu': expected one of"),
        (["--machine", "trn9", "x.py"], "--machine='trn9': expected one of trn1, trn2, trn3"),
        (["--precision", "tf32", "x.py"], "--precision='tf32': expected one of matched, mixed, fp32, bf16"),
        (["--device", "neuron", "x.py"], "TRNPY_DEVICE=neuron: no Neuron device"),
        (["--devise", "null", "x.py"], "unrecognized arguments: --devise"),
        (["--dev", "null", "x.py"], "unrecognized arguments: --dev"),
        (["--report", "/no/such/directory/r.json", "x.py"], "there is no directory /no/such/directory"),
        (["--html", "/", "x.py"], "--html /: this is a directory; give a file, such as /run.html"),
        (["--report"], "argument --report: expected one argument"),
        (["--ranks", "0", "x.py"], "argument --ranks: '0': expected a number of processes"),
        (["--ranks", "2"], "--ranks 2: expected a script, -m or -c; standard input is of one process"),
    ],
)
def test_bad_options_are_one_line(argv, message, capsys):
    with pytest.raises(SystemExit) as left:
        runner.main(argv)
    assert left.value.code == 2
    said = capsys.readouterr().err
    assert message in said
    assert said.startswith("trnpy: ")
    assert said.count("\n") == 1


def test_help_offers_what_there_is_and_nothing_else(capsys):
    with pytest.raises(SystemExit) as left:
        runner.main(["--help"])
    said = capsys.readouterr().out
    assert left.value.code == 0
    assert len(said.splitlines()) < 40
    for word in ("--device", "--machine", "--strict", "--report", "--html", "doctor", "calibrate", "modelled"):
        assert word in said
    offered = {line.split()[0] for line in said.partition("commands:\n")[2].partition("\n\n")[0].splitlines()}
    assert offered == {"doctor", "calibrate"} | {
        n for n, (module, _) in runner.DELEGATED.items() if runner._exists(module)
    }
    assert all(runner._command(name) is not None for name in offered)


def test_commands_of_other_parts_get_their_arguments(monkeypatch):
    asked = []
    cli = types.ModuleType("trnpy._cli.simulate")
    cli.main = lambda argv: asked.append(argv) or 3
    chem = types.ModuleType("trnpy.chem.cli")
    chem.main = lambda argv: asked.append(argv)
    for module in (cli, chem):
        monkeypatch.setitem(sys.modules, module.__name__, module)
    monkeypatch.setattr(runner, "_exists", lambda module: True)
    assert runner.main(["lint", "kernel.py", "--json"]) == 3
    assert runner.main(["chem", "--help"]) == 0
    assert asked == [["lint", "kernel.py", "--json"], ["--help"]]
    monkeypatch.setattr(runner, "_exists", lambda module: False)
    assert runner._command("lint") is None


def test_a_command_whose_reader_has_gone_ends_without_a_word(folder):
    ends = "import subprocess as s, sys; p = s.Popen([sys.executable, '-m', 'trnpy', 'doctor'], stdout=s.PIPE)\n"
    ends += "p.stdout.close(); sys.exit(p.wait())"
    assert run(folder, "-c", ends) == (1, "", "")


def test_a_command_without_its_file_is_one_line(folder):
    status, out, err = run(folder, "-m", "trnpy", "calibrate", "--kernels", TRNPY_DEVICE="bogus")
    assert (status, err, out.count("\n")) == (1, "", 1)
    status, out, err = run(folder, "-m", "trnpy", "calibrate", XDG_CACHE_HOME="/dev/null")
    assert (status, err, out.count("\n")) == (1, "", 1)


def test_a_misspelt_command_is_one_line_that_names_the_command(folder):
    said = "trnpy: 'calibate' is neither a file nor a command: did you mean 'calibrate'?\n"
    assert run(folder, "-m", "trnpy", "calibate") == (2, "", said)
    assert "can't open file" in run(folder, "-m", "trnpy", "simulation.py")[2]  # a program, whatever its name is like
    (folder / "calibate").write_text("print('a program')\n")
    assert run(folder, "-m", "trnpy", "calibate")[1] == "a program\n"


# --- After an import --------------------------------------------------------------------------------------------------


def test_an_action_follows_the_import_once_and_leaves_nothing(importable):
    finders, seen = list(sys.meta_path), []
    runner.after_import(importable, lambda: seen.append(sys.modules[importable].value))
    assert len(sys.meta_path) == len(finders) + 1
    assert importlib.util.find_spec(importable).name == importable  # as programs do for optional packages
    module = __import__(importable)
    assert seen == [1]
    assert sys.meta_path == finders
    assert vars(module.__loader__).keys() == {"name", "path"}
    assert module.__spec__.loader is module.__loader__
    del sys.modules[importable]
    __import__(importable)
    assert seen == [1]


def test_an_action_on_what_is_imported_happens_now():
    seen = []
    finders = list(sys.meta_path)
    runner.after_import("json", lambda: seen.append(1))
    assert (seen, sys.meta_path) == ([1], finders)


def test_a_package_that_is_not_there_is_still_not_there(importable, tmp_path):
    seen = []
    (tmp_path / "imported_once" / "__init__.py").rename(tmp_path / "away.py")
    (tmp_path / "imported_once").rmdir()
    runner.after_import(importable, lambda: seen.append(1))
    try:
        with pytest.raises(ModuleNotFoundError, match="No module named 'imported_once'"):
            __import__(importable)
        assert not seen
        (tmp_path / "imported_once.py").write_text("")
        sys.path_importer_cache.clear()
        __import__(importable)  # found later, as by a program that installs it
        assert seen == [1]
    finally:
        sys.meta_path[:] = [f for f in sys.meta_path if not isinstance(f, runner._Once)]


def test_pyscf_is_patched_when_the_program_imports_it_and_not_before(folder):
    code = (
        "import sys\n"
        "print('pyscf' in sys.modules)\n"
        "from pyscf.lib import einsum\n"
        "import pyscf\n"
        "hook = type(einsum).__name__.removeprefix('Gated')\n"
        "print(hook, einsum is pyscf.lib.einsum, sorted(vars(pyscf.__loader__)))\n"
    )
    status, out, err = run(folder, *TRNPY, "-c", code)
    assert (status, out, err) == (0, "False\nHook True ['name', 'path']\n", "")


# --- Doctor and calibration -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("command", [doctor.doctor, doctor.calibrate])
def test_commands_explain_themselves(command, capsys):
    assert command(["--help"]) == 0
    assert command(["--bogus"]) == 2
    assert "usage: python -m trnpy " in capsys.readouterr().out


@pytest.mark.parametrize(
    ("program", "shown", "title"),
    [
        (["p.py", "--token", "s3cret"], [], "p.py (2 arguments not shown)"),
        (["-c", "password = 's3cret'"], [], "-c (1 argument not shown)"),
        (["-m", "p", "s3cret"], [], "-m p (1 argument not shown)"),
        (["p.py"], [], "p.py"),
        (["p.py", "--token", "s3cret"], ["--arguments"], "p.py --token s3cret"),
    ],
)
def test_reports_do_not_show_what_the_program_was_given_unless_asked(tmp_path, program, shown, title):
    (tmp_path / "p.py").touch()
    assert run(tmp_path, *TRNPY, *shown, "--report", "r.json", "--html", "r.html", *program)[0] == 0
    written = (tmp_path / "r.json").read_text() + (tmp_path / "r.html").read_text()
    assert json.loads((tmp_path / "r.json").read_text())["title"] == title
    assert ("s3cret" in written) == bool(shown)


DEEP = """
import resource, sys

def loop():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(300): leaf()
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
def leaf(): return None
def at(depth): return at(depth - 1) if depth else loop()
print(sum(at(depth) > 150 for depth in range(400)))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="page faults are counted by Linux's rule")
def test_no_depth_of_calls_maps_memory_for_each_call(folder):
    """Python keeps frames in blocks of 16 KB: at some depths each call of a loop maps a block, under plain Python."""
    (folder / "deep.py").write_text(DEEP)
    assert run(folder, *TRNPY, "deep.py")[1] == "0\n"
    plain = subprocess.run([sys.executable, "deep.py"], cwd=folder, capture_output=True, text=True, check=True)
    assert int(plain.stdout) > 0


def test_first_calls_start_few_garbage_collections(folder):
    """Modules that a first call loads are not garbage; collections would come earlier for the program's objects."""
    code = """
import gc, numpy as np, scipy.linalg, scipy.sparse.linalg, trnpy
found = []
gc.callbacks.append(lambda phase, info: found.append(phase))
trnpy.patch()
a = np.eye(200)
np.linalg.solve(a, a), scipy.linalg.eigh(a), np.einsum("ij,jk,kl", a, a, a)
print(len(found) // 2)
"""
    ran = subprocess.run([sys.executable, "-c", code], cwd=folder, capture_output=True, text=True, check=True)
    assert int(ran.stdout) < 20
