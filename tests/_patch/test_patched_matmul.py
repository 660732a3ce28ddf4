"""``a @ b`` and ``np.matmul``: one ufunc, which stays what it is while its calls enter the hook."""

import asyncio
import contextvars
import functools
import operator
import os
import pickle
import subprocess
import sys
import threading
import warnings
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from patching import LARGE, ORIGINALS, A, calling, pristine, routed  # noqa: F401

import trnpy
from trnpy._call.dispatch import FallbackError, Reason
from trnpy._engine.residency import Cache, place
from trnpy._patch import hook

pytestmark = pytest.mark.skipif(hook.compiled is None, reason="trnpy was installed without a C compiler: by name only")

MATMUL = ORIGINALS["numpy.matmul"]
SMALL = [("numpy.matmul", Reason.SMALL)]
WHOLE = np.arange(90_000, dtype=np.int64).reshape(300, 300)


def assign(a, b):
    c = a.copy()
    c @= b
    return c


WAYS = {
    "operator": lambda a, b: a @ b,
    "assignment": assign,
    "operator.matmul": operator.matmul,
    "method": lambda a, b: a.__matmul__(b),
    "matmul": lambda a, b: np.matmul(a, b),
    "imported before": MATMUL,
    "out": lambda a, b: np.matmul(a, b, out=np.empty(a.shape, np.result_type(a, b))),
    "partial": lambda a, b: functools.partial(MATMUL, a)(b),
    "list": lambda a, b: a @ b.tolist(),
    "matrix": lambda a, b: np.asarray(a.view(np.matrix) @ b.view(np.matrix)),
}


@pytest.mark.parametrize("way", WAYS)
def test_every_way_to_multiply_is_seen_and_gives_the_same(way):
    expected = WAYS[way](A, A)
    with trnpy.patched():
        seen, result = [], []
        seen = routed(lambda: result.append(WAYS[way](A, A)))
    assert [op for op, _ in seen] == ["numpy.matmul"]
    np.testing.assert_array_equal(result[0], expected)
    assert routed(lambda: WAYS[way](A, A)) == []


def test_the_ufunc_stays_the_object_that_it_was():
    before = pickle.dumps(np.matmul)
    with trnpy.patched():
        assert np.matmul is MATMUL and type(np.matmul) is np.ufunc and repr(np.matmul) == "<ufunc 'matmul'>"
        assert pickle.dumps(np.matmul) == before and np.matmul.types == MATMUL.types
        assert trnpy.explain(np.matmul, LARGE, LARGE).op == "numpy.matmul"
        assert "numpy.matmul" in trnpy.patch_status()["installed"]
        assert not trnpy.patch_status()["covered"]
    with pytest.raises(TypeError, match="not patched here"):
        trnpy.explain(np.matmul, LARGE, LARGE)


def test_other_libraries_are_handed_the_ufunc():
    class Theirs:
        def __array_ufunc__(self, ufunc, method, *args, **kwargs):
            return ufunc is MATMUL, method, len(args), sorted(kwargs)

    with trnpy.patched():
        assert A @ Theirs() == np.matmul(Theirs(), A) == Theirs().__array_ufunc__(MATMUL, "__call__", 1, 2)

    class Reflected:
        __array_ufunc__ = None

        def __rmatmul__(self, other):
            return "reflected"

    with trnpy.patched():
        assert A @ Reflected() == "reflected"


@pytest.mark.parametrize("dtype", [np.int64, np.int8, np.uint32, np.float16])
def test_operators_take_the_routes_of_the_host(dtype):
    a = (WHOLE % 5).astype(dtype)
    expected = a @ a
    with trnpy.patched(), trnpy.trace() as decisions:
        found = a @ a
    (decision,) = decisions
    assert decision.reason is Reason.ROUTE and decision.route
    assert found.dtype == expected.dtype
    if dtype == np.float16:
        np.testing.assert_allclose(found, expected, rtol=2 * np.finfo(np.float16).eps)
    else:
        np.testing.assert_array_equal(found, expected)


SHAPES = [
    ((70, 80), (80, 90)),
    ((3, 70, 80), (80, 90)),
    ((2, 3, 70, 40), (3, 40, 50)),
    ((400,), (400, 30)),
    ((30, 400), (400,)),
]
DTYPES = [("f4", "f4"), ("f8", "f8"), ("c8", "c8"), ("c16", "f8"), ("f2", "f4"), ("i4", "f8")]


