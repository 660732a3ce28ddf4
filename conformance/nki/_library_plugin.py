"""The pytest plugin under which nki-library's own tests run on the simulator; see _library.py.

It puts the simulator under the names of nki, and stand-ins under those of missing parts of the Neuron SDK and of the
test infrastructure. It gives the tests a ``test_manager`` that simulates a kernel and compares it with the test's
reference, by the library's own comparison and tolerances.
"""

from __future__ import annotations

import importlib.abc
import importlib.util
import inspect
import json
import random
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from nkisim.chip.dtypes import PACKED_NUMPY
from nkisim.chip.errors import SimulatorError
from nkisim.chip.replicas import run_ranks
from nkisim.chip.strictness import Strictness
from nkisim.run.launch import Kernel, run
from nkisim.run.loader import nki_modules

RESULTS, SECONDS, MOST = "--trnpy-results", "--trnpy-seconds", "--trnpy-most"
TARGETS = ("trn2", "trn3")  # targets of a test, the first that it does not exclude
# Breaches that the library's authors accept on trn2 and trn3, and SBUF that the compiler spills; outputs that depend on
# garbage are still refused.
RULES: dict[int, Strictness] = {5: "warn", 11: "warn", 16: "propagate", 24: "warn"}
# Modules with which tests talk to AWS, report or draw: they do not affect what a kernel computes.
ABSENT = (
    "aws_embedded_metrics", "boto3", "botocore", "fabric2", "nki_cpu_simulator", "paramiko", "plotext", "pytest_html",
)  # fmt: skip
LARGE = ("4096", "5120", "8192", "16384", "32768", "36864")  # the library's own list, test/utils/simulation_setup.py
RANGED = "range_test_options"
ALIAS = ".must_alias_input"  # after the name of an argument that the kernel writes


class Wrong(AssertionError):
    """The kernel ran, and its result differs from the reference's."""


