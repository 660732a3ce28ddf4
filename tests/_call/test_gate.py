"""Small calls of patched functions: counted by line, and decided anew after each change, compiled or not."""

import contextvars
import gc
import importlib.util
import sys
import threading
import time
import weakref
from contextvars import ContextVar

import numpy as np
import pytest
from patching import LARGE, A, pristine  # noqa: F401

import trnpy
from trnpy._call import gate
from trnpy._call.decisions import Op
from trnpy._call.fast_path import sizes
from trnpy._cli import doctor
from trnpy._patch import hook, patch
from trnpy._report import ledger as ledgers
from trnpy._report.small_calls import EXACT, STRIDE
from trnpy._settings import policy as policies
from trnpy._settings.policy import Attention

compiled = pytest.mark.skipif(gate.compiled is None, reason="trnpy was installed without a C compiler")


# --- The gate by itself -----------------------------------------------------------------------------------------------


class Settings:
    policy, ledger, calibration, activation = (object() for _ in range(4))
    apart = False


NOTHING = object()
VARIABLES = tuple(ContextVar(name, default=None) for name in ("activation", "policy", "engine", "trace"))
OWNERS = tuple((Settings, name) for name in ("policy", "ledger", "calibration", "apart", "activation"))


def state(own=None):
    return Settings.activation, Settings.policy, own, Settings.ledger, Settings.calibration


class Stand:
    """A gate for calls of up to ten elements, whose sizes multiply to at most 24, and what passed it."""

    def __init__(self, monkeypatch=None, recorded=True):
        if not recorded:
            monkeypatch.setattr(Settings, "ledger", None)
        self.count, self.tag, self.recorded, self.own = np.zeros(1, np.int64), None, recorded, None
        self.decided, self.passed = [], []
        self.gate = gate.compiled.Gated(self.decides, self.direct, NOTHING, VARIABLES, OWNERS, False, False)
        self.gate._limit(10, 24, False)
        self.left, self.sample = 5, None

    def decides(self, *args, **kwargs):
        self.decided.append((args, kwargs))
        if not self.recorded:
            self.gate._settle(state(self.own))
        elif self.left:
            self.gate._let_pass(state(self.own), sys._getframe(1), self.tag, self.count, self.left, self.sample)
        return "decided"

    def direct(self, *args, **kwargs):
        self.passed.append((args, kwargs))
        return "passed"


@compiled
def test_as_many_calls_pass_as_were_let_and_each_takes_one_from_the_count():
    stand = Stand()
    said = [stand.gate(A, order=None) for _ in range(13)]
    assert said == [*["decided", *5 * ["passed"]] * 2, "decided"]
    assert stand.count[0] == 10
    assert [args for args, _ in stand.passed] == 10 * [(A,)] and stand.passed[0][1] == {"order": None}


@compiled
def test_a_place_that_is_sampled_tells_the_time_of_each_call_after_so_many():
    stand, told = Stand(), []
    stand.left, stand.sample = 3, lambda started, seconds: told.append((started, seconds, len(stand.passed)))
    before = time.perf_counter()
    said = [stand.gate(A) for _ in range(12)]
    assert said == ["decided", *11 * ["passed"]] and stand.count[0] == 11
    assert [n for *_, n in told] == [4, 8]
    assert all(before <= started and 0 <= seconds < time.perf_counter() - before for started, seconds, _ in told)
    stand.left, stand.sample = 1, lambda started, seconds: 1 / 0
    with pytest.raises(ZeroDivisionError):
        [stand.gate(A) for _ in range(3)]


NOT_SMALL = {
    "size": ((np.ones(11),), {}),
    "sizes": ((np.ones(9), np.ones(2)), {}),
    "keyword": ((np.ones((3, 3)),), {"out": np.ones(2)}),
    "product": ((np.ones(5), np.ones(5)), {}),
    "list": (([1.0] * 11,), {}),
    "lists": (([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0], [7.0, 8.0]],), {}),
    "list of arrays": (([np.ones(5), np.ones(5)],), {}),
    "list of objects": (([1.0, object()],), {}),
    "subclass": ((np.float64(1.0).reshape(1).view(np.matrix),), {}),
    "option": ((A,), {"dtype": float}),
    "many": ((A, 1, 2, 3, 4), {}),
}


@compiled
@pytest.mark.parametrize("case", NOT_SMALL)
@pytest.mark.parametrize("recorded", [True, False])
def test_calls_that_are_not_small_or_not_plain_do_not_pass(case, recorded, monkeypatch):
    stand, (args, kwargs) = Stand(monkeypatch, recorded), NOT_SMALL[case]
    said = [stand.gate(*a, **k) for a, k in [((A,), {}), (args, kwargs), (args, kwargs)]]
    assert said == 3 * ["decided"]


