"""The products algorithms are written over, and which engine computes them here."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator
from contextvars import ContextVar
from typing import Protocol

import numpy as np

from trnpy._nki.device import NeuronRuntime, detect, instance_machine, neuron_route
from trnpy._nki.hardware import MACHINES, Hardware
from trnpy._nki.null import NullRuntime
from trnpy._nki.runtime import Counters, DeviceUnavailable
from trnpy._policy import Policy, current_policy, process_policy
from trnpy._products import FAULTS_BEFORE_REST, DeviceEngine, Handle, Health, Refused
from trnpy._residency import Cache


class Engine(Protocol):
    """A few products; stacks broadcast as in numpy.matmul, and the dtype of the operands is kept."""

    name: str
    hardware: Hardware | None  # what its times are modelled on; None for the host
    executes: bool  # False: decisions and times are modelled, results come from the reference
    health: Health
    cache: Cache  # operands that are with the device already

    @property
    def counters(self) -> Counters: ...  # of its launches

    def matmul(self, a: np.ndarray, b: np.ndarray) -> np.ndarray: ...  # (..., m, k) (..., k, n) -> (..., m, n)

    def gram(self, a: np.ndarray) -> np.ndarray: ...  # A A^H: (..., m, k) -> (..., m, m)


class HostEngine:
    """BLAS: the oracle for the others, and what ``force`` uses where there is no device."""

    name = "host"
    hardware: Hardware | None = None
    executes = True

    def __init__(self) -> None:
        self.health = Health()
        self.cache = Cache()
        self.counters = Counters()

    def matmul(self, a: np.ndarray, b: np.ndarray) -> np.ndarray:
        result: np.ndarray = np.matmul(a, b)
        return result

    def gram(self, a: np.ndarray) -> np.ndarray:
        return self.matmul(a, a.conj().swapaxes(-1, -2))


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


@functools.cache
def _neuron_engine() -> tuple[Engine | None, str]:
    """The engine on this machine's device, else why there is none; drivers do not mend while a process lives."""
    if MISSING:
        return None, MISSING
    try:
        hardware = instance_machine(process_policy().machine)
        return DeviceEngine(NeuronRuntime(hardware, neuron_route(), lambda: current_policy().time_limit)), ""
    except (
        Exception
    ) as why:  # whatever torch's own packages raise where they are imported: under auto the host computes
        return None, f"{type(why).__name__}: {why}"


@functools.cache
def _simulator_engine(machine: str) -> Engine:
    try:
        from trnpy._nki.simulator.runtime import SimulatorRuntime
    except ImportError as why:
        raise DeviceUnavailable(f"TRNPY_DEVICE=simulator: {why}; pip install trnpy[simulator]") from why
    return DeviceEngine(SimulatorRuntime(MACHINES[machine]))


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
    if policy.device in ("neuron", "auto"):
        device, missing = _neuron_engine()
        if device is not None:
            return device
        if policy.device == "neuron":
            raise DeviceUnavailable(f"TRNPY_DEVICE=neuron: {missing}")
    if policy.device == "simulator":
        return _simulator_engine(policy.machine)
    if policy.force:
        return HOST
    return None


def available() -> tuple[bool, str]:
    """Whether calls can go to a Neuron device, and the reason when they cannot."""
    _, missing = _neuron_engine()
    return not missing, missing


__all__ = ["FAULTS_BEFORE_REST", "HOST", "DeviceEngine", "Engine", "Handle", "Health", "HostEngine", "Refused"]
