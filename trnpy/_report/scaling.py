"""Predictions for many chips: modelled seconds of work and transfers on 1 to 64 chips and 1 to 16 instances."""

from __future__ import annotations

import html
import math
from collections.abc import Callable, Iterable

from trnpy._base.records import record
from trnpy._nki.instances import INSTANCES, Instance
from trnpy._report.run_record import Run
from trnpy._report.what_if import predicted

INSTANCES_MODELLED = (1, 2, 4, 8, 16)
USUAL = {"trn1": "trn1.32xlarge", "trn2": "trn2.48xlarge"}  # the instance of a machine if none is named
NETWORK_S = 15e-6  # a message between instances over EFA (AWS's pages of the Elastic Fabric Adapter)
# Bytes that each of p ranks sends, as a function of p: for arrays of fixed size, and for a fixed share per rank.
SENT: dict[str, tuple[Callable[[int], float], Callable[[int], float]]] = {
    "alltoall": (lambda p: (p - 1) / p**2, lambda p: (p - 1) / p),
    "allgather": (lambda p: (p - 1) / p, lambda p: p - 1.0),
    "ring": (lambda p: (p - 1) / p, lambda p: p - 1.0),
    # A and the result cut by rows, B by columns: blocks of a square grid (docs/scaling.md#the-model).
    "grid": (lambda p: (p - 1) / p**1.5, lambda p: (p - 1) / p**0.5),
    "visit": (lambda p: p // 2 / p, lambda p: p // 2),  # each rank sends its orbitals to half of the other ranks
    "": (lambda p: (p - 1) / p, lambda p: (p - 1) / p),  # all others
}


@record(frozen=True)
class Point:
    """A run on ``chips`` chips."""

    chips: int
    instances: int
    work_s: float
    moved_s: float

    @property
    def seconds(self) -> float:
        return self.work_s + self.moved_s


@record(frozen=True)
class Curve:
    """A program on increasing numbers of chips: with a fixed problem (strong) and with fixed work per core (weak)."""

    name: str
    strong: tuple[Point, ...]
    weak: tuple[Point, ...]

    @property
    def speedups(self) -> list[float]:
        return [self.strong[0].seconds / point.seconds for point in self.strong]

    @property
    def efficiencies(self) -> list[float]:
        """Efficiencies of weak scaling."""
        return [self.weak[0].seconds / point.seconds for point in self.weak]


@record(frozen=True)
class Load:
    """The load of each of p ranks: seconds of work, bytes sent, and collective operations."""

    work_s: Callable[[int], float]
    sent: Callable[[int], float]
    operations: Callable[[int], float]


def chips(instance: Instance) -> list[int]:
    """Powers of two up to one instance, and up to 16 instances."""
    one = [2**i for i in range(int(math.log2(instance.chips)) + 1)]
    return one + [n * instance.chips for n in INSTANCES_MODELLED[1:]]


def moved_s(instance: Instance, ranks: int, sent: float, operations: float) -> float:
    """Seconds in which a rank on one NeuronCore sends ``sent`` bytes in ``operations`` operations.

    Within one instance the rate is that measured for a collective; between instances it is the rank's share of the
    instance's network.
    """
    if ranks == 1:
        return 0.0
    instances, timing = -(-ranks // instance.cores), instance.hardware.timing
    # Launch with collectives on the cores of an instance, then messages between instances along a tree.
    each = timing.group_barrier_s + timing.group_doubling_s * math.log2(min(ranks, instance.cores) / 2)
    rate = instance.hardware.peer_bytes_per_s
    if instances > 1:
        each += 2 * NETWORK_S * math.ceil(math.log2(instances))
        rate = (instance.network_gbit_per_s or 0.0) * 1e9 / 8 / instance.cores
    return operations * each + sent / rate


def points(instance: Instance, load: Load) -> tuple[Point, ...]:
    found = []
    for count in chips(instance):
        ranks = count * instance.hardware.cores_per_chip
        moved = moved_s(instance, ranks, load.sent(ranks), load.operations(ranks))
        found.append(Point(count, -(-count // instance.chips), load.work_s(ranks), moved))
    return tuple(found)


def instance_of(ledger: Run) -> Instance | None:
    """The instance of a run: the requested one, or the default of its machine; None if its network is not known."""
    found = ledger.instance or INSTANCES.get(USUAL.get(ledger.machine, ""))
    return found if found is not None and found.network_gbit_per_s and found.chips > 1 else None


def curve(ledger: Run) -> Curve | None:
    """A run of several ranks on more chips, one rank per core; None for one process, or if no network is known.

    Work outside accelerated functions takes as long as here on every rank; accelerated calls are divided evenly.
    """
    instance, ranks = instance_of(ledger), len(ledger.ranks)
    if instance is None or ranks < 2:
        return None
    w, lines = predicted(ledger), [c for r in ledger.ranks for c in r.collectives]
    moved = ledger.ranks[0].waited_s + ledger.ranks[0].moved_s
    rest_s = max(w.elapsed_s - w.accelerated_s - moved, 0.0)
    work_s = max(w.device_s - (w.elapsed_s - w.accelerated_s), 0.0)
    operations = sum(c["calls"] for c in lines) / ranks

    def sent(p: int, kind: int) -> float:
        total = 0.0
        for c in lines:
            scale = SENT.get(c["operation"], SENT[""])[kind]
            total += c["sent"] / ranks * scale(p) / scale(ranks)
        return total

    strong = Load(lambda p: rest_s + work_s * ranks / p, lambda p: sent(p, 0), lambda p: operations)
    weak = Load(lambda p: rest_s + work_s, lambda p: sent(p, 1), lambda p: operations)
    return Curve(ledger.title or "this run", points(instance, strong), points(instance, weak))


# --- The picture ------------------------------------------------------------------------------------------------------

WIDTH, HEIGHT = 810, 300
COLOURS = ("#4a74b8", "#2a7f62", "#c98a1b", "#8a5cc2")
PANEL = 320, 200  # pixels
TOP = 50
LEFTS = (50, 440)


def picture(curves: Iterable[Curve], per_instance: int) -> str:
    """Elements of an SVG of WIDTH and HEIGHT: speed-up of one problem, and efficiency of one problem per core."""
    curves = list(curves)
    counts = [p.chips for p in curves[0].strong]
    span, (width, height) = math.log2(counts[-1]), PANEL
    parts = [
        _text(LEFTS[0], 20, "strong scaling: times faster than one chip (modelled)", "start"),
        _text(LEFTS[1], 20, "weak scaling: efficiency, the same work a chip (modelled)", "start"),
    ]
    for left in LEFTS:
        parts.append(f'<rect class="frame" x="{left}" y="{TOP}" width="{width}" height="{height}"/>')
        x = left + width * math.log2(per_instance) / span
        parts.append(f'<path class="rule" d="M{x:.1f} {TOP} V{TOP + height}"/>')
        parts.append(_text(x, TOP - 6, "one instance"))
        for count in counts:
            parts.append(_text(left + width * math.log2(count) / span, TOP + height + 16, str(count)))
        parts.append(_text(left + width / 2, TOP + height + 34, "chips"))
    for share in (0, 0.25, 0.5, 0.75, 1):
        y = TOP + height * (1 - share)
        parts.append(_text(LEFTS[0] - 8, y + 4, f"{2 ** (share * span):.0f}", "end"))
        parts.append(_text(LEFTS[1] - 8, y + 4, f"{share:.0%}", "end"))
    parts.append(f'<path class="rule" d="M{LEFTS[0]} {TOP + height} L{LEFTS[0] + width} {TOP}"/>')
    for number, found in enumerate(curves):
        colour = COLOURS[number % len(COLOURS)]
        speed = [math.log2(max(s, 1.0)) / span for s in found.speedups]
        for left, heights in zip(LEFTS, (speed, found.efficiencies), strict=True):
            at = [
                f"{left + width * math.log2(n) / span:.1f},{TOP + height * (1 - min(h, 1.0)):.1f}"
                for n, h in zip(counts, heights, strict=True)
            ]
            parts.append(f'<polyline fill="none" stroke="{colour}" stroke-width="2.5" points="{" ".join(at)}"/>')
        if len(curves) > 1:
            y = TOP + 18 + 18 * number
            parts.append(f'<path stroke="{colour}" stroke-width="2.5" d="M{LEFTS[0] + 10} {y - 4} h22"/>')
            parts.append(_text(LEFTS[0] + 38, y, found.name, "start"))
    return "".join(parts)


def _text(x: float, y: float, words: str, anchor: str = "middle") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{html.escape(words)}</text>'
