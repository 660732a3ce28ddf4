"""Register instructions, and the queries of a kernel about its target."""

from __future__ import annotations

from typing import Any

import numpy as np

from nkisim.chip.context import NkiInstruction, current, hardware, issue, register_value, since_seven
from nkisim.chip.errors import SimulatorError
from nkisim.chip.registers import NkiScalar, VirtualRegister
from nkisim.chip.tensor import NkiTensor
from nkisim.isa._enums import nc_version
from nkisim.isa._lanes import write_integers

__all__ = [
    "NkiInstruction", "NkiScalar", "NkiValidationError", "VirtualRegister", "get_nc_sub_version", "get_nc_version",
    "register_alloc", "register_load", "register_move", "register_store", "scalar_load", "scalar_store",
]  # fmt: skip

NkiValidationError = SimulatorError
SCALAR_DTYPES = ("int32", "int64")
REGISTER_DTYPES = ("int8", "int16", "int32", "uint8", "uint16", "uint32")  # dtypes of a load; addresses are integers


def get_nc_version() -> nc_version:
    return nc_version(hardware().generation)


def get_nc_sub_version() -> int:
    """0: the first silicon revision of every generation."""
    return 0


def register_alloc(x: int | None = None) -> VirtualRegister:
    """A new register, uninitialised or holding a compile-time integer."""
    if x is not None and (isinstance(x, bool) or not isinstance(x, int)):
        raise SimulatorError(f"register_alloc: {x!r} of type {type(x).__name__}; need None or an int")
    return VirtualRegister(x)


def _writable(register: Any, what: str) -> VirtualRegister:
    if not isinstance(register, VirtualRegister):
        raise SimulatorError(f"{what}: dst is {type(register).__name__}; need a register of nisa.register_alloc")
    if isinstance(register, NkiScalar):
        raise SimulatorError(f"{what}: dst is an NkiScalar, which never changes; need a register", rule=6)
    if register.frozen:
        raise SimulatorError(f"{what}: the variable of a device loop is read-only", rule=7)
    return register


def _flush() -> None:
    """Execute all queued instructions before a register changes: they may read it or compute its value."""
    run = current()
    if run.scheduler is not None:
        run.scheduler.flush()
    if run.tape is not None:
        run.tape.depends("a register that changes")


def register_move(dst: VirtualRegister, src: int | VirtualRegister) -> None:
    """dst = src, an integer or another register."""
    register = _writable(dst, "register_move")
    _flush()
    register.value = register_value(src, "register_move") if isinstance(src, VirtualRegister) else int(src)
    register.initialised = True


def register_load(dst: VirtualRegister, src: NkiTensor) -> NkiInstruction:
    """dst = the element of src, an integer tensor of size 1 in SBUF or HBM."""
    register = _writable(dst, "register_load")
    if src.size != 1 or src.storage.buffer == "psum" or src.dtype not in REGISTER_DTYPES:
        raise SimulatorError(f"register_load: src {src!r}; need one integer in SBUF or HBM")
    _flush()

    def compute() -> None:
        register.value = int(src.read().reshape(-1)[0])

    register.value, register.initialised = None, True
    handle = issue("register_load", "sync", {"src": src}, {}, compute)
    _flush()
    return handle


def register_store(dst: NkiTensor, src: VirtualRegister) -> NkiInstruction:
    """The element of dst, a tensor of size 1, = src."""
    if dst.size != 1 or dst.storage.buffer == "psum":
        raise SimulatorError(f"register_store: dst {dst!r}; need one element in SBUF or HBM")
    if isinstance(src, NkiScalar):
        raise SimulatorError("register_store: src is an NkiScalar; use nisa.scalar_store", rule=6)
    if dst.on_chip and hardware().generation < 3:
        raise SimulatorError("NCC_IXCG832: register_store: dst is SBUF, which trn1 cannot; store to HBM", rule=30)
    value = register_value(src, "register_store")

    def compute() -> None:
        assert value is not None
        write_integers("register_store", dst, np.asarray(value, np.int64))

    return issue("register_store", "sync", {}, {"dst": dst}, compute)


def scalar_load(src: NkiTensor) -> NkiScalar:
    """The element of src, an int32 or int64 tensor of size 1 in SBUF or HBM, as a scalar of that width.

    Source: nki.isa.scalar_load (Neuron 2.33).
    """
    since_seven("scalar_load: NkiScalar")
    if src.size != 1 or src.storage.buffer == "psum" or src.dtype not in SCALAR_DTYPES:
        raise SimulatorError(f"scalar_load: src {src!r}; need one int32 or int64 in SBUF or HBM", rule=6)
    _flush()
    found: list[int] = []

    def compute() -> None:
        found.append(int(src.read().reshape(-1)[0]))

    issue("scalar_load", "sync", {"src": src}, {}, compute)
    _flush()
    return NkiScalar(found[0] if found else None, src.dtype)


def scalar_store(dst: NkiTensor, value: NkiScalar) -> None:
    """Store value in dst, a tensor of size 1 and of the same width in SBUF or HBM.

    Source: nki.isa.scalar_store (Neuron 2.33).
    """
    since_seven("scalar_store: NkiScalar")
    if not isinstance(value, NkiScalar):
        raise SimulatorError(
            f"scalar_store: value is {value!r}; an NkiScalar is needed, memset writes constants", rule=6
        )
    if dst.size != 1 or dst.storage.buffer == "psum" or dst.dtype != value.dtype:
        raise SimulatorError(f"scalar_store: dst {dst!r}; need one {value.dtype} in SBUF or HBM", rule=6)

    def compute() -> None:
        assert value.value is not None
        write_integers("scalar_store", dst, np.asarray(value.value, np.int64))

    issue("scalar_store", "sync", {}, {"dst": dst}, compute)
