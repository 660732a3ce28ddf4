"""A^T X for the stored tiles of bsr_spmm's A: TensorE transposes each tile before the product.

A transpose is one more pass over 128 columns, exact in every format; the product is a pass over 128 to 512.
"""

import nki

from .bsr_spmm import spmm


@nki.jit
def bsr_transpose_spmm(tiles, x, left_at, right_at, length, unit=4, digits=0, words=3, least=False):
    """A^T X: as bsr_spmm, except that rows are block columns of A; digits are scaled by columns of A."""
    return spmm(
        tiles=tiles, x=x, left_at=left_at, right_at=right_at, length=length, unit=unit, digits=digits, words=words,
        least=least, turned=True,
    )  # fmt: skip
