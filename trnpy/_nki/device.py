"""Finds a Neuron device and the software for it, and launches kernels on it with the real nki and torch.

`NeuronRuntime` works on tensors of torch. If torch has no Neuron device, `nrt.NrtRuntime` works without torch.
"""

from __future__ import annotations

import contextlib
import functools
import glob
import importlib
import importlib.util
import os
import re
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from nkisim.hardware import MACHINES, Hardware
from trnpy._base.distribution import install
from trnpy._base.ranks_env import on_host
from trnpy._base.records import record
from trnpy._base.store import folder
from trnpy._nki import nrt
from trnpy._nki.guarded import Guard
from trnpy._nki.instances import hardware_of
from trnpy._nki.kernels import FOLDER
from trnpy._nki.neff import nki_kernel, sources
from trnpy._nki.runtime import (
    Buffer,
    DeviceMemory,
    DeviceUnavailable,
    LaunchCounters,
    Operand,
    Runtime,
    dtype_of,
    fetched,
)

TORCHES = ("torch-neuronx", "libtorch-neuronx-lite", "torch-xla")  # they give torch a Neuron device
MINIMUM_NKI = (0, 6)  # the dialect the kernels are written in
PAIRS = {"0.6": "2.27"}  # nki and neuronx-cc of one release; kernels of other pairs are refused (NCC_INLA001)


@record()
class Detection:
    """The device nodes that were found, and the first thing that is missing, empty if nothing is."""

    nodes: tuple[str, ...]  # /dev/neuron*
    missing: str

    @property
    def available(self) -> bool:
        return not self.missing


def software() -> dict[str, str]:
    """Versions of the packages that compile and run kernels."""
    import importlib.metadata  # imported here: it takes a tenth of NumPy's import time

    found = {}
    for package in ("nki", "neuronx-cc", "torch", "torch-neuronx", "libtorch-neuronx-lite", "torch-xla"):
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def _real_nki() -> str:
    """Why the package ``nki`` is unusable; "" if it is AWS's compiler with a known dialect."""
    import importlib.metadata

    if importlib.util.find_spec("nki") is None:
        return f"the nki package is not installed ({install('neuron')} from the Neuron package index)"
    try:
        isa = importlib.import_module("nki.isa")
        version = importlib.metadata.version("nki")
    except ImportError as why:
        return f"the nki package does not import: {why}"
    # PyPI holds a placeholder of the same name that imports but contains no functions.
    if not hasattr(isa, "nc_matmul"):
        return f"nki {version} is a placeholder without nki.isa.nc_matmul: install it from the Neuron package index"
    if tuple(int(part) for part in version.split(".")[:2]) < MINIMUM_NKI:
        return f"nki {version} is older than {'.'.join(map(str, MINIMUM_NKI))}"
    return ""


def unpaired(versions: Mapping[str, str]) -> str:
    """Why nki and neuronx-cc of these versions are incompatible; "" if they are compatible or unknown."""
    nki, compiler = versions.get("nki", ""), versions.get("neuronx-cc", "")
    for own, its in PAIRS.items():
        if nki and compiler and nki.startswith(f"{own}.") != compiler.startswith(f"{its}."):
            pair = f"nki {own} and neuronx-cc {its} go together"
            return f"nki {nki} and neuronx-cc {compiler} are of two releases (NCC_INLA001), {pair}: install one release"
    return ""


def route(versions: Mapping[str, str]) -> str:
    """The carrier of arrays to a device: a package for torch, else the path of libnrt; "" if there is neither."""
    torches = [package for package in TORCHES if package in versions and "torch" in versions]
    return torches[0] if torches else nrt.library()


