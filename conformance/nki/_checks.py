"""What documentation snippets assert, checked on the simulator's tensors while the snippet runs."""

from __future__ import annotations

from typing import Any

import numpy as np

TOLERANCE = 2e-6  # float32 rounding of a few operations; the documented examples are exact numbers


def documented_equal(got: Any, expected: Any) -> None:
    """Check that two tensors have equal values, as nl.equal would on the device."""
    a, b = got.read().astype(np.float64), expected.read().astype(np.float64)
    if a.shape != b.shape:
        raise AssertionError(f"shape {a.shape}, documented {b.shape}")
    if not np.allclose(a, b, rtol=TOLERANCE, atol=TOLERANCE, equal_nan=True):
        raise AssertionError(f"differs from the documented value by {np.nanmax(np.abs(a - b)):.3g}")


def documented_shape(tensor: Any, shape: tuple[int, ...]) -> Any:
    """Check the shape that a comment beside the statement gives; returns the tensor."""
    if tuple(tensor.shape) != tuple(shape):
        raise AssertionError(f"shape {tuple(tensor.shape)}, documented {tuple(shape)}")
    return tensor
