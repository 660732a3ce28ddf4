"""The NumPy reference implementation of csr_spmm.py, and the limits of its operands."""

from __future__ import annotations

import numpy as np

from trnpy._nki.kernels.sparse.bsr_spmm_reference import LONGEST, ROWS

TILE = 128
COLUMNS = 2048  # of X: four PSUM banks
SLOTS = 4096  # groups of one launch
LARGEST = 2**29  # elements of X: 2 GiB, the limit of 32-bit byte offsets


def check(values: np.ndarray, row_of: np.ndarray, column_of: np.ndarray, x: np.ndarray, length: int) -> None:
    """Raise ValueError, with the reason, for operands that the kernel does not support."""
    if values.shape != row_of.shape or values.shape != column_of.shape or values.shape[0] != TILE or not values.size:
        raise ValueError(f"groups {values.shape}, {row_of.shape}, {column_of.shape}: expected (128, slots) each")
    if values.shape[1] > SLOTS or x.ndim != 2 or not 0 < x.shape[1] <= COLUMNS or x.size > LARGEST:
        raise ValueError(f"{values.shape[1]} groups and x {x.shape}: expected at most {SLOTS}, and {COLUMNS} columns")
    names = (values.dtype.name, row_of.dtype.name, column_of.dtype.name, x.dtype.name)
    if names != ("float32", "float32", "int32", "float32"):
        raise ValueError(f"operands {names}: expected float32, but int32 columns")
    slots = values.shape[1]
    if not 0 < length <= LONGEST or slots % length or slots > ROWS * length:
        raise ValueError(f"{slots} groups in rows of {length}: expected at most {ROWS} rows of at most {LONGEST} each")


def csr_spmm(values, row_of, column_of, x, length):  # type: ignore[no-untyped-def]
    """A X (R 128, N) in float32, group by group."""
    check(values, row_of, column_of, x, length)
    c = np.zeros((values.shape[1] // length, TILE, x.shape[1]), np.float32)
    for j in range(values.shape[1]):
        stored = row_of[:, j] >= 0
        gathered = values[stored, j, np.newaxis] * x[column_of[stored, j]]
        np.add.at(c[j // length], row_of[stored, j].astype(int), gathered)
    return c.reshape(-1, x.shape[1])