def detect() -> Detection:
    """Look for a device, the NKI compiler, and torch or libnrt, in that order."""
    nodes = tuple(sorted(glob.glob("/dev/neuron*")))
    if not nodes:
        missing = "no Neuron device: /dev/neuron0 is missing"
    elif problem := _real_nki() or unpaired(software()):
        missing = problem
    elif route(versions := software()):
        missing = ""
    elif "torch" not in versions:
        missing = f"torch is not installed, and there is no {nrt.NAME}: one of them moves arrays to the device"
    else:
        missing = (
            "neither torch-neuronx nor libtorch-neuronx-lite nor torch-xla is installed: torch has no Neuron device "
            f"without them, and there is no {nrt.NAME}"
        )
    return Detection(nodes, missing)


def runtimes(hardware: Hardware, time_limit_s: Callable[[], float]) -> list[Runtime]:
    """A runtime for each core of this process: through torch, or if torch has no Neuron device, through libnrt."""
    try:
        return [NeuronRuntime(hardware, d, time_limit_s) for d in torch_devices()]
    except (DeviceUnavailable, ImportError):
        if not nrt.library():
            raise
        prepare()
        return list(nrt.runtimes(hardware, time_limit_s, front_end()))


PRODUCT = Path("/sys/devices/virtual/dmi/id/product_name")  # the instance type: trn1.32xlarge
INF2 = "trn1"  # inf2 instances have the cores of trn1


def instance_machine(default: str, product: Path = PRODUCT) -> Hardware:
    """The hardware of this instance; the hardware of ``default`` if the instance type cannot be read."""
    try:
        family = product.read_text().strip().partition(".")[0]
    except OSError:
        family = default
    for name, machine in MACHINES.items():
        if family.startswith(name):
            return machine
    return hardware_of(INF2 if family.startswith("inf2") else default)


DRIVER = Path("/sys/module/neuron/version")


def identity(runtime: str, driver: Path = DRIVER, product: Path = PRODUCT) -> str:
    """The key of test results about ``runtime``: on a device, its instance type, driver and software."""
    if runtime != "neuron":
        return runtime
    read = {"instance": product, "driver": driver}
    named = {}
    for name, path in read.items():
        with contextlib.suppress(OSError):  # this is no AWS instance, or the driver is not a module
            named[name] = path.read_text().strip()
    return ", ".join(f"{name} {version}" for name, version in {"runtime": runtime, **named, **software()}.items())


COMPILER_FLAGS = "NEURON_CC_FLAGS"
CASTS = re.compile(r"--auto-cast(?:-type)?(?:[= ]\S+)?")
AUTO_CAST = "--auto-cast=none"  # without it the compiler may turn float32 products into bfloat16 products


# Physical cores of a logical core. trnpy's kernels use one; by default Neuron joins two on trn2 and trn3.
LOGICAL_CORES, LNC = "NEURON_LOGICAL_NC_CONFIG", "1"


def pinned_flags(flags: str) -> str:
    """NEURON_CC_FLAGS with automatic casts switched off; its own flags for casts are removed."""
    kept = CASTS.sub("", flags).split()
    return " ".join([*kept, AUTO_CAST])


FRONT_END = "NKI_COMPILER_FRONTEND"
PARSING_NKI = "0.6"  # the version that parses a kernel's source unless told to trace it; later ones trace


def front_end(environ: Mapping[str, str] = os.environ) -> str:
    """The front end of nki that compiles trnpy's kernels: the user's choice, else the tracer."""
    return environ.get(FRONT_END) or "tracer"


COMPILE_CACHE = "NEURON_COMPILE_CACHE_URL"  # the compiler's folder of compiled kernels


def compile_cache(environ: Mapping[str, str] = os.environ) -> str:
    """The compiler's cache: the user's choice, else a permanent folder, unlike /var/tmp, the compiler's default.

    Neuron's caches identify kernels by name and the shapes of operands (measured, kiln), so that a changed kernel would
    run its older version: the folder is therefore named after the sources.
    """
    return environ.get(COMPILE_CACHE) or str(folder() / f"neuron-compile-cache-{sources(FOLDER)}")


def _unwrapped(kernel: Callable[..., Any]) -> Callable[..., Any]:
    return kernel


