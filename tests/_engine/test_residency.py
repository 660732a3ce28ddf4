"""Operands that stay on the device: found again, never stale, given back."""

import gc
import sys
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from doubles import RecordingEngine
from hypothesis import given, settings
from hypothesis import strategies as st

import trnpy
from nkisim.hardware import TRN2
from trnpy._call import dispatch
from trnpy._call.decisions import work_of
from trnpy._call.dispatch import decide
from trnpy._engine import residency
from trnpy._engine.engines import DeviceEngine, engine
from trnpy._engine.residency import MOST, SMALLEST, WIDTH, Cache, Reuse, fingerprint, pinned, place
from trnpy._nki.runtime import Buffer, DeviceMemory
from trnpy._nki.simulated import SimulatorRuntime
from trnpy._settings.host_rates import DEFAULT_CURVES, HostRates
from trnpy._settings.policy import Policy

RATES = HostRates(DEFAULT_CURVES, 1e10, False, "a test")
N = 160  # float32 of this order exceed SMALLEST


@pytest.fixture
def device():
    e = DeviceEngine(SimulatorRuntime(TRN2))
    with engine(e), trnpy.policy(force=True):
        yield e


def matrix(seed=0, shape=(N, N)):
    return np.random.default_rng(seed).standard_normal(shape).astype("f4")


def test_an_operand_is_kept_from_its_second_use_on(device):
    a, b = matrix(0), matrix(1, (N, 3))
    sent = []
    for _ in range(4):
        before = device.counters.bytes_in
        c = trnpy.matmul(a, b)
        sent.append(device.counters.bytes_in - before)
        np.testing.assert_allclose(c, a @ b, rtol=1e-3, atol=1e-3)
    assert sent[0] == sent[1] > sent[2] == sent[3] and device.cache.hits == 2


def test_a_resident_operand_is_sent_once(device):
    a, b = matrix(0), matrix(1, (N, 3))
    with trnpy.resident(a) as handle:
        trnpy.matmul(a, b)
        before = device.cache.nbytes
        trnpy.matmul(a, b)
        trnpy.matmul(b.T, a.T)  # the same memory, transposed
        assert (device.cache.misses, device.cache.hits) == (1, 2) and device.cache.nbytes == before >= a.nbytes
        assert "1 arrays" in repr(handle) and "open" in repr(handle)
    assert not pinned(place(a)) and "closed" in repr(handle)


def test_only_arrays_are_resident():
    with pytest.raises(TypeError, match="expected numpy arrays"):
        trnpy.resident([[1.0]])


CHANGES = {
    "one element": lambda a, i, j: a.__setitem__((i, j), a[i, j] + 1),
    "one bit": lambda a, i, j: a.view("u4").__setitem__((i, j), a.view("u4")[i, j] ^ 1),
    "a sign": lambda a, i, j: a.__setitem__((i, j), -a[i, j]),
    "all signs": lambda a, i, j: np.negative(a, out=a),
    "signs of two rows": lambda a, i, j: a.__setitem__([i, (i + 1 + j) % N], -a[[i, (i + 1 + j) % N]]),
    "swapped rows": lambda a, i, j: a.__setitem__([i, (i + 1 + j) % N], a[[(i + 1 + j) % N, i]]),
    "swapped columns": lambda a, i, j: CHANGES["swapped rows"](a.T, i, j),
    "rolled": lambda a, i, j: a.__setitem__(..., np.roll(a, i + 1)),
    "reversed": lambda a, i, j: a.__setitem__(..., a[::-1].copy()),
    "scaled": lambda a, i, j: np.multiply(a, 2, out=a),
}


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.tuples(st.sampled_from(sorted(CHANGES)), st.integers(0, N - 1), st.integers(0, N - 2)), max_size=4),
    st.booleans(),
)
def test_a_changed_array_is_never_served_stale(changes, through_a_view):
    """Whatever is done to an array or through a view of it, the next form is of what it holds then."""
    cache, a = Cache(), matrix()
    target = a.reshape(N * N).reshape(N, N) if through_a_view else a
    with trnpy.resident(a):
        for what, i, j in [("", 0, 0), *changes]:
            if what:
                CHANGES[what](target, i, j)
            for _ in range(2):
                form = cache.get(a, "copy", a.copy, lambda x: x.nbytes, 1e9)
                np.testing.assert_array_equal(form, a)
    assert cache.hits == len(changes) + 1


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 4 * WIDTH), st.integers(0, 7), st.integers(1, 2**64 - 1), st.data())
def test_a_changed_word_or_byte_changes_the_fingerprint(words, odd, change, data):
    a = np.frombuffer(np.random.default_rng(words).bytes(8 * words + odd), np.uint8).copy()
    before = fingerprint(a)
    at = data.draw(st.integers(0, words - 1))
    a[: 8 * words].view(np.uint64)[at] ^= np.uint64(change)
    assert fingerprint(a) != before
    a[: 8 * words].view(np.uint64)[at] ^= np.uint64(change)
    assert fingerprint(a) == before
    if odd:
        a[-1] ^= 1
        assert fingerprint(a) != before


