"""The runtime over libnrt without a device: C functions as in nrt.h, which run kernels on the simulator."""

import ast
import contextlib
import ctypes
import importlib
import inspect
import json
import pathlib
import queue
import sys
import threading
import traceback
import types
from ctypes import CFUNCTYPE, POINTER, c_bool, c_int, c_uint64, c_void_p

import ml_dtypes
import numpy as np
import pytest

import trnpy
from nkisim.hardware import TRN2
from nkisim.run.launch import simulate
from trnpy._engine import engines, panels
from trnpy._engine.engines import DeviceEngine, engine
from trnpy._nki import device, neff, nrt
from trnpy._nki.kernels import located
from trnpy._nki.kernels.products import float64_digits_reference
from trnpy._nki.kernels.shared.parameters import TILE
from trnpy._nki.runtime import CompileError, DeviceError, DeviceMemoryError, DeviceTimeout, DeviceUnavailable
from trnpy._nki.simulated import kernel as simulated

STATUS = {
    0: b"NRT_SUCCESS",
    1: b"NRT_FAILURE",
    2: b"NRT_INVALID",
    4: b"NRT_RESOURCE",
    1003: b"NRT_EXEC_COMPLETED_WITH_NUM_ERR",
}


class Stand:
    """libnrt: functions that Python calls through C, with the types of nrt.h."""

    def __init__(self, cores=1):
        self.cores, self.tensors, self.sets, self.models = cores, {}, {}, {}
        self.fails, self.freed = {}, 0
        words = {status: ctypes.create_string_buffer(name) for status, name in STATUS.items()}
        self.nrt_get_status_as_str = CFUNCTYPE(c_void_p, c_int)(lambda status: ctypes.addressof(words[status]))
        for name, arguments in {**nrt.FUNCTIONS, **nrt.WITHOUT_STATUS}.items():
            result = c_int if name in nrt.FUNCTIONS else None
            function = CFUNCTYPE(result, *arguments)(self._called(name))
            setattr(self, name, function)

    def _called(self, name):
        def call(*arguments):
            if name in self.fails:
                return self.fails[name]
            try:
                return getattr(self, name[4:])(*arguments) or 0
            except Exception:
                traceback.print_exc()
                return 1

        return call

    def _new(self, table, value, out):
        handle = 1000 + len(self.tensors) + len(self.sets) + len(self.models) + self.freed
        table[handle] = value
        out[0] = handle

    def init(self, framework, version, other):
        assert framework == nrt.NO_FRAMEWORK

    def get_visible_vnc_count(self, out):
        out[0] = self.cores

    def load(self, content, size, core, count, out):
        assert count == -1 and 0 <= core < self.cores
        self._new(self.models, json.loads(ctypes.string_at(content, size)), out)

    def tensor_allocate(self, placement, core, size, name, out):
        assert placement == 0 and 0 <= core < self.cores
        self._new(self.tensors, bytearray(b"\xa5" * size), out)

    def tensor_write(self, tensor, source, offset, size):
        assert offset + size <= len(self.tensors[tensor])
        self.tensors[tensor][offset : offset + size] = ctypes.string_at(source, size)

    def tensor_read(self, tensor, target, offset, size):
        ctypes.memmove(target, bytes(self.tensors[tensor][offset : offset + size]), size)

    def tensor_copy(self, source, start, target, at, size):
        assert start + size <= len(self.tensors[source]) and at + size <= len(self.tensors[target])
        self.tensors[target][at : at + size] = self.tensors[source][start : start + size]

    def tensor_memset(self, tensor, offset, value, size):
        self.tensors[tensor][offset : offset + size] = bytes([value]) * size

    def tensor_free(self, out):
        del self.tensors[out[0]]
        self.freed += 1

    def allocate_tensor_set(self, out):
        self._new(self.sets, {}, out)

    def add_tensor_to_tensor_set(self, held, name, tensor):
        self.sets[held][name.decode()] = tensor

    def destroy_tensor_set(self, out):
        del self.sets[out[0]]
        self.freed += 1

    def simulated(self, name, operands, parameters):
        return simulate(simulated(name), "trn2")(**operands, **parameters)

    def execute(self, model, taken, given):
        program, operands = self.models[model], {}
        for name, shape, dtype in program["operands"]:
            content = bytes(self.tensors[self.sets[taken][name]])
            operands[name] = np.frombuffer(content, np.dtype(dtype)).reshape(shape)
        outputs = self.simulated(program["kernel"], operands, program["parameters"])
        for n, array in enumerate(outputs if isinstance(outputs, tuple) else (outputs,)):
            tensor = self.tensors[self.sets[given][f"output_{n}"]]
            assert len(tensor) == array.nbytes
            tensor[:] = array.tobytes()