def _nothing() -> None:
    pass


VISIBLE_CORES, NUMBER_OF_CORES = "NEURON_RT_VISIBLE_CORES", "NEURON_RT_NUM_CORES"


def own_core(environ: Mapping[str, str] = os.environ) -> str:
    """The core of this process if a launcher has started several on this host; "" if the process has all cores.

    By default Neuron's runtime gives one process all cores, and then none are left for the next process.
    """
    if environ.get(VISIBLE_CORES) or environ.get(NUMBER_OF_CORES):
        return ""
    count, mine = on_host(environ)
    return mine if count > 1 else ""


@record()
class TorchDevice:
    """A core as torch reaches it: its name, a function that waits for its work, and the call of kernels."""

    device: Any
    synchronise: Callable[[], Any]
    wrap: Callable[[Callable[..., Any]], Callable[..., Any]] = _unwrapped  # a kernel as torch calls it
    select: Callable[[], Any] = _nothing  # selects the core for the calling thread


LITE = "libtorch_neuronx_lite"  # since SDK 2.32, if torch_neuronx is not installed


def _wrapping() -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """The wrapper with which torch calls a kernel: none, or libtorch_neuronx_lite's for one physical core."""
    if importlib.util.find_spec("torch_neuronx") is not None or importlib.util.find_spec(LITE) is None:
        return _unwrapped
    wrap_nki = importlib.import_module(f"{LITE}.nki.nki_hop").wrap_nki
    return lambda kernel: wrap_nki(kernel)[int(LNC)]


def prepare() -> None:
    """Set the environment variables of Neuron's compiler and runtime, before the first of them is loaded.

    A logical core is one physical core. Raises DeviceUnavailable if the environment sets two, because launches must
    agree with it (documented).
    """
    if (lnc := os.environ.get(LOGICAL_CORES, LNC)) != LNC:
        raise DeviceUnavailable(f"{LOGICAL_CORES}={lnc}: trnpy's kernels use one physical core each: set it to {LNC}")
    if core := own_core():
        os.environ[VISIBLE_CORES] = core
    os.environ[COMPILER_FLAGS] = pinned_flags(os.environ.get(COMPILER_FLAGS, ""))
    os.environ.setdefault(LOGICAL_CORES, LNC)
    if software().get("nki", "").startswith(PARSING_NKI):
        os.environ[FRONT_END] = front_end()
    os.environ[COMPILE_CACHE] = compile_cache()


def torch_devices() -> tuple[TorchDevice, ...]:
    """The cores of torch's own ``neuron`` device, else the one of torch-xla; DeviceUnavailable if there is none.

    torch-xla has one process for each core.
    """
    prepare()
    torch = importlib.import_module("torch")
    for package in ("torch_neuronx", LITE):
        if importlib.util.find_spec(package) is not None:
            importlib.import_module(package)  # registers the device
    native = getattr(torch, "neuron", None)
    if native is not None and native.is_available():
        count = native.device_count() if hasattr(native, "device_count") else 1
        if count < 2:
            return (TorchDevice(torch.device("neuron"), native.synchronize, _wrapping()),)
        return tuple(
            TorchDevice(
                torch.device(f"neuron:{i}"),
                functools.partial(native.synchronize, i),
                _wrapping(),
                functools.partial(native.set_device, i),
            )
            for i in range(count)
        )
    if importlib.util.find_spec("torch_xla") is None:
        raise DeviceUnavailable("torch has no neuron device and torch_xla is not installed")
    xla = importlib.import_module("torch_xla")
    return (TorchDevice(xla.device(), lambda: xla.sync(wait=True)),)


