"""Findings of trnpy's own kernels that are excused, each with its reason: the only place where one is.

Errors of simulator/chip/backend.py are refused unless they stand here; a warning that is not here fails
``python -m conformance nki --kernels ours``, and so does an entry that nothing meets any more.
"""

from __future__ import annotations

from collections.abc import Mapping

ROWS = "rows of unequal length: how many turns one has is data, so it is a loop in the loop over rows"
STEPS = "the loop over iterations ends where the residual is small enough, and holds that over rows and their turns"
TURNS = "how much of K a block of the result needs is data, so it is a loop in the loop over blocks"

LISTED: Mapping[str, Mapping[int, str]] = {
    "bsr_spmm": {46: ROWS},
    "bsr_transpose_spmm": {46: ROWS},
    "cg_iterations": {46: STEPS},
    "csr_spmm": {46: ROWS},
    "gmres_steps": {46: STEPS},
    "schwarz_screened_spmm": {46: TURNS},
}
