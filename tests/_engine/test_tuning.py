"""Findings about kernels: a stored choice is compiled, a wrong one is not; compiling counts until it is done."""

import json
import os

import numpy as np
import pytest

import trnpy
from nkisim.hardware import TRN1, TRN2
from nkisim.run.launch import Specification, run
from trnpy._base import store
from trnpy._call import dispatch
from trnpy._call.dispatch import Reason
from trnpy._cli import doctor, timings
from trnpy._engine import tuning
from trnpy._engine.engines import DeviceEngine, engine
from trnpy._engine.tuning import Choice, Compiles, Tuning, octaves
from trnpy._nki.device import compile_cache, torch_devices
from trnpy._nki.kernels.shared.parameters import for_bounds, for_digits, for_numbers
from trnpy._nki.runtime import DeviceUnavailable
from trnpy._nki.simulated import SimulatorRuntime, kernel
from trnpy._settings.host_rates import KINDS, HostRates
from trnpy._settings.policy import Policy

CUBE = (128, 128, 128)
# kernel and form as stored, its name, tiles that are not the default, and the parameters that a launch of them has
CHOICES = [
    ("matmul turned", "float32", "matmul", (4, 1, 2), {"m_tiles": 4, "n_tiles": 1, "k_tiles": 2}),
    ("syrk", "float32", "syrk", (4, 1, 2), {"tiles": 4, "k_tiles": 2}),
    ("abs_bound", "bfloat16", "abs_bound", (2, 1, 4), {"m_tiles": 2, "n_tiles": 1, "k_tiles": 4}),
    ("float64_matmul", "7 digits", "float64_matmul", (1, 1, 2), {"m_tiles": 1, "k_tiles": 2}),
    ("float64_matmul halved", "7 digits", "float64_matmul", (2, 1, 2), {"m_tiles": 2, "k_tiles": 2, "halved": True}),
    ("float64_matmul wrap", "8 digits", "float64_matmul", (2, 1, 4), {"m_tiles": 2, "k_tiles": 4, "wrap": True}),
]


def stored(*choices, machine="trn2"):
    tuning.save(Tuning(tuple(choices)), "simulator", machine)


def choice(name, form, tiles, bucket=CUBE):
    return Choice(name, form, bucket, tiles, 1e-5, False)


def launched(name):
    """The parameters of every variant of a kernel that products of all dtypes compile in a new process."""
    e = DeviceEngine(SimulatorRuntime(TRN2))
    rng = np.random.default_rng(0)
    for a in (
        rng.standard_normal((90, 80)),
        rng.standard_normal((90, 80)).astype("f4"),
        np.arange(7200).reshape(90, 80),
    ):
        e.matmul(a, a.T)
        e.gram(a)
    return [dict(variant[2]) for variant in e.counters.variants if variant[0] == name]


@pytest.mark.parametrize("stored_as, form, name, tiles, parameters", CHOICES, ids=lambda x: str(x))
def test_a_stored_choice_is_what_is_compiled(stored_as, form, name, tiles, parameters):
    assert not any(parameters.items() <= found.items() for found in launched(name))
    stored(choice(stored_as, form, tiles))
    assert any(parameters.items() <= found.items() for found in launched(name))


def test_a_choice_for_bfloat16_serves_float16():
    stored(choice("matmul turned", "bfloat16", (2, 1, 4)))
    e = DeviceEngine(SimulatorRuntime(TRN2))
    e.matmul(np.ones((90, 80), "f2"), np.ones((80, 90), "f2"))
    assert [dict(v[2])["m_tiles"] for v in e.counters.variants] == [2]


