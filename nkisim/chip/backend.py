"""Checks for programs that every front end accepts but the compiler's backend refuses, or computes wrongly on trn1.

Users of NKI 0.6 (neuronx-cc 2.27) met each rule on real NeuronCores; rules.py names the source. The rules concern the
program, not its values: an instruction in a device loop is checked once, in the recorded iteration. A run may relax
them (strictness.py).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import zip_longest
from math import prod
from typing import TYPE_CHECKING, Any

from nkisim.chip.dialects import SEVEN
from nkisim.chip.errors import SimulatorError
from nkisim.chip.strictness import doubt, refuse
from nkisim.chip.tensor import NkiTensor

if TYPE_CHECKING:
    from nkisim.chip.interfaces import RunState
    from nkisim.chip.memory import Storage
    from nkisim.chip.record import Region, Trace

LOSING_COLUMNS = 16  # of neighbouring sums in PSUM: kiln's wrong sums had 1 to 16 columns, kda_decode's right ones 128
MOST_FUNCTIONS = 8  # ScalarEngine functions in one program
LARGEST_HBM_BYTES = 2**31  # per tensor: byte offsets are 32-bit integers (S10: 2^29 float32)
GEN3, GEN4 = 3, 4
Operands = list[tuple[str, NkiTensor]]


def check_instruction(
    run: RunState, opcode: str, engine: str, sources: Operands, targets: Operands, options: Mapping[str, Any]
) -> None:
    """Check the rules for one instruction while it is recorded."""
    if run.hardware.generation < GEN3:
        _check_encoding(run, opcode, sources, targets, options)
    if "ranks" in options:
        _check_collective(run, opcode, sources, targets)
    for role, tensor in (*sources, *targets):
        if tensor.dtype == "float8_e4m3fn" and run.hardware.generation < GEN4:
            refuse(run, 56, f"NCC_EVRF051: {opcode}: {role} is float8_e4m3fn, which needs trn3: use float8_e4m3")
        if tensor.storage.buffer == "psum":
            _check_loop(run, opcode, engine, role, tensor, written=(role, tensor) in targets)
        if tensor.on_chip and tensor.index is not None and engine != "dma":
            _check_register_offset(run, opcode, engine, role, tensor)
    if engine == "vector":
        in_psum = [role for role, t in sources if t.storage.buffer == "psum"]
        if len(in_psum) > 1:
            names = " and ".join(repr(role) for role in in_psum[:2])
            refuse(run, 27, f"{opcode}: {names} cannot both read from PSUM: copy one to SBUF")
    if engine != "tensor":
        for _, tensor in sources:
            if tensor.storage.buffer == "psum":
                _read(tensor)


def _check_encoding(
    run: RunState, opcode: str, sources: Operands, targets: Operands, options: Mapping[str, Any]
) -> None:
    """Refuse instructions that trn1's code generator cannot encode."""
    if opcode.startswith("activation") and options.get("op") == "square" and "reduce_cmd" in options:
        refuse(run, 50, f"NCC_IXCG863: {opcode}: no encoding squares and adds on trn1: square, then reduce")
    if opcode == "nc_match_replace8" and any(role == "dst_idx" for role, _ in targets):
        message = "unimplemented instruction MaxIndexAndMatchReplace on trn1: leave dst_idx out, use nc_find_index8"
        refuse(run, 50, f"NCC_INLA001: nc_match_replace8: {message}")
    if opcode == "tensor_copy":
        source, target = sources[0][1], targets[0][1]
        if source.partitions[0] != target.partitions[0]:
            refuse(
                run, 50,
                f"NCC_IXCG864: tensor_copy: src starts at partition {source.partitions[0]}, dst at "
                f"{target.partitions[0]}; on trn1 a DMA or TensorEngine moves data between partitions",
            )  # fmt: skip


def _check_collective(run: RunState, opcode: str, sources: Operands, targets: Operands) -> None:
    """Refuse a collective on an input of the launch; check_stored refuses one on an output of the kernel."""
    for role, tensor in (*sources, *targets):
        storage = tensor.storage
        if storage.argument:
            refuse(run, 51, _io_tensor(opcode, f"{role} is the input {storage.name}"))
        if storage.buffer == "sbuf" and run.hardware.generation < GEN3:
            refuse(run, 51, f"NCC_IBIR428: {opcode}: {role} is in SBUF, which collectives reach from trn2 on: use HBM")
        storage.collective = storage.collective or opcode
    _check_staging(run, opcode, sources, targets)