class Twins(Stand):
    """libnrt whose kernels are their NumPy twins: no simulator."""

    def simulated(self, name, operands, parameters):
        module, function = located(name)
        twin = getattr(importlib.import_module(f"{module}_reference"), function)
        known = inspect.signature(twin).parameters
        return twin(**{k: x for k, x in {**operands, **parameters}.items() if k in known})


class Units(Stand):
    """libnrt of Neuron 2.29, whose execution units work beside each other: launches, and two queues of transfers."""

    def __init__(self):
        super().__init__()
        self.units, self.completed, self.number = {}, set(), 0
        self.started = []  # what has begun, in order
        for name, arguments in nrt.ENQUEUED.items():
            setattr(self, name, CFUNCTYPE(c_int, *arguments)(self._enqueued(name)))
        self.nrta_is_completed = CFUNCTYPE(c_int, c_uint64, POINTER(c_bool))(self._is_completed)

    def _enqueued(self, name):
        def enqueue(*arguments):
            *arguments, unit, status, number = arguments
            self.number += 1
            number[0] = self.number
            if (name, unit) not in self.units:
                self.units[name, unit] = queue.SimpleQueue()
                threading.Thread(target=self._works, args=(self.units[name, unit],), daemon=True).start()
            self.units[name, unit].put((name, arguments, status, self.number))
            return 0

        return enqueue

    def _works(self, requests):
        while True:
            name, arguments, status, number = requests.get()
            what = self.what(name, arguments)
            self.started.append(what)
            self.begun(what)
            status[0] = self._called(name.replace("nrta_execute_schedule", "nrt_execute").replace("nrta", "nrt"))(
                *arguments
            )
            self.completed.add(number)

    def what(self, name, arguments):
        return self.models[arguments[0]]["kernel"] if "execute" in name else (name[5:], arguments[3])

    def begun(self, what):
        pass

    def tensor_read(self, target, tensor, offset, size):
        super().tensor_read(tensor, target, offset, size)

    def _is_completed(self, number, out):
        out[0] = number in self.completed
        return 0


class Jitted:
    """A kernel as nki.jit makes it."""

    def __init__(self, name, function=None):
        self.name, self.func = name, function or simulated(name).function


compiled = []


class TracerFrontend:
    def __init__(self, enable_backend_opt):
        assert enable_backend_opt is False

    def compile(self, ir, kernel, inputs, target, lnc, artifacts_dir):
        assert ir == "ir" and lnc == 1 and target == "trn2"
        compiled.append(kernel.name)
        operands = [(k, x.shape, x.dtype.name) for k, x in inputs.items() if isinstance(x, np.ndarray)]
        parameters = {k: x for k, x in inputs.items() if not isinstance(x, np.ndarray)}
        return {"kernel": kernel.name, "operands": operands, "parameters": parameters}


class CompileOptions:
    def __init__(self, target, lnc, output_path, artifacts_dir):
        self.output = pathlib.Path(output_path)
        assert not list(pathlib.Path(artifacts_dir).iterdir())

    def disable_backend_optimizations(self):
        return self


