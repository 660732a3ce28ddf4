"""The report as text: sentences and tables, as plain text or, with the same content, by rich."""

from __future__ import annotations

import importlib.util
import os
import sys
from dataclasses import dataclass
from typing import IO, TYPE_CHECKING, Literal

from trnpy._nki.hardware import interval
from trnpy._report.advice import priced, worth
from trnpy._report.ranks import by_line, imbalance, place_parts
from trnpy._report.rented import ASSUMED, Estimate, rentals
from trnpy._report.scaling import curve, instance_of
from trnpy._report.tally import FAILURES, ROUTED, STRIDE, Tally, merged, why
from trnpy._report.unrouted import LEAST_S, LEAST_SHARE, NO_PATH, PRODUCT, UNPATCHED

if TYPE_CHECKING:
    from trnpy._report.ledger import Ledger
    from trnpy._report.what_if import WhatIf

LINES = 12  # of the program that the text shows; JSON has all
PLACES = 5  # of work that no patch sees, in one sentence
PAST = (
    (PRODUCT, "in matrix products by operator or method, which cannot be routed", "; write np.matmul(a, b)"),
    (NO_PATH, "in functions that have no path on a device", ""),
    (UNPATCHED, "in functions called past the patch", "; patch before these names are imported, or with rebind=True"),
)
NONE = "-"  # stands for an unknown figure
NOTICEABLE = 0.05  # of the run time: runs of one program on one machine differ by as much
IN_DOUBT = 0.1  # of the run time: that much is said to be in doubt
WIDE = 10_000  # columns of a file, which has no edge
GAP = "  "
PREFIXES = {15: "P", 12: "T", 9: "G", 6: "M", 3: "k", 0: "", -3: "m", -6: "µ", -9: "n"}  # by power of ten


def quantity(value: float, unit: str) -> str:
    """Three digits with an SI prefix: 1.23 GB, 45.6 Gflop, 789 µs."""
    powers = [p for p in PREFIXES if (p <= 0 if unit == "s" else p >= 0)]
    # 999.6 rounds to 1000, which is written as 1.00 with the next prefix.
    power = next((p for p in powers if abs(value) >= 0.9995 * 10.0**p), powers[-1])
    scaled = value / 10.0**power
    decimals = 0 if scaled >= 99.95 or (power == 0 and unit != "s") or not value else 1 if scaled >= 9.995 else 2
    return f"{scaled:.{decimals}f} {PREFIXES[power] if value else ''}{unit}"


def duration(seconds: float) -> str:
    """Seconds as text: 789 µs, 4.56 ms, 12.3 s, 3 min 20 s, 1 h 05 min."""
    if seconds >= 3600:
        return f"{int(seconds // 3600)} h {int(seconds % 3600 // 60):02d} min"
    if seconds >= 120:
        return f"{int(seconds // 60)} min {int(seconds % 60):02d} s"
    return quantity(seconds, "s")


def modelled(seconds: float) -> str:
    """The interval of a modelled time: 0.69-1.45 ms; 1 min 40 s to 3 min 30 s."""
    return span(*interval(seconds))


def span(low: float, high: float) -> str:
    """Two times in one unit: 0.69-1.45 ms."""
    if high >= 120 or not high:
        return f"{duration(low)} to {duration(high)}" if high else duration(high)
    number, unit = duration(high).split()
    return f"{low * float(number) / high:.3g}-{number} {unit}"


def took(t: Tally) -> str:
    """The time of all calls, with ~ if some were not timed."""
    return ("~" if t.timed < t.calls else "") + duration(t.seconds)


def estimates(tallies: list[Tally]) -> str:
    """The sentence that explains estimated times."""
    timed, calls = (sum(getattr(t, name) for t in tallies) for name in ("timed", "calls"))
    return (
        f"times with ~ are estimated: one of {STRIDE} small calls of a line is timed, "
        f"and {timed:,} of all {calls:,} calls were"
    )