def _check_staging(run: RunState, opcode: str, sources: Operands, targets: Operands) -> None:
    """Refuse a destination that an earlier collective uses: data of a faster rank would arrive in it too early.

    A later collective may read a destination, as in a ring. Two collectives with one source were not measured.
    """
    written = [t.region for role, t in targets if role.startswith("dst")]
    read = [t.region for role, t in sources if role.startswith("src")]
    if run.loop_stack and written:
        refuse(run, 58, f"{opcode}: the iterations of a device loop use the same destination: unroll the loop")
    advice = "give each collective its own buffers"
    for earlier in (i for i in run.instructions if "ranks" in i.options):
        theirs = [o.region for o in earlier.writes if o.role.startswith("dst")]
        sent = [o.region for o in earlier.reads if o.role.startswith("src")]
        what = f"{{}} that {earlier.opcode} of line {earlier.line} also uses"
        if _meet(written, (*theirs, *sent)):
            what = what.format("a destination")
            refuse(run, 58, f"{opcode}: {what}: a faster rank's data lands in it while another reads it: {advice}")
        elif _meet(read, sent):
            doubt(run, 58, f"{opcode}: {what.format('a source')}: exact only with separate buffers (inf2): {advice}")


def _meet(ours: Sequence[Region], theirs: Sequence[Region]) -> bool:
    """Whether two lists of regions have memory in common."""
    return any(a.storage == b.storage and a.start < b.stop and b.start < a.stop for a in ours for b in theirs)


def _io_tensor(opcode: str, what: str) -> str:
    message = f"{opcode}: a collective instruction cannot read or write IO tensors, and {what}"
    return f"{message}: copy to and from another HBM tensor"


def check_stored(runs: Sequence[RunState], made: Iterable[Storage], returned: Iterable[Storage]) -> None:
    """Check the HBM tensors that the kernel of a finished launch allocated (``made``) or returned."""
    for storage in returned:
        if storage.collective:
            what = f"the one of line {storage.line} is an output"
            refuse(runs[0], 51, _io_tensor(storage.collective, what), storage.file, storage.line)
    if any(loop.stop == loop.first for run in runs for loop in run.loops):
        return  # the body of a loop without iterations was not recorded, nor were its stores
    stored = {o.region.storage for run in runs for x in run.instructions for o in x.writes}
    for storage in made:
        if storage.ident not in stored:
            message = f"NCC_IGCA090: no instruction stores to HBM tensor {storage.shape}: store to it, or drop it"
            refuse(runs[0], 52, message, storage.file, storage.line)


def check_cores(runs: Sequence[RunState]) -> None:
    """Check that all cores of a launch have the same device loops with the same iteration counts."""
    nested = [{id(child) for loop in run.loops for child in loop.children} for run in runs]
    outer = [[loop for loop in run.loops if id(loop) not in inner] for run, inner in zip(runs, nested, strict=True)]
    for other in outer[1:]:
        _check_same_loops(runs[0], outer[0], other)


def _check_same_loops(run: RunState, ours: Sequence[Any], theirs: Sequence[Any]) -> None:
    """Check two cores' loops pairwise. One core may run zero iterations; its loop body was then not recorded."""
    for one, two in zip_longest(ours, theirs):
        if one is None or two is None:
            only = one or two
            message = "one core has a device loop that the other lacks: give both the loop, one with zero iterations"
            refuse(run, 54, f"NCC_IXGM002: basic blocks differ: {message}", only.file, only.line)
        elif one.executions != 0 and two.executions != 0:
            if None not in (one.executions, two.executions) and one.executions != two.executions:
                turns = f"{one.executions} iterations on one core and {two.executions} on the other"
                message = f"a device loop of {turns} hangs: give both the same count, or one of them zero"
                refuse(run, 54, message, one.file, one.line)
            _check_same_loops(run, one.children, two.children)