@compiled
@pytest.mark.parametrize("recorded", [True, False])
def test_options_and_numbers_pass(recorded, monkeypatch):
    stand = Stand(monkeypatch, recorded)
    options = None, "C", True, 1.5, np.float64(1), 1j, np.int64(1), (0, 1), [(0,), (1,)]
    said = [stand.gate(A, np.ones(2), 2, key) for key in options]
    assert said == ["decided", *5 * ["passed"]] + (["decided"] if recorded else ["passed"]) + 2 * ["passed"]


@compiled
@pytest.mark.parametrize("recorded", [True, False])
def test_lists_of_numbers_and_of_arrays_pass_and_count_with_all_they_hold(recorded, monkeypatch):
    stand = Stand(monkeypatch, recorded)
    said = [stand.gate(a) for a in ([[1.0, 2], [3, 4]], [1.0] * 10, (np.ones(4), np.ones(4)), [A, 2])]
    assert said == ["decided", *3 * ["passed"]]


def test_the_members_of_long_lists_are_not_looked_at_one_by_one():
    assert sizes(([1.0] * 1000,), {})[0] == 1000
    assert sizes(([[1.0] * 50] * 50,), {})[0] == 50 + 2500
    assert sizes(([A] * 3,), {})[:2] == (3 + 3 * A.size, A.size**3)
    for long in ([("ij,jk->ik", A, A)] * 1000, [[1.0]] * 1000, [A] * 100):
        assert sizes((long,), {})[0] == np.inf


@compiled
def test_a_list_that_holds_itself_is_decided():
    stand, endless = Stand(), []
    endless.append(endless)
    assert [stand.gate(A), stand.gate(endless)] == 2 * ["decided"]
    stand.gate._remember(state(), None, None, (endless,), {})
    assert stand.gate._known(state(), (endless,), {}) is None
    assert sizes((endless,), {})[0] == np.inf


@compiled
def test_an_empty_array_hides_no_other_operand():
    stand = Stand()
    empty = np.ones((0, 7))
    said = [stand.gate(a, b) for a, b in ((A, empty), (empty, A), (np.ones(11), empty), (empty, empty))]
    assert said == ["decided", "passed", "decided", "passed"]


@compiled
def test_recorded_calls_from_another_place_do_not_pass_and_others_do(monkeypatch):
    for recorded, last in ((True, "decided"), (False, "passed")):
        stand = Stand(monkeypatch, recorded)
        lines = [lambda s=stand: s.gate(A), lambda s=stand: s.gate(A)]
        assert [lines[i]() for i in (0, 0, 1, 0, 1)] == ["decided", "passed", last, *2 * ["passed"]]


LARGE_F8, LARGE_F4 = np.ones((5, 7)), np.ones((5, 7), "f4")
KINDS = {
    "dtype": ((LARGE_F4,), {}),
    "shape": ((LARGE_F8.T,), {}),
    "dimensions": ((LARGE_F8[None],), {}),
    "byte order": ((LARGE_F8.astype(">f8"),), {}),
    "more": ((LARGE_F8, None), {}),
    "option": ((LARGE_F8,), {"order": "C"}),
    "bools": ((LARGE_F8 > 0,), {}),
    "integers": ((np.arange(12),), {}),
    "other integers": ((np.arange(12) + (np.arange(12) > 10),), {}),
    "short integers": ((np.arange(13, dtype="i1"),), {}),
    "other short integers": ((np.arange(13, dtype="i1") + (np.arange(13) > 11),), {}),
    "a number": ((LARGE_F8, np.array(1.0)), {}),
    "another number": ((LARGE_F8, np.array(2.0)), {}),
    "list": (([LARGE_F8],), {}),
    "tuple": (((LARGE_F8,),), {}),
    "axes": ((LARGE_F8, (0, 1)), {}),
    "other axes": ((LARGE_F8, (1, 0)), {}),
    "list of axes": ((LARGE_F8, [0, 1]), {}),
    "nested axes": ((LARGE_F8, ((0,), 1)), {}),
    "twice in a list": (([LARGE_F8, LARGE_F8],), {}),
    "two in a list": (([LARGE_F8, 2 * LARGE_F8],), {}),
}


@compiled
@pytest.mark.parametrize("case", KINDS)
def test_calls_of_a_kind_that_is_remembered_run_its_function_and_no_others(case, monkeypatch):
    stand, (args, kwargs) = Stand(monkeypatch, recorded=False), KINDS[case]
    assert stand.gate(LARGE_F8) == "decided"
    stand.gate._remember(state(), lambda a: "other", None, (LARGE_F8,), {})
    assert stand.gate(LARGE_F8) == stand.gate(2 * LARGE_F8) == "other"
    assert stand.gate(*args, **kwargs) == "decided"
    stand.gate._remember(state(), lambda *a, **k: "this", None, args, kwargs)
    assert stand.gate(*args, **kwargs) == ("decided" if case == "byte order" else "this")
    for other in KINDS.keys() - {case}:
        assert stand.gate(*KINDS[other][0], **KINDS[other][1]) == "decided"


