"""A sampling profiler for work that patches do not reach: it reads the stacks of all threads 25 times per second.

``a.dot(b)`` of arrays is C code that Python cannot replace; ``fft``, ``eig`` and ``spsolve`` have no device path; and a
function that was imported by name before the patch is still NumPy's or SciPy's. Patched functions have no extra cost: a
separate thread takes samples while calls are recorded, and the report interprets them.
"""

from __future__ import annotations

import _thread
import dis
import os
import sys
import threading
import time
import types
from collections.abc import Callable
from types import CodeType, FrameType
from typing import Any, ClassVar, NamedTuple

from trnpy._base.conventions import OWN
from trnpy._report.elsewhere import Elsewhere, Meter
from trnpy._report.files import source
from trnpy._report.instructions import CALLS, callee
from trnpy._report.program_lines import is_library

PERIOD_S = 0.04  # half of this slowed Python loops by 1.2 to 1.7 % (one core of an EPYC)
# A thread that wakes late has waited for the interpreter lock, which Python code releases after 5 ms at most. Work that
# a late sample finds therefore began after the sample was due. If the delay exceeds HELD_S, one call has held the lock.
PROMPT_S = 0.0005
HELD_S = 0.008
SHARE = 0.01  # share of the time that the thread may use or wait in vain; it samples less often if samples take long
AGAIN_S = 0.0002  # a product that ends within this time is too short to accelerate
LEAST_S, LEAST_SHARE = 3 * PERIOD_S, 0.01  # least seconds, and least share of the run, that the text mentions
SITES = 10_000
LIBRARIES = ("numpy", "scipy")
RECORDER = "trnpy._call.dispatch"
LINEAR_ALGEBRA = ("numpy.linalg", "numpy.fft", "scipy.linalg", "scipy.fft", "scipy.fftpack", "scipy.sparse")
PRODUCT, NO_PATH, UNPATCHED = "product", "no path", "unpatched"


class Hooked:
    """The patched names of this process by the ``id`` of the original function, which is kept alive."""

    originals: ClassVar[dict[int, tuple[Any, str]]] = {}


class Unrouted(NamedTuple):
    """Time that one line of the program spent in work that patches do not reach."""

    kind: str  # "product", "no path" or "unpatched"
    function: str
    file: str
    line: int
    seconds: float  # a lower bound, from samples
    through: str = ""  # the library's ``file:line`` through which the program's line made the call


class Place(NamedTuple):
    """An instruction of the program, and the public function of NumPy or SciPy that it has called, if any."""

    code: CodeType
    file: str  # code objects of different files may be equal
    instruction: int
    module: str
    function: str
    file_of_program: str = ""  # of the program's line, if the instruction is a library's
    line_of_program: int = 0


class Samples:
    """Seconds by place, and processor time outside accelerated functions."""

    def __init__(self) -> None:
        self.seconds: dict[Place, float] = {}
        self.elsewhere = Elsewhere()

    def add(self, place: Place, seconds: float) -> None:
        """Add time to a place; if there are SITES places, new ones are ignored."""
        if place in self.seconds or len(self.seconds) < SITES:
            self.seconds[place] = self.seconds.get(place, 0.0) + seconds

    def absorb(self, other: Samples) -> None:
        """Add the times of ``other``."""
        for place, seconds in list(other.seconds.items()):
            self.add(place, seconds)
        self.elsewhere.absorb(other.elsewhere)

    def found(self) -> list[Unrouted]:
        """The places as lines of the program with functions, longest time first."""
        sums: dict[tuple[str, str, str, int, str], float] = {}
        for place, seconds in list(self.seconds.items()):
            if (named := _named(place)) is not None:
                file, line, through = source(place.file), _line(place), ""
                if place.file_of_program:
                    file, line, through = source(place.file_of_program), place.line_of_program, f"{file}:{line}"
                key = *named, file, line, through
                sums[key] = sums.get(key, 0.0) + seconds
        found = [Unrouted(*key[:4], s, key[4]) for key, s in sums.items()]
        return sorted(found, key=lambda u: -u.seconds)


