"""nki.collectives: kernels exchange data between the ranks of a replica group.

Every rank of a group issues the same collective, which completes when all have issued it. ``replicas.run_ranks``
starts the ranks. With two cores per rank (LNC 2), core c meets core c of the other ranks and moves its own data. The
effect of both cores on one shared tensor is undocumented.
Source: nki/api/nki/collectives/__init__.py.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from nkisim.chip.context import current, hardware, issue
from nkisim.chip.dtypes import Array, is_integer, to_float32
from nkisim.chip.operators import AluOp
from nkisim.chip.registers import VirtualRegister
from nkisim.chip.replicas import world
from nkisim.chip.tensor import NkiTensor
from nkisim.isa import _checks as check
from nkisim.isa._cores import meet
from nkisim.isa._lanes import write_integers

__all__ = [
    "ReplicaGroup", "all_gather", "all_gather_v", "all_reduce", "all_to_all", "all_to_all_v", "collective_permute",
    "collective_permute_implicit", "collective_permute_implicit_current_processing_rank_id",
    "collective_permute_implicit_reduce", "rank_id", "reduce_scatter",
]  # fmt: skip

REDUCTIONS = ("add", "maximum", "minimum")
PRIORITIES = (0, 3)
MAX_CHANNELS = 4  # for a group of all devices of a node; 2 for any other group
CHIP_RANKS = 4  # ranks of all_gather_v: one chip under LNC 2
# Group sizes that no inf2 could build for all_to_all
# (aws-samples/sample-spectral-dns-on-aws-neuron: docs/neuron-rules.md, rule 4).
NEVER_BUILT = (12, 16)
Tensors = Sequence[NkiTensor]


@dataclass(frozen=True)
class ReplicaGroup:
    """Disjoint lists of ranks; a collective runs inside each list."""

    groups: Any

    def __post_init__(self) -> None:
        lists = self.groups if isinstance(self.groups, (list, tuple)) else None
        if lists is None or not lists or not all(isinstance(ranks, (list, tuple)) and ranks for ranks in lists):
            check.refuse("ReplicaGroup", f"{self.groups!r}; a list of lists of ranks is needed")
        flat = [check.whole_number("ReplicaGroup", "rank", rank, 0) for ranks in lists for rank in ranks]
        if len(set(flat)) != len(flat):
            check.refuse("ReplicaGroup", f"{self.groups!r} names a rank twice; sub-groups do not overlap")

    def members(self, this: str) -> tuple[int, ...]:
        """The list that contains this rank."""
        here = world()
        mine = next((tuple(ranks) for ranks in self.groups if here.rank in ranks), ())
        if not mine:
            check.refuse(this, f"rank {here.rank} is in no list of the replica group {self.groups!r}")
        if max(mine) >= here.size:
            check.refuse(this, f"replica group {mine} names a rank that is not launched; there are {here.size}")
        return mine


def rank_id(name: str | None = None) -> VirtualRegister:
    """The rank of this core, in a register: usable in addresses, but not as a Python number."""
    return VirtualRegister(world().rank)


# --- equal blocks -----------------------------------------------------------------------------------------


def all_reduce(
    srcs: Tensors,
    dsts: Tensors,
    replica_group: ReplicaGroup,
    op: Any,
    priority: int | None = None,
    name: str | None = None,
) -> Any:
    """Every dst = the sum, minimum or maximum of the src at its position over the group."""
    this = "all_reduce"
    members, _ = _check(this, srcs, dsts, replica_group, priority)
    reduction = check.one_of(this, "op", op, REDUCTIONS)
    for src, dst in zip(srcs, dsts, strict=True):
        _shape(this, dst, src.shape)

    def combine(parts: list[Array]) -> Array:
        return _reduce(reduction, parts)

    return _issue(this, srcs, dsts, members, combine, {"op": reduction.name}, name)


def all_gather(
    srcs: Tensors,
    dsts: Tensors,
    replica_group: ReplicaGroup,
    collective_dim: int,
    priority: int | None = None,
    name: str | None = None,
) -> Any:
    """Every dst = the srcs of the group concatenated along collective_dim (0; in SBUF also 1)."""
    this = "all_gather"
    members, buffer = _check(this, srcs, dsts, replica_group, priority)
    check.whole_number(this, "collective_dim", collective_dim, 0, 1 if buffer == "sbuf" else 0)
    for src, dst in zip(srcs, dsts, strict=True):
        if buffer == "sbuf" and src.ndim != 2:
            check.refuse(this, f"src {src.shape} in SBUF; collectives there take two dimensions")
        shape = list(src.shape)
        shape[collective_dim] *= len(members)
        _shape(this, dst, tuple(shape))

    def combine(parts: list[Array]) -> Array:
        return np.concatenate(parts, axis=collective_dim)

    return _issue(this, srcs, dsts, members, combine, {}, name)


def reduce_scatter(
    srcs: Tensors,
    dsts: Tensors,
    replica_group: ReplicaGroup,
    collective_dim: int,
    op: Any,
    priority: int | None = None,
    name: str | None = None,
) -> Any:
    """dst of rank i = the i-th block of src along dimension 0, reduced over the group."""
    this = "reduce_scatter"
    members, _ = _check(this, srcs, dsts, replica_group, priority)
    check.whole_number(this, "collective_dim", collective_dim, 0, 0)
    reduction = check.one_of(this, "op", op, REDUCTIONS)
    place = members.index(world().rank)
    for src, dst in zip(srcs, dsts, strict=True):
        _shape(this, dst, (_piece(this, src, len(members)), *src.shape[1:]))

    def combine(parts: list[Array]) -> Array:
        return _reduce(reduction, [np.split(part, len(members))[place] for part in parts])

    return _issue(this, srcs, dsts, members, combine, {"op": reduction.name}, name)


def all_to_all(
    srcs: Tensors,
    dsts: Tensors,
    replica_group: ReplicaGroup,
    collective_dim: int,
    priority: int | None = None,
    name: str | None = None,
) -> Any:
    """dst of rank i = block i along dimension 0 of every src of the group, concatenated; HBM only.

    On trn1 and inf2 the runtime refuses some groups when it loads the program. For trn2 and trn3 nothing is published.
    """
    this = "all_to_all"
    members, buffer = _check(this, srcs, dsts, replica_group, priority)
    if hardware().generation < 3 and (max(members) - min(members) >= len(members) or len(members) in NEVER_BUILT):
        check.refuse(this, f"group {members} on trn1: the runtime builds 2, 4, 8 or 32 ranks that follow each other")
    _hbm_only(this, buffer)
    check.whole_number(this, "collective_dim", collective_dim, 0, 0)
    place = members.index(world().rank)
    for src, dst in zip(srcs, dsts, strict=True):
        _piece(this, src, len(members))
        _shape(this, dst, src.shape)

    def combine(parts: list[Array]) -> Array:
        return np.concatenate([np.split(part, len(members))[place] for part in parts])

    return _issue(this, srcs, dsts, members, combine, {}, name)


def _reduce(reduction: AluOp, parts: list[Array]) -> Array:
    """The reduction of the parts in the order of the group: integers exactly, floats in float32."""
    wide = [part.astype(np.int64) if part.dtype.kind in "iu" else to_float32(part) for part in parts]
    result = wide[0]
    for part in wide[1:]:
        result = reduction.compute(result, part)
    return result


# --- permutations -----------------------------------------------------------------------------------------


def collective_permute(
    srcs: Tensors,
    dsts: Tensors,
    source_target_pairs: Sequence[tuple[int, int]],
    priority: int | None = None,
    name: str | None = None,
) -> Any:
    """dst of each target = src of its source; other ranks keep their dst. One HBM tensor."""
    this = "collective_permute"
    buffer = _check_tensors(this, srcs, dsts, priority)
    _hbm_only(this, buffer)
    _single(this, srcs, dsts)
    pairs = [
        tuple(check.whole_number(this, "rank", r, 0, world().size - 1) for r in pair) for pair in source_target_pairs
    ]
    if any(len(pair) != 2 for pair in pairs) or not pairs:
        check.refuse(this, f"source_target_pairs {source_target_pairs!r}; (source, target) pairs are needed")
    targets = [target for _, target in pairs]
    if len(set(targets)) != len(targets):
        check.refuse(this, f"source_target_pairs {source_target_pairs!r} name a target twice")
    members = tuple(sorted({rank for pair in pairs for rank in pair}))
    here = world().rank
    _shape(this, dsts[0], srcs[0].shape)
    if here not in members:  # this rank neither sends nor receives
        return issue(this, "dma", {}, {}, None, {"ranks": len(members)}, name)
    source = next((source for source, target in pairs if target == here), None)
    if source is None:
        return _issue(this, srcs, (), members, lambda parts: parts[0], {}, name)
    return _issue(this, srcs, dsts, members, lambda parts: parts[members.index(source)], {}, name)


def collective_permute_implicit(
    srcs_by_channel: Sequence[Tensors],
    dsts_by_channel: Sequence[Tensors],
    replica_group: ReplicaGroup,
    channel_ids: Sequence[int] = (0,),
    priority: int | None = None,
    name: str | None = None,
) -> Any:
    """Ring: dst of each channel = src of the predecessor in the group."""
    this = "collective_permute_implicit"
    srcs, dsts = _channels(this, channel_ids, srcs_by_channel, dsts_by_channel)
    members, _ = _check(this, srcs, dsts, replica_group, priority, coalesced=False)
    before = members.index(world().rank) - 1
    for src, dst in zip(srcs, dsts, strict=True):
        _shape(this, dst, src.shape)
    return _issue(this, srcs, dsts, members, lambda parts: parts[before], {"channels": len(srcs)}, name)


def collective_permute_implicit_reduce(
    srcs0_by_channel: Sequence[Tensors],
    srcs1_by_channel: Sequence[Tensors],
    dsts_by_channel: Sequence[Tensors],
    replica_group: ReplicaGroup,
    op: Any,
    channel_ids: Sequence[int] = (0,),
    priority: int | None = None,
    name: str | None = None,
) -> Any:
    """Ring: dst of each channel = ``op(src0, src1)`` of the predecessor in the group."""
    this = "collective_permute_implicit_reduce"
    srcs0, srcs1, dsts = _channels(this, channel_ids, srcs0_by_channel, srcs1_by_channel, dsts_by_channel)
    members, _ = _check(this, srcs0, dsts, replica_group, priority, coalesced=False)
    _check_tensors(this, srcs1, dsts, priority, coalesced=False)
    reduction = check.one_of(this, "op", op, REDUCTIONS)
    before = members.index(world().rank) - 1
    for src0, src1, dst in zip(srcs0, srcs1, dsts, strict=True):
        _shape(this, dst, src0.shape)
        _shape(this, dst, src1.shape)

    def bring(i: int) -> Array:
        return _reduce(reduction, [srcs0[i].read(), srcs1[i].read()])

    options = {"op": reduction.name, "channels": len(srcs0)}
    return _issue(this, srcs0, dsts, members, lambda parts: parts[before], options, name, srcs1, bring)


def collective_permute_implicit_current_processing_rank_id(
    iteration_id: int, replica_group: ReplicaGroup, channel_id: int = 0, name: str | None = None
) -> VirtualRegister:
    """The rank whose data a ring step processes: this rank in step 0, its predecessor in step 1, and so on."""
    this = "collective_permute_implicit_current_processing_rank_id"
    members = replica_group.members(this)
    check.whole_number(this, "channel_id", channel_id, 0, MAX_CHANNELS - 1)
    step = check.whole_number(this, "iteration_id", iteration_id, 0)
    return VirtualRegister(members[(members.index(world().rank) - step) % len(members)])


def _channels(this: str, channel_ids: Sequence[int], *by_channel: Sequence[Tensors]) -> list[list[NkiTensor]]:
    """One tensor per channel of each argument; channels are numbered 0, 1, ..."""
    n = len(channel_ids)
    if list(channel_ids) != list(range(n)) or not 1 <= n <= MAX_CHANNELS:
        check.refuse(
            this, f"channel_ids {list(channel_ids)!r}; 0 up to at most {MAX_CHANNELS - 1}, in order, are needed"
        )
    for tensors in by_channel:
        if len(tensors) != n or any(len(channel) != 1 for channel in tensors):
            check.refuse(this, f"{n} channels need {n} lists of one tensor each")
    return [[channel[0] for channel in tensors] for tensors in by_channel]


# --- blocks of run-time size --------------------------------------------------------------------------------


def all_gather_v(
    srcs: Tensors,
    dsts: Tensors,
    replica_group: ReplicaGroup,
    metadata_tensor: NkiTensor,
    recv_counts_known: bool = False,
    has_rdispls: bool = False,
    priority: int | None = None,
    name: str | None = None,
) -> Any:
    """Every rank sends one chunk ``src[displ : displ + count]`` to all; chunk s starts at element s * slot of dst.

    metadata_tensor is uint32 (3, ranks), in SBUF (1, 3, ranks). Its rows are the send count, the displacement (both in
    the first column), and the received counts, an output. slot = elements of dst / ranks.
    """
    this = "all_gather_v"
    if has_rdispls:
        check.refuse(this, "has_rdispls=True is documented as not supported")
    if current().launch.cores.size != 2:
        check.refuse(this, "only LNC 2 is supported; launch the kernel as kernel[2]", 37)
    members = replica_group.members(this)
    if len(members) != CHIP_RANKS:
        check.refuse(this, f"replica group of {len(members)} ranks; {CHIP_RANKS} are needed")
    return _variable(this, srcs, dsts, members, metadata_tensor, recv_counts_known, False, priority, name)


def all_to_all_v(
    srcs: Tensors,
    dsts: Tensors,
    replica_group: ReplicaGroup,
    metadata_tensor: NkiTensor,
    recv_counts_known: bool = False,
    has_rdispls: bool = False,
    priority: int | None = None,
    name: str | None = None,
) -> Any:
    """Rank s sends ``src[displ[r] : displ[r] + count[r]]`` to rank r; chunk s starts at element s * slot of dst.

    metadata_tensor is uint32 (3 or 4, ranks), in SBUF (1, 3 or 4, ranks). Its rows are the send counts, the send
    displacements, the received counts (an output) and, with has_rdispls (trn3), the starts of the chunks in dst.
    """
    this = "all_to_all_v"
    if has_rdispls:
        check.needs_generation(this, 4, "has_rdispls=True")
    if hardware().generation >= 4 and current().launch.cores.size != 2:
        check.refuse(this, "on trn3 only LNC 2 is supported; launch the kernel as kernel[2]", 37)
    members = replica_group.members(this)
    return _variable(this, srcs, dsts, members, metadata_tensor, recv_counts_known, has_rdispls, priority, name)


def _variable(
    this: str,
    srcs: Tensors,
    dsts: Tensors,
    members: tuple[int, ...],
    metadata: NkiTensor,
    counts_known: bool,
    has_starts: bool,
    priority: int | None,
    name: str | None,
) -> Any:
    """Issue an exchange of the sizes in the metadata tensor."""
    _hbm_only(this, _check_tensors(this, srcs, dsts, priority))
    _single(this, srcs, dsts)
    src, dst, n = srcs[0], dsts[0], len(members)
    table = _metadata(this, metadata, (4 if has_starts else 3, n))
    here, place, slot = world(), members.index(world().rank), dst.size // n
    gathers = this == "all_gather_v"

    def compute() -> None:
        sent, starts = table[0].read().reshape(-1).astype(np.int64), table[1].read().reshape(-1).astype(np.int64)
        flat, chunks = src.read().reshape(-1), []
        for r in range(n):
            column = 0 if gathers else r
            count, start = int(sent[column]), int(starts[column])
            if start + count > flat.size:
                check.refuse(
                    this, f"elements {start} to {start + count} for rank {members[r]} leave src of {flat.size}"
                )
            chunks.append(flat[start : start + count].copy())
        received = [parts[place] for parts in here.ranks.exchange(here.rank, members, this, chunks)]
        targets = table[3].read().reshape(-1).astype(np.int64) if has_starts else slot * np.arange(n)
        result, written = dst.read().reshape(-1).copy(), np.zeros(dst.size, np.bool_)
        for s, (chunk, start) in enumerate(zip(received, targets.tolist(), strict=True)):
            room = dst.size - start if has_starts else slot
            if chunk.size > room:
                check.refuse(this, f"rank {members[s]} sends {chunk.size} elements; dst has room for {room}")
            result[start : start + chunk.size] = chunk
            written[start : start + chunk.size] = True
        dst.write(result.reshape(dst.shape))
        dst.mark(written.reshape(dst.shape))
        if not counts_known:
            table[2].write(np.array([chunk.size for chunk in received], np.uint32))

    reads = {"src": src, "counts": table[0], "displacements": table[1], "starts": table.get(3)}
    writes = {"dst": dst} if counts_known else {"dst": dst, "received": table[2]}
    return meet(
        this, "dma", reads, writes, compute, {"ranks": n}, name, keeps=("dst",),
        protocol=lambda: here.ranks.exchange(here.rank, members, this, None),
    )  # fmt: skip


def _metadata(this: str, metadata: NkiTensor, shape: tuple[int, int]) -> dict[int, NkiTensor]:
    """The rows of the metadata tensor by number, as separate views because a row may be uninitialised."""
    if not isinstance(metadata, NkiTensor) or metadata.dtype != "uint32" or metadata.storage.buffer == "psum":
        check.refuse(this, f"metadata_tensor is {metadata!r}; a uint32 tensor in HBM or SBUF is needed")
    needed = (1, *shape) if metadata.on_chip else shape
    if metadata.shape != needed or not metadata.is_contiguous():
        check.refuse(this, f"metadata_tensor has shape {metadata.shape}; a contiguous {needed} is needed")
    if metadata.on_chip:
        return {row: metadata[:, row : row + 1, :] for row in range(shape[0])}
    return {row: metadata[row : row + 1, :] for row in range(shape[0])}


# --- shared checks and issue --------------------------------------------------------------------------------


def _check(
    this: str, srcs: Tensors, dsts: Tensors, replica_group: ReplicaGroup, priority: int | None, coalesced: bool = True
) -> tuple[tuple[int, ...], str]:
    """The members of this rank's group, and the buffer that holds all tensors."""
    buffer = _check_tensors(this, srcs, dsts, priority, coalesced)
    if not isinstance(replica_group, ReplicaGroup):
        check.refuse(this, f"replica_group={replica_group!r}; a ReplicaGroup is needed")
    return replica_group.members(this), buffer