class CompiledKernel:
    @staticmethod
    def from_frontend(traced, options):
        options.output.write_text(json.dumps(traced))


@contextlib.contextmanager
def nki_ir_context():
    yield "ir"


@pytest.fixture(autouse=True)
def nki(monkeypatch):
    """The entry points of the real nki that compile to a NEFF file."""
    parts = {
        "nki": {},
        "nki._backends": {},
        "nki._backends.context": {"nki_ir_context": nki_ir_context},
        "nki.compiler": {},
        "nki.compiler.frontend": {"TracerFrontend": TracerFrontend},
        "nki.compiler.ncc_driver": {"CompileOptions": CompileOptions, "CompiledKernel": CompiledKernel},
    }
    for name, content in parts.items():
        module = types.ModuleType(name)
        vars(module).update(content)
        monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.setattr(nrt.NrtRuntime.__init__, "__defaults__", (Jitted,))
    compiled.clear()


def runtime(stand=None, limit=60.0):
    (found,) = nrt.runtimes(TRN2, lambda: limit, "tracer", stand or Stand())
    return found


@pytest.mark.parametrize("dtype", ["f4", "f2", ml_dtypes.bfloat16, "i4", "i1", "u1"], ids=str)
def test_arrays_come_back_as_they_went_and_parts_do_not_cross_the_link(dtype):
    r = runtime()
    a = np.arange(-6, 6).reshape(3, 4).astype(dtype)
    buffer, before = r.put(a), a.copy()
    a[:] = 0  # a copy was sent
    back = r.get(buffer)
    np.testing.assert_array_equal(back, before)
    assert back.dtype == a.dtype and back.flags.writeable
    part = r.part(buffer, slice(1, 3), slice(0, 2), (4, 3))
    np.testing.assert_array_equal(r.get(part)[:2, :2], before[1:3, :2])
    assert not r.get(part)[2:].any() and not r.get(part)[:, 2:].any()
    assert r.counters.bytes_in == a.nbytes and r.counters.bytes_out == a.nbytes + 3 * part.nbytes
    square = r.get(r.part(buffer, slice(0, 2), slice(0, 2), (5, 5), unit=True))
    np.testing.assert_array_equal(np.diagonal(square)[2:].astype(float), 1)
    assert np.count_nonzero(square[2:]) == 3 and not square[:2, 2:].any()
    whole = r.part(buffer, slice(1, 3), slice(0, 4), (2, 4))
    np.testing.assert_array_equal(r.get(whole), before[1:3])
    np.testing.assert_array_equal(r.get(r.reshaped(buffer, (2, 6))), before.reshape(2, 6))


def test_launches_compile_once_for_all_processes_and_keep_operands_on_the_device():
    stand = Stand()
    r, a = runtime(stand), np.random.default_rng(0).standard_normal((40, 30)).astype("f4")
    for _ in range(2):
        np.testing.assert_allclose(r.launch("matmul", a, a, b_rows=False), a @ a.T, rtol=1e-4, atol=1e-4)
    assert compiled == ["matmul"] and len(stand.models) == 1
    assert r.counters.launches == {"matmul": 2} and r.counters.compiles == {"matmul": 1}
    assert r.counters.seconds["matmul"] >= r.counters.compile_s["matmul"] > 0
    assert r.memory.used == 0 and not stand.tensors and not stand.sets  # nothing outlives its last reference
    held = r.put(a)
    first = r.run("matmul", held, held, b_rows=False)
    sent = r.counters.bytes_in
    np.testing.assert_allclose(r.get(r.run("matmul", first, held, b_rows=True)), a @ a.T @ a, rtol=1e-3, atol=1e-3)
    assert r.counters.bytes_in == sent
    other = runtime(Stand())
    np.testing.assert_allclose(other.launch("matmul", a, a, b_rows=False), a @ a.T, rtol=1e-4, atol=1e-4)
    assert compiled == ["matmul", "matmul"]  # the second one was for other shapes; a new process finds the first


