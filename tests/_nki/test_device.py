"""The device runtime without a device: torch tensors on the CPU, kernels by the simulator, behind the same code."""

import os
import re
import subprocess
import sys
import threading
import types

import numpy as np
import pytest

import trnpy
from nkisim.hardware import MACHINES, TRN1, TRN2
from nkisim.run.launch import Simulation
from trnpy._base import ranks_env
from trnpy._call.dispatch import Reason
from trnpy._cli import doctor, timings
from trnpy._engine import engines, tuning
from trnpy._engine.engines import DeviceEngine, engine
from trnpy._engine.multicore import Cores
from trnpy._nki import device
from trnpy._nki.device import (
    NeuronRuntime,
    TorchDevice,
    instance_machine,
    nki_kernel,
    own_core,
    pinned_flags,
    torch_devices,
)
from trnpy._nki.guarded import typed
from trnpy._nki.runtime import Buffer, CompileError, DeviceError, DeviceMemoryError, DeviceTimeout, DeviceUnavailable
from trnpy._nki.simulated import kernel

torch = pytest.importorskip("torch", reason="torch is not installed: it is what moves arrays to a Neuron device")
ml_dtypes = pytest.importorskip("ml_dtypes", reason="ml_dtypes is not installed: the simulator needs it")


def array(tensor):
    """What the simulator computes on."""
    if tensor is None:
        return None
    if tensor.dtype == torch.bfloat16:
        return tensor.view(torch.int16).numpy().view(ml_dtypes.bfloat16)
    return tensor.numpy()


def simulated(name):
    def launch(*tensors, **parameters):
        outputs = Simulation(kernel(name), "trn2")(*[array(t) for t in tensors], **parameters)
        return torch.from_numpy(outputs)

    return launch


synchronised = []
CPU = TorchDevice(torch.device("cpu"), lambda: synchronised.append(1))


def runtime(kernel=simulated, limit=30.0):
    return NeuronRuntime(TRN2, CPU, lambda: limit, kernel)


@pytest.mark.parametrize("dtype", ["f4", "f2", ml_dtypes.bfloat16, "i4", "i1", "u1"], ids=str)
def test_arrays_come_back_as_they_went(dtype):
    r = runtime()
    a = np.arange(-6, 6).reshape(3, 4).astype(dtype)
    buffer = r.put(a)
    a_before = a.copy()
    a[:] = 0  # a copy was sent
    back = r.get(buffer)
    np.testing.assert_array_equal(back, a_before)
    assert back.dtype == a.dtype and back.flags.writeable
    part = r.part(buffer, slice(1, 3), slice(0, 2), (4, 3))
    assert part.dtype == a.dtype
    np.testing.assert_array_equal(r.get(part)[:2, :2], a_before[1:3, :2])
    assert not r.get(part)[2:].any() and not r.get(part)[:, 2:].any()
    assert r.counters.bytes_in == a.nbytes and r.counters.bytes_out == a.nbytes + 3 * part.nbytes
    square = r.get(r.part(buffer, slice(0, 2), slice(0, 2), (5, 5), unit=True))
    np.testing.assert_array_equal(np.diagonal(square)[2:].astype(float), 1)
    assert np.count_nonzero(square[2:]) == 3 and not square[:2, 2:].any()


class Elsewhere:
    """A tensor in another memory: its copy on the host is a new tensor."""

    def __init__(self, tensor):
        self.copied = tensor

    def cpu(self):
        return self.copied


@pytest.mark.parametrize("dtype", ["f4", ml_dtypes.bfloat16], ids=str)
def test_a_fetched_array_is_copied_once_and_is_the_callers(dtype):
    """Torch's copy on the host is the result; on the host's processor there is none, so the array is copied."""
    r, a = runtime(), np.arange(12).reshape(3, 4).astype(dtype)
    buffer = r.put(a)
    r.get(buffer)[:] = 0
    np.testing.assert_array_equal(r.get(buffer), a)
    tensor = buffer.value.clone()
    found = r.get(Buffer(Elsewhere(tensor), a.shape, a.dtype))
    np.testing.assert_array_equal(found, a)
    assert (
        found.dtype == a.dtype and found.flags.writeable and found.__array_interface__["data"][0] == tensor.data_ptr()
    )


