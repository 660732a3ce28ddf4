"""Run-time scalars: registers for loads, stores and addresses, and NKI 0.7's scalars, which compute."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, NoReturn

from nkisim.chip.errors import SimulatorError

HALF: Mapping[str, int] = MappingProxyType({"int32": 2**31, "int64": 2**63})  # a scalar lies in [-HALF, HALF)


class VirtualRegister:
    """A 32-bit scalar of the device; its value is None if unknown (trace-only mode).

    Python cannot use the value: ``if``, ``while``, ``range``, ``int`` and arithmetic raise, as they do when
    a kernel is traced for hardware. Use it in ``ap(scalar_offset=...)``, ``select``, ``nl.ds``,
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


class NkiScalar(VirtualRegister):
    """An integer of 32 or 64 bits that the device computes with (NKI 0.7, tracing front end): only + - *, which wrap.

    A result has the width of its operands, which must agree. The front end records a 32-bit comparison, but no
    instruction accepts its result; it refuses a 64-bit comparison.
    Source: nki-scalar.rst, nki.isa.NkiScalar (Neuron 2.33).
    """

    __slots__ = ("dtype",)

    def __init__(self, state: int | None, dtype: str = "int32") -> None:
        super().__init__(state, frozen=True)
        self.dtype = dtype

    def __repr__(self) -> str:
        return "NkiScalar()"

    def _combined(self, other: object, op: Callable[[int, int], int], swapped: bool = False) -> NkiScalar:
        if isinstance(other, NkiScalar):
            value = other.value
        elif isinstance(other, int) and not isinstance(other, bool):
            value = other
        else:
            raise SimulatorError(f"NkiScalar: the other operand is {other!r}; an int or an NkiScalar is needed", rule=6)
        if isinstance(other, NkiScalar) and other.dtype != self.dtype:
            raise SimulatorError(f"NkiScalar: {self.dtype} with {other.dtype}; both need one width", rule=6)
        if self.value is None or value is None:
            return NkiScalar(None, self.dtype)
        result, half = op(value, self.value) if swapped else op(self.value, value), HALF[self.dtype]
        return NkiScalar((result + half) % (2 * half) - half, self.dtype)

    def __add__(self, other: object) -> NkiScalar:  # type: ignore[override]
        return self._combined(other, operator.add)

    def __sub__(self, other: object) -> NkiScalar:  # type: ignore[override]
        return self._combined(other, operator.sub)

    def __rsub__(self, other: object) -> NkiScalar:  # type: ignore[override]
        return self._combined(other, operator.sub, swapped=True)

    def __mul__(self, other: object) -> NkiScalar:  # type: ignore[override]
        return self._combined(other, operator.mul)

    def __neg__(self) -> NkiScalar:  # type: ignore[override]
        return self._combined(0, operator.sub, swapped=True)

    def _compared(self, other: Any) -> NoReturn:
        raise SimulatorError("the comparison of an NkiScalar is traced, but no instruction accepts its result", rule=6)

    __radd__, __rmul__ = __add__, __mul__  # type: ignore[assignment]
    __lt__ = __le__ = __gt__ = __ge__ = _compared  # type: ignore[assignment]