class _Anything(type):
    """A class whose every attribute is a class."""

    def __getattr__(cls, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return _Anything(name, (Exception,), {})


class _Stand(ModuleType):
    """A module that has every name."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return _Anything(name, (Exception,), {})


class _Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Loads stand-ins for modules that are not installed; the last finder that is asked."""

    def find_spec(self, fullname: str, path: Any = None, target: Any = None) -> Any:
        if fullname.partition(".")[0] not in ABSENT:
            return None
        return importlib.util.spec_from_loader(fullname, self, is_package=True)

    def create_module(self, spec: Any) -> ModuleType:
        return _Stand(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        """Do nothing: the stand-in makes its names when they are looked up."""


def install() -> None:
    """Make nki the simulator for every import of this process."""
    for name, module in nki_modules().items():
        sys.modules[name] = module
        parent = name.rpartition(".")[0]
        while parent and parent not in sys.modules:
            sys.modules[parent] = _Stand(parent)
            parent = parent.rpartition(".")[0]
    sys.meta_path.append(_Finder())
    np.sctypeDict.update(PACKED_NUMPY)  # numpy.dtype("float8_e4m3fn_x4"), as neuron_dtypes has it
    orchestrator = ModuleType("test.utils.test_orchestrator")
    orchestrator.Orchestrator = Manager  # type: ignore[attr-defined]
    sys.modules[orchestrator.__name__] = orchestrator
    # The standard library has a package ``test``, too; drop it if imported, so that the checkout's is found.
    sys.modules.pop("test", None)


class Manager:
    """Executes the kernel of a test and compares results, in the place of the library's Orchestrator."""

    def __init__(self, mode: Any = None) -> None:
        self.trace_mode = mode

    def execute(self, wanted: Any) -> None:
        """Run and compare; raises what the simulator raises, or Wrong."""
        ranks = wanted.inference_args.collective_ranks
        target = wanted.compiler_input.platform_target.get_compile_target()
        kernel = wanted.kernel_func
        kernel = kernel if isinstance(kernel, Kernel) else Kernel(kernel)
        kernel = kernel[wanted.compiler_input.logical_nc_config]
        inputs = [self._inputs(wanted.kernel_input, rank) for rank in range(ranks)]
        if ranks == 1:
            outputs = [run(kernel, (), inputs[0], target=target, rules=RULES).outputs]
        else:
            signature = inspect.signature(kernel)
            bound = [signature.bind(**given) for given in inputs]
            for one in bound:
                one.apply_defaults()
            outputs = [r.outputs for r in run_ranks(kernel, [b.args for b in bound], target=target, rules=RULES)]
        if wanted.validation_args is not None:
            for rank, found in enumerate(outputs):
                self._compare(found, wanted.validation_args, rank)

    def _inputs(self, given: Any, rank: int) -> dict[str, Any]:
        values = given.for_rank(rank) if hasattr(given, "for_rank") else given or {}
        return {name.removesuffix(ALIAS): _copied(value) for name, value in values.items()}

    def _compare(self, outputs: Any, validation: Any, rank: int) -> None:
        from test.integration.nkilib.utils.comparators import maxAllClose  # type: ignore[import-not-found]

        golden, shapes = validation.golden_output, {}
        if hasattr(golden, "lazy_golden_generator"):
            golden, shapes = golden.golden, golden.output_ndarray
        elif hasattr(golden, "for_rank"):
            golden = golden.for_rank(rank)
        elif rank:
            return
        if golden is None:
            return
        found = outputs if isinstance(outputs, tuple) else () if outputs is None else (outputs,)
        if len(found) != len(golden):
            raise Wrong(f"{len(found)} outputs, the reference has {len(golden)}: {', '.join(golden)}")
        for position, name in enumerate(shapes or golden):
            expected, got = golden[name], found[position]
            if hasattr(expected, "validator"):
                if not expected.validator(None).validate(np.ascontiguousarray(got).view(np.uint8).reshape(-1)):
                    raise Wrong(f"{name}: the test's own validator says no")
                continue
            tolerances = (validation.relative_accuracy, validation.absolute_accuracy)
            a, b = _floats(got), _floats(expected)
            if a.size == b.size:
                a = a.reshape(b.shape)
            if a.shape != b.shape or not maxAllClose(a, b, *tolerances):
                gap = np.abs(a - b).max() if a.shape == b.shape else float("nan")
                raise Wrong(f"{name}: largest difference {gap:.3g} of {np.abs(b).max():.3g}; allowed {tolerances}")


def _copied(value: Any) -> Any:
    return value.copy() if isinstance(value, np.ndarray) else value


def _floats(values: Any) -> Any:
    from nkisim.run.neuron_dtypes import static_cast

    return static_cast(values, np.float32)


@pytest.fixture
def test_manager() -> Manager:
    from test.utils.common_dataclasses import TraceMode  # type: ignore[import-not-found]

    return Manager(TraceMode.CompileAndInfer)


@pytest.fixture
def platform_target(request: Any) -> Any:
    from test.utils.common_dataclasses import Platforms  # type: ignore[import-not-found]

    marker = request.node.get_closest_marker("platforms")
    excluded = {p.value for p in marker.kwargs.get("exclude") or ()} if marker else set()
    return Platforms(next((target for target in TARGETS if target not in excluded), TARGETS[0]))


@pytest.fixture
def collector() -> Any:
    from test.utils.metrics_collector import NoopMetricsCollector  # type: ignore[import-not-found]

    return NoopMetricsCollector()


def pytest_addoption(parser: Any) -> None:
    parser.addoption(RESULTS, type=Path, help="one JSON line a test")
    parser.addoption(MOST, type=int, default=4, help="of the parameters of one test, spread evenly; 0: all")
    parser.addoption(SECONDS, type=int, default=60, help="for one test")


def pytest_generate_tests(metafunc: Any) -> None:
    """The library's own marker: parameters combined by its own rules, each value at least once."""
    if metafunc.definition.get_closest_marker("fast") is None:
        return  # tests that are not fast are deselected anyway, and have many combinations
    if RANGED in metafunc.fixturenames:
        from test.utils.ranged_test_harness import RangeTestHarness  # type: ignore[import-not-found]

        random.seed(0)
        ids, configs = RangeTestHarness(metafunc.function.range_test_config).get_unique_test_cases()
        metafunc.parametrize(RANGED, configs, ids=ids)
        return
    marker = metafunc.definition.get_closest_marker("coverage_parametrize")
    if marker is None:
        return
    from test.utils import coverage_parametrized_tests as coverage  # type: ignore[import-not-found]

    random.seed(0)
    words = dict(marker.kwargs)
    how = {k: words.pop(k) for k in list(words) if k in HOW}
    how.setdefault("coverage", "singles")
    cases = coverage.generate_parametrized_test_case(params=words, filter_func=how.pop("filter", None), **how)
    names, values, ids = coverage.extract_parametrize_args(words, cases)
    metafunc.parametrize(names, values, ids=ids)


HOW = (
    "coverage", "filter", "enable_automatic_boundary_tests", "enable_invalid_combination_tests",
    "n_tests_per_boundary_value", "max_invalid_tests",
)  # fmt: skip


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: Any, items: list[Any]) -> None:
    """Deselect shapes that the library calls large for a simulator, and all but a few parameters of each test."""
    most = config.getoption(MOST)
    if not most:
        return
    tests: dict[str, list[Any]] = {}
    for item in items:
        if not any(size in item.name for size in LARGE):
            tests.setdefault(item.nodeid.partition("[")[0], []).append(item)
    kept = [item for found in tests.values() for item in found[:: max(1, -(-len(found) // most))]]
    items[:] = kept


class TooLong(Exception):
    """A test exceeded its time limit."""


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_call(item: Any) -> Iterator[None]:
    """Time the test, and interrupt one that takes longer than ``--trnpy-seconds``."""

    def stop(number: int, frame: Any) -> None:
        raise TooLong(f"not done in {limit} s")

    limit = item.config.getoption(SECONDS)
    item.trnpy_began = time.perf_counter()
    before = signal.signal(signal.SIGALRM, stop)
    signal.alarm(limit)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item: Any, call: Any) -> Iterator[None]:
    """Write one line per test: its outcome, and why."""
    outcome = yield
    report = outcome.get_result()  # type: ignore[attr-defined]
    if call.when != "call" and not report.failed and not report.skipped:
        return
    if report.skipped:
        verdict, why = "skipped", str(call.excinfo.value) if call.excinfo else ""
    elif not report.failed:
        verdict, why = "passed", ""
    else:
        verdict, why = _verdict(call.excinfo.value)
    line = {
        "test": item.nodeid,
        "verdict": verdict,
        "why": why,
        "seconds": round(time.perf_counter() - getattr(item, "trnpy_began", time.perf_counter()), 2),
    }
    path = item.config.getoption(RESULTS)
    if path is not None:
        with path.open("a") as file:
            file.write(json.dumps(line) + "\n")


def _verdict(error: BaseException) -> tuple[str, str]:
    why = " ".join(str(error).split())[:400]
    if isinstance(error, SimulatorError) and "TooLong" not in why:
        return "refused", why
    if isinstance(error, Wrong):
        return "wrong", why
    if isinstance(error, TooLong) or "TooLong" in why:
        return "slow", why
    if isinstance(error, MemoryError) or "can't allocate memory" in why:  # the latter are torch's words
        return "large", why
    return "error", f"{type(error).__name__}: {why}"


install()
