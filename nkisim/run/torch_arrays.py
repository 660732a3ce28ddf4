"""torch tensors as arguments and outputs of a launch: arrays in the same memory. This module never imports torch."""

from __future__ import annotations

import sys
from typing import Any

import ml_dtypes
import numpy as np

from nkisim.chip.dtypes import BF16, Array
from nkisim.chip.errors import SimulatorError


def is_tensor(value: Any) -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, torch.Tensor)


def as_array(tensor: Any, name: str) -> Array:
    """An array in the tensor's own memory; data types that NumPy lacks are read as integers first."""
    torch = sys.modules["torch"]
    if tensor.device.type != "cpu":
        raise SimulatorError(f"argument {name} is a tensor on {tensor.device}: the simulator needs a tensor on the CPU")
    plain = tensor.detach()
    named = {torch.bfloat16: (torch.int16, BF16)}
    for torch_name, numpy_name in (("float8_e4m3fn", "float8_e4m3fn"), ("float8_e5m2", "float8_e5m2")):
        if hasattr(torch, torch_name):
            named[getattr(torch, torch_name)] = (torch.uint8, np.dtype(getattr(ml_dtypes, numpy_name)))
    if plain.dtype in named:
        integer, dtype = named[plain.dtype]
        found: Array = plain.view(integer).numpy().view(dtype)
        return found
    array: Array = plain.numpy()
    return array


def as_tensor(array: Any) -> Any:
    """An output, or a tuple of outputs, as torch tensors."""
    if isinstance(array, tuple):
        return tuple(as_tensor(one) for one in array)
    if array is None:
        return None
    torch = sys.modules["torch"]
    if array.dtype == BF16:
        return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
    if array.dtype.name.startswith("float8") and hasattr(torch, array.dtype.name):
        return torch.from_numpy(array.view(np.uint8)).view(getattr(torch, array.dtype.name))
    return torch.from_numpy(array)
