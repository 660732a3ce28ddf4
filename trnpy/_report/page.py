"""The report as one self-contained HTML page, for light and dark screens, readable without scripts."""

from __future__ import annotations

import html
import time
from collections.abc import Iterable, Sequence

from nkisim.hardware import ERROR_FACTOR, MACHINES
from trnpy._base.records import record
from trnpy._report.larger import instance_tables, more_chips, over_ranks, rank_tables, rented
from trnpy._report.ranks import HOST
from trnpy._report.reasons import meaning
from trnpy._report.run_record import Rank, Run
from trnpy._report.scaling import HEIGHT, WIDTH, curve, instance_of, picture
from trnpy._report.small_calls import Call
from trnpy._report.style import SCRIPT, STYLE
from trnpy._report.tally import DEVICE, Tally, detail, merged, ran_on, reason, why, wins
from trnpy._report.text import advised, device_sentences, doubts, estimates, past_patch, where
from trnpy._report.units import (
    NONE,
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
)
from trnpy._report.what_if import Verdict, WhatIf, predicted
from trnpy._settings.host_rates import machine_id

ROWS = 300  # lines of the program in the table: a browser sorts this many without delay
LANE = 40  # height in pixels, the same as in the style sheet
LANES = 6  # lanes for threads; further threads share the last
TICK = 7  # height in pixels of calls that are shorter than THINNEST

LEGEND = (
    '<p class="legend"><span><i class="other"></i>outside accelerated functions</span>'
    '<span><i class="host"></i>accelerated functions on the host</span><span><i class="device"></i>on the device</span>'
    '<span><i class="host hatched half"></i><i class="device hatched half"></i>predicted or modelled, not measured'
    "</span></p>"
)
HATCH = (
    '<defs><pattern id="hatch" width="6" height="6" patternUnits="userSpaceOnUse" patternTransform="rotate(45)">'
    '<rect width="6" height="6" class="d2"/><rect width="3" height="6" class="d1"/></pattern></defs>'
)

PALE = "<p>Pale: calls without a modelled time, because they are too small or have no device path.</p>"


@record()
class Part:
    """A part of a bar. ``look`` is a class of the style sheet; hatched parts are not measured."""

    look: str
    seconds: float
    says: str


def bar(parts: Iterable[Part], full_s: float) -> str:
    """A bar of parts side by side; ``full_s`` seconds are the whole width."""
    drawn = (
        f'<i class="{p.look}" style="width:{100 * p.seconds / full_s:.3f}%" title="{html.escape(p.says)}"></i>'
        for p in parts
        if p.seconds > 0 and full_s > 0
    )
    return f'<div class="bar">{"".join(drawn)}</div>'


def headline(w: WhatIf) -> str:
    """The prediction in a few words; `lead` has the figures."""
    if not w.calls:
        return "No accelerated function was called"
    if w.taken:
        made = f"made this run <em>{w.speedup:.3g}&times;</em>"
        faster = made if w.verdict is Verdict.FASTER else "did not make this run"
        return f"The {w.machine} {faster} faster <small>host {w.host_basis}</small>"
    core, (least, most) = f"core of a {w.machine}", w.speedups
    said = {
        Verdict.FASTER: f"One {core} would make this run <em>{least:.3g} to {most:.3g}&times;</em> faster",
        Verdict.SAME: f"One {core} would make no difference to this run",
        Verdict.UNKNOWN: f"Not enough data to predict the effect of one {core}",
    }
    return f"{said[w.verdict]} <small>modelled</small>"


def lead(w: WhatIf) -> str:
    """The sentence below the headline, with the figures of the prediction."""
    verdict, _, rest = str(w).partition(": ")
    said = rest or verdict
    return html.escape(f"{said[:1].upper()}{said[1:]}.")


