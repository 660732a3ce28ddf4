"""digits_split.py against its twin: edges, both layouts, widths, lint, model."""

import numpy as np
import pytest

from nkisim.hardware import TRN2
from nkisim.lint.linter import lint_file, lint_launch
from nkisim.price.cost import price
from nkisim.run.launch import Specification, run
from nkisim.run.loader import load_kernel
from tests._nki.kernels.budget import kept
from trnpy._engine import digits as _digits
from trnpy._engine.tuning import FINE
from trnpy._nki.kernels import source
from trnpy._nki.kernels.products import digits_split_reference as reference

FILE = source("digits_split")
KERNEL = load_kernel(FILE, "digits_split")
SEVEN = (6, 5, 4, 3, 2, 1, 0)


def keywords(width, places, turned):
    return {"width": width, "places": places, "turned": turned}


@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize("width, places", [(8, SEVEN), (16, (*SEVEN, 9, 8)), (1, (0,)), (2, (0, 1)), (4, (0, 1, 2, 3))])
@pytest.mark.parametrize("rows, columns", [(1, 1), (127, 129), (130, 600), (513, 128), (1030, 70)])
def test_every_edge(rows, columns, width, places, turned):
    x = np.random.default_rng([rows, columns, width]).integers(0, 256, (rows, columns * width), np.uint8)
    ours = run(KERNEL, (x,), keywords(width, places, turned)).outputs
    assert ours.dtype.name == "bfloat16"
    np.testing.assert_array_equal(ours.astype("f4"), reference.digits_split(x, width, places, turned))


@pytest.mark.parametrize("digits", range(7, 13))
def test_the_digits_are_those_of_the_host(digits):
    a = np.random.default_rng(digits).standard_normal((40, 30))
    split = _digits.split(a, digits, 1)
    raw = split.bytes()
    ours = run(KERNEL, (raw.reshape(40, -1),), keywords(raw.shape[2], split.places, False)).outputs
    np.testing.assert_array_equal(ours.astype(np.int8), split.planes())


@pytest.mark.parametrize("turned", [False, True])
def test_any_legal_order_gives_the_same(turned):
    x = np.random.default_rng(0).integers(0, 256, (600, 600 * 8), np.uint8)
    straight = run(KERNEL, (x,), keywords(8, SEVEN, turned)).outputs
    again = run(KERNEL, (x,), keywords(8, SEVEN, turned), mode="reorder", seed=1).outputs
    np.testing.assert_array_equal(again.view(np.uint16), straight.view(np.uint16))


@pytest.mark.parametrize("target", ["trn2", "trn3"])
@pytest.mark.parametrize("turned", [False, True])
def test_lint_finds_no_error(target, turned):
    x = np.zeros((600, 600 * 8), np.uint8)
    findings = lint_launch(KERNEL, (x,), keywords(8, SEVEN, turned), target=target)
    assert not [f for f in (*findings, *lint_file(FILE)) if f.severity == "E"]


def test_every_bucket_fits_and_the_program_stays_short():
    for n in FINE[::8]:
        for turned in (False, True):
            x = Specification((n, 16 * n), np.uint8)
            trace = run(KERNEL, (x,), keywords(16, (*SEVEN, 12, 11, 10, 9, 8), turned), mode="trace").trace
            assert kept(trace)


@pytest.mark.parametrize("turned", [False, True])
def test_modelled_bandwidth_on_trn2(turned):
    """At least 76 % of what DMA sustains, 22 bytes an element."""
    n = 4096
    cost = price(run(KERNEL, (Specification((n, 8 * n), np.uint8),), keywords(8, SEVEN, turned), mode="trace").trace)
    print(f"modelled: {22 * n * n / cost.device_s / 1e9:.0f} GB/s")
    assert cost.hbm_bytes <= 1.3 * 22 * n * n
    assert 22 * n * n / cost.device_s >= 0.76 * TRN2.hbm_bytes_per_s


def test_what_it_refuses():
    x = np.zeros((4, 16), np.uint8)
    for bad in ((x.astype("i4"), 8, (0,)), (x[:0], 8, (0,)), (x, 3, (0,)), (x, 8, ()), (x, 8, (8,))):
        with pytest.raises(ValueError, match="expected"):
            reference.check(*bad)


@pytest.mark.parametrize("rows, columns", [(1, 1), (130, 64), (640, 520)])
def test_digits_of_a_row_side_by_side(rows, columns):
    x = np.random.default_rng(rows).integers(0, 256, (rows, 8 * columns), dtype=np.uint8)
    keywords = {"width": 8, "places": (6, 5, 4, 3, 2, 1, 0), "packed": True}
    ours = run(KERNEL, (x,), keywords).outputs
    np.testing.assert_array_equal(ours.astype("f4"), reference.digits_split(x, **keywords))
    assert kept(run(KERNEL, (Specification((8192, 8 * 512), np.uint8),), keywords, mode="trace").trace)