@pytest.mark.parametrize("dtypes", DTYPES)
@pytest.mark.parametrize("shapes", SHAPES, ids=str)
def test_operators_and_the_function_decide_and_compute_alike(shapes, dtypes):
    rng = np.random.default_rng(1)
    a, b = ((rng.integers(0, 9, shape)).astype(dtype) for shape, dtype in zip(shapes, dtypes, strict=True))
    with trnpy.patched(device="simulator", force=True), trnpy.trace() as decisions:
        found = a @ b, np.matmul(a, b), trnpy.matmul(a, b)
    for one in found[1:]:
        assert one.dtype == found[0].dtype
        np.testing.assert_array_equal(one, found[0])
    assert decisions[0].reason is Reason.FORCED and decisions[0].launches
    # Not the launches: what is sent at the second use stays on the device.
    assert [(d.reason, d.dtype) for d in decisions] == [(d.reason, d.dtype) for d in decisions[:1]] * 3
    np.testing.assert_allclose(found[0], a.astype(found[0].dtype) @ b, rtol=32 * np.finfo(found[0].dtype).eps)


def test_operands_stay_on_the_device_as_by_name(monkeypatch):
    """Each operand is found once: only lookups of these two count, because the cache is the process's."""
    rng = np.random.default_rng(2)
    a, b = (rng.standard_normal((200, 200)).astype("f4") for _ in range(2))
    found, get = [], Cache.get

    def looked_up(cache, array, *form, **options):
        hits = cache.hits
        held = get(cache, array, *form, **options)
        found.extend((name, cache.hits - hits) for name, x in (("a", a), ("b", b)) if place(array) == place(x))
        return held

    for multiply in (operator.matmul, np.matmul):
        with trnpy.patched(device="simulator", force=True), trnpy.resident(a, b):
            first, second = multiply(a, b), multiply(a, b)
            with monkeypatch.context() as patch:
                patch.setattr(Cache, "get", looked_up)
                multiply(a, b)
            assert sorted(found) == [("a", 1), ("b", 1)]
            found.clear()
            np.testing.assert_array_equal(first, second)


def test_errors_are_numpys():
    for bad in (lambda: A @ np.ones(3), lambda: np.float64(2) @ A, lambda: A @ None, lambda: A @ np.float64(2)):
        with pytest.raises((ValueError, TypeError)) as plain:
            bad()
        with trnpy.patched(), pytest.raises(plain.type) as ours:
            bad()
        assert str(ours.value) == str(plain.value)


def test_floating_point_errors_are_numpys():
    huge = np.full((200, 200), 1e300)
    with trnpy.patched():
        with pytest.warns(RuntimeWarning, match="overflow encountered in matmul"):
            huge @ huge
        with np.errstate(all="raise"), pytest.raises(FloatingPointError, match="overflow encountered in matmul"):
            huge @ huge
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            with np.errstate(all="ignore"):
                assert np.isinf(huge @ huge).all()
            WHOLE @ WHOLE  # by a route, which overflows nothing


def test_a_device_that_is_required_is_an_error_of_the_operator():
    wide = np.ones((80, 80), np.longdouble)
    with trnpy.patched(device="simulator", fallback="raise"):
        with pytest.raises(FallbackError, match="has no device path"):
            wide @ wide
        with pytest.raises(FallbackError, match="options axes"):
            wide @= wide
    np.testing.assert_array_equal(wide, 1)
    wide @ wide


# --- Where it is active -----------------------------------------------------------------------------------------------


def test_only_the_thread_of_the_block_is_patched():
    with trnpy.patched(), ThreadPoolExecutor(1) as pool:
        assert pool.submit(routed, lambda: A @ A).result() == []
        assert pool.submit(contextvars.copy_context().run, routed, lambda: A @ A).result() == SMALL
        with trnpy.original():
            assert routed(lambda: A @ A) == []
        assert routed(lambda: A @ A) == SMALL


def test_only_the_task_of_the_block_is_patched():
    async def task(patched):
        if not patched:
            await asyncio.sleep(0)
            return routed(lambda: A @ A)
        with trnpy.patched():
            await asyncio.sleep(0)
            return routed(lambda: A @ A)

    async def both():
        return await asyncio.gather(task(True), task(False), task(True))

    assert asyncio.run(both()) == [SMALL, [], SMALL]


def test_blocks_and_patches_nest_and_the_last_one_leaves():
    with trnpy.patched("numpy.matmul"):
        first = trnpy.patch()
        with trnpy.patched("numpy.dot"):
            assert routed(lambda: A @ A) == SMALL
        first.undo()
        assert hook.compiled.is_entered()
    assert not hook.compiled.is_entered()
    with trnpy.patched("numpy.dot"):
        assert not hook.compiled.is_entered() and routed(lambda: A @ A) == []
    with pytest.raises(ZeroDivisionError), trnpy.patched():
        A @ (A / 0 if 1 / 0 else A)
    assert not hook.compiled.is_entered()


