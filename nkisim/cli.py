"""The command line: ``python -m nkisim run|lint|timeline``; ``simulate`` is another name of ``run``."""

from __future__ import annotations

import argparse
import copy
import dataclasses
import inspect
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from nkisim.chip.dialects import ALL, DEFAULT, DIALECTS, PARSER, TRACER, Dialect, chosen
from nkisim.chip.dtypes import STORAGE, Array
from nkisim.chip.errors import SimulatorError
from nkisim.cli_values import bound, differences, read, reference, value, write
from nkisim.lint.linter import environment, errors, lint_file, lint_launch, lint_trace
from nkisim.lint.rules import DECIDED_ELSEWHERE, RULES, Finding
from nkisim.price.cost import Cost, price, rows
from nkisim.price.timeline import write_timeline
from nkisim.run.launch import MODES, TARGETS, Kernel, Result, Specification, run
from nkisim.run.loader import load_kernel
from nkisim.run.precision import precision
from nkisim.status import Status
from nkisim.table import print_table

USAGE_ERROR = 2
NKI_HELP = (
    f"front end whose refusals hold: {', '.join(DIALECTS)}; default {DEFAULT}",
    f"front ends whose refusals are shown: {', '.join(DIALECTS)}, several with commas, or all, the default",
)
INDEX_RANGE = 128  # random integers for a kernel stay below this: valid row indices of any tile


def parser(prog: str, run_name: str = "run") -> argparse.ArgumentParser:
    """The parser of the commands; usage lines begin with ``prog``, that of ``run`` continues with the name typed."""
    top = argparse.ArgumentParser(prog=prog, description="NKI kernels on any CPU.")
    commands = top.add_subparsers(dest="command", required=True)
    lint = commands.add_parser("lint", help="check a kernel against the documented rules")
    lint.add_argument("file", metavar="FILE[:KERNEL]", nargs="?", help="a Python file, and the kernel to check in it")
    lint.add_argument("--environment", action="store_true", help="check the Neuron variables of this instance as well")
    lint.add_argument("--rules", action="store_true", help="print the rules and exit")
    simulate = commands.add_parser("run", aliases=["simulate"], help="run a kernel on the simulator and price it")
    simulate.prog = f"{prog} {run_name}"
    timeline = commands.add_parser("timeline", help="write the modelled timeline of a kernel, without arithmetic")
    for command in (simulate, timeline):
        command.add_argument("file", metavar="FILE:KERNEL", help="a Python file, and the kernel in it")
    timeline.add_argument("out", type=Path, metavar="OUT.json", help="a Chrome-trace/Perfetto file")
    simulate.add_argument("--mode", choices=MODES, default="run", help="trace: price only, without arithmetic")
    simulate.add_argument("--timeline", type=Path, metavar="OUT.json", help="write a Chrome-trace/Perfetto file")
    simulate.add_argument(
        "--input", action="append", default=[], type=Path, metavar="X.npy", help="an array, before --shape"
    )
    simulate.add_argument("--output", type=Path, metavar="OUT.npy", help="write the kernel's outputs")
    simulate.add_argument("--expect", metavar="REFERENCE.py:FUNCTION", help="compare with the result of this function")
    simulate.add_argument("--rtol", type=float, help="of --expect; default 1e-4 for float32, 1e-2 for fewer bits")
    simulate.add_argument(
        "--precision", action="store_true", help="list the sums that are kept in fewer bits than float32"
    )
    simulate.add_argument("--rule", action="append", default=[], metavar="16=propagate", help="strict, warn or off")
    for command in (lint, simulate, timeline):
        command.add_argument("--shape", action="append", default=[], metavar="128x512", help="one per array, in order")
        command.add_argument("--dtype", action="append", default=[], metavar="float32", help="one for all, or one each")
        command.add_argument("--arg", action="append", default=[], metavar="NAME=VALUE", help="a compile-time argument")
        command.add_argument("--target", choices=sorted(TARGETS), default="trn2", help="machine (default %(default)s)")
        command.add_argument("--nki", metavar="DIALECT", help=NKI_HELP[command is lint])
        command.add_argument("--lnc", type=int, choices=(1, 2), default=1, help="cores of the launch")
        command.add_argument("--seed", type=int, default=0, help="seed of the random inputs and of reordering")
        command.add_argument("--json", action="store_true", help="print the result as JSON")
    return top


def main(argv: Sequence[str] | None = None, prog: str = "python -m nkisim") -> int:
    """Exit code: 0 success, 1 a finding of severity E or a refused kernel, 2 a wrong command line."""
    argv = sys.argv[1:] if argv is None else argv
    options = parser(prog, "simulate" if "simulate" in argv[:1] else "run").parse_args(argv)
    try:
        if options.command == "lint":
            return _lint(options)
        if options.command == "timeline":
            return _timeline(options)
        return _simulate(options)
    except (SimulatorError, ValueError, OSError) as error:
        print(f"{prog.split()[-1]} {options.command}: {error}", file=sys.stderr)
        return USAGE_ERROR if not isinstance(error, SimulatorError) else 1