def test_launches_are_synchronised_timed_and_counted():
    r = runtime()
    a = np.random.default_rng(0).standard_normal((40, 30)).astype("f4")
    synchronised.clear()
    for _ in range(2):
        np.testing.assert_allclose(r.launch("matmul", a, a, b_rows=False), a @ a.T, rtol=1e-4, atol=1e-4)
    assert len(synchronised) >= 2 and r.counters.launches == {"matmul": 2} and r.counters.compiles == {"matmul": 1}
    assert r.counters.seconds["matmul"] > 0
    assert r.memory.used == 0  # nothing outlives its last reference


@pytest.mark.parametrize("dtype, precision", [("f4", "matched"), ("F", "matched"), ("f8", "fp32"), ("f8", "bf16")])
def test_the_engine_runs_on_it_as_on_the_simulator(dtype, precision):
    a = np.random.default_rng(0).standard_normal((90, 130)).astype(dtype)
    e = DeviceEngine(runtime())
    with engine(e), trnpy.policy(force=True, precision=precision), trnpy.trace() as log:
        c = trnpy.matmul(a, a.T)
        spd = a @ a.T + 90 * np.eye(90, dtype=dtype)
        trnpy.linalg.cholesky(np.kron(np.eye(2, dtype=dtype), spd))
    assert [d.on_device for d in log] == [True, True] and all(d.launches for d in log)
    np.testing.assert_allclose(c, a @ a.T, rtol=0.1, atol=2.0)


FAULTS = {
    DeviceMemoryError: RuntimeError("RESOURCE_EXHAUSTED: NRT_RESOURCE"),
    CompileError: RuntimeError("neuronx-cc terminated: NCC_ITEN404"),
    DeviceError: RuntimeError("NRT_EXEC_HW_ERR_HBM_UE"),
}


@pytest.mark.parametrize("kind", FAULTS)
def test_errors_have_types(kind):
    def fail(name):
        raise FAULTS[kind]

    with pytest.raises(kind, match="matmul: RuntimeError") as caught:
        runtime(fail).launch("matmul", np.ones((2, 2), "f4"))
    assert type(caught.value) is kind
    assert (
        type(typed(SyntaxError("no lambdas"), "k")) is CompileError
        and type(typed(MemoryError(), "k")) is not DeviceError
    )


def test_a_driver_that_exits_ends_the_launch_only():
    with pytest.raises(DeviceError, match="matmul: SystemExit: 70"):
        runtime(lambda name: sys.exit(70)).launch("matmul", np.ones((2, 2), "f4"))


@pytest.mark.parametrize("kind, reason", [(DeviceMemoryError, Reason.OOM), (CompileError, Reason.ERROR)])
def test_a_failed_launch_gives_the_host_result(kind, reason):
    def fail(name):
        raise FAULTS[kind]

    a = np.ones((60, 60), "f4")
    with engine(DeviceEngine(runtime(fail))), trnpy.policy(force=True, fallback="log"), trnpy.trace() as log:
        np.testing.assert_array_equal(trnpy.matmul(a, a), a @ a)
    assert log[0].reason is reason


def test_a_launch_that_hangs_is_a_timeout_and_what_follows_does_not_wait_for_it():
    over, hangs, limit, launched = threading.Event(), [True], [0.05], []

    def kernel(name):
        launched.append(name)
        if hangs.pop() if hangs else False:
            over.wait(60)
        return simulated(name)

    r, a = NeuronRuntime(TRN2, CPU, lambda: limit[0], kernel), np.ones((2, 2), "f4")
    with pytest.raises(DeviceTimeout, match="time_limit"):
        r.launch("matmul", a, a)
    limit[0] = 3600.0
    with pytest.raises(DeviceTimeout, match="put was not started: trnpy matmul still hangs"):
        r.launch("matmul", a, a)
    assert launched == ["matmul"]
    over.set()
    r._guarded.hung.join(60)
    np.testing.assert_array_equal(r.launch("matmul", a, a), a @ a)


def test_memory_is_counted():
    r = runtime()
    r.memory.limit = 100
    held = r.put(np.ones((4, 4), "f4"))
    with pytest.raises(DeviceMemoryError, match="64 of 100"):
        r.put(np.ones((4, 4), "f4"))
    del held
    r.put(np.ones((4, 4), "f4"))


