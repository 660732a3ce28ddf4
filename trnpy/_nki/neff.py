"""Kernels as NEFF files, AWS's compiled programs. The real nki writes them and needs no device for it."""

from __future__ import annotations

import functools
import importlib
import inspect
import zlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from trnpy._nki.kernels import located

FRONT_ENDS = {"parser": "ParserFrontend", "tracer": "TracerFrontend"}
NEFF = "kernel.neff"


def nki_kernel(name: str) -> Callable[..., Any]:
    """The kernel ``name``, or ``file.name``, of trnpy/_nki/kernels; the real nki compiles it at its first launch."""
    module, function = located(name)
    kernel: Callable[..., Any] = getattr(importlib.import_module(module), function)
    return kernel


@functools.cache
def sources(kernels: Path) -> str:
    """A checksum of all kernels' sources."""
    found = 0
    for file in sorted(kernels.rglob("*.py")):
        found = zlib.crc32(file.read_bytes(), found)
    return f"{found:08x}"


def frontend(name: str) -> Any:
    """The class of nki's front end ``name``, parser or tracer."""
    return getattr(importlib.import_module("nki.compiler.frontend"), FRONT_ENDS[name])


def names(kernel: Any, operands: Sequence[Any], parameters: Mapping[str, Any]) -> list[str]:
    """The names of the operands in the compiled program, without those that are None; outputs are output_0, ..."""
    bound = _signature(kernel).bind(*operands, **parameters)
    return [name for name, x in list(bound.arguments.items())[: len(operands)] if x is not None]


def _signature(kernel: Any) -> inspect.Signature:
    return inspect.signature(getattr(kernel, "func", getattr(kernel, "__wrapped__", kernel)))


def write(
    kernel: Any, operands: Sequence[Any], parameters: Mapping[str, Any], front_end: Any, target: str, folder: Path
) -> Path:
    """Compile ``kernel`` for one physical core and arrays like ``operands`` to a NEFF file in the empty ``folder``.

    The entry points are those of NKI 0.6 and 0.7 that a user has documented (aws-samples/
    sample-spectral-dns-on-aws-neuron: export).
    """
    context = importlib.import_module("nki._backends.context").nki_ir_context
    driver = importlib.import_module("nki.compiler.ncc_driver")
    artifacts, neff = folder / "artifacts", folder / NEFF
    artifacts.mkdir()
    bound = _signature(kernel).bind(*operands, **parameters)
    bound.apply_defaults()
    where = {"target": target, "lnc": 1, "artifacts_dir": str(artifacts)}
    with context() as ir:
        traced = front_end(enable_backend_opt=False).compile(ir, kernel, inputs=bound.arguments, **where)
        options = driver.CompileOptions(output_path=str(neff), **where).disable_backend_optimizations()
        driver.CompiledKernel.from_frontend(traced, options)
    return neff
