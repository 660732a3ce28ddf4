"""Kernels of trnpy that still break a rule of simulator/backend.py, and why: the only place where one is excused."""

from __future__ import annotations

from collections.abc import Mapping

POOLS = "its PSUM is made once, outside its loops, as the documentation of 0.6 allows"
TABLES = "its loops look places up in tables on the chip, which trn1 does not take"
SUMS = "sums of several products lie side by side in one bank"

BEFORE: Mapping[int, str] = {40: POOLS, 41: TABLES, 42: SUMS, 44: TABLES}
LISTED: Mapping[str, Mapping[int, str]] = {
    "abs_bound": BEFORE,
    "ao_to_mo": BEFORE,
    "axpby": BEFORE,
    "batched_matmul": BEFORE,
    "bsr_spmm": BEFORE,
    "bsr_transpose_spmm": BEFORE,
    "cg_iterations": BEFORE,
    "csr_spmm": BEFORE,
    "digits_matmul": BEFORE,
    "digits_split": BEFORE,
    "gmres_steps": BEFORE,
    "jacobi_sweep": BEFORE,
    "matmul": BEFORE,
    "mp2_energy": BEFORE,
    "orthonormal_polar": BEFORE,
    "polynomial_sign": BEFORE,
    "sampled_matmul": BEFORE,
    "scale_combine": BEFORE,
    "schwarz_screened_spmm": BEFORE,
    "syrk": BEFORE,
    "transpose": BEFORE,
    "trsm": BEFORE,
}
