"""A runtime for a device on which self-tests failed: launches have another form, or are refused for their device loops.

Kernels unroll their blocks while the program stays short (kernels/shared/blocks.walk), so a launch without a device
loop needs neither registers as offsets nor PSUM that a second loop uses again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from trnpy._nki.runtime import LaunchCounters, Operand, Runtime, fetched
from trnpy._nki.simulated import loops_of


class FormedRuntime:
    """Launches of ``runtime`` with the parameters of ``form(kernel)``.

    ``most_loops``: device loops that a program may have, None if any number. ``refuse(reason)`` raises for others.
    """

    def __init__(
        self, runtime: Runtime, form: Callable[[str], Mapping[str, bool]], most_loops: int | None,
        refuse: Callable[[str], None],
    ) -> None:  # fmt: skip
        self._runtime, self._form, self._most_loops, self._refuse = runtime, form, most_loops, refuse
        self._loops: dict[Any, int] = {}
        self.name, self.hardware = runtime.name, runtime.hardware
        self.executes, self.compiles, self.parallel = runtime.executes, runtime.compiles, runtime.parallel
        self.put, self.get, self.part, self.reshaped = runtime.put, runtime.get, runtime.part, runtime.reshaped

    @property
    def counters(self) -> LaunchCounters:
        return self._runtime.counters

    @counters.setter
    def counters(self, counters: LaunchCounters) -> None:
        self._runtime.counters = counters

    def run(self, kernel: str, /, *operands: Operand, **parameters: Any) -> Any:
        """Outputs of one launch in the form of this device."""
        parameters |= self._form(kernel)
        if self._most_loops is not None:
            loops = self._counted(kernel, operands, parameters)
            if loops > self._most_loops:
                why = "self-tests found wrong loops or register offsets"
                self._refuse(f"{why}, and {kernel} of these shapes has {loops} device loops")
        return self._runtime.run(kernel, *operands, **parameters)

    def launch(self, kernel: str, /, *operands: Operand, **parameters: Any) -> Any:
        """Outputs of one launch as arrays on the host."""
        return fetched(self, self.run(kernel, *operands, **parameters))

    def _counted(self, kernel: str, operands: tuple[Operand, ...], parameters: Mapping[str, Any]) -> int:
        """The device loops of a program, which is traced once for its shapes."""
        shapes = tuple(None if x is None else (x.shape, x.dtype.name) for x in operands)
        key = kernel, shapes, tuple(sorted(parameters.items()))
        if key not in self._loops:
            self._loops[key] = loops_of(kernel, shapes, parameters, self.hardware)
        return self._loops[key]
