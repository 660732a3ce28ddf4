"""The table and the picture of README.md: what gains on this CPU, measured, and on one core of a trn2, modelled.

python -m benchmarks readme --threads 1 [--write]

The measured ratios are medians of one interleaved run. The modelled ranges compare with what is predicted for this host
from default rates. ``--write`` puts the table into README.md and the picture into docs/pictures.
"""

from __future__ import annotations

import argparse
import datetime
import functools
import html
import math
import os
import pathlib
import sys
from collections.abc import Iterator

import numpy as np
import scipy.linalg
import scipy.sparse

import trnpy
import trnpy.linalg
from benchmarks._measure import gate, paired
from benchmarks._threads import VARIABLE
from benchmarks.gains import INVERSE, Pair, definite, normal, shown, times
from nkisim.hardware import ERROR_FACTOR
from trnpy._settings.host_rates import machine_id

ROOT = pathlib.Path(__file__).parents[1]
PAGE, PICTURE = ROOT / "README.md", ROOT / "docs" / "pictures" / "gains.svg"
BEGIN, END = "<!-- python -m benchmarks readme --threads 1 --write -->\n", "<!-- end of the table -->\n"
ROW_S = 1.0
GAIN, LOSS = 1.1, 0.95  # ratios from which a bar has the colour of a gain, and below which that of a loss


def measured_pairs() -> Iterator[tuple[Pair, str]]:
    """Calls, and the words that say which function they are compared with."""
    small, four = definite(1000, 4), normal(12, 12, 40, 40)
    integers = np.random.default_rng(0).integers(-9, 9, (400, 400))
    large, thousand = definite(400), definite(1000)
    worst = definite(600)
    worst[-1, -1] = 0.01  # so that Cholesky, which trnpy tries first, fails in the last column
    for name, operands in (("solve", (normal(1000, 4, 4), normal(1000, 4, 1))), ("eigh", (small,))):
        both = [functools.partial(getattr(module, name), *operands) for module in (scipy.linalg, trnpy.linalg)]
        yield (f"`{name}` of 1,000 matrices of 4 x 4 in one call", *both), "SciPy's loop"
    both = [functools.partial(module.matmul, integers, integers) for module in (np, trnpy)]
    yield ("`matmul` of int64, 400 x 400, small values", *both), "NumPy's loop"
    both = [functools.partial(module.einsum, "ijab,klab->ijkl", four, four) for module in (np, trnpy)]
    yield ('`einsum("ijab,klab->ijkl")`, 12 x 12 x 40 x 40', *both), "NumPy's loop"
    for name, a in (("sqrtm", large), ("eigh", thousand)):
        both = [functools.partial(getattr(module, name), a) for module in (scipy.linalg, trnpy.linalg)]
        what = f"`{name}`, {len(a):,} x {len(a):,}, positive definite"
        yield (what, *both), "SciPy"
    a = scipy.sparse.random_array((4096, 4096), density=0.01, rng=np.random.default_rng(0), format="csr")
    ours, x = trnpy.sparse.csr_array(a), normal(4096, 64)
    yield ("CSR without structure times dense, 4,096 x 64", *times((a, x), (ours, x))), "SciPy"
    both = [functools.partial(np.linalg.inv, worst), functools.partial(INVERSE, worst)]
    yield ("`numpy.linalg.inv`, 600 x 600, nearly definite: a worst case", *both), "NumPy"


def modelled() -> dict[str, str]:
    """Range of host over device time for calls on one core of a trn2, by row."""
    found = {}
    with trnpy.policy(device="null", machine="trn2"):
        for name, dtype, n in (("matmul", "float64", 4096), ("eigh", "float64", 2048)):
            a = np.eye(n, dtype=dtype)
            decision = trnpy.explain(trnpy.matmul, a, a) if name == "matmul" else trnpy.explain(trnpy.linalg.eigh, a)
            ratio = decision.host_s / decision.device_s
            text = " to ".join(shown(one) for one in (ratio / ERROR_FACTOR, ratio * ERROR_FACTOR))
            found[f"`{name}` of {dtype}, {n:,} x {n:,}, one core of a trn2"] = text
    return found


