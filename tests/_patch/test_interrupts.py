"""An interrupt at any line of entering or leaving a block, or of patching, leaves nothing behind."""

import copyreg
import functools
import random
import signal
import sys
import threading
import types

import numpy as np
import pytest
import scipy.linalg

import trnpy
from trnpy._patch.hook import Entered
from trnpy._patch.patch import _here
from trnpy._report import ledger

# An interrupt inside a finalizer, such as that of a weak reference, is Python's to report.
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
SOME = ("numpy.einsum", "numpy.matmul", "numpy.dot", "scipy.linalg.eigh", "scipy.sparse.matmul")
CHANGES = {"machine": "trn3", "device": "none"}
# They only read, and have a line for each name in each module: the signals below come inside them, too.
READS = ("_escaped", "excludes", "<dictcomp>", "<genexpr>", "<listcomp>", "<setcomp>")
PATHS = ("pathlib", "glob", "fnmatch", "codecs")  # the same for each thread of the process, whose waits a report reads
PASSING = types.ModuleType("passing_by")  # has names that were imported before a patch


class AtLine:
    """Raises KeyboardInterrupt at the ``n``-th line of Python code, counted from here, and sets ``reached``."""

    def __init__(self, n):
        self.left, self.reached = n, False

    def __enter__(self):
        sys.settrace(self.trace)
        return self

    def __exit__(self, *raised):
        sys.settrace(None)

    def trace(self, frame, event, argument):
        module = frame.f_globals.get("__name__", "")
        if frame.f_code.co_name in READS or module.partition(".")[0] in PATHS:
            return None
        if event == "line" and module != __name__:
            self.left -= 1
            if self.left == 0:
                self.reached = True
                sys.settrace(None)
                raise KeyboardInterrupt
        return self.trace


@pytest.fixture
def pristine(monkeypatch):
    """A function that asserts that nothing of trnpy is in place."""
    with trnpy.patched(SOME):  # SciPy's modules are imported, and hooks made
        pass
    monkeypatch.setitem(sys.modules, PASSING.__name__, PASSING)
    PASSING.einsum, PASSING.eigh = np.einsum, scipy.linalg.eigh
    originals = [np.einsum, np.matmul, np.dot, scipy.linalg.eigh, scipy.sparse._base._spbase._matmul_dispatch]
    policy, table = trnpy.current_policy(), dict(copyreg.dispatch_table)

    def check(where):
        found = [np.einsum, np.matmul, np.dot, scipy.linalg.eigh, scipy.sparse._base._spbase._matmul_dispatch]
        assert all(a is b for a, b in zip(found, originals, strict=True)), where
        assert (PASSING.einsum, PASSING.eigh) == (originals[0], originals[3]), where
        assert all(type(x).__module__ != "trnpy._patch.hook" for x in (PASSING.einsum, PASSING.eigh)), where
        assert not trnpy.is_patched() and trnpy.current_policy() == policy, where
        assert not (_here.uses or _here.placed or _here.rebound or _here.patches or _here.policy), where
        assert copyreg.dispatch_table == table and not Entered.rows, where
        assert ledger.ProcessLedger.ledger is None and not ledger.ProcessLedger.opened, where
        with pytest.raises(RuntimeError, match="no patch"):
            trnpy.unpatch()
        free = []
        other = threading.Thread(target=lambda: free.append(_here.lock.acquire(timeout=5) and _here.lock.release()))
        other.start(), other.join()
        assert free == [None], where

    check("before")
    yield check
    check("after")


def nested():
    with trnpy.patched("numpy.einsum"), trnpy.patched(SOME, rebind=True, **CHANGES):
        pass


def by_patch():
    try:
        trnpy.patch(SOME, rebind=True, **CHANGES)
    finally:
        if _here.patches:
            trnpy.unpatch()


BLOCKS = {
    "patched": lambda: trnpy.patched(SOME, rebind=True, **CHANGES),
    "patched without settings": lambda: trnpy.patched("numpy.einsum"),
    "original": trnpy.original,
    "policy": lambda: trnpy.policy(**CHANGES),
    "profile": trnpy.profile,
}


def entered(block, at):
    """Enter and leave a block; the interrupt comes while it is entered."""
    made = block()
    with at:
        enter = made.__enter__
        enter()
    made.__exit__(None, None, None)


def left(block, at):
    """Enter and leave a block; the interrupt comes while it is left."""
    made = block()
    made.__enter__()
    with at:
        made.__exit__(None, None, None)


def interrupted(call):
    """Lines at which ``call(at)`` was interrupted: all of them, one call each."""
    n = 0
    while True:
        n += 1
        at = AtLine(n)
        try:
            call(at)
        except KeyboardInterrupt:
            pass
        except RuntimeError as why:  # up to Python 3.11 what a __set_name__ raises arrives so
            if not isinstance(why.__cause__, KeyboardInterrupt):
                raise
        yield n
        if not at.reached:
            return


@pytest.mark.parametrize("step", [entered, left])
@pytest.mark.parametrize("name", BLOCKS)
def test_an_interrupt_at_any_line_of_entering_or_leaving_a_block_leaves_nothing(name, step, pristine):
    lines = 0
    for lines in interrupted(functools.partial(step, BLOCKS[name])):
        pristine(f"{name} {step.__name__} at line {lines}")
    assert lines > 5


def patching(at):
    with at:
        trnpy.patch(SOME, rebind=True, **CHANGES)
    trnpy.unpatch()


def unpatching(at):
    trnpy.patch(SOME, rebind=True, **CHANGES)
    try:
        with at:
            trnpy.unpatch()
    finally:
        if _here.patches:  # it came before anything was taken back
            trnpy.unpatch()


def undoing(at):
    outer, inner = trnpy.patch("numpy.einsum", machine="trn1"), trnpy.patch(SOME, rebind=True, **CHANGES)
    try:
        with at:
            outer.undo()
    finally:
        while _here.patches:
            trnpy.unpatch()
    del inner


@pytest.mark.parametrize("call", [patching, unpatching, undoing])
def test_an_interrupt_at_any_line_of_patch_and_unpatch_leaves_nothing(call, pristine):
    lines = 0
    for lines in interrupted(call):
        pristine(f"{call.__name__} at line {lines}")
    assert lines > 50


def test_signals_in_short_blocks_leave_nothing(pristine):
    """Signals come between any two instructions, not at lines only; one that a finalizer swallows ends its loop."""
    rng, fired, caught = random.Random(0), 0, 0

    def interrupt(number, frame):
        nonlocal fired
        fired += 1
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        for i in range(300):
            try:
                signal.setitimer(signal.ITIMER_REAL, rng.uniform(5e-5, 2e-3))
                while fired == i:
                    nested()
                    by_patch()
            except KeyboardInterrupt:
                caught += 1
            pristine(f"signal {i}")
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert fired == 300 and caught > 250
