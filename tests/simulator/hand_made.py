"""Traces written by hand, for tests of what reads traces: tiles, transfers, products, vector instructions."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

from nkisim.chip.record import Allocation, Buffer, Engine, Instruction, Operand, Region, Trace

SIZES = {"float32": 4, "int32": 4, "uint32": 4, "bfloat16": 2, "float16": 2, "uint8": 1}


@dataclass(frozen=True)
class Tile:
    storage: int
    buffer: Buffer
    dtype: str
    shape: tuple[int, ...]

    def operand(self, role: str, rows: slice | None = None, columns: slice | None = None, first: int = 0) -> Operand:
        """The tile, or a box of its rows and of its (flattened) columns, as an operand."""
        size = SIZES[self.dtype]
        width = math.prod(self.shape[1:])
        r0, r1, _ = (rows or slice(None)).indices(self.shape[0])
        c0, c1, _ = (columns or slice(None)).indices(width)
        if self.buffer == "hbm":
            region = Region(self.storage, "hbm", (0, 1), (r0 * width + c0) * size, ((r1 - 1) * width + c1) * size)
        else:
            region = Region(self.storage, self.buffer, (first + r0, first + r1), c0 * size, c1 * size)
        return Operand(role, self.dtype, (r1 - r0, c1 - c0), (width, 1), region)


@dataclass
class Script:
    """Collects instructions; ``trace`` closes the live ranges."""

    target: str = "trn2"
    instructions: list[Instruction] = field(default_factory=list)
    tiles: list[Tile] = field(default_factory=list)

    def tile(self, shape: tuple[int, ...], dtype: str = "float32", buffer: Buffer = "sbuf") -> Tile:
        self.tiles.append(Tile(len(self.tiles), buffer, dtype, shape))
        return self.tiles[-1]

    def add(
        self, opcode: str, engine: Engine, reads: tuple[Operand, ...], writes: tuple[Operand, ...], **options: Any
    ) -> None:
        self.instructions.append(
            Instruction(opcode, engine, "kernel.py", len(self.instructions) + 1, reads, writes, options)
        )

    def copy(self, target: Operand, source: Operand, **options: Any) -> None:
        self.add("dma_copy", "dma", (source,), (target,), **options)

    def product(self, target: Operand, stationary: Operand, moving: Operand, **options: Any) -> None:
        self.add("nc_matmul", "tensor", (stationary, moving), (target,), **options)

    def trace(self, kernel: str = "by_hand") -> Trace:
        uses: dict[int, list[int]] = {}
        for index, instruction in enumerate(self.instructions):
            for operand in (*instruction.reads, *instruction.writes):
                uses.setdefault(operand.region.storage, []).append(index)
        allocations = tuple(
            Allocation(
                t.storage,
                f"tile{t.storage}",
                t.buffer,
                t.dtype,
                t.shape,
                math.prod(t.shape if t.buffer == "hbm" else t.shape[1:]) * SIZES[t.dtype],
                "kernel.py",
                t.storage + 1,
                min(uses[t.storage]),
                max(uses[t.storage]),
            )
            for t in self.tiles
            if t.storage in uses
        )
        return Trace(kernel, self.target, tuple(self.instructions), allocations)


def matmul(m: int, n: int, k: int, dtype: str = "bfloat16", target: str = "trn2") -> Trace:
    """One product per (m, n, k) tile of 128 x 512 x 128, both operands loaded in the inner loop."""
    script = Script(target)
    a, b = script.tile((k, m), dtype, "hbm"), script.tile((k, n), dtype, "hbm")
    c = script.tile((m, n), dtype, "hbm")
    for i in range(m // 128):
        for j in range(n // 512):
            rows, columns = slice(128 * i, 128 * i + 128), slice(512 * j, 512 * j + 512)
            bank = script.tile((128, 512), "float32", "psum")
            for p in range(k // 128):
                depth = slice(128 * p, 128 * p + 128)
                left, right = script.tile((128, 128), dtype), script.tile((128, 512), dtype)
                script.copy(left.operand("dst"), a.operand("src", depth, rows))
                script.copy(right.operand("dst"), b.operand("src", depth, columns))
                script.product(
                    bank.operand("dst"), left.operand("stationary"), right.operand("moving"), accumulate=p > 0
                )
            out = script.tile((128, 512), dtype)
            script.add("tensor_copy", "vector", (bank.operand("src"),), (out.operand("dst"),))
            script.copy(c.operand("dst", rows, columns), out.operand("src"))
    return script.trace("matmul")