@pytest.mark.parametrize(
    "flags, pinned",
    [
        ("", "--auto-cast=none"),
        ("--auto-cast=all -O1", "-O1 --auto-cast=none"),
        ("--auto-cast matmult --auto-cast-type bf16 --model-type=generic", "--model-type=generic --auto-cast=none"),
        ("--auto-cast-type=fp8_e4m3 --auto-cast=none", "--auto-cast=none"),
    ],
)
def test_automatic_casts_are_switched_off(flags, pinned):
    assert pinned_flags(flags) == pinned


@pytest.mark.parametrize(
    "product, machine",
    [("trn1.32xlarge\n", "trn1"), ("trn2u.48xlarge", "trn2"), ("trn3", "trn3"), ("inf2.xlarge", "trn1")],
)
def test_the_instance_names_the_hardware(tmp_path, product, machine):
    file = tmp_path / "product_name"
    file.write_text(product)
    assert instance_machine("trn2", file) is MACHINES[machine]
    assert instance_machine("trn1", tmp_path / "absent") is TRN1


class Xla(types.ModuleType):
    def __init__(self):
        super().__init__("torch_xla")
        self.__spec__ = __import__("importlib.machinery").machinery.ModuleSpec("torch_xla", None)
        self.synced = []

    def device(self):
        return torch.device("cpu")

    def sync(self, wait):
        self.synced.append(wait)


@pytest.fixture(autouse=True)
def cores(monkeypatch):
    """Unset, and again after a test that opened a device."""
    monkeypatch.setenv("NEURON_LOGICAL_NC_CONFIG", "2")
    monkeypatch.delenv("NEURON_LOGICAL_NC_CONFIG")


def test_the_older_route_is_taken_where_torch_has_no_neuron_device(monkeypatch):
    xla = Xla()
    monkeypatch.setenv("NEURON_CC_FLAGS", "--auto-cast=all")
    monkeypatch.setitem(sys.modules, "torch_xla", xla)
    (found,) = torch_devices()
    assert device.os.environ["NEURON_CC_FLAGS"] == "--auto-cast=none"
    assert device.os.environ["NEURON_LOGICAL_NC_CONFIG"] == "1"  # as kernels are launched
    NeuronRuntime(TRN2, found, lambda: 10.0, simulated).launch("matmul", np.ones((2, 2), "f4"), np.ones((2, 2), "f4"))
    assert xla.synced and all(xla.synced)


@pytest.mark.parametrize(
    "version, chosen, set_to", [("0.6.0", "", "tracer"), ("0.6.0", "parser", "parser"), ("0.7.0", "", "")]
)
def test_nki_that_would_parse_kernels_is_told_to_trace_them(version, chosen, set_to, monkeypatch):
    monkeypatch.setenv("NEURON_CC_FLAGS", "")
    monkeypatch.setenv("NKI_COMPILER_FRONTEND", chosen)
    monkeypatch.setattr(device, "software", lambda: {"nki": version})
    monkeypatch.setitem(sys.modules, "torch_xla", Xla())
    torch_devices()
    assert os.environ["NKI_COMPILER_FRONTEND"] == set_to


def test_the_native_route_comes_first(monkeypatch):
    native = types.SimpleNamespace(is_available=lambda: True, synchronize=lambda: None)
    monkeypatch.setenv("NEURON_CC_FLAGS", "")
    monkeypatch.setattr(torch, "neuron", native, raising=False)
    monkeypatch.setattr(torch, "device", lambda name: name)
    assert torch_devices() == (TorchDevice("neuron", native.synchronize),)  # kernels are called as they are


def two_cores(monkeypatch, here):
    """torch with two cores; returns the cores that were selected and waited for, by thread."""
    seen = []
    native = types.SimpleNamespace(
        is_available=lambda: True,
        device_count=lambda: 2,
        set_device=lambda i: seen.append(("set", i, threading.get_ident())),
        synchronize=lambda i: seen.append(("wait", i, threading.get_ident())),
    )
    monkeypatch.setenv("NEURON_CC_FLAGS", "")
    monkeypatch.setattr(torch, "neuron", native, raising=False)
    monkeypatch.setattr(torch, "device", here)
    return seen


