"""The report in a few lines: a verdict in plain words, the longest lines of the program, and what was not seen."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator
from pathlib import Path

from trnpy._report.elsewhere import IMPORTS
from trnpy._report.run_record import Run
from trnpy._report.sampler import LEAST_S, NO_PATH, PRODUCT, UNPATCHED
from trnpy._report.tally import DEVICE, FAILURES, ROUTED, Tally, merged, off
from trnpy._report.text import NOTHING_RECORDED, aligned, device_sentences, larger_of
from trnpy._report.units import NOTICEABLE, Table, duration, modelled, place, several, span, took
from trnpy._report.what_if import UNCLEAR, Verdict, WhatIf, predicted
from trnpy._settings.host_rates import current_rates

COLUMNS = 100
ROWS = 5
LEAST_SHARE = 0.01  # of the processor time: shorter lines are not shown
NAMED = 3  # packages or functions that a line about unseen work names
PREFIX = "trnpy: "
ACCELERATED, OTHER = "accelerated functions", "other work"
MORE = "more: -v or print(run.details()); as a page: --html FILE or run.to_html(FILE)"
NOTES = {
    "small": "too small",
    "memory_bound": "moving its data takes longer",
    "faster": "host faster than predicted",
    "no_path": "no device path",
    "dtype": "no device path for its dtype",
    "layout": "no device path for its layout",
    "param": "no device path for its options",
    "subclass": "its class may change it",
    "excluded_caller": "called by an excluded package",
    "not_compiled": "compiling takes longer",
}


def brief(ledger: Run) -> str:
    """The whole report, at most COLUMNS wide."""
    what_if, tallies = predicted(ledger), ledger.tallies
    if not what_if.calls and not ledger.elapsed_s:
        return _wrapped([NOTHING_RECORDED])
    if not what_if.calls:
        return _wrapped([verdict(what_if), *unseen(ledger)])
    if not (ledger.ranks or ledger.instance) and all(t.reason in ("small", "excluded_caller") for t in tallies):
        return _wrapped([nothing_large(ledger, what_if), rest(ledger)])
    beyond = larger_of(ledger)
    said = [verdict(what_if), *uncertain(tallies), *beyond.ranks, *beyond.beyond, *failures(ledger), *shares(ledger)]
    return "\n".join([_wrapped(said), *_rows(ledger), _wrapped([*unseen(ledger), MORE])])


def _wrapped(sentences: list[str]) -> str:
    margin = " " * len(PREFIX)
    lines = (textwrap.wrap(s, COLUMNS - len(PREFIX), break_on_hyphens=False) for s in sentences)
    return "\n".join(f"{margin if i else PREFIX}{line}" for wrapped in lines for i, line in enumerate(wrapped))


def faster(least: float, most: float) -> str:
    """Two speed-ups as text: "4 to 11 % faster", "up to 11 % faster", "2.1 to 3.4 times faster"."""
    if most >= 2:
        return f"{least:.2g} to {most:.2g} times faster"
    low, high = (round(100 * (gain - 1)) for gain in (least, most))
    return f"{low} to {high} % faster" if 0 < low < high else f"{'up to ' * (low < high)}{high} % faster"


def verdict(w: WhatIf) -> str:
    """Whether a device would make the run faster, in one sentence."""
    if not w.calls or w.taken:
        said = str(w)
        return f"{said[:1].upper()}{said[1:]}."
    core, times = f"One {w.machine} core", faster(*w.speedups)
    if w.verdict is Verdict.FASTER:
        return f"{core} would make this run {times} (modelled)."
    if w.verdict is Verdict.UNKNOWN and w.most_s > NOTICEABLE * w.steady_s:
        return f"{core} might make this run {times} (modelled): too close to call."
    if w.verdict is Verdict.UNKNOWN and w.unclear_s > w.unmodelled_s:
        return f"Not enough data for a {w.machine} core (modelled): {UNCLEAR}."
    if w.verdict is Verdict.UNKNOWN:
        sparse = f"{several(w.unmodelled, 'call')} with sparse matrices took {duration(w.unmodelled_s)}"
        return f"Not enough data for a {w.machine} core: {sparse} (measured); --device null models them."
    why = (
        f"at most {100 * (w.speedups[1] - 1):.2g} %"
        if w.most_s
        else "no call is faster there"
        if w.modelled
        else "no call can gain there"
    )
    return f"{core} would not make this run noticeably faster (modelled): {why}."


def nothing_large(ledger: Run, w: WhatIf) -> str:
    """The sentence about a run of small calls only, with their part of the processor time."""
    calls = several(w.calls, "call")
    took_s, all_s = duration(min(ledger.accelerated_cpu_s, ledger.cpu_s)), duration(ledger.cpu_s)
    return f"Nothing is large enough for a {w.machine}: {calls} took {took_s} of {all_s} CPU time (measured)."


def rest(ledger: Run) -> str:
    """The kinds of other work that took most processor time, and how to see more."""
    sums: dict[str, float] = {}
    for (kind, _), seconds in _parts(ledger).items():
        if kind not in (ACCELERATED, OTHER):
            sums[kind] = sums.get(kind, 0.0) + seconds
    longest = sorted(sums.items(), key=lambda part: -part[1])[:NAMED]
    named = ", ".join(f"{duration(s)} {kind}" for kind, s in longest if s > LEAST_SHARE * ledger.cpu_s)
    if not named or ledger.cpu_s <= LEAST_S:
        return MORE
    said = f"Sampled: {named}; more: -v, --html FILE"
    return said if len(said) <= COLUMNS - len(PREFIX) else f"Sampled: {named}; more: -v"  # one line


def uncertain(tallies: list[Tally]) -> list[str]:
    """The sentence about predictions that rest on rates of another host, or on a disturbed calibration."""
    if any(t.uncalibrated for t in tallies):
        return ["Predictions are rough: this host is not calibrated (python -m trnpy calibrate)."]
    if any(t.modelled for t in tallies) and (remark := current_rates().remark):
        return [f"The calibration of this host was disturbed ({remark}): repeat it on an idle host."]
    return []


def failures(ledger: Run) -> list[str]:
    """Calls that a device computed, and faults."""
    wanted = (DEVICE, *ledger.engines, *(t.op for t in ledger.tallies if t.reason in FAILURES))
    return [s for s in device_sentences(ledger) if s.startswith(wanted) and "launches by kernel" not in s]


def shares(ledger: Run) -> list[str]:
    """How the processor time is divided: imports, and the kinds of work as shares of the rest."""
    parts = _parts(ledger)
    imports_s = parts.pop((IMPORTS, ""), 0.0)
    total_s = sum(parts.values())
    if total_s < LEAST_S:
        return []
    sums: dict[str, float] = {}
    for (kind, _), seconds in parts.items():
        sums[kind] = sums.get(kind, 0.0) + seconds
    named = [f"{100 * s / total_s:.0f} % {kind}" for kind, s in sorted(sums.items(), key=lambda part: -part[1])]
    named = [name for name in named if not name.startswith("0 %")]
    beside = f", {duration(imports_s)} of it imports" if imports_s > LEAST_SHARE * total_s else ""
    rest = "; of the rest" if beside else ":"
    said = f"{duration(ledger.elapsed_s)}, {duration(ledger.cpu_s)} of processor time{beside}{rest} {', '.join(named)}."
    return [said]


def _parts(ledger: Run) -> dict[tuple[str, str], float]:
    """Processor seconds by kind and package. Those outside accelerated functions are divided as the samples are."""
    accelerated_s = min(ledger.accelerated_cpu_s, ledger.cpu_s)
    found = ledger.samples.elsewhere.found()
    sampled_s = sum(seconds for *_, seconds in found)
    rest_s = ledger.cpu_s - accelerated_s
    if not sampled_s:
        found, sampled_s = [(OTHER, "", rest_s)], rest_s
    scale = rest_s / sampled_s if sampled_s else 0.0
    return {(ACCELERATED, ""): accelerated_s} | {(kind, package): scale * s for kind, package, s in found}


def unseen(ledger: Run) -> list[str]:
    """A line for each kind of work outside accelerated functions that is a noticeable part of the run."""
    parts = _parts(ledger)
    total_s = sum(s for (kind, _), s in parts.items() if kind != IMPORTS)
    said = []
    for kind in dict.fromkeys(kind for kind, _ in parts):
        ours = {package: s for (of, package), s in parts.items() if of == kind}
        seconds = sum(ours.values())
        if kind in (ACCELERATED, IMPORTS, OTHER) or seconds < NOTICEABLE * total_s:
            continue
        named = [package for package in list(ours)[:NAMED] if package]
        where = f", in or called from {', '.join(named)}" if named else ""
        said.append(f"not seen: {duration(seconds)} of {kind}{where} (sampled)")
    return said + list(_unrouted(ledger, total_s))


def _unrouted(ledger: Run, total_s: float) -> Iterator[str]:
    remedies = {
        PRODUCT: ("", ": use a @ b or np.dot(a, b)"),
        NO_PATH: (" without a device path", ""),
        UNPATCHED: (" imported before the patch", ": patch with rebind=True"),
    }
    # Samples of lines are in seconds that passed; the rest of this report is in processor time.
    running = min(ledger.cpu_s / ledger.elapsed_s, 1.0) if ledger.elapsed_s else 1.0
    for kind, (what, remedy) in remedies.items():
        ours = [u for u in ledger.unrouted() if u.kind == kind]
        seconds = running * sum(u.seconds for u in ours)
        if ours and seconds >= NOTICEABLE * total_s:
            names = ", ".join(dict.fromkeys(u.function for u in ours[:NAMED]))
            most = ours[0]
            at = place(most.file, most.line)
            if most.through:  # the program cannot change a library's line
                at, remedy = f"{at} through {Path(most.through).name}", ""
            yield f"not seen: {duration(seconds)} of {names}{what} (sampled), most at {at}{remedy}"


def _rows(ledger: Run) -> list[str]:
    """The longest lines of the program, as a table; none if nothing is long enough."""
    total_s = sum(s for (kind, _), s in _parts(ledger).items() if kind != IMPORTS) or 1.0
    groups: dict[tuple[str, int, str], list[Tally]] = {}
    for t in ledger.tallies:
        groups.setdefault((t.file, t.line, t.op), []).append(t)
    lines = sorted(((merged(ours, "op", "file", "line")[0], ours) for ours in groups.values()), key=_importance)
    shown = [(t, ours) for t, ours in lines if t.cpu_s >= LEAST_SHARE * total_s or t.most_s][:ROWS]
    if not shown:
        return []
    header: tuple[str, ...] = ("line", "function", "calls", "time", "CPU", f"on one {ledger.machine} core (modelled)")
    rows: list[tuple[str, ...]] = [
        (place(t.file, t.line), t.op, f"{t.calls:,}", took(t), f"{100 * t.cpu_s / total_s:.0f} %", note(t, ours))
        for t, ours in shown
    ]
    wide = max(len(row[-1]) for row in (header, *rows))
    header, rows = _padded(header, wide), [_padded(row, wide) for row in rows]
    return ["", *aligned(_narrow(Table("", header, rows, 2))), ""]


def _padded(row: tuple[str, ...], width: int) -> tuple[str, ...]:
    return (*row[:-1], row[-1].ljust(width))  # the notes are text, aligned left


def _importance(entry: tuple[Tally, list[Tally]]) -> tuple[float, str, int]:
    t = entry[0]
    return -max(t.cpu_s, t.most_s), t.file, t.line


def note(t: Tally, ours: list[Tally]) -> str:
    """What a device would change for a line, or why it would change nothing."""
    if any(each.ran_on == DEVICE for each in ours):
        return f"ran there: {duration(sum(each.seconds for each in ours if each.ran_on == DEVICE))}"
    if t.most_s:
        return f"saves {span(t.least_s, t.most_s)}"
    longest = max(ours, key=lambda each: each.seconds)
    if ratio := longest.mispredicted or merged(ours, "op")[0].mispredicted:
        return f"took {off(ratio)} its prediction"
    if longest.ran_on.startswith(ROUTED):
        return "CPU fast path is faster"
    if longest.reason == "slower":
        return f"slower: {modelled(longest.device_s)}"
    if longest.unmodelled:
        return "sparse: --device null models it"
    return NOTES.get(longest.reason, longest.reason.replace("_", " "))


def _narrow(table: Table) -> Table:
    """``table`` with at most COLUMNS columns: names lose their beginning, which says least."""
    others = sum(max(len(row[i]) for row in (table.header, *table.rows)) + 2 for i in range(2, len(table.header)))
    room = COLUMNS - others - 2
    widths = [max(len(row[i]) for row in table.rows) for i in range(2)]
    most = [min(widths[0], max(room - widths[1], room // 2)), 0]
    most[1] = room - most[0]

    def cut(name: str, width: int) -> str:
        return name if len(name) <= width else f"…{name[len(name) - width + 1 :]}"

    rows = [(cut(row[0], most[0]), cut(row[1], most[1]), *row[2:]) for row in table.rows]
    return Table(table.title, table.header, rows, table.left)
