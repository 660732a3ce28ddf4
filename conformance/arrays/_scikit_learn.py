"""The pytest plugin that makes a library the only namespace of scikit-learn's array API tests."""

from __future__ import annotations

import functools
import importlib
from collections.abc import Iterator
from typing import Any

import pytest

DTYPES = ("float64", "float32")
SAME = "check_array_api_same_namespace"  # an estimator check that names its namespace


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    """Replace scikit-learn's generators of namespaces before its test files take them."""
    library = config.getoption("--library")

    def yield_namespaces(include_numpy_namespaces: bool = True) -> Iterator[str]:
        yield library

    def yield_namespace_device_dtype_combinations(include_numpy_namespaces: bool = True) -> Iterator[tuple[Any, ...]]:
        yield from ((library, None, dtype) for dtype in DTYPES)

    def yield_mixed_namespace_input_permutations() -> Iterator[tuple[Any, Any, str]]:
        pairs = ((library, "numpy"), ("numpy", library))
        yield from ((named(a, None), named(b, None), f"{a} to {b}") for a, b in pairs)

    array_api: Any = importlib.import_module("sklearn.utils._array_api")
    named = vars(array_api).get("NamespaceAndDevice")
    replaced = [yield_namespaces, yield_namespace_device_dtype_combinations]
    if named is not None:  # since scikit-learn 1.9
        replaced.append(yield_mixed_namespace_input_permutations)
    for function in replaced:
        setattr(array_api, function.__name__, function)
    _replace_namespace_of_check(library)


def _replace_namespace_of_check(library: str) -> None:
    checks: Any = importlib.import_module("sklearn.utils.estimator_checks")
    original = vars(checks).get(SAME)
    if original is None:  # before scikit-learn 1.9
        return

    @functools.wraps(original)
    def check(*args: Any, **options: Any) -> Any:
        return original(*args, **options | {"array_namespace": library})

    setattr(checks, SAME, check)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    library = config.getoption("--library")
    chosen = {item for item in items if library in item.nodeid or SAME in item.nodeid}
    config.hook.pytest_deselected(items=[item for item in items if item not in chosen])
    items[:] = [item for item in items if item in chosen]
