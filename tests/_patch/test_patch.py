"""Patching NumPy and SciPy: reversible to the object, and local to a thread or task."""

import asyncio
import contextvars
import inspect
import subprocess
import sys
import threading
import timeit
import types
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy as np
import pytest
import scipy.linalg
from patching import LARGE, NAMES, ORIGINALS, SMALL_EINSUM, A, calling, einsum, pristine, routed, standing  # noqa: F401

import trnpy
from trnpy._call.dispatch import Reason
from trnpy._call.rows import TABLE, names, row, rows
from trnpy._patch.hook import LIBRARIES, METHODS, Hook, compiled, enters
from trnpy._patch.patch import _here, patch_rows
from trnpy._settings.policy import current_policy

# --- What is put in place, and back -----------------------------------------------------------------------------------


def test_all_rows_of_numpy_and_scipy_are_covered():
    assert {name.rpartition(".")[0] for name in NAMES} == set(TABLE)
    assert {"numpy.einsum", "numpy.matmul", "scipy.linalg.eigh", "numpy.linalg.eigh"} <= set(NAMES)


def test_importing_trnpy_patches_nothing():
    code = (
        "import numpy as np, sys; e = np.einsum; import trnpy._patch.patch; print(np.einsum is e, trnpy.is_patched())"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout == "True False\n"


@pytest.mark.parametrize("namespace", TABLE)
def test_the_table_names_the_rows_of_each_module(namespace):
    assert [op.name for op in rows(namespace)] == [f"{namespace}.{name}" for name in names(namespace)]


def test_a_call_loads_the_modules_of_its_row_and_no_others():
    """All of them would take half as long as the start of the runner."""
    code = (
        "import numpy as np, sys, trnpy\n"
        "with trnpy.patched(), trnpy.profile():\n    np.linalg.inv(np.eye(300))\n"
        "print([name for name in ('_inverse', '_svd', '_qr', '_expm') if f'trnpy.linalg.{name}' in sys.modules])"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout == "['_inverse']\n"


@pytest.mark.parametrize("name", NAMES)
def test_every_row_is_hooked_and_put_back(name):
    original = ORIGINALS[name]
    with trnpy.patched(name):
        assert trnpy.is_patched(name)
        others = [n for n in NAMES if standing(n) is not ORIGINALS[n]]
        if enters(name, original):
            assert compiled.is_entered() and others == []
        else:
            assert issubclass(type(standing(name)), Hook) or name in METHODS
            assert standing(name).__wrapped__ is original
            assert others == [name]
    assert standing(name) is original


def test_patch_and_unpatch_the_process():
    handle = trnpy.patch(["numpy.einsum", "scipy.linalg.eigh"])
    assert handle.names == {"numpy.einsum", "scipy.linalg.eigh"}
    assert routed(einsum) == SMALL_EINSUM
    assert routed(lambda: np.dot(A, A)) == []
    trnpy.unpatch()
    assert routed(einsum) == []


def test_patches_are_counted():
    trnpy.patch("numpy.einsum")
    trnpy.patch()
    trnpy.unpatch()
    assert trnpy.is_patched("numpy.einsum")
    assert not trnpy.is_patched("numpy.dot")
    assert np.dot is ORIGINALS["numpy.dot"]
    with trnpy.patched("numpy.einsum"):
        pass
    assert routed(einsum) == SMALL_EINSUM
    trnpy.unpatch()
    assert np.einsum is ORIGINALS["numpy.einsum"]


def test_patches_may_be_undone_in_any_order():
    first = trnpy.patch("numpy.einsum")
    second = trnpy.patch("numpy.dot")
    first.undo()
    assert trnpy.patch_status()["active"] == ["numpy.dot"]
    with pytest.raises(RuntimeError, match="undone already"):
        first.undo()
    second.undo()


def test_unpatch_without_a_patch_is_an_error():
    with pytest.raises(RuntimeError, match=r"no patch\(\) is in force"):
        trnpy.unpatch()


@pytest.mark.parametrize("use", [trnpy.patch, trnpy.patched])
@pytest.mark.parametrize("name", ["numpy.eisnum", "einsum", "numpy.sum", "scipy.linalg", "torch.einsum", ""])
def test_an_unknown_name_is_refused_with_the_known_ones(use, name):
    with pytest.raises(
        ValueError, match=r"is not an accelerated function: .*expected one of numpy\.dot, numpy\.einsum"
    ):
        use(["numpy.dot", name])


def test_a_misspelt_name_gets_a_suggestion():
    with pytest.raises(ValueError, match=r"'numpy.eisnum' is not an accelerated function: did you mean numpy.einsum\?"):
        trnpy.patch("numpy.eisnum")


def test_a_function_of_somebody_else_is_stood_in_for_and_comes_back():
    calls = []

    def theirs(*args, **kwargs):
        calls.append(args[0])
        return ORIGINALS["numpy.einsum"](*args, **kwargs)

    np.einsum = theirs
    try:
        with trnpy.patched("numpy.einsum"):
            assert routed(einsum) == SMALL_EINSUM
            with trnpy.original():
                einsum()
            assert calls == ["ij,jk->ik"] * 2
        assert np.einsum is theirs
    finally:
        np.einsum = ORIGINALS["numpy.einsum"]


def test_what_somebody_else_puts_on_top_stays_and_is_reported():
    trnpy.patch("numpy.einsum")
    hook = np.einsum

    def theirs(*args, **kwargs):
        return hook(*args, **kwargs)

    np.einsum = theirs
    try:
        assert list(trnpy.patch_status()["covered"]) == ["numpy.einsum"]
        with pytest.warns(RuntimeWarning, match="numpy.einsum has been replaced by .*theirs.* stays so") as caught:
            trnpy.unpatch()
        assert caught[0].filename == __file__
        assert np.einsum is theirs
        assert routed(einsum) == []
        with trnpy.patched("numpy.einsum"):  # over theirs, which calls the old hook: no recursion, one decision
            assert routed(einsum) == SMALL_EINSUM
        assert np.einsum is theirs
    finally:
        np.einsum = ORIGINALS["numpy.einsum"]


def test_a_hook_imported_while_patched_works_before_during_and_after():
    with trnpy.patched("numpy.einsum"):
        from numpy import einsum as kept
    assert routed(lambda: kept("ij,jk", A, A)) == []
    with trnpy.patched("numpy.einsum"):
        assert np.einsum is kept
        assert routed(lambda: kept("ij,jk", A, A)) == SMALL_EINSUM


# --- Where it is active -----------------------------------------------------------------------------------------------


def in_thread(function):
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(function).result()


def test_another_thread_sees_pure_numpy():
    with trnpy.patched(device="null"):
        assert in_thread(lambda: (routed(einsum), trnpy.is_patched(), current_policy().device)) == ([], False, "auto")
        assert routed(einsum) == SMALL_EINSUM


def test_a_patch_of_the_process_reaches_every_thread():
    trnpy.patch(device="null", machine="trn3")
    try:
        assert in_thread(lambda: (routed(einsum), current_policy().machine)) == (SMALL_EINSUM, "trn3")
    finally:
        trnpy.unpatch()


def test_policies_of_patches_unwind_in_any_order():
    first = trnpy.patch("numpy.dot", machine="trn1", device="null")
    second = trnpy.patch("numpy.einsum", machine="trn3")
    assert (current_policy().machine, current_policy().device) == ("trn3", "null")
    first.undo()
    assert (current_policy().machine, current_policy().device) == ("trn3", "auto")
    second.undo()
    assert current_policy().machine == "trn2"


def test_a_refused_policy_patches_nothing():
    with pytest.raises(ValueError, match="expected one of trn1, trn2, trn3"):
        trnpy.patch(machine="trn9")
    with pytest.raises(ValueError, match="expected one of trn1, trn2, trn3"):
        trnpy.patched(machine="trn9")


def test_a_copied_context_takes_the_patch_along():
    with trnpy.patched("numpy.einsum"):
        context = contextvars.copy_context()
        assert in_thread(lambda: context.run(routed, einsum)) == SMALL_EINSUM


def test_threads_patch_independently_and_the_last_one_restores():
    start, stop = threading.Barrier(4), threading.Barrier(4)

    def work(name):
        with trnpy.patched(name):
            start.wait(10)
            active = trnpy.patch_status()["active"]
            stop.wait(10)
        return active

    names = ["numpy.einsum", "numpy.dot", "numpy.einsum", "scipy.linalg.eigh"]
    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(work, names)) == [[name] for name in names]


def test_patching_while_other_threads_compute_is_safe():
    stop, wrong = threading.Event(), []
    expected = A @ A

    def compute():
        while not stop.is_set():
            if not np.array_equal(einsum(), expected):
                wrong.append(einsum())

    threads = [threading.Thread(target=compute) for _ in range(2)]
    for thread in threads:
        thread.start()
    for _ in range(100):
        with trnpy.patched(["numpy.einsum", "numpy.dot"]):
            np.testing.assert_array_equal(einsum(), expected)
    stop.set()
    for thread in threads:
        thread.join()
    assert not wrong


def test_tasks_patch_independently():
    async def task(names):
        with trnpy.patched(names):
            await asyncio.sleep(0)
            return trnpy.patch_status()["active"]

    async def both():
        return await asyncio.gather(task(["numpy.einsum"]), task(["numpy.dot"]))

    assert asyncio.run(both()) == [["numpy.einsum"], ["numpy.dot"]]


def test_blocks_nest_and_add_up():
    with trnpy.patched("numpy.einsum", device="null"):
        with trnpy.patched("numpy.dot", machine="trn3"):
            assert trnpy.patch_status()["active"] == ["numpy.dot", "numpy.einsum"]
            assert (current_policy().device, current_policy().machine) == ("null", "trn3")
        assert trnpy.patch_status()["active"] == ["numpy.einsum"]
        assert np.dot is ORIGINALS["numpy.dot"]


def test_an_exception_leaves_the_block():
    with pytest.raises(ZeroDivisionError), trnpy.patched(device="null"):
        raise ZeroDivisionError
    assert current_policy().device == "auto"


def test_an_open_block_cannot_be_opened_again_but_a_closed_one_can():
    block = trnpy.patched("numpy.einsum")
    with block, pytest.raises(RuntimeError, match="already open"):
        block.__enter__()
    with block:
        assert routed(einsum) == SMALL_EINSUM


def test_patched_and_original_decorate_functions():
    @trnpy.patched("numpy.einsum", device="null")
    def accelerated(depth=0):
        """Doc."""
        return accelerated(depth - 1) if depth else (routed(einsum), routed(plain), current_policy().device)

    @trnpy.original()
    def plain():
        return einsum()

    assert (accelerated.__name__, accelerated.__doc__) == ("accelerated", "Doc.")
    assert accelerated(2) == (SMALL_EINSUM, [], "null")
    assert routed(einsum) == []


def test_patched_decorates_coroutine_functions():
    @trnpy.patched("numpy.einsum")
    async def accelerated():
        await asyncio.sleep(0)
        return routed(einsum)

    assert inspect.iscoroutinefunction(accelerated)
    assert asyncio.run(accelerated()) == SMALL_EINSUM


def test_generator_functions_cannot_be_decorated():
    def generator():
        yield

    async def asynchronous():
        yield

    for function in (generator, asynchronous):
        with pytest.raises(TypeError, match="is a generator: open the block inside it"):
            trnpy.patched("numpy.einsum")(function)


def test_original_switches_hooks_off_and_patched_on_again():
    trnpy.patch()
    try:
        with trnpy.original():
            assert routed(einsum) == []
            assert not trnpy.is_patched("numpy.einsum")
            with trnpy.patched("numpy.einsum"):
                assert routed(einsum) == SMALL_EINSUM
                assert routed(lambda: np.dot(A, A)) == []
        assert routed(einsum) == SMALL_EINSUM
    finally:
        trnpy.unpatch()


# --- Who calls --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("caller", ["numpy", "numpy.linalg._linalg", "scipy.optimize._lsq", "scipy"])
def test_calls_from_inside_numpy_and_scipy_stay_original_and_are_recorded(caller):
    call = calling(caller)
    with trnpy.patched(), trnpy.profile() as ledger:
        assert routed(call) == [("numpy.einsum", Reason.EXCLUDED_CALLER)]
    assert [(t.op, t.reason, t.calls) for t in ledger.tallies] == [("numpy.einsum", "excluded_caller", 1)]
    assert ledger.calls[0].decision.detail == f"called from {caller}"


def test_small_calls_of_a_library_count_for_the_lines_that_called_it():
    """One in 61 is timed, and notices when the line has changed: so many calls may count for the line before."""
    call, lines = calling("scipy.integrate"), []
    with trnpy.patched(), trnpy.profile() as ledger:
        for _ in range(3):
            lines = [sys._getframe().f_lineno + k for k in (1, 2)]
            [call() for _ in range(1000)]
            [call() for _ in range(500)]
    assert {t.reason for t in ledger.tallies} == {"excluded_caller"}
    assert all(t.timed < t.calls for t in ledger.tallies)
    found = {t.line: t.calls for t in ledger.by_line()}
    assert sorted(found) == lines and sum(found.values()) == 4500
    assert abs(found[lines[0]] - 3000) <= 5 * 61


def test_a_real_call_of_scipys_is_excluded():
    # signm has no row of its own; it calls np.dot, inv, svd and norm
    with trnpy.patched(), trnpy.trace() as decisions:
        scipy.linalg.signm(A)
    assert {(d.reason, d.on_device) for d in decisions} <= {(Reason.EXCLUDED_CALLER, False)}


@pytest.mark.parametrize("caller", ["numpyro", "scipython.linalg", "mynumpy", "__main__", "pyscf.lib"])
def test_only_whole_package_names_are_excluded(caller):
    with trnpy.patched():
        assert routed(calling(caller)) == SMALL_EINSUM


def test_callers_can_be_excluded_by_the_user():
    with trnpy.patched(exclude=["mylib", "other.part"]):
        assert routed(calling("mylib.core")) == [("numpy.einsum", Reason.EXCLUDED_CALLER)]
        assert routed(calling("other.part")) == [("numpy.einsum", Reason.EXCLUDED_CALLER)]
        assert routed(calling("other.partial")) == SMALL_EINSUM
        with trnpy.patched("numpy.dot", exclude="third"):  # adds to the outer block's
            assert routed(calling("mylib")) == [("numpy.einsum", Reason.EXCLUDED_CALLER)]
            assert routed(calling("third")) == [("numpy.einsum", Reason.EXCLUDED_CALLER)]


@pytest.mark.parametrize("name", [{}, {"__name__": None}, {"__name__": ""}])
def test_a_caller_without_a_name_is_not_excluded(name):
    scope = {"np": np, "A": A, **name}
    exec("def call(): return np.einsum('ij,jk->ik', A, A)", scope)
    with trnpy.patched():
        assert routed(scope["call"]) == SMALL_EINSUM


def test_trnpys_own_calls_of_numpy_are_neither_routed_nor_recorded():
    with trnpy.patched(force=True):
        assert routed(calling("trnpy._engine.engines")) == []
        assert routed(lambda: np.matmul(LARGE, LARGE)) == [("numpy.matmul", Reason.FORCED)]


def test_what_an_accelerated_function_calls_is_part_of_it():
    class Calls(np.ndarray):
        def __array_function__(self, function, types, args, kwargs):
            np.dot(A, A)
            return "theirs"

    theirs = A.view(Calls)
    with trnpy.patched():
        assert routed(lambda: np.einsum("ij->ji", theirs)) == [("numpy.einsum", Reason.SUBCLASS)]


def test_scipy_optimize_is_bitwise_the_same_under_a_patch():
    from scipy.optimize import least_squares, minimize, rosen

    def both():
        x = minimize(rosen, np.linspace(-1, 2, 5), method="BFGS").x
        return x, least_squares(lambda y: LARGE[:9, :5] @ y - 1.0, np.zeros(5)).x

    plain = both()
    with trnpy.patched(force=True):
        for ours, theirs in zip(both(), plain, strict=True):
            np.testing.assert_array_equal(ours, theirs)


# --- Names that escape ------------------------------------------------------------------------------------------------


@pytest.fixture
def importer():
    """A module that has imported two functions by name before any patch."""
    module = types.ModuleType("importer_of_names")
    module.e, module.inverse, module.dot = ORIGINALS["numpy.einsum"], np.linalg.tensorinv, ORIGINALS["numpy.dot"]
    sys.modules["importer_of_names"] = module
    yield module
    del sys.modules["importer_of_names"]


def mine(status, kind):
    return {k: v for k, v in status[kind].items() if k.startswith("importer_of_names")}


def test_names_imported_before_the_patch_are_listed(importer):
    with trnpy.patched():
        status = trnpy.patch_status()
        assert mine(status, "escaped") == {
            "importer_of_names.e": "numpy.einsum",
            "importer_of_names.dot": "numpy.dot",
        }
        assert not any(name.startswith(("numpy.", "scipy.", "trnpy.")) for name in status["escaped"])
        assert status["active"] == status["installed"] == NAMES
        assert routed(lambda: importer.e("ij,jk", A, A)) == []


def test_names_of_other_functions_do_not_escape(importer):
    with trnpy.patched("numpy.einsum"):
        assert mine(trnpy.patch_status(), "escaped") == {"importer_of_names.e": "numpy.einsum"}


def test_rebind_repoints_them_until_the_end(importer):
    with trnpy.patched("numpy.einsum", rebind=True):
        assert importer.e is np.einsum
        assert mine(trnpy.patch_status(), "rebound") == {"importer_of_names.e": "numpy.einsum"}
        assert not mine(trnpy.patch_status(), "escaped")
        assert routed(lambda: importer.e("ij,jk->ik", A, A)) == SMALL_EINSUM
        assert importer.dot is ORIGINALS["numpy.dot"]
        with trnpy.patched(rebind=True):
            assert importer.dot is np.dot
        assert importer.dot is ORIGINALS["numpy.dot"]
        assert importer.e is np.einsum
    assert importer.e is ORIGINALS["numpy.einsum"]


def test_rebind_leaves_alone_what_was_changed_meanwhile_and_what_is_excluded(importer):
    with trnpy.patched(rebind=True):
        importer.e = einsum
    assert importer.e is einsum
    with trnpy.patched(rebind=True, exclude="importer_of_names"):
        assert importer.dot is ORIGINALS["numpy.dot"]


def test_a_rebound_module_that_goes_away_is_no_trouble():
    module = types.ModuleType("passing")
    module.e = ORIGINALS["numpy.einsum"]
    sys.modules["passing"] = module
    with trnpy.patched("numpy.einsum", rebind=True):
        del sys.modules["passing"]
        assert module.e is np.einsum
    assert module.e is ORIGINALS["numpy.einsum"]


def test_rows_that_are_not_numpys_can_be_patched_too():
    module = types.ModuleType("foreign")
    module.times = times = lambda a, b: a @ b
    sys.modules["foreign"] = module
    foreign = replace(row("numpy.matmul"), name="foreign.times", original=times)
    try:
        patch = patch_rows({foreign.name: foreign}, False, LIBRARIES, {})
        assert trnpy.is_patched("foreign.times")
        assert routed(lambda: module.times(A, A)) == [("foreign.times", Reason.SMALL)]
        patch.undo()
        assert module.times is times
        assert not trnpy.is_patched("foreign.times")
    finally:
        del sys.modules["foreign"]
        _here.hooks.pop("foreign.times")


def test_an_escape_scan_takes_milliseconds():
    with trnpy.patched():
        assert min(timeit.repeat(trnpy.patch_status, number=1, repeat=5)) < 0.1


def test_blocks_of_the_same_names_inside_generators_may_end_in_any_order():
    def accelerated(machine):
        with trnpy.patched(machine=machine):
            yield

    originals, policy = (np.einsum, np.linalg.inv, scipy.linalg.eigh), trnpy.current_policy()
    first, second = accelerated("trn1"), accelerated("trn3")
    next(first), next(second)
    first.close()
    assert trnpy.is_patched("numpy.einsum") and trnpy.current_policy().machine == "trn3"
    second.close()
    assert not trnpy.is_patched() and (np.einsum, np.linalg.inv, scipy.linalg.eigh) == originals
    assert trnpy.current_policy() == policy


def test_blocks_inside_generators_may_end_in_any_order():
    def accelerated(name):
        with trnpy.patched(name):
            yield

    einsum, dot = np.einsum, np.dot
    first, second = accelerated("numpy.einsum"), accelerated("numpy.dot")
    next(first), next(second)
    first.close()
    assert not trnpy.is_patched("numpy.einsum") and trnpy.is_patched("numpy.dot")
    assert np.einsum is einsum
    second.close()
    assert not trnpy.is_patched() and np.dot is dot
