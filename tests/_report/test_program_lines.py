"""Lines of the report are the program's: frames of libraries and dispatchers are skipped, and named beside them."""

import functools
import os
import runpy
import sys
import threading
from pathlib import Path

import numpy as np
import pytest
import scipy.linalg

import trnpy
from trnpy._report.ledger import Ledger
from trnpy._report.program_lines import is_library
from trnpy._report.sampler import _place
from trnpy._report.tally import merged
from trnpy._report.text import called_from

LIBRARY = "import numpy as np\ndef product(a):\n    return np.dot(a, a)\ndef again(a):\n    return product(a)\n"


def written(folder: Path, name: str, source: str, **space: object) -> dict:
    """The namespace of a module that has run from a file in ``folder``."""
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / f"{name}.py"
    file.write_text(source)
    found = {"__name__": name, "__file__": str(file), **space}
    exec(compile(source, str(file), "exec"), found)
    return found


@pytest.fixture
def library(tmp_path):
    return written(tmp_path / "lib" / "site-packages", "library", LIBRARY)


def tallies(function, *args):
    with trnpy.patched(), trnpy.profile() as ledger:
        function(*args)
    return ledger.tallies


@pytest.mark.parametrize("n", [4, 300])
@pytest.mark.parametrize("calls", [1, 200])
def test_calls_of_a_library_are_the_programs_line(tmp_path, library, n, calls):
    source = f"def run(a):\n    for _ in range({calls}):\n        again(a)\n"
    program = written(tmp_path / "home", "script", source, again=library["again"])
    (t,) = tallies(program["run"], np.eye(n))
    assert (t.op, t.calls, t.file, t.line) == ("numpy.dot", calls, str(tmp_path / "home" / "script.py"), 3)
    assert t.through == f"{library['__file__']}:3"
    assert called_from(t).endswith("script.py:3 via library.py:3")


def test_one_line_of_a_library_called_from_two_lines_is_two_lines(tmp_path, library):
    source = "def run(a):\n    for _ in range(3):\n        again(a)\n        again(a); again(a)\n"
    program = written(tmp_path / "home", "script", source, again=library["again"])
    found = merged(tallies(program["run"], np.eye(200)), "line")  # the first calls are decided, the others remembered
    assert {(t.line, t.calls) for t in found} == {(3, 3), (4, 6)}


def test_a_dispatcher_is_skipped_wherever_it_is_installed(tmp_path):
    dispatcher = written(tmp_path / "checkout", "autoray.autoray", LIBRARY)
    program = written(tmp_path, "script", "def run(a):\n    return product(a)\n", product=dispatcher["product"])
    (t,) = tallies(program["run"], np.eye(4))
    assert (t.file, t.line) == (str(tmp_path / "script.py"), 2)


def test_an_installed_module_that_is_run_is_the_program(tmp_path):
    module = written(tmp_path / "site-packages", "__main__", LIBRARY)
    (t,) = tallies(module["again"], np.eye(4))
    assert (t.file, t.line, t.through) == (module["__file__"], 3, "")


def test_a_thread_of_a_library_keeps_the_librarys_line(library):
    library["np"] = trnpy  # a patch of this thread would not reach the other

    def run():
        thread = threading.Thread(target=library["product"], args=(np.eye(4),))
        thread.start()
        thread.join()

    (t,) = tallies(run)
    assert (t.file, t.line, t.through) == (library["__file__"], 3, "")


@pytest.mark.parametrize(
    ("name", "file", "module_file", "expected"),
    [
        ("script", "/home/ada/script.py", "/home/ada/script.py", False),
        ("__main__", "<string>", None, False),
        ("__main__", "<stdin>", None, False),
        ("script", "<string>", "/home/ada/script.py", False),
        ("library", "<string>", "/opt/lib/python3.11/site-packages/library.py", True),
        ("library", "<generated>", None, True),
        ("library", "/usr/lib/python3/dist-packages/library.py", None, True),
        ("functools", functools.__file__, functools.__file__, True),
        ("runpy", runpy.__file__, runpy.__file__, True),
        ("importlib._bootstrap", "<frozen importlib._bootstrap>", None, True),
        ("__main__", os.path.join(os.path.dirname(trnpy.__file__), "__main__.py"), None, True),
        ("scipy.linalg._decomp", scipy.linalg.__file__, None, True),
    ],
)
def test_which_frames_are_the_programs(name, file, module_file, expected):
    space = {"__name__": name, "getframe": sys._getframe} | ({} if module_file is None else {"__file__": module_file})
    exec(compile("here = getframe(0)", file, "exec"), space)
    assert is_library(space["here"]) == expected


def test_sampled_work_of_a_library_has_the_programs_line_too(tmp_path, library):
    source = "def product(a):\n    return a.dot(None)\n"
    inner = written(tmp_path / "lib" / "site-packages", "library", source)
    program = written(tmp_path, "script", "def run(a):\n\n    return product(a)\n", product=inner["product"])
    found = []
    dot = functools.partial(lambda _: found.append(_place(sys._getframe(1))))
    program["run"](type("Operand", (), {"dot": staticmethod(dot)})())
    ledger = Ledger()
    ledger.samples.add(found[0], 1.0)
    (u,) = ledger.unrouted()
    assert (u.kind, u.file, u.line) == ("product", str(tmp_path / "script.py"), 3)
    assert u.through == f"{inner['__file__']}:2" and called_from(u).endswith("script.py:3 via library.py:2")
