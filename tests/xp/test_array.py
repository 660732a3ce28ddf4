"""Arrays: what is recorded, what is computed and when, what is kept, and what errors say."""

import gc
import pickle
import re
import threading
import tracemalloc
import warnings

import numpy as np
import pytest

import trnpy
from trnpy import xp
from trnpy.xp._graph import MOST_PENDING, GraphCounters

RNG = np.random.default_rng(0)
A, B = RNG.standard_normal((2, 40, 40))
EPS = np.finfo(float).eps


@pytest.fixture(autouse=True)
def recorded(monkeypatch):
    """No Array is small: operations on it are recorded."""
    monkeypatch.setattr("trnpy.xp._nodes.Small.elements", -1)


class counted:
    """How often each counter moved in a block."""

    def __enter__(self):
        self.before = vars(GraphCounters).copy()
        return self

    def __exit__(self, *_):
        after = vars(GraphCounters)
        self.moved = {n: after[n] - self.before[n] for n in ("recorded", "computed", "shared", "reused", "copied")}


def test_nothing_is_computed_before_it_is_read():
    x = xp.asarray(A)
    with counted() as made:
        y = xp.sum((x @ x) * 2.0 - x)
    assert made.moved["recorded"] == 4 and made.moved["computed"] == 0
    assert (y.shape, y.dtype) == ((), np.dtype(float))
    with counted() as read:
        np.testing.assert_allclose(float(y), np.sum((A @ A) * 2.0 - A), rtol=1e3 * EPS)
    assert read.moved["computed"] == 4
    with counted() as again:
        y.block_until_ready()
    assert again.moved["computed"] == 0


def test_what_nothing_reads_is_never_computed():
    x = xp.asarray(A)
    with counted() as all_of_it:
        unread = [xp.linalg.inv(x + k) for k in range(5)]
        del unread
        (x + 1.0).block_until_ready()
    assert all_of_it.moved["computed"] == 1


def test_equal_subexpressions_are_computed_once():
    x = xp.asarray(A)
    y = xp.exp(x * 2.0) + xp.exp(x * 2.0) * xp.sum(xp.exp(x * 2.0), axis=0)
    with counted() as read:
        values = np.asarray(y)
    assert read.moved["computed"] == 5 and read.moved["shared"] == 4  # of x * 2 and exp, twice each
    e = np.exp(A * 2.0)
    np.testing.assert_array_equal(values, e + e * e.sum(0))


def test_zeros_of_either_sign_and_types_of_scalars_are_not_equal():
    x = xp.asarray(A[:1, :4])
    pairs = xp.stack([xp.copysign(x, 0.0), xp.copysign(x, -0.0)])
    np.testing.assert_array_equal(np.signbit(np.asarray(pairs)), [[[False] * 4], [[True] * 4]])
    n = xp.asarray([1, 2])
    both = (n * 1, n * 1.0)
    assert [np.asarray(b).dtype for b in both] == [np.dtype(int), np.dtype(float)]


def test_a_buffer_that_nobody_needs_is_written_again_and_no_other():
    x, y = xp.asarray(A), xp.asarray(B)
    kept = x * y
    view = kept.T
    z = ((x * y + x) * 0.5 - y) / (view + 2.0)
    with counted() as read:
        values = np.asarray(z)
    assert read.moved["reused"] >= 3
    p = A * B
    np.testing.assert_array_equal(values, ((p + A) * 0.5 - B) / (p.T + 2.0))
    np.testing.assert_array_equal(kept, p)
    np.testing.assert_array_equal(view, p.T)
    np.testing.assert_array_equal(x, A)


def test_an_operand_that_changes_later_is_copied_and_one_that_cannot_is_not():
    a = A.copy()
    x = xp.asarray(a)
    y = x + a
    a[:] = 0.0
    np.testing.assert_array_equal(y, A + A)
    fixed = A.copy()
    fixed.flags.writeable = False
    with counted() as made:
        z = xp.asarray(fixed)
    assert made.moved["copied"] == 0 and np.shares_memory(np.asarray(z, copy=False), fixed)
    view = A.copy()[1:]
    view.flags.writeable = False  # its base can be written
    with counted() as made:
        xp.asarray(view)
    assert made.moved["copied"] in (0, view.nbytes)


