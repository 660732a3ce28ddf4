"""Device registers: run-time scalars that a kernel may load, store and address with, never compute with."""

from __future__ import annotations

from typing import NoReturn

from trnpy._nki.simulator.errors import SimulatorError


class VirtualRegister:
    """A 32-bit scalar of the device; None while its value is not known (trace-only mode).

    Python sees no value: ``if``, ``while``, ``range``, ``int`` and arithmetic raise, as they do when
    the kernel is traced for hardware. Use it through ``ap(scalar_offset=...)``, ``select``, ``nl.ds``,
    ``nl.fori_loop`` bounds and the register instructions.
    """

    __slots__ = ("frozen", "initialised", "value")

    def __init__(self, state: int | None = None, frozen: bool = False) -> None:
        self.value = state
        self.frozen = frozen
        self.initialised = state is not None or frozen

    def __repr__(self) -> str:
        return "VirtualRegister()"

    def _refuse(self, *_: object) -> NoReturn:
        raise SimulatorError(
            "a register has no value while the kernel is built: it cannot be used in if, while, range, int or "
            "arithmetic; use nl.fori_loop, nl.while_loop, ap(scalar_offset=...) or nl.ds",
            rule=6,
        )

    def __eq__(self, other: object) -> bool:
        return self is other if other is None or isinstance(other, VirtualRegister) else self._refuse()

    __hash__ = object.__hash__
    __bool__ = __int__ = __index__ = __float__ = __len__ = _refuse
    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = __neg__ = _refuse
    __floordiv__ = __rfloordiv__ = __truediv__ = __rtruediv__ = __mod__ = __rmod__ = _refuse
    __lt__ = __le__ = __gt__ = __ge__ = _refuse
