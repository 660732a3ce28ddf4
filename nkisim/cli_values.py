"""Arguments and results of a kernel on the command line: .npy files, values, and a reference to compare with."""

from __future__ import annotations

import ast
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

from nkisim.chip.dtypes import Array
from nkisim.price.cost import Cost, spread
from nkisim.run.launch import Result
from nkisim.run.loader import load

BUSY = 0.6  # share of the time: a busier engine limits the kernel; in measured kernels the busiest has 62 to 85 %
RTOL = 1e-2  # default of --expect for outputs with fewer bits than float32; float32 has 1e-4
RTOL_FLOAT32 = 1e-4
UNTYPED = np.dtype("V2")


def value(text: str, names: dict[str, Any]) -> Any:
    """A literal, a name of the kernel's file (``Side.left``), a call of one (``Pair(first=1)``), or else the text."""
    try:
        tree = ast.parse(text, mode="eval").body
    except SyntaxError:
        return text
    root: ast.AST = tree.func if isinstance(tree, ast.Call) else tree
    while isinstance(root, ast.Attribute):
        root = root.value
    if isinstance(root, ast.Name) and root.id not in names and root.id not in ("True", "False", "None"):
        return text
    try:
        return _evaluated(tree, names, text)
    except Exception as error:  # a function of the file may run any code
        raise ValueError(f"--arg value {text!r}: {type(error).__name__}: {error}") from error


def _evaluated(node: ast.expr, names: dict[str, Any], text: str) -> Any:
    if isinstance(node, ast.Name):
        if node.id in names:
            return names[node.id]
    elif isinstance(node, ast.Attribute):
        return getattr(_evaluated(node.value, names, text), node.attr)
    elif isinstance(node, ast.Call) and all(k.arg for k in node.keywords):
        words = {str(k.arg): _evaluated(k.value, names, text) for k in node.keywords}
        return _evaluated(node.func, names, text)(*[_evaluated(a, names, text) for a in node.args], **words)
    elif isinstance(node, ast.Tuple):
        return tuple(_evaluated(e, names, text) for e in node.elts)
    try:
        return ast.literal_eval(node)
    except ValueError:
        raise ValueError("expected a literal, a name of the kernel's file or a call of one") from None


def read(path: Path) -> Array:
    """The array of an .npy file; NumPy writes bfloat16 as two bytes without a type."""
    try:
        array: Array = np.load(path, allow_pickle=False)
    except ValueError as error:  # NumPy writes float8_e5m2 as a type that it cannot read
        raise ValueError(f"--input {path}: {error}") from None
    if array.dtype == UNTYPED:
        return array.view(ml_dtypes.bfloat16)
    if array.dtype.kind == "V" and array.dtype.names is None:
        raise ValueError(
            f"--input {path}: NumPy wrote {array.dtype.itemsize}-byte elements without their type: save float32, and "
            "convert in the kernel"
        )
    return array


def write(path: Path, result: Result) -> list[Path]:
    """Write the outputs as .npy files: ``path`` for one; for several, with -0, -1, ... before the suffix."""
    outputs = result.outputs if isinstance(result.outputs, tuple) else (result.outputs,)
    kept = [a for a in outputs if a is not None]
    paths = [path if len(kept) == 1 else path.with_name(f"{path.stem}-{n}{path.suffix}") for n in range(len(kept))]
    for place, array in zip(paths, kept, strict=True):
        plain = array if array.dtype.kind in "biuf" and array.dtype.name in np.sctypeDict else array.astype(np.float32)
        np.save(place, plain)
    return paths


def reference(place: str, arguments: Sequence[Array], words: dict[str, Any]) -> tuple[Any, ...]:
    """The result of ``reference.py:function`` for the kernel's arguments."""
    file, colon, name = place.rpartition(":")
    if not colon or not name.isidentifier():
        raise ValueError(f"--expect {place!r}: expected FILE.py:FUNCTION")
    if not Path(file).is_file():
        raise ValueError(f"--expect {place!r}: there is no such file")
    module = load(file)  # the reference may be in the kernel's own file, which imports nki
    if not callable(getattr(module, name, None)):
        raise ValueError(f"--expect {place!r}: {file} has no function {name}")
    try:
        found = getattr(module, name)(*arguments, **words)
    except Exception as error:
        raise ValueError(f"--expect {place!r}: {type(error).__name__}: {error}") from error
    return found if isinstance(found, tuple) else (found,)


def differences(result: Result, expected: tuple[Any, ...], rtol: float | None) -> list[tuple[bool, str]]:
    """For each output: whether it agrees with the reference, and a line with the largest difference."""
    outputs = result.outputs if isinstance(result.outputs, tuple) else (result.outputs,)
    if len(outputs) != len(expected):
        return [(False, f"{len(outputs)} outputs, the reference returns {len(expected)}")]
    lines = []
    for at, (got, want) in enumerate(zip(outputs, expected, strict=True)):
        a, b = np.asarray(got, np.float64), np.asarray(want, np.float64)
        if a.shape != b.shape:
            lines.append((False, f"output {at}: shape {a.shape}, expected {b.shape}"))
            continue
        allowed = (RTOL if got.dtype.itemsize < 4 else RTOL_FLOAT32) if rtol is None else rtol
        scale = float(np.abs(b).max(initial=0.0))
        gap = float(np.abs(a - b).max(initial=0.0))
        good = bool(gap <= allowed * scale) if np.isfinite(gap) else np.array_equal(a, b, equal_nan=True)
        verdict = "matches" if good else "DIFFERS"
        lines.append((good, f"output {at} {verdict}: {gap:.3g} of {scale:.3g} at most, allowed {allowed:g} of that"))
    return lines


def bound(cost: Cost) -> str:
    """The limit of a kernel's speed, in one line."""
    engine = max(cost.busy_s, key=lambda e: cost.busy_s[e], default="")
    if not engine or cost.launch_s > cost.device_s:
        launch, device = (spread(*cost.interval(name)) for name in ("launch_s", "device_s"))
        return f"the launch: {launch} against {device} on the device, modelled"
    share = cost.busy(engine)
    name = "DMA" if engine == "dma" else f"the {engine} engine"
    if share >= BUSY:
        return f"{name}: busy {100 * share:.0f} % of the time"
    return f"waits between instructions: {name} is the busiest, with {100 * share:.0f} %"