def check_program(run: RunState, trace: Trace) -> None:
    """Check the rules that concern a core's whole program."""
    scalar = [i for i in trace.instructions if i.engine == "scalar" and "table" in i.options]
    functions = sorted({str(i.options["op"]) for i in scalar})
    if len(functions) > MOST_FUNCTIONS:
        refuse(
            run, 48,
            f"NCC_INLA001: {len(functions)} activation functions in one program; a core holds {MOST_FUNCTIONS}: "
            f"{', '.join(functions)}",
        )  # fmt: skip
    tiles = [a for a in trace.allocations if a.buffer == "sbuf"]
    placed, free = [a for a in tiles if a.address is not None], [a for a in tiles if a.address is None]
    if placed and free:
        message = f"NCC_EGCA111: SBUF of line {placed[0].line} has an address, SBUF of line {free[0].line} has none"
        refuse(run, 49, f"{message}: place all of it by hand, or none", placed[0].file, placed[0].line)


def _check_loop(run: RunState, opcode: str, engine: str, role: str, tensor: NkiTensor, written: bool) -> None:
    """Refuse PSUM that TensorEngine writes in a device loop unless only that loop uses it and its body allocates it."""
    if not run.loop_stack:
        return
    storage, loop = tensor.storage, run.loop_stack[-1]
    inside = storage.scope is run.scopes[-1]
    if written and engine == "tensor" and not inside:
        refuse(
            run, 40,
            f"NCC_IBIR092: {opcode}: {role} is PSUM made in line {storage.line}, outside the device loop in which "
            "TensorEngine writes it: allocate it in the loop's body",
        )  # fmt: skip
    if storage.loop is not None and storage.loop is not loop:
        refuse(
            run, 40,
            f"NCC_IBIR092: {opcode}: {role} is PSUM made in line {storage.line} that two device loops use: allocate it "
            "in the body of each",
        )  # fmt: skip
    storage.loop = loop


def _check_register_offset(run: RunState, opcode: str, engine: str, role: str, tensor: NkiTensor) -> None:
    """Refuse run-time offsets on chip: trn1 has none; trn2 and later accept a register or, in NKI 0.7, a tile."""
    assert tensor.index is not None
    by_tile = isinstance(tensor.index.source, NkiTensor)
    what = f"{opcode}: {role} is {tensor.storage.buffer.upper()} at"
    if run.hardware.generation < GEN3:
        code = "NCC_IBIR040" if engine == "tensor" else "NCC_IBIR829"
        advice = "copy through HBM: a DMA accepts run-time addresses there"
        refuse(run, 41, f"{code}: {what} a run-time offset, which trn1 does not support: {advice}")
    elif by_tile and run.nki != SEVEN and tensor.storage.buffer == "sbuf":
        message = f"NCC_INLA001: {what} an offset in a tile: refused before NKI 0.7"
        refuse(run, 41, f"{message}, load it into a register")
    else:
        doubt(run, 41, f"{what} a run-time offset: documented from trn2 on, unconfirmed")


def _read(tensor: NkiTensor) -> None:
    """Remove the sums that this instruction reads from the unread sums of their PSUM tensor."""
    storage, region = tensor.storage, tensor.region
    storage.reused = storage.reused or bool(storage.chains)
    storage.chains = {r: n for r, n in storage.chains.items() if r.stop <= region.start or region.stop <= r.start}