def table(ratios: dict[str, tuple[str, float]]) -> str:
    """Markdown: measured rows first."""
    lines = ["| call | compared with | times as fast |", "|---|---|---|"]
    lines += [f"| {name} | {other} | {shown(ratio)} (measured) |" for name, (other, ratio) in ratios.items()]
    lines += [f"| {name} | this CPU, predicted | {text} (**modelled**) |" for name, text in modelled().items()]
    return "\n".join(lines) + "\n"


def picture(ratios: dict[str, tuple[str, float]]) -> str:
    """Bars on a logarithmic axis from 0.5 to 50, legible at 420 pixels."""
    left, width, step, top = 12, 396, 40, 34
    low, high = math.log(0.5), math.log(60)

    def place(ratio: float) -> float:
        return left + width * (math.log(ratio) - low) / (high - low)

    bottom = top + step * len(ratios)
    parts = [f'<text x="{left}" y="16" class="t">times as fast as NumPy or SciPy, measured</text>']
    for tick in (1, 2, 5, 10, 20, 50):
        look = "one" if tick == 1 else "grid"
        parts.append(f'<path class="{look}" d="M{place(tick):.0f} {top - 6} V{bottom}"/>')
        parts.append(f'<text x="{place(tick):.0f}" y="{bottom + 16}" text-anchor="middle">{tick}</text>')
    for i, (name, (_, ratio)) in enumerate(ratios.items()):
        y, words = top + step * i, html.escape(name.replace("`", ""))
        look = "gain" if ratio >= GAIN else "loss" if ratio < LOSS else "same"
        start, end = sorted((place(1), place(ratio)))
        parts.append(
            f'<rect class="{look}" x="{start:.1f}" y="{y + 17}" width="{max(end - start, 2):.1f}" height="14"/>'
        )
        parts.append(f'<text x="{left}" y="{y + 11}">{words}</text>')
        parts.append(f'<text x="{end + 5:.0f}" y="{y + 28}" class="b">{shown(ratio)}</text>')
    style = (
        "<style>text{font:12px system-ui,sans-serif;fill:#223;paint-order:stroke;stroke:#fff;stroke-width:3px}"
        ".t{font-weight:600}.b{font-weight:600}"
        ".grid{stroke:#dde}.one{stroke:#667}.gain{fill:#2a7f62}.same{fill:#889}.loss{fill:#b0484f}</style>"
    )
    size = f'viewBox="0 0 {left + width + 12} {bottom + 24}" width="{left + width + 12}" height="{bottom + 24}"'
    paper = f'<rect width="{left + width + 12}" height="{bottom + 24}" fill="#fff"/>'
    return f'<svg xmlns="http://www.w3.org/2000/svg" {size}>{style}{paper}{"".join(parts)}</svg>\n'


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks readme")
    parser.add_argument("--write", action="store_true", help="replace README's table and the picture")
    options = parser.parse_args(argv)
    gate("tests/_einsum/test_loop.py")
    ratios = {}
    for (name, original, ours), other in measured_pairs():
        found = paired(original, ours, ROW_S)
        assert found is not None
        ratios[name] = (other, 1 / found[1])
        print(f"{ratios[name][1]:8.2f}  {name}", file=sys.stderr, flush=True)
    where = f"{machine_id().partition(',')[0]}, {os.environ.get(VARIABLE, 'all')} thread of {os.cpu_count()}"
    versions = f"NumPy {np.__version__}, SciPy {scipy.__version__}"
    text = f"{table(ratios)}\nMeasured {datetime.date.today()}: {where}, {versions}.\n"
    print(text)
    if options.write:
        before, _, rest = PAGE.read_text().partition(BEGIN)
        _, _, after = rest.partition(END)
        PAGE.write_text(f"{before}{BEGIN}{text}{END}{after}")
        PICTURE.parent.mkdir(exist_ok=True)
        PICTURE.write_text(picture(ratios))
    return 0
