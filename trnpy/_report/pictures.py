"""Pictures of the HTML report that have a time axis for many ranks."""

from __future__ import annotations

import html

from trnpy._report.ranks import Rank, place_parts
from trnpy._report.units import duration, place

ROW = 22  # height in pixels of the row of a rank
TICKS = 8  # on the time axis at most
THINNEST = 0.8  # thousandths of the time axis, about a pixel: least width of what is drawn
KEYS = {"host": "accelerated functions", "waits": "waiting for other ranks", "moves": "transfers"}


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
    """When each rank called accelerated functions, waited and sent: a row for each, on one axis."""
    began = min(start for r in ranks for start in (r.began, *(e[0] for e in r.events)))
    elapsed_s = max(r.began + r.elapsed_s for r in ranks) - began
    drawn = []
    for row, rank in enumerate(ranks):
        for start, seconds, kind, what in sorted(rank.events, key=lambda e: e[2] != "host"):  # calls below the others
            name, _, where = what.partition(" at ")
            says = f"rank {row}: {name} at {place(*place_parts(where))}, {duration(seconds)} {KEYS[kind]}"
            x, width = 1000 * (start - began) / elapsed_s, max(1000 * seconds / elapsed_s, THINNEST)
            drawn.append(
                f'<rect class="{kind}" x="{x:.2f}" y="{ROW * row + 3}" width="{width:.2f}" height="{ROW - 6}">'
                f"<title>{html.escape(says)}</title></rect>"
            )
    height = ROW * len(ranks)
    names = "".join(f"<span>rank {row}</span>" for row in range(len(ranks)))
    keys = "".join(f'<span><i class="{kind}"></i>{said}</span>' for kind, said in KEYS.items())
    return (
        f'<div class="timeline ranks"><div class="lanes">{names}</div><div class="track">'
        f'<svg viewBox="0 0 1000 {height}" style="height:{height}px" preserveAspectRatio="none" role="img" '
        f'aria-label="When ranks worked and waited; the table by rank has the figures">{"".join(drawn)}</svg>'
        f'{axis(elapsed_s)}</div></div><p class="legend">{keys}</p>'
    )