def several(count: int, noun: str) -> str:
    """A count and its noun: 1 call, 1,234 calls."""
    return f"{count:,} {noun}{'s' * (count != 1)}"


def place(file: str, line: int) -> str:
    """``file:line``, short: without the working directory, the directory of sys.path or the site-packages above it."""
    if not file:
        return "(other places)"
    roots = [os.path.join(os.path.abspath(p), "") for p in (os.getcwd(), *sys.path)]
    root = max((r for r in roots if file.startswith(r)), key=len, default="")
    return f"{file.removeprefix(root).rpartition('/site-packages/')[2]}:{line}"


@dataclass(frozen=True, slots=True)
class Table:
    """Cells as text. The first ``left`` columns are aligned left; the others hold numbers, aligned right."""

    title: str
    header: tuple[str, ...]
    rows: list[tuple[str, ...]]
    left: int


def sentences(ledger: Ledger) -> list[str]:
    """The sentences above the tables: the share of the run, the what-if, what a device did, what went wrong."""
    what_if, tallies = ledger.what_if(), ledger.tallies
    share = what_if.accelerated_s / what_if.elapsed_s if what_if.elapsed_s else 0.0
    if not what_if.calls:
        return [*over_ranks(ledger), *past_patch(ledger)] or [
            "nothing was recorded: run python -m trnpy script.py, "
            "or call trnpy's functions, or patched ones, inside with trnpy.profile()"
        ]
    functions = several(len({t.op for t in tallies}), "accelerated function")
    said = [
        f"{duration(what_if.elapsed_s)}, of which {duration(what_if.accelerated_s)} ({share:.0%}) in "
        f"{several(what_if.calls, 'call')} of {functions} (measured)",
        *over_ranks(ledger),
        str(what_if),
        *more_chips(ledger),
        *rented(ledger),
        *advised(ledger),
        *doubts(tallies, what_if),
        *device_sentences(ledger),
        *past_patch(ledger),
    ]
    if any(t.timed < t.calls for t in tallies):
        said.append(estimates(tallies))
    if any(t.uncalibrated for t in tallies):
        said.append("host rates are uncalibrated, predictions rough: python -m trnpy calibrate measures them once")
    return said


def over_ranks(ledger: Ledger) -> list[str]:
    """How the ranks of the run shared its time; empty for one process."""
    ranks = ledger.ranks
    if not ranks:
        return []
    total_s, longest_s = sum(r.elapsed_s for r in ranks) or 1.0, max(r.elapsed_s for r in ranks)
    waits, moves = (sum(getattr(r, name) for r in ranks) / total_s for name in ("waited_s", "moved_s"))
    sent = quantity(sum(r.sent for r in ranks), "B")
    known = any(r.collectives for r in ranks)  # by trnpy.dist: messages of mpi4py are not seen
    said = f"{waits:.0%} of it waiting and {moves:.0%} transfers of {sent}" if known else "what they sent was not seen"
    return [
        f"{len(ranks)} ranks: {duration(longest_s)}, {said}; the busiest rank works {imbalance(ranks):.2f} times the "
        "mean (measured); calls, lines and advice below are of rank 0 where they are not said to be of all ranks"
    ]


def more_chips(ledger: Ledger) -> list[str]:
    """What the run of several ranks would take on one chip, one instance and more; empty for one process."""
    found, instance = curve(ledger), instance_of(ledger)
    if found is None or instance is None:
        return []
    said = []
    for point, weak in zip(found.strong, found.efficiencies, strict=True):
        if point.chips in (1, instance.chips, 4 * instance.chips, found.strong[-1].chips):
            share = point.moved_s / point.seconds if point.seconds else 0.0
            said.append(
                f"{several(point.chips, 'chip')} {duration(point.seconds)}, {share:.0%} transfers, {weak:.0%} weak"
            )
    return [
        f"with a rank on each NeuronCore of {instance.name}: {'; '.join(said)}: weak is the efficiency if each core "
        "has as much work as a rank here; what is outside accelerated functions takes as long as here (modelled)"
    ]