# --- The thread -------------------------------------------------------------------------------------------------------


class _Thread:
    """The handle of the sampling thread."""

    def __init__(self) -> None:
        self.wake, self.done = _thread.allocate_lock(), _thread.allocate_lock()  # released to end it, and as it ends
        self.wake.acquire()
        self.done.acquire()
        self.native = 0  # the operating system's thread id

    def end(self) -> None:
        """End the thread; returns when it is gone."""
        self.wake.release()
        self.done.acquire()
        while os.path.exists(f"/proc/self/task/{self.native}"):  # the thread ends microseconds later
            time.sleep(1e-4)


class _Watch:
    """The sampling thread of this process, if there is one, and its target; both change only under ``lock``."""

    lock = threading.RLock()  # a fork holds it, so that the child finds it free
    thread: _Thread | None = None
    samples: Callable[[], Samples | None] = staticmethod(lambda: None)


def watch(samples: Callable[[], Samples | None]) -> None:
    """Sample all threads while ``samples`` returns an object to add to."""
    with _Watch.lock:
        if _Watch.thread is None:
            thread = _Thread()
            # Not a threading.Thread, because programs count and list those.
            _thread.start_new_thread(_look, (thread, samples))
            _Watch.samples, _Watch.thread = samples, thread


def _before_fork() -> None:
    """End the thread before a fork: Python warns about forks with threads, and the child would not have it."""
    _Watch.lock.acquire()
    thread, _Watch.thread = _Watch.thread, None
    if thread is not None:
        thread.end()


def _in_parent() -> None:
    _Watch.lock.release()
    if _Watch.samples() is not None:
        watch(_Watch.samples)


if hasattr(os, "register_at_fork"):  # Windows has no fork
    os.register_at_fork(before=_before_fork, after_in_parent=_in_parent, after_in_child=_Watch.lock.release)


def _look(own: _Thread, target: Callable[[], Samples | None]) -> None:
    own.native = _thread.get_native_id()
    try:
        _look_until_woken(own, target)
    finally:
        own.done.release()


def _look_until_woken(own: _Thread, target: Callable[[], Samples | None]) -> None:
    """Sample until ``own.wake`` is released or nothing is recorded any more.

    If a program's calls release the interpreter lock for microseconds, each release wakes a thread that waits for the
    lock but seldom lets it run, and each wake-up costs the program microseconds. A wait for the lock that finds nothing
    therefore counts as time used.
    """
    last, used_s, pause_s, meter = time.perf_counter(), time.thread_time(), PERIOD_S, Meter()
    while not own.wake.acquire(timeout=pause_s):
        samples, now = target(), time.perf_counter()
        if samples is None:
            if _left(target):
                return
            continue
        late_s, vain_s = now - last - pause_s, 0.0
        meter.add_to(samples.elsewhere, late_s)
        if late_s < PROMPT_S:
            if seen := _seen():
                if own.wake.acquire(timeout=AGAIN_S):
                    return
                again_s = time.perf_counter() - now
                if again_s < AGAIN_S + PROMPT_S:
                    for place in _seen() & seen:
                        samples.add(place, now - last)
        elif late_s > HELD_S:
            for place in _seen():
                samples.add(place, now - last)
        else:
            vain_s = late_s
        before_s, used_s = used_s, time.thread_time()
        last, pause_s = time.perf_counter(), max(PERIOD_S, (used_s - before_s + vain_s) / SHARE)


def _left(target: Callable[[], Samples | None]) -> bool:
    """Whether nothing is recorded any more and no fork waits for the thread; if so, unregister the thread."""
    if not _Watch.lock.acquire(blocking=False):
        return False
    try:
        if target() is not None:
            return False
        _Watch.thread = None
        return True
    finally:
        _Watch.lock.release()


