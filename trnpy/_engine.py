"""The products algorithms are written over, and which engine computes them here."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from trnpy._nki.device import detect
from trnpy._nki.hardware import MACHINES, Hardware
from trnpy._nki.null import NullRuntime
from trnpy._nki.runtime import DeviceUnavailable, Runtime
from trnpy._policy import Policy

FAULTS_BEFORE_REST = 3  # consecutive device errors after which calls stay on the host


@dataclass(slots=True)
class Health:
    """The circuit breaker of one engine: open after repeated faults, so that calls stop trying."""

    faults: int = 0

    @property
    def open(self) -> bool:
        return self.faults >= FAULTS_BEFORE_REST


class Engine(Protocol):
    """A few products; stacks broadcast as in numpy.matmul, and the dtype of the operands is kept."""

    name: str
    hardware: Hardware | None  # what its times are modelled on; None for the host
    executes: bool  # False: decisions and times are modelled, results come from the reference
    health: Health

    def matmul(self, a: np.ndarray, b: np.ndarray) -> np.ndarray: ...  # (..., m, k) (..., k, n) -> (..., m, n)


class HostEngine:
    """BLAS: the oracle for the others, and what ``force`` uses where there is no device."""

    name = "host"
    hardware: Hardware | None = None
    executes = True

    def __init__(self) -> None:
        self.health = Health()

    def matmul(self, a: np.ndarray, b: np.ndarray) -> np.ndarray:
        result: np.ndarray = np.matmul(a, b)
        return result


class DeviceEngine:
    """Products by the kernels of a runtime."""

    def __init__(self, runtime: Runtime) -> None:
        self.runtime = runtime
        self.name = runtime.name
        self.hardware: Hardware | None = runtime.hardware
        self.executes = runtime.executes
        self.health = Health()

    def matmul(self, a: np.ndarray, b: np.ndarray) -> np.ndarray:
        return self.runtime.launch("matmul", a, b)


HOST: Engine = HostEngine()
_override: ContextVar[Engine | None] = ContextVar("trnpy_engine", default=None)


@contextlib.contextmanager
def engine(e: Engine) -> Iterator[Engine]:
    """Compute products of a block with ``e`` whatever the policy's device is: for tests and experiments."""
    token = _override.set(e)
    try:
        yield e
    finally:
        _override.reset(token)


@functools.cache
def _null_engine(machine: str) -> Engine:
    return DeviceEngine(NullRuntime(MACHINES[machine]))


# Why this machine has no Neuron device, "" if it has one; devices do not come and go while a process lives.
MISSING = detect().missing
RESTING = frozenset({"none", "auto"} if MISSING else {"none"})  # values of policy.device that need no engine


def at_rest(policy: Policy) -> bool:
    """Whether there is no engine at hand: the first question of every call, so the shortest answer."""
    return policy.device in RESTING and not policy.force and _override.get() is None


def current_engine(policy: Policy) -> Engine | None:
    """The engine ``policy`` asks for; None where calls stay on the host.

    DeviceUnavailable when a device was asked for by name and there is none.
    """
    if (chosen := _override.get()) is not None:
        return chosen
    if policy.device == "null":
        return _null_engine(policy.machine)
    if policy.device == "neuron":
        raise DeviceUnavailable(f"TRNPY_DEVICE=neuron: {MISSING}")
    if policy.device == "simulator":
        raise DeviceUnavailable("TRNPY_DEVICE=simulator: this version of trnpy has no kernels to simulate yet")
    if policy.force:
        return HOST
    return None


def available() -> tuple[bool, str]:
    """Whether calls can go to a Neuron device, and the reason when they cannot."""
    return not MISSING, MISSING
