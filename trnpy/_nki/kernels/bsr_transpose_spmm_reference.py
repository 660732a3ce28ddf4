"""What kernels/bsr_transpose_spmm.py computes, in NumPy: bsr_spmm with every tile transposed."""

from __future__ import annotations

from trnpy._nki.kernels.bsr_spmm_reference import bsr_spmm


def bsr_transpose_spmm(  # type: ignore[no-untyped-def]
    tiles, x, left_at, right_at, bounds=None, length=0, unit=4, digits=0, words=3, least=False, ordered=False
):
    """A^T X: limits and results as for bsr_spmm."""
    return bsr_spmm(tiles, x, left_at, right_at, bounds, length, unit, digits, words, least, turned=True)  # type: ignore[no-untyped-call]