def test_each_core_that_torch_shows_is_a_device_of_its_own(monkeypatch):
    seen = two_cores(monkeypatch, lambda name: name)
    first, second = torch_devices()
    assert (first.device, second.device) == ("neuron:0", "neuron:1")
    second.select(), second.synchronise()
    assert [call[:2] for call in seen] == [("set", 1), ("wait", 1)]


def test_a_product_is_divided_over_two_cores_that_work_at_the_same_time(monkeypatch):
    """Each launch waits for one on the other core: one after another they would wait for ever."""
    cpu = torch.device("cpu")
    seen = two_cores(monkeypatch, lambda name: cpu)
    meeting = threading.Barrier(2, timeout=20)

    def together(name):
        launch = simulated(name)

        def wait(*tensors, **parameters):
            meeting.wait()
            return launch(*tensors, **parameters)

        return wait

    runtimes = [NeuronRuntime(TRN2, d, lambda: 30.0, together) for d in torch_devices()]
    e = Cores([DeviceEngine(r) for r in runtimes])
    a, b = np.random.default_rng(0).standard_normal((2, 200, 200), "f4")
    with trnpy.policy(force=True):
        c = e.matmul(a, b)
    np.testing.assert_allclose(c, a @ b, rtol=0, atol=1e-4)
    assert [r.counters.launches["matmul"] for r in runtimes] == [1, 1]
    assert {i for what, i, _ in seen if what == "set"} == {0, 1}
    for at, (what, i, thread) in enumerate(seen):  # what a thread waits for is the core that it has selected
        if what == "wait":
            assert [c for c in seen[:at] if c[2] == thread and c[0] == "set"][-1][1] == i


@pytest.mark.parametrize(
    "environ, core",
    [
        ({}, ""),
        ({"MPI_LOCALNRANKS": "1", "MPI_LOCALRANKID": "0"}, ""),
        ({"MPI_LOCALNRANKS": "4", "MPI_LOCALRANKID": "3"}, "3"),
        ({"OMPI_COMM_WORLD_LOCAL_SIZE": "2", "OMPI_COMM_WORLD_LOCAL_RANK": "0"}, "0"),
        ({"SLURM_STEP_TASKS_PER_NODE": "8(x2)", "SLURM_LOCALID": "7"}, "7"),
        ({"SLURM_STEP_TASKS_PER_NODE": "8(x2),1", "SLURM_LOCALID": "0", "SLURM_NODEID": "1"}, "0"),
        ({"SLURM_STEP_TASKS_PER_NODE": "8(x2),1", "SLURM_LOCALID": "0", "SLURM_NODEID": "2"}, ""),
        ({"MPI_LOCALNRANKS": "4", "MPI_LOCALRANKID": "3", "NEURON_RT_VISIBLE_CORES": "8-11"}, ""),
        ({"MPI_LOCALNRANKS": "4", "MPI_LOCALRANKID": "3", "NEURON_RT_NUM_CORES": "2"}, ""),
    ],
)
def test_ranks_on_one_host_take_a_core_each(environ, core, monkeypatch):
    assert own_core(environ) == core
    for name in ("NEURON_RT_VISIBLE_CORES", "NEURON_RT_NUM_CORES", *ranks_env.LOCAL, *ranks_env.LOCAL.values()):
        monkeypatch.delenv(name, raising=False)
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    two_cores(monkeypatch, lambda name: name)
    torch_devices()
    assert os.environ.get("NEURON_RT_VISIBLE_CORES", "") == (core or environ.get("NEURON_RT_VISIBLE_CORES", ""))
    os.environ.pop("NEURON_RT_VISIBLE_CORES", None)


def test_where_torch_neuronx_is_absent_kernels_are_wrapped_for_one_core(monkeypatch):
    """The call that SDK 2.32 documents: wrap_nki(kernel)[logical cores](operands)."""
    wrapped = []

    class Wrapped:
        def __init__(self, function):
            self.function = function

        def __getitem__(self, cores):
            wrapped.append(cores)
            return self.function

    machinery = __import__("importlib.machinery").machinery
    for name in ("libtorch_neuronx_lite", "libtorch_neuronx_lite.nki", "libtorch_neuronx_lite.nki.nki_hop"):
        module = types.ModuleType(name)
        module.__spec__ = machinery.ModuleSpec(name, None)
        module.wrap_nki = Wrapped
        monkeypatch.setitem(sys.modules, name, module)
    native = types.SimpleNamespace(is_available=lambda: True, synchronize=lambda: None)
    monkeypatch.setenv("NEURON_CC_FLAGS", "")
    monkeypatch.setattr(torch, "neuron", native, raising=False)
    here = torch.device("cpu")
    monkeypatch.setattr(torch, "device", lambda name: here)
    r = NeuronRuntime(TRN2, torch_devices()[0], lambda: 10.0, simulated)
    np.testing.assert_array_equal(r.launch("matmul", np.eye(3, dtype="f4"), np.eye(3, dtype="f4")), np.eye(3))
    assert wrapped == [1]


