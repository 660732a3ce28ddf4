"""A^T X for the tiles of A that bsr_spmm takes, where they lie: TensorE turns each before it multiplies.

A turn is one more pass over 128 columns, and exact in every format, against 128 to 512 of the product.
"""

import nki

from .bsr_spmm import spmm


@nki.jit
def bsr_transpose_spmm(tiles, x, left_at, right_at, length, unit=4, digits=0, words=3, least=False):
    """A^T X: everything as for bsr_spmm, but that rows are block columns of A; digits are scaled by columns of A."""
    return spmm(
        tiles=tiles, x=x, left_at=left_at, right_at=right_at, length=length, unit=unit, digits=digits, words=words,
        least=least, turned=True,
    )  # fmt: skip
