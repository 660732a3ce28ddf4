"""Python's garbage collector, while trnpy makes many objects that stay."""

from __future__ import annotations

import contextlib
import gc
import os
from collections.abc import Iterator


class _Loading:
    suspended = False  # whether a thread loads modules without the collector


@contextlib.contextmanager
def not_collected() -> Iterator[None]:
    """Suspend the garbage collector for a block that loads modules.

    Python collects after every 700 new objects, and looks through all objects of the process after every 70,000. The
    modules of a first call make 20,000 objects, none of which is garbage. Without this block, a program would look
    through its own objects earlier and once more often, which took programs of a second 70 ms.
    """
    enabled = gc.isenabled()
    _Loading.suspended |= enabled
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            _Loading.suspended = False
            gc.enable()


def _in_child() -> None:
    """A thread that was loading is not in a forked child, so it cannot end the suspension there."""
    if _Loading.suspended:
        _Loading.suspended = False
        gc.enable()


if hasattr(os, "register_at_fork"):  # Windows has no fork
    os.register_at_fork(after_in_child=_in_child)