def test_without_either_route_it_says_so(monkeypatch):
    monkeypatch.setenv("NEURON_CC_FLAGS", "")
    with pytest.raises(DeviceUnavailable, match="torch_xla"):
        torch_devices()


@pytest.fixture
def found(monkeypatch):
    """As on a machine whose device and packages are all there."""
    monkeypatch.setattr(engines, "MISSING", "")
    monkeypatch.setattr(engines, "RESTING", frozenset({"none"}))
    engines._opened.cache_clear()
    yield
    engines._opened.cache_clear()


def test_a_forked_child_leaves_the_device_to_its_parent(found, monkeypatch):
    monkeypatch.setattr(device, "torch_devices", lambda: (CPU,))
    assert trnpy.available() == (True, "")
    monkeypatch.setattr(engines.os, "getpid", lambda: 0)  # as after a fork
    available, why = trnpy.available()
    assert not available and re.match(r"the device belongs to process \d+, .* by spawn$", why)
    with trnpy.policy(device="neuron"), pytest.raises(DeviceUnavailable, match="by spawn"):
        trnpy.explain(trnpy.matmul, np.eye(2), np.eye(2))


def test_a_device_is_used_where_it_is_found(found, monkeypatch):
    monkeypatch.setattr(device, "torch_devices", lambda: (CPU,))
    monkeypatch.setattr(NeuronRuntime.__init__, "__defaults__", (simulated,))
    a = np.random.default_rng(0).standard_normal((80, 90)).astype("f4")
    assert trnpy.available() == (True, "")
    for name in ("auto", "neuron"):
        with trnpy.policy(device=name, force=True), trnpy.trace() as log:
            np.testing.assert_allclose(trnpy.matmul(a, a.T), a @ a.T, rtol=1e-4, atol=1e-4)
        assert log[0].engine == "neuron" and log[0].launches == (("matmul", 1),)


def test_a_driver_that_does_not_load_costs_no_result(found, monkeypatch):
    def broken():
        raise ImportError("libnrt.so.1: cannot open shared object file")

    monkeypatch.setattr(device, "torch_devices", broken)
    a = np.ones((300, 300))
    np.testing.assert_array_equal(trnpy.matmul(a, a), a @ a)
    assert not trnpy.available()[0] and "libnrt" in trnpy.available()[1]
    with trnpy.policy(device="neuron"), pytest.raises(DeviceUnavailable, match="libnrt"):
        trnpy.matmul(a, a)


DETECTIONS = [
    ([], {}, "", "no Neuron device"),
    (["/dev/neuron0"], {}, "nki is a placeholder", "placeholder"),
    (["/dev/neuron0"], {"nki": "0.7.0", "neuronx-cc": "2.27.5334.0"}, "", "of two releases (NCC_INLA001)"),
    (["/dev/neuron0"], {}, "", "torch is not installed"),
    (["/dev/neuron0"], {"torch": "2.9"}, "", "neither torch-neuronx"),
    (["/dev/neuron0"], {"torch": "2.9", "torch-xla": "2.9"}, "", ""),
    (["/dev/neuron0"], {"torch": "2.9", "libtorch-neuronx-lite": "2.9"}, "", ""),
]


@pytest.mark.parametrize("nodes, versions, nki, missing", DETECTIONS)
def test_detection_names_the_first_thing_that_is_missing(monkeypatch, nodes, versions, nki, missing):
    monkeypatch.setattr(device.glob, "glob", lambda pattern: nodes)
    monkeypatch.setattr(device, "software", lambda: versions)
    monkeypatch.setattr(device, "_real_nki", lambda: nki)
    found = device.detect()
    assert found.available == (missing == "") and missing in found.missing


