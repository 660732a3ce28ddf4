"""Planted mutations: each product of an algorithm 1.5 times too large, each row's result wrong in its last digits.

Both are in place from the start and asleep. A test that reaches one is run again with that one awake, and once more
without: if only the mutated run fails, or another number of results is accepted in it, a test has killed the mutation.
"""

from __future__ import annotations

import ast
import importlib
import inspect
import json
import re
from collections import Counter
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from types import CodeType, FunctionType, ModuleType
from typing import Any, ClassVar

import numpy as np
import pytest
import scipy.sparse

import trnpy
from trnpy._call import dispatch
from trnpy._call.verify import MOVED, NEAR
from trnpy._engine.engines import current_engine
from trnpy._engine.handles import HostHandle
from trnpy._report import ledger
from trnpy._settings.policy import current_policy

ROOT = Path(trnpy.__file__).parent
FILES = ("linalg/*.py", "_engine/triangular.py")  # whose products are mutated
PRODUCTS = ("matmul", "gram", "trsm")
FACTOR = 1.5
NUDGE = {"d": 1e-9, "D": 1e-9, "f": 100 * 2.0**-23, "F": 100 * 2.0**-23}  # relative, by dtype of a result
# ``verify``, which compares in upstream's run, allows NEAR + MOVED * change, in eps. Where data move by one eps, small
# results of trsm, heevd, hegvd and sygvd change by 1.4 to 4 eps (measured, random signs): it allows more than 100 eps.
CHANGE = 6.0
VERIFIED = NUDGE | dict.fromkeys("fF", (NEAR + MOVED * CHANGE) * 2.0**-23)
TRIES = 6  # cases of one test function that may try to kill one mutation; how many functions may is not limited
# Mutations that change no result but by rounding, by file, function and product, and why. No test can kill them.
HARMLESS = {
    "linalg/_svd.py _divide_and_conquer, engine.matmul": (
        "of a start: eigenvectors and the order of singular values do not depend on the scale; columns are normalised"
    ),
}
# Mutations that leave the results of rows within their bounds, and why: a test of the function itself must kill them.
# Measured: eigh of 400 rows and _polished of 600 x 290, random matrices in float64.
OF_ITERATES = "of an iterate: upstream's tests ask for residuals of 1e-8 and more, and ``verify`` compares no iterates"
INWARD = {
    "scipy.sparse.linalg.cg": OF_ITERATES,
    "scipy.sparse.linalg.gmres": OF_ITERATES,
    "scipy.sparse.linalg.eigsh": OF_ITERATES,
    "linalg/_divide.py _solved, task.engine.matmul": (
        "of a start: the refinement takes 8 steps instead of 3, and residuals stay below 3 u of the norm"
    ),
    "linalg/_svd.py _polished, engine.matmul": (
        "of a correction by rounding errors: |Q^H Q - I| is 8 u instead of 4, where 10 n eps are allowed"
    ),
}


class State:
    """Which mutation is awake, which were reached since the last test began, and whose results were accepted."""

    awake = ""
    nudge: ClassVar[dict[str, float]] = NUDGE
    accepted: ClassVar[list[str]] = []
    reached: ClassVar[dict[str, None]] = {}  # in the order of the calls


# --- products ---------------------------------------------------------------------------------------------------------


def product(site: str, value: Any) -> Any:
    """``value``, or FACTOR times it if the mutation ``site`` is awake; stand-ins and operands on a device are left."""
    if type(value) is HostHandle:
        return HostHandle(product(site, value.array))
    if type(value) is not np.ndarray or value.dtype.kind not in "fc":
        return value
    State.reached[site] = None
    return value * value.dtype.type(FACTOR) if State.awake == site else value


class Planter(ast.NodeTransformer):
    """Passes each product of a module through ``product``."""

    def __init__(self, file: str) -> None:
        self.file, self.owner, self.sites = file, "", 0

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        outer, self.owner = self.owner, self.owner or node.name
        self.generic_visit(node)
        self.owner = outer
        return node

    def visit_Call(self, node: ast.Call) -> ast.AST:
        self.generic_visit(node)
        if not is_product(node.func):
            return node
        self.sites += 1
        site = ast.Constant(f"{self.file}:{node.lineno} {self.owner}, {ast.unparse(node.func)}")
        planted = ast.Call(ast.Name("__product__", ast.Load()), [site, node], [])
        return ast.copy_location(planted, node)


def is_product(function: ast.expr) -> bool:
    match function:
        case ast.Attribute(value=ast.Name(id="engine") | ast.Attribute(attr="engine"), attr=name):
            return name in PRODUCTS
        case ast.Name(id="product"):
            return True
    return False


def plant_products() -> int:
    """Plant every product of FILES; returns their number."""
    planted = 0
    for path in sorted(path for pattern in FILES for path in ROOT.glob(pattern)):
        file = str(path.relative_to(ROOT))
        planter = Planter(file)
        tree = ast.fix_missing_locations(planter.visit(ast.parse(path.read_text())))
        if not planter.sites:
            continue
        module = importlib.import_module("trnpy." + file.removesuffix(".py").replace("/", "."))
        vars(module)["__product__"] = product
        codes = {code.co_qualname: code for code in _codes(compile(tree, str(path), "exec"))}
        for function in _functions(module):
            if function.__qualname__ in codes:
                function.__code__ = codes[function.__qualname__]
        planted += planter.sites
    return planted