def _check_tensors(this: str, srcs: Tensors, dsts: Tensors, priority: int | None, coalesced: bool = True) -> str:
    """Check that the lists have equal length and all tensors are in HBM, or all in SBUF; returns the buffer."""
    for role, tensors in (("srcs", srcs), ("dsts", dsts)):
        if not isinstance(tensors, (list, tuple)) or not tensors or not all(isinstance(t, NkiTensor) for t in tensors):
            check.refuse(this, f"{role} is {tensors!r}; a list of tensors is needed")
    if len(srcs) != len(dsts):
        check.refuse(this, f"{len(srcs)} srcs and {len(dsts)} dsts; as many of each are needed")
    buffers = {tensor.storage.buffer for tensor in (*srcs, *dsts)}
    if len(buffers) > 1 or "psum" in buffers:
        check.refuse(this, f"tensors are in {' and '.join(sorted(buffers))}; all in HBM or all in SBUF are needed")
    buffer = buffers.pop()
    if coalesced and len(srcs) > 1 and buffer != "hbm":
        check.refuse(this, f"{len(srcs)} tensors in SBUF; several at once are possible in HBM only")
    for src, dst in zip(srcs, dsts, strict=True):
        check.same_dtype(this, dst, None, src=src)
    if priority is not None:
        check.needs_generation(this, 4, "priority")
        check.whole_number(this, "priority", priority, *PRIORITIES)
    return buffer


