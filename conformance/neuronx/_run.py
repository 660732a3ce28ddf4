"""python -m conformance neuronx --run FOLDER: compiled kernels on a Trainium by nrtpy, without torch or the compiler.

nrtpy and nki cannot be installed in one environment (neuron-runtime/nrtpy, Neuron 2.32), so that compiling and running
are two commands, with a folder between them.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import importlib.util
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from conformance.neuronx._compile import verdict
from nkisim.run.launch import simulate
from trnpy._cli.probes import ALL, answer, difference
from trnpy._engine.engines import HOST
from trnpy._nki.neff import NEFF
from trnpy._nki.simulated import kernel as simulated

HOW = (
    "python3 -m venv nrtpy_venv && . nrtpy_venv/bin/activate\n"
    "export LD_LIBRARY_PATH=/opt/aws/neuron/lib:$LD_LIBRARY_PATH\n"
    "pip install trnpy-nki\n"
    "pip install nrtpy --extra-index-url https://pip.repos.neuron.amazonaws.com"
)


@dataclass(frozen=True)
class Outcome:
    """One compiled kernel on the device."""

    program: str  # kernel, target and front end
    said: str  # whether it agrees with the twin, or what failed
    milliseconds: float | None

    @property
    def time(self) -> str:
        return "" if self.milliseconds is None else f"{self.milliseconds:.3f} ms"


def execute(folder: Path, nrtpy: Any) -> Outcome:
    """Run one program on core 0, compare its outputs with the twin's, and time it by the device's own trace."""
    request = json.loads((folder / "request.json").read_text())
    check = ALL[request["check"]]
    operands = check.operands()
    try:
        model = nrtpy.NrtpyModel.load_from_neff(folder / NEFF)
        names = json.loads((folder / "operands.json").read_text())
        inputs = {n: nrtpy.NrtpyTensor.from_numpy(x, name=n) for n, x in zip(names, operands, strict=True)}
        outputs = model(inputs=inputs)
        # Outputs may come without their type (nrtpy's tutorial): the simulator's have it.
        expected = simulate(simulated(check.kernel), request["target"])(*operands, **check.parameters)
        if isinstance(expected, tuple):
            got: Any = tuple(_typed(outputs[f"output_{n}"].numpy(), x.dtype) for n, x in enumerate(expected))
        else:
            got = _typed(outputs["output_0"].numpy(), expected.dtype)
        differs = difference(check.answer(got), answer(HOST, check), check)
        return Outcome(folder.name, verdict(differs), model.benchmark(inputs=inputs).min_ms)
    except Exception as why:  # any error of the runtime is the outcome
        return Outcome(folder.name, f"FAILED: {type(why).__name__}: {' '.join(str(why).split())}", None)


def _typed(array: Any, dtype: Any) -> Any:
    return array if array.dtype == dtype else array.view(dtype)


def main(folder: Path, page: Path) -> int:
    """Print and write the outcomes; 0 if all agree, 1 if one does not, 2 if nothing could run."""
    programs = sorted(path.parent for path in folder.glob(f"*/{NEFF}"))
    if not programs:
        print(f"{folder} has no compiled kernels: python -m conformance neuronx --keep {folder} makes them")
        return 2
    if importlib.util.find_spec("nrtpy") is None:
        print(f"nrtpy is not installed in this Python. It needs an instance with a Trainium. To get it there:\n{HOW}")
        return 2
    nrtpy = importlib.import_module("nrtpy")
    lines = ["# trnpy's kernels on a Trainium, by nrtpy", "", f"- nrtpy {importlib.metadata.version('nrtpy')}", ""]
    lines += ["| kernel, target, front end | result | fastest of five |", "|---|---|---|"]
    good = 0
    for program in programs:
        one = execute(program, nrtpy)
        good += one.said == "agrees"
        print(f"{one.program}: {one.said} {one.time}".rstrip(), flush=True)
        lines.append(f"| {one.program} | {one.said} | {one.time} |")
        page.write_text("\n".join(lines) + "\n")
    print(f"{good} of {len(programs)} agree; page written to {page}")
    return 0 if good == len(programs) else 1
