"""One kernel through AWS's compiler: ``python -m conformance.neuronx._compile REQUEST.json``, in a process of its own.

The request names the kernel's module and function, its operands as .npy files, its settings, the target, the front end
and a folder. The last line printed is the answer as JSON. The entry points are those of NKI 0.6 and 0.7 that users
have documented (aws-samples/sample-spectral-dns-on-aws-neuron: export; vLLM-Neuron: BIRSim).
"""

from __future__ import annotations

import importlib
import inspect
import json
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

FRONT_ENDS = {"parser": "ParserFrontend", "tracer": "TracerFrontend"}
STANDALONE = ("nki.framework.standalone", "nki.framework", "nki.compiler", "nki")  # where StandaloneKernel is or was


def answer(request: dict[str, Any]) -> dict[str, Any]:
    """Seconds to compile, size of the NEFF and BIRSim's results; or the step that failed, with the compiler's words."""
    found: dict[str, Any] = {"ok": False, "step": "import", "error": ""}
    try:
        kernel = getattr(importlib.import_module(request["module"]), request["function"])
        operands = [None if path is None else np.load(path) for path in request["operands"]]
        front_end = getattr(importlib.import_module("nki.compiler.frontend"), FRONT_ENDS[request["front_end"]])
        found["step"] = "compile"
        began = time.perf_counter()
        found["neff_bytes"] = _neff(kernel, operands, front_end, request)
        found["seconds"] = round(time.perf_counter() - began, 1)
        found["step"] = "BIRSim"
        found["birsim"] = _birsim(kernel, operands, front_end, request) if request["simulate"] else "not asked for"
    except Exception as error:  # any exception of the compiler is part of the answer
        return {**found, "error": f"{type(error).__name__}: {error}"}
    return {**found, "ok": True}


def _neff(kernel: Any, operands: list[Any], front_end: Any, request: dict[str, Any]) -> int:
    """Compile to a NEFF file without a device. Returns its size."""
    context = importlib.import_module("nki._backends.context").nki_ir_context
    driver = importlib.import_module("nki.compiler.ncc_driver")
    artifacts, neff = Path(request["folder"]) / "artifacts", Path(request["folder"]) / "kernel.neff"
    artifacts.mkdir()
    function = getattr(kernel, "func", getattr(kernel, "__wrapped__", kernel))
    bound = inspect.signature(function).bind(*operands, **request["settings"])
    bound.apply_defaults()
    where = {"target": request["target"], "lnc": 1, "artifacts_dir": str(artifacts)}
    with context() as ir:
        traced = front_end(enable_backend_opt=False).compile(ir, kernel, inputs=bound.arguments, **where)
        options = driver.CompileOptions(output_path=str(neff), **where).disable_backend_optimizations()
        driver.CompiledKernel.from_frontend(traced, options)
    return neff.stat().st_size


def _birsim(kernel: Any, operands: list[Any], front_end: Any, request: dict[str, Any]) -> str:
    """Outputs of the compiled program on the CPU, written beside the NEFF; or that this version has no BIRSim."""
    for place in STANDALONE:
        try:
            standalone = getattr(importlib.import_module(place), "StandaloneKernel", None)
        except ImportError:
            continue
        if standalone is not None and hasattr(kernel, "_to_subclass"):
            runs = kernel._to_subclass(standalone, _frontend_cls=front_end, _enable_simulation=True)
            outputs = runs(*operands, **request["settings"])
            for n, output in enumerate(outputs if isinstance(outputs, tuple) else (outputs,)):
                np.save(Path(request["folder"]) / f"output-{n}.npy", np.asarray(output))
            return "ran"
    return "not offered"


if __name__ == "__main__":
    print(json.dumps(answer(json.loads(Path(sys.argv[1]).read_text()))))
