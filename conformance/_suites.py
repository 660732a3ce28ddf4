"""The installed tests to run, and the names that they get from trnpy instead."""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.sparse

from trnpy._call.dispatch import Op, accelerated
from trnpy._patch.hook import METHODS, resolve
from trnpy._patch.patch import patch_status


@dataclass(frozen=True, slots=True)
class Name:
    """A public name, with the reference's object and trnpy's."""

    name: str  # "scipy.linalg.eigh"
    reference: Any
    ours: Any


@dataclass(frozen=True, slots=True)
class Suite:
    """Upstream's tests of some namespaces."""

    name: str
    tests: tuple[str, ...]  # what pytest collects, relative to site-packages
    names: Callable[[], list[Name]]  # called late: a suite loads only its own part of trnpy


def _namespace(reference: str, ours: str) -> list[Name]:
    """The public functions and classes of module ``reference`` that differ in module ``ours``."""
    theirs, mine = importlib.import_module(reference), importlib.import_module(ours)
    found = []
    for name in dir(theirs):
        value = getattr(theirs, name)
        if not name.startswith("_") and callable(value) and getattr(mine, name) is not value:
            found.append(Name(f"{reference}.{name}", value, getattr(mine, name)))
    return found


def _rows(ops: tuple[Op, ...]) -> list[Name]:
    return [Name(op.name, op.reference, accelerated(op)) for op in ops]


def _sparse() -> list[Name]:
    parts = ("", ".linalg", ".csgraph")
    return [name for part in parts for name in _namespace(f"scipy.sparse{part}", f"trnpy.sparse{part}")]


def _linalg() -> list[Name]:
    parts = ("", ".blas", ".lapack")  # the test files of these take routines from SciPy's extension modules
    return [name for part in parts for name in _namespace(f"scipy.linalg{part}", f"trnpy.linalg{part}")]


def _numpy_linalg() -> list[Name]:
    from trnpy._call.rows import rows as rows_of

    return _rows(rows_of("numpy.linalg"))


def _numpy(*names: str) -> list[Name]:
    from trnpy._einsum import rows

    return [name for name in _rows(rows.OPS) if name.name.rpartition(".")[2] in names]


def hooks() -> list[Name]:
    """The functions that ``trnpy.patch()`` replaced: test files also import functions from SciPy's inner modules.

    numpy.matmul is not among them: it stays the same object.
    """
    functions = {name: resolve(name) for name in patch_status()["installed"] if name not in METHODS}
    return [Name(name, hook.__wrapped__, hook) for name, hook in functions.items() if hook is not np.matmul]


# The classes that call products, among 15,000 tests of arrays.
PRODUCTS = ("Methods", "Binop", "Vdot", "Dot", "MatmulOperator", "MatmulInplace", "Matmul", "Inner")

SUITES = {
    suite.name: suite
    for suite in (
        Suite("scipy.linalg", ("scipy/linalg",), _linalg),
        Suite("scipy.sparse", ("scipy/sparse",), _sparse),
        Suite("numpy.linalg", ("numpy/linalg",), _numpy_linalg),
        Suite("numpy.einsum", ("numpy/_core/tests/test_einsum.py",), lambda: _numpy("einsum")),
        Suite(
            "numpy.products",
            (
                *(f"numpy/_core/tests/test_multiarray.py::Test{name}" for name in PRODUCTS),
                "numpy/_core/tests/test_numeric.py::TestTensordot",
                "numpy/_core/tests/test_regression.py",
                "numpy/_core/tests/test_ufunc.py",
                "numpy/lib/tests/test_shape_base.py::TestKron",
            ),
            lambda: _numpy("matmul", "dot", "inner", "tensordot", "kron"),
        ),
    )
}


def scaled(result: Any, factor: float) -> Any:
    """``result`` with every floating-point array and number in it multiplied by ``factor``."""
    if isinstance(result, tuple):
        parts = [scaled(part, factor) for part in result]
        return type(result)(*parts) if hasattr(result, "_fields") else tuple(parts)
    if isinstance(result, (np.ndarray, np.generic)) or scipy.sparse.issparse(result):
        return result * result.dtype.type(factor) if result.dtype.kind in "fc" else result
    return result * factor if isinstance(result, (float, complex)) else result


def broken(names: list[Name], name: str, factor: float) -> list[Name]:
    """``names`` with one function or method wrong by ``factor``, which the suite must notice."""

    def wrong(function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            return scaled(function(*args, **kwargs), factor)

        return call

    known: Mapping[str, Name] = {n.name: n for n in names}
    owner, _, method = name.rpartition(".")
    if name in known and not isinstance(known[name].ours, type):
        return [Name(n.name, n.reference, wrong(n.ours)) if n.name == name else n for n in names]
    if owner in known and isinstance(known[owner].ours, type):
        setattr(known[owner].ours, method, wrong(getattr(known[owner].ours, method)))
        return names
    raise SystemExit(f"--break {name}: expected a function, or a class and its method, of: {', '.join(known)}")