def _codes(code: CodeType) -> Iterator[CodeType]:
    for inner in code.co_consts:
        if isinstance(inner, CodeType):
            yield inner
            yield from _codes(inner)


def _functions(module: ModuleType) -> Iterator[FunctionType]:
    """The functions of a module and the methods of its classes, without decorators."""
    for owner in (module, *(x for x in vars(module).values() if isinstance(x, type))):
        if owner is not module and owner.__module__ != module.__name__:
            continue
        for value in vars(owner).values():
            function = inspect.unwrap(getattr(value, "__func__", value)) if callable(value) else None
            if isinstance(function, FunctionType) and function.__module__ == module.__name__:
                yield function


def reason(listed: dict[str, str], mutation: str) -> str:
    """Why ``mutation`` is in HARMLESS or INWARD; "" if it is not."""
    return listed.get(re.sub(r":\d+ ", " ", mutation), "")


# --- results ----------------------------------------------------------------------------------------------------------


def nudged(result: Any, out: Any = None) -> Any:
    """``result`` with every floating-point array and number in it wrong by ``State.nudge``; integers by one."""
    nudge = State.nudge
    if isinstance(result, (tuple, list)):
        parts = [nudged(part) for part in result]
        return type(result)(*parts) if hasattr(result, "_fields") else type(result)(parts)
    if scipy.sparse.issparse(result):
        return result * result.dtype.type(1 + nudge[result.dtype.char]) if result.dtype.char in nudge else result
    if not isinstance(result, (np.ndarray, np.generic, float, complex)):
        return result
    kind = np.asarray(result).dtype
    wrong = result * kind.type(1 + nudge[kind.char]) if kind.char in nudge else result + kind.type(kind.kind in "iu")
    if result is out and isinstance(out, np.ndarray):
        out[...] = wrong
        return out
    return wrong if isinstance(result, (np.ndarray, np.generic)) else type(result)(wrong)


def plant_results() -> None:
    """Plant the result of every call that launched something, after it has been accepted."""
    delivered = dispatch._delivered

    def planted(op: Any, problem: Any, form: Any, result: Any, way: Any, args: Any, kwargs: Any, *rest: Any) -> None:
        if way.decision.on_device:
            State.reached[op.name] = None
            if State.awake == op.name:
                inner: Callable[[Any], Any] = form or (lambda x: x)
                out = kwargs.get("out")
                form = lambda x: nudged(inner(x), out)  # noqa: E731
        delivered(op, problem, form, result, way, args, kwargs, *rest)
        State.accepted += [op.name] * way.decision.on_device

    dispatch._delivered = planted


# --- tests ------------------------------------------------------------------------------------------------------------


class Mutants:
    """The pytest plugin that wakes each mutation in the tests that reach it; ``file`` gets what killed which.

    ``only``: a regular expression; mutations without a match of it stay asleep.
    """

    def __init__(self, file: Path, only: str = "") -> None:
        self.file, self.only = file, re.compile(only)
        self.tries: Counter[str] = Counter()
        self.of_function: Counter[tuple[str, str]] = Counter()
        self.killed: dict[str, str] = {}

    def pytest_sessionstart(self) -> None:
        from hypothesis import Phase, settings  # imported by pytest first, which rewrites its assertions

        settings.register_profile("mutated", settings.default, phases=(Phase.explicit, Phase.generate))
        settings.load_profile("mutated")  # no smaller example of a failure is looked for: that takes minutes
        plant_products()
        plant_results()

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_call(self, item: pytest.Item) -> Generator[None, Any, Any]:
        State.reached.clear()
        result = yield
        function = item.nodeid.partition("[")[0]
        asked = [m for m in State.reached if self.only.search(m) and m not in self.killed]
        pending = [m for m in asked if self.of_function[m, function] < TRIES]
        pending = [m for m in pending if not (self.tries[m] and reason(HARMLESS, m))]
        if not pending:
            return result
        expected = self._run(item, "")
        if expected[0]:  # a test that does not pass twice says nothing
            return result
        for mutation in pending:
            self.tries[mutation] += 1
            self.of_function[mutation, function] += 1
            if self._run(item, mutation) != expected and self._run(item, "") == expected:
                self.killed[mutation] = item.nodeid
        return result

    def _run(self, item: pytest.Item, awake: str) -> tuple[bool, list[str]]:
        """Whether ``item`` fails with one mutation ``awake``, and the rows whose device results were accepted."""
        decisions = getattr(ledger.ProcessLedger.ledger, "decisions", [])
        before = len(decisions)
        State.accepted.clear()
        if (engine := current_engine(current_policy())) is not None:
            engine.health.tried(sound=True)  # after the wrong numbers of the run before
        State.awake, failed = awake, False
        try:
            item.runtest()
        except (Exception, pytest.fail.Exception):
            failed = True
        except (pytest.skip.Exception, pytest.xfail.Exception):
            pass
        finally:
            State.awake = ""
        del decisions[before:]
        return failed, sorted(State.accepted)

    def pytest_sessionfinish(self) -> None:
        self.file.write_text(json.dumps({"tries": self.tries, "killed": self.killed}))