def rank_tables(ledger: Ledger) -> list[Table]:
    """Each rank, and each line over all ranks."""
    if not ledger.ranks:
        return []
    header = ("rank", "host", "run time", "calls", "waiting", "transfers", "the rest", "sent")
    rows = []
    for number, r in enumerate(ledger.ranks):
        # Calls of trnpy.dist's own products contain transfers.
        rest_s = max(r.busy_s - r.accelerated_s, 0.0)
        seconds = map(duration, (r.elapsed_s, r.accelerated_s, r.waited_s, r.moved_s, rest_s))
        rows.append((str(number), r.host, *seconds, quantity(r.sent, "B")))
    lines = by_line(ledger.ranks)
    heads = ("line", "function", "calls", "least", "mean", "most", "most\nover mean", "waiting\nmean", "sent")
    cells = []
    for line in lines[:LINES]:
        mean_s, waited_s = (sum(each) / len(each) for each in (line.seconds, line.waited_s))
        seconds = map(duration, (min(line.seconds), mean_s, max(line.seconds)))
        last = f"{line.imbalance:.2f}", duration(waited_s), quantity(line.sent, "B")
        cells.append((place(*place_parts(line.where)), line.what, f"{line.calls:,}", *seconds, *last))
    more = f", the {LINES} longest of {len(lines):,}" if len(lines) > LINES else ""
    return [
        Table("by rank (measured)", header, rows, 2),
        Table(f"by line over ranks{more}: seconds of a rank without waiting, bytes of all (measured)", heads, cells, 2),
    ]


def rented(ledger: Ledger) -> list[str]:
    """What the run would take on the instance asked for, and what it would cost there; empty if none is named."""
    found = rentals(ledger)
    return [str(found[0].instance), *map(ordered, found), ASSUMED] if found else []


def ordered(e: Estimate) -> str:
    """The sentence of one estimate: its order of calls, this machine, the vCPUs, the NeuronCores, dollars a run."""
    order = "at the same time" if e.together else "one after another"
    own = "on its vCPUs" if e.instance.vcpus else "on as many vCPUs as here"
    said = (
        f"{e.instance.name}, calls of a line {order}: {duration(e.here_s)} on this machine, {duration(e.vcpus_s)} {own}"
        f"{rent(e, e.vcpus_s)} (predicted); "
    )
    fast_s, slow_s = e.cores_s
    if fast_s >= (1 - NOTICEABLE) * e.vcpus_s:
        return said + "its NeuronCores make no difference to that (modelled)"
    least, most = e.speedups
    return (
        f"{said}{duration(fast_s)} to {duration(slow_s)} with its NeuronCores{rent(e, fast_s, slow_s)}: "
        f"{least:.3g} to {most:.3g} times faster than its vCPUs (modelled)"
    )


def advised(ledger: Ledger) -> list[str]:
    """Changes that would save a noticeable part of the run, each with its gain, or the advice to stay on the CPU."""
    found, what_if = priced(ledger), ledger.what_if()
    if not found:
        return []
    core, noticeable_s = f"one core of a {what_if.machine}", NOTICEABLE * what_if.elapsed_s
    chosen, best = worth(found, noticeable_s), found[0]
    if not chosen and what_if.most_s <= noticeable_s:
        if not best.most_s:
            return [f"advice: stay on the CPU: {core} would save nothing, whatever you change (modelled)"]
        most = f"at most {duration(best.most_s)}, if you {best.change}"
        return [f"advice: stay on the CPU: {core} would save {most} (modelled)"]
    said = []
    for a in chosen:
        saves = f"{duration(a.least_s)} to {duration(a.most_s)}" if a.least_s else f"up to {duration(a.most_s)}"
        where = place(a.file, a.line)
        said.append(f"advice: {a.change}: saves {saves} more on {core}, {a.condition}; most at {where} (modelled)")
    return said


def rent(e: Estimate, *seconds: float) -> str:
    """The price of one run of so many seconds: ", $0.012 a run"; empty if no price is public."""
    dollars = [f"${cost:.2g}" for s in seconds if (cost := e.dollars(s)) is not None]
    return f", {' to '.join(dollars)} a run" if dollars else ""


