"""Processor time outside accelerated functions, by kind: imports, Python code, NumPy and SciPy, numba, native code.

The sampling thread adds the processor time since its last sample to the work that it finds. Whether that work is Python
code follows from the interpreter lock: Python code gives it up after 5 ms, native code holds it longer or not at all.
"""

from __future__ import annotations

import _thread
import dis
import sys
import threading
import time
import types
from collections.abc import Hashable
from types import CodeType, FrameType
from typing import Any, NamedTuple, TypeVar

from trnpy._base.conventions import OWN
from trnpy._base.processors import thread_waited_s
from trnpy._report.instructions import CALLS, callee

IMPORTS, PYTHON, LIBRARIES, NUMBA, NATIVE = "imports", "Python code", "other NumPy and SciPy", "numba", "native code"
RECORDER = "trnpy._call.dispatch"
IMPORTER = "<frozen importlib"
# Modules whose functions wait for another thread.
WAITING = frozenset({"threading", "queue", "selectors", "concurrent.futures", "concurrent.futures._base", "socket"})
GLOBALS, ATTRIBUTES = ("LOAD_NAME", "LOAD_GLOBAL"), ("LOAD_METHOD", "LOAD_ATTR")
PLACES = 10_000
FREE_S, HELD_S = 0.0005, 0.008  # a sample that waits less found the lock free; one that waits longer, native code


class Spot(NamedTuple):
    """An instruction that has called native code."""

    code: CodeType
    instruction: int
    module: str


class Elsewhere:
    """Processor seconds by kind; native code by instruction, which the report interprets."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self.native: dict[Spot, float] = {}

    def add(self, frames: list[FrameType], seconds: float, native: bool) -> None:
        """Add the time since the last sample; ``frames`` are the innermost ones of the threads that may have run."""
        running = [f for f in frames if f.f_globals.get("__name__") not in WAITING] or frames
        for frame in running:
            kind = _kind(frame)
            if kind is PYTHON and native and frame.f_lasti >= 0:
                spot = Spot(frame.f_code, frame.f_lasti, str(frame.f_globals.get("__name__", "")))
                if spot in self.native or len(self.native) < PLACES:
                    self.native[spot] = self.native.get(spot, 0.0) + seconds / len(running)
            elif kind:
                self.seconds[kind] = self.seconds.get(kind, 0.0) + seconds / len(running)

    def absorb(self, other: Elsewhere) -> None:
        """Add the times of ``other``."""
        _add(self.seconds, other.seconds)
        _add(self.native, other.native)

    def found(self) -> list[tuple[str, str, float]]:
        """Kind, package ("" if there is none to name) and seconds, longest first."""
        sums = {(kind, ""): seconds for kind, seconds in list(self.seconds.items())}
        for spot, seconds in list(self.native.items()):
            _add(sums, {_of_native(spot): seconds})
        return sorted(((*key, s) for key, s in sums.items() if key[0]), key=lambda entry: -entry[2])


Key = TypeVar("Key", bound=Hashable)


def _add(sums: dict[Key, float], more: dict[Key, float]) -> None:
    for key, seconds in list(more.items()):
        sums[key] = sums.get(key, 0.0) + seconds


class Meter:
    """Processor time of all threads except the sampling one, and how long this and the main thread waited for one."""

    def __init__(self) -> None:
        self.own, self.main = (_thread.get_native_id(), threading.main_thread().native_id)
        self.used_s, self.waited_s = time.process_time() - time.thread_time(), self._waits()

    def _waits(self) -> tuple[float, float]:
        return thread_waited_s(self.own), thread_waited_s(self.main)

    def add_to(self, elsewhere: Elsewhere, late_s: float) -> None:
        """Add the time since the last sample. ``late_s``: the delay of this sample."""
        before, waited_s = self.used_s, self.waited_s
        self.used_s, self.waited_s = time.process_time() - time.thread_time(), self._waits()
        own_s, main_s = (now - then for now, then in zip(self.waited_s, waited_s, strict=True))
        late_s -= own_s
        frames = [frame for thread, frame in sys._current_frames().items() if thread != _thread.get_ident()]
        elsewhere.add(frames, self.used_s - before, native=late_s < FREE_S or late_s - main_s > HELD_S)


def _kind(frame: FrameType) -> str:
    """The kind of work that a thread does whose innermost frame is ``frame``; "" if a call is recorded."""
    package = str(frame.f_globals.get("__name__", "")).partition(".")[0]
    if package in OWN:
        return ""
    outer: FrameType | None = frame
    while outer is not None:
        if outer.f_globals.get("__name__") == RECORDER:
            return ""
        if outer.f_code.co_filename.startswith(IMPORTER):
            return IMPORTS
        outer = outer.f_back
    return LIBRARIES if package in ("numpy", "scipy") else NUMBA if package == "numba" else PYTHON


def _of_native(spot: Spot) -> tuple[str, str]:
    """The kind and the package of the native code that an instruction has called.

    If the function is not a global name, the package is that of the calling module.
    """
    found, caller = _called(spot), spot.module.partition(".")[0]
    caller = "" if caller == "__main__" else caller
    if found is None:
        return NATIVE, caller
    kind = type(found).__module__.partition(".")[0]
    module = found.__name__ if isinstance(found, types.ModuleType) else getattr(found, "__module__", kind)
    package = str(module).partition(".")[0]
    if kind in OWN:
        return "", ""  # a small call of an accelerated function
    if isinstance(found, (types.FunctionType, type)):  # entered just after the sample
        return PYTHON, ""
    if "numba" in (kind, package):
        return NUMBA, caller
    if package in ("numpy", "scipy"):
        return LIBRARIES, ""
    interpreter = package == "__main__" or package in sys.builtin_module_names  # posix and others that have no file
    return (PYTHON, "") if interpreter else (NATIVE, package)


def _called(spot: Spot) -> Any:
    """The object that an instruction calls, if it is a global name or an attribute of a global module."""
    steps = [step for step in dis.get_instructions(spot.code) if step.opname != "CACHE"]
    at = next((i for i, step in enumerate(steps) if step.offset == spot.instruction), 0)
    if steps[at].opcode not in CALLS:
        return None
    index = callee(steps, at)
    if index is None:
        return None
    space, name = vars(sys.modules.get(spot.module, types.ModuleType(""))), steps[index].argval
    if steps[index].opname in GLOBALS:
        return space.get(name)
    owner = space.get(steps[index - 1].argval) if steps[index - 1].opname in GLOBALS else None
    if steps[index].opname not in ATTRIBUTES or not isinstance(owner, types.ModuleType):
        return None
    found = getattr(owner, name, None)
    return owner if getattr(found, "__module__", None) is None else found  # f2py's functions name no module
