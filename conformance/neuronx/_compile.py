"""One kernel through AWS's compiler: ``python -m conformance.neuronx._compile FOLDER``, in a process of its own.

request.json in the folder has the number of the check in ``doctor --probe``, the target and the front end. The last
line printed is the answer as JSON. The entry points of BIRSim are those that users of NKI 0.6 have documented
(vLLM-Neuron).
"""

from __future__ import annotations

import importlib
import json
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

from trnpy._cli.probes import ALL, Check, answer, difference
from trnpy._engine.engines import HOST
from trnpy._nki.neff import frontend, names, nki_kernel, write

STANDALONE = ("nki.framework.standalone", "nki.framework", "nki.compiler", "nki")  # where StandaloneKernel is or was


def compiled(folder: Path) -> dict[str, Any]:
    """Seconds to compile, size of the NEFF and BIRSim's verdict; or the step that failed, with the compiler's words."""
    request = json.loads((folder / "request.json").read_text())
    check = ALL[request["check"]]
    found: dict[str, Any] = {"ok": False, "step": "import", "error": ""}
    try:
        kernel = nki_kernel(check.kernel)
        operands = check.operands()
        front_end = frontend(request["front_end"])
        found["step"] = "compile"
        began = time.perf_counter()
        (folder / "operands.json").write_text(json.dumps(names(kernel, operands, check.parameters)))
        neff = write(kernel, operands, check.parameters, front_end, request["target"], folder)
        found["neff_bytes"] = neff.stat().st_size
        found["seconds"] = round(time.perf_counter() - began, 1)
        found["step"] = "BIRSim"
        found["birsim"] = _birsim(kernel, check, operands, front_end)
    except Exception as error:  # any exception of the compiler is part of the answer
        return {**found, "error": f"{type(error).__name__}: {error}"}
    return {**found, "ok": True}


def _birsim(kernel: Any, check: Check, operands: tuple[Any, ...], front_end: Any) -> str:
    """How results of the compiled program on the CPU differ from the twin's; or that this version has no BIRSim."""
    for place in STANDALONE:
        try:
            standalone = getattr(importlib.import_module(place), "StandaloneKernel", None)
        except ImportError:
            continue
        if standalone is not None and hasattr(kernel, "_to_subclass"):
            runs = kernel._to_subclass(standalone, _frontend_cls=front_end, _enable_simulation=True)
            outputs = runs(*operands, **check.parameters)
            outputs = tuple(map(np.asarray, outputs)) if isinstance(outputs, tuple) else np.asarray(outputs)
            return verdict(difference(check.answer(outputs), answer(HOST, check), check))
    return "not offered"


def verdict(differs: str) -> str:
    return f"DIFFERS: {differs}" if differs else "agrees"


if __name__ == "__main__":
    print(json.dumps(compiled(Path(sys.argv[1]))))
