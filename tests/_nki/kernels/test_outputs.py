"""The table of kernels' outputs against what the kernels return when they are traced."""

import ml_dtypes
import numpy as np
import pytest

from nkisim.run.launch import Specification, run
from trnpy._cli.probes import ALL
from trnpy._nki.kernels import FAMILIES
from trnpy._nki.kernels.outputs import TABLE, outputs
from trnpy._nki.simulated import kernel

BF16 = np.dtype(ml_dtypes.bfloat16)


def of(shape, dtype="f4"):
    return np.zeros(shape, dtype)


# What no self-test passes: options that change the shape or the number of outputs.
OTHERS = [
    ("batched_matmul", (of((1, 40, 30)), of((3, 50, 30))), {"b_rows": False}),
    ("batched_matmul", (of((3, 30, 40)), of((1, 30, 50))), {"a_rows": False}),
    ("syrk", (of((30, 40)),), {"a_rows": False}),
    ("axpby", (of((30, 40)),), {"form": "bfloat16"}),
    ("transpose", (of((30, 40), BF16),), {}),
    ("digits_split", (of((130, 160), "u1"),), {"width": 8, "places": (3, 2, 1), "turned": True}),
    ("digits_split", (of((130, 160), "u1"),), {"width": 8, "places": (3, 2, 1), "packed": True}),
    ("float64_digits", (of((130, 140), "i4"), of((1, 70), "i4")), {"by_rows": False, "digits": 6}),
    ("float64_matmul", (of((2, 260, 130), BF16), of((2, 260, 150), BF16)), {"words": 2, "batch": 2, "m_tiles": 1}),
    (
        "float64_matmul",
        (of((2, 130, 260), BF16), of((2, 260, 150), BF16)),
        {"words": 2, "batch": 2, "m_tiles": 1, "beside": True},
    ),
    ("float64_matmul", (of((2, 140, 300), BF16),), {"words": 2, "m_tiles": 1}),
    ("float64_digits", (of((260, 140), "i4"),), {"by_rows": False, "batch": 2}),
    ("float64_round", (of((3, 260, 70), "i4"), of((260, 1)), of((2, 140), BF16)), {"batch": 2}),
    ("abs_bound", (of((260, 70), BF16), of((140, 30), BF16)), {"batch": 2}),
    ("float64_matmul", (of((2, 140, 300), BF16),), {"words": 2, "m_tiles": 2, "halved": True}),
    ("ao_to_mo", (of((3 * 40, 40)), of((40, 5)), of((40, 30))), {}),
    ("schwarz_screened_spmm", (of((512, 130)), of((512, 40)), of((1, 130))), {}),
]


def traced(name, operands, parameters):
    specified = tuple(None if x is None else Specification(x.shape, x.dtype) for x in operands)
    found = run(kernel(name), specified, dict(parameters), target="trn2", mode="trace")
    return tuple((s.shape, np.dtype(s.dtype).name) for s in found.returned), isinstance(found.outputs, tuple)


@pytest.mark.parametrize(
    ("name", "operands", "parameters"),
    [(c.kernel, c.operands(), c.parameters) for c in ALL] + OTHERS,
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_the_table_has_the_outputs_of_a_trace(name, operands, parameters):
    returned, several = traced(name, operands, parameters)
    assert outputs(name, *operands, **parameters) == returned
    assert several == (len(returned) > 1)


def test_every_kernel_that_is_launched_is_in_the_table():
    files = {file for family in FAMILIES.values() for file in family.split()}
    assert {name.partition(".")[0] for name in TABLE} == files
    assert {c.kernel for c in ALL} <= set(TABLE)