def comparison(w: WhatIf) -> str:
    """The run without and with the machine, as two bars on one scale."""
    rest_s = max(w.elapsed_s - w.accelerated_s, 0.0)
    rest = Part("other", rest_s, f"outside accelerated functions: {duration(rest_s)} (measured)")
    host_look = "host" if w.host_basis == "measured" else "host hatched"
    alone_s, kept_s = w.host_s - rest_s, max(w.device_s - rest_s - w.device_part_s, 0.0)
    basis = "measured" if w.taken else "modelled"
    alone = Part(host_look, alone_s, f"accelerated functions on the host: {duration(alone_s)} ({w.host_basis})")
    kept = Part(host_look if not w.taken else "host", kept_s, f"staying on the host: {duration(kept_s)}")
    device = Part(
        "device" if w.taken else "device hatched",
        w.device_part_s,
        f"on the {w.machine}: {duration(w.device_part_s) if w.taken else modelled(w.device_part_s)} ({basis})",
    )
    full_s = max(w.host_s, w.device_s)
    certain = w.taken or not w.most_s  # measured, or nothing would go to the machine
    stated = f"{basis}, sparse matrices on the host" if w.unmodelled and not w.taken else basis
    total = duration(w.device_s) if certain else span(w.host_s - w.most_s, w.host_s - w.least_s)
    rows = (
        ("on the host alone", [rest, alone], duration(w.host_s), w.host_basis),
        (f"with the {w.machine}" if w.taken else f"with a {w.machine}", [rest, kept, device], total, stated),
    )
    return "".join(
        f'<div class="row"><span class="name">{name}</span>{bar(parts, full_s)}'
        f'<span class="value"><b>{time}</b> {how}</span></div>'
        for name, parts, time, how in rows
    )


def facts(w: WhatIf, tallies: Sequence[Tally]) -> str:
    """Four figures: run time, share of accelerated functions, number of their calls, calls for a device."""
    figures = (
        (duration(w.elapsed_s), "run time, measured"),
        (f"{w.share:.0%}", "of the processor time in accelerated functions, measured"),
        (f"{w.calls:,}", f"calls of {several(len({t.op for t in tallies}), 'function')}"),
        (f"{w.taken:,}", f"calls the {w.machine} took")
        if w.taken
        else (f"{w.won:,}", f"calls a {w.machine} would take, modelled"),
    )
    return "".join(f"<div><dd>{value}</dd><dt>{says}</dt></div>" for value, says in figures)


def functions(ledger: Run) -> str:
    """A bar of host time above a bar of device time for each function, all on one scale."""
    machine = ledger.machine
    groups: dict[str, list[Tally]] = {}
    for t in ledger.by_function():
        groups.setdefault(t.op, []).append(t)
    drawn: list[tuple[str, list[Part], list[Part], list[Tally]]] = []
    for op, ours in groups.items():
        priced = [t for t in ours if t.modelled]
        measured_s = sum(t.seconds for t in priced if t.on_host)
        predicted_s = sum(t.host_s for t in priced if not t.on_host)
        other_s = sum(t.seconds for t in ours if not t.modelled)
        took_s = sum(t.seconds for t in priced if t.ran_on == DEVICE)
        modelled_s = sum(t.device_s for t in priced if t.ran_on != DEVICE)
        host = [
            Part("host", measured_s, f"host: {duration(measured_s)} (measured)"),
            Part("host hatched", predicted_s, f"host: {duration(predicted_s)} (predicted)"),
            Part("unpriced", other_s, f"host, calls without a device path: {duration(other_s)} (measured)"),
        ]
        device = [
            Part("device", took_s, f"{machine}: {duration(took_s)} (measured)"),
            Part("device hatched", modelled_s, f"{machine}: {modelled(modelled_s)} (modelled)"),
        ]
        drawn.append((op, host, device, ours))
    full_s = max(sum(p.seconds for p in parts) for _, host, device, _ in drawn for parts in (host, device))
    drawn.sort(key=lambda d: -sum(p.seconds for p in d[1]))
    return "".join(_function(op, host, device, ours, machine, full_s) for op, host, device, ours in drawn)


def _function(op: str, host: list[Part], device: list[Part], ours: list[Tally], machine: str, full_s: float) -> str:
    def label(parts: list[Part], words: tuple[str, ...]) -> str:
        shown = [(p.seconds, word) for p, word in zip(parts, words, strict=True) if p.seconds > 0]
        times = [f"<b>{(modelled if word == 'modelled' else duration)(s)}</b> {word}" for s, word in shown]
        return " + ".join(times) or "not modelled"

    won, calls = sum(t.won for t in ours), sum(t.calls for t in ours)
    gain = span(sum(t.least_s for t in ours), sum(t.most_s for t in ours))
    doubted = sum(t.doubted for t in ours)
    taken = sum(t.calls for t in ours if t.ran_on == DEVICE)
    note = several(calls, "call")
    if taken:
        note += f", {taken:,} on the {machine}"
    if won:
        note += f" &middot; {won:,} would gain <b>{gain}</b> on a {machine}, modelled"
    if doubted:
        note += f" &middot; {doubted:,} in doubt: this host took longer than predicted, or than for the fastest"
    if unmodelled := sum(t.unmodelled for t in ours):
        note += f" &middot; {unmodelled:,} with sparse matrices not modelled"
    elif not (won or taken or doubted):
        note += " &middot; all best on the host" + ", modelled" * any(t.modelled for t in ours)
    return (
        f'<div class="function"><h3>{html.escape(op)} <small>{note}</small></h3>'
        f'<div class="row"><span class="name">host</span>{bar(host, full_s)}'
        f'<span class="value">{label(host, ("measured", "predicted", "other"))}</span></div>'
        f'<div class="row"><span class="name">{machine}</span>{bar(device, full_s)}'
        f'<span class="value">{label(device, ("measured", "modelled"))}</span></div></div>'
    )