@pytest.mark.parametrize("machine, k_tiles", [(TRN1, 2), (TRN2, 4)], ids=["trn1", "trn2"])
def test_chunks_of_k_are_short_on_trn1_where_no_operand_is_turned(machine, k_tiles):
    """Transfers then write a panel of A, too; the choices of ``calibrate --kernels`` keep to the same."""
    e, a = DeviceEngine(SimulatorRuntime(machine)), np.ones((90, 80), "f4")
    e.matmul(a.T, a)
    e.matmul(a, a.T)
    chosen = [dict(options) for _, _, options in e.counters.variants]
    assert {tiles["a_rows"]: tiles["k_tiles"] for tiles in chosen} == {False: k_tiles, True: 4}
    (case,) = [c for c in timings.cases(machine) if (c.kernel, c.form, c.extents) == ("matmul", "float32", (4096,) * 3)]
    assert case.default.k_tiles == k_tiles
    assert case.default.tiles in case.tilings
    assert ((8, 2, 4) in case.tilings) is (machine is TRN2)


@pytest.mark.parametrize(
    "name, form, bucket, machine",
    [
        ("matmul turned", "bfloat16", CUBE, "trn2"),
        ("matmul turned", "float32", (256, 128, 128), "trn2"),
        ("matmul", "float32", CUBE, "trn2"),
        ("syrk", "float32", CUBE, "trn2"),
        ("matmul turned", "float32", CUBE, "trn1"),
    ],
)
def test_a_choice_for_something_else_is_not_used(name, form, bucket, machine):
    stored(choice(name, form, (4, 1, 2), bucket), machine=machine)
    assert {tuple(f[t] for t in ("m_tiles", "n_tiles", "k_tiles")) for f in launched("matmul")} == {
        for_numbers(4).tiles
    }


def test_the_key_of_kernels_does_not_depend_on_the_order_of_their_files(monkeypatch):
    class Folder:
        def rglob(self, pattern):
            return sorted(folder.rglob(pattern), reverse=True)

    folder, key = tuning.kernels.FOLDER, tuning.key.__wrapped__
    expected = key("simulator")
    monkeypatch.setattr(tuning.kernels, "FOLDER", Folder())
    assert key("simulator") == expected


def edited(change):
    file = tuning.path("simulator", "trn2")
    framed = json.loads(file.read_text())
    change(framed["content"])
    store.write(file, framed["content"], framed["content"].pop("key", framed["key"]))


STALE = {
    "other kernels": (lambda c: c.update(key="kernels 0123456789ab"), "is for kernels 0123456789ab, not kernels"),
    "no choices": (lambda c: c.pop("choices"), "KeyError"),
    "unknown tiles": (lambda c: c["choices"][0].update(tiles=[99, 1, 1]), r"tiles \(99, 1, 1\)"),
    "no time": (lambda c: c["choices"][0].update(seconds=float("nan")), "nan s"),
    "other shape": (lambda c: c.update(choices={"matmul": 3}), "TypeError"),
    "no truth": (lambda c: c["choices"][0].update(measured="no"), "measured is 'no'"),
}


@pytest.mark.parametrize("name", STALE)
def test_what_is_stale_or_damaged_is_ignored_for_a_stated_reason(name, capsys):
    change, says = STALE[name]
    stored(choice("matmul turned", "float32", (4, 1, 2)))
    edited(change)
    with pytest.raises(AssertionError, match=says):
        raise AssertionError(tuning.load("simulator", "trn2").ignored)
    assert all(found["m_tiles"] == 8 and found["n_tiles"] == 2 for found in launched("matmul"))
    assert doctor.doctor([]) == 0
    assert "ignored: " in capsys.readouterr().out
    stored(choice("matmul", "float32", (4, 1, 2)))  # replaces what was there
    assert len(tuning.load("simulator", "trn2").choices) == 1


@pytest.mark.parametrize("text", ["", "{", "[]", "null", "\x00"])
def test_a_file_that_is_no_file_of_ours_is_ignored(text):
    stored(choice("matmul", "float32", (4, 1, 2)))
    tuning.path("simulator", "trn2").write_text(text)
    assert "is not what trnpy writes" in tuning.load("simulator", "trn2").ignored


def test_a_file_is_written_whole_or_not_at_all():
    stored(choice("matmul", "float32", (4, 1, 2)))
    file = tuning.path("simulator", "trn2")
    before = file.read_text()
    with pytest.raises(TypeError):
        store.write(file, {"choices": [object()]}, "key")
    assert file.read_text() == before and os.listdir(file.parent) == [file.name]


