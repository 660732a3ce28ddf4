"""Programs under the runner: scripts, modules, strings and standard input behave as under plain Python."""

import os
import pty
import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest
from programs import FAILS, INTERRUPTED, TRNPY, run

import trnpy


def face(text):
    """Without addresses, and without the frames of runpy that ``python -m`` itself shows."""
    return re.sub(r'  File "<frozen runpy>".*\n|0x[0-9a-f]+', "", text)


@pytest.mark.parametrize(
    "argv",
    [
        ["fails.py", "-v", "--device", "x"],
        ["link.py"],
        ["directory", "1"],
        ["-m", "fails", "-m"],
        ["-m", "package.sub", "--help"],
        ["-m", "package.needs"],
        ["-m", "package"],
        ["-m", "absent.sub"],
        ["-c", FAILS, "-c"],
        ["-", "1"],
        [],
        ["absent.py"],
        ["broken.py"],
        ["interrupted.py"],
        ["spawns.py"],
        ["-c", "raise SystemExit('said')"],
        ["-c", "import sys; sys.exit(7)"],
        ["-c", "import sys; sys.excepthook = lambda *a: print('mine', a[2].tb_frame.f_code.co_name); 1/0"],
        ["-c", "import threading as t, time; t.Thread(target=lambda: (time.sleep(.1), print('thread'))).start(); 1/0"],
    ],
    ids=lambda argv: " ".join(argv).partition("\n")[0][:40] or "nothing",
)
def test_a_program_behaves_as_under_python(folder, argv):
    stdin = FAILS if argv[:1] in ([], ["-"]) else ""
    with ThreadPoolExecutor(2) as pool:
        theirs, ours = (pool.submit(run, folder, *start, *argv, stdin=stdin) for start in ([], TRNPY))
    theirs, ours = theirs.result(), ours.result()
    assert ours[0] == theirs[0]
    assert face(ours[1]) == face(theirs[1])
    assert face(ours[2]) == face(theirs[2])


@pytest.mark.parametrize("calls", ["", "import numpy as np\nnp.dot(np.eye(2), np.eye(2))\n"])
def test_an_interrupt_kills_as_it_kills_python(folder, calls):
    """With calls there is a table, and rich compiles code after the interrupt: python forgets what ended it then."""
    status, _, err = run(folder, "-m", "trnpy", "-c", calls + INTERRUPTED)
    assert status == -2
    assert ("1 call took" in err) == bool(calls)


def test_without_a_program_a_pipe_is_run_and_its_calls_are_reported(folder):
    program = "import numpy as np\nprint(np.matmul(np.eye(200), np.eye(200)).sum())\n"
    code, out, err = run(folder, "-m", "trnpy", stdin=program)
    assert (code, out) == (0, "200.0\n")
    assert "for a trn2: 1 call " in err


def test_without_a_program_a_terminal_gets_a_patched_prompt(folder):
    ours, theirs = pty.openpty()
    os.write(ours, b"import numpy as np\nx = np.ones((200, 200))\nnp.matmul(x, x).shape\n\x04")
    environment = {**os.environ, "PYTHONPATH": os.path.dirname(os.path.dirname(trnpy.__file__))}
    command = [sys.executable, "-m", "trnpy"]
    done = subprocess.run(
        command, stdin=theirs, capture_output=True, text=True, cwd=folder, env=environment, timeout=60
    )
    os.close(ours), os.close(theirs)
    assert done.returncode == 0 and "(200, 200)" in done.stdout
    assert "NumPy and SciPy are patched by trnpy" in done.stderr
    assert "1 call took" in done.stderr


def test_nothing_of_trnpys_is_imported_from_the_current_directory(tmp_path):
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "s.py").write_text("import sys, numpy; print(sys.path[0])\n")
    for name in ("random", "argparse", "platformdirs", "json"):  # each is imported on the way by trnpy or NumPy
        (tmp_path / f"{name}.py").write_text("raise SystemExit('imported from the current directory')\n")
    python = run(tmp_path, "sub/s.py")
    assert run(tmp_path, "-m", "trnpy", "--no-report", "sub/s.py") == python == (0, f"{tmp_path / 'sub'}\n", "")