def timeline(ledger: Run) -> str:
    """Calls over time: a lane for the host time of each thread, and one for each core of the device.

    The lanes of the device show the calls that a device computed. If there are none, they show the calls for which a
    device would be faster, at the time when they began.
    """
    calls, elapsed_s, machine = ledger.calls, ledger.elapsed_s, ledger.machine
    if not calls or elapsed_s <= 0:
        return ""
    threads = list(dict.fromkeys(c.thread for c in calls))
    lanes = {thread: min(i, LANES - 1) for i, thread in enumerate(threads)}
    count = min(len(threads), LANES)
    taken = any(ran_on(c.decision) == DEVICE for c in calls)
    start = ledger.opened
    host = [
        _rect(c, start, elapsed_s, lanes[c.thread], c.seconds, "host") for c in calls if ran_on(c.decision) != DEVICE
    ]
    if taken:
        on_device = [(c, c.seconds, "device") for c in calls if ran_on(c.decision) == DEVICE]
    else:
        on_device = [(c, c.decision.device_s or 0.0, "modelled") for c in calls if wins(c)]
    cores = max((c.decision.cores for c, *_ in on_device), default=1)
    device = "".join(
        _rect(c, start, elapsed_s, count + core, seconds, look)
        for c, seconds, look in on_device
        for core in range(c.decision.cores)
    )
    names = [f"host{f', thread {i + 1}' if count > 1 else ''}" for i in range(count)]
    how = "measured" if taken else "modelled"
    names += [f"{machine}{f', core {i}' if cores > 1 else ''}, {how}" for i in range(cores)]
    height = LANE * len(names)
    empty = "" if "<rect" in device else f'<span class="empty">no call would be faster on a {machine} (modelled)</span>'
    return (
        f'<div class="timeline"><div class="lanes">{"".join(f"<span>{n}</span>" for n in names)}</div>'
        f'<div class="track"><svg viewBox="0 0 1000 {height}" style="height:{height}px" preserveAspectRatio="none" '
        f'role="img" aria-label="When calls ran; the table by line has the figures">'
        f"{HATCH}{''.join(host)}{device}</svg>{empty}"
        f"{axis(elapsed_s)}</div></div>"
    )


def _rect(call: Call, opened: float, elapsed_s: float, lane: int, seconds: float, look: str) -> str:
    d, start = call.decision, call.started - opened
    says = (
        f"{d.op} at {place(call.file, call.line)}\n"
        f"{duration(call.seconds)} measured, {duration(start)} after the start\n"
        f"{ran_on(d)}: {reason(d)}: {detail(d)}"
    )
    if look == "modelled":
        says += f"\n{modelled(seconds)} on a {d.machine}, modelled"
    width = 1000 * seconds / elapsed_s
    height = LANE - 8 if width >= THINNEST else TICK
    return (
        f'<rect class="{look}" x="{1000 * start / elapsed_s:.2f}" y="{LANE * (lane + 1) - 4 - height}" '
        f'width="{max(width, THINNEST):.2f}" height="{height}"><title>{html.escape(says)}</title></rect>'
    )


def caption(ledger: Run) -> str:
    """The caption of the timeline: the calls that it omits and those that it does not draw to scale."""
    calls, tallies = ledger.calls, ledger.tallies
    count, total_s = sum(t.calls for t in tallies), sum(t.seconds for t in tallies)
    said = []
    if count > len(calls) and total_s:
        share = sum(c.seconds for c in calls) / total_s
        said.append(f"The {several(len(calls), 'longest call')} of {count:,}: {share:.1%} of the time of all.")
    if any(1000 * c.seconds < THINNEST * ledger.elapsed_s for c in calls):
        said.append("Low ticks are calls too short to draw to scale.")
    return f"<p>{' '.join(said)}</p>" if said else ""


