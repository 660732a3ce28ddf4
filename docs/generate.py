"""Pages and pictures of the site that follow from the code: what runs where, break-evens, a comparison, drawings.

``write`` makes them; conf.py calls it at every build.
"""

from __future__ import annotations

import bisect
import functools
import html
import importlib
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np

import trnpy
from nkisim.hardware import ERROR_FACTOR
from trnpy._call.dispatch import Op, Reason, accelerated
from trnpy._call.rows import rows as rows_of
from trnpy._einsum.rows import OPS as PRODUCTS
from trnpy._nki.instances import INSTANCES

NUMPY_OPS = rows_of("numpy.linalg")
SOLVERS = rows_of("scipy.sparse.linalg")
SCIPY_OPS = rows_of("scipy.linalg")

ROOT = Path(__file__).parents[1]
MACHINES = ("trn1", "trn2", "trn3")
SIZES = (128, 256, 512, 1024, 2048, 4096, 8192)
DTYPES = ("float32", "float64", "complex64", "complex128")
ROUTE_SIZE = 300  # rows of the operands for which host routes are asked
MANUALS = {
    "numpy": "https://numpy.org/doc/stable/reference/generated/{}.html",
    "scipy": "https://docs.scipy.org/doc/scipy/reference/generated/{}.html",
}