@pytest.mark.parametrize("rows", [3, 300])
def test_numpys_array_has_the_memory_of_an_array_and_a_copy_has_not(rows):
    a = np.ones((rows, rows))
    x = xp.asarray(a) + 1.0
    before = x * 2.0
    shown, row, copy = np.asarray(x), np.asarray(x[1]), np.array(x)
    shown[0, 0], row[0] = 5.0, 6.0
    after = x * 2.0
    shown[0, 0] = x[1, 0] = 7.0
    assert [float(y[0, 0]) for y in (before, after, x)] == [4.0, 10.0, 7.0]
    assert shown[1, 0] == row[0] == 7.0
    assert (copy == 2.0).all() and np.shares_memory(np.asarray(x, copy=False), shown)
    with pytest.raises(ValueError, match="a copy is needed"):
        np.asarray(x, dtype=np.float32, copy=False)


def test_a_function_that_writes_its_output_writes_an_array():
    ndimage = pytest.importorskip("scipy.ndimage")
    for rows in (3, 300):
        x, out = xp.asarray(np.ones((rows, rows))), xp.zeros((rows, rows))
        ndimage.correlate1d(x[1:], [2.0], output=out[1:])
        assert float(xp.sum(out)) == 2.0 * rows * (rows - 1)


def test_assignment_changes_the_array_and_nothing_made_of_it_before():
    x = xp.asarray(A)
    y, row = x + 0.0, x[0] * 1.0
    x[0, :] = xp.asarray(B)[1, :] * 2.0
    x[1:3, 4] = 7
    x[x > 1.5] = 0.0
    expected = A.copy()
    expected[0], expected[1:3, 4] = B[1] * 2.0, 7
    expected[expected > 1.5] = 0.0
    np.testing.assert_array_equal(x, expected)
    np.testing.assert_array_equal(y, A)
    np.testing.assert_array_equal(row, A[0])
    z = w = xp.asarray(A)
    z += 1.0
    assert z is w
    np.testing.assert_array_equal(w, A + 1.0)


@pytest.mark.parametrize("key", [3, slice(2, 5), (3, 4), (3, 4, ...)], ids=str)
@pytest.mark.parametrize(
    "shape", [(), (1, 1, 1), (40,), (1, 40), (1, 1, 40), (2, 40), (3, 40), (2, 1, 40), (41,), (1, 39), (1, 2, 39), (0,)]
)
def test_a_recorded_assignment_takes_the_shapes_that_numpy_takes(shape, key):
    x, value, expected = xp.asarray(A) + 0.0, np.full(shape, 2.0), A.copy()
    assert x._memory() is None  # the assignment below is recorded
    try:
        expected[key] = value
    except ValueError as error:
        with pytest.raises(ValueError, match=f"^{re.escape(str(error))}$"):
            x[key] = xp.asarray(value) * 1.0
    else:
        x[key] = xp.asarray(value) * 1.0
    np.testing.assert_array_equal(x, expected)


def test_an_assignment_leaves_the_memory_of_its_value():
    rows = np.array([0, 0, *range(2, 40)])  # row 1 keeps its values, and row 0 has those of the last that is assigned
    x, expected = xp.asarray(A) + 1.0, A + 1.0
    y = x * 3.0  # needs the values before the assignment, too
    x[rows] = xp.asarray(B) * 2.0
    expected[rows] = B * 2.0
    np.testing.assert_array_equal(x, expected)
    np.testing.assert_array_equal(y, (A + 1.0) * 3.0)


def test_a_chain_of_operations_has_the_memory_of_one_result():
    x = xp.asarray(np.ones((64, 1000)))
    chain = xp.sqrt((x + 1.0) * 2.0)
    tracemalloc.start()
    try:
        chain.block_until_ready()
        assert tracemalloc.get_traced_memory()[1] < 1.2 * x.nbytes
    finally:
        tracemalloc.stop()


BAD = {
    "shapes": (ValueError, lambda x: x + xp.ones((3, 5))),
    "matmul": (ValueError, lambda x: x @ xp.ones((3, 5))),
    "axis": (np.exceptions.AxisError, lambda x: xp.sum(x, axis=2)),
    "index": (IndexError, lambda x: x[41]),
    "reshape": (ValueError, lambda x: xp.reshape(x, (7, 7))),
    "square": (np.linalg.LinAlgError, lambda x: xp.linalg.inv(x[:3])),
    "concat": (ValueError, lambda x: xp.concat([x, x[:, :3]])),
    "integers": (OverflowError, lambda x: xp.asarray([1], dtype=xp.uint8) + 300),
    "negative power": (ValueError, lambda x: xp.asarray([1]) ** -1),
    "bits": (TypeError, lambda x: x & x),
    "cast": (TypeError, lambda x: x.__iadd__(1j)),
    "assigned": (ValueError, lambda x: x.__setitem__(0, xp.ones(3))),
}