def instance_tables(ledger: Ledger) -> list[Table]:
    """For each order of calls, where the time of each line goes on the instance."""
    marks = ("NeuronCores\nused", "here", "vCPUs\npredicted", "launches", "link", "conversions", "engine", "host steps")
    header = ("line", "function", "calls", *marks, "gain\nmodelled")
    shown = []
    for e in rentals(ledger):
        rows = []
        for line in e.lines[:LINES]:
            t, p, (least_s, most_s) = line.tally, line.parts, line.saved_s
            link_s, conversions_s = p.send_s + p.fetch_s, p.to_digits_s + p.from_digits_s
            seconds = (line.here_s, line.vcpus_s, p.launch_s, link_s, conversions_s, p.engine_s, p.host_steps_s)
            gain = f"{duration(least_s)} to {duration(most_s)}" if most_s else NONE
            where = place(t.file, t.line), t.op, f"{t.modelled:,}", f"{line.cores:,}"
            rows.append((*where, *map(duration, seconds), gain))
        order = "at the same time" if e.together else "one after another"
        title = f"on a {e.instance.name}, calls of a line {order}; launches to host steps are modelled"
        shown += [Table(title, header, rows, 2)] if rows else []
    return shown


def doubts(tallies: list[Tally], what_if: WhatIf) -> list[str]:
    """Calls that a device would win only because the host took far longer than predicted: no gain is claimed."""
    doubted, took_s, host_s, device_s = (
        sum(getattr(t, name) for t in tallies)
        for name in ("doubted", "doubted_s", "doubted_host_s", "doubted_device_s")
    )
    if what_if.taken or took_s - device_s <= IN_DOUBT * what_if.elapsed_s:
        return []
    return [
        f"not counted: {several(doubted, 'call')} took {duration(took_s)} (measured), {duration(host_s)} "
        f"(predicted{uncalibrated(tallies)}) and {modelled(device_s)} on the {what_if.machine} (modelled): the host "
        "was busy, or the operands were not in its caches"
    ]


def device_sentences(ledger: Ledger) -> list[str]:
    """What devices, other engines and host routes did, and what went wrong."""
    said, tallies = [], ledger.tallies
    for engine in sorted({t.ran_on for t in tallies if not t.on_host}):
        ours = [t for t in tallies if t.ran_on == engine]
        calls, took_s, host_s = (sum(getattr(t, name) for t in ours) for name in ("calls", "seconds", "host_s"))
        said.append(
            f"{engine}: {several(calls, 'call')} took {duration(took_s)} (measured), "
            f"the host would have needed {duration(host_s)} (predicted{uncalibrated(ours)})"
        )
        launches = merged(ours)[0].launches
        if launches:
            counts = ", ".join(f"{kernel} {count:,}" for kernel, count in sorted(launches.items()))
            said.append(f"{engine}: launches by kernel: {counts}")
        if lost := sum(t.lost for t in ours):
            loss_s = sum(t.lost_s - t.lost_host_s for t in ours)
            said.append(
                f"{engine}: {several(lost, 'call')} took {duration(loss_s)} longer than on the host (predicted)"
            )
    for t in merged((t for t in tallies if t.ran_on.startswith(ROUTED)), "op", "ran_on"):
        gain = t.detail
        found = ledger.comparisons.found.get((t.op, t.ran_on.removeprefix(ROUTED)))
        if found is not None and found.compared:
            gain = f"{found.gain:.1f} times faster than the reference (measured on {several(found.compared, 'call')})"
        said.append(f"{t.op} {t.ran_on}: {several(t.calls, 'call')}, {duration(t.seconds)} (measured), {gain}")
    for t in sorted((t for t in tallies if t.reason in FAILURES), key=lambda t: -t.calls):
        calls = f"{several(t.calls, 'call')} at {place(t.file, t.line)}"
        said.append(f"{t.op} fell back to the host in {calls}: {t.reason}: {t.detail}")
    for name, health in ledger.engines.items():
        if told := health.sentence():
            said.append(f"{name}: {told} (since the process began)")
    return said


