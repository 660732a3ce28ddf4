"""Is there a Neuron device, with the software to use it?  The only file that looks for ``nki``."""

from __future__ import annotations

import glob
import importlib.metadata
import importlib.util
from dataclasses import dataclass

MINIMUM_NKI = (0, 6)  # the dialect the kernels are written in


@dataclass(frozen=True, slots=True)
class Detection:
    """What was found, and the first thing that is missing ("" when nothing is)."""

    nodes: tuple[str, ...]  # /dev/neuron*
    versions: dict[str, str]  # of the packages that are installed
    missing: str

    @property
    def available(self) -> bool:
        return not self.missing


def _versions() -> dict[str, str]:
    found = {}
    for package in ("nki", "neuronx-cc", "torch", "torch-neuronx", "torch-xla"):
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def _real_nki() -> str:
    """ "" when ``nki`` is AWS's compiler of a known dialect, else what is wrong with it."""
    if importlib.util.find_spec("nki") is None:
        return "the nki package is not installed (pip install trnpy[neuron] from the Neuron package index)"
    try:
        isa = importlib.import_module("nki.isa")
        version = importlib.metadata.version("nki")
    except ImportError as why:
        return f"the nki package does not import: {why}"
    # PyPI holds a placeholder of the same name that imports and can do nothing.
    if not hasattr(isa, "nc_matmul"):
        return f"nki {version} is a placeholder without nki.isa.nc_matmul: install it from the Neuron package index"
    if tuple(int(part) for part in version.split(".")[:2]) < MINIMUM_NKI:
        return f"nki {version} is older than {'.'.join(map(str, MINIMUM_NKI))}"
    return ""


def detect() -> Detection:
    """Look for a device, the NKI compiler and torch, in that order."""
    nodes = tuple(sorted(glob.glob("/dev/neuron*")))
    versions = _versions()
    if not nodes:
        missing = "no Neuron device: /dev/neuron0 is missing"
    elif problem := _real_nki():
        missing = problem
    elif "torch" not in versions:
        missing = "torch is not installed: it moves arrays to the device"
    else:
        # Ends when the kernels of the engine issue are here: then this branch is "".
        missing = "this version of trnpy has no kernels for the device yet"
    return Detection(nodes, versions, missing)