@pytest.mark.parametrize("name", BAD)
def test_a_wrong_argument_raises_at_once_and_leaves_the_array(name):
    error, call = BAD[name]
    x = xp.asarray(A)
    with counted() as made, pytest.raises(error):
        call(x)
    assert made.moved["computed"] == 0
    np.testing.assert_array_equal(x, A)


def test_an_error_of_values_names_the_line_that_recorded_it_at_every_read():
    x = xp.zeros((3, 3))
    inverse = xp.linalg.inv(x)  # this line
    other, y = x + 1.0, xp.sum(inverse + 1.0)
    for _ in range(2):
        with pytest.raises(np.linalg.LinAlgError, match="Singular") as raised:
            float(y)
        (note,) = set(raised.value.__notes__)
        assert "test_array.py" in note and "inverse = xp.linalg.inv(x)  # this line" in note
    np.testing.assert_array_equal(other, np.ones((3, 3)))


def test_a_long_chain_is_computed_in_pieces_and_takes_no_recursion():
    x = xp.asarray(A[0])
    with counted() as made:
        for _ in range(3 * MOST_PENDING):
            x = x * 0.5 + 1.0
    assert made.moved["computed"] >= 4 * MOST_PENDING
    np.testing.assert_allclose(x, np.full(40, 2.0), rtol=4 * EPS)
    deep = xp.asarray(A[0])
    for _ in range(MOST_PENDING - 1):
        deep = deep + 1.0
    del deep  # unread
    gc.collect()


def test_copies_of_operands_do_not_pile_up(monkeypatch):
    before = GraphCounters.copied
    monkeypatch.setattr("trnpy.xp._graph.LARGEST_COPIES", before + 10 * A.nbytes)
    total = xp.asarray(0.0)
    for _ in range(100):
        total = total + xp.sum(xp.asarray(A.copy()))
        assert GraphCounters.copied <= before + 12 * A.nbytes
    np.testing.assert_allclose(float(total), 100 * A.sum(), rtol=1e4 * EPS)
    assert GraphCounters.copied == before


