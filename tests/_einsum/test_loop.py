"""The prediction of NumPy's loop: its axes are those of NumPy's iterator, and its units grow as the work does."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import trnpy
from trnpy import Reason
from trnpy._einsum import loop as model

LABELS = "abcd"


@st.composite
def nests(draw):
    """(inputs, output, operands) of one to four operands in any order of axes, some with gaps or reversed."""
    sizes = {c: draw(st.integers(1, 5)) for c in LABELS}
    inputs = [draw(st.text(LABELS, min_size=1, max_size=4)) for _ in range(draw(st.integers(1, 4)))]
    used = sorted(set("".join(inputs)))
    output = "".join(draw(st.permutations(used))[: draw(st.integers(0, len(used)))])
    operands = []
    for labels in inputs:
        order = draw(st.permutations(range(len(labels))))
        step = draw(st.sampled_from([1, 2, -1]))
        whole = np.zeros([abs(step) * sizes[labels[axis]] for axis in order])[(slice(None, None, step),) * len(labels)]
        operands.append(whole.transpose(np.argsort(order)))
    return tuple(inputs), output, operands


def numpys_axes(inputs, output, operands):
    """Extents and strides of NumPy's own iterator, the innermost first."""
    rest = "".join(sorted(set("".join(inputs)) - set(output)))
    views, axes = [], []
    for labels, a in zip(inputs, operands, strict=True):
        own = "".join(dict.fromkeys(labels))
        views.append(np.einsum(f"{labels}->{own}", a) if own != labels else a)
        axes.append([own.find(c) for c in output + rest])
    axes.append([*range(len(output)), *[-1] * len(rest)])
    it = np.nditer(
        [*views, None],
        flags=["reduce_ok"],
        op_flags=[["readonly"]] * len(views) + [["readwrite", "allocate", "no_broadcast"]],
        op_axes=axes,
    )
    shape, strides = it.itviews[0].shape, [view.strides for view in it.itviews]
    return [(n, tuple(own[k] for own in strides)) for k, n in enumerate(shape) if n > 1][::-1]


@settings(max_examples=300, deadline=None)
@given(nests())
def test_axes_are_those_of_numpys_iterator(nest):
    inputs, output, operands = nest
    shapes, strides = (tuple([getattr(a, name) for a in operands]) for name in ("shape", "strides"))
    ours, theirs = model._axes(inputs, output, shapes, strides, 8), numpys_axes(*nest)
    assert [n for n, _ in ours] == [n for n, _ in theirs]
    assert [[*map(abs, own)] for _, own in ours] == [[*map(abs, own)] for _, own in theirs]


def units(subscripts, *operands):
    inputs, output = subscripts.split("->")
    return model.loop(
        tuple(inputs.split(",")),
        output,
        tuple([a.shape for a in operands]),
        tuple([a.strides for a in operands]),
        "".join([a.dtype.char for a in operands]),
        np.result_type(*operands).char,
        np.result_type(*operands).itemsize,
    )


def test_sums_over_all_labels_are_one_line_of_any_shape():
    lines = {shape: units("ab,ab->", *[np.zeros(shape)] * 2) for shape in ((2, 30000), (300, 200), (30000, 2))}
    assert len(set(lines.values())) == 1


def test_a_loop_against_the_order_of_memory_costs_more():
    a = np.zeros((700, 700))
    assert units("ij,ij->", a, a) < units("ij,ij->", a, a.T) / 2
    assert units("ij,ij->", a[:, ::2], a[:, ::2]) < units("ij,ij->", a, a)


def test_what_the_iterator_converts_costs_more():
    a, single = np.zeros((300, 300)), np.zeros((300, 300), np.float32)
    assert units("ij,jk->ik", a, single) > units("ij,jk->ik", a, a) > units("ij,jk->ik", single, single)


def test_a_copy_in_the_same_order_is_the_cheapest():
    dtype = np.dtype(float)
    plain, turned = (model.copied("abc", order, (80, 90, 100), dtype) for order in ("abc", "cba"))
    assert math.prod((80, 90, 100)) * model.KERNELS["copy"][0] <= plain < turned


@pytest.mark.parametrize("subscripts", ["iajb,iajb,iajb->", "ijkl,ijkl->i", "ijkl,ijkl,ijkl->ij"])
def test_products_of_operands_with_equal_labels_stay_with_numpy(subscripts):
    """A route would make an intermediate result as large as the operands, and take 1.2 to 2.4 times as long."""
    a = np.random.default_rng(0).standard_normal((10, 30, 10, 30))
    with trnpy.trace() as log:
        trnpy.einsum(subscripts, *[a] * (subscripts.count(",") + 1))
    assert log[0].reason is Reason.NO_DEVICE and not log[0].route


@pytest.mark.route
def test_the_order_of_memory_decides_about_a_route():
    """NumPy reads one line after another, and a column of cache lines for each of the other order's elements."""
    a, b = np.random.default_rng(0).standard_normal((2, 1200, 1200))
    explained = [trnpy.explain(trnpy.einsum, "ij,ji->", a, x).host_s for x in (b, b.T)]
    assert explained[1] < explained[0]
