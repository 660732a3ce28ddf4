"""Small calls of patched functions: counted by line, and decided anew after each change, compiled or not."""

import gc
import itertools
import sys
import threading
import weakref
from contextvars import ContextVar

import numpy as np
import pytest
from patching import LARGE, A, pristine  # noqa: F401

import trnpy
from trnpy._call.decisions import Op
from trnpy._cli import doctor
from trnpy._patch import hook, patch
from trnpy._report.small_calls import EXACT, STRIDE
from trnpy._settings import policy as policies
from trnpy._settings.policy import Attention

compiled = pytest.mark.skipif(hook.Gated is None, reason="trnpy was installed without a C compiler")


# --- The gate by itself -----------------------------------------------------------------------------------------------


class Settings:
    first, second, third, fourth = (object() for _ in range(4))


class Stand:
    """A gate for calls of up to ten elements, whose sizes multiply to at most 24, and what passed it."""

    def __init__(self):
        self.context = ContextVar("context", default=None)
        self.count = iter(range(1000))
        self.decided, self.passed = [], []
        settings = tuple((Settings, name) for name in ("first", "second", "third", "fourth"))
        self.gate = hook.Gated(self.decides, self.direct, self.context, settings)
        self.left = 5

    def decides(self, *args, **kwargs):
        self.decided.append((args, kwargs))
        now = Settings.first, Settings.second, Settings.third, Settings.fourth
        if self.left:
            self.gate._let_pass(sys._getframe(1), self.context.get(), now, self.count, self.left, 10, 24)
        return "decided"

    def direct(self, *args, **kwargs):
        self.passed.append((args, kwargs))
        return "passed"


@compiled
def test_as_many_calls_pass_as_were_let_and_each_takes_one_from_the_count():
    stand = Stand()
    said = [stand.gate(A, order=None) for _ in range(13)]
    assert said == [*["decided", *5 * ["passed"]] * 2, "decided"]
    assert next(stand.count) == 10
    assert [args for args, _ in stand.passed] == 10 * [(A,)] and stand.passed[0][1] == {"order": None}


@compiled
@pytest.mark.parametrize(
    "args, kwargs",
    [
        ((np.ones(11),), {}),
        ((np.ones(9), np.ones(2)), {}),
        ((np.ones((3, 3)),), {"out": np.ones(2)}),
        ((np.ones(5), np.ones(5)), {}),
        (([1.0],), {}),
        ((np.float64(1.0).reshape(1).view(np.matrix),), {}),
        ((A,), {"axes": (0, 1)}),
        ((A, 1, 2, 3, 4), {}),
    ],
    ids=["size", "sizes", "keyword", "product", "list", "subclass", "option", "many"],
)
def test_calls_that_are_not_small_or_not_plain_do_not_pass(args, kwargs):
    stand = Stand()
    said = [stand.gate(*a, **k) for a, k in [((A,), {}), (args, kwargs), (args, kwargs)]]
    assert said == 3 * ["decided"]


@compiled
def test_options_and_numbers_pass():
    stand = Stand()
    said = [stand.gate(A, np.ones(6), 2, key) for key in (None, "C", True, 1.5, np.float64(1))]
    assert said == ["decided", *4 * ["passed"]]


@compiled
def test_an_empty_array_hides_no_other_operand():
    stand = Stand()
    empty = np.ones((0, 7))
    said = [stand.gate(a, b) for a, b in ((A, empty), (empty, A), (np.ones(11), empty), (empty, empty))]
    assert said == ["decided", "passed", "decided", "passed"]


@compiled
def test_calls_from_another_place_do_not_pass():
    stand = Stand()
    lines = [lambda: stand.gate(A), lambda: stand.gate(A)]
    assert [lines[0](), lines[0](), lines[1](), lines[0](), lines[1]()] == [
        "decided",
        "passed",
        "decided",
        *2 * ["passed"],
    ]


@compiled
@pytest.mark.parametrize("name", ["first", "second", "third", "fourth"])
def test_no_call_passes_after_a_setting_has_changed(name, monkeypatch):
    stand = Stand()
    said = []
    for turn in range(4):
        if turn == 2:
            monkeypatch.setattr(Settings, name, object())
        said.append(stand.gate(A))
    assert said == ["decided", "passed", "decided", "passed"]


@compiled
def test_no_call_passes_in_another_context():
    stand = Stand()
    said = []
    for turn in range(4):
        if turn == 2:
            stand.context.set("block")
        said.append(stand.gate(A))
    assert said == ["decided", "passed", "decided", "passed"]


