"""One product of two operands on the host: what BLAS reads in place, sums in lines, copies in blocks."""

import numpy as np
import pytest

from trnpy._einsum import plan as _plan
from trnpy._einsum import product
from trnpy._engine.engines import HOST


def made(shape, dtype, rng):
    """Small whole numbers: exact in every dtype, and large enough for the narrow integers to wrap around."""
    dtype = np.dtype(dtype)
    if dtype.kind == "b":
        return rng.random(shape) < 0.6
    low, high = (0, 99) if dtype.kind in "iu" else (-9, 9) if dtype.itemsize > 8 or dtype.char == "d" else (-1, 2)
    values = rng.integers(low if dtype.kind != "i" else -9, high, shape)
    if dtype.kind == "c":
        values = values + 1j * rng.integers(low, high, shape)
    return np.asarray(values).astype(dtype)


def operands(case, dtype="f8", seed=0):
    rng = np.random.default_rng(seed)
    return [made(shape, dtype, rng) for shape in case[1:]]


def test_two_vectors_are_blas_s_where_they_are_in_cache_or_it_has_threads(monkeypatch):
    """One thread reads them from memory no faster than NumPy's loop."""
    for threads, n, loops in ((1, 1448, False), (1, 1449, True), (2, 1449, False)):
        monkeypatch.setattr(product, "blas_threads", lambda threads=threads: threads)
        (step,) = _plan.plan(("ij", "ij"), "", ((n, n), (n, n)), "auto").steps
        assert step.loops == loops
    x = np.arange(360_000.0).reshape(600, 600)
    (step,) = _plan.plan(("ij", "ij"), "", (x.shape, x.shape), "auto").steps
    for a, b in ((x, x), (x.T, x.T), (x, x.T), (x[::-1], x), (x[:, ::-2], x[:, 1::2]), (x + 1j, x - 2j)):
        (step,) = _plan.plan(("ij", "ij"), "", (a.shape, b.shape), "auto").steps
        assert product.on_host(step)(a, b) == pytest.approx((a * b).sum(), rel=1e-13)


def test_two_operands_of_other_orders_are_summed_in_lines_without_a_copy():
    """The line last, and before it the label of what lies beside the other's; by the loop where it goes like that."""
    sizes = dict(zip("ijab", (3, 5, product.LINE, product.LINE + 1), strict=True))
    for labels, order in (
        (("iajb", "ibja"), "ijab"),
        (("ibja", "iajb"), "ijab"),
        (("iajb", "jaib"), "iajb"),
        (("abij", "jiba"), "ibja"),
        (("ijab", "jiba"), ""),
        (("aibj", "biaj"), ""),
        (("ab", "ba"), ""),
    ):
        (step,) = _plan.plan(labels, "", [tuple(sizes[c] for c in x) for x in labels], "auto").steps
        assert (step.lines, step.loops) == (order, not order)
        subscripts = f"{labels[0]},{labels[1]}->"
        for dtype in "fdFD":
            x, y = operands((subscripts, *[tuple(sizes[c] for c in word) for word in labels]), dtype)
            bound = 8 * x.size * np.finfo(dtype).eps
            for a, b in ((x, y), (np.asfortranarray(x), np.asfortranarray(y)), (x[::-1], y), (x, y[:, ::-1])):
                exact = np.einsum(subscripts, a.astype("D"), b.astype("D"))
                assert abs(product.on_host(step)(a, b) - exact) <= bound * np.abs(a).max() * np.abs(b).max()
    shorter = sizes | {"b": product.LINE - 1, "a": product.LINE - 1}
    assert not product._in_lines("iajb", "ibja", shorter)


@pytest.mark.parametrize("rows", [4000, 4001, 6007])
def test_few_columns_are_multiplied_a_part_of_the_rows_at_a_time(monkeypatch, rows):
    monkeypatch.setattr(product, "blas_threads", lambda: 1)
    rng = np.random.default_rng(rows)
    a, b = rng.standard_normal((rows, 31)), rng.standard_normal((31, 17))
    (step,) = _plan.plan(("ij", "jk"), "ik", (a.shape, b.shape), "auto").steps
    for x, y in ((a, b), (np.asfortranarray(a), b), (a, np.asfortranarray(b)), (a[:, ::-1], b), (a + 0j, b)):
        np.testing.assert_allclose(product.on_host(step)(x, y), x @ y, rtol=1e-12, atol=1e-12)


def test_operands_that_both_need_copies_are_copied_in_blocks():
    rng = np.random.default_rng(3)
    for subscripts, shape in (
        ("Lpi,Lqi->pq", (150, 50, 14)),
        ("Lpi,Lqi->qp", (151, 50, 13)),
        ("ipL,iqL->pq", (9, 80, 200)),
    ):
        a, b = rng.standard_normal(shape), rng.standard_normal(shape)
        inputs, output = subscripts.split("->")
        plan = _plan.plan(tuple(inputs.split(",")), output, (shape, shape), "auto")
        assert plan.steps[0].block or plan.steps[0].copied <= product.COPIED
        ours = _plan.contract(plan, (a, b), a.dtype, (HOST,))
        np.testing.assert_allclose(ours, np.einsum(subscripts, a, b), rtol=1e-12, atol=1e-10)
