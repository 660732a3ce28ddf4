"""The compiled part of Array and the Python code in its place give the same: values, kinds of errors, views, memory."""

import inspect
import pathlib
import pickle
import subprocess
import sys

import numpy as np
import pytest

from trnpy import xp
from trnpy.xp._fields import COMPILED

PROGRAM = """
import sys
sys.modules["trnpy.xp._quick"] = None  # as if there had been no compiler
import pytest
from trnpy.xp._fields import COMPILED
assert not COMPILED
sys.exit(pytest.main(["-q", "-p", "no:cacheprovider", *sys.argv[1:]]))
"""


def test_without_a_compiler_the_tests_of_views_pass():
    here = pathlib.Path(__file__)
    files = [str(here.with_name("test_views.py")), str(here)]
    command = [sys.executable, "-c", PROGRAM, *files, "-k", "not compiler"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-3000:]


BINARY = {
    "+": lambda x, y: x + y, "-": lambda x, y: x - y, "*": lambda x, y: x * y, "/": lambda x, y: x / y,
    "//": lambda x, y: x // y, "%": lambda x, y: x % y, "**": lambda x, y: x**y, "&": lambda x, y: x & y,
    "|": lambda x, y: x | y, "^": lambda x, y: x ^ y, "<<": lambda x, y: x << y, ">>": lambda x, y: x >> y,
    "<": lambda x, y: x < y, "<=": lambda x, y: x <= y, "==": lambda x, y: x == y,
    "!=": lambda x, y: x != y, ">": lambda x, y: x > y, ">=": lambda x, y: x >= y,
}  # fmt: skip
OPERANDS = {
    "floats": np.array([[1.0, 2.5, -3.0]] * 3), "integers": np.array([[1, 2, 3], [4, 5, 6], [7, 8, 9]]),
    "row": np.array([1, 2, 4], dtype="u1"), "booleans": np.eye(3) > 0, "complex": np.full((3, 3), 1 + 2j),
    "float32": np.full((3, 1), 2.5, "f4"), "number": np.array(3.0), "int": 2, "negative": -1, "large": 300,
    "float": 0.5, "bool": True, "complex scalar": 1j, "scalar": np.float64(1.5), "other shape": np.ones((2, 2)),
}  # fmt: skip


def outcome(call, *operands):
    with np.errstate(all="ignore"):
        try:
            found = call(*operands)
        except Exception as error:
            return type(error), None
    return None, np.asarray(found)


@pytest.mark.parametrize("second", OPERANDS)
@pytest.mark.parametrize("name", BINARY)
def test_operators_are_numpys(name, second):
    b = OPERANDS[second]
    for first in ("floats", "integers", "booleans", "row", "complex"):
        a = OPERANDS[first]
        ours_a, ours_b = xp.asarray(a), asarray(b)
        for given, arrays in (((a, b), (ours_a, b)), ((a, b), (ours_a, ours_b)), ((b, a), (ours_b, ours_a))):
            (theirs, expected), (ours, found) = outcome(BINARY[name], *given), outcome(BINARY[name], *arrays)
            assert ours is theirs, (first, ours, theirs)
            if expected is not None:
                assert (found.dtype, found.shape) == (expected.dtype, expected.shape), first
                np.testing.assert_array_equal(found, expected)


def asarray(b):
    return xp.asarray(b) if isinstance(b, np.ndarray) else b


@pytest.mark.parametrize("name", ["+", "-", "*", "/", "//", "%", "**", "&", "|", "^", "<<", ">>"])
@pytest.mark.parametrize("second", OPERANDS)
def test_operators_in_place_are_numpys(name, second):
    program = compile(f"a {name}= b", "<test>", "exec")
    for first in ("floats", "integers", "booleans", "row"):
        a, b = OPERANDS[first].copy(), OPERANDS[second]
        x = kept = xp.asarray(a)
        here = {"a": x, "b": asarray(b)}
        theirs, _ = outcome(exec, program, there := {"a": a, "b": b})
        ours, _ = outcome(exec, program, here)
        assert ours is theirs, (first, ours, theirs)
        assert here["a"] is kept and there["a"] is a
        np.testing.assert_array_equal(np.asarray(kept), a)


@pytest.mark.skipif(not COMPILED, reason="trnpy was installed without a C compiler")
def test_memory_of_what_is_gone_takes_a_result_and_no_memory_that_somebody_has():
    n = 2**15
    a = np.arange(float(n))
    x, results = xp.asarray(a), []
    for k in range(20):
        y = (x + k) * 2.0 - x
        shown, view = np.asarray(x + k), (x * k)[1:]
        results.append((k, y[::2], shown, view))
        xp.exp(x * 0.0)
    for k, y, shown, view in results:
        np.testing.assert_array_equal(np.asarray(y), ((a + k) * 2.0 - a)[::2])
        np.testing.assert_array_equal(shown, a + k)
        np.testing.assert_array_equal(np.asarray(view), (a * k)[1:])


def test_functions_are_found_by_name_and_have_their_signature():
    for function in (xp.sum, xp.exp, xp.add, xp.matmul):
        assert pickle.loads(pickle.dumps(function)) is function
        assert function.__doc__ and function.__module__ == "trnpy.xp"
    assert list(inspect.signature(xp.sum).parameters) == ["x", "axis", "dtype", "keepdims"]
    with pytest.raises(TypeError):
        xp.sum(xp.asarray([1.0]), 0)
    with pytest.raises(TypeError):
        xp.sum(xp.asarray([1.0]), where=True)
    with pytest.raises(TypeError):
        xp.exp(xp.asarray([1.0]), xp.asarray([1.0]))
