"""A plugin, ``pytest -p cpu_limit``: a test without the mark ``full`` that uses much more than a CPU second fails.

Processor time is measured, not time on the clock, so that a busy machine is no failure. Fixtures are not counted: those
of a module or a session belong to all of its tests.
"""

import os

import pytest

LIMIT_S = (
    3.0  # tests/full.txt lists tests above a fifth of a CPU second; a slow or busy processor is far from this limit
)


def used_s() -> float:
    """Processor seconds of this process and of the children that have ended."""
    now = os.times()
    return now.user + now.system + now.children_user + now.children_system


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item):
    began_s = used_s()
    result = yield
    seconds = used_s() - began_s
    if seconds > LIMIT_S and not exempt(item):
        pytest.fail(f"used {seconds:.1f} CPU seconds: list it in tests/full.txt, and keep a small case", pytrace=False)
    return result


def exempt(item) -> bool:
    """Whether the test may be long."""
    return any(item.get_closest_marker(name) for name in ("full", "slow", "browser", "mpi"))