BITS = (1, 2**31, 2**32, 2**63, 2**52, 2**63 + 2**31, 2**32 + 1, 2**64 - 1)


@settings(max_examples=200, deadline=None)
@given(st.integers(0, 5 * WIDTH - 1), st.integers(0, 5 * WIDTH - 1), st.sampled_from(BITS))
def test_two_changes_do_not_cancel(i, j, bit):
    """Sign bits in pairs, two of float32 in one word, are what sums modulo 2^64 are blind to unless they are mixed."""
    words = np.zeros(5 * WIDTH, np.uint64)
    before = fingerprint(words)
    words[i] ^= np.uint64(bit)
    words[j] ^= np.uint64(bit)
    assert (fingerprint(words) == before) == (i == j)


@pytest.mark.parametrize("dtype", ["f4", "f8", "F", "D", "f2", "i1"])
def test_signs_of_many_rows_do_not_cancel(dtype):
    rng = np.random.default_rng(0)
    a = (rng.standard_normal((400, 64)) * 50).astype(dtype)
    marks = {fingerprint(a)}
    for _ in range(300):
        rows = rng.choice(400, rng.integers(1, 9), replace=False)
        a[rows] = -a[rows]
        marks.add(fingerprint(a))
    assert len(marks) == 301


def test_the_pattern_that_fools_plain_sums_of_sums():
    """Rows p q q p and q p p q have the same sum and the same sum of partial sums."""
    p, q = matrix(0, (2 * WIDTH,)).view(np.uint64), matrix(1, (2 * WIDTH,)).view(np.uint64)
    assert fingerprint(np.stack([p, q, q, p])) != fingerprint(np.stack([q, p, p, q]))


@pytest.mark.parametrize("layout", ["C", "F", "strided"])
def test_fingerprints_of_every_layout(layout):
    a = {"C": matrix(), "F": np.asfortranarray(matrix()), "strided": matrix(shape=(N, 2 * N))[:, ::2]}[layout]
    before = fingerprint(a)
    assert fingerprint(a.copy(order="K")) == before
    a[3, 5] += 1
    assert fingerprint(a) != before


def test_freed_arrays_are_dropped(device):
    a, b = matrix(0), matrix(1, (N, 3))
    for _ in range(2):
        trnpy.matmul(a[:, :], b)  # a view's entry lives as long as the memory
    assert device.cache.nbytes > 0
    used = device.runtime.memory.used
    del a
    gc.collect()
    assert device.cache.nbytes == 0 and device.runtime.memory.used < used


