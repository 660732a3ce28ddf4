"""The pytest plugin that passes a library to SciPy's tests as their only array API backend."""

from __future__ import annotations

import importlib

import pytest


@pytest.hookimpl(tryfirst=True)  # before SciPy's own backends are used
def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "xp" not in metafunc.fixturenames:
        return
    library = importlib.import_module(metafunc.config.getoption("--library"))
    conftest = vars(importlib.import_module("scipy.conftest"))
    backends = conftest["xp_available_backends"]
    if isinstance(backends, dict):  # before SciPy 1.17
        backends.clear()
        backends[library.__name__] = library
    if "xp" not in conftest:  # SciPy 1.15: a mark has a view of these values
        return
    conftest["xp_known_backends"].add(library.__name__)  # the names that marks of skipped tests may have
    conftest.get("xp_skip_np_only_backends", set()).add(library.__name__)  # SciPy 1.16
    # One id for each library, so that the names of tests are the same.
    metafunc.definition.add_marker(pytest.mark.parametrize("xp", [pytest.param(library, id="xp")], indirect=True))


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    chosen = [item for item in items if "xp" in getattr(item, "fixturenames", ())]
    config.hook.pytest_deselected(items=[item for item in items if "xp" not in getattr(item, "fixturenames", ())])
    items[:] = chosen
