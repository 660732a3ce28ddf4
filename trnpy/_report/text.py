"""The full report as text: sentences and tables, as plain text or, with the same content, through rich."""

from __future__ import annotations

import importlib.util
from typing import IO, Literal

from trnpy._report import no_path
from trnpy._report.run_record import Run
from trnpy._report.sampler import LEAST_S, LEAST_SHARE, NO_PATH, PRODUCT, UNPATCHED, Unrouted
from trnpy._report.small_calls import NOTHING_CALLED, STRIDE
from trnpy._report.tally import FAILURES, ROUTED, Tally, merged, why
from trnpy._report.units import (
    LINES,
    NONE,
    NOTICEABLE,
    Larger,
    Table,
    basis,
    duration,
    modelled,
    place,
    place_parts,
    quantity,
    several,
    span,
    took,
    uncalibrated,
)
from trnpy._report.what_if import WhatIf, predicted, priced, worth
from trnpy._settings.policy import current_policy

NOTHING_RECORDED = (
    "nothing was recorded: run python -m trnpy script.py, "
    "or call trnpy's functions, or patched ones, inside with trnpy.profile()"
)
PLACES = 5  # lines that one sentence lists about work that patches do not reach
PAST = (
    (PRODUCT, "in products by the method dot, which cannot be routed", "; write a @ b or np.dot(a, b)"),
    (NO_PATH, "in functions that have no path on a device", ""),
    (UNPATCHED, "in functions called past the patch", "; patch before these names are imported, or with rebind=True"),
)

IN_DOUBT = 0.1  # share of the run time from which the text mentions doubted gains
WIDE = 10_000  # columns of a file, which has no width limit
GAP = "  "


def estimates(tallies: list[Tally]) -> str:
    """The sentence that explains estimated times."""
    timed, calls = (sum(getattr(t, name) for t in tallies) for name in ("timed", "calls"))
    return (
        f"times with ~ are estimated: one of {STRIDE} small calls of a line is timed, "
        f"and {timed:,} of all {calls:,} calls were"
    )


def sentences(ledger: Run) -> list[str]:
    """The sentences above the tables: the share of the run, the prediction, use of devices, failures."""
    what_if, tallies = predicted(ledger), ledger.tallies
    ranks, beyond = larger_of(ledger)[:2]
    if not what_if.calls:
        nothing = NOTHING_CALLED if ledger.elapsed_s else NOTHING_RECORDED
        return [*ranks, *past_patch(ledger)] or [nothing]
    functions = several(len({t.op for t in tallies}), "accelerated function")
    said = [
        f"{duration(what_if.elapsed_s)}, of which {duration(what_if.accelerated_s)} in "
        f"{several(what_if.calls, 'call')} of {functions} (measured; {what_if.share:.0%} of the processor time)",
        *ranks,
        str(what_if),
        *beyond,
        *advised(ledger),
        *doubts(tallies, what_if),
        *device_sentences(ledger),
        *past_patch(ledger),
    ]
    if any(t.timed < t.calls for t in tallies):
        said.append(estimates(tallies))
    if rough := basis(tallies):
        said.append(rough)
    return said


def larger_of(ledger: Run) -> Larger:
    """The text about several ranks and an instance. Most runs have neither and do not import its module."""
    if not ledger.ranks and ledger.instance is None:
        return Larger([], [], [])
    from trnpy._report.larger import larger

    return larger(ledger)


def advised(ledger: Run) -> list[str]:
    """Changes that would save a noticeable part of the run, each with its gain, or the advice to stay on the CPU."""
    found, what_if = priced(ledger), predicted(ledger)
    if not found:
        return []
    core, noticeable_s = f"one core of a {what_if.machine}", NOTICEABLE * what_if.elapsed_s
    chosen, best = worth(found, noticeable_s), found[0]
    if not chosen and what_if.most_s <= noticeable_s:
        if what_if.unmodelled_s > noticeable_s:
            return []
        if not best.most_s:
            return [f"advice: stay on the CPU: no change would let {core} save more (modelled)"]
        most = f"at most {duration(best.most_s)} more on {core}: {best.change}"
        return [f"advice: stay on the CPU: the best change would save {most} (modelled)"]
    said = []
    for a in chosen:
        saves = f"{duration(a.least_s)} to {duration(a.most_s)}" if a.least_s else f"up to {duration(a.most_s)}"
        where = place(a.file, a.line)
        said.append(f"advice: {a.change}: saves {saves} more on {core}, {a.condition}; most at {where} (modelled)")
    return said


def doubts(tallies: list[Tally], what_if: WhatIf) -> list[str]:
    """Calls that a device would win only because the host took much longer than predicted; no gain is claimed."""
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


def device_sentences(ledger: Run) -> list[str]:
    """The calls on devices, on other engines and through CPU fast paths, and the failures."""
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


def past_patch(ledger: Run) -> list[str]:
    """Sentences about work that patches do not reach: its least time, its lines, and a remedy for each kind.

    Under ``fallback="raise"`` they include every sampled function without a device path, however short.
    """
    least_s = max(LEAST_S, LEAST_SHARE * ledger.elapsed_s)
    said, found = [], ledger.unrouted()
    for kind, before, after in PAST:
        ours = [u for u in found if u.kind == kind]
        total_s = sum(u.seconds for u in ours)
        if not ours or (total_s < least_s and not (kind == NO_PATH and current_policy().fallback == "raise")):
            continue
        named = [f"{u.function} at {called_from(u)} {duration(u.seconds)}" for u in ours[:PLACES]]
        more = f" and {len(ours) - PLACES} more" if len(ours) > PLACES else ""
        if kind == NO_PATH:
            after = f" ({'; '.join(dict.fromkeys(no_path.why(u.function) for u in ours[:PLACES]))})"
        said.append(f"at least {duration(total_s)} (sampled) {before}: {', '.join(named)}{more}{after}")
    return said


