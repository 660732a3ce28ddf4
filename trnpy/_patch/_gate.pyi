from collections.abc import Callable, Iterator
from contextvars import ContextVar
from types import FrameType
from typing import Any

class Gate:
    most: int
    def __init__(
        self,
        decides: Callable[..., Any],
        direct: Callable[..., Any],
        array: type,
        context: ContextVar[Any],
        settings: tuple[tuple[object, str], ...],
        most: int,
        /,
    ) -> None: ...
    def __call__(self, *args: Any, **kwargs: Any) -> Any: ...
    def let_pass(
        self, frame: FrameType, context: object, settings: tuple[object, ...], count: Iterator[object], left: int, /
    ) -> None: ...