@compiled
def test_what_is_wrong_inside_is_raised(monkeypatch):
    stand = Stand()
    stand.count = iter([])
    assert [stand.gate(A) for _ in range(2)] == 2 * ["decided"]  # nothing is left to count with
    stand.count = (1 / 0 for _ in range(1))
    with pytest.raises(ZeroDivisionError):
        [stand.gate(A) for _ in range(2)]
    with pytest.raises(TypeError, match="4 settings"):
        stand.gate._let_pass(sys._getframe(), None, (1,), iter([]), 1, 10, 24)
    with pytest.raises(TypeError, match="4 settings"):
        hook.Gated(stand.decides, stand.direct, stand.context, ())
    with pytest.raises(TypeError, match="must be type"):
        hook.Gated(stand.decides, stand.direct, stand.context, 4 * ((stand, "left"),))
    stand = Stand()
    said = [stand.gate(A)]
    monkeypatch.delattr(Settings, "third")
    with pytest.raises(AttributeError, match="third"):
        for _ in range(1):
            said += [stand.gate(A) for _ in range(2)]


@compiled
def test_a_gate_keeps_nothing_alive_after_its_end():
    stand = Stand()
    for _ in range(3):
        stand.gate(A)
    count = itertools.count()
    before = sys.getrefcount(count)
    stand.gate._let_pass(sys._getframe(), None, (1, 2, 3, 4), count, 1, 10, 24)
    assert sys.getrefcount(count) == before + 1
    gone = weakref.ref(stand)
    del stand
    gc.collect()
    assert gone() is None and sys.getrefcount(count) == before


@compiled
def test_all_places_of_a_long_function_pass():
    """Two instructions 128 bytes apart once took each other's entry, as two products in SciPy's rk_step did."""
    stand = Stand()
    stand.left = 1000
    space = {"gate": stand.gate, "a": A}
    exec("def calls():\n" + "    gate(a)\n" * 60, space)
    for _ in range(3):
        space["calls"]()
    assert len(stand.decided) == 60 and len(stand.passed) == 120


@compiled
def test_more_places_than_entries_are_decided_or_pass():
    stand = Stand()
    lines = [eval("lambda gate, a: gate(a)") for _ in range(2000)]
    said = [line(stand.gate, A) for _ in range(3) for line in lines]
    assert len(stand.decided) + len(stand.passed) == 6000 == len(said) and stand.passed
    assert next(stand.count) == len(stand.passed)


@compiled
def test_a_count_that_calls_the_gate_and_replaces_its_own_entry():
    stand = Stand()

    def counted():
        while True:
            stand.count = iter(range(1000))
            gc.collect()
            yield call(np.ones(11))  # decided, and let pass with the new count

    def call(a):
        return stand.gate(a)

    stand.count = counted()
    assert [call(A) for _ in range(3)] == ["decided", "passed", "passed"]


@compiled
def test_calls_keep_no_references():
    settings = tuple((Settings, name) for name in ("first", "second", "third", "fourth"))
    now = Settings.first, Settings.second, Settings.third, Settings.fourth
    context, a, result = ContextVar("context"), np.ones(6), object()
    block, count = object(), itertools.repeat(result)
    context.set(block)

    def decides(*args, **kwargs):
        gate._let_pass(sys._getframe(1), block, now, count, 2, 10, 24)

    def direct(a, order=""):
        return a

    gate = hook.Gated(decides, direct, context, settings)
    kept = [a, block, count, result, gate, decides, direct, *now]

    def calls():
        assert sum(gate(a, order="C") is not None for _ in range(3000)) == 2000

    calls()
    before = [sys.getrefcount(x) for x in kept]
    calls()
    assert max(abs(sys.getrefcount(x) - n) for x, n in zip(kept, before, strict=True)) <= 2


# --- Hooks, with and without it ---------------------------------------------------------------------------------------


@pytest.fixture(params=[pytest.param("compiled", marks=compiled), "python"])
def recorded(request, monkeypatch):
    """A ledger of a process in which no thread has settings of its own."""
    if request.param == "python":
        monkeypatch.setattr(hook, "Gated", None)
    monkeypatch.setattr(patch._here, "hooks", {})  # new ones are made
    monkeypatch.setattr(Attention, "apart", False)
    standing = trnpy.patch(["numpy.dot", "numpy.inner", "numpy.einsum", "numpy.linalg.inv"])
    with trnpy.profile() as ledger:
        yield ledger
    standing.undo()


def counts(ledger, name="numpy.dot"):
    return sorted((t.calls for t in ledger.by_line() if t.op == name), reverse=True)


