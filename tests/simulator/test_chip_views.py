"""Tests of the views of an NkiTensor: the documented layouts, chains of views against NumPy's, and illegal ones."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nkisim import isa as nisa
from nkisim import language as nl
from tests.simulator.kernels import on_chip, refusal, run, to_hbm, values


def inside(statement):
    """Run a function of no arguments inside a kernel, for what needs no data."""
    found = []

    def kernel():
        found.append(statement())

    run(kernel, rules={52: "off"})  # tensors in HBM are only looked at
    return found[0]


def sb(*shape, dtype="float32"):
    return nl.ndarray(shape, dtype, nl.sbuf)


def hbm(*shape, dtype="float32"):
    return nl.ndarray(shape, dtype, nl.shared_hbm)


@pytest.mark.parametrize(
    ("make", "shape", "strides", "offset"),
    [
        (lambda: sb(64, 64, 64)[0, 0, 10], (1, 1), (4096, 1), 10),
        (lambda: sb(64, 64, 64)[:, 0], (64, 64), (4096, 1), 0),
        (lambda: sb(64, 64, 64)[:, 0, 10], (64, 1), (4096, 1), 10),
        (lambda: sb(64, 64, 64)[:, :, ::2], (64, 64, 32), (4096, 64, 2), 0),
        (lambda: sb(64, 64, 64)[0, ..., :], (1, 64, 64), (4096, 64, 1), 0),
        (lambda: sb(64, 64, 64)[0, ...][:, 0:32, :], (1, 32, 64), (4096, 64, 1), 0),
        (lambda: sb(128, 64)[-1, -3:], (1, 3), (64, 1), 127 * 64 + 61),
        (lambda: sb(128, 64)[:, nl.ds(8, 4)], (128, 4), (64, 1), 8),
        (lambda: hbm(4, 128, 32)[0, :, :], (128, 32), (32, 1), 0),
        (lambda: hbm(4, 128, 32)[1, 2, 3], (1,), (1,), 4096 + 64 + 3),
        (lambda: sb(128, 64).slice(dim=1, start=8, end=24), (128, 16), (64, 1), 8),
        (lambda: sb(128, 4, 8).permute((0, 2, 1)), (128, 8, 4), (32, 1, 8), 0),
        (lambda: sb(128, 1, 64).broadcast(1, 8), (128, 8, 64), (64, 0, 1), 0),
        (lambda: sb(128, 64).expand_dim(1), (128, 1, 64), (64, 64, 1), 0),
        (lambda: sb(128, 1, 64).squeeze_dim(1), (128, 64), (64, 1), 0),
        (lambda: sb(128, 24).reshape_dim(1, (4, -1)), (128, 4, 6), (24, 6, 1), 0),
        (lambda: sb(128, 2, 3, 4).flatten_dims(1, 2), (128, 6, 4), (24, 4, 1), 0),
        (lambda: sb(128, 4, 6).reshape((128, 2, 12)), (128, 2, 12), (24, 12, 1), 0),
        (lambda: sb(128, 24).rearrange(("b", ("h", "w")), ("b", "w", "h"), {"h": 4}), (128, 6, 4), (24, 1, 6), 0),
        (lambda: sb(128, 8, 64).select(1, 3), (128, 64), (512, 1), 192),
        (lambda: hbm(4, 2, 8).select(0, 3), (2, 8), (8, 1), 48),
        (lambda: sb(128, 64).view(nl.uint8), (128, 256), (256, 1), 0),
        (lambda: sb(128, 64)[:, 4:8].view(nl.bfloat16), (128, 8), (128, 1), 8),
        (lambda: sb(128, 256, dtype="uint8").view(nl.float32), (128, 64), (64, 1), 0),
        (lambda: sb(128, 256, dtype="int32").ap([[512, 128], [1, 512]], 0, dtype=nl.bfloat16), (128, 512), (512, 1), 0),
        (lambda: sb(128, 1024).ap(pattern=[(1024, 128), (2, 512)]), (128, 512), (1024, 2), 0),
        (lambda: sb(128, 256).ap([[256, 128], [2, 128]]).ap([[256, 128], [1, 64]]), (128, 64), (256, 1), 0),
        (lambda: sb(128, 256)[:, 32:].ap([[256, 128], [1, 64]]), (128, 64), (256, 1), 32),
    ],
)
def test_views_have_the_documented_layout(make, shape, strides, offset):
    t = inside(make)
    assert (t.shape, t.strides, t.offset) == (shape, strides, offset)
    assert t.get_pattern() == [[s, n] for s, n in zip(strides, shape, strict=True)]


def test_views_compose_and_share_storage():
    def kernel(x):
        t = on_chip(x)
        u = t[0:64, :, :].permute((0, 2, 1))[:, 0, :]
        assert u.shape == (64, 4)
        nisa.memset(dst=u, value=5.0)
        return to_hbm(t)

    x = values((128, 4, 16))
    expected = x.copy()
    expected[0:64, :, 0] = 5.0
    np.testing.assert_array_equal(run(kernel, x), expected)


@pytest.mark.parametrize(
    ("make", "rule"),
    [
        (lambda: sb(128, 64)[:, 0:65], 12),
        (lambda: sb(128, 64)[:, 64], 12),
        (lambda: sb(128, 64)[::2], 12),
        (lambda: sb(128, 64)[:, ::-1], 12),
        (lambda: sb(128, 64)[:, 4:4], 12),
        (lambda: sb(128, 64)[:, :, 0], None),
        (lambda: sb(128, 64)[np.arange(3)], 1),
        (lambda: sb(128, 64)[:, 0.5], 1),
        (lambda: sb(128, 64).permute((1, 0)), 12),
        (lambda: sb(128, 64).permute((0, 0)), None),
        (lambda: sb(128, 64).reshape((64, 128)), 12),
        (lambda: sb(128, 64).reshape((128, 63)), None),
        (lambda: sb(128, 64).reshape_dim(0, (2, 64)), 12),
        (lambda: sb(128, 4, 16).permute((0, 2, 1)).reshape((128, 64)), 12),
        (lambda: sb(128, 64)[:, ::2].flatten_dims(0, 1), 12),
        (lambda: sb(128, 4, 16)[:, :, 0:8].flatten_dims(1, 2), 12),
        (lambda: sb(128, 64).broadcast(1, 8), None),
        (lambda: sb(1, 64).broadcast(0, 8), 12),
        (lambda: sb(128, 64).expand_dim(0), 12),
        (lambda: sb(2, 2, 2, 2, 2).expand_dim(1), 12),
        (lambda: sb(128, 64)[:, ::2].view(nl.uint8), None),
        (lambda: sb(128, 3, dtype="uint8").view(nl.float32), None),
        (lambda: sb(16, 32).ap([[64, 8], [1, 32]]), 14),
        (lambda: sb(16, 32).ap([[32, 16], [1, 33]]), 12),
        (lambda: sb(16, 32).ap([[32, 16], [1, 32]], offset=1), 12),
        (lambda: sb(16, 32).ap([[32, 17], [1, 32]]), 12),
        (lambda: hbm(16, 32).ap([[32, 16], [1, 32]], offset=1), 12),
        (lambda: hbm(16, 32).ap([[32, 16], [-1, 32]]), 14),
        (lambda: hbm(16, 32).ap("ab"), 14),
        (lambda: sb(128, 64).select(1, 64), 12),
        (lambda: sb(128, 64).vector_select(0, sb(4, 1, dtype="int32")), 19),
        (lambda: hbm(8, 64).vector_select(0, sb(4, 1)), 19),
        (lambda: hbm(8, 64).vector_select(0, sb(4, 1, dtype="int32"))[0:2], 19),
        (lambda: hbm(8, 64).ap([[64, 4], [1, 64]], vector_offset=sb(3, 1, dtype="int32")), 19),
        (lambda: hbm(8, 64).ap([[64, 4], [1, 64]], vector_offset=sb(4, 1, dtype="int32"), indirect_dim=1), 19),
        (lambda: sb(8, 64).ap([[64, 4], [1, 4]], scalar_offset=sb(1, 1, dtype="int32")), 19),
        (lambda: hbm(8, 64).ap([[64, 4], [1, 4]], scalar_offset=sb(1, 1)), 19),
        (lambda: list(sb(8, 64)), 1),
    ],
)
def test_an_illegal_view_is_refused_in_one_line(make, rule):
    def kernel():
        view = make()
        nisa.dma_copy(dst=view, src=view)  # a view out of range may be made, and not used

    refusal(kernel, rule=rule)


def test_a_view_out_of_range_may_be_made_and_left_unused():
    def kernel(x):
        tile = on_chip(x)
        beyond = tile[:, 4:12], tile[:, 3:3], tile.ap([[6, 4], [1, 7]]), tile[:, 4:12][:, 0:2]
        assert [view.shape[1] for view in beyond] == [8, 1, 7, 2]
        return to_hbm(tile[:, 0:6])

    x = np.arange(24, dtype=np.float32).reshape(4, 6)
    np.testing.assert_array_equal(run(kernel, x), x)


@st.composite
def view_chains(draw):
    """A shape and a chain of operations that NumPy and NkiTensor both know."""
    shape = tuple(draw(st.lists(st.integers(1, 6), min_size=2, max_size=4)))
    steps = []
    current = list(shape)
    for _ in range(draw(st.integers(0, 4))):
        kind = draw(st.sampled_from(["slice", "permute", "index", "expand", "broadcast"]))
        dim = draw(st.integers(1, len(current) - 1))
        if kind == "slice":
            start = draw(st.integers(0, current[dim] - 1))
            stop = draw(st.integers(start + 1, current[dim]))
            step = draw(st.integers(1, 3))
            steps.append((kind, dim, slice(start, stop, step)))
            current[dim] = len(range(start, stop, step))
        elif kind == "permute":
            order = [0, *draw(st.permutations(range(1, len(current))))]
            steps.append((kind, order, None))
            current = [current[d] for d in order]
        elif kind == "index" and len(current) > 2:
            steps.append((kind, dim, draw(st.integers(0, current[dim] - 1))))
            del current[dim]
        elif kind == "expand" and len(current) < 5:
            steps.append((kind, dim, None))
            current.insert(dim, 1)
        elif kind == "broadcast" and current[dim] == 1:
            steps.append((kind, dim, draw(st.integers(1, 4))))
            current[dim] = steps[-1][2]
    return shape, steps


@settings(max_examples=60, deadline=None)
@given(view_chains())
def test_chains_of_views_show_what_numpy_shows(chain):
    shape, steps = chain
    x = np.arange(np.prod(shape), dtype=np.float32).reshape(shape)
    expected = x
    for kind, where, what in steps:
        if kind in ("slice", "index"):
            expected = expected[(slice(None),) * where + (what,)]
        elif kind == "permute":
            expected = expected.transpose(where)
        elif kind == "expand":
            expected = np.expand_dims(expected, where)
        else:
            expected = np.repeat(expected, what, where)

    def kernel(x):
        view = on_chip(x)
        for kind, where, what in steps:
            if kind in ("slice", "index"):
                view = view[(slice(None),) * where + (what,)]
            elif kind == "permute":
                view = view.permute(where)
            elif kind == "expand":
                view = view.expand_dim(where)
            else:
                view = view.broadcast(where, what)
        out = nl.ndarray(view.shape, view.dtype, buffer=nl.shared_hbm)
        nisa.dma_copy(dst=out, src=view)
        return out

    np.testing.assert_array_equal(run(kernel, x), expected)