# Arguments of a typical call: what is done with a square matrix ``a`` of n rows.
CALLS: dict[str, Callable[[np.ndarray], tuple]] = {
    **dict.fromkeys(("matmul", "dot", "inner", "kron", "solve", "solve_triangular"), lambda a: (a, a)),
    "lstsq": lambda a: (a[:, : len(a) // 8], a[:, 0]),
    "tensordot": lambda a: (a, a, 1),
    "einsum": lambda a: ("ij,jk->ik", a, a),
    "multi_dot": lambda a: ([a, a, a],),
    "khatri_rao": lambda a: (a[:64], a[:64]),
    "cho_solve": lambda a: ((a, True), a),
    "lu_solve": lambda a: ((a, np.arange(len(a), dtype=np.int32)), a),
    "fractional_matrix_power": lambda a: (a, 0.5),
    "matrix_power": lambda a: (a, 5),
}
# Sections of numerics.md that say how accurate a function is; the first that is found in its name.
ACCURACY = (
    ("eigh", "eigenproblems"), ("eigvalsh", "eigenproblems"), ("cho", "cholesky"), ("lu", "lu-and-solving"),
    ("lstsq", "qr-and-least-squares"), ("slogdet", "lu-and-solving"), ("det", "lu-and-solving"),
    ("solve_triangular", "triangular-systems"), ("solve", "lu-and-solving"), ("pinv", "singular-values"),
    ("inv", "inverses"), ("qr", "qr-and-least-squares"), ("svd", "singular-values"), ("polar", "singular-values"),
    ("orth", "singular-values"), ("null_space", "singular-values"), ("expm", "matrix-exponential"),
    ("sqrtm", "definite-matrices"), ("logm", "definite-matrices"), ("fractional", "definite-matrices"),
    ("", "certificate"),
)  # fmt: skip


def write(folder: Path) -> None:
    """All generated pages and pictures, into ``folder``."""
    (folder / "pages").mkdir(parents=True, exist_ok=True)
    found = {op.name: Found(op) for op in (*PRODUCTS, *SCIPY_OPS, *NUMPY_OPS)}
    (folder / "functions.md").write_text(functions_page(found))
    (folder / "break_even.svg").write_text(break_even_picture(found))
    (folder / "comparison.md").write_text(comparison_table())
    (folder / "instances.md").write_text(instances_table())
    (folder / "call_path.svg").write_text(call_path_picture())
    (folder / "timeline.svg").write_text(timeline_picture(folder))
    command = [sys.executable, "-m", "benchmarks", "scale", "--picture", str((folder / "scaling.svg").absolute())]
    subprocess.run(command, check=True, capture_output=True, cwd=ROOT)
    example_report(folder / "pages" / "report.html")


# --- what runs where --------------------------------------------------------------------------------------------------


class Found:
    """What decisions say of one function, for a typical call."""

    def __init__(self, op: Op) -> None:
        self.function, self.short = accelerated(op), op.name.rpartition(".")[2]
        self.paths = {dtype: self.path(dtype) for dtype in DTYPES}
        self.least = {
            (machine, dtype): self.break_even(machine, dtype)
            for machine in MACHINES
            for dtype in ("float32", "float64")
            if self.paths[dtype][0] == "yes"
        }

    def decision(self, n: int, dtype: str, make: Callable[[int, str], np.ndarray], **policy) -> trnpy.Decision:
        with trnpy.policy(**policy):
            return trnpy.explain(self.function, *CALLS.get(self.short, lambda a: (a,))(make(n, dtype)))

    def path(self, dtype: str) -> tuple[str, str]:
        """Whether there is a device path for a dtype, or why not; and the route on the host."""
        forced = self.decision(ROUTE_SIZE, dtype, definite, device="null", force=True)
        plain = self.decision(ROUTE_SIZE, dtype, definite, device="none")
        device = "yes" if forced.on_device else "no" if forced.reason is Reason.ROUTE else f"no: {forced.detail}"
        return device, plain.route if plain.reason is Reason.ROUTE else ""

    def break_even(self, machine: str, dtype: str) -> int | None:
        """The fewest rows of SIZES for which the call goes to the machine; None if there are none."""

        def gone(n: int) -> bool:
            return self.decision(n, dtype, plain, device="null", machine=machine).on_device

        at = bisect.bisect_left(SIZES, True, key=gone)
        return SIZES[at] if at < len(SIZES) else None


@functools.cache
def definite(n: int, dtype: str) -> np.ndarray:
    """A positive definite matrix of condition below 10."""
    rng = np.random.default_rng(0)
    b = rng.standard_normal((n, n)) + (1j * rng.standard_normal((n, n)) if dtype.startswith("c") else 0)
    return (b @ b.conj().T + 4 * n * np.eye(n)).astype(dtype)


@functools.cache
def plain(n: int, dtype: str) -> np.ndarray:
    """The identity: decisions read shapes, and routes the diagonal."""
    return np.eye(n, dtype=dtype)


def functions_page(found: dict[str, Found]) -> str:
    """A box for each accelerated function."""
    lines = [
        "# Functions",
        "",
        "Every function that has a device path, or a host route in its table of rows. All other names of",
        "`scipy.linalg`, `scipy.sparse` and `numpy.linalg` are NumPy's and SciPy's own functions.",
        "",
        "- **device**: whether kernels compute such a call when it is large enough or forced. Results are",
        "  [checked](../checks.md#the-check-of-a-result); float64 and complex128 are computed",
        "  [by digits](../digits.md#digits) and [certified](../digits.md#certificate).",
        f"- **host route**: what runs without a device in place of the reference, at {ROUTE_SIZE} rows.",
        "- **from**: the fewest rows (of 128, 256, ... 8192) of a square operand for which a call goes to one core;",
        "  of `lstsq` with an eighth as many columns; - where none of these does. The figure is modelled, for float32",
        "  and float64, against the default rates of one host without calibration. The model is within a factor of",
        f"  {ERROR_FACTOR:g} for nine of ten measurements. `trnpy.explain` answers for your own operands and host.",
        "",
    ]
    package = ""
    for name, one in found.items():
        if (top := name.rpartition(".")[0]) != package:
            package = top
            lines += [f"## {'NumPy, products' if top == 'numpy' else top}", ""]
        lines += box(name, one)
    return "\n".join(lines) + "\n"


def box(name: str, one: Found) -> list[str]:
    """What one function does for each dtype."""
    library = name.partition(".")[0]
    section = next(section for part, section in ACCURACY if part in one.short)
    public = f"trnpy.{one.short}" if name.count(".") == 1 else f"trnpy.linalg.{one.short}"
    if name.startswith("numpy.linalg"):
        public = f"`{name}` under `trnpy.patched()`"
    else:
        public = f"`{public}`"
    lines = [
        f"### {name}",
        "",
        f"{public}, with the signature and results of [{name}]({MANUALS[library].format(name)}).",
        f"Accuracy: [numerics](../numerics.md#{section}).",
        "",
        "| dtype | device | host route | from: trn1 | trn2 | trn3 |",
        "|---|---|---|---|---|---|",
    ]
    for dtype, (device, route) in one.paths.items():
        sizes = [f"{one.least[machine, dtype] or '-'}" if (machine, dtype) in one.least else "" for machine in MACHINES]
        lines.append(f"| {dtype} | {device} | {route} | {' | '.join(sizes)} |")
    return [*lines, ""]


# --- comparison -------------------------------------------------------------------------------------------------------

# Public names of other packages that are those of SciPy 1.17.1 or NumPy 2.4.6, counted from their sources, 2026-08.
OTHERS = {
    "CuPy 15.0.0a1": ("20", "39", "18", "22"), "JAX 2026-08": ("40", "classes of its own", "3", "31"),
    "dpnp 0.20": ("3", "0", "0", "31"),
    "trnsci (trnsolver 0.9, trnsparse 0.6)": ("7, other signatures", "a class of its own", "2", "0"),
}  # fmt: skip
COLUMNS = ("scipy.linalg", "scipy.sparse", "scipy.sparse.linalg", "numpy.linalg")
CONTRACTS = """
| | takes and returns | float64 | a call that is not covered | where a call ran, and why |
|---|---|---|---|---|
| trnpy | NumPy arrays | certified by digits, or the host | NumPy or SciPy runs | `explain`, `profile`, report |
| NumPy, SciPy | NumPy arrays | native | - | - |
| CuPy | its own arrays | native | an error | - |
| JAX | its own arrays | native after a process-wide switch; float32 by default | an error | - |
| trnsci | torch tensors | float32 on the device | the host, in three of six libraries without a warning | - |
"""


def comparison_table() -> str:
    """Public names that packages share with SciPy and NumPy, and those for which trnpy has a device path."""
    total = {
        path: sum(not n.startswith("_") and callable(getattr(importlib.import_module(path), n))
                  for n in dir(importlib.import_module(path)))
        for path in COLUMNS
    }  # fmt: skip
    reached = (len(SCIPY_OPS), "products of every class", len(SOLVERS), len(NUMPY_OPS))
    lines = ["| names of | " + " | ".join(COLUMNS) + " |", "|---" * (len(COLUMNS) + 1) + "|"]
    lines.append("| NumPy, SciPy; trnpy | " + " | ".join(map(str, total.values())) + " |")
    lines.append("| trnpy, with a device path | " + " | ".join(map(str, reached)) + " |")
    lines += [f"| {name} | {' | '.join(counts)} |" for name, counts in OTHERS.items()]
    return "\n".join(lines) + "\n" + CONTRACTS


# --- pictures ---------------------------------------------------------------------------------------------------------

STYLE = (
    "<style>text{font:13px system-ui,sans-serif;fill:#223}.s{fill:none;stroke:#667;stroke-width:1.3}"
    ".b{fill:#eef2f8;stroke:#667}.h{fill:#fdf1dc;stroke:#a86}.d{fill:#e0f0e6;stroke:#486}.g{stroke:#ccd;stroke-width:1}"
    "rect.w{fill:#fff}.t{font-size:12px;fill:#556}</style>"
)
BARS = {"tensor": "#2a7f62", "vector": "#c98a1b", "scalar": "#8a5cc2", "gpsimd": "#b0484f", "DMA": "#4a74b8"}


def instances_table() -> str:
    """The rows of trnpy/_nki/instances.py."""
    heads = (
        "instance",
        "chips",
        "NeuronCores",
        "HBM, GiB",
        "vCPUs",
        "host memory, GiB",
        "network, Gbit/s",
        "$ an hour",
    )
    lines = [f"| {' | '.join((*heads, 'kind of price', 'date', 'source'))} |", "|---" * 11 + "|"]
    for row in INSTANCES.values():
        sizes = (row.chips, row.cores, row.hbm_gib, row.vcpus, row.memory_gib, row.network_gbit_per_s)
        cells = [row.name, *("not published" if size is None else f"{size:,g}" for size in sizes)]
        rent = row.rent
        cells += (
            ["not public", "", "", ""] if rent is None else [f"{rent.usd_per_h:g}", rent.kind, rent.dated, rent.source]
        )
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def drawing(width: int, height: int, parts: list[str]) -> str:
    """An SVG on white, legible on light and dark pages."""
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}">'
        f'{STYLE}<rect class="w" width="{width}" height="{height}"/>{"".join(parts)}</svg>\n'
    )