def _split(place: str) -> tuple[Path, str | None]:
    """``file.py:kernel`` -> both parts; None for the kernel if it is not given."""
    file, colon, name = place.rpartition(":")
    return (Path(file), name) if colon and name.isidentifier() else (Path(place), None)


def _shapes(options: argparse.Namespace) -> list[tuple[tuple[int, ...], str]]:
    """Shape and dtype of each array argument."""
    shapes = []
    for text in options.shape:
        parts = text.replace("x", ",").split(",")
        if not all(p.strip().isdigit() and int(p) > 0 for p in parts):
            raise ValueError(f"--shape {text!r}: expected positive integers as in 128x512")
        shapes.append(tuple(int(p) for p in parts))
    dtypes = options.dtype or ["float32"]
    if len(dtypes) == 1:
        dtypes = dtypes * len(shapes)
    if len(dtypes) != len(shapes):
        raise ValueError(f"{len(dtypes)} --dtype for {len(shapes)} --shape: give one, or one each")
    for name in dtypes:
        if name not in STORAGE:
            raise ValueError(f"--dtype {name!r}: expected one of {', '.join(STORAGE)}")
    return list(zip(shapes, dtypes, strict=True))


def _values(options: argparse.Namespace, kernel: Kernel) -> dict[str, Any]:
    names = kernel.function.__globals__
    values = {}
    for text in options.arg:
        name, equals, given = text.partition("=")
        if not equals or not name.isidentifier():
            raise ValueError(f"--arg {text!r}: expected NAME=VALUE")
        values[name] = value(given, names)
    return values


def _rules(options: argparse.Namespace) -> dict[int, Any]:
    """The options ``--rule 16=propagate`` as a dictionary for simulate."""
    rules = {}
    for text in options.rule:
        number, equals, mode = text.partition("=")
        if not equals or not number.isdigit():
            raise ValueError(f"--rule {text!r}: expected NUMBER=MODE")
        rules[int(number)] = mode
    return rules


def _arrays(options: argparse.Namespace) -> tuple[Any, ...]:
    """Random floats and ascending integers; in trace mode, specifications."""
    wanted = _shapes(options)
    if options.command == "timeline" or getattr(options, "mode", "run") == "trace":
        return tuple(Specification(shape, dtype) for shape, dtype in wanted)
    rng = np.random.default_rng(options.seed)
    return tuple(_array(shape, dtype, rng) for shape, dtype in wanted)


def _array(shape: tuple[int, ...], dtype: str, rng: np.random.Generator) -> Array:
    storage = STORAGE[dtype]
    if storage.kind in "iu":
        return (np.arange(int(np.prod(shape))) % INDEX_RANGE).reshape(shape).astype(storage)
    return rng.standard_normal(shape).astype(storage)


def _expect_file(file: Path) -> None:
    if not file.is_file():
        raise FileNotFoundError(f"no file {file}" if not file.exists() else f"{file} is not a file")


def _expect_arguments(kernel: Kernel, arguments: Sequence[Any], words: dict[str, Any]) -> None:
    """A ValueError that names the options to give, if the arguments do not fit the kernel's parameters."""
    signature = inspect.signature(kernel.function)
    try:
        signature.bind(*arguments, **words)
    except TypeError as error:
        options = "--shape or --input gives one array each, in order, and --arg other values"
        raise ValueError(f"{kernel.__name__}{signature}: {error}: {options}") from error


def _load(file: Path, name: str | None, lnc: int) -> Kernel:
    """The kernel on ``lnc`` cores; an exception in the file becomes a ValueError of one line."""
    _expect_file(file)
    try:
        return load_kernel(file, name)[lnc]
    except SimulatorError:
        raise
    except Exception as error:  # the file may run any code
        raise ValueError(f"{file} does not load: {type(error).__name__}: {error}") from error


def _lint(options: argparse.Namespace) -> int:
    if options.rules:
        lines = [
            (str(r.number), r.subject, ", ".join(r.passes), ", ".join(r.dialects), r.source) for r in RULES.values()
        ]
        print_table("rules of the lint", ("rule", "subject", "decided by", "holds for", "source"), lines)
        elsewhere = [(str(number), why) for number, why in DECIDED_ELSEWHERE.items()]
        print_table("rules that the source cannot decide", ("rule", "reason, and where it is decided"), elsewhere)
        return 0
    dialects = chosen(options.nki or ALL)
    found = list(environment(os.environ, options.lnc, options.target, dialects)) if options.environment else []
    if options.file is None:
        if not options.environment:
            raise ValueError("lint needs a FILE (or --rules, or --environment)")
        _show(found, options)
        return 1 if errors(found) else 0
    file, name = _split(options.file)
    _expect_file(file)
    found += lint_file(file, name, dialects)
    if options.shape:
        kernel = _load(file, name, options.lnc)
        # The source check has found the refusals of a parser; run once for each other front end.
        for nki in dict.fromkeys(TRACER if d == PARSER else d for d in dialects):
            launched = lint_launch(kernel, _arrays(options), _values(options, kernel), options.target, nki=nki)
            same = str(file.resolve())
            found += [dataclasses.replace(f, file=str(file)) if f.file == same else f for f in launched]
    _show(sorted(set(found)), options)
    if not options.shape and not options.json:
        print("source rules only: give --shape (and --dtype, --arg) to check a run as well")
    return 1 if errors(found) else 0


