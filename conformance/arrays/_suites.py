"""The suites that test an array library: their files, settings, and the plugin that passes the library to them."""

from __future__ import annotations

import argparse
import importlib.util
import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

LIBRARY, STRICT = "trnpy.xp", "array_api_strict"
VERSION = "2024.12"  # of the standard that trnpy.xp has
SEED = "--hypothesis-seed=0"  # a run is repeated with the same examples
SOURCE = "https://github.com/data-apis/array-api-tests"
GET = f"""Get it with
    git clone --recurse-submodules {SOURCE}
    pip install hypothesis ndindex pytest-json-report
and pass its folder with --source"""


@dataclass(frozen=True, slots=True)
class Suite:
    """Tests that are run once for trnpy.xp, and once for another library of the standard."""

    name: str
    about: str
    root: Callable[[argparse.Namespace], Path]  # the folder to which names of tests refer
    tests: Callable[[Path], list[str]]  # what pytest collects, relative to the root
    plugins: tuple[str, ...] = ()
    arguments: tuple[str, ...] = ()  # of pytest
    environment: Callable[[str], Mapping[str, str]] = field(default=lambda library: {"SCIPY_ARRAY_API": "1"})


def _checkout(options: argparse.Namespace) -> Path:
    """The folder of array-api-tests: the given one, that of an installed package, or one beside this package."""
    here = Path(__file__).resolve().parents[2]
    places = [here / "array-api-tests", here.parent / "array-api-tests"]
    spec = importlib.util.find_spec("array_api_tests")
    if spec is not None and spec.origin is not None:
        places.insert(0, Path(spec.origin).parents[1])
    if options.source is not None:
        places = [options.source.resolve()]
    for place in places:
        if (place / "conftest.py").exists() and (place / "array_api_tests").is_dir():
            if not (place / "array-api" / "spec").is_dir():
                raise SystemExit(f"{place} lacks its submodule: git -C {place} submodule update --init")
            return place
    raise SystemExit(f"no checkout of array-api-tests in {', '.join(map(str, places))}. {GET}")


def _installed(package: str) -> Callable[[argparse.Namespace], Path]:
    def folder(options: argparse.Namespace) -> Path:
        spec = importlib.util.find_spec(package)
        if spec is None or spec.origin is None:
            raise SystemExit(f"{package} is not installed: pip install {package.replace('sklearn', 'scikit-learn')}")
        return Path(spec.origin).parents[1]

    return folder


def _files(pattern: str, *folders: str) -> Callable[[Path], list[str]]:
    """The test files below ``folders`` in which ``pattern`` is found."""

    def found(root: Path) -> list[str]:
        paths = sorted(path for folder in folders for path in (root / folder).glob("**/tests/**/test_*.py"))
        return [str(p.relative_to(root)) for p in paths if re.search(pattern, p.read_text(encoding="utf-8"))]

    return found


def _standard(library: str) -> dict[str, str]:
    names = {"ARRAY_API_TESTS_MODULE": library, "ARRAY_API_TESTS_VERSION": VERSION}
    return names | {"ARRAY_API_STRICT_API_VERSION": VERSION}


PARTS = (
    "_lib", "cluster", "constants", "differentiate", "fft", "integrate", "interpolate", "linalg", "ndimage", "optimize",
    "signal", "sparse", "spatial", "special", "stats",
)  # fmt: skip

SUITES = {
    suite.name: suite
    for suite in (
        Suite(
            "array-api",
            "the tests of the array API standard, data-apis/array-api-tests, with its settings",
            _checkout,
            lambda root: ["array_api_tests"],
            arguments=("--disable-deadline", SEED),
            environment=_standard,
        ),
        Suite(
            "scikit-learn",
            "scikit-learn's tests of estimators and functions that are parametrized by an array namespace",
            _installed("sklearn"),
            _files(r"yield_\w*namespace|array_namespace|check_estimator|parametrize_with_checks", "sklearn"),
            plugins=("conformance.arrays._scikit_learn",),
        ),
        Suite(
            "scipy-array-api",
            "SciPy's tests that a backend of the array API can be passed to, with SCIPY_ARRAY_API=1",
            _installed("scipy"),
            _files(r"\bxp\b", *(f"scipy/{part}" for part in PARTS)),
            plugins=("conformance.arrays._scipy",),
        ),
    )
}


def environment(suite: Suite, library: str, simulator: bool) -> dict[str, str]:
    """The environment of a run on ``library``."""
    here = str(Path(__file__).resolve().parents[2])
    path = os.pathsep.join([here, *filter(None, [os.environ.get("PYTHONPATH")])])
    found = {**os.environ, "PYTHONPATH": path, **suite.environment(library)}
    return found | {"TRNPY_DEVICE": "simulator", "TRNPY_FORCE": "1"} if simulator else found
