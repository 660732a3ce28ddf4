"""What a sparse product would take on a device: by tiles or by gathered rows, whichever the model says is less."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from trnpy._call.dispatch import Cost, predict
from trnpy._engine.engines import current_engine
from trnpy._engine.precision import NAMED, product_s
from trnpy._engine.residency import pinned, place
from trnpy._nki.hardware import MACHINES, Hardware
from trnpy._nki.kernels.sparse.bsr_spmm_reference import COLUMNS, DIGIT_COLUMNS, SLOTS
from trnpy._settings.host_rates import HostRates
from trnpy._settings.policy import HYSTERESIS, Policy
from trnpy.sparse._tiles import count_blocks

TILE = 128
# Modelled on trn2 (test_bsr_spmm, test_csr_spmm): the rows of X that a tile meets, and four tiles, are a transfer at a
# run-time address each; 128 gathered rows are written by GpSimd; carries of digits take as long as so many tiles.
TILE_S, GROUP_S = 0.75e-6, 2.28e-6
CARRY_TILES = 5
DIGIT_BYTES = 8  # of one element, up to seven digits
STORED_BYTES = 12  # of one element that is gathered: value, row and column


def offer(cost: Cost, a: Any, m: int, dtype: np.dtype, policy: Policy, rates: HostRates) -> tuple[Cost, str]:
    """``cost`` of A X with what the better form takes on a device, "tiles" or "gathered"; X has ``m`` columns.

    The blocks of A are counted only where a launch alone would not already be too much.
    """
    engine = current_engine(policy)
    hardware = (engine.hardware if engine is not None else None) or MACHINES[policy.machine]
    host_s = rates.seconds(cost.kind, cost.n, cost.flops, dtype, cost.bytes_in + cost.bytes_out)
    if not policy.force and host_s <= HYSTERESIS * hardware.launch_s:
        return replace(cost, products=cost.flops), "tiles"
    parts, columns = 1 + (a.dtype.kind == "c"), m * (1 + (dtype.kind == "c"))
    x_bytes = cost.bytes_out // max(a.shape[0], 1) * a.shape[1]
    found = [_by_tiles(cost, a, parts, columns, dtype, policy, hardware)]
    if policy.precision == "fp32" or (policy.precision == "matched" and dtype.char in "fF"):
        found.append(_by_groups(cost, a, parts, columns, dtype, policy, hardware))
    lasts = a.format in ("csr", "csc", "bsr", "coo")  # in a form of its own, found by where its elements lie
    named = lasts and pinned(place(a.data))

    def seconds(one: _Offer) -> float:
        # What will stay need not be paid for; what only happens to be there was chosen when it was not.
        moved = replace(one.cost, bytes_in=x_bytes + (0 if named else one.bytes_a))
        return predict(moved, dtype, hardware, policy, rates)[0]

    best = min(found, key=seconds)
    kept = lasts and engine is not None and engine.cache.resident_bytes((a.data,)) > 0
    # Where A is there already, its elements are what decisions count as such.
    return replace(best.cost, bytes_in=x_bytes + (a.data.nbytes if kept else best.bytes_a)), best.form


@dataclass(frozen=True, slots=True)
class _Offer:
    """What one form takes: its cost but for operands that cross the link, and the bytes of A that would."""

    form: str
    cost: Cost
    bytes_a: int


def flops_of(seconds: float, dtype: np.dtype, policy: Policy, hardware: Hardware) -> float:
    """The products that TensorE would compute meanwhile: costs are counted in these."""
    return seconds / product_s(1.0, dtype, policy.precision, hardware)


def _by_tiles(
    cost: Cost, a: Any, parts: int, columns: int, dtype: np.dtype, policy: Policy, hardware: Hardware
) -> _Offer:
    blocks = count_blocks(a)
    form = NAMED.get(policy.precision, "" if dtype.char in "dD" else "float32")
    itemsize = {"": DIGIT_BYTES, "float32": 4, "bfloat16": 2}[form]
    tiles = blocks.count + (0 if form else CARRY_TILES * int(np.count_nonzero(blocks.in_row)))
    least = flops_of(TILE_S, dtype, policy, hardware)
    launches = parts * -(-max(blocks.count, 1) // SLOTS) * -(-columns // (COLUMNS if form else DIGIT_COLUMNS))
    found = replace(
        cost,
        products=parts * tiles * max(2.0 * TILE**2 * columns, least),
        launches=launches if form else 2 * launches + 1,  # a certificate, and digits of X
    )
    return _Offer("tiles", found, parts * itemsize * blocks.count * TILE**2)


def _by_groups(
    cost: Cost, a: Any, parts: int, columns: int, dtype: np.dtype, policy: Policy, hardware: Hardware
) -> _Offer:
    # Each block row fills its last group up: half a group, on average.
    count = a.nnz / TILE + -(-a.shape[0] // TILE) / 2
    seconds = parts * count * GROUP_S * max(1.0, columns / (COLUMNS // 2))
    launches = parts * -(-int(count) // SLOTS) * -(-columns // COLUMNS)
    found = replace(cost, products=flops_of(seconds, dtype, policy, hardware), launches=launches)
    return _Offer("gathered", found, parts * STORED_BYTES * a.nnz)


def offer_sparse(cost: Cost, a: Any, b: Any, dtype: np.dtype, policy: Policy) -> Cost:
    """``cost`` of A B, both sparse: the host finds the pattern, which takes it as long as the product."""
    if not policy.force:
        return replace(cost, products=cost.flops, host_flops=cost.flops)
    left, right = count_blocks(a).count, count_blocks(b).count
    pairs = left * right / max(-(-a.shape[1] // TILE), 1)
    real = 4.0 if dtype.kind == "c" else 1.0
    return replace(
        cost,
        bytes_in=dtype.itemsize * (left + right) * TILE**2,
        products=2.0 * real * pairs * TILE**3,
        host_flops=cost.flops,
    )
