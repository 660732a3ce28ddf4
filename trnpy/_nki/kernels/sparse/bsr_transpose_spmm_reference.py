"""The NumPy reference implementation of bsr_transpose_spmm.py: bsr_spmm with every tile transposed."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from trnpy._nki.kernels.sparse.bsr_spmm_reference import bsr_spmm


def bsr_transpose_spmm(  # type: ignore[no-untyped-def]
    tiles,
    x,
    left_at,
    right_at,
    length,
    unit=4,
    digits=0,
    words=3,
    least=False,
    product: Callable[..., np.ndarray] = np.matmul,
):
    """A^T X: limits and results as for bsr_spmm."""
    return bsr_spmm(tiles, x, left_at, right_at, length, unit, digits, words, least, turned=True, product=product)
