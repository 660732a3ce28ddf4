"""Pictures of the HTML report that have a time axis for many ranks."""

from __future__ import annotations

import html

from trnpy._report.ranks import HOST, place_parts
from trnpy._report.run_record import Rank
from trnpy._report.units import duration, place

ROW = 22  # height in pixels of the row of a rank, and of each of its NeuronCores
TICKS = 8  # on the time axis at most
THINNEST = 0.8  # thousandths of the time axis, about a pixel: least width of what is drawn
KEYS = {
    "host": "accelerated functions on the host", "device": "on a NeuronCore",
    "modelled": "on a NeuronCore, if it had one (modelled)", "waits": "waiting for other ranks", "moves": "transfers",
}  # fmt: skip


def ticks(elapsed_s: float) -> list[float]:
    """Round times from 0, at most TICKS of them, up to ``elapsed_s``."""
    step = 1e-6
    while elapsed_s / step > TICKS:
        step *= 2.5 if f"{step:e}".startswith("2") else 2
    return [i * step for i in range(int(0.9 * elapsed_s / step) + 1)]  # a label at the end would not fit


def tick(seconds: float) -> str:
    """A round time without trailing zeros: 5 s, 2.5 ms."""
    value, _, unit = duration(seconds).partition(" ")
    return f"{value.rstrip('0').rstrip('.') if '.' in value else value} {unit}"


def axis(elapsed_s: float) -> str:
    """The labels below a time axis."""
    marks = "".join(f'<span style="left:{100 * t / elapsed_s:.2f}%">{tick(t)}</span>' for t in ticks(elapsed_s))
    return f'<div class="ticks">{marks}</div>'


def rank_rows(ranks: list[Rank]) -> str:
    """When each rank called accelerated functions, waited and sent: a row for each and its cores, on one axis."""
    began = min(start for r in ranks for start in (r.began, *(e[0] for e in r.events)))
    elapsed_s = max(r.began + r.elapsed_s for r in ranks) - began
    drawn = []
    rows = [(number, core) for number, r in enumerate(ranks) for core in sorted({HOST, *(e[4] for e in r.events)})]
    for number, rank in enumerate(ranks):
        for start, seconds, kind, what, core in sorted(rank.events, key=lambda e: e[2] != "host"):  # below the others
            row, (name, _, where) = rows.index((number, core)), what.partition(" at ")
            says = f"{name} at {place(*place_parts(where))}, {duration(seconds)} {KEYS[kind]}"
            x, width = 1000 * (start - began) / elapsed_s, max(1000 * seconds / elapsed_s, THINNEST)
            drawn.append(
                f'<rect class="{kind}" x="{x:.2f}" y="{ROW * row + 3}" width="{width:.2f}" height="{ROW - 6}">'
                f"<title>{_row_name(number, core)}: {html.escape(says)}</title></rect>"
            )
    height = ROW * len(rows)
    names = "".join(f"<span>{_row_name(*row)}</span>" for row in rows)
    kinds = {e[2] for r in ranks for e in r.events}
    classes = {kind: "device hatched" if kind == "modelled" else kind for kind in KEYS}
    keys = "".join(f'<span><i class="{classes[k]}"></i>{said}</span>' for k, said in KEYS.items() if k in kinds)
    return (
        f'<div class="timeline ranks"><div class="lanes">{names}</div><div class="track">'
        f'<svg viewBox="0 0 1000 {height}" style="height:{height}px" preserveAspectRatio="none" role="img" '
        f'aria-label="When ranks worked and waited; the table by rank has the figures">{"".join(drawn)}</svg>'
        f'{axis(elapsed_s)}</div></div><p class="legend">{keys}</p>'
    )


def _row_name(rank: int, core: int) -> str:
    return f"rank {rank}" if core == HOST else f"rank {rank}, core {core}"