def past_patch(ledger: Ledger) -> list[str]:
    """Work that no patch sees, by kind: what it takes at least, where it is, and what to do."""
    least_s = max(LEAST_S, LEAST_SHARE * ledger.elapsed_s)
    said = []
    for kind, before, after in PAST:
        ours = [u for u in ledger.unrouted() if u.kind == kind]
        total_s = sum(u.seconds for u in ours)
        if total_s < least_s:
            continue
        named = [f"{u.function} at {place(u.file, u.line)} {duration(u.seconds)}" for u in ours[:PLACES]]
        more = f" and {len(ours) - PLACES} more" if len(ours) > PLACES else ""
        said.append(f"at least {duration(total_s)} (sampled) {before}: {', '.join(named)}{more}{after}")
    return said


def uncalibrated(tallies: list[Tally]) -> str:
    """The mark for predictions that rest on default rates; empty if there are none."""
    return ", uncalibrated" if any(t.uncalibrated for t in tallies) else ""


def where(t: Tally, machine: str) -> str:
    """Where calls ran, and the machine of their modelled seconds if it is not ``machine``."""
    return t.ran_on if t.machine in ("", machine) else f"{t.ran_on}, for {t.machine}"


def figures(t: Tally) -> tuple[str, ...]:
    """Cells for calls, seconds (measured, predicted, modelled), modelled gain, bytes and flops."""
    if not t.modelled:
        return f"{t.calls:,}", took(t), *(NONE,) * 5
    gain = span(t.least_s, t.most_s) if t.won else NONE
    work = quantity(t.moved_bytes, "B"), quantity(t.flops, "flop")
    return f"{t.calls:,}", took(t), duration(t.host_s), modelled(t.device_s), gain, *work


def tables(ledger: Ledger) -> list[Table]:
    """The tables by function and by line of the program."""
    functions, lines, machine = ledger.by_function(), ledger.by_line(), ledger.machine
    if not functions:
        return rank_tables(ledger)
    mark = "predicted" + uncalibrated(functions).replace(", ", "\n")
    header = ("calls", "measured", f"host\n{mark}", f"{machine}\nmodelled", "gain\nmodelled", "moved", "work")
    total_s: dict[str, float] = {}
    for t in functions:
        total_s[t.op] = total_s.get(t.op, 0.0) + t.seconds
    functions.sort(key=lambda t: (-total_s[t.op], t.op, -t.seconds))
    of_functions = [(t.op, f"{where(t, machine)}: {why(t)}", *figures(t)) for t in functions]
    of_lines = [(place(t.file, t.line), t.op, f"{where(t, machine)}: {why(t)}", *figures(t)) for t in lines[:LINES]]
    title = f"by line, the {LINES} longest of {len(lines):,}" if len(lines) > LINES else "by line"
    return [
        Table("by function", ("function", "ran on: why", *header), of_functions, 2),
        Table(title, ("line", "function", "ran on: why", *header), of_lines, 3),
        *rank_tables(ledger),
        *instance_tables(ledger),
    ]


def examples(ledger: Ledger) -> list[str]:
    """For each reason the detail of its longest call."""
    longest: dict[str, Tally] = {}
    for t in ledger.tallies:
        if t.detail and (t.reason not in longest or t.longest_s > longest[t.reason].longest_s):
            longest[t.reason] = t
    shown = sorted(longest.values(), key=lambda t: t.reason)
    return [f"{t.reason}, for example {t.op} at {place(t.file, t.line)}: {' '.join(t.detail.split())}" for t in shown]


def width(table: Table) -> list[int]:
    """Characters that each column takes."""
    columns = zip(*(table.header, *table.rows), strict=True)
    return [max(len(line) for cell in column for line in cell.split("\n")) for column in columns]