def written(x: float, y: float, words: str, look: str = "", anchor: str = "middle") -> str:
    return f'<text x="{x:g}" y="{y:g}" text-anchor="{anchor}" class="{look}">{html.escape(words)}</text>'


def call_path_picture() -> str:
    """From a public name to the chip, and back to the reference."""
    boxes = [
        (10, "b", "public name", "trnpy.linalg.eigh"), (180, "b", "dispatch", "prepare, decide"),
        (350, "d", "algorithm", "linalg/_eigh"), (520, "d", "engine", "products, kernels"),
        (690, "d", "device", "or the simulator"),
    ]  # fmt: skip
    parts = ['<defs><marker id="a" markerWidth="8" markerHeight="8" refX="7" refY="3" orient="auto">'
             '<path d="M0 0 L7 3 L0 6 Z" fill="#667"/></marker></defs>']  # fmt: skip
    for x, look, title, below in boxes:
        parts.append(f'<rect class="{look}" x="{x}" y="30" width="130" height="56" rx="6"/>')
        parts += [written(x + 65, 54, title), written(x + 65, 74, below, "t")]
    for x in (140, 310, 480, 650):
        parts.append(f'<path class="s" marker-end="url(#a)" d="M{x} 58 H{x + 40}"/>')
    for x, title, below in ((95, "NumPy or SciPy", "your own arguments"), (265, "host route", "as accurate")):
        parts.append(f'<rect class="h" x="{x}" y="150" width="150" height="56" rx="6"/>')
        parts += [written(x + 75, 174, title), written(x + 75, 194, below, "t")]
        parts.append(f'<path class="s" marker-end="url(#a)" d="M245 86 L{x + 75} 148"/>')
    parts.append('<path class="s" marker-end="url(#a)" d="M755 86 V120 H245 V92"/>')
    parts.append(written(560, 138, "result: checked, then delivered; refused results go to NumPy or SciPy", "t"))
    return drawing(830, 220, parts)


