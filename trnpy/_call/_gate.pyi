from collections.abc import Callable
from contextvars import ContextVar
from types import FrameType
from typing import Any, Self

import numpy as np

class Gated:
    def __new__(
        cls,
        decides: Callable[..., Any],
        direct: Callable[..., Any],
        nothing: object,
        variables: tuple[ContextVar[Any], ...],
        attributes: tuple[tuple[type, str], ...],
        alone: bool,
        product_of_sparse: bool,
        /,
    ) -> Self: ...
    def __call__(self, *args: Any, **kwargs: Any) -> Any: ...
    def _limit(self, elements: float, product: float, blas: bool, /) -> None: ...
    def _settle(self, state: tuple[Any, ...], /) -> None: ...
    def _known(
        self, state: tuple[Any, ...], args: tuple[Any, ...], kwargs: dict[str, Any], /
    ) -> tuple[Callable[..., Any], object] | None: ...
    def _remember(
        self,
        state: tuple[Any, ...],
        function: Callable[..., Any],
        tag: object,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        /,
    ) -> None: ...
    def _let_pass(
        self,
        state: tuple[Any, ...],
        frame: FrameType,
        tag: object,
        count: np.ndarray | None,
        left: int,
        sample: Callable[[float, float], object] | None,
        /,
    ) -> None: ...

def sparse(classes: tuple[type, ...], variables: tuple[dict[str, Any], ...], /) -> None: ...