def fits(table: Table, columns: int) -> bool:
    """Whether the table fits that many columns of a terminal."""
    return sum(width(table)) + len(GAP) * (len(table.header) - 1) <= columns


def stacked(table: Table, joint: str) -> Table:
    """``table`` with its text columns in one: the first cell, and below it the others, joined by ``joint``."""

    def stack(cells: tuple[str, ...]) -> tuple[str, ...]:
        return f"{cells[0]}\n{GAP}{joint.join(cells[1 : table.left])}", *cells[table.left :]

    return Table(table.title, stack(table.header), [stack(row) for row in table.rows], 1)


def without(table: Table, names: tuple[str, ...]) -> Table:
    """``table`` without the columns ``names``, which the title lists."""
    keep = [i for i, head in enumerate(table.header) if head.split("\n")[0] not in names]

    def kept(cells: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(cells[i] for i in keep)

    title = f"{table.title} (left out: {', '.join(names)})"
    return Table(title, kept(table.header), [kept(row) for row in table.rows], table.left)


def fitted(table: Table, columns: int) -> Table:
    """``table`` in the fullest form that fits that many columns of a terminal."""
    flat, deep = stacked(table, ", "), stacked(table, f"\n{GAP}")
    rare, spare = ("moved", "work"), ("host", "moved", "work")
    choices = [table, without(table, rare), flat, without(flat, rare), without(deep, rare), without(deep, spare)]
    return next((choice for choice in choices if fits(choice, columns)), choices[-1])


def plain(ledger: Ledger, columns: int = WIDE) -> str:
    """The report as plain text: sentences and aligned tables."""
    out = [f"trnpy: {sentence}" for sentence in sentences(ledger)]
    for table in tables(ledger):
        shown = fitted(table, columns)
        out += ["", shown.title]
        for row in (shown.header, *shown.rows):
            out += _aligned(row, width(shown), shown.left)
    return "\n".join([*out, *[""][: len(out) > 1], *examples(ledger)])


def _aligned(cells: tuple[str, ...], widths: list[int], left: int) -> list[str]:
    """The lines of one row: text aligned left, numbers right, all at the bottom."""
    split = [cell.split("\n") for cell in cells]
    height = max(map(len, split))
    padded = [
        [line.ljust(w) if i < left else line.rjust(w) for line in [""] * (height - len(lines)) + lines]
        for i, (lines, w) in enumerate(zip(split, widths, strict=True))
    ]
    return [GAP.join(parts).rstrip() for parts in zip(*padded, strict=True)]


def show(ledger: Ledger, file: IO[str]) -> None:
    """Print the report to ``file``; on a terminal fitted to its width, and by rich if it is installed."""
    # Only a terminal has a width and colours.
    columns = rows = WIDE
    if file.isatty():
        import shutil

        columns, rows = shutil.get_terminal_size()
    if not file.isatty() or importlib.util.find_spec("rich") is None:
        print(plain(ledger, columns), file=file)
        return
    import rich.console
    import rich.table
    import rich.text

    # Without a height rich takes any dumb terminal for one of 80 columns.
    console = rich.console.Console(file=file, width=columns, height=rows, highlight=False, markup=False)
    for sentence in sentences(ledger):
        console.print(rich.text.Text.assemble(("trnpy: ", "bold"), sentence))
    for table in tables(ledger):
        shown = fitted(table, columns)
        grid = rich.table.Table(box=None, padding=(0, len(GAP), 0, 0), pad_edge=False)
        for i, head in enumerate(shown.header):
            right = i >= shown.left
            justify: Literal["right", "left"] = "right" if right else "left"
            heading = rich.text.Text(head, style="dim")
            grid.add_column(heading, justify=justify, no_wrap=right, overflow="fold", vertical="bottom")
        for row in shown.rows:
            grid.add_row(*map(rich.text.Text, row))
        console.print("", rich.text.Text(shown.title, style="bold"), grid, sep="\n")
    console.print(*(rich.text.Text(example, style="dim") for example in ["", *examples(ledger)]), sep="\n")
