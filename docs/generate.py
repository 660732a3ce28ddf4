"""Pages and pictures of the site that follow from the code: what runs where, break-evens, a comparison, drawings.

``write`` makes them; conf.py calls it at every build.
"""

from __future__ import annotations

import html
import importlib
import json
import subprocess
import sys
from pathlib import Path

from functions_page import SIZES, Found, functions_page

from trnpy._call.rows import rows as rows_of
from trnpy._nki.instances import INSTANCES

NUMPY_OPS = rows_of("numpy.linalg")
SOLVERS = rows_of("scipy.sparse.linalg")
SCIPY_OPS = rows_of("scipy.linalg")

ROOT = Path(__file__).parents[1]


def write(folder: Path) -> None:
    """All generated pages and pictures, into ``folder``."""
    (folder / "pages").mkdir(parents=True, exist_ok=True)
    found = {op.name: Found(op) for op in (*rows_of("numpy"), *SCIPY_OPS, *NUMPY_OPS)}
    (folder / "functions.md").write_text(functions_page(found))
    (folder / "break_even.svg").write_text(break_even_picture(found))
    (folder / "comparison.md").write_text(comparison_table())
    (folder / "instances.md").write_text(instances_table())
    (folder / "call_path.svg").write_text(call_path_picture())
    (folder / "timeline.svg").write_text(timeline_picture(folder))
    command = [sys.executable, "-m", "benchmarks", "scale", "--picture", str((folder / "scaling.svg").absolute())]
    subprocess.run(command, check=True, capture_output=True, cwd=ROOT)
    example_report(folder / "pages" / "report.html")


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
    "<style>text{font:14px system-ui,sans-serif;fill:#223}.s{fill:none;stroke:#667;stroke-width:1.3}"
    ".b{fill:#eef2f8;stroke:#667}.h{fill:#fdf1dc;stroke:#a86}.d{fill:#e0f0e6;stroke:#486}.g{stroke:#ccd;stroke-width:1}"
    "rect.w{fill:#fff}.t{font-size:13px;fill:#556}</style>"
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
    """From a public name down to the chip, and aside to the CPU; legible at 420 pixels."""
    steps = [
        ("b", "public name", "trnpy.linalg.eigh, or SciPy's"), ("b", "dispatch", "prepares the call, decides"),
        ("d", "algorithm", "linalg/_eigh"), ("d", "engine", "products and kernels"),
        ("d", "device", "or the simulator"),
    ]  # fmt: skip
    aside = {1: ("CPU fast path", "as accurate"), 2: ("NumPy or SciPy", "your own arguments")}
    parts = ['<defs><marker id="a" markerWidth="8" markerHeight="8" refX="7" refY="3" orient="auto">'
             '<path d="M0 0 L7 3 L0 6 Z" fill="#667"/></marker></defs>']  # fmt: skip
    for i, (look, title, below) in enumerate(steps):
        y = 12 + 84 * i
        parts.append(f'<rect class="{look}" x="10" y="{y}" width="220" height="54" rx="6"/>')
        parts += [written(120, y + 23, title), written(120, y + 43, below, "t")]
        if i:
            parts.append(f'<path class="s" marker-end="url(#a)" d="M120 {y - 30} V{y - 2}"/>')
        if i in aside:
            title, below = aside[i]
            parts.append(f'<rect class="h" x="262" y="{y}" width="148" height="54" rx="6"/>')
            parts += [written(336, y + 23, title), written(336, y + 43, below, "t")]
    parts.append('<path class="s" marker-end="url(#a)" d="M230 123 H260"/>')
    parts.append('<path class="s" marker-end="url(#a)" d="M230 140 H246 V207 H260"/>')
    parts.append('<path class="s" marker-end="url(#a)" d="M230 375 H336 V238"/>')
    for i, words in enumerate(("a result", "that fails", "its check")):
        parts.append(written(344, 290 + 18 * i, words, "t", "start"))
    return drawing(420, 420, parts)


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
