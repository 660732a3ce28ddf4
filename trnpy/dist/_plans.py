"""Plans of contractions of sharded arrays: the labels that are divided over the ranks, and the data to be moved."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Literal

from trnpy._base.records import record
from trnpy._einsum import grammar
from nkisim.hardware import between
from trnpy.dist import _grids
from trnpy.dist._collectives import even

# The model: seconds of one message to each other rank, bytes per second that a rank sends, and flops of a product.
# One host, 4 ranks, 64 MB: gather, ring and reshard measured with MPICH, sums estimated. docs/scaling.md#the-model.
MESSAGE_S = 5e-6
BYTES_PER_S = {"gather": 6e9, "ring": 6e9, "reshard": 4e9, "allreduce": 2.4e9, "reduce_scatter": 3e9}
FLOPS_PER_S = 2e10
# On the host of these rates, collectives of 1 to 64 MB and a 2,048 x 2,048 matrix product are within this factor of the
# model: at most 2.4 and 2.7 times faster. A sum of 1 KB was 4.4 times faster. A network is not covered.
ERROR_FACTOR = 3.0
LEAVES = 16  # pieces of the label in a reproducible product, whatever the number of ranks
Layout = int | None | Literal["kept"]


@record()
class Step:
    """One transfer between the ranks, or the products between two transfers."""

    action: str  # gather, ring, reshard, blocks, product, allreduce, reduce_scatter
    what: str  # labels of the operand or of the result
    bytes: float  # that a rank sends, on average
    seconds: float  # modelled


@record(frozen=True)
class ShardedPlan:
    """How the ranks compute a contraction: each computes a range of ``label``, or on a grid a range of two labels."""

    subscripts: str
    label: str  # "" if no operand is in pieces; both labels of a grid
    edges: tuple[int, ...]  # rank r computes the range from ``edges[r]`` to ``edges[r + 1]``; on a grid it has it after
    ring: int | None  # the operand whose pieces pass from rank to rank
    axis: int | None  # of the result, cut along it; None if every rank has the whole result
    steps: tuple[Step, ...]
    others: tuple[ShardedPlan, ...] = ()  # plans with other labels, and the best on a grid; the fastest first
    grid: _grids.Grid | None = None

    @property
    def bytes(self) -> float:
        return sum(step.bytes for step in self.steps)

    @property
    def seconds(self) -> float:
        return sum(step.seconds for step in self.steps)

    @property
    def _share(self) -> str:
        """The labels of which each rank has a range."""
        return f"{self.label!r}" + (f" on {self.grid.shape[0]} x {self.grid.shape[1]}" if self.grid else "")

    def __str__(self) -> str:
        where = "whole on every rank" if self.axis is None else f"cut along axis {self.axis}"
        first = (
            f"{self.subscripts}: {len(self.edges) - 1} ranks, a range of {self._share} each; result {where}; "
            f"{self.bytes:.3g} bytes sent by a rank, {between(self.seconds, ERROR_FACTOR)} modelled"
        )
        parts = [(f"{s.action:15}{s.what}", s.bytes, s.seconds) for s in self.steps]
        parts += [(f"not taken: ranges of {p._share}", p.bytes, p.seconds) for p in self.others]
        rows = [f"  {what:36}{sent:10.3g} bytes   {between(s, ERROR_FACTOR)}" for what, sent, s in parts]
        return "\n".join([first, *rows])

    __repr__ = __str__


@record()
class Piece:
    """An operand without its values: how it is cut, and its size."""

    shape: tuple[int, ...]
    bytes: int
    axis: int | None
    edges: tuple[int, ...]


@functools.lru_cache(maxsize=1024)
def planned(
    inputs: tuple[str, ...], output: str, pieces: tuple[Piece, ...], wanted: Layout, itemsize: int, ranks: int,
    memory: float, reproducible: bool,
) -> ShardedPlan:  # fmt: skip
    """The plan with the lowest modelled time; if several are equal, the plan of the first label."""
    sizes = grammar.label_sizes(inputs, output, tuple(piece.shape for piece in pieces))
    cuts = [labels[p.axis] if p.axis is not None else "" for labels, p in zip(inputs, pieces, strict=True)]
    axis = next((output.index(c) for c in cuts if c and c in output), None) if wanted == "kept" else wanted
    axis = None if axis is None else range(len(output))[axis]
    candidates = dict.fromkeys([*filter(None, cuts), *([output[axis]] if axis is not None else [])])
    subscripts = f"{','.join(inputs)}->{output}"
    if not candidates:
        return ShardedPlan(subscripts, "", (0, 0), None, axis, ())
    # The choice of a reproducible product is the same for any number of ranks.
    assumed = LEAVES if reproducible else ranks
    size = itemsize * math.prod(sizes[c] for c in output)
    flops = 2.0 * max(len(inputs) - 1, 1) * math.prod(sizes.values())

    def edges_of(label: str) -> tuple[int, ...]:
        return _ranges(
            sizes[label], [q.edges for c, q in zip(cuts, pieces, strict=True) if c == label], ranks, reproducible
        )

    def steps(label: str, p: int) -> tuple[list[Step], int | None]:
        listed: list[Step] = []
        ring = None
        for i, (labels, piece) in enumerate(zip(inputs, pieces, strict=True)):
            if piece.axis is None:
                continue
            share = piece.bytes * (p - 1) / p
            if label in labels and piece.shape[labels.index(label)] == sizes[label]:
                # If the operand is cut along this label, few rows or none move to the edges of leaves.
                if cuts[i] != label or (piece.edges != edges_of(label) and not reproducible):
                    listed.append(_step("reshard", labels, share / p, p))
                continue
            whole = labels.count(cuts[i]) == 1 and piece.edges[-1] == sizes[cuts[i]]
            if ring is None and whole and piece.bytes > memory and not reproducible:
                ring = i
                listed.append(_step("ring", labels, share, p, p - 1))
            else:
                listed.append(_step("gather", labels, share, p))
        longest = math.ceil(sizes[label] / p) / max(sizes[label], 1)  # share of the rank with the longest range
        listed.append(Step("product", output, 0.0, flops * longest / FLOPS_PER_S))
        end, share = "" if axis is None else output[axis], size * (p - 1) / p
        if label not in output:
            action, sends = ("reduce_scatter", 1) if end else ("allreduce", 2)
            listed.append(_step(action, output, sends * share, p, sends))
        elif not end:
            listed.append(_step("gather", output, share, p))
        elif end != label:
            listed.append(_step("reshard", output, share / p, p))
        return listed, ring

    def plan(label: str) -> ShardedPlan:
        listed, ring = steps(label, ranks)
        return ShardedPlan(subscripts, label, edges_of(label), ring, axis, tuple(listed))

    label = min(candidates, key=lambda c: sum(step.seconds for step in steps(c, assumed)[0]))
    found = [plan(label), *sorted((plan(c) for c in candidates if c != label), key=lambda p: p.seconds)]
    if not reproducible:
        edges = {c: edges_of(c) for c in output}
        on_grids = _on_grids(inputs, output, pieces, axis, itemsize, sizes, edges, memory)
        found += sorted(on_grids, key=lambda p: p.seconds)[:1]
        found.sort(key=lambda p: p.seconds)
    return replace(found[0], others=tuple(found[1:]))


def _on_grids(
    inputs: tuple[str, ...], output: str, pieces: tuple[Piece, ...], axis: int | None, itemsize: int,
    sizes: Mapping[str, int], edges: Mapping[str, tuple[int, ...]], memory: float,
) -> Iterator[ShardedPlan]:  # fmt: skip
    """Plans in which each rank computes a block of the result from blocks of operands that fit ``memory``."""
    shape, at = tuple(sizes[c] for c in output), axis or 0
    size = itemsize * math.prod(shape)
    flops = 2.0 * max(len(inputs) - 1, 1) * math.prod(sizes.values())
    cut = [(labels, piece) for labels, piece in zip(inputs, pieces, strict=True) if piece.axis is not None]
    ends = edges[output[at]] if output else ()
    for grid in _grids.grids([labels for labels, _ in cut], output, edges, len(ends) - 1):
        ranks, listed = len(ends) - 1, []
        for labels, piece in cut:
            needs = grid.blocks(labels, piece.shape, sizes)
            if max(map(_grids.size, needs)) * piece.bytes > memory * math.prod(piece.shape):
                break
            listed.append(_blocks_step(labels, piece, needs, ranks))
        else:
            longest = grid.longest / max(math.prod(sizes[c] for c in grid.labels), 1)
            listed.append(Step("product", output, 0.0, flops * longest / FLOPS_PER_S))
            result = Piece(shape, size, at, ends)
            listed.append(_blocks_step(output, result, grid.blocks(output, shape, sizes), ranks))
            if axis is None:
                listed.append(_step("gather", output, size * (ranks - 1) / ranks, ranks))
            yield ShardedPlan(
                f"{','.join(inputs)}->{output}", "".join(grid.labels), ends, None, axis, tuple(listed), grid=grid
            )


def _blocks_step(what: str, piece: Piece, blocks: list[_grids.Block], ranks: int) -> Step:
    """The transfer of an array from pieces to blocks or back: both directions move the same bytes and messages."""
    assert piece.axis is not None
    has = _grids.pieces(piece.shape, piece.axis, piece.edges)
    sent = _grids.received(has, blocks) * piece.bytes / max(math.prod(piece.shape), 1)
    messages = sum(_grids.common(blocks[0], there) > 0 for there in has[1:])
    return Step("blocks", what, sent, messages * MESSAGE_S + sent / BYTES_PER_S["reshard"])


def _ranges(n: int, cuts: list[tuple[int, ...]], ranks: int, reproducible: bool) -> tuple[int, ...]:
    """Ranges of a label of size ``n``: those of leaves, else the first of its ``cuts`` in operands, else even ones."""
    if reproducible:
        return tuple(n * leaf // LEAVES for leaf in even(LEAVES, ranks))
    return next((edges for edges in cuts if edges[-1] == n), tuple(even(n, ranks)))


def _step(action: str, what: str, sent: float, ranks: int, messages: int = 1) -> Step:
    seconds = 0.0 if ranks == 1 else messages * (ranks - 1) * MESSAGE_S + sent / BYTES_PER_S[action]
    return Step(action, what, sent, seconds)