def where(t: Tally, machine: str) -> str:
    """Where calls ran, and the machine of their modelled seconds if it is not ``machine``."""
    return t.ran_on if t.machine in ("", machine) else f"{t.ran_on}, for {t.machine}"


def called_from(t: Tally | Unrouted) -> str:
    """The program's line, and the library's line through which it made the calls."""
    line = place(t.file, t.line)
    return f"{line} via {place(*place_parts(t.through))}" if t.through else line


def figures(t: Tally) -> tuple[str, ...]:
    """Cells for calls, seconds (measured, predicted, modelled), modelled gain, bytes and flops."""
    if not t.modelled:
        return f"{t.calls:,}", took(t), *(NONE,) * 5
    gain = span(t.least_s, t.most_s) if t.won else NONE
    work = quantity(t.moved_bytes, "B"), quantity(t.flops, "flop")
    return f"{t.calls:,}", took(t), duration(t.host_s), modelled(t.device_s), gain, *work


def tables(ledger: Run) -> list[Table]:
    """The tables by function and by line of the program."""
    functions, lines, machine = ledger.by_function(), ledger.by_line(), ledger.machine
    if not functions:
        return larger_of(ledger).tables
    mark = "predicted" + uncalibrated(functions).replace(", ", "\n")
    header = ("calls", "measured", f"host\n{mark}", f"{machine}\nmodelled", "gain\nmodelled", "moved", "work")
    total_s: dict[str, float] = {}
    for t in functions:
        total_s[t.op] = total_s.get(t.op, 0.0) + t.seconds
    functions.sort(key=lambda t: (-total_s[t.op], t.op, -t.seconds))
    of_functions = [(t.op, f"{where(t, machine)}: {why(t)}", *figures(t)) for t in functions]
    of_lines = [(called_from(t), t.op, f"{where(t, machine)}: {why(t)}", *figures(t)) for t in lines[:LINES]]
    title = f"by line, the {LINES} longest of {len(lines):,}" if len(lines) > LINES else "by line"
    return [
        Table("by function", ("function", "ran on: why", *header), of_functions, 2),
        Table(title, ("line", "function", "ran on: why", *header), of_lines, 3),
        *larger_of(ledger).tables,
    ]


def examples(ledger: Run) -> list[str]:
    """The detail of the longest call for each reason."""
    longest: dict[str, Tally] = {}
    for t in ledger.tallies:
        if t.detail and (t.reason not in longest or t.longest_s > longest[t.reason].longest_s):
            longest[t.reason] = t
    shown = sorted(longest.values(), key=lambda t: t.reason)
    return [f"{t.reason}, for example {t.op} at {place(t.file, t.line)}: {' '.join(t.detail.split())}" for t in shown]


def width(table: Table) -> list[int]:
    """The width of each column in characters."""
    columns = zip(*(table.header, *table.rows), strict=True)
    return [max(len(line) for cell in column for line in cell.split("\n")) for column in columns]


def fits(table: Table, columns: int) -> bool:
    """Whether the table fits a terminal with this many columns."""
    return sum(width(table)) + len(GAP) * (len(table.header) - 1) <= columns


def stacked(table: Table, joint: str) -> Table:
    """``table`` with its text columns merged: the first cell, and below it the others, joined with ``joint``."""

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
    """``table`` in the fullest form that fits a terminal with this many columns."""
    flat, deep = stacked(table, ", "), stacked(table, f"\n{GAP}")
    rare, spare = ("moved", "work"), ("host", "moved", "work")
    choices = [table, without(table, rare), flat, without(flat, rare), without(deep, rare), without(deep, spare)]
    return next((choice for choice in choices if fits(choice, columns)), choices[-1])


def plain(ledger: Run, columns: int = WIDE) -> str:
    """The full report as plain text: sentences and aligned tables."""
    out = [f"trnpy: {sentence}" for sentence in sentences(ledger)]
    for table in tables(ledger):
        shown = fitted(table, columns)
        out += ["", shown.title, *aligned(shown)]
    return "\n".join([*out, *[""][: len(out) > 1], *examples(ledger)])


def aligned(table: Table) -> list[str]:
    """The lines of the header and the rows."""
    return [line for row in (table.header, *table.rows) for line in _aligned(row, width(table), table.left)]


def _aligned(cells: tuple[str, ...], widths: list[int], left: int) -> list[str]:
    """The lines of one row: text aligned left, numbers right, all at the bottom."""
    split = [cell.split("\n") for cell in cells]
    height = max(map(len, split))
    padded = [
        [line.ljust(w) if i < left else line.rjust(w) for line in [""] * (height - len(lines)) + lines]
        for i, (lines, w) in enumerate(zip(split, widths, strict=True))
    ]
    return [GAP.join(parts).rstrip() for parts in zip(*padded, strict=True)]


def show(ledger: Run, file: IO[str]) -> None:
    """Print the full report to ``file``; on a terminal, fitted to its width and through rich if it is installed."""
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

    # If no height is given, rich assumes 80 columns for any dumb terminal.
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
