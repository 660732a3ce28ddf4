"""Python's garbage collector, while trnpy makes many objects that stay."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterator


@contextlib.contextmanager
def not_collected() -> Iterator[None]:
    """Suspend the garbage collector for a block that loads modules.

    Python collects after every 700 new objects, and looks through all objects of the process after every 70,000. The
    modules of a first call make 20,000 objects, none of which is garbage. Without this block, a program would look
    through its own objects earlier and once more often, which took programs of a second 70 ms.
    """
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()