def _seen() -> set[Place]:
    """The places where threads run work that patches do not reach."""
    own = _thread.get_ident()
    places = (_place(frame) for thread, frame in sys._current_frames().items() if thread != own)
    return {place for place in places if place is not None}


def _place(frame: FrameType | None) -> Place | None:
    """The place of a thread whose innermost frame is ``frame``; None if its work is recorded or not linear algebra."""
    function = ""
    while frame is not None:
        module = str(frame.f_globals.get("__name__", ""))
        package = module.partition(".")[0]
        if package in OWN:
            return None
        if package not in LIBRARIES:
            break
        if not module.startswith("scipy._lib"):  # decorators
            function = f"{module}.{frame.f_code.co_name}" if module.startswith(LINEAR_ALGEBRA) else ""
        frame = frame.f_back
    if frame is None:
        return None
    at = frame.f_lasti
    if not function:
        operation = frame.f_code.co_code[at] if at >= 0 else None
        if operation not in CALLS:
            return None
    if _recorded(frame):
        return None
    program: FrameType | None = frame
    while program is not None and is_library(program):
        program = program.f_back
    line = ("", 0) if program is None or program is frame else (program.f_code.co_filename, program.f_lineno or 0)
    return Place(frame.f_code, frame.f_code.co_filename, at, module, function, *line)


def _recorded(frame: FrameType) -> bool:
    """Whether ``frame`` runs inside a call that is recorded as a whole, such as J and K of PySCF."""
    outer: FrameType | None = frame
    while outer is not None and outer.f_globals.get("__name__") != RECORDER:
        outer = outer.f_back
    return outer is not None


# --- The meaning of a place -------------------------------------------------------------------------------------------


def _named(place: Place) -> tuple[str, str] | None:
    """The kind and the function of a place; None if its work does not suit a device."""
    if not place.function:
        return _instruction(place)
    name = public_name(place.function)
    if not name:
        return None
    hooked = {known for _, known in Hooked.originals.values()}
    return UNPATCHED if name in hooked else NO_PATH, name


def public_name(function: str) -> str:
    """The public name of a NumPy or SciPy function, from its name in its own module; "" if it has none."""
    path, _, name = function.rpartition(".")
    parts = path.split(".")
    private = next((i for i, part in enumerate(parts) if part.startswith("_")), len(parts))
    outer = (".".join(parts[:i]) for i in range(private, 0, -1))
    public = next((module for module in outer if hasattr(sys.modules.get(module), name)), "")
    return f"{public}.{name}" if public and not name.startswith("_") else ""


def _instruction(place: Place) -> tuple[str, str] | None:
    """A product through a method, or a call of an original function through a name."""
    steps = [step for step in dis.get_instructions(place.code) if step.opname != "CACHE"]
    at = next((i for i, step in enumerate(steps) if step.offset == place.instruction), 0)
    loader = callee(steps, at)
    if loader is None:
        return None
    space = vars(sys.modules.get(place.module, types.ModuleType("")))
    load = steps[loader]
    if load.opname in ("LOAD_METHOD", "LOAD_ATTR"):
        owner = space.get(steps[loader - 1].argval) if steps[loader - 1].opname.startswith("LOAD_") else None
        if isinstance(owner, types.ModuleType):
            return _hooked(getattr(owner, load.argval, None))
        return (PRODUCT, "a.dot(b)") if load.argval == "dot" else None
    return _hooked(space.get(load.argval)) if load.opname in ("LOAD_NAME", "LOAD_GLOBAL") else None


def _hooked(value: Any) -> tuple[str, str] | None:
    known = Hooked.originals.get(id(value))
    return None if known is None else (UNPATCHED, known[1])


def _line(place: Place) -> int:
    positions = list(place.code.co_positions())
    return positions[place.instruction // 2][0] or place.code.co_firstlineno
