"""Products divided over several cores: right, launched on each, and priced as they run."""

import numpy as np
import pytest

import trnpy
from nkisim.hardware import TRN2
from trnpy._call.decisions import work_of
from trnpy._engine.engines import DeviceEngine, cores, current_engine, engine
from trnpy._engine.multicore import Cores, _even, fastest
from trnpy._nki.runtime import DeviceError
from trnpy._nki.simulated import SimulatorRuntime
from trnpy._settings.policy import Policy, from_environment

RNG = np.random.default_rng(5)
# Each launch computes a part of the result, and every shape is divided along another axis.
SHAPES = [
    ((300, 40), (40, 50)), ((40, 50), (50, 300)), ((5, 20, 30), (30, 40)), ((5, 20, 30), (5, 30, 40)),
    ((20, 30), (5, 30, 40)), ((1, 20, 30), (5, 30, 40)), ((3, 1, 20, 30), (2, 30, 40)), ((2, 30), (30, 2)),
]  # fmt: skip


def several(count=3):
    return Cores([DeviceEngine(SimulatorRuntime(TRN2)) for _ in range(count)])


def random(shape, dtype):
    a = RNG.standard_normal(shape)
    if np.dtype(dtype).kind == "c":
        return (a + 1j * RNG.standard_normal(shape)).astype(dtype)
    return (8 * a).astype(dtype)


@pytest.mark.parametrize("dtype", ["f4", "f8", "c8", "i4"])
@pytest.mark.parametrize("left, right", SHAPES, ids=str)
def test_parts_of_a_product_make_the_whole(left, right, dtype):
    e, (a, b) = several(), (random(left, dtype), random(right, dtype))
    with trnpy.policy(force=True):
        c = e.matmul(a, b)
    expected = np.matmul(a, b)
    assert c.dtype == expected.dtype and c.shape == expected.shape
    bound = 4 * left[-1] * np.finfo(dtype).eps * np.matmul(abs(a), abs(b)).max() if c.dtype.kind != "i" else 0
    np.testing.assert_allclose(c, expected, rtol=0, atol=bound)
    parts = len(_even(max(np.broadcast_shapes(left[:-2], right[:-2])[0] if len(left + right) > 4 else left[0], 1), 3))
    busy = sum(bool(one.counters.launches) for one in e.engines)
    assert busy == min(3, parts if len(left + right) > 4 else max(left[0], right[1]))
    assert e.counters.launches.total() == sum(one.counters.launches.total() for one in e.engines)


def test_alpha_beta_and_gram_are_those_of_one_engine():
    e, (a, b, c) = several(2), (random((130, 130), "f8") for _ in range(3))
    with trnpy.policy(force=True):
        np.testing.assert_allclose(e.matmul(a, b, alpha=2.0, beta=-1.0, c=c), 2 * a @ b - c, rtol=0, atol=1e-10)
        np.testing.assert_allclose(e.gram(a), a @ a.T, rtol=0, atol=1e-10)


def test_a_wrong_part_of_any_core_is_found():
    """A planted error in what the second core returns is a fault of the call, which the host then computes."""

    class Wrong(SimulatorRuntime):
        def run(self, name, *operands, **parameters):
            out = super().run(name, *operands, **parameters)
            if name == "matmul":
                out.value[3, 4] *= 1.5
            return out

    e = Cores([DeviceEngine(SimulatorRuntime(TRN2)), DeviceEngine(Wrong(TRN2))])
    a, b = random((200, 60), "f4"), random((60, 70), "f4")
    with engine(e), trnpy.policy(force=True, fallback="log"), trnpy.profile() as p:
        c = trnpy.matmul(a, b)
    np.testing.assert_array_equal(c, np.matmul(a, b))
    assert e.health.causes and not any(call.decision.on_device for call in p.calls)


def test_operands_kept_on_every_core_are_doubted_and_dropped_together():
    e = several(2)
    a, b = random((256, 256), "f4"), random((256, 64), "f4")
    with engine(e), trnpy.policy(force=True), trnpy.resident(a, b):
        for _ in range(2):
            trnpy.matmul(a, b)
        assert all(one.cache.nbytes and one.cache.hits for one in e.engines)
        hits = [one.cache.hits for one in e.engines]
        e.cache.doubt()
        trnpy.matmul(a, b)  # each core makes its operands anew, and compares
        assert [one.cache.hits for one in e.engines] == hits
        assert all(one.health is e.health for one in e.engines) and not e.health.causes
        e.cache.clear()
        assert not any(one.cache.nbytes for one in e.engines)


