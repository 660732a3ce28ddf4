from collections.abc import Callable
from typing import Any, Self

class Held:
    _value: Any
    _node: Any
    _base: Any
    _from: Any
    _steps: tuple[Any, ...]
    def __new__(cls, *args: Any) -> Self: ...
    def __getitem__(self, key: Any, /) -> Any: ...
    def __setitem__(self, key: Any, value: Any, /) -> None: ...

class Direct:
    def __new__(cls, fast: Any, slow: Any, operands: int, keeps: bool, names: tuple[str, ...], /) -> Self: ...
    def __call__(self, *args: Any, **kwargs: Any) -> Any: ...

def connect(
    array: type,
    of: Callable[..., Any],
    item: Callable[..., Any],
    matmul: Callable[..., Any],
    turned: tuple[Any, ...],
    ufuncs: tuple[Any, ...],
    functions: tuple[Any, ...],
    small: int,
    /,
) -> None: ...