@compiled
def test_kinds_by_keyword_are_remembered_but_for_arrays(monkeypatch):
    stand = Stand(monkeypatch, recorded=False)
    outputs = ({"out": out} for out in (LARGE_F8, (LARGE_F8,), [LARGE_F8]))
    options = ({"order": "C", "n": 3}, "this"), ({"axes": (0, 1)}, "this"), ({"axes": [(0,), [1]]}, "this")
    cases = *options, *((out, "decided") for out in outputs)
    for kwargs, said in cases:
        stand.gate._remember(state(), lambda *a, **k: "this", None, (LARGE_F8,), kwargs)
        assert stand.gate(LARGE_F8, **kwargs) == said
    assert stand.gate(LARGE_F8, n=3, order="C") == "decided"


@compiled
def test_recorded_kinds_pass_where_calls_with_their_tag_do():
    stand, tag = Stand(), object()
    stand.tag = tag
    stand.gate._remember(state(), lambda a: "other", tag, (LARGE_F8,), {})
    assert [stand.gate(a) for a in (LARGE_F8, LARGE_F8, A, LARGE_F8)] == ["decided", "other", "decided", "other"]
    assert stand.gate._known(state(), (LARGE_F8,), {})[1] is tag and stand.gate._known(state(), (A,), {}) is None


@compiled
@pytest.mark.parametrize("name", ["policy", "ledger", "calibration", "activation"])
@pytest.mark.parametrize("recorded", [True, False])
def test_no_call_passes_after_a_setting_has_changed(name, recorded, monkeypatch):
    stand = Stand(monkeypatch, recorded)
    said = []
    for turn in range(4):
        if turn == 2:
            monkeypatch.setattr(Settings, name, object())
            stand.recorded = True
        said.append(stand.gate(A))
    assert said == ["decided", "passed", "decided", "passed"]


@compiled
@pytest.mark.parametrize("variable", range(4))
def test_no_call_passes_in_another_context(variable, monkeypatch):
    """An engine and a trace of a context let none pass, an activation and a policy those that follow."""
    stand, said, block = Stand(), [], object()
    monkeypatch.setattr(Settings, "apart", variable > 0)

    def calls():
        if variable == 0:
            monkeypatch.setattr(Settings, "activation", block)
        stand.own = block if variable == 1 else None
        VARIABLES[variable].set(block)
        return [stand.gate(A) for _ in range(2)]

    said = [stand.gate(A) for _ in range(2)] + contextvars.copy_context().run(calls)
    assert said == ["decided", "passed", "decided", "passed" if variable < 2 else "decided"]


@compiled
def test_all_calls_pass_where_no_patch_is_active():
    stand = Stand()

    def calls():
        VARIABLES[0].set(NOTHING)
        return stand.gate([LARGE_F8], a=1, b=2)

    assert contextvars.copy_context().run(calls) == "passed"


@compiled
def test_what_a_function_calls_sees_no_patch_if_it_is_to_be_alone(monkeypatch):
    monkeypatch.setattr(Settings, "ledger", None)

    def direct(fails=0):
        return VARIABLES[0].get() is NOTHING, 1 // (1 - fails)

    gated = gate.compiled.Gated(lambda *a: gated._settle(state()), direct, NOTHING, VARIABLES, OWNERS, True, False)
    gated._limit(10, 24, False)
    gated()
    assert gated() == (True, 1) and VARIABLES[0].get() is None
    with pytest.raises(ZeroDivisionError):
        gated(1)
    assert VARIABLES[0].get() is None


@compiled
def test_what_is_wrong_inside_is_raised():
    stand = Stand()
    with pytest.raises(TypeError, match="state of 5 objects"):
        stand.gate._let_pass((1,), sys._getframe(), None, None, 1, None)
    for count in (1, iter([]), np.zeros(2, np.int64), np.zeros(1), np.zeros(1, np.int64).astype(">i8")):
        with pytest.raises(TypeError, match="array of one int64"):
            stand.gate._let_pass(state(), sys._getframe(), None, count, 1, None)
    with pytest.raises(TypeError, match="4 variables and 5 attributes"):
        gate.compiled.Gated(stand.decides, stand.direct, NOTHING, (), OWNERS, False, False)
    with pytest.raises(TypeError, match="must be type"):
        gate.compiled.Gated(stand.decides, stand.direct, NOTHING, VARIABLES, 5 * ((stand, "left"),), False, False)


