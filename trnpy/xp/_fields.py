"""The fields of an Array, with operators if they are compiled (``_quick.c``)."""

from __future__ import annotations

from typing import Any

try:
    from trnpy.xp._quick import Direct, Held, connect

    COMPILED = True
except ImportError:  # installed without a C compiler: Python computes the same
    COMPILED = False

    class Held:  # type: ignore[no-redef]
        """The fields of an Array, documented in ``_array``."""

        __slots__ = ("__weakref__", "_base", "_from", "_node", "_steps", "_value")

        def __new__(cls, *args: Any) -> Any:
            array: Any = object.__new__(cls)
            array._value = array._node = array._base = array._from = None
            array._steps = ()
            return array

    def Direct(fast: Any, slow: Any, operands: int, keeps: bool, names: tuple[str, ...]) -> Any:  # type: ignore[no-redef]
        """The Python function itself."""
        return slow

    def connect(*_: Any) -> None:  # type: ignore[misc]
        """Do nothing: there are no compiled operators."""


__all__ = ["COMPILED", "Direct", "Held", "connect"]
