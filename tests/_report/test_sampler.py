"""Work that no patch sees: which instructions and frames it is recognised by, and how a report tells of it."""

import functools
import os
import subprocess
import sys
import threading
import types

import numpy as np
import pytest
from ledgers import OPENED, small

import trnpy
from trnpy._report import sampler
from trnpy._report.sampler import Place, Samples
from trnpy._report.text import past_patch, sentences

HERE = "unrouted_here"


def places(source, module=HERE):
    """Every instruction of ``source`` that a thread may stand at."""
    code = compile(source, "script.py", "exec")
    steps = [s for s in sampler.dis.get_instructions(code) if s.opcode in sampler.CALLS]
    return [Place(code, code.co_filename, step.offset, module, "") for step in steps]


def found(source):
    samples = Samples()
    for place in places(source):
        samples.add(place, 1.0)
    return {(u.kind, u.function, u.line) for u in samples.found()}


@pytest.fixture
def module(monkeypatch):
    """A module whose globals the sources of this file use."""
    here = types.ModuleType(HERE)
    here.np, here.product, here.ndarray = np, np.dot, np.ndarray
    monkeypatch.setitem(sys.modules, HERE, here)
    return here


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("c = a @ b + f(d)", set()),
        ("c = a.dot(b)", {("product", "a.dot(b)", 1)}),
        ("c = f(a, b)\n\nd = a.T.dot(b[1:], out=c)", {("product", "a.dot(b)", 3)}),
        ("c = f(a.sum(x, k=y.dot(z)))", {("product", "a.dot(b)", 1)}),
        ("c = a.sum(b.max(), c.min())", set()),
        ("c = print(a)", set()),
        ("c = np.cross(a, b)", set()),
    ],
)
def test_products_that_cannot_be_routed_are_recognised_by_their_instruction(module, source, expected):
    assert found(source) == expected


def test_an_original_that_was_imported_by_name_is_named_after_what_it_is(module):
    with trnpy.patched():
        pass
    assert found("c = product(a, b)") == {("unpatched", "numpy.dot", 1)}
    assert found("c = np.dot(a, b)") == {("unpatched", "numpy.dot", 1)}


def standing_in(*modules, name="schur"):
    """The innermost of frames in ``modules``, from the outermost on, each of a function ``name``."""
    space = {"getframe": sys._getframe}
    for module in reversed(modules):
        inner = {"__name__": module, "inner": space.get(name, sys._getframe)}
        exec(f"def {name}():\n    return inner()\n", inner)
        space = inner
    return space[name]()


@pytest.mark.parametrize(
    ("modules", "expected"),
    [
        (("script", "scipy.linalg._decomp"), ("no path", "scipy.linalg.schur")),
        (("script", "scipy._lib._util", "scipy.linalg._decomp"), ("no path", "scipy.linalg.schur")),
        (("script", "numpy.linalg._linalg"), ("no path", "numpy.linalg.eig")),
        (("script", "scipy.optimize._minpack", "scipy.linalg._decomp"), None),
        (("script", "trnpy._patch.hook", "scipy.linalg._decomp"), None),
        (("script",), None),
    ],
)
def test_a_function_without_a_path_is_named_as_the_program_calls_it(modules, expected):
    import scipy.linalg  # noqa: F401

    name = "schur" if expected is None else expected[1].rpartition(".")[2]
    place = sampler._place(standing_in(*modules, name=name))
    assert (sampler._named(place) if place is not None else None) == expected


def test_a_thread_in_a_product_is_seen_and_one_that_waits_is_not():
    held = threading.Lock()
    held.acquire()
    product = type("Product", (), {"dot": held.acquire})()  # blocks, without a Python frame
    before = sampler._seen()

    def multiplies():
        product.dot(True)

    thread = threading.Thread(target=multiplies)
    thread.start()
    try:
        while not (seen := sampler._seen() - before):
            pass
    finally:
        held.release()
        thread.join()
    (place,) = seen
    assert (place.code, sampler._named(place)) == (multiplies.__code__, ("product", "a.dot(b)"))
    assert sampler._line(place) == multiplies.__code__.co_firstlineno + 1


@pytest.mark.parametrize("outer, seen", [("trnpy._call.dispatch", False), ("trnpy._cli.program", True)])
def test_a_product_inside_a_recorded_call_is_not_named_again(outer, seen):
    """PySCF's own J and K, which are one call in the report, multiply matrices by the method ``dot``."""
    found = []
    dot = functools.partial(lambda _: found.append(sampler._place(sys._getframe(1))))  # called by C, as arrays' method
    operand = type("Operand", (), {"dot": staticmethod(dot)})()
    inner: dict = {"__name__": "pyscf.df.df_jk"}
    exec("def get_jk(a, b):\n    return a.dot(b)", inner)
    calling: dict = {"__name__": outer}
    exec("def call(function, *operands):\n    return function(*operands)", calling)
    calling["call"](inner["get_jk"], operand, operand)
    assert (found[0] is not None) == seen