def test_no_launch_needs_the_simulator(monkeypatch):
    packages = "nkisim.chip", "nkisim.isa", "nkisim.language", "nkisim.lint", "nkisim.price", "nkisim.run"
    for name in {name for name in sys.modules if name.startswith(packages)} | set(packages):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(ImportError):
        importlib.import_module("nkisim.run.launch")

    def untraced(name):
        return Jitted(name, getattr(importlib.import_module(f"{located(name)[0]}_reference"), located(name)[1]))

    monkeypatch.setattr(nrt.NrtRuntime.__init__, "__defaults__", (untraced,))
    r, rng = runtime(Twins()), np.random.default_rng(0)
    a, b = rng.standard_normal((2, 40, 30)).astype("f4")
    np.testing.assert_array_equal(r.launch("matmul", a, b.T), a @ b.T)
    x = rng.standard_normal((20, 30))
    digits, magnitudes, exponents = r.launch("float64_digits", x.view(np.int32))
    assert digits.shape == (7, 30, 20) and magnitudes.dtype == ml_dtypes.bfloat16 and exponents.shape == (20, 1)
    np.testing.assert_array_equal(digits, float64_digits_reference.float64_digits(x.view(np.int32))[0])


def test_only_the_simulators_adapter_and_commands_import_more_of_it_than_the_table_of_machines():
    package = pathlib.Path(trnpy.__file__).parent
    commands = {"_cli/doctor.py", "_cli/simulate.py", "_cli/timings.py", "chem/cli.py"}
    others = commands | {"_nki/simulated.py", "dist/_core_transport.py"}  # of ranks that are simulated
    found = {}
    for file in package.rglob("*.py"):
        nodes = [n for n in ast.walk(ast.parse(file.read_text())) if isinstance(n, (ast.Import, ast.ImportFrom))]
        names = {n.module or "" if isinstance(n, ast.ImportFrom) else a.name for n in nodes for a in n.names}
        more = {m for m in names if m.split(".")[0] == "nkisim"} - {"nkisim.hardware"}
        if more:
            found[str(file.relative_to(package))] = more
    assert set(found) == others


def test_a_changed_source_is_compiled_again(monkeypatch):
    a = np.eye(8, dtype="f4")
    runtime().launch("matmul", a, a)
    monkeypatch.setattr(neff, "sources", lambda folder: "changed")
    runtime().launch("matmul", a, a)
    assert compiled == ["matmul"] * 2