def lines_table(ledger: Run) -> str:
    """The table by line of the program, sorted by time; scripts sort it by any column."""
    lines = ledger.by_line()
    longest_s = max(t.seconds for t in lines)
    rough = "<br>uncalibrated" * any(t.uncalibrated for t in lines)
    heads = (
        *("line", "function", "ran on", "why", "calls", "measured", f"host<br>predicted{rough}"),
        *(f"{ledger.machine}<br>modelled", "gain<br>modelled", "moved", "work"),
    )
    head = "".join(f'<th scope="col"{" class=n" if i > 3 else ""}>{h}</th>' for i, h in enumerate(heads))
    labels = [h.replace("<br>", ", ") for h in heads]
    body = "".join(_line(t, labels, longest_s, ledger.machine) for t in lines[:ROWS])
    table = f'<table class="sortable" id="lines"><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>'
    more = f"<p>The {ROWS} longest of {len(lines):,}; the JSON report has them all.</p>" if len(lines) > ROWS else ""
    return f'<div class="scroll">{table}</div>{more}'


def _line(t: Tally, labels: list[str], longest_s: float, machine: str) -> str:
    folder, _, name = place(t.file, t.line).rpartition("/")
    above = f"<span>{html.escape(folder)}/</span>" if folder else ""
    name = "<wbr>:".join(html.escape(name).rsplit(":", 1))  # where a long name may break
    figures = (
        (t.calls, f"{t.calls:,}"),
        (t.seconds, took(t)),
        (t.host_s, duration(t.host_s) if t.modelled else NONE),
        (t.device_s, modelled(t.device_s) if t.modelled else NONE),
        (t.gain_s, span(t.least_s, t.most_s) if t.won else NONE),
        (t.moved_bytes, quantity(t.moved_bytes, "B") if t.modelled else NONE),
        (t.flops, quantity(t.flops, "flop") if t.modelled else NONE),
    )
    via = f"<br><span>via {html.escape(place(*place_parts(t.through)))}</span>" if t.through else ""
    cells = [
        f'<td class="where" title="{html.escape(t.file)}:{t.line}">{above}<b>{name}</b>{via}</td>',
        f'<td data-k="{labels[1]}"><code>{html.escape(t.op)}</code></td>',
        f'<td data-k="{labels[2]}">{html.escape(where(t, machine))}</td>',
        f'<td data-k="{labels[3]}" class="why"><b>{why(t)}</b> <span>{html.escape(t.detail)}</span></td>',
    ]
    for label, (value, text) in zip(labels[4:], figures, strict=True):
        if label == "measured" and longest_s:
            text += f'<i class="share" style="width:{100 * t.seconds / longest_s:.1f}%"></i>'
        cells.append(f'<td class="n" data-k="{label}" data-v="{value!r}">{text}</td>')
    return f"<tr>{''.join(cells)}</tr>"


def sections_of(tables: Sequence[Table]) -> str:
    """A section for each table."""
    said = []
    for number, table in enumerate(tables):
        head = "".join(f'<th scope="col">{html.escape(h)}</th>' for h in table.header)
        rows = "".join(f"<tr>{''.join(f'<td>{html.escape(cell)}</td>' for cell in row)}</tr>" for row in table.rows)
        title = html.escape(table.title[:1].upper() + table.title[1:])
        said.append(
            f'<section><h2>{title}</h2><div class="scroll"><table id="{table.title.split()[0]}{number}">'
            f"<thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table></div></section>"
        )
    return "".join(said)


def ranks(ledger: Run) -> str:
    """The sections about the ranks of the run; empty for one process."""
    if not ledger.ranks:
        return ""
    rows = f"<section><h2>When ranks worked and waited</h2>{rank_rows(ledger.ranks)}</section>"
    found, instance, more = curve(ledger), instance_of(ledger), ""
    if found is not None and instance is not None:
        more = (
            f"<section><h2>On more chips of {instance.name}</h2>"
            f'<svg class="curves" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="Strong and weak scaling">'
            f"{picture([found], instance.chips)}</svg></section>"
        )
    return rows + sections_of(rank_tables(ledger)) + more


