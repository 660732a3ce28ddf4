"""An HTML page of a sparse matrix's blocks: positions, densities, and predicted times of a product."""

from __future__ import annotations

import html
import math
from pathlib import Path
from typing import Any

import numpy as np

from trnpy._report.style import STYLE
from trnpy.sparse._tiles import Blocks

MOST = 256  # cells per side that a screen can show; in larger matrices a cell represents several blocks
SHADES = 6  # of density; each is a quarter of the next
SLAB = 2**20  # stored elements that are counted at once

PICTURE = """
.blocks { display: grid; grid-template-columns: minmax(0, 1fr) 17em; gap: 28px; align-items: start; margin-top: 30px; }
.blocks svg { width: min(100%, 80vh); background: var(--card); border: 1px solid var(--rule); }
.blocks pre { margin: 0; font: inherit; font-size: 13px; white-space: pre-wrap; }
path, .legend i { fill: var(--device); background: var(--device); }
@media (max-width: 720px) { .blocks { grid-template-columns: minmax(0, 1fr); } }
"""


def opacity(shade: int) -> float:
    """Opacity of a shade from 1, the palest, to SHADES."""
    return 0.15 + 0.85 * (shade - 1) / (SHADES - 1)


def cells(pattern: Any, block: int) -> tuple[np.ndarray, int]:
    """Stored elements of ``pattern`` (CSR or CSC) in square cells, and the side of a cell: a multiple of ``block``."""
    rows, columns = pattern.shape
    side = block * max(1, math.ceil(max(rows, columns) / (block * MOST)))
    by_rows = pattern.format == "csr"
    majors, minors = (-(-n // side) for n in ((rows, columns) if by_rows else (columns, rows)))
    counts = np.zeros(majors * minors, np.int64)
    indptr = np.asarray(pattern.indptr, np.int64)
    first = 0
    while first < len(indptr) - 1:
        after = max(first + 1, int(np.searchsorted(indptr, indptr[first] + SLAB, side="right")) - 1)
        major = np.repeat(np.arange(first, after) // side, np.diff(indptr[first : after + 1]))
        minor = pattern.indices[indptr[first] : indptr[after]] // side
        counts += np.bincount(major * minors + minor, minlength=len(counts))
        first = after
    counts = counts.reshape(majors, minors)
    return (counts if by_rows else counts.T), side


def shades(counts: np.ndarray, side: int, shape: tuple[int, int]) -> np.ndarray:
    """Shade of each cell: 0 if empty, SHADES if more than a quarter full, one less for each factor of four."""
    heights, widths = (np.diff(np.append(np.arange(0, n, side), n)) for n in shape)
    density = counts / np.maximum(np.outer(heights, widths), 1)
    with np.errstate(divide="ignore"):
        steps = np.floor(-np.log(density) / math.log(4))
    return np.where(counts > 0, np.clip(SHADES - steps, 1, SHADES), 0).astype(int)


def _path(shade: np.ndarray, value: int) -> str:
    """The SVG path of all cells of one shade: a rectangle for each run along a row."""
    runs = []
    for i, row in enumerate(shade == value):
        edges = np.flatnonzero(np.diff(np.concatenate([[False], row, [False]])))
        runs += [f"M{s} {i}h{e - s}v1h{s - e}z" for s, e in edges.reshape(-1, 2)]
    return "".join(runs)


def page(blocks: Blocks, analysis: str, pattern: Any, title: str = "blocks") -> str:
    """Self-contained HTML without scripts, for light and dark screens; ``analysis`` is the text beside the picture."""
    counts, side = cells(pattern, blocks.block)
    shade = shades(counts, side, pattern.shape)
    height, width = max(shade.shape[0], 1), max(shade.shape[1], 1)
    paths = "".join(
        f'<path opacity="{opacity(value):.2f}" d="{d}"/>'
        for value in range(1, SHADES + 1)
        if (d := _path(shade, value))
    )
    legend = "".join(
        f'<span><i style="opacity:{opacity(value):.2f}"></i>'
        f"{f'over {4.0 ** (value - SHADES - 1):.2g}' if value > 1 else 'less'}</span>"
        for value in range(SHADES, 0, -1)
    )
    rows, columns = pattern.shape
    filled = int((counts > 0).sum())
    return (
        '<!doctype html><html lang="en"><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{html.escape(title)}</title><style>{STYLE}{PICTURE}</style><main>"
        f"<h1>{blocks.count} blocks, {blocks.density:.2%} full</h1>"
        f'<p class="lead">{html.escape(title)}: {rows} x {columns}, each cell {side} x {side}.</p>'
        f'<div class="blocks"><svg viewBox="0 0 {width} {height}" role="img" shape-rendering="crispEdges" '
        f'aria-label="{filled} of {counts.size} cells hold elements">{paths}</svg>'
        f"<div><pre>{html.escape(analysis)}</pre>"
        f'<p class="legend">stored fraction of a cell: {legend}</p></div></div></main></html>\n'
    )


def write(path: str | Path, blocks: Blocks, analysis: str, pattern: Any) -> None:
    """Write the page to a file."""
    Path(path).write_text(page(blocks, analysis, pattern, Path(path).stem), encoding="utf-8")
