"""Tests of what helps authors of kernels: torch tensors, endless loops, sums in few bits, what bounds a kernel."""

import ml_dtypes
import numpy as np
import pytest

from nkisim import isa as nisa
from nkisim import language as nl
from nkisim.cli_values import bound, value
from nkisim.price.cost import price
from nkisim.run.launch import run as launch
from nkisim.run.precision import precision
from tests.simulator.kernels import on_chip, refusal, run, to_hbm, values


def test_an_endless_loop_is_ended():
    def kernel(x):
        tile = nl.full((1, 1), 1, nl.int32)
        going = nisa.register_alloc()
        nisa.register_load(going, tile)

        def turn(i):
            return going

        nl.while_loop(going, turn)
        return x

    assert "not done after 50 turns" in refusal(kernel, values((4, 4)), rule=7, turns=50)


def summed(x, dtype):
    """Rows of x added one by one in a tile of the given dtype."""
    total = nl.ndarray((x.shape[1], x.shape[2]), dtype, name="total")
    nisa.memset(dst=total, value=0.0)
    for i in range(x.shape[0]):
        nisa.tensor_tensor(dst=total, data1=total, data2=on_chip(x[i]), op=nl.add)
    return to_hbm(total)


def test_a_sum_in_few_bits_is_named_with_what_it_costs():
    x = np.full((40, 2, 8), 1.01, ml_dtypes.bfloat16)
    (found,) = precision(summed, (x, nl.bfloat16))
    assert (found.name, found.dtype, found.additions) == ("total", "bfloat16", 40)
    low, high = (np.asarray(run(summed, x, dtype), np.float64) for dtype in (nl.bfloat16, nl.float32))
    assert found.change == pytest.approx(np.abs(low - high).max() / high.max(), rel=1e-12) and found.change > 1e-4
    assert "total keeps a sum of 40 terms in bfloat16: in float32 the outputs change by" in str(found)
    assert precision(summed, (x, nl.float32)) == []


def test_a_sum_whose_float32_form_is_refused_says_why():
    def kernel(x):
        total = nl.ndarray((16, 16), nl.bfloat16)
        nisa.memset(dst=total, value=0.0)
        for _ in range(4):
            nisa.tensor_tensor(dst=total, data1=total, data2=on_chip(x), op=nl.add)
        bank = nl.ndarray((16, 16), nl.float32, buffer=nl.psum)
        nisa.nc_matmul(dst=bank, stationary=total, moving=on_chip(x), accumulate=False)
        tile = nl.ndarray((16, 16), nl.float32)
        nisa.tensor_copy(dst=tile, src=bank)
        return to_hbm(tile)

    (found,) = precision(kernel, (np.ones((16, 16), ml_dtypes.bfloat16),))
    assert found.change is None and "unknown (nc_matmul" in str(found)


def test_what_bounds_a_kernel_is_one_line():
    small = price(launch(lambda x: to_hbm(on_chip(x)), (values((4, 4)),)).trace)
    assert bound(small).startswith("the launch: ") and bound(small).count(" to ") == 2


@pytest.mark.parametrize(
    ("text", "expected"),
    [("3", 3), ("(1, 2)", (1, 2)), ("plain text", "plain text"), ("word", "word"), ("True", True),
     ("nl.float32", "float32"), ("pair(1, b=-2)", (1, -2))],
)  # fmt: skip
def test_an_argument_is_a_literal_a_name_of_the_file_a_call_of_one_or_text(text, expected):
    assert value(text, {"nl": nl, "pair": lambda a, b: (a, b)}) == expected


def test_torch_tensors_go_in_and_come_out():
    torch = pytest.importorskip("torch", reason="torch is not installed")

    def kernel(x, y):
        nisa.dma_copy(dst=y, src=on_chip(x))
        return to_hbm(on_chip(x))

    for dtype in (torch.float32, torch.bfloat16, torch.int32):
        x, y = torch.arange(8).reshape(2, 4).to(dtype), torch.zeros((2, 4), dtype=dtype)
        out = run(kernel, x, y)
        assert out.dtype == dtype and torch.equal(out, x) and torch.equal(y, x)