@pytest.mark.parametrize("dtype, precision", [("f4", "matched"), ("F", "matched"), ("f8", "fp32"), ("f8", "matched")])
def test_the_engine_runs_on_it_as_on_the_simulator(dtype, precision):
    a = np.random.default_rng(0).standard_normal((90, 130)).astype(dtype)
    with engine(DeviceEngine(runtime())), trnpy.policy(force=True, precision=precision), trnpy.trace() as log:
        c = trnpy.matmul(a, a.T)
        spd = a @ a.T + 90 * np.eye(90, dtype=dtype)
        trnpy.linalg.cholesky(np.kron(np.eye(2, dtype=dtype), spd))
    assert [d.on_device for d in log] == [True, True] and all(d.launches for d in log)
    np.testing.assert_allclose(c, a @ a.T, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize(
    ("function", "status", "kind", "words"),
    [
        ("nrt_tensor_allocate", 4, DeviceMemoryError, "put: NrtError: nrt_tensor_allocate: NRT_RESOURCE"),
        ("nrt_load", 2, DeviceError, "matmul: NrtError: nrt_load: NRT_INVALID"),
        ("nrt_execute", 2, DeviceError, "nrt_execute: NRT_INVALID"),
    ],
)
def test_statuses_are_typed_errors_with_their_names(function, status, kind, words):
    stand, a = Stand(), np.eye(4, dtype="f4")
    r = runtime(stand)
    stand.fails[function] = status
    with pytest.raises(kind, match=words) as caught:
        r.launch("matmul", a, a)
    assert type(caught.value) is kind and not stand.sets
    del stand.fails[function]
    np.testing.assert_array_equal(r.launch("matmul", a, a), a)


def test_a_result_with_a_nan_is_a_result():
    stand = Stand()
    r = runtime(stand)
    stand.fails["nrt_execute"] = 1003
    r.run("matmul", np.eye(4, dtype="f4"), np.eye(4, dtype="f4"))


def test_the_compilers_refusal_is_a_compile_error_and_leaves_no_file(monkeypatch, tmp_path):
    def refuse(self, *arguments, **words):
        raise RuntimeError("neuronx-cc terminated: NCC_IBIR092")

    monkeypatch.setattr(TracerFrontend, "compile", refuse)
    with pytest.raises(CompileError, match="matmul: RuntimeError: neuronx-cc"):
        runtime().launch("matmul", np.eye(4, dtype="f4"), np.eye(4, dtype="f4"))
    assert not list(nrt.folder().glob("neffs-*/*"))


def test_a_launch_that_hangs_is_a_timeout_and_what_follows_does_not_wait_for_it():
    stand, over, a = Stand(), threading.Event(), np.eye(4, dtype="f4")
    r = runtime(stand, 0.2)
    held = r.put(a)
    r._guarded._time_limit_s = lambda: 30.0
    r.run("matmul", held, held)
    stand.execute = lambda *arguments: over.wait(60) and None
    r._guarded._time_limit_s = lambda: 0.05
    with pytest.raises(DeviceTimeout, match="time_limit"):
        r.run("matmul", held, held)
    with pytest.raises(DeviceTimeout, match="put was not started: trnpy matmul still hangs"):
        r.put(a)
    over.set()
    r._guarded.hung.join(60)


def test_each_core_that_the_process_sees_is_a_runtime_and_none_is_an_error():
    found = nrt.runtimes(TRN2, lambda: 10.0, "tracer", Stand(cores=2))
    assert [r._core for r in found] == [0, 1]
    np.testing.assert_array_equal(found[1].launch("matmul", np.eye(3, dtype="f4"), np.eye(3, dtype="f4")), np.eye(3))
    with pytest.raises(DeviceUnavailable, match="no NeuronCore"):
        nrt.runtimes(TRN2, lambda: 10.0, "tracer", Stand(cores=0))


@pytest.fixture
def no_torch(monkeypatch, tmp_path):
    """libnrt where the loader looks, and torch without a Neuron device."""
    (tmp_path / nrt.NAME).write_bytes(b"")
    monkeypatch.setenv("LD_LIBRARY_PATH", f"/nowhere:{tmp_path}")
    monkeypatch.setenv("NEURON_CC_FLAGS", "--auto-cast=all")
    for name in ("NEURON_LOGICAL_NC_CONFIG", "NEURON_COMPILE_CACHE_URL"):
        monkeypatch.setenv(name, "")  # so that it is put back
        monkeypatch.delenv(name)

    def absent():
        raise DeviceUnavailable("torch has no neuron device and torch_xla is not installed")

    monkeypatch.setattr(device, "torch_devices", absent)
    return tmp_path


def test_libnrt_is_the_route_where_torch_has_no_device(no_torch, monkeypatch):
    opened = []
    monkeypatch.setattr(nrt.ctypes, "CDLL", lambda place: opened.append(place) or Stand())
    monkeypatch.setattr(engines, "MISSING", "")
    engines._opened.cache_clear()
    a = np.random.default_rng(0).standard_normal((80, 90)).astype("f4")
    try:
        assert trnpy.available() == (True, "")
        with trnpy.policy(force=True), trnpy.trace() as log:
            np.testing.assert_allclose(trnpy.matmul(a, a.T), a @ a.T, rtol=1e-4, atol=1e-4)
    finally:
        engines._opened.cache_clear()
    assert log[0].engine == "neuron" and log[0].launches == (("matmul", 1),)
    assert opened == [str(no_torch / nrt.NAME)]
    assert device.os.environ["NEURON_CC_FLAGS"] == "--auto-cast=none"
    assert device.os.environ["NEURON_LOGICAL_NC_CONFIG"] == "1"


def test_detection_takes_libnrt_for_torch(no_torch, monkeypatch):
    monkeypatch.setattr(device.glob, "glob", lambda pattern: ["/dev/neuron0"])
    monkeypatch.setattr(device, "_real_nki", lambda: "")
    monkeypatch.setattr(device, "software", dict)
    assert device.detect().available and device.route({"torch": "2.9"}) == str(no_torch / nrt.NAME)
    assert device.route({"torch": "2.9", "torch-xla": "2.9"}) == "torch-xla"
    monkeypatch.setenv("LD_LIBRARY_PATH", "")
    assert f"no {nrt.NAME}" in device.detect().missing
    with pytest.raises(DeviceUnavailable, match="torch_xla"):
        device.runtimes(TRN2, lambda: 1.0)


def test_the_library_that_is_loaded_has_every_function_that_is_called():
    stand = Stand()
    del stand.nrt_tensor_copy
    with pytest.raises(AttributeError, match="nrt_tensor_copy"):
        runtime(stand)


def operands(m, k=256, n=256):
    rng = np.random.default_rng(m)
    return rng.standard_normal((m, k)), rng.standard_normal((k, n))


@pytest.fixture
def small_panels(monkeypatch):
    monkeypatch.setattr(panels, "PANEL", TILE)


class Overlapping(Units):
    """Each product of a panel waits until the next panel is being sent, and the result before it fetched."""

    def __init__(self, panel, result, count):
        super().__init__()
        self.sizes, self.count, self.products, self.missed = (panel, result), count, 0, []

    def begun(self, what):
        if what != "float64_matmul":
            return
        self.products += 1
        sent, fetched = (("tensor_write", self.sizes[0]), ("tensor_read", self.sizes[1]))
        for transfer, least in ((sent, min(self.products + 1, self.count)), (fetched, self.products - 1)):
            for _ in range(6000):
                if self.started.count(transfer) >= least:
                    break
                threading.Event().wait(0.01)
            else:
                self.missed.append((self.products, transfer))


def test_panels_are_sent_and_fetched_while_another_one_is_multiplied(small_panels):
    a, b = operands(4 * TILE, 384)
    stand = Overlapping(TILE * 384 * 8, TILE * 256 * 8, 4)
    found = runtime(stand, 300.0)
    assert found.hardware.overlaps and not runtime().hardware.overlaps
    with engine(DeviceEngine(found)), trnpy.policy(force=True), trnpy.trace() as log:
        c = trnpy.matmul(a, b)
    assert [d.on_device for d in log] == [True] and found.counters.launches["float64_matmul"] == 4
    assert stand.missed == [] and stand.products == 4
    one = runtime()
    with engine(DeviceEngine(one)), trnpy.policy(force=True):
        np.testing.assert_array_equal(c, trnpy.matmul(a, b))
    assert one.counters.launches["float64_matmul"] == 1
    assert found.counters.bytes_out >= c.nbytes and not stand.sets


@pytest.mark.parametrize(("function", "status"), [("nrt_tensor_write", 4), ("nrt_execute", 2)])
def test_the_status_of_a_request_is_an_error_when_it_is_completed(function, status):
    stand, a = Units(), np.eye(4, dtype="f4")
    r = runtime(stand)
    stand.fails[function] = status
    with pytest.raises(DeviceMemoryError if status == 4 else DeviceError, match=r"nrta_.*NRT_"):
        r.launch("matmul", a, a)
    del stand.fails[function]
    np.testing.assert_array_equal(r.launch("matmul", a, a), a)


def test_requests_of_neuron_2_28_are_not_used():
    stand = Units()
    stand.nrta_error_tracker_create = None
    assert not runtime(stand).hardware.overlaps