def test_buffers_of_threads_are_all_counted_and_all_given_back():
    """One thread counts what is held while others take and free: a set would change its size under it."""
    memory, interval = DeviceMemory(1 << 40), sys.getswitchinterval()

    def take():
        for _ in range(2000):
            held = [memory.hold(Buffer(None, (8,), np.dtype("f8")), "test") for _ in range(5)]
            assert memory.used >= 64 * len(held)

    sys.setswitchinterval(1e-6)
    try:
        with ThreadPoolExecutor(3) as pool:
            for done in [pool.submit(take) for _ in range(3)]:
                done.result()
    finally:
        sys.setswitchinterval(interval)
    gc.collect()
    assert memory.used == 0


def test_arrays_that_nobody_can_write_to_are_not_compared(device, monkeypatch):
    a, b = matrix(0), matrix(1, (N, 3))
    a.flags.writeable = False
    frozen = np.frombuffer(matrix(2).tobytes(), "f4").reshape(N, N)  # a view of bytes
    compared = []
    monkeypatch.setattr(residency, "fingerprint", lambda x: compared.append(x) or fingerprint(x))
    for x in (a, a[:, ::-1][:, ::-1], frozen):
        for _ in range(3):
            np.testing.assert_allclose(trnpy.matmul(x, b), x @ b, rtol=1e-3, atol=1e-3)
    assert device.cache.hits >= 3 and not any(np.shares_memory(x, y) for x in (a, frozen) for y in compared)
    hits = device.cache.hits
    a.flags.writeable = True  # from now on it is
    a[:] = matrix(5)
    np.testing.assert_allclose(trnpy.matmul(a, b), a @ b, rtol=1e-3, atol=1e-3)
    assert device.cache.hits == hits and compared


def test_a_read_only_view_of_what_others_can_write_to_is_compared(device):
    a, b = matrix(0), matrix(1, (N, 3))
    locked = a.view()
    locked.flags.writeable = False
    for _ in range(3):
        trnpy.matmul(locked, b)
    a[:] = matrix(5)  # through the writeable one
    np.testing.assert_allclose(trnpy.matmul(locked, b), a @ b, rtol=1e-3, atol=1e-3)
    assert device.cache.changed == 1


def test_what_was_written_while_it_was_copied_is_not_kept():
    """Another thread writes before the copy and undoes it after: the array is as it was, what was copied is not."""
    cache, a = Cache(), matrix()

    def get(make):
        return cache.get(a, "form", make, lambda value: value.nbytes, 2**30)

    def copied_after_a_write():
        a[3, 5] += 1
        return a.copy()

    with trnpy.resident(a):
        before = a.copy()
        get(copied_after_a_write)
        a[...] = before
        np.testing.assert_array_equal(get(a.copy), a)


def test_the_least_recently_used_is_evicted_and_resident_ones_last():
    cache, arrays = Cache(), [matrix(i) for i in range(4)]
    limit = 2.5 * arrays[0].nbytes

    def use(a):
        return cache.get(a, "", a.copy, lambda x: x.nbytes, limit)

    with trnpy.resident(arrays[0]):
        for a in arrays:
            use(a), use(a)
            assert cache.nbytes <= limit
        hits = cache.hits
        use(arrays[0])
        assert cache.hits == hits + 1 and cache.evicted == 2


def test_a_form_larger_than_the_budget_is_not_kept():
    cache, a = Cache(), matrix()
    for _ in range(3):
        cache.get(a, "", a.copy, lambda x: x.nbytes, a.nbytes - 1)
    assert cache.nbytes == cache.hits == 0


