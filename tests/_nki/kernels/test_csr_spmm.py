"""csr_spmm.py against its twin: edges, duplicates, order, limits, lint, model."""

import numpy as np
import pytest

from nkisim.hardware import TRN2
from nkisim.lint.linter import errors, lint_file, lint_launch
from nkisim.price.cost import price
from nkisim.run.launch import Specification, run
from nkisim.run.loader import load_kernel
from trnpy._nki.kernels import source
from trnpy._nki.kernels.sparse import csr_spmm_reference
from trnpy._nki.kernels.sparse.bsr_spmm_reference import LONGEST

GATHER = load_kernel(source("csr_spmm"), "csr_spmm")
EPS = 2.0**-23
TILE = 128


def groups(rows, length, n, k=300):
    """Block rows of ``length`` groups; rows repeat, and a tenth of the places hold no element."""
    rng = np.random.default_rng([n, k, rows, length])
    row_of = rng.integers(0, 20, (TILE, rows * length)).astype("f4")
    row_of[rng.random(row_of.shape) < 0.1] = -1
    values = np.where(row_of < 0, 0, rng.standard_normal(row_of.shape)).astype("f4")
    columns = rng.integers(0, k, row_of.shape).astype(np.int32)
    return values, row_of, columns, rng.standard_normal((k, n)).astype("f4")


@pytest.mark.parametrize("rows, length, n", [(1, 1, 1), (3, 9, 40), (2, 5, 600), (2, 2, 1100)])
def test_rows_of_groups(rows, length, n):
    arrays = groups(rows, length, n)
    ours = run(GATHER, arrays, {"length": length}).outputs
    bound = csr_spmm_reference.csr_spmm(np.abs(arrays[0]), *arrays[1:3], np.abs(arrays[3]), length)
    assert (np.abs(ours - csr_spmm_reference.csr_spmm(*arrays, length)) <= TILE * length * EPS * bound).all()


@pytest.mark.parametrize("seed", range(2))
def test_any_legal_order_of_gathers_gives_the_same(seed):
    arrays = groups(2, 5, 40)
    straight = run(GATHER, arrays, {"length": 5}).outputs
    np.testing.assert_array_equal(run(GATHER, arrays, {"length": 5}, mode="reorder", seed=seed).outputs, straight)


@pytest.mark.parametrize("target", ["trn1", "trn2", "trn3"])
def test_lint_finds_no_error(target):
    launched = lint_launch(GATHER, groups(2, 7, 40), {"length": 7}, target=target)
    assert not errors((*launched, *lint_file(source("csr_spmm"))))


@pytest.mark.parametrize("length", [2, LONGEST])
def test_the_largest_launch_of_groups_fits(length):
    shape = (TILE, csr_spmm_reference.SLOTS)
    arrays = (
        *(Specification(shape, np.float32),) * 2, Specification(shape, np.int32), Specification((2**18, 2048)),
    )  # fmt: skip
    trace = run(GATHER, arrays, {"length": length}, mode="trace").trace
    assert len(trace.instructions) < 44_000 and len(trace.loops) <= 1
    assert trace.sbuf_peak_bytes <= TRN2.sbuf_bytes_per_partition and trace.psum_peak_banks <= 8


def test_modelled_seconds_of_a_group_on_trn2():
    costs = [price(run(GATHER, groups(k, 8, 512), {"length": 8}, target="trn2").trace).device_s for k in (4, 8)]
    group_s = (costs[1] - costs[0]) / 32
    print(f"512 columns, modelled: {group_s * 1e6:.2f} us for 128 gathered rows")
    assert 1.5e-6 <= group_s <= 3e-6


def test_what_it_refuses():
    values, row_of, columns, x = groups(1, 2, 40)
    for bad in ((values[:100], row_of, columns, x), (values, row_of, columns.astype(np.int64), x),
                (values, row_of, columns, np.tile(x, 60)), (values, row_of, columns, x.astype("f8"))):  # fmt: skip
        with pytest.raises(ValueError, match="expected"):
            csr_spmm_reference.check(*bad, 2)
    for length in (0, 3, 128):
        with pytest.raises(ValueError, match="expected"):
            csr_spmm_reference.check(values, row_of, columns, x, length)
