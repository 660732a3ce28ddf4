"""Products of arrays of any shapes are launched as few programs, with little padding: counted in dry runs."""

import itertools
from collections import defaultdict

import numpy as np
import pytest

from nkisim.hardware import TRN2
from trnpy._engine import tuning
from trnpy._engine.abstract_arrays import new
from trnpy._engine.cost_model import DryRuntime, tally
from trnpy._engine.device import DeviceEngine
from trnpy._engine.precision import Facts
from trnpy._engine.tuning import (
    ALONG,
    ALONG_DIGITS,
    BLOCK,
    OWN,
    Buckets,
    Tuning,
    of_digits,
    of_numbers,
    ways,
)

COUNT = 400
SHAPES = {f"uniform to {most}": np.random.default_rng(5).integers(1, most + 1, (COUNT, 3)) for most in (4096, BLOCK)}


class Counting(DryRuntime):
    """A dry runtime that remembers the programs of its launches."""

    def __init__(self):
        super().__init__(TRN2)
        self.programs = defaultdict(set)

    def run(self, kernel, /, *operands, **parameters):
        shapes = tuple(None if x is None else (x.shape, x.dtype.name) for x in operands)
        self.programs[kernel].add((shapes, tuple(sorted(parameters.items()))))
        return super().run(kernel, *operands, **parameters)


def launched(shapes, dtype, form):
    """The programs of products of ``shapes``, and for each its multiply-adds and modelled seconds without the host."""
    runtime, found = Counting(), []
    engine = DeviceEngine(runtime, Tuning(), Facts())
    for m, k, n in shapes.tolist():
        runtime.reset()
        engine.matmul(new((m, k), dtype, runtime.count), new((k, n), dtype, runtime.count))
        total = tally([runtime])
        seconds = total.launched * TRN2.launch_s + total.moved_s(TRN2) + total.engine_s(TRN2)
        found.append((runtime.products[form], seconds))
    return runtime.programs, np.array(found).T


@pytest.mark.parametrize("name, dtype, form, most", [
    ("uniform to 8192", "f4", "float32", 1.25), ("uniform to 4096", "f4", "float32", 1.25),
    ("uniform to 8192", "c8", "float32", 1.25), ("uniform to 8192", "i8", "bfloat16", 1.25),
    ("uniform to 8192", "f8", "bfloat16", 1.25),
])  # fmt: skip
def test_400_random_products_launch_fewer_than_40_programs_of_a_kernel(name, dtype, form, most, monkeypatch):
    programs, cut = launched(SHAPES[name], dtype, form)
    monkeypatch.setattr(tuning, "rung", lambda extent, ladder=(): extent)
    monkeypatch.setattr(tuning, "OWN", 4 * COUNT)
    _, exact = launched(SHAPES[name], dtype, form)  # as if every shape had a program of its own
    padding, slower = np.median(cut / exact, axis=1)
    counts = {kernel: len(found) for kernel, found in programs.items()}
    print(f"{name}, {dtype}: {counts}, {padding:.3f} of the multiply-adds, {slower:.3f} of the seconds, modelled")
    assert max(counts.values()) < 40 and padding <= most


@pytest.mark.parametrize("extent", [1, 16, 384, 385, 2049, 8192, 10**6])
@pytest.mark.parametrize("lengths", [ALONG, ALONG_DIGITS, ALONG[:1]])
def test_slices_cover_an_extent_and_more_of_them_pad_it_less(extent, lengths):
    found = ways(extent, lengths)
    assert all(set(w) <= set(lengths) and list(w) == sorted(w, reverse=True) for w in found)
    assert all(sum(w) >= extent and sum(w[:-1]) < extent for w in found)
    assert all(len(a) < len(b) and sum(a) > sum(b) for a, b in itertools.pairwise(found))


def test_fixed_slices_are_the_cheapest_and_lie_beside_each_other():
    buckets = Buckets()
    price = of_numbers(TRN2, np.dtype("f4"), "float32")
    for extents in SHAPES["uniform to 8192"][: OWN + 20].tolist():
        cut = buckets.cut("matmul", tuple(extents), (BLOCK,) * 3, price)
        for extent, along in zip(extents, cut[:3], strict=True):
            assert along[0][0].start == 0 and along[-1][0].stop == extent
            assert all(a.stop == b.start for (a, _), (b, _) in itertools.pairwise(along))
            assert all(0 < s.stop - s.start <= length for s, length in along)
    assert cut.fixed
    of = [ways(extent, ALONG) for extent in extents]
    chosen = tuple(tuple(length for _, length in along) for along in cut[:3])
    assert price.seconds(chosen) == min(map(price.seconds, itertools.product(*of)))


def test_slices_of_k_cost_digits_their_results():
    whole, halves = ((640,), (2048,), (640,)), ((640,), (1024, 1024), (640,))
    for price, more in ((of_numbers(TRN2, np.dtype("f4"), "float32"), 0), (of_digits(TRN2, np.dtype("f8")), 1)):
        launch_s = price.launch_s * tuning.LAUNCH_SHARE
        extra_s = price.seconds(halves) - price.seconds(whole) - launch_s
        assert extra_s == pytest.approx(more * price.fetch_s * 640**2, rel=1e-9, abs=1e-12)