def reasons(ledger: Run) -> str:
    """The meaning of each reason in this run, and the number of its calls."""
    rows = "".join(
        f'<tr><td class="where"><b>{html.escape(t.reason)}</b></td>'
        f'<td data-k="means">{html.escape(meaning(t.reason))}</td>'
        f'<td data-k="for example">{html.escape(t.detail)}</td>'
        f'<td class="n" data-k="calls">{t.calls:,}</td><td class="n" data-k="measured">{took(t)}</td></tr>'
        for t in merged(ledger.tallies, "reason")
    )
    heads = "".join(f"<th>{h}</th>" for h in ("code", "means", "for example"))
    heads += '<th class="n">calls</th><th class="n">measured</th>'
    return f'<div class="scroll"><table id="reasons"><thead><tr>{heads}</tr></thead><tbody>{rows}</tbody></table></div>'


def honesty(ledger: Run) -> str:
    """The sources of the modelled and predicted figures."""
    m, tallies = MACHINES[ledger.machine], ledger.tallies
    rough = basis(tallies)
    rough = f" {html.escape(rough[0].upper() + rough[1:])}." if rough else ""
    some = f" (T{estimates(tallies)[1:]}.)" if any(t.timed < t.calls for t in tallies) else ""
    return (
        f"<p><b>Measured</b> times come from the clock.{some} <b>Predicted</b> is the host, from its rates.{rough} "
        f"<b>Modelled</b> is one physical NeuronCore (LNC 1) of a {m.name}, from published figures: "
        f"{quantity(m.launch_s, 's')} a launch, {quantity(m.link_bytes_per_s, 'B')}/s to the device and "
        f"{quantity(m.unlink_bytes_per_s, 'B')}/s back, {quantity(m.hbm_bytes_per_s, 'B')}/s of its own memory, "
        f"and at its peak {quantity(m.float64_flops_per_s, 'flop')}/s of products with float64 accuracy. "
        f"A modelled time is within a factor of {ERROR_FACTOR:g} in nine of ten published measurements of trn1; "
        "charts and speed-ups show its middle. In every chart, hatched bars are not measured.</p>"
    )


def notices(ledger: Run, w: WhatIf) -> list[str]:
    """The sentences below the prediction: the requested instance, advice, doubted gains, use of devices."""
    doubted = doubts(ledger.tallies, w)
    return [
        *over_ranks(ledger),
        *more_chips(ledger),
        *rented(ledger),
        *advised(ledger),
        *doubted,
        *device_sentences(ledger),
        *past_patch(ledger),
    ]


def page(ledger: Run) -> str:
    """The whole document."""
    w = predicted(ledger)
    began = time.strftime("%Y-%m-%d %H:%M", time.localtime(ledger.began))
    title = html.escape(ledger.title or "trnpy report")
    sections = [
        f'<header><p class="title"><b>trnpy report</b> {title} &middot; {began}<br>{html.escape(machine_id())}</p>'
        f"<h1>{headline(w)}</h1><p class='lead'>{lead(w)}</p></header>"
    ]
    if w.calls:
        sections += [
            f'<section class="whatif">{comparison(w)}{LEGEND}'
            f'<dl class="facts">{facts(w, ledger.tallies)}</dl></section>',
            *(f'<p class="notice">{html.escape(s)}</p>' for s in notices(ledger, w)),
            f"<section><h2>Host against {ledger.machine}, by function</h2>{PALE}{functions(ledger)}</section>",
            f"<section><h2>When it ran</h2>{timeline(ledger)}{caption(ledger)}</section>",
            f"<section><h2>By line of the program</h2>{lines_table(ledger)}</section>",
            sections_of(instance_tables(ledger)),
            f"<section><h2>Why calls ran where they did</h2>{reasons(ledger)}</section>",
        ]
    sections.append(ranks(ledger))
    sections.append(f"<footer>{honesty(ledger)}</footer>")
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>{title}</title>'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        '<meta name="color-scheme" content="light dark"><meta http-equiv="Content-Security-Policy" '
        "content=\"default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'\">"
        f"<style>{STYLE}</style></head>\n<body><main>\n{chr(10).join(sections)}\n</main>\n"
        f"<script>{SCRIPT}</script></body></html>\n"
    )


# --- Pictures with a time axis for many ranks ------------------------------------------------------------------------

ROW = 22  # height in pixels of the row of a rank, and of each of its NeuronCores
TICKS = 8  # on the time axis at most
THINNEST = 0.8  # least width that is drawn, in thousandths of the time axis: about a pixel
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
    """Accelerated calls, waiting and transfers over time: rows for each rank and its cores, on one axis."""
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