def test_choices_are_added_to_and_replaced():
    stored(choice("matmul", "float32", (4, 1, 2)), choice("syrk", "float32", (4, 1, 2)))
    stored(choice("matmul", "float32", (2, 1, 2)), choice("matmul", "bfloat16", (2, 1, 4)))
    found = tuning.load("simulator", "trn2").tiles
    assert len(found) == 3 and found["matmul", "float32", CUBE] == (2, 1, 2)


@pytest.mark.parametrize("extents, bucket", [((1, 128, 129), (128, 128, 256)), ((5000, 8192, 700), (8192, 8192, 1024))])
def test_buckets_of_choices_are_octaves(extents, bucket):
    assert octaves(extents) == bucket


# --- compiling --------------------------------------------------------------------------------------------------------


class Compiling(SimulatorRuntime):
    """A simulator of a device on which new shapes take time, which it states."""

    name = "neuron"
    compiles = True

    def run(self, name, /, *operands, **parameters):
        before = sum(self.counters.compiles.values())
        result = super().run(name, *operands, **parameters)
        if sum(self.counters.compiles.values()) > before:
            self.counters.compile_s[name] = 7.0
        return result


SLOW = HostRates(dict.fromkeys(KINDS, ((32.0, 2e7),)), 1e9, True, "a slow host")  # 0.4 s for 160^3
A = np.random.default_rng(0).standard_normal((160, 160)).astype("f4")


@pytest.fixture
def slow_host(monkeypatch):
    monkeypatch.setattr(dispatch, "current_rates", lambda: SLOW)
    monkeypatch.setenv("NEURON_COMPILE_CACHE_URL", "s3://somewhere")


def test_compiling_keeps_a_call_on_the_host_until_waiting_has_cost_as_much(slow_host):
    e = DeviceEngine(Compiling(TRN2))
    estimate = e.compiles.seconds("numpy.matmul", (A, A), A.dtype, "matched")
    with engine(e), trnpy.trace() as log:
        for _ in range(200):
            np.testing.assert_allclose(trnpy.matmul(A, A), A @ A, rtol=1e-4, atol=1e-4)
            if log[-1].on_device:
                break
        waited = log[:-1]
        assert {d.reason for d in waited} == {Reason.NOT_COMPILED} and log[-1].reason is Reason.FASTER
        assert "compiling this shape takes" in waited[0].detail
        assert estimate - 2 * waited[0].gain_s <= sum(d.gain_s for d in waited) <= estimate
        assert trnpy.explain(trnpy.matmul, A, A).reason is Reason.FASTER
        other = trnpy.explain(trnpy.matmul, A[:, :100], A[:100])  # other shapes: 7 seconds, as matmul took
        assert other.reason is Reason.NOT_COMPILED and "takes 7 s" in other.detail
    with engine(DeviceEngine(Compiling(TRN2))):  # a new process knows what the compiler's cache holds
        assert trnpy.explain(trnpy.matmul, A, A).reason is Reason.FASTER


def test_a_result_is_not_lost_where_nothing_can_be_kept(slow_host, monkeypatch):
    e = DeviceEngine(Compiling(TRN2))
    monkeypatch.setenv("XDG_CACHE_HOME", "/dev/null")
    with engine(e), trnpy.policy(force=True), trnpy.trace() as log:
        np.testing.assert_allclose(trnpy.matmul(A, A), A @ A, rtol=1e-4, atol=1e-4)
    assert log[0].on_device


def test_what_another_compile_cache_holds_does_not_count(slow_host, monkeypatch):
    with engine(DeviceEngine(Compiling(TRN2))), trnpy.policy(force=True):
        trnpy.matmul(A, A)
    for place in ("s3://elsewhere", "/no/such/folder"):
        monkeypatch.setenv("NEURON_COMPILE_CACHE_URL", place)
        with engine(DeviceEngine(Compiling(TRN2))):
            assert trnpy.explain(trnpy.matmul, A, A).reason is Reason.NOT_COMPILED
    monkeypatch.delenv("NEURON_COMPILE_CACHE_URL")
    assert compile_cache().startswith(str(store.folder()))