def test_places_that_were_only_seen_are_bounded():
    cache, a = Cache(), np.zeros(SMALLEST // 8 + 3 * MOST)
    kept = matrix()
    with trnpy.resident(kept):
        cache.get(kept, "", kept.copy, lambda x: x.nbytes, 1e9)
    for i in range(3 * MOST):
        cache.get(a[i : i + SMALLEST // 8], "", lambda: None, lambda x: 0, 1e9)
    assert len(cache._entries) <= MOST + 1 and cache.nbytes == kept.nbytes


def test_small_arrays_are_not_looked_at():
    cache, a = Cache(), np.ones(SMALLEST // 8 - 1)
    for _ in range(3):
        cache.get(a, "", a.copy, lambda x: x.nbytes, 1e9)
    assert cache.hits == cache.misses == 0


def test_a_kept_operand_is_neither_sent_nor_split_but_compared():
    a, b = np.empty((2, 2000, 2000))
    problem = trnpy.matmul.__trnpy_op__.prepare(a, b)
    work = work_of(problem)
    cold, kept, frozen = (work._replace(kept=k).tally(TRN2, Policy()) for k in ((), ((0, False),), ((0, True),)))
    assert kept.bytes_in < cold.bytes_in - 0.9 * a.nbytes and kept.launched < cold.launched
    compared = {key: n for key, n in kept.host if key[0] == "fingerprint"}
    assert sum(compared.values()) >= a.nbytes and "fingerprint" not in [key[0] for key, _ in frozen.host]
    decisions = [
        decide("f", problem, TRN2, Policy(), RATES, 0.0, reuse, work) for reuse in (Reuse(), Reuse(((0, False),)))
    ]
    assert decisions[0].device_s > decisions[1].device_s and decisions[0].host_s == decisions[1].host_s
    seen = decide("f", problem, TRN2, Policy(), RATES, 0.0, Reuse((), ((0, False),), 3), work)
    assert decisions[0].on_device and seen == decisions[0]  # a single call is faster already


def test_decisions_see_what_is_resident():
    a = matrix(shape=(1500, 1500)).astype(np.float64)  # float32 is sent sooner than compared
    with trnpy.policy(device="null"):
        before = trnpy.explain(trnpy.matmul, a, a).device_s
        with trnpy.resident(a):
            assert trnpy.explain(trnpy.matmul, a, a).device_s < before
            assert trnpy.explain(trnpy.matmul, a[:1000], a).device_s < before
        assert trnpy.explain(trnpy.matmul, a, a).device_s == before


@pytest.mark.parametrize("dtype, cold, kept", [("f4", 1, 1), ("F", 4, 4), ("d", 4, 2), ("D", 12, 8), ("i8", 3, 1)])
def test_decisions_count_the_launches_that_a_product_takes(device, dtype, cold, kept):
    """Conversions are for operands whose digits are not there yet."""
    a = (100 * (1 + np.random.default_rng(0).random((160, 160)))).astype(dtype)
    if dtype in "FD":
        a = a * np.array(1 + 1j, dtype)
    b = a[::-1].copy()
    op = trnpy.matmul.__trnpy_op__
    work = work_of(op.prepare(a, b))
    assert work.tally(device.hardware, Policy()).launched == cold
    with trnpy.resident(a, b):
        taken = []
        for _ in range(2):
            before = device.counters.launches.total()
            device.matmul(a, b)
            taken.append(device.counters.launches.total() - before)
    assert taken == [cold, kept]
    in_fp32 = 4 if dtype in "FD" else cold if dtype == "i8" else 1
    assert work.tally(device.hardware, Policy(precision="fp32")).launched == in_fp32


# --- Operands of calls that the host computed -------------------------------------------------------------------------


class Keeping(RecordingEngine):
    """Computes on the host, and keeps operands as a device does."""

    def answer(self, a, b):
        for x in (a, b):
            self.cache.get(x, "form", x.view, lambda value: value.nbytes, 1e12)
        return a @ b


def frozen(*shape):
    a = np.zeros(shape)
    a.flags.writeable = False  # a fingerprint would cost more than a product of few columns gains
    return a


@pytest.fixture
def loop(monkeypatch):
    """Calls matmul and returns the decisions."""
    monkeypatch.setattr(dispatch, "current_rates", lambda: RATES)

    def run(pairs, before=lambda *_: None):
        with engine(Keeping()) as e, trnpy.policy(force=False), trnpy.trace() as decisions:
            for a, b in pairs:
                before(a, b)
                trnpy.matmul(a, b)
        return decisions, e.cache

    return run


def test_a_loop_over_one_matrix_moves_to_the_device_at_its_third_call(loop):
    """By then two calls were the host's: as many more pay for sending it."""
    a = frozen(3000, 3000)
    peeks = []
    decisions, cache = loop(
        [(a, np.zeros((3000, 90))) for _ in range(5)],
        lambda a, b: peeks.extend(trnpy.explain(trnpy.matmul, a, b) for _ in range(3)),  # no use
    )
    assert [d.on_device for d in decisions] == [False, False, True, True, True]
    assert "operands of 2 earlier calls stay there for as many more" in decisions[2].detail
    assert peeks[6].detail == decisions[2].detail and peeks[6].on_device
    assert decisions[0].device_s > decisions[0].host_s > 1.2 * decisions[2].device_s > 1.2 * decisions[4].device_s
    assert cache.hits == 2  # kept at its first use on the device


def test_comparing_the_matrix_counts(loop):
    """A matrix that may be written to is compared in every call: here that takes what staying gains."""
    a = np.zeros((3000, 3000))
    decisions, _ = loop([(a, np.zeros((3000, 60))) for _ in range(5)])
    assert not any(d.on_device for d in decisions)


def test_temporaries_stay_on_the_host(loop):
    decisions, cache = loop((frozen(3000, 3000), np.zeros((3000, 120))) for _ in range(5))
    gc.collect()
    assert not any(d.on_device for d in decisions) and cache.reuse([frozen(3000, 3000)]) == Reuse()
    assert len(cache._uses) <= 1


def test_small_calls_are_not_remembered(loop):
    decisions, cache = loop([(np.zeros((200, 200)), np.zeros((200, 200)))] * 3)
    assert {d.reason for d in decisions} == {trnpy.Reason.SMALL} and not cache._uses


def test_uses_are_counted_by_array_and_end_with_it():
    cache, a, b = Cache(), matrix(), matrix(1)
    for _ in range(3):
        cache.computed_by_host([a, a.T, np.ones(3)])
    cache.computed_by_host([b])
    assert cache.reuse([a]) == cache.reuse([a.T, b]) == Reuse((), ((0, False),), 3)
    assert cache.reuse([a[: N // 2], matrix(2)]) == Reuse()
    del a, b
    gc.collect()
    cache.computed_by_host([])
    assert not cache._uses


def test_an_array_whose_contents_change_between_uses_is_no_candidate():
    cache, a = Cache(), matrix()
    cache.computed_by_host([a])
    for _ in range(2):
        cache.get(a, "form", a.copy, lambda x: x.nbytes, 1e9)
        a += 1
    assert cache.changed == 1 and cache.reuse([a]) == Reuse()
    cache.computed_by_host([a])
    assert cache.reuse([a]) == Reuse()


def test_uses_are_bounded():
    cache, a = Cache(), np.zeros(SMALLEST // 8 + 3 * MOST)
    for i in range(3 * MOST):
        cache.computed_by_host([a[i : i + SMALLEST // 8]])
    assert len(cache._uses) <= MOST + 1


def test_threads_count_every_use():
    cache, arrays = Cache(), [matrix(i) for i in range(3)]

    def use():
        for i in range(300):
            cache.computed_by_host(arrays)
            cache.reuse([arrays[i % 3], matrix(9, (N, N))])

    with ThreadPoolExecutor(3) as pool:
        for done in [pool.submit(use) for _ in range(3)]:
            done.result()
    assert cache.reuse(arrays) == Reuse((), tuple((i, False) for i in range(3)), 900)


def test_the_forms_of_an_array_are_those_on_the_device():
    cache, a = Cache(), matrix()
    for _ in range(2):
        cache.get(a, ("digits", 7), a.copy, lambda x: x.nbytes, 1e9)
    assert cache.forms(a) == {("digits", 7)} and cache.forms(matrix(2)) == set()
