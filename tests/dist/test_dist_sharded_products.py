"""Products of sharded arrays, over threads that stand for processes, against those of one rank."""

import itertools
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import trnpy
from trnpy import dist

# Subscripts, with the labels of every kind: kept, summed, in a batch, repeated, alone.
CALLS = (
    "ij,jk->ik", "ij,jk->ki", "ji,jk->ik", "bij,bjk->bik", "bij,bjk->ik", "ij,kl->ik", "ii,ij->j", "ij->j", "ij->ji", "ii->i",
    "ij,ij->", "i,j->ij", "ij,jk,kl->il", "Pij,Pkl,jl->ik", "Pia,Pjb->iajb",
)  # fmt: skip
SIZES = dict(zip("ijklbPa", (5, 6, 3, 4, 2, 9, 4), strict=True))


def operands(subscripts, dtype="f8", sizes=SIZES):
    """Integers, whose sums are exact in any order."""
    rng = np.random.default_rng(3)
    shapes = [[sizes[c] for c in labels] for labels in subscripts.partition("->")[0].split(",")]
    return [rng.integers(-4, 5, shape).astype(dtype) for shape in shapes]


def layouts(subscripts):
    """Every way to cut the operands: the axis of each, or None for a whole one; at least one is cut."""
    words = subscripts.partition("->")[0].split(",")
    found = itertools.product(*[(None, *range(len(word))) for word in words])
    return [axes for axes in found if any(axis is not None for axis in axes)]


def cut(arrays, axes):
    return [a if axis is None else dist.scatter(a, axis) for a, axis in zip(arrays, axes, strict=True)]


@pytest.mark.parametrize("ranks", [1, 2, 3, 4])
@pytest.mark.parametrize("subscripts", CALLS)
def test_any_cut_of_the_operands_gives_the_result_of_one_rank(subscripts, ranks):
    arrays = operands(subscripts)
    whole = np.einsum(subscripts, *arrays)
    results = ("kept", None, *range(whole.ndim))

    def program():
        for axes in layouts(subscripts)[:: ranks if len(arrays) > 2 else 1]:
            parts = cut(arrays, axes)
            for axis in results if len(arrays) < 3 else ("kept", None):
                for options in ({}, {"memory": 0}, {"reproducible": True}):
                    found = dist.einsum(subscripts, *parts, axis=axis, **options)
                    assert axis == "kept" or getattr(found, "axis", None) == axis
                    np.testing.assert_array_equal(dist.gather(found), whole, err_msg=f"{axes} {axis} {options}")

    dist.threads(ranks, program)


@given(
    st.integers(1, 6), st.sampled_from(CALLS[:8]), st.data(), st.sampled_from(["?", "i8", "f2", "f4", "c16", ">f8"]),
    st.booleans(),
)  # fmt: skip
def test_shapes_ranges_and_dtypes_of_any_kind(ranks, subscripts, data, dtype, reproducible):
    sizes = {c: data.draw(st.integers(0, 7)) for c in SIZES}
    arrays = operands(subscripts, dtype, sizes)
    axes = data.draw(st.sampled_from(layouts(subscripts)))
    ranges = [
        None if axis is None
        else [0, *sorted(data.draw(st.integers(0, a.shape[axis])) for _ in range(ranks - 1)), a.shape[axis]]
        for a, axis in zip(arrays, axes, strict=True)
    ]  # fmt: skip
    whole = np.einsum(subscripts, *arrays)

    def program():
        c = dist.comm()
        parts = [
            a if axis is None
            else dist.Sharded(np.take(a, range(edges[c.rank], edges[c.rank + 1]), axis), axis, a.shape, c)
            for a, axis, edges in zip(arrays, axes, ranges, strict=True)
        ]  # fmt: skip
        found = dist.gather(dist.einsum(subscripts, *parts, reproducible=reproducible))
        np.testing.assert_array_equal(found, whole)
        assert found.dtype.newbyteorder("=") == whole.dtype.newbyteorder("=")

    dist.threads(ranks, program)