@compiled
def test_a_gate_keeps_nothing_alive_after_its_end():
    stand = Stand()
    for _ in range(3):
        stand.gate(A)
    count, tag = np.zeros(1, np.int64), object()
    before = sys.getrefcount(count), sys.getrefcount(tag)
    stand.gate._let_pass(state(), sys._getframe(), tag, count, 1, None)
    stand.gate._remember(state(), stand.direct, tag, (LARGE_F8,), {})
    assert (sys.getrefcount(count), sys.getrefcount(tag)) == (before[0] + 1, before[1] + 2)
    gone = weakref.ref(stand)
    del stand
    gc.collect()
    assert gone() is None and (sys.getrefcount(count), sys.getrefcount(tag)) == before


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
    assert stand.count[0] == len(stand.passed)


@compiled
def test_a_product_of_sizes_does_not_limit_dtypes_of_blas():
    stand, wide = Stand(), [np.ones(5), np.ones(5)]
    stand.gate._limit(10, 24, True)
    assert [stand.gate(*wide) for _ in range(2)] == ["decided", "passed"]
    for dtype in ("f4", "c8", "c16"):
        assert stand.gate(*[a.astype(dtype) for a in wide]) in ("decided", "passed")
    decided = len(stand.decided)
    for dtype in ("i8", "?", "f2", "g"):
        assert stand.gate(wide[0], wide[1].astype(dtype)) == "decided"
    assert len(stand.decided) == decided + 4
    assert sizes(tuple(wide), {})[2] and not sizes((wide[0], wide[1].astype(int)), {})[2]


@compiled
def test_a_class_whose_attributes_change_often_is_read_each_time(monkeypatch):
    """Python gives a class only so many version tags, by which the gate recognises a change."""
    stand = Stand()
    monkeypatch.setattr(Settings, "policy", Settings.policy)  # restored afterwards
    for _ in range(5000):
        Settings.policy = object()
        assert [stand.gate(A) for _ in range(2)] == ["decided", "passed"]


@compiled
def test_calls_keep_no_references():
    a, tag = np.ones(6), object()
    count = np.zeros(1, np.int64)

    def decides(*args, **kwargs):
        gated._let_pass(state(), sys._getframe(1), None, count, 2, None)
        gated._remember(state(), direct, tag, (LARGE_F8,), {})

    def direct(a, order=""):
        return a

    gated = gate.compiled.Gated(decides, direct, NOTHING, VARIABLES, OWNERS, False, False)
    gated._limit(10, 24, False)
    kept = [a, count, tag, gated, decides, direct, *state()]

    def calls():
        assert sum(gated(a, order="C") is not None for _ in range(3000)) == 2000

    calls()
    before = [sys.getrefcount(x) for x in kept]
    calls()
    assert max(abs(sys.getrefcount(x) - n) for x, n in zip(kept, before, strict=True)) <= 2


# --- Hooks, with and without it ---------------------------------------------------------------------------------------


@pytest.fixture(params=[pytest.param("compiled", marks=compiled), "python"])
def recorded(request, monkeypatch):
    """A ledger of a process in which no thread has settings of its own."""
    if request.param == "python":
        monkeypatch.setattr(gate, "compiled", None)
        monkeypatch.setattr(hook, "compiled", None)
        monkeypatch.setattr(hook, "HOOK", None)
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
    entered = sum(small.timed + small.sampled for small in recorded.small.values())
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
    with monkeypatch.context() as nobody:  # restored here: the fixture closes its ledger before monkeypatch ends
        nobody.setattr(ledgers.ProcessLedger, "ledger", None)
        nobody.setattr(Attention, "asked", False)
        np.dot(LARGE, LARGE)  # decided: from now on the policy is known
        for _ in range(100):
            assert np.array_equal(np.dot(A, A), A @ A)
    np.dot(A, A)
    assert counts(recorded) == [1]


def test_without_a_compiled_gate_stand_ins_are_python_objects(monkeypatch):
    monkeypatch.delattr("trnpy._call._gate", raising=False)
    monkeypatch.setitem(sys.modules, "trnpy._call._gate", None)  # as if there had been no compiler
    spec = importlib.util.spec_from_file_location("gate_without_compiler", gate.__file__)
    (module := importlib.util.module_from_spec(spec)).__spec__.loader.exec_module(module)
    assert not module.is_compiled() and module.gated(module.Face) is None
    stand_in = module.stand_in(module.Face, None, np.dot, lambda: None, "numpy.dot", function=lambda *args: args)
    assert isinstance(stand_in, module.Face) and stand_in.__name__ == "dot"


@pytest.mark.parametrize("without", [False, True])
def test_the_doctor_says_where_small_calls_are_not_compiled(without, monkeypatch, capsys):
    if without:
        monkeypatch.setattr(gate, "compiled", None)
    doctor.doctor([])
    said = capsys.readouterr().out
    for line in ("small calls", "a @ b"):
        found = [x for x in said.splitlines() if line in x and "installed without a C compiler" in x]
        assert len(found) == (gate.compiled is None)