def _show(found: Sequence[Finding], options: argparse.Namespace) -> None:
    if options.json:
        print(json.dumps([_plain(f) for f in found], indent=1))
        return
    for finding in found:
        print(finding)
    print(f"{len(errors(found))} errors, {len(found) - len(errors(found))} warnings")


def _plain(finding: Finding) -> dict[str, Any]:
    return {
        "file": finding.file,
        "line": finding.line,
        "rule": finding.rule,
        "severity": finding.severity,
        "nki": list(finding.dialects),
        "message": finding.message,
        "source": finding.source,
    }


def _simulate(options: argparse.Namespace) -> int:
    for option in ("expect", "output", "precision"):
        if options.mode == "trace" and getattr(options, option):
            raise ValueError(f"--{option} needs values, which --mode trace does not compute")
    file, name = _split(options.file)
    kernel = _load(file, name, options.lnc)
    arguments = (*map(read, options.input), *_arrays(options))
    words = _values(options, kernel)
    _expect_arguments(kernel, arguments, words)
    settings = {"target": options.target, "mode": options.mode, "seed": options.seed, "nki": _front_end(options)}
    settings["rules"] = _rules(options)
    wanted = None if options.expect is None else reference(options.expect, *copy.deepcopy((arguments, words)))
    narrow = precision(kernel, arguments, words, **settings) if options.precision else []
    with Status(f"simulating {kernel.__name__}"):
        result = run(kernel, arguments, words, **settings)
        costs = [price(trace) for trace in result.traces]
        found = lint_trace(result.traces)
    if options.timeline:
        write_timeline(options.timeline, result.traces)
    if options.output:
        write(options.output, result)
    compared = [] if wanted is None else differences(result, wanted, options.rtol)
    if options.json:
        report = _report(result, costs, found, options.mode)
        extra = {"expected": [line for _, line in compared], "precision": [str(a) for a in narrow]}
        print(json.dumps(report | {k: v for k, v in extra.items() if v}, indent=1))
    else:
        _print(result, costs, found, options.timeline)
        for line in (*(line for _, line in compared), *narrow):
            print(line)
        if options.precision and not narrow:
            print("no sum is kept in fewer bits than float32")
    return 1 if errors(found) or not all(good for good, _ in compared) else 0


def _front_end(options: argparse.Namespace) -> Dialect:
    """The one front end whose refusals apply to a run."""
    nki, *others = chosen(options.nki or DEFAULT)
    if others:
        raise ValueError(f"--nki {options.nki}: a run has one front end")
    return nki


def _timeline(options: argparse.Namespace) -> int:
    file, name = _split(options.file)
    kernel = _load(file, name, options.lnc)
    nki = _front_end(options)
    arguments, words = _arrays(options), _values(options, kernel)
    _expect_arguments(kernel, arguments, words)
    with Status(f"tracing {kernel.__name__}"):
        result = run(kernel, arguments, words, target=options.target, mode="trace", nki=nki)
    write_timeline(options.out, result.traces)
    print(f"timeline written to {options.out}: open it in ui.perfetto.dev")
    return 0


def _report(result: Result, costs: Sequence[Cost], found: Sequence[Finding], mode: str) -> dict[str, Any]:
    return {
        "kernel": result.trace.kernel,
        "target": result.trace.target,
        "mode": mode,
        "outputs": _outputs(result),
        "sbuf_peak_bytes": max(t.sbuf_peak_bytes for t in result.traces),
        "psum_peak_banks": max(t.psum_peak_banks for t in result.traces),
        "bound_by": [bound(cost) for cost in costs],
        "cores": [cost.as_json() for cost in costs],
        "findings": [_plain(f) for f in found],
    }


def _outputs(result: Result) -> list[str]:
    outputs = result.outputs if isinstance(result.outputs, tuple) else (result.outputs,)
    return [f"{a.dtype}{list(a.shape)}" for a in outputs if a is not None]


def _print(result: Result, costs: Sequence[Cost], found: Sequence[Finding], timeline: Path | None) -> None:
    for trace, cost in zip(result.traces, costs, strict=True):
        lines = rows(cost)
        lines.insert(2, ("bound by", bound(cost)))
        lines.append(("SBUF at most", f"{trace.sbuf_peak_bytes:,} bytes per partition"))
        lines.append(("PSUM at most", f"{trace.psum_peak_banks} bank{'s' * (trace.psum_peak_banks != 1)}"))
        lines += [("output", text) for text in _outputs(result)]
        core = f", core {trace.core}" if len(costs) > 1 else ""
        print_table(f"{trace.kernel} on {trace.target}{core}: modelled, not measured", ("", ""), lines)
    for finding in found:
        print(finding)
    if timeline:
        print(f"timeline written to {timeline}: open it in ui.perfetto.dev")