@pytest.mark.parametrize("reproducible", [False, True])
@pytest.mark.parametrize("axes", [(0, 0), (0, 1), (1, 0), (1, None), (None, 0), (None, 1)])
def test_operands_of_length_one_stretch(axes, reproducible):
    arrays = np.arange(7.0).reshape(1, 7), np.arange(35.0).reshape(5, 7)
    whole = np.einsum("ij,ij->i", *arrays)

    def program():
        found = dist.einsum("ij,ij->i", *cut(arrays, axes), reproducible=reproducible)
        np.testing.assert_array_equal(dist.gather(found), whole)

    dist.threads(3, program)


@pytest.mark.parametrize("axes", [(0, None), (1, None), (2, 2), (0, 0), (1, 2)])
@pytest.mark.parametrize("subscripts", ["Pij,Pkj->ik", "Pij,Pkj->Pik"])
def test_reproducible_products_have_the_same_bits_for_any_number_of_ranks(subscripts, axes):
    rng = np.random.default_rng(4)
    arrays = [rng.standard_normal((37, n, 11)) for n in (6, 8)]

    def program():
        return dist.einsum(subscripts, *cut(arrays, axes), axis=None, reproducible=True).tobytes()

    found = [set(dist.threads(ranks, program)) for ranks in (1, 2, 3, 4, 5, 8, 16, 17)]
    assert len(set.union(*found)) == 1


@pytest.mark.parametrize("axis", [0, 1])
def test_reproducible_products_of_one_array_with_itself_have_the_bits_of_two_arrays(axis):
    """NumPy multiplies an array by itself with BLAS's syrk, whose bits differ from those of gemm."""
    a = np.random.default_rng(4).standard_normal((370, 61))

    def program():
        s, other = dist.scatter(a, axis), dist.scatter(a.copy(), axis)
        return [dist.einsum("Pi,Pj->ij", s, x, axis=None, reproducible=True).tobytes() for x in (s, other)]

    assert len({bits for ranks in (1, 2, 3) for found in dist.threads(ranks, program) for bits in found}) == 1


@pytest.mark.parametrize("ranks", [2, 3])
def test_products_have_the_same_bits_twice(ranks):
    a, b = np.random.default_rng(5).standard_normal((2, 40, 40))

    def program():
        return dist.gather(dist.scatter(a, 1) @ dist.scatter(b, 0)).tobytes()

    assert len({*dist.threads(ranks, program), *dist.threads(ranks, program)}) == 1


def test_numpys_and_trnpys_names_take_pieces():
    a, b, v = np.arange(12.0).reshape(3, 4), np.arange(20.0).reshape(4, 5), np.arange(4.0)

    def program():
        x, y = dist.scatter(a, 0), dist.scatter(b, 1)
        for found, whole in (
            (x @ b, a @ b), (a @ y, a @ b), (x @ y, a @ b), (x @ v, a @ v), (v @ y, v @ b),
            (np.matmul(x, b), a @ b), (trnpy.matmul(x, b), a @ b), (np.einsum("ij,jk", x, b), a @ b),
            (trnpy.einsum("ij,jk->ki", x, y), (a @ b).T), (np.tensordot(x, b, 1), a @ b),
            (trnpy.tensordot(x, y, ([1], [0])), a @ b), (dist.tensordot(x, a, 2), np.tensordot(a, a, 2)),
            (dist.einsum(x, [0, 1], b, [1, 2], [0, 2]), a @ b),
            (np.stack([a, a]) @ y, np.stack([a, a]) @ b), (dist.matmul(x, b, axis=1), a @ b),
        ):  # fmt: skip
            np.testing.assert_array_equal(dist.gather(found), whole)
        assert isinstance(x @ b, dist.Sharded)
        found = dist.multi_einsum([("ij,jk->ik", x, y), ("ij->", x)])
        np.testing.assert_array_equal(dist.gather(found[0]), a @ b)
        np.testing.assert_array_equal(found[1], a.sum())

    dist.threads(3, program)