def break_even_picture(found: dict[str, Found]) -> str:
    """The rows from which calls in float32 and float64 go to one core of a trn2."""
    rows = [(name, one.least) for name, one in found.items() if any(least for least in one.least.values())]
    left, step, top, height = 270, 60, 64, 26
    end = left + step * len(SIZES)
    parts = [written(10, 18, "rows of a square operand from which one core of a trn2 computes a call", anchor="start")]
    parts.append(
        written(10, 36, "modelled, against default rates of a host; upper bar float32, lower bar float64", "t", "start")
    )
    for i, n in enumerate(SIZES):
        x = left + step * i
        parts += [f'<path class="g" d="M{x} {top} V{top + height * len(rows)}"/>', written(x, top - 6, str(n), "t")]
    for i, (name, least) in enumerate(rows):
        y = top + height * i + 3
        parts.append(written(left - 50, y + 14, name, "t", "end"))
        for offset, dtype, colour in ((0, "float32", BARS["DMA"]), (10, "float64", BARS["tensor"])):
            if n := least.get(("trn2", dtype)):
                x = left + step * SIZES.index(n)
                parts.append(f'<rect x="{x}" y="{y + offset}" width="{end - x}" height="9" fill="{colour}"/>')
    return drawing(end + 20, top + height * len(rows) + 20, parts)


def timeline_picture(folder: Path) -> str:
    """The second kernel of the tutorial, as the simulator prices it."""
    place = folder / "timeline.json"
    kernel = ROOT / "examples" / "kernels" / "product.py"
    command = [sys.executable, "-m", "trnpy", "simulate", f"{kernel}:product_loaded_once", "--mode", "trace"]
    command += ["--shape", "1024x1024", "--shape", "1024x1024", "--dtype", "bfloat16", "--timeline", str(place)]
    subprocess.run(command, check=True, capture_output=True, cwd=ROOT)
    events = json.loads(place.read_text())["traceEvents"]
    names = {e["tid"]: e["args"]["name"] for e in events if e["ph"] == "M" and e["name"] == "thread_name"}
    bars = [e for e in events if e["ph"] == "X"]
    end = max(e["ts"] + e["dur"] for e in bars)
    parts, left, scale, y = [], 110, 680 / end, 30
    for lane in sorted(names):
        queue = "DMA" in names[lane]
        high, colour = (9, BARS["DMA"]) if queue else (24, BARS[names[lane]])
        parts.append(written(left - 10, y + (9 if queue else 16), names[lane], "t", "end"))
        for e in (e for e in bars if e["tid"] == lane):
            x, width = left + scale * e["ts"], max(scale * e["dur"], 0.4)
            parts.append(f'<rect x="{x:.1f}" y="{y}" width="{width:.1f}" height="{high}" fill="{colour}"/>')
        y += 13 if queue else 34
    parts.append(written(left, 18, f"{end:.0f} us of instructions on one core of a trn2, modelled", "t", "start"))
    return drawing(820, y + 20, parts)


def example_report(page: Path) -> None:
    """The report of an example, as the runner writes it."""
    command = [sys.executable, "-m", "trnpy", "--no-report", "--html", str(page), "examples/water_clusters.py", "1"]
    subprocess.run(command, check=True, capture_output=True, cwd=ROOT)
