from collections.abc import Callable, Iterator
from contextvars import ContextVar
from types import FrameType
from typing import Any, Self

class Gated:
    def __new__(
        cls,
        decides: Callable[..., Any],
        direct: Callable[..., Any],
        context: ContextVar[Any],
        settings: tuple[tuple[type, str], ...],
        /,
    ) -> Self: ...
    def __call__(self, *args: Any, **kwargs: Any) -> Any: ...
    def _let_pass(
        self,
        frame: FrameType,
        context: object,
        settings: tuple[object, ...],
        count: Iterator[object],
        left: int,
        elements: float,
        product: float,
        /,
    ) -> None: ...

def behind(ufunc: Any, /) -> Callable[..., Any]: ...
def enter(function: Callable[..., Any] | None, /) -> None: ...
def is_entered() -> bool: ...