def check_product(run: RunState, dst: NkiTensor, accumulate: bool | None, added: bool) -> None:
    """Allow one unread chain of products per PSUM tensor; require ``accumulate`` after a chain of it was read.

    Two narrow chains were measured to be wrong on trn1 and are refused there; any other two are noted as a doubt.
    """
    storage = dst.storage
    if accumulate is None and storage.reused:
        refuse(
            run, 43,
            f"nc_matmul: accumulate=None on PSUM of line {storage.line} whose products were read: the hardware does "
            "not detect that a new sum begins; pass True or False",
        )  # fmt: skip
    region = dst.region
    others = {r: n for r, n in storage.chains.items() if r != region}
    if (added and others) or any(n > 1 for n in others.values()):
        columns = min((r.stop - r.start) // dst.itemsize for r in (region, *others))
        what = f"nc_matmul: a second sum of products in the PSUM tensor of line {storage.line} before the first is read"
        why = f"on trn1 every sum of up to {LOSING_COLUMNS} columns but the last loses its first product"
        if columns <= LOSING_COLUMNS and run.hardware.generation < GEN3:
            refuse(run, 42, f"{what}: {why}; use a tensor for each sum")
        else:  # AWS's library has such sums for trn2 and trn3; wide ones were right on trn1
            doubt(run, 42, f"{what}: {why}; {columns} columns on {run.hardware.name} are unconfirmed")
    length = storage.chains.get(region, 0) + 1 if added else 1
    storage.chains = {**others, region: length}


def check_dma(run: RunState, opcode: str, sources: Operands, targets: Operands, skip: bool) -> None:
    """Check the rules for gathers, for DMA on two cores, and for DMA inside a device loop."""
    for role, tensor in sources:
        _check_gather(run, opcode, role, tensor)
    if run.launch.cores.size > 1:
        _check_two_cores(run, opcode, sources, targets, skip)
    if not run.loop_stack:
        return
    if skip:
        refuse(run, 44, f"NCC_IGCA103: {opcode}: oob_mode.skip inside a device loop: clamp the indices")
    for role, tensor in (*sources, *targets):
        if tensor.storage.argument and tensor.index is None:
            refuse(
                run, 44,
                f"NCC_ISQI001: {opcode}: {role} is a kernel input at a compile-time address inside a device loop: give "
                "it a run-time address, or move it before the loop",
            )  # fmt: skip


def _check_gather(run: RunState, opcode: str, role: str, tensor: NkiTensor) -> None:
    """Refuse a gather beyond the row that an index names; measured on trn1, therefore a doubt on other targets."""
    if tensor.index is None or tensor.index.kind != "vector" or not tensor.index.stride:
        return
    row = tensor.index.stride
    stop = tensor.offset % row + sum((n - 1) * s for n, s in zip(tensor.shape[1:], tensor.strides[1:], strict=True)) + 1
    if stop > row:
        report = refuse if run.hardware.generation < GEN3 else doubt
        report(
            run, 55,
            f"{opcode}: {role} gathers up to element {stop} of rows of {row}: on trn1 elements beyond the row of the "
            "index are wrong; view the table as wider rows",
        )  # fmt: skip


def _check_two_cores(run: RunState, opcode: str, sources: Operands, targets: Operands, skip: bool) -> None:
    """Check for scatters that hang, race or write too much if two cores share a program (trn2)."""
    scattered = [t for _, t in targets if t.storage.buffer == "hbm" and t.index is not None]
    if opcode != "dma_compute":
        for _, target in targets:
            target.storage.copied = run.meetings
        for role, source in sources:
            if skip and scattered and source.on_chip and source.size != prod(source.storage.shape):
                doubt(run, 53, f"{opcode}: {role} is a part of its tile: rows to skip were nevertheless written (trn2)")
        return
    if skip and any(t.index is not None for _, t in (*sources, *targets)):
        refuse(run, 53, f"{opcode}: skipped indices hang if two cores run a kernel (trn2): clamp them")
    for target in scattered:
        if target.storage.copied == run.meetings:
            refuse(
                run, 53,
                f"{opcode}: dst was the target of a copy: on two cores it may be read before the copy lands (trn2); "
                "put a nisa.core_barrier between them",
            )  # fmt: skip


def check_size(run: RunState, shape: tuple[int, ...], nbytes: int, what: str, **place: Any) -> None:
    """Refuse an HBM tensor beyond 2^31 bytes: byte offsets into it are 32-bit integers."""
    if nbytes > LARGEST_HBM_BYTES:
        message = f"{what} {shape} has {nbytes} bytes of HBM; one tensor has at most 2^31: split it"
        refuse(run, 45, f"NRT_EXEC_HW_ERR_DMA_ABORT: {message}", **place)


def check_nesting(run: RunState) -> None:
    """Note a nested device loop: it compiled for some users and failed for others (NCC_ICFG018)."""
    if run.loop_stack:
        doubt(run, 46, "NCC_ICFG018: a nested device loop compiles for some users only: unroll one of the loops")


def check_bound(bound: Any, what: str) -> None:
    """Refuse a bound beyond the 32-bit iteration counter."""
    if isinstance(bound, int) and not -(2**31) <= bound < 2**31:
        raise SimulatorError(f"{what}: the bound {bound} does not fit the 32-bit iteration counter", rule=47)
