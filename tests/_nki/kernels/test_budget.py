"""Every kernel of trnpy at the largest extents of one launch, traced without arithmetic: what compiling it may take."""

import ml_dtypes
import numpy as np
import pytest

from nkisim.hardware import TRN2
from nkisim.run.launch import Specification, run
from tests._nki.kernels.budget import kept
from trnpy._nki.kernels.shared.parameters import for_bounds, for_digits
from trnpy._nki.simulated import kernel

N = 8192
BF16 = np.dtype(ml_dtypes.bfloat16)
SQUARE, DIGITS = Specification((N, N)), Specification((7, N, N), BF16)
SEVEN = {"width": 8, "places": tuple(range(6, -1, -1))}


@pytest.mark.parametrize(
    "name, operands, settings, straight",
    [
        ("matmul", (SQUARE, SQUARE), {}, False),
        ("syrk", (SQUARE,), {}, True),
        ("trsm", (SQUARE, SQUARE), {}, True),
        ("axpby", (SQUARE, SQUARE), {}, True),
        ("transpose", (SQUARE,), {}, True),
        ("abs_bound", (Specification((N, N), BF16),) * 2, for_bounds().of_numbers(), False),
        ("float64_matmul", (DIGITS, DIGITS), for_digits(7, TRN2).of_digits(), False),
        (
            "words_matmul", (Specification((3, N, N), np.int32),) * 2 + (Specification((N, N), BF16),) * 2,
            {"tops": (9, 9), "digits": 7, "words": 3, "m_tiles": 4, "k_tiles": 4}, False,
        ),
        ("digits_split", (Specification((N, 8 * N), np.uint8),), {**SEVEN, "turned": True}, False),
        ("float64_digits", (Specification((N, 2 * N), np.int32),), {"by_rows": True}, False),
        ("float64_digits", (Specification((N, 2 * N), np.int32),), {"by_rows": False, "digits": 12}, False),
        (
            "float64_round", (Specification((4, N, N), np.int32), Specification((N, 1)), Specification((1, N))), {},
            False,
        ),
        ("batched_matmul", (Specification((4096, 256, 256)),) * 2, {}, False),
    ],
    ids=lambda x: x if isinstance(x, str) else "",
)  # fmt: skip
def test_the_largest_launch_compiles_within_its_budget(name, operands, settings, straight):
    trace = run(kernel(name), operands, settings, mode="trace").trace
    assert kept(trace) and straight == (not trace.loops)


def test_products_of_2048_rows_by_seven_digits_have_no_loop():
    """37,000 instructions, which compile in 12 s: in a loop they take 33 s (modelled)."""
    square = Specification((7, 2048, 2048), BF16)
    trace = run(kernel("float64_matmul"), (square, square), for_digits(7, TRN2).of_digits(), mode="trace").trace
    assert kept(trace) and not trace.loops