def test_nothing_is_compiled_where_nothing_runs(slow_host):
    for e in (DeviceEngine(SimulatorRuntime(TRN2)), trnpy._engine.engines.HostEngine()):
        assert e.compiles.seconds("numpy.matmul", (A, A), A.dtype, "matched") == 0
        with engine(e):
            assert trnpy.explain(trnpy.matmul, A, A).reason is not Reason.NOT_COMPILED
    with trnpy.policy(device="null"):
        assert trnpy.explain(trnpy.matmul, A, A).reason is Reason.FASTER


@pytest.mark.parametrize("dtype, precision, kernels", [
    ("f4", "matched", ("matmul",)), ("f8", "fp32", ("matmul",)), ("c16", "bf16", ("matmul",)),
    ("f8", "matched", ("float64_digits", "float64_digits", "abs_bound", "float64_matmul")),
    ("i8", "fp32", ("digits_split", "digits_split", "float64_matmul")),
])  # fmt: skip
def test_each_dtype_compiles_its_own_kernels(dtype, precision, kernels):
    runtime = Compiling(TRN2)
    a = (np.ones((80, 60)) * 3).astype(dtype)
    with trnpy.policy(precision=precision):
        DeviceEngine(runtime).matmul(a, a.T)
    assert sum(runtime.counters.compiles.values()) >= len(set(kernels))
    assert set(runtime.counters.compiles) == set(kernels)
    times = {kernel: float(1 + i) for i, kernel in enumerate(tuning.INSTRUCTIONS)}
    found = Compiles(runtime, Tuning(compile_s=times)).seconds("numpy.matmul", (a,), a.dtype, precision)
    assert found == sum(times[kernel] for kernel in kernels)


def test_first_estimates_rest_on_what_kernels_compile_to():
    digits, magnitudes = (
        (Specification((7, 1024, 1024), "bfloat16"),) * 2,
        (Specification((1024, 1024), "bfloat16"),) * 2,
    )
    traced = {
        "matmul": (magnitudes, for_numbers(2).of_numbers()),
        "abs_bound": (magnitudes, for_bounds().of_numbers()),
        "float64_matmul": (digits, for_digits(7, TRN2).of_digits()),
        "digits_split": (
            (Specification((1024, 8192), np.uint8),), {"width": 8, "places": tuple(range(7)), "turned": True},
        ),
        "float64_digits": ((Specification((1024, 2048), np.int32),), {"by_rows": True}),
    }  # fmt: skip
    assert set(traced) == set(tuning.INSTRUCTIONS)
    for name, (operands, keywords) in traced.items():
        count = len(run(kernel(name), operands, keywords, mode="trace").trace.instructions)
        print(f"{name}: {count} instructions, {tuning.INSTRUCTIONS[name]} assumed")
        assert 0.5 <= count / tuning.INSTRUCTIONS[name] <= 2


# --- choosing ---------------------------------------------------------------------------------------------------------


def case(kernel, extents):
    return next(c for c in timings.cases(TRN2) if c.kernel == kernel and c.extents == extents)


def test_logical_cores_of_two_are_refused_by_name(monkeypatch):
    """Kernels are launched on one physical core, and the runtime must have as many: torch is not even imported."""
    monkeypatch.setenv("NEURON_LOGICAL_NC_CONFIG", "2")
    with pytest.raises(DeviceUnavailable, match=r"^NEURON_LOGICAL_NC_CONFIG=2: .* physical core each: set it to 1$"):
        torch_devices()


def test_a_forced_call_compiles_at_once(slow_host):
    with engine(DeviceEngine(Compiling(TRN2))), trnpy.trace() as log, trnpy.policy(force=True):
        trnpy.matmul(A, A)
    assert log[0].reason is Reason.FORCED and Policy().force is False