def test_products_of_many_threads_are_right_and_all_counted():
    large, results = WHOLE % 7, []
    expected, small = large @ large, A @ A

    def work():
        good = all(np.array_equal(A @ A, small) for _ in range(500))
        results.append(good and all(np.array_equal(large @ large, expected) for _ in range(5)))

    trnpy.patch()
    try:
        with trnpy.profile() as ledger:
            threads = [threading.Thread(target=work) for _ in range(4)]
            [thread.start() for thread in threads]
            [thread.join() for thread in threads]
    finally:
        trnpy.unpatch()
    assert results == [True] * 4
    assert {t.reason: t.calls for t in ledger.by_function()} == {"small": 2000, "route": 20}


def test_patching_while_other_threads_multiply_is_safe():
    stop, wrong, expected = threading.Event(), [], A @ A

    def compute():
        while not stop.is_set():
            if not np.array_equal(A @ A, expected):
                wrong.append(1)

    threads = [threading.Thread(target=compute) for _ in range(2)]
    [thread.start() for thread in threads]
    for _ in range(200):
        with trnpy.patched("numpy.matmul"):
            np.testing.assert_array_equal(A @ A, expected)
    stop.set()
    [thread.join() for thread in threads]
    assert not wrong


def test_a_thread_of_c_without_python_frames_multiplies():
    done = threading.Event()

    class Product(np.ndarray):
        def __array_finalize__(self, obj):
            done.set()

    import _thread

    with trnpy.patched():
        trnpy.patch()
        try:
            _thread.start_new_thread(np.matmul, (A.view(Product), A))
            assert done.wait(10)
        finally:
            trnpy.unpatch()


# --- Who calls, and what the report says ------------------------------------------------------------------------------


def test_each_line_of_a_program_is_counted_exactly():
    with trnpy.patched(), trnpy.profile() as ledger:
        for i in range(1000):
            A @ A
            if i % 4 == 0:
                LARGE @ LARGE
    lines = {t.line: (t.op, t.calls, t.file) for t in ledger.by_line()}
    assert sorted(lines.values()) == [("numpy.matmul", 250, __file__), ("numpy.matmul", 1000, __file__)]
    assert max(lines) == min(lines) + 2
    assert "a @ b" not in repr(ledger)


def test_products_inside_scipy_are_the_program_s_and_those_inside_numpy_are_no_calls():
    product = "def call(): return A @ A"
    for caller, expected in (
        ("scipy.optimize._lsq", [("numpy.matmul", Reason.EXCLUDED_CALLER)]),
        ("numpy.linalg._linalg", []),
        ("trnpy._engine.engines", []),
        ("nkisim.isa._psum", []),
        ("pyscf.lib", SMALL),
    ):
        call = calling(caller, product)
        with trnpy.patched(), trnpy.profile() as ledger:
            assert routed(call) == expected
            for _ in range(200):
                call()
        assert sum(t.calls for t in ledger.tallies) == 201 * len(expected)
    with trnpy.patched(exclude="mylib"):
        assert routed(calling("mylib.core", product)) == [("numpy.matmul", Reason.EXCLUDED_CALLER)]


def test_an_einsum_that_numpy_computes_by_matmul_is_one_call():
    with trnpy.patched(), trnpy.profile() as ledger:
        for _ in range(100):
            np.einsum("ij,jk->ik", A, A, optimize=True)
            np.linalg.multi_dot([A, A, A])
    assert {t.op: t.calls for t in ledger.tallies} == {"numpy.einsum": 100, "numpy.linalg.multi_dot": 100}


def test_a_replaced_name_stays_and_operators_are_plain_again():
    def theirs(*args, **kwargs):
        return MATMUL(*args, **kwargs)

    trnpy.patch("numpy.matmul")
    np.matmul = theirs
    try:
        assert list(trnpy.patch_status()["covered"]) == ["numpy.matmul"]
        with pytest.warns(RuntimeWarning, match="numpy.matmul has been replaced"):
            trnpy.unpatch()
        assert np.matmul is theirs and not hook.compiled.is_entered()
        with trnpy.patched("numpy.matmul"):  # over theirs, by name
            assert routed(lambda: np.matmul(A, A)) == SMALL
    finally:
        np.matmul = MATMUL
    assert routed(lambda: A @ A) == []


# --- Processes --------------------------------------------------------------------------------------------------------


def ran(program, *options):
    done = subprocess.run([sys.executable, *options, "-c", program], capture_output=True, text=True, timeout=60)
    return done.returncode, done.stdout, done.stderr