@pytest.mark.parametrize("subscripts", ["ij,jk->ik", "bij,bjk->bik", "Pij,Pkl->ijkl", "ij,kj->ik"])
def test_the_product_of_two_operands_is_in_c_order(subscripts):
    """NumPy's einsum multiplied the transposes: a tenth slower for a few hundred rows, and a copy before each transfer."""
    for axes in layouts(subscripts):
        found = dist.threads(1, lambda axes=axes: dist.einsum(subscripts, *cut(operands(subscripts), axes)))[0]
        assert getattr(found, "local", found).flags.c_contiguous, axes


def test_kept_indices_need_no_communication_and_summed_ones_one_sum():
    b = np.ones((64, 40, 40))

    def program():
        c = dist.comm()
        over = dist.scatter(b, 0)
        before = c.sent
        dist.einsum("Pij,jk->Pik", over, b[0])
        assert c.sent == before
        plan = dist.einsum_plan("Pij,Pkj->ik", over, over, axis=0)
        assert [step.action for step in plan.steps] == ["product", "reduce_scatter"]
        dist.einsum("Pij,Pkj->ik", over, over, axis=0)
        assert c.sent - before == plan.bytes == 40 * 40 * 8 * 3 / 4
        assert "64" not in plan.label
        return str(plan)

    assert "a range of 'P' each; result cut along axis 0" in dist.threads(4, program)[0]


def test_the_smaller_of_two_operands_is_gathered_and_passed_on_where_it_does_not_fit():
    a, b = np.ones((400, 40)), np.ones((40, 40))

    def program():
        x, y = dist.scatter(a, 0), dist.scatter(b, 1)
        steps = [(s.action, s.what) for s in dist.einsum_plan("ij,jk->ik", x, y).steps]
        assert steps == [("gather", "jk"), ("product", "ik")]
        assert dist.einsum_plan("ij,jk->ik", x, y, memory=0).ring == 1
        c = dist.comm()
        before = c.sent
        dist.einsum("ij,jk->ik", x, y, memory=0)
        assert c.sent - before == b.nbytes * 3 // 4
        dist.einsum("ij,jk->ik", x, y, memory=1e9)
        assert c.sent - before == 2 * b.nbytes * 3 // 4

    dist.threads(4, program)


def test_wrong_calls_are_refused_in_numpys_words():
    def program():
        x = dist.scatter(np.zeros((3, 4)))
        with pytest.raises(ValueError, match="matmul of shapes"):
            x @ np.zeros(3)
        with pytest.raises(ValueError, match="tensordot of shapes"):
            dist.tensordot(x, x, 1)
        with pytest.raises(ValueError, match="einsum|operand|size|broadcast"):
            dist.einsum("ij,jk->ik", x, x)
        with pytest.raises(TypeError, match="has no out"):
            dist.einsum("ij->ij", x, out=None)
        with pytest.raises(TypeError):
            np.linalg.norm(x)
        with pytest.raises(TypeError):
            x + 1

    dist.threads(2, program)


def test_arrays_in_pieces_under_a_patch():
    code = (
        "import numpy as np\n"
        "from trnpy import dist\n"
        "a = dist.scatter(np.ones((4, 3)), axis=1)\n"
        "found = a @ np.ones(3), np.matmul(a, np.ones(3)), np.einsum('ij,j->i', a, np.ones(3)), np.tensordot(a, np.ones(3), 1)\n"
        "print([dist.gather(x).tolist() for x in found] == [[3.0] * 4] * 4)\n"
    )
    run = [sys.executable, "-m", "trnpy", "--no-report", "-c", code]
    assert subprocess.run(run, capture_output=True, text=True, check=True).stdout == "True\n"
