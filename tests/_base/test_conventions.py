"""What differs between versions is asked of the installed NumPy and SciPy: forms of results, lines of warnings."""

import contextlib
import inspect
import warnings

import numpy as np
import pytest
import scipy.linalg
import scipy.sparse
from doubles import RecordingEngine

import trnpy
from trnpy._base import conventions
from trnpy._engine.engines import engine

RNG = np.random.default_rng(0)
STACK = RNG.standard_normal((200, 4, 4)) + 4 * np.eye(4)
ILL = np.diag([1.0, 1e-20]) + 1e-30
MIXED = np.concatenate([STACK, STACK, STACK, STACK, STACK, STACK])
MIXED[7, -1] *= 1e-25
DENSE = np.eye(3)


def warned(function, *args):
    """The warnings of a call: what they say, and of which line."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        with contextlib.suppress(ValueError):
            function(*args)
    return [(w.category, str(w.message), w.filename, w.lineno) for w in caught]


CALLS = {
    "inv of one": ("linalg.inv", ILL),
    "inv of some": ("linalg.inv", MIXED),
    "solve": ("linalg.solve", ILL, ILL),
    "block_diag": ("sparse.block_diag", [DENSE, DENSE]),
    "tril": ("sparse.tril", DENSE),
    "diags": ("sparse.diags", [[1, 2], [3]], [0, 1]),
    "spsolve": ("sparse.linalg.spsolve", scipy.sparse.csr_array(np.diag([1.0, 0.0])).tocoo(), np.ones(2)),
}


def named(module, name):
    for part in name.split("."):
        module = getattr(module, part)
    return module


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("way", ["plain", "traced", "forced"])
def test_warnings_point_where_scipys_do(call, way):
    name, *args = CALLS[call]
    expected = warned(named(scipy, name), *args)
    ways = {"plain": [], "traced": [trnpy.trace()], "forced": [engine(RecordingEngine()), trnpy.policy(force=True)]}
    with contextlib.ExitStack() as stack:
        for block in ways[way]:
            stack.enter_context(block)
        assert warned(named(trnpy, name), *args) == expected
    if call in ("solve", "spsolve"):
        line = inspect.getsourcelines(warned)[1] + 5
        assert expected and all(where == [__file__, line] for _, _, *where in expected)


def test_warnings_of_patched_functions_point_where_they_did():
    expected = warned(scipy.linalg.inv, ILL)
    with trnpy.patched():
        assert warned(scipy.linalg.inv, ILL) == expected
    with trnpy.patched("numpy.einsum"):
        assert warned(scipy.linalg.inv, ILL) == expected


def made(kind):
    """A function of matrices that answers in the form ``kind``."""

    def function(a, tolerance=None, option=None):
        return kind(a)

    return function


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        (lambda a: a, np.ones((2, 2))),
        (lambda a: (a, a[0]), [np.ones((2, 2)), np.ones(2)]),
        (lambda a: [a, 3], (np.ones((2, 2)), np.int64(1))),
        (lambda a: (a, np.int64(3), None), (np.ones((2, 2)), 1, None)),
        (lambda a: (a, np.asarray(True)), (np.ones((2, 2)), True)),
        (lambda a: ((a, a), np.float64(1)), ((np.ones((2, 2)), np.ones((2, 2))), 1.5)),
        (lambda a: np.linalg.eigh(np.eye(2)), (np.ones(2), np.ones((2, 2)))),
        (lambda a: (a,), np.ones((2, 2))),
    ],
)
def test_results_take_the_form_of_the_installed_functions(kind, value):
    def kinds(x):
        return (type(x), *map(kinds, x)) if isinstance(x, (list, tuple)) else (type(x), getattr(x, "dtype", None))

    pattern = conventions.form(made(kind), (np.ones((5, 5)),), {})
    assert kinds(conventions.poured(pattern, value)) == kinds(pattern)


def test_a_memory_map_is_an_array_and_keeps_its_dtype(tmp_path):
    """Of a list, whose numbers are float64, a function would answer in float64."""
    mapped = np.memmap(tmp_path / "a", np.float32, "w+", shape=(5, 5))
    mapped[...] = np.eye(5)
    assert conventions.form(made(np.asarray), (mapped,), {}).dtype == np.float32
    for name in ("inv", "cholesky", "lu", "svd", "eigh", "lstsq", "solve"):
        args = (mapped, mapped) if name in ("lstsq", "solve") else (mapped,)
        with engine(RecordingEngine()), trnpy.policy(force=True):
            ours, theirs = getattr(trnpy.linalg, name)(*args), getattr(scipy.linalg, name)(*args)
        for mine, other in zip(*[x if isinstance(x, tuple) else (x,) for x in (ours, theirs)], strict=True):
            assert getattr(mine, "dtype", None) == getattr(other, "dtype", None), name


def test_a_form_is_asked_once_for_calls_that_are_alike():
    asked = []

    def function(a, b=None, cond=None, mode="full", selection=None):
        asked.append((a.shape, None if b is None else b.shape, mode))
        if a.ndim > 2:
            raise ValueError("expected a 2-D array")
        return a

    for n in (5, 50):
        conventions.form(function, (np.ones((n, n)),), {"cond": 1 / n, "selection": [0, n]})
        conventions.form(function, (np.ones((n, n)), np.ones((n, 1))), {"mode": "r"})
        conventions.form(function, (), {"a": np.ones((2 * n, n)), "b": np.ones(2 * n)})
        for _ in range(2):
            with pytest.raises(conventions.Refused, match="expected a 2-D array"):
                conventions.form(function, (np.ones((7, n, n)),), {})
    assert asked == [
        ((2, 2), None, "full"), ((2, 2), (2, 1), "r"), ((3, 2), (3,), "full"), ((3, 2, 2), None, "full"),
        ((2, 3, 3), None, "full"),
    ]  # fmt: skip
    for args, kwargs in (((np.eye(2),), {"nonsense": 1}), ((np.eye(2),) * 6, {})):
        with pytest.raises(conventions.Refused, match="has the parameters a, b, cond"):
            conventions.form(function, args, kwargs)


def test_functions_that_take_one_matrix_are_asked_for_it(monkeypatch):
    """A SciPy without stacks, as 1.15 is: it raises, and nothing stands in for it."""
    from dataclasses import replace

    from trnpy._call import rows
    from trnpy._call.dispatch import accelerated

    def svd(a, full_matrices=True, compute_uv=True, overwrite_a=False, check_finite=True, lapack_driver="gesdd"):
        if a.ndim > 2:
            raise ValueError("expected matrix")
        return scipy.linalg.svd(a, full_matrices, compute_uv)

    ours = accelerated(replace(rows.row("scipy.linalg.svd"), original=svd))
    with trnpy.trace() as log, pytest.raises(ValueError, match="expected matrix"):
        ours(STACK)
    assert len(ours(STACK[0])) == 3
    assert all(d.route == "" for d in log)
