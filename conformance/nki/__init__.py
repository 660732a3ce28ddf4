"""python -m conformance nki FOLDER: NKI kernels written by others, unmodified, on the simulator.

FOLDER is a checkout of the public documentation repository aws-neuron/aws-neuron-sdk, or its ``nki``
folder; this repository holds none of its code. Every runnable kernel of ``nki/examples``, every docstring
example of ``nki.isa`` and ``nki.language``, the kernels printed in guides, and the guides' statements on views
and strides are run and compared with our NumPy references. Kernels that the documentation shows as
wrong must be refused.

--library FOLDER: a checkout of aws-neuron/nki-library instead. Its kernel files are loaded, and its fast tests run
against their own references. The exit code is 1 if a result is wrong, or a refusal has no valid reason.

--spectral FOLDER: a copy of aws-samples/sample-spectral-dns-on-aws-neuron instead. Its stages of a Navier-Stokes step
run against float64, and their prices are compared with the published times. The exit code is 1 if either is off.

--kernels ours: trnpy's own kernels instead, traced for each front end of --nki (default: all) on each machine. The
exit code is 1 if a compiler would refuse one.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from conformance.nki._examples import examples
from conformance.nki._guides import guide_kernels
from conformance.nki._library import main as library
from conformance.nki._ours import CASES, MACHINES, cells
from conformance.nki._outcome import Outcome
from conformance.nki._snippets import docstrings, guides
from conformance.nki._spectral import main as spectral
from nkisim.chip.dialects import ALL, DIALECTS, chosen
from nkisim.status import Status
from nkisim.table import print_table


@dataclass(frozen=True)
class Summary:
    """The counts in the last line, which determine the exit code."""

    good: int
    bad: int
    left_out: int


def outcomes(folder: Path) -> Iterator[Outcome]:
    """Run everything below ``folder``, which is only read."""
    root = folder / "nki" if (folder / "nki").is_dir() else folder
    if not (root / "examples").is_dir():
        raise FileNotFoundError(f"{folder} has no nki/examples: a checkout of aws-neuron/aws-neuron-sdk is needed")
    with tempfile.TemporaryDirectory(prefix="trnpy-conformance-") as scratch:
        yield from examples(root)
        yield from docstrings(root, Path(scratch))
        yield from guides(root, Path(scratch))
        yield from guide_kernels(root, Path(scratch))


def _progress(name: str) -> None:
    """Say on standard error which kernel is being traced: all of them take minutes."""
    print(f"{list(CASES).index(name) + 1} of {len(CASES)}: {name}", file=sys.stderr, flush=True)


def _own_kernels(options: argparse.Namespace) -> int:
    """Print the table of trnpy's own kernels: front ends and machines side by side."""
    try:
        dialects = chosen(options.nki)
    except ValueError as error:
        print(f"conformance nki: {error}")
        return 2
    found = list(cells(dialects, begun=_progress))
    refused = [f for c in found for f in c.found]
    if options.json:
        plain = [{**asdict(c), "shown": c.shown} for c in found]
        print(json.dumps({"cells": plain}, indent=1))
        return 1 if refused else 0
    heads = ("kernel", *(f"{nki} {target}" for nki in dialects for target in MACHINES))
    rows = [(name, *(c.shown for c in found if c.kernel == name)) for name in dict.fromkeys(c.kernel for c in found)]
    print_table("kernels of trnpy, front ends and machines: taken by the compiler, as far as is known", heads, rows)
    for finding in sorted(set(refused)):
        print(finding)
    kernels = len(rows)
    bad = sum(bool(c.found) for c in found)
    print(f"{kernels} kernels x {len(dialects)} front ends x {len(MACHINES)} machines: {bad} of {len(found)} refused")
    return 1 if refused else 0


def summary(found: Sequence[Outcome]) -> Summary:
    good = sum(o.good for o in found)
    left_out = sum(o.left_out for o in found)
    return Summary(good, len(found) - good - left_out, left_out)


def main(argv: list[str]) -> int:
    """Print the table; 0 if everything that can run runs and matches, 1 otherwise, 2 without a checkout."""
    parser = argparse.ArgumentParser(prog="python -m conformance nki", description=__doc__)
    parser.add_argument("folder", type=Path, metavar="FOLDER", nargs="?")
    parser.add_argument("--kernels", choices=("ours",), help="trnpy's own instead of a folder's")
    parser.add_argument("--nki", default=ALL, help=f"of --kernels ours: {', '.join(DIALECTS)}, with commas, or all")
    parser.add_argument("--library", type=Path, metavar="FOLDER", help="a checkout of aws-neuron/nki-library")
    parser.add_argument("--spectral", type=Path, metavar="FOLDER", help="a copy of the spectral sample")
    parser.add_argument("--points", type=int, default=64, help="of --spectral: in each direction; a multiple of 32")
    parser.add_argument("--steps", type=int, default=1, help="of --spectral")
    parser.add_argument("--most", type=int, default=4, help="of --library: parameters of one test; 0: all")
    parser.add_argument("--seconds", type=int, default=60, help="of --library: for one test")
    parser.add_argument("-k", default="not tensor_view", metavar="EXPRESSION", help="of --library: pytest's -k")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(argv)
    if options.kernels:
        return _own_kernels(options)
    if options.library is not None:
        return library(options.library, options.most, options.seconds, options.k)
    if options.spectral is not None:
        return spectral(options.spectral, options.points, options.steps)
    if options.folder is None:
        parser.error("FOLDER, --library FOLDER, --spectral FOLDER or --kernels ours is needed")
    try:
        found = []
        with Status("conformance nki") as status:
            for outcome in outcomes(options.folder):
                found.append(outcome)
                status.step = f"{len(found)} kernels"
    except FileNotFoundError as error:
        print(f"conformance nki: {error}")
        return 2
    total = summary(found)
    if options.json:
        print(json.dumps({"summary": asdict(total), "kernels": [asdict(o) for o in found]}, indent=1))
    else:
        heads = ("kernel", "runs", "matches", "lint", "remark")
        print_table("NKI kernels of the public documentation on the simulator", heads, [o.row() for o in found])
        print(f"{total.good} as documented, {total.bad} not, {total.left_out} left out with the reason given")
    return 1 if total.bad else 0