def test_the_report_says_what_no_patch_sees_where_and_what_to_do(module):
    ledger = small()
    for place in places("c = a.dot(b)\nd = a.dot(b)"):
        ledger.samples.add(place, 0.4)
        break
    assert past_patch(ledger) == [
        "at least 400 ms (sampled) in products by the method dot, which cannot be routed: "
        "a.dot(b) at script.py:1 400 ms; write a @ b or np.dot(a, b)"
    ]
    assert past_patch(ledger)[0] in sentences(ledger)
    assert ledger.to_dict()["unrouted"] == [
        {"kind": "product", "function": "a.dot(b)", "file": "script.py", "line": 1, "seconds": 0.4, "through": ""}
    ]
    outer = trnpy._report.ledger.Ledger(opened=OPENED)
    outer.absorb(ledger)
    assert outer.unrouted() == ledger.unrouted()


def test_small_calls_of_patched_functions_are_not_past_the_patch(module):
    """In the gate they have no frame of trnpy's, and those of a function in Python have one of NumPy's."""
    source = "for i in range(100): np.linalg.svd(np.eye(3))\nfor i in range(100): product(np.eye(3), np.eye(3))"
    code = compile(source, "script.py", "exec")
    with trnpy.patched(), trnpy.profile() as ledger:
        exec(code, vars(module))
    for step in sampler.dis.get_instructions(code):
        function = "numpy.linalg._linalg.svd" if step.positions.lineno == 1 else ""
        ledger.samples.add(Place(code, "script.py", step.offset, HERE, function), 0.4)
    assert {t.op: t.calls for t in ledger.tallies} == {"numpy.linalg.svd": 100}
    assert {(u.function, u.line) for u in ledger.unrouted()} == {("numpy.dot", 2)}


def test_what_takes_less_than_a_hundredth_of_the_run_is_left_out(module):
    ledger = small()
    ledger.samples.add(places("c = a.dot(b)")[0], 0.09)
    assert past_patch(ledger) == []


def test_the_thread_that_looks_uses_a_hundredth_of_the_time(monkeypatch):
    """Waiting for a lock that calls give away for microseconds costs the thread, and the program, processor time."""
    pauses, used = [], iter([0.0, 0.0001, 0.0061, 0.0062])

    def acquire(timeout):
        pauses.append(timeout)
        return len(pauses) == 4

    clock = types.SimpleNamespace(perf_counter=lambda: 0.04 * len(pauses), thread_time=lambda: next(used))
    monkeypatch.setattr(sampler, "time", clock)
    monkeypatch.setattr(sampler, "_seen", set)
    samples = Samples()
    sampler._look_until_woken(types.SimpleNamespace(wake=types.SimpleNamespace(acquire=acquire)), lambda: samples)
    usual = sampler.PERIOD_S
    assert pauses == pytest.approx([usual, usual, 0.006 / sampler.SHARE, usual], rel=1e-9)


def test_places_are_bounded(module):
    samples = Samples()
    for i in range(sampler.SITES + 10):
        samples.add(Place(compile("a.dot(b)", "", "eval"), f"{i}.py", 0, HERE, ""), 1.0)
    assert len(samples.seconds) == sampler.SITES


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")
def test_a_fork_does_not_wait_for_a_thread_that_looks_again():
    program = (
        "import os, threading, time, trnpy\n"
        "from trnpy._report import sampler\n"
        "sampler.AGAIN_S, sampler.PROMPT_S, again = 60, 60, threading.Event()\n"
        "place = sampler._place\n"
        "def placed(frame):\n"
        "    found = place(frame)\n"
        "    if found is not None: again.set()\n"
        "    return found\n"
        "sampler._place, held = placed, threading.Lock()\n"
        "product = type('Product', (), {'dot': held.acquire})()\n"
        "held.acquire()\n"
        "threading.Thread(target=lambda: product.dot(True), daemon=True).start()\n"
        "with trnpy.profile():\n"
        "    again.wait()\n"
        "    time.sleep(0.1)\n"
        "    for _ in range(2):\n"
        "        child = os.fork()\n"
        "        if not child: os._exit(0)\n"
        "        os.waitpid(child, 0)\n"
        "    print(sampler._Watch.thread is not None)\n"
        "time.sleep(0.2)\n"
        "print(sampler._Watch.thread)\n"
    )
    run = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", program], capture_output=True, text=True, timeout=50, check=False
    )
    assert (run.returncode, run.stdout, run.stderr) == (0, "True\nNone\n", "")


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")
def test_a_fork_does_not_wait_for_a_thread_that_has_failed():
    program = (
        "import os, threading, trnpy\n"
        "from trnpy._report import sampler\n"
        "failed = threading.Event()\n"
        "def fails():\n"
        "    failed.set()\n"
        "    raise RuntimeError('planted')\n"
        "sampler._seen = fails\n"
        "with trnpy.profile():\n"
        "    failed.wait()\n"
        "    child = os.fork()\n"
        "    if not child: os._exit(0)\n"
        "    os.waitpid(child, 0)\n"
        "    print('forked')\n"
    )
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=50, check=False)
    assert (run.returncode, run.stdout) == (0, "forked\n") and "planted" in run.stderr


def test_programs_see_no_thread_of_trnpys():
    program = (
        "import os, threading, trnpy\n"
        "with trnpy.profile():\n"
        "    assert threading.active_count() == len(threading.enumerate()) == 1\n"
        "    child = os.fork()\n"
        "    if not child: os._exit(0)\n"
        "    os.waitpid(child, 0)\n"
        "assert not trnpy.report().tallies\n"
    )
    if not hasattr(os, "fork"):
        pytest.skip("this system does not fork")
    run = subprocess.run([sys.executable, "-W", "error", "-c", program], capture_output=True, text=True)
    assert (run.returncode, run.stderr) == (0, "")