@pytest.mark.parametrize(
    ("nki", "compiler", "paired"),
    [
        ("0.6.0+31049202112.g85070674", "2.27.5334.0+f702b353", True), ("0.6.0", "2.28.1", False),
        ("0.7.0", "2.27.5334.0", False), ("0.7.0", "2.28.1", True), ("0.60.0", "2.27.1", False),
    ],
)  # fmt: skip
def test_nki_and_its_compiler_are_of_one_release(nki, compiler, paired):
    assert (device.unpaired({"nki": nki, "neuronx-cc": compiler}) == "") is paired
    assert device.unpaired({"nki": nki}) == device.unpaired({"neuronx-cc": compiler}) == ""


def test_kernels_are_found_by_name(monkeypatch):
    module = types.ModuleType("trnpy._nki.kernels.products.probes")
    module.one = lambda: 1
    monkeypatch.setitem(sys.modules, module.__name__, module)
    assert nki_kernel("probes.one") is module.one
    with pytest.raises(KeyError, match="there is no file absent"):
        nki_kernel("absent")


def test_neither_torch_nor_nki_is_imported_before_a_device_is_used():
    code = "import sys, trnpy; trnpy.matmul([[1.0]], [[1.0]]); print('torch' in sys.modules, 'nki' in sys.modules)"
    assert (
        subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
        == "False False\n"
    )


def test_the_first_launch_of_a_shape_is_what_compiling_takes():
    r = runtime()
    r.launch("matmul", np.ones((40, 30), "f4"), np.ones((30, 40), "f4"))
    first = r.counters.compile_s["matmul"]
    assert first == pytest.approx(r.counters.seconds["matmul"], rel=1e-12)
    r.launch("matmul", np.ones((40, 30), "f4"), np.ones((30, 40), "f4"))
    assert r.counters.compile_s["matmul"] == first < r.counters.seconds["matmul"]


@pytest.mark.parametrize("chosen", ["", "s3://bucket/cache"])
def test_the_compile_cache_is_the_users_or_ours(chosen, monkeypatch, tmp_path):
    monkeypatch.setenv("NEURON_COMPILE_CACHE_URL", chosen)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("NEURON_CC_FLAGS", "")
    stand_in = types.SimpleNamespace(is_available=lambda: True, synchronize=lambda: None)
    monkeypatch.setattr(torch, "neuron", stand_in, raising=False)
    monkeypatch.setattr(torch, "device", lambda name: name)
    assert torch_devices()[0].device == "neuron"
    expected = chosen or str(tmp_path / "trnpy" / f"neuron-compile-cache-{device.sources(device.FOLDER)}")
    assert os.environ["NEURON_COMPILE_CACHE_URL"] == expected == device.compile_cache()


def test_a_kernel_that_changed_is_not_looked_up_as_it_was(monkeypatch, tmp_path):
    """Neuron's caches do not look at the source."""
    monkeypatch.delenv("NEURON_COMPILE_CACHE_URL", raising=False)
    names = []
    for number, text in enumerate(("a = 1", "a = 2", "a = 1")):
        kernels = tmp_path / str(number)
        kernels.mkdir()
        (kernels / "one.py").write_text(text)
        monkeypatch.setattr(device, "FOLDER", kernels)
        names.append(device.compile_cache())
    assert names[0] == names[2] != names[1]


def test_tiles_are_timed_on_it_and_kept_for_it(monkeypatch, capsys):
    """The whole of calibrate --kernels but for the device: one case of each kind of operand."""
    small = [c for c in timings.cases(TRN2) if c.extents == (128, 128, 128) and c.kernel in ("syrk", "float64_matmul")]
    monkeypatch.setattr(timings, "cases", lambda machine: small)
    monkeypatch.setattr(timings, "REPEATS", 1)
    e = DeviceEngine(runtime())
    monkeypatch.setattr(doctor, "current_engine", lambda settings: e)
    assert doctor.calibrate(["--kernels"]) == 0
    said = capsys.readouterr().out
    assert "launches of the best choices" in said and said.count("us measured") == 2 and "2 of 2 cases" in said
    found = tuning.load("neuron", "trn2")
    assert all(c.measured for c in found.choices) and set(found.compile_s) == {"syrk", "float64_matmul"}
    assert e.counters.compiles["syrk"] >= 2