def test_an_error_of_one_core_is_the_errors_of_the_call_after_all_have_ended():
    class Broken(SimulatorRuntime):
        parallel = True

        def run(self, name, *operands, **parameters):
            raise DeviceError("core 1")

    class Slow(SimulatorRuntime):
        parallel = True

    e = Cores([DeviceEngine(Slow(TRN2)), DeviceEngine(Broken(TRN2))])
    a = random((200, 200), "f4")
    with trnpy.policy(force=True), pytest.raises(DeviceError, match="core 1"):
        e.matmul(a, a)
    assert e.engines[0].counters.launches["matmul"] == 1


def test_threads_see_the_policy_of_the_call():
    """In bfloat16, which the policy of the caller asks for, the error is 2^-9 and not 2^-24."""
    e = several(2)
    for one in e.engines:
        one.runtime.parallel = True
    a = random((200, 200), "f4")
    with trnpy.policy(force=True, precision="bf16"):
        c = e.matmul(a, a)
    error = np.abs(c - a.astype("f8") @ a).max() / (np.abs(a) @ np.abs(a)).max()
    assert 2.0**-14 < error < 2.0**-8


@pytest.mark.parametrize(
    "engine_s, each_s, join_s, most, count",
    [(1.0, 0.01, 0.0, 64, 8), (1.0, 0.01, 0.0, 5, 4), (1e-4, 1e-3, 0.0, 8, 1), (1.0, 0.01, 0.9, 8, 1)],
)
def test_the_number_of_cores_is_the_fastest(engine_s, each_s, join_s, most, count):
    assert fastest(engine_s, each_s, join_s, most) == count


def work(shape, dtype="f8"):
    a, b = (np.broadcast_to(np.zeros((), dtype), shape) for _ in range(2))  # no memory: only shapes are read
    return work_of(trnpy.matmul.__trnpy_op__.problem(False, a, b))


@pytest.mark.parametrize("shape", [(300, 300), (4, 30, 30)])
@pytest.mark.parametrize("dtype", ["f4", "f8"])
def test_the_model_counts_what_is_launched_on_all_cores(shape, dtype):
    """As without cores: launches equal, bytes too; products are those of the first core."""
    a, b = RNG.uniform(0.5, 1.0, (2, *shape)).astype(dtype)  # of one scale, as dry runs assume
    with trnpy.policy(device="simulator", force=True, cores=2):
        e = current_engine(trnpy.current_policy())
        before, sent = e.counters.launches.copy(), (e.counters.bytes_in, e.counters.bytes_out)
        trnpy.matmul(a, b)
        launched = e.counters.launches - before
        sent = e.counters.bytes_in - sent[0], e.counters.bytes_out - sent[1]
    tally = work(shape, dtype).tally(TRN2, Policy(device="simulator", force=True, cores=2))
    assert dict(tally.launches) == dict(launched) and (tally.bytes_in, tally.bytes_out) == sent and tally.cores == 2
    alone = work(shape, dtype).tally(TRN2, Policy(device="simulator", force=True))
    assert alone.cores == 1
    for (form, mine), (other, all_of_it) in zip(tally.products, alone.products, strict=True):
        assert form == other and mine <= all_of_it


def test_more_cores_are_modelled_faster_where_they_are_taken():
    seconds = {}
    for count in (1, 2, 8):
        with trnpy.policy(device="null", machine="trn2", cores=count):
            a = np.broadcast_to(np.float32(0), (4096, 64, 64))
            seconds[count] = trnpy.explain(trnpy.matmul, a, a).device_s
    assert seconds[8] <= seconds[2] <= seconds[1]
    tally = work((8192, 8192)).tally(TRN2, Policy(device="null", cores=8))
    alone = work((8192, 8192)).tally(TRN2, Policy(device="null"))
    assert 1 < tally.cores < 8  # each core needs the right operand: eight would wait for the link
    assert alone.bytes_in <= tally.bytes_in <= alone.bytes_in + (tally.cores - 1) * 8 * 8192**2
    assert dict(tally.products)["bfloat16"] == pytest.approx(dict(alone.products)["bfloat16"] / tally.cores, rel=0.1)


def test_the_policy_says_how_many():
    assert cores(Policy(device="null")) == cores(Policy(device="simulator")) == 1
    assert cores(Policy(device="null", cores=5)) == 5
    assert from_environment({"TRNPY_CORES": "4"}).cores == 4
    for text in ("-1", "2.5", "all"):
        with pytest.raises(ValueError, match=r"TRNPY_CORES.*expected an integer from 0 upward"):
            from_environment({"TRNPY_CORES": text})
    with pytest.raises(TypeError, match=r"cores=2\.0: expected an integer"):
        Policy(cores=2.0)
    with pytest.raises(ValueError, match="cores=-1: expected a number from 0 upward"):
        Policy(cores=-1)
    with trnpy.policy(device="simulator", cores=3):
        assert current_engine(trnpy.current_policy()).cores == 3


def test_a_small_product_stays_on_one_core():
    small = work((64, 64), "f4")
    assert small.tally(TRN2, Policy(device="null", cores=8)) == small.tally(TRN2, Policy(device="null"))