def test_lines_are_counted_exactly(recorded):
    n = 1000
    for i in range(n):
        np.dot(A, A)
        np.inner(A, A)
        if i % 3 == 0:
            np.dot(A, A)
    assert counts(recorded) == [n, 334] and counts(recorded, "numpy.inner") == [n]
    timed = {t.calls: t.timed for t in recorded.by_line() if t.op == "numpy.dot"}
    assert all(EXACT + calls // STRIDE - 2 <= timed[calls] <= EXACT + calls // STRIDE + 2 for calls in timed)


def test_a_library_s_lines_are_counted_and_timed_each_for_itself(recorded):
    """Two lines of a library count for one line of the program, and take no samples in each other's turn."""
    library = {"__name__": "scipy.integrate", "np": np, "a": A}
    exec("def step():\n    for _ in range(5):\n        np.dot(a, a)\n    np.dot(a, a)\n", library)
    n = 500
    for _ in range(n):
        library["step"]()
    assert [t.calls for t in recorded.by_line() if t.op == "numpy.dot"] == [6 * n]
    entered = sum(small.timed + small.sampled for small in recorded.small)
    assert 2 * EXACT + 6 * n // STRIDE - 3 <= entered <= 2 * EXACT + 6 * n // STRIDE + 3


def test_einsums_that_are_too_small_for_a_route_need_no_look_at_them(recorded, monkeypatch):
    looked = []
    monkeypatch.setattr(Op, "look", property(lambda op: lambda args, kwargs: looked.append(args)))
    np.einsum("ni,nj->ij", np.ones((900, 3)), np.ones((900, 3)))  # of so many elements it loads its row
    assert len(looked) == 1
    for _ in range(400):
        np.einsum("ni,nj->ij", np.ones((50, 3)), np.ones((50, 3)))
    assert len(looked) == 1 and sum(counts(recorded, "numpy.einsum")) == 401


def test_calls_of_threads_are_counted_exactly(recorded):
    def work():
        for _ in range(2000):
            np.dot(A, A)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert counts(recorded) == [8000]


def test_a_large_call_among_small_ones_is_decided_each_time(recorded):
    for i in range(2000):
        np.dot(LARGE if i % 100 == 99 else A, LARGE if i % 100 == 99 else A)
    modelled = {bool(t.machine): t.calls for t in recorded.by_line()}  # which small calls are not
    assert modelled == {True: 20, False: 1980}


def test_a_large_operand_by_keyword_is_decided(recorded):
    for i in range(200):
        np.linalg.inv(a=LARGE if i == 150 else A)
    assert sorted(counts(recorded, "numpy.linalg.inv")) == [1, 199]


@pytest.mark.parametrize("change", ["policy", "process policy", "trace", "original", "patched", "profile", "unpatched"])
def test_the_first_call_after_a_change_is_decided(recorded, change):
    n = 300

    def dots(times):
        return [np.dot(A, A) for _ in range(times)]

    dots(n)
    if change == "policy":
        with trnpy.trace() as decisions, trnpy.policy(device="simulator", force=True):
            dots(1)
        assert [d.on_device for d in decisions] == [True]
    elif change == "process policy":
        former = policies.set_process_policy(policies.Policy(device="simulator", force=True))
        dots(1)
        policies.set_process_policy(former)
        assert {t.ran_on for t in recorded.by_line()} == {"host", "simulator engine"}
    elif change == "trace":
        with trnpy.trace() as decisions:
            dots(1)
        assert [str(d.reason) for d in decisions] == ["small"]
    elif change == "original":
        with trnpy.original():
            dots(100)
        assert counts(recorded) == [n]
    elif change == "patched":
        with trnpy.patched():
            dots(100)
        assert sum(counts(recorded)) == n + 100
    elif change == "profile":
        with trnpy.profile() as inner:
            dots(100)
        assert counts(inner) == [100] and sum(counts(recorded)) == n + 100
    else:
        trnpy.patch("numpy.dot").undo()  # the activation of the process is another one
        dots(100)
        assert sum(counts(recorded)) == n + 100


def test_calls_that_nobody_records_run_the_original(recorded, monkeypatch):
    ledger = hook._ledger.ProcessLedger.ledger
    monkeypatch.setattr(hook._ledger.ProcessLedger, "ledger", None)
    monkeypatch.setattr(Attention, "asked", False)
    np.dot(LARGE, LARGE)  # decided: from now on the policy is known
    for _ in range(100):
        assert np.array_equal(np.dot(A, A), A @ A)
    monkeypatch.setattr(hook._ledger.ProcessLedger, "ledger", ledger)
    np.dot(A, A)
    assert counts(recorded) == [1]


@pytest.mark.parametrize("without", [False, True])
def test_the_doctor_says_where_small_calls_are_not_compiled(without, monkeypatch, capsys):
    if without:
        monkeypatch.setattr(hook, "Gated", None)
    doctor.doctor([])
    said = capsys.readouterr().out
    for line in ("small calls", "a @ b"):
        found = [x for x in said.splitlines() if line in x and "installed without a C compiler" in x]
        assert len(found) == (hook.Gated is None)
