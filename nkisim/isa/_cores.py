"""Instructions in which the two cores of a logical NeuronCore meet: sendrecv and core_barrier."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from nkisim.chip.context import current, issue
from nkisim.chip.record import Engine as EngineName
from nkisim.chip.tensor import NkiTensor
from nkisim.isa import _checks as check
from nkisim.isa._enums import dma_engine as DmaEngine
from nkisim.isa._enums import engine as Engine

__all__ = ["core_barrier", "sendrecv"]

PAIR = (0, 1)  # the cores of a logical NeuronCore
GPSIMD_DMA_ELEMENTS = 256  # per partition: 1024, 512 and 256 bytes of 32-, 16- and 8-bit types


def meet(
    opcode: str,
    engine: EngineName,
    reads: Mapping[str, Any],
    writes: Mapping[str, Any],
    compute: Callable[[], None],
    options: Mapping[str, Any],
    name: str | None,
    keeps: tuple[str, ...] = (),
    protocol: Callable[[], Any] | None = None,
) -> Any:
    """Issue an instruction that waits for other cores, after all earlier and before all later instructions.

    ``protocol`` only waits, without data; a trace runs it.
    """
    run = current()
    if run.scheduler is not None:
        run.scheduler.flush()
    if run.mode == "trace":
        if protocol is not None:
            protocol()
        keeps = ()
    handle = issue(opcode, engine, reads, writes, compute, options, name, keeps=keeps)
    if run.scheduler is not None:
        run.scheduler.flush()
    return handle


def sendrecv(
    src: NkiTensor,
    dst: NkiTensor,
    send_to_rank: int,
    recv_from_rank: int,
    pipe_id: int,
    dma_engine: DmaEngine = DmaEngine.dma,
    name: str | None = None,
) -> Any:
    """Send src to core send_to_rank while receiving dst from core recv_from_rank; both (P, F...) in SBUF.

    Calls with one pipe_id are matched in program order between the two cores.
    """
    this = "sendrecv"
    _check_pair(this)
    check.on_chip(this, src=src, dst=dst)
    check.sbuf_only(this, src=src, dst=dst)
    check.same_dtype(this, dst, None, src=src)
    if src.shape != dst.shape:
        check.refuse(this, f"src {src.shape} and dst {dst.shape}; the same shape is needed")
    to = check.whole_number(this, "send_to_rank", send_to_rank, *PAIR)
    source = check.whole_number(this, "recv_from_rank", recv_from_rank, *PAIR)
    pipe = check.whole_number(this, "pipe_id", pipe_id)
    if not isinstance(dma_engine, DmaEngine):
        check.refuse(this, f"dma_engine={dma_engine!r}; a member of nisa.dma_engine is needed", 10)
    if dma_engine is DmaEngine.gpsimd_dma and src.free_size > GPSIMD_DMA_ELEMENTS:
        check.refuse(this, f"src has {src.free_size} elements per partition; gpsimd_dma moves {GPSIMD_DMA_ELEMENTS}")
    run = current()
    signature = (this, src.shape, src.dtype)

    def exchange(payload: Any) -> Any:
        offers = run.launch.cores.exchange(run.core, PAIR, signature, (to, payload), ("pipe", pipe))
        if offers[source][0] != run.core:
            check.refuse(this, f"core {run.core} receives from core {source}, which sends to core {offers[source][0]}")
        return offers[source][1]

    def compute() -> None:
        dst.write(exchange(src.read().copy()))

    where: EngineName = "gpsimd" if dma_engine is DmaEngine.gpsimd_dma else "dma"
    options = {"pipe_id": pipe, "dma_engine": dma_engine.name}
    return meet(this, where, {"src": src}, {"dst": dst}, compute, options, name, protocol=lambda: exchange(None))


def core_barrier(data: NkiTensor, cores: Any, engine: Engine = Engine.gpsimd, name: str | None = None) -> Any:
    """Wait for both cores. Afterwards each may read the other's writes to data (shared HBM)."""
    this = "core_barrier"
    _check_pair(this)
    if not isinstance(data, NkiTensor) or data.on_chip or not data.storage.shared:
        check.refuse(this, f"data is {data!r}; a tensor in nl.shared_hbm is needed")
    if tuple(cores) != PAIR:
        check.refuse(this, f"cores={cores!r}; only (0, 1) is supported", 37)
    where = check.one_engine(this, engine, ("tensor", "vector", "scalar", "gpsimd", "sync"), "gpsimd")
    run = current()

    def wait() -> None:
        run.launch.cores.exchange(run.core, PAIR, this, None, this)

    # Recorded as a write to data, so that it comes after this core's writes to data and before its reads.
    return meet(this, where, {}, {"data": data}, wait, {}, name, keeps=("data",), protocol=wait)


def _check_pair(this: str) -> None:
    check.needs_generation(this, 3)
    if current().launch.cores.size != len(PAIR):
        check.refuse(this, "the kernel runs on one core; launch it as kernel[2]", 37)