def test_operators_work_until_the_very_end_of_the_interpreter():
    program = (
        "import numpy as np, trnpy, sys, atexit\n"
        "class Last:\n"
        "    def __init__(self): self.a = np.eye(3); self.b = np.ones((300, 300), int)\n"
        "    def __del__(self): print((self.a @ self.a).sum(), (self.b @ self.b).sum())\n"
        "atexit.register(Last().__del__)\n"
        "trnpy.patch(); trnpy.profile().__enter__()\n"
        "last = Last(); last.cycle = last; sys.last = last\n"
        "last.a @ last.a\n"
    )
    code, out, err = ran(program)
    assert (code, err) == (0, "") and set(out.splitlines()) == {"3.0 27000000"} and len(out.splitlines()) >= 2


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")
def test_a_forked_process_is_patched_and_a_spawned_one_is_not(tmp_path):
    (tmp_path / "program.py").write_text(
        "import multiprocessing, sys, warnings\n"
        "import numpy as np, trnpy\n"
        "def seen(_):\n"
        "    with trnpy.trace() as decisions: np.eye(3) @ np.eye(3)\n"
        "    return [str(d.reason) for d in decisions]\n"
        "if __name__ == '__main__':\n"
        "    warnings.simplefilter('ignore')\n"
        "    trnpy.patch()\n"
        "    for how in ('fork', 'spawn'):\n"
        "        with multiprocessing.get_context(how).Pool(1) as pool: print(how, pool.map(seen, [0]))\n"
    )
    done = subprocess.run([sys.executable, "program.py"], cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert done.stdout == "fork [['small']]\nspawn [[]]\n", done.stderr


def test_without_the_compiled_part_matmul_is_replaced_by_name():
    program = (
        "import sys; sys.modules['trnpy._call._gate'] = sys.modules['trnpy._patch._entry'] = None\n"
        "import numpy as np, trnpy\n"
        "a, matmul = np.eye(3), np.matmul\n"
        "with trnpy.patched(), trnpy.trace() as decisions:\n"
        "    assert np.matmul is not matmul\n"
        "    np.matmul(a, a), a @ a\n"
        "print(len(decisions), np.matmul is matmul)\n"
    )
    assert ran(program) == (0, "1 True\n", "")


# --- Libraries that look at the ufunc ---------------------------------------------------------------------------------


def library(name):
    return pytest.importorskip(name, reason=f"{name} is not installed")


def test_dask_multiplies_as_it_does_unpatched(monkeypatch):
    monkeypatch.setitem(sys.modules, "sparse", None)  # dask would take the folder tests/sparse for a package
    array = library("dask.array")
    plain = (np.eye(6) @ array.ones((6, 6), chunks=3)).compute(scheduler="synchronous")
    with trnpy.patched():
        for found in (np.eye(6) @ array.ones((6, 6), chunks=3), np.matmul(array.ones((6, 6), chunks=3), np.eye(6))):
            assert type(found) is array.Array
            np.testing.assert_array_equal(found.compute(scheduler="synchronous"), plain)


def test_masked_arrays_of_astropy_multiply_as_they_do_unpatched():
    Masked = library("astropy.utils.masked").Masked
    m = Masked(A, mask=np.eye(2, dtype=bool))
    plain = m @ m
    with trnpy.patched():
        found = m @ m
    np.testing.assert_array_equal(found.unmasked, plain.unmasked)
    np.testing.assert_array_equal(found.mask, plain.mask)


def test_awkward_arrays_multiply_as_they_do_unpatched():
    awkward = library("awkward")
    a = awkward.Array([A.tolist()])

    def product():
        try:
            return np.matmul(a, a).to_list()
        except NotImplementedError as why:  # of some versions, which look for the ufunc among those they know
            return str(why)

    plain = product()
    with trnpy.patched():
        assert product() == plain


def test_the_report_of_a_linear_model_has_its_products_by_line():
    """scikit-learn multiplies with ``@``: the products count for the program's line, with the library's beside it."""
    models = library("sklearn.linear_model")
    rng = np.random.default_rng(5)
    x, y = rng.standard_normal((300, 20)), rng.standard_normal(300)
    with trnpy.patched(), trnpy.profile() as run:
        ridge = models.Ridge(solver="cholesky").fit(x, y)
        ridge.predict(x)
    lines = [t for t in run.by_line() if t.op == "numpy.matmul"]
    assert {Path(t.file).name for t in lines} == {Path(__file__).name}
    assert len({t.line for t in lines}) == 2 and all("sklearn" in t.through for t in lines)
    assert sum(t.calls for t in lines) >= 3  # of fit: X^T X and X^T y