def test_threads_may_share_arrays():
    x = xp.asarray(A)
    y, found = xp.sum(xp.exp(x) @ x), []

    def read():
        found.append(float(y + xp.sum(x)))

    threads = [threading.Thread(target=read) for _ in range(8)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert len(found) == 8 and len(set(found)) == 1


def test_products_and_factorizations_go_where_those_of_trnpy_go():
    x = xp.asarray(A.astype("f4"))
    with trnpy.policy(device="simulator", force=True, fallback="raise"), trnpy.trace() as log:
        y = np.asarray(xp.linalg.solve(x + 40 * xp.eye(40, dtype=xp.float32), x @ x))
    assert [d.op for d in log] == ["numpy.matmul", "numpy.linalg.solve"]
    assert log[0].launches
    a = A.astype("f4")
    np.testing.assert_allclose(y, np.linalg.solve(a + 40 * np.eye(40, dtype="f4"), a @ a), rtol=1e-4, atol=1e-5)


NUMPYS = {
    "exp": lambda x: np.exp(x),
    "ndarray +": lambda x: A + x,
    "ndarray @": lambda x: A @ x,
    "scalar -": lambda x: np.float64(2.0) - x,
    "sum": lambda x: np.sum(x, axis=0),
    "sum of positional": lambda x: np.sum(x, 1),
    "mean": lambda x: np.mean(x, keepdims=True),
    "norm": lambda x: np.linalg.norm(x),
    "norms": lambda x: np.linalg.norm(x, axis=1),
    "einsum": lambda x: np.einsum("ij,jk->ik", x, x),
    "concatenate": lambda x: np.concatenate([x, x]),
    "eigvalsh": lambda x: np.linalg.eigvalsh(x + x.T),
    "eigh": lambda x: np.linalg.eigh(x + x.T)[0],
    "add.reduce": lambda x: np.add.reduce(x),
    "matmul": lambda x: np.matmul(x, A),
    "where": lambda x: np.where(x > 0, x, 0.0),
    "divmod": lambda x: np.divmod(x, 2.0)[1],
    "sort": lambda x: np.sort(x, axis=0),
    "clip": lambda x: np.clip(x, 0.0, 1.0),
    "percentile": lambda x: np.percentile(x, 30),
    "power": lambda x: x**2 + x**3 + 2**x,
    "power in place": lambda x: (x + 1.0) ** 2,
    "meshgrid": lambda x: np.meshgrid(x[0], x[1], x[2], indexing="ij")[2],
    "broadcast_arrays": lambda x: np.broadcast_arrays(x, x[0])[1],
    "take of a list": lambda x: np.take(x, [0, 2], 1),
    "where of a list": lambda x: np.where(x[0] > 0, [1.0] * 40, x),
    "repeat of a list": lambda x: np.repeat(x, [1, 2] * 20, axis=0),
    "clip of integers": lambda x: np.clip(x.astype(int), 0.5, 1.5),
    "linspace": lambda x: np.linspace(x[0], 2.0, 5),
    "tile": lambda x: np.tile(x, 2),
    "roll": lambda x: np.roll(x, [1, 2], axis=[0, 1]),
    "transpose of None": lambda x: np.transpose(x, None),
    "qr": lambda x: np.linalg.qr(x, "r"),
    "fft": lambda x: np.fft.fft(x),
}


@pytest.mark.parametrize("name", NUMPYS)
def test_numpys_functions_take_arrays_and_return_them(name):
    result, expected = NUMPYS[name](xp.asarray(A)), NUMPYS[name](A)
    assert isinstance(result, trnpy.Array)
    assert result.dtype == expected.dtype and result.shape == expected.shape
    np.testing.assert_allclose(np.asarray(result), expected, rtol=1e3 * EPS, atol=1e3 * EPS)


def test_numpys_functions_raise_numpys_errors():
    x = xp.asarray(A)
    for call in (lambda x: np.sum(x, 5), lambda x: np.stack([x, x], None), lambda x: np.take(x, 5000)):
        with pytest.raises(Exception) as theirs:
            call(A)
        with pytest.raises(type(theirs.value), match=f"^{re.escape(str(theirs.value))}$"):
            call(x)


def test_squares_have_numpys_bits_and_take_the_place_of_what_nobody_needs():
    with counted() as made:
        found = np.asarray((xp.asarray(A) + 1.0) ** 2)
    np.testing.assert_array_equal(found, (A + 1.0) ** 2)
    assert made.moved["reused"] == 2


def test_numpys_ufuncs_and_reductions_are_recorded():
    with counted() as made:
        np.sum(np.exp(xp.asarray(A)) * A, axis=1)
    assert made.moved["recorded"] == 3 and made.moved["computed"] == 0


def test_numpys_own_array_is_written_where_it_is_the_result():
    m = A.copy()
    m += xp.asarray(B)
    assert type(m) is np.ndarray
    np.testing.assert_array_equal(m, A + B)
    with pytest.raises(TypeError, match="out is an Array"):
        np.add(A, B, out=xp.asarray(A))


def test_python_protocols():
    x = xp.asarray([[1.0, 2.0], [3.0, 4.0]])
    assert len(x) == 2 and [float(r[1]) for r in x] == [2.0, 4.0] and 3.0 in x
    assert repr(x + 1) == "Array([[2., 3.],\n       [4., 5.]])"
    assert str(x[0]) == "[1. 2.]" and f"{x[0, 1]:.2f}" == "2.00"
    assert x.tolist() == [[1.0, 2.0], [3.0, 4.0]] and x[0, 0].item() == 1.0 and [7, 8][xp.asarray(1)] == 8
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(x * 2)), np.asarray(x) * 2)
    with pytest.raises(TypeError, match="unhashable"):
        hash(x)
    with pytest.raises(ValueError, match="ambiguous"):
        bool(x)
    with pytest.raises(TypeError, match=r"trnpy\.asarray"):
        trnpy.Array()
    assert x.to_device(x.device) is x and x.__array_namespace__() is xp
    with pytest.raises(ValueError, match="device 'cuda'"):
        x.to_device("cuda")
    with pytest.raises(ValueError, match="version '1999'"):
        x.__array_namespace__(api_version="1999")


def test_dlpack_goes_both_ways():
    x = xp.asarray(A) + 1.0
    np.testing.assert_array_equal(np.from_dlpack(x), A + 1.0)
    np.testing.assert_array_equal(xp.from_dlpack(A), A)
    assert x.__dlpack_device__() == (1, 0)


def test_scipys_functions_read_arrays():
    import scipy.linalg

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = scipy.linalg.expm(xp.asarray(A) / 40)
    np.testing.assert_allclose(found, scipy.linalg.expm(A / 40), rtol=1e3 * EPS)
