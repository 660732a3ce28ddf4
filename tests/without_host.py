"""A plugin, ``pytest -p without_host``: the table of host routes is empty, and tests marked ``route`` do not run."""

import trnpy._host

trnpy._host.TABLE.clear()


def pytest_collection_modifyitems(config, items):
    routes = [item for item in items if item.get_closest_marker("route")]
    config.hook.pytest_deselected(items=routes)
    items[:] = [item for item in items if item not in set(routes)]
