"""Functions without a path: explain and reports name them with a reason, and no reason is out of date."""

import importlib
import types

import numpy as np
import pytest
import scipy.fft
import scipy.fftpack
import scipy.linalg
import scipy.sparse
import scipy.sparse.linalg

import trnpy
import trnpy.linalg
import trnpy.sparse.linalg
from trnpy._report import no_path, text
from trnpy._report.sampler import NO_PATH, Unrouted

MODULES = np.linalg, np.fft, scipy.linalg, scipy.fft, scipy.fftpack, scipy.sparse.linalg
OURS = {np.linalg: trnpy.linalg, scipy.linalg: trnpy.linalg, scipy.sparse.linalg: trnpy.sparse.linalg}


def functions(module):
    """Public functions by name; no classes, and none of Python's own such as a test runner."""
    found = {name: getattr(module, name) for name in module.__all__}
    return {n: f for n, f in found.items() if callable(f) and not isinstance(f, type) and n != "test"}


@pytest.mark.parametrize("module", MODULES, ids=lambda m: m.__name__)
def test_every_public_function_has_a_row_or_a_reason(module):
    explained = 0
    for name, function in functions(module).items():
        ours = getattr(OURS.get(module), name, None)
        if hasattr(ours, "__trnpy_op__"):
            assert not no_path.pathless(function), name
            continue
        decision = trnpy.explain(function, "whatever it takes")
        assert not decision.on_device and decision.reason is trnpy.Reason.NO_PATH
        assert decision.op.rpartition(".")[2] == function.__name__ and decision.detail == no_path.why(decision.op)
        explained += 1
    assert explained >= 5


def test_no_reason_is_out_of_date():
    """Each name is a public function's that has no row, in one module at least."""
    for name in no_path.NAMES:
        holders = [m for m in MODULES if name in functions(m)]
        installed = holders or name == "funm_multiply_krylov" or name == "solve_lyapunov"
        assert installed, name
        pathless = [no_path.pathless(getattr(module, name)) for module in holders]
        assert any(pathless) or not holders, name
    for module in no_path.MODULES:
        assert importlib.import_module(module) in MODULES


@pytest.mark.parametrize(
    ("function", "words"),
    [
        (scipy.linalg.eigh, "give trnpy.linalg.eigh"),
        (scipy.sparse.linalg.cg, "give trnpy.sparse.linalg.cg"),
        *[(other, "expected an accelerated function") for other in (len, np.sort, np.linalg.LinAlgError)],
    ],
)
def test_what_has_a_path_or_is_no_linear_algebra_is_not_explained(function, words):
    with pytest.raises(TypeError, match=words):
        trnpy.explain(function)


@pytest.mark.parametrize("name", ["schur", "hessenberg", "rq"])
def test_functions_without_a_path_raise_by_our_name_where_fallbacks_raise(name):
    a = np.random.default_rng(0).standard_normal((80, 80))
    ours, theirs = getattr(trnpy.linalg, name), getattr(scipy.linalg, name, None) or getattr(np.linalg, name)
    with trnpy.trace() as log, trnpy.policy(fallback="raise", device="null"), trnpy.patched():
        with pytest.raises(trnpy.FallbackError) as raised:
            ours(a)
        theirs(a)  # not patched: reports name it
        ours(a[:60, :60])  # small
        with trnpy.policy(force=True), pytest.raises(trnpy.FallbackError):
            ours(a[:60, :60])
    assert raised.value.decision in log and log[0].reason is trnpy.Reason.NO_PATH
    assert str(raised.value.decision) == str(trnpy.explain(theirs, a)) == str(trnpy.explain(ours, a))
    mine, original = ours(a), theirs(a)
    assert type(mine) is type(original)
    for one, other in zip(mine, original, strict=True) if isinstance(mine, tuple) else [(mine, original)]:
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("name", ["spsolve", "bicg", "eigs", "inv"])
def test_sparse_functions_without_a_path_raise_by_our_name(name):
    a = scipy.sparse.eye_array(5000, format="csc") * 2.0
    args = (a, np.ones(5000)) if name in ("spsolve", "bicg") else (a,)
    with trnpy.policy(fallback="raise", device="null"), pytest.raises(trnpy.FallbackError, match="no_path"):
        getattr(trnpy.sparse.linalg, name)(*args)


@pytest.mark.parametrize("call", [trnpy.linalg.norm, lambda a: trnpy.linalg.solve_banded((1, 1), a[:3], a[0])])
def test_functions_that_memory_bounds_do_not_raise(call):
    with trnpy.policy(fallback="raise", device="null"):
        call(np.ones((80, 80)) + np.eye(80))


def test_a_warning_of_a_function_without_a_path_names_the_line_that_scipys_names():
    a, places = scipy.sparse.eye_array(3, format="coo"), []
    for module in (scipy.sparse.linalg, trnpy.sparse.linalg):
        with pytest.warns(scipy.sparse.SparseEfficiencyWarning) as caught:
            module.splu(a)
        places.append([(w.filename, w.lineno) for w in caught])
    assert places[0] == places[1] and places[0][0][0] == __file__


class Ledger:
    """Of a run of ten seconds."""

    elapsed_s = 10.0

    def unrouted(self):
        seen = ("scipy.linalg.schur", 3, 0.05), ("numpy.fft.fft", 4, 0.01)
        return [Unrouted(NO_PATH, name, "a.py", line, seconds) for name, line, seconds in seen]


def test_a_sentence_lists_five_places_and_counts_the_others():
    seen = [Unrouted(NO_PATH, "numpy.fft.fft", "a.py", line, 1.0) for line in range(1, 8)]
    (said,) = text.past_patch(types.SimpleNamespace(elapsed_s=10.0, unrouted=lambda: seen))
    assert said.count("numpy.fft.fft at") == 5 and "a.py:5 1.00 s and 2 more" in said


def test_reports_of_strict_runs_name_all_that_were_seen_with_a_reason():
    assert text.past_patch(Ledger()) == []  # less than a hundredth of the run
    with trnpy.policy(fallback="raise"):
        (said,) = text.past_patch(Ledger())
    for part in ("scipy.linalg.schur at", "numpy.fft.fft at", no_path.SCHUR, no_path.TRANSFORM):
        assert part in said
