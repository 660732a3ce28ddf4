"""The report's text about several ranks, a rented instance and more chips; most runs need none of it."""

from __future__ import annotations

from nkisim.hardware import ERROR_FACTOR
from trnpy._report.instance_cost import ASSUMED, Estimate, rentals
from trnpy._report.ranks import by_line, imbalance
from trnpy._report.run_record import Run
from trnpy._report.scaling import curve, instance_of
from trnpy._report.units import (
    LINES,
    NONE,
    NOTICEABLE,
    Larger,
    Table,
    duration,
    modelled,
    place,
    place_parts,
    price,
    quantity,
    several,
)
from trnpy._report.what_if import predicted


def larger(ledger: Run) -> Larger:
    """All sentences and tables."""
    return Larger(
        over_ranks(ledger),
        [*more_chips(ledger), *rented(ledger)],
        [*rank_tables(ledger), *instance_tables(ledger)],
    )


def over_ranks(ledger: Run) -> list[str]:
    """How the time of the run is distributed over ranks; empty for one process."""
    ranks = ledger.ranks
    if not ranks:
        return []
    total_s, longest_s = sum(r.elapsed_s for r in ranks) or 1.0, max(r.elapsed_s for r in ranks)
    waits, moves = (sum(getattr(r, name) for r in ranks) / total_s for name in ("waited_s", "moved_s"))
    sent = quantity(sum(r.sent for r in ranks), "B")
    known = any(r.collectives for r in ranks)  # only trnpy.dist records messages; mpi4py's are not recorded
    said = f"{waits:.0%} of it waiting and {moves:.0%} transfers of {sent}" if known else "what they sent was not seen"
    return [
        f"{len(ranks)} ranks: {duration(longest_s)}, {said}; the busiest rank works {imbalance(ranks):.2f} times the "
        "mean (measured); calls, lines and advice below are of rank 0 where they are not said to be of all ranks"
    ]


def more_chips(ledger: Run) -> list[str]:
    """Modelled times of a run of several ranks on one chip, one instance and more; empty for one process."""
    found, instance = curve(ledger), instance_of(ledger)
    if found is None or instance is None:
        return []
    said = []
    for point, weak in zip(found.strong, found.efficiencies, strict=True):
        if point.chips in (1, instance.chips, 4 * instance.chips, found.strong[-1].chips):
            share = point.moved_s / point.seconds if point.seconds else 0.0
            said.append(
                f"{several(point.chips, 'chip')} {modelled(point.seconds)}, {share:.0%} transfers, {weak:.0%} weak"
            )
    return [
        f"with a rank on each NeuronCore of {instance.name}: {'; '.join(said)}: weak is the efficiency if each core "
        "has as much work as a rank here; what is outside accelerated functions takes as long as here (modelled)"
    ]


def rank_tables(ledger: Run) -> list[Table]:
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


def rented(ledger: Run) -> list[str]:
    """The predicted time and cost of the run on the requested instance; empty if none is named."""
    found, run = rentals(ledger), predicted(ledger)
    whole = run.unmodelled_s <= NOTICEABLE * run.host_s
    return [str(found[0].instance), *[ordered(e, whole) for e in found], ASSUMED] if found else []


def ordered(e: Estimate, whole: bool) -> str:
    """The sentence of one estimate: its order of calls, this machine, the vCPUs, the NeuronCores, dollars per run.

    ``whole``: whether every noticeable part of the run is modelled.
    """
    order = "at the same time" if e.together else "one after another"
    own = "on its vCPUs" if e.instance.vcpus else "on as many vCPUs as here"
    said = (
        f"{e.instance.name}, calls of a line {order}: {duration(e.here_s)} on this machine, {duration(e.vcpus_s)} {own}"
        f"{rent(e, e.vcpus_s)} (predicted); "
    )
    fast_s, slow_s = e.cores_s
    if fast_s >= (1 - NOTICEABLE) * e.vcpus_s:
        more = "its NeuronCores make no difference to that (modelled)"
        return said + (more if whole else "what its NeuronCores save with sparse matrices --device null models")
    least, most = e.speedups
    return (
        f"{said}{duration(fast_s)} to {duration(slow_s)} with its NeuronCores{rent(e, fast_s, slow_s)}: "
        f"{least:.3g} to {most:.3g} times faster than its vCPUs (modelled)"
    )


def rent(e: Estimate, *seconds: float) -> str:
    """The price of one run of ``seconds``: ", $0.012 a run"; empty if no price is public."""
    dollars = [price(cost) for s in seconds if (cost := e.dollars(s)) is not None]
    return f", {' to '.join(dollars)} a run" if dollars else ""


def instance_tables(ledger: Run) -> list[Table]:
    """For each order of calls, the parts of each line's time on the instance."""
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
        within = f"launches to host steps are modelled, to a factor of {ERROR_FACTOR:g}"
        title = f"on a {e.instance.name}, calls of a line {order}; {within}"
        shown += [Table(title, header, rows, 2)] if rows else []
    return shown
