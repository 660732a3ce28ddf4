"""Protocols of tensors, runs and launches for the modules of ``chip`` below the ones that define them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol, TypeVar

from nkisim.chip.dialects import Dialect
from nkisim.chip.record import Instruction, Note
from nkisim.hardware import Hardware


class RelaxedRules(Protocol):
    """The relaxed rules and the notes of a run."""

    rules: Mapping[int, Any]
    notes: dict[Note, None]


class RunState(RelaxedRules, Protocol):
    """The attributes of a run (``context.Run``) that the checks in ``backend`` read."""

    hardware: Hardware
    mode: Any
    nki: Dialect
    instructions: list[Instruction]
    launch: Any
    loops: list[Any]
    loop_stack: list[Any]
    scopes: list[Any]
    meetings: int


class LaunchState(Protocol):
    """State that the cores of a launch share (``run.launch.Launch``)."""

    cores: Any
    ownership: Any
    mode: Any
    nki: Dialect
    grid: bool
    torch: bool
    garbage: bool
    other: bool
    idents: Any
    shared: dict[Any, Any]
    inputs: dict[Any, Any]
    made: list[Any]

    @property
    def many(self) -> bool:
        """Whether there are several cores."""
        ...

    @property
    def allocate(self) -> Callable[..., Any]:
        """The function that makes a new storage."""
        ...


class TensorView(Protocol):
    """A strided view of a storage (``tensor.NkiTensor``)."""

    storage: Any
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    offset: int
    dtype: str
    index: Any
    fault: str | None

    @property
    def ndim(self) -> int: ...

    @property
    def size(self) -> int: ...

    @property
    def on_chip(self) -> bool: ...

    @property
    def row_elements(self) -> int: ...

    @property
    def itemsize(self) -> int: ...

    @property
    def distinct(self) -> bool: ...

    @property
    def covers_storage(self) -> bool: ...

    def array(self) -> Any: ...

    def strided(self, base: Any, unit: int, more: tuple[int, ...] = (), more_strides: tuple[int, ...] = ()) -> Any: ...

    def relaid(self, shape: Any, strides: Any, offset: int | None = None) -> Any: ...

    def get_pattern(self) -> list[list[int]]: ...


View = TypeVar("View", bound=TensorView)
