"""What a device must offer an engine: launches that are counted, time limits, and errors with types."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from trnpy._nki.hardware import Hardware


class DeviceError(RuntimeError):
    """The device, its driver or its compiler failed."""


class DeviceUnavailable(DeviceError):
    """There is no device of the kind that was asked for; the message says what is missing."""


class DeviceMemoryError(DeviceError, MemoryError):
    """The operands do not fit the device's memory."""


class DeviceTimeout(DeviceError, TimeoutError):
    """A launch did not finish within the policy's time limit."""


class CompileError(DeviceError):
    """The compiler refused a kernel."""


@dataclass(slots=True)
class Counters:
    """What a runtime has done since it was made."""

    launches: Counter[str] = field(default_factory=Counter)  # by kernel name
    compiles: Counter[str] = field(default_factory=Counter)  # by kernel name
    bytes_in: int = 0
    bytes_out: int = 0


class Runtime(Protocol):
    """Launches kernels by name on arrays."""

    name: str
    hardware: Hardware
    executes: bool  # False when results come from the host whatever is launched
    counters: Counters

    def launch(self, kernel: str, *operands: np.ndarray, **parameters: Any) -> np.ndarray: ...


POLL_S = 1e-3  # between looks at a launch that has not finished


def wait(finished: Callable[[], bool], time_limit_s: float, what: str) -> None:
    """Return when ``finished()`` is true; DeviceTimeout when it is not within ``time_limit_s``.

    Polling, not a thread: a launch that never ends leaves nothing behind on the host.
    """
    deadline = time.monotonic() + time_limit_s
    while not finished():
        if time.monotonic() >= deadline:
            raise DeviceTimeout(f"{what} did not finish within {time_limit_s:g} s (policy time_limit)")
        time.sleep(POLL_S)
