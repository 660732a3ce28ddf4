"""The discrete Fourier transforms of the array API standard: NumPy computes them on the host when they are called."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from trnpy.xp import _rules
from trnpy.xp._array import Array
from trnpy.xp._common import array, check_device, like, made, node_of

__all__ = [
    "fft", "fftfreq", "fftn", "fftshift", "hfft", "ifft", "ifftn", "ifftshift", "ihfft", "irfft", "irfftn", "rfft",
    "rfftfreq", "rfftn",
]  # fmt: skip


def _one(name: str) -> Callable[..., Array]:
    function = getattr(np.fft, name)

    @like(function)
    def transform(x: Array, /, *, n: int | None = None, axis: int = -1, norm: str = "backward") -> Array:
        return array(_rules.at_once(function, node_of(x), n=n, axis=axis, norm=norm))

    transform.__name__ = transform.__qualname__ = name
    return transform


def _many(name: str) -> Callable[..., Array]:
    function = getattr(np.fft, name)

    @like(function)
    def transform(x: Array, /, *, s: Any = None, axes: Any = None, norm: str = "backward") -> Array:
        if s is not None and axes is None:
            axes = range(x.ndim - len(s), x.ndim)
        return array(_rules.at_once(function, node_of(x), s=s, axes=axes, norm=norm))

    transform.__name__ = transform.__qualname__ = name
    return transform


fft, ifft, rfft, irfft, hfft, ihfft = (_one(name) for name in ("fft", "ifft", "rfft", "irfft", "hfft", "ihfft"))
fftn, ifftn, rfftn, irfftn = (_many(name) for name in ("fftn", "ifftn", "rfftn", "irfftn"))


@like(np.fft.fftshift)
def fftshift(x: Array, /, *, axes: Any = None) -> Array:
    return array(_rules.at_once(np.fft.fftshift, node_of(x), axes=axes))


@like(np.fft.ifftshift)
def ifftshift(x: Array, /, *, axes: Any = None) -> Array:
    return array(_rules.at_once(np.fft.ifftshift, node_of(x), axes=axes))


def _frequencies(function: Callable[..., Any], n: int, d: float, dtype: Any, device: Any) -> Array:
    check_device(device)
    return made(lambda: function(n, d=d).astype(np.float64 if dtype is None else dtype))


@like(np.fft.fftfreq)
def fftfreq(n: int, /, *, d: float = 1.0, dtype: Any = None, device: Any = None) -> Array:
    return _frequencies(np.fft.fftfreq, n, d, dtype, device)


@like(np.fft.rfftfreq)
def rfftfreq(n: int, /, *, d: float = 1.0, dtype: Any = None, device: Any = None) -> Array:
    return _frequencies(np.fft.rfftfreq, n, d, dtype, device)
