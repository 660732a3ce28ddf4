"""Engines for testing checks: a simulated device with one injected fault, and engines without faults."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import numpy as np

from nkisim.hardware import MACHINES
from trnpy._base.records import record
from trnpy._engine.device import DeviceEngine
from trnpy._engine.engines import Engine, HostEngine
from trnpy._engine.health import Health
from trnpy._nki.runtime import Buffer, CompileError, DeviceError, DeviceMemoryError, Operand, wait
from trnpy._nki.simulated import SimulatorRuntime
from trnpy._settings.policy import current_policy

TILE = 128
MEMO_BYTES = 2**28  # of launch outputs that are cached

Damage = Callable[[np.ndarray, np.ndarray, np.random.Generator], None]


@record()
class Fault:
    """``kind`` of fault at launch number ``at``, or in the operand of transfer number ``at``."""

    kind: str
    at: int
    seed: int


def _raise(why: DeviceError) -> None:
    raise why


# Exceptions that a launch raises.
ERRORS: Mapping[str, Callable[[], None]] = MappingProxyType(
    {
        "raises": lambda: _raise(DeviceError("NRT_EXEC_HW_ERR")),
        "out of memory": lambda: _raise(DeviceMemoryError("failed to allocate")),
        "compile error": lambda: _raise(CompileError("neuronx-cc: internal error")),
        "hangs": lambda: wait(lambda: False, current_policy().time_limit, "a launch"),
    }
)


def _not_a_number(x: np.ndarray, old: np.ndarray, rng: np.random.Generator) -> None:
    x.flat[rng.integers(x.size)] = np.iinfo(x.dtype).max if x.dtype.kind in "iu" else np.nan


def _zeros(x: np.ndarray, old: np.ndarray, rng: np.random.Generator) -> None:
    x[...] = 0


def _stale(x: np.ndarray, old: np.ndarray, rng: np.random.Generator) -> None:
    x[...] = old


def _half(x: np.ndarray, old: np.ndarray, rng: np.random.Generator) -> None:
    x.reshape(-1)[x.size // 2 :] = old.reshape(-1)[x.size // 2 :]


def _flip(x: np.ndarray, old: np.ndarray, rng: np.random.Generator) -> None:
    octets = x.reshape(-1).view(np.uint8)
    octets[rng.integers(octets.size)] ^= np.uint8(1 << rng.integers(8))


def _tiles(x: np.ndarray, old: np.ndarray, rng: np.random.Generator) -> None:
    """Exchange two tiles of 128, or the halves of a smaller extent."""
    axis = x.ndim - 1 - int(rng.integers(min(x.ndim, 2)))
    y = np.moveaxis(x, axis, 0)
    size = min(TILE, len(y) // 2)
    y[:size], y[size : 2 * size] = y[size : 2 * size].copy(), y[:size].copy()


# How one output of a launch, or a device operand, is damaged; ``old`` is the earlier content of its memory.
DAMAGES: Mapping[str, Damage] = MappingProxyType(
    {"NaN": _not_a_number, "zeros": _zeros, "stale": _stale, "half-written": _half, "bit flipped": _flip,
     "tiles swapped": _tiles, "intermittent": _flip, "memory": _flip}
)  # fmt: skip
KINDS = (*ERRORS, *DAMAGES)


class Planted(SimulatorRuntime):
    """The simulator with at most one ``fault`` in a call. Outputs of launches are cached by their operands, so that
    only launches affected by a fault are simulated again.

    ``intermittent`` damages every second launch from number ``at`` on, ``memory`` an operand after it was sent.
    """

    def __init__(self, machine: str) -> None:
        super().__init__(MACHINES[machine])
        self.fault: Fault | None = None
        self.met = False  # whether the call reached the fault
        self.launched = self.sent = 0
        self.outputs: dict[int, list[np.ndarray]] = {}  # of the fault-free call on other operands, by launch
        self._memo: dict[Any, list[np.ndarray]] = {}
        self._memo_bytes = 0

    def begin(self, fault: Fault | None) -> None:
        """Inject ``fault`` into the next call; None for a fault-free call, whose outputs are kept."""
        self.fault, self.met, self.launched, self.sent = fault, False, 0, 0
        if fault is None:
            self.outputs = {}

    def put(self, array: np.ndarray) -> Buffer:
        buffer = super().put(array)
        self.sent += 1
        if self.fault is not None and self.fault.kind == "memory" and self.sent - 1 == self.fault.at and array.size:
            self.met = True
            _flip(buffer.value, buffer.value, np.random.default_rng(self.fault.seed))
        return buffer

    def run(self, name: str, /, *operands: Operand, **parameters: Any) -> Any:
        buffers = [self.put(x) if isinstance(x, np.ndarray) else x for x in operands]
        at, self.launched = self.launched, self.launched + 1
        hit = self.fault is not None and self._hits(self.fault, at)
        self.met |= hit
        if hit and self.fault is not None and self.fault.kind in ERRORS:
            ERRORS[self.fault.kind]()
        outputs = self._remembered(name, buffers, parameters)
        if self.fault is None:
            self.outputs[at] = outputs
        elif hit:
            outputs = self._damaged(outputs, at, self.fault)
        found = tuple(self._output(x, name) for x in outputs)
        return found if len(found) > 1 else found[0]

    @staticmethod
    def _hits(fault: Fault, at: int) -> bool:
        again = fault.kind == "intermittent" and at > fault.at and (at - fault.at) % 2 == 0
        return fault.kind != "memory" and (at == fault.at or again)

    def _remembered(self, name: str, buffers: list[Buffer | None], parameters: Mapping[str, Any]) -> list[np.ndarray]:
        key = (name, tuple(sorted(parameters.items())), tuple(b and _digest(b) for b in buffers))
        if (outputs := self._memo.pop(key, None)) is not None:
            self.counters.count(name, buffers, parameters)
        else:
            found = super().run(name, *buffers, **parameters)
            outputs = [b.value for b in (found if isinstance(found, tuple) else (found,))]
            self._memo_bytes += _bytes(outputs)
        self._memo[key] = outputs  # moved to the end: the first entry is the least recently used
        while self._memo_bytes > MEMO_BYTES and len(self._memo) > 1:
            self._memo_bytes -= _bytes(self._memo.pop(next(iter(self._memo))))
        return outputs

    def _damaged(self, outputs: list[np.ndarray], at: int, fault: Fault) -> list[np.ndarray]:
        rng = np.random.default_rng(fault.seed)
        which = int(rng.integers(len(outputs)))
        x = np.array(outputs[which], order="C")
        earlier = self.outputs.get(at, [])
        fits = which < len(earlier) and earlier[which].shape == x.shape and earlier[which].dtype == x.dtype
        old = earlier[which] if fits else np.roll(x, 1)
        DAMAGES[fault.kind](x, old, rng)
        return [*outputs[:which], x, *outputs[which + 1 :]]


def _digest(buffer: Buffer) -> tuple[Any, ...]:
    x = np.ascontiguousarray(buffer.value)
    return x.shape, x.dtype.name, hashlib.blake2b(x.reshape(-1).view(np.uint8).data, digest_size=16).digest()


def _bytes(arrays: list[np.ndarray]) -> int:
    return sum(x.nbytes for x in arrays)


class Device(DeviceEngine):
    """An engine over ``Planted``, reset before each call."""

    def __init__(self, machine: str = "trn2") -> None:
        self.planted = Planted(machine)
        super().__init__(self.planted)

    def begin(self, fault: Fault | None) -> None:
        self.health = Health()
        self.cache.clear()
        self.planted.begin(fault)


def sound_engines(machine: str = "trn2") -> tuple[Engine, ...]:
    """The host engine and the engine of device="null": both compute on the host."""
    return HostEngine(), HostEngine(MACHINES[machine])