class NeuronRuntime:
    """Launches kernels on one NeuronCore, on torch tensors that live in its memory."""

    name = "neuron"
    executes = True
    compiles = True
    parallel = True

    def __init__(
        self,
        hardware: Hardware,
        torch_device: TorchDevice,
        time_limit_s: Callable[[], float],
        kernel: Callable[[str], Callable[..., Any]] = nki_kernel,
    ) -> None:
        self.hardware = hardware
        self.counters = LaunchCounters()
        self.memory = DeviceMemory(hardware.hbm_bytes)
        self._torch = importlib.import_module("torch")
        self._neuron = torch_device
        self._kernel = kernel
        self._guarded = Guard(time_limit_s, torch_device.select, torch_device.synchronise)

    def put(self, array: np.ndarray) -> Buffer:
        """A copy of ``array`` on the device; DeviceMemoryError if it does not fit."""
        copy = np.array(array, order="C")
        # torch does not support the bfloat16 of ml_dtypes, so the bits are copied as integers.
        bits = copy.view(np.int16) if copy.dtype.name == "bfloat16" else copy
        tensor = self._torch.from_numpy(bits)
        if bits is not copy:
            tensor = tensor.view(self._torch.bfloat16)
        moved = self._guarded(lambda: tensor.to(self._neuron.device), "put")
        self.counters.bytes_in += array.nbytes
        return self.memory.hold(Buffer(moved, array.shape, array.dtype), "put")

    def get(self, buffer: Buffer) -> np.ndarray:
        """A copy of ``buffer`` on the host."""
        tensor = self._guarded(lambda: buffer.value.cpu(), "get")
        self.counters.bytes_out += buffer.nbytes
        alone = tensor is not buffer.value  # not if the device is the host's processor
        if buffer.dtype.name == "bfloat16":
            tensor = tensor.view(self._torch.int16)
        found = tensor.numpy()
        return np.asarray(found if alone else np.array(found)).view(buffer.dtype)

    def part(self, buffer: Buffer, rows: slice, columns: slice, shape: tuple[int, int], unit: bool = False) -> Buffer:
        """A block of a matrix, padded with zeros to ``shape``, and with ones on the padding's diagonal if ``unit``."""

        def copy() -> Any:
            block = buffer.value[rows, columns]
            padded = buffer.value.new_zeros(shape)
            padded[: block.shape[0], : block.shape[1]] = block
            if unit:
                padded.diagonal()[block.shape[0] :] = 1
            return padded

        return self._output(self._guarded(copy, "part"), "part")

    def reshaped(self, buffer: Buffer, shape: tuple[int, ...]) -> Buffer:
        """The elements of ``buffer`` in the same order, in another shape."""
        return self._output(self._guarded(lambda: buffer.value.reshape(shape), "reshaped"), "reshaped")

    def run(self, kernel: str, /, *operands: Operand, **parameters: Any) -> Any:
        """Outputs of one launch, a Buffer or a tuple of them, after the device has answered.

        Raises CompileError, DeviceMemoryError, DeviceError, or DeviceTimeout after the policy's time_limit.
        """
        buffers = [self.put(x) if isinstance(x, np.ndarray) else x for x in operands]
        tensors = [None if b is None else b.value for b in buffers]
        started = time.perf_counter()
        outputs = self._guarded(lambda: self._neuron.wrap(self._kernel(kernel))(*tensors, **parameters), kernel)
        elapsed_s = time.perf_counter() - started
        if self.counters.count(kernel, buffers, parameters):
            self.counters.compile_s[kernel] = elapsed_s
        self.counters.seconds[kernel] = self.counters.seconds.get(kernel, 0.0) + elapsed_s
        if isinstance(outputs, (tuple, list)):
            return tuple(self._output(o, kernel) for o in outputs)
        return self._output(outputs, kernel)

    def launch(self, kernel: str, /, *operands: Operand, **parameters: Any) -> Any:
        """Outputs of one launch as arrays: one, or a tuple."""
        return fetched(self, self.run(kernel, *operands, **parameters))

    def _output(self, tensor: Any, what: str) -> Buffer:
        name = str(tensor.dtype).removeprefix("torch.")
        return self.memory.hold(Buffer(tensor, tuple(tensor.shape), dtype_of(name)), what)