def _single(this: str, srcs: Tensors, dsts: Tensors) -> None:
    if len(srcs) != 1 or len(dsts) != 1:
        check.refuse(this, f"{len(srcs)} srcs and {len(dsts)} dsts; exactly one of each is needed")


def _hbm_only(this: str, buffer: str) -> None:
    if buffer != "hbm":
        check.refuse(this, "tensors are in SBUF; only HBM is supported")


def _shape(this: str, dst: NkiTensor, needed: tuple[int, ...]) -> None:
    if dst.shape != needed:
        check.refuse(this, f"dst has shape {dst.shape}; {needed} is needed")


def _piece(this: str, src: NkiTensor, ranks: int) -> int:
    if src.shape[0] % ranks:
        check.refuse(this, f"dimension 0 of src {src.shape} does not divide into {ranks} pieces")
    return src.shape[0] // ranks


def _issue(
    this: str,
    srcs: Tensors,
    dsts: Tensors,
    members: tuple[int, ...],
    combine: Callable[[list[Array]], Array],
    options: dict[str, Any],
    name: str | None,
    others: Tensors = (),
    bring: Callable[[int], Array] | None = None,
) -> Any:
    """Issue a collective: dst i = combine(the i-th arrays of all members).

    ``bring(i)`` returns this rank's i-th array (default: src i); ``others`` are the other tensors that it reads.
    """
    here = world()
    signature = (this, options.get("op"), tuple(src.shape for src in srcs), tuple(src.dtype for src in srcs))

    def compute() -> None:
        brought = [srcs[i].read().copy() if bring is None else bring(i) for i in range(len(srcs))]
        parts = here.ranks.exchange(here.rank, members, signature, brought)
        for i, dst in enumerate(dsts):
            combined = combine([part[i] for part in parts])
            if is_integer(dst.dtype) and combined.dtype == np.int64:
                write_integers(this, dst, combined)
            else:
                dst.write(combined)

    reads = {f"srcs[{i}]": src for i, src in enumerate((*srcs, *others))}
    writes = {f"dsts[{i}]": dst for i, dst in enumerate(dsts)}
    return meet(
        this, "dma", reads, writes, compute, {"ranks": len(members), **options}, name,
        protocol=lambda: here.ranks.exchange(here.rank, members, signature, None),
    )  # fmt: skip
