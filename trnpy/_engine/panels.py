"""Products of large float64 arrays in row panels: one panel is transferred while another is multiplied.

While a device multiplies one panel of A by B, the host sends the next panel, fetches the previous result and computes
its checksums (docs/launches.md#transfers-beside-launches). If transfers cannot overlap with launches, only products
larger than one block of ``float64_products.matmul`` use panels: B is sent once, and no sums of blocks are added.
"""

from __future__ import annotations

import contextlib
import functools
import math
from collections.abc import Callable, Sequence

import numpy as np

from trnpy._engine import float64_products
from trnpy._engine.at_once import Beside
from trnpy._engine.digits import DIGITS
from trnpy._engine.float64_products import Device
from trnpy._engine.handles import Source, stored
from trnpy._engine.tuning import BLOCK, Extents, rung
from trnpy._nki.kernels.shared.parameters import TILE

PANEL = 1024  # rows; at 4096^3 half of it saves 6 % of the call, and twice as many cost 15 % (modelled on trn2)
# Bytes per element of an operand: float64 words, at most 12 digits in bfloat16, magnitudes; and of a result: words
# of its integers and float64 numbers. Three panels are on the device: sent, multiplied, fetched.
OPERAND_BYTES, RESULT_BYTES, AT_ONCE = 8 + 2 * 12 + 2, 4 * 4 + 8, 3

Arrived = Callable[[slice, np.ndarray], object]  # called with rows of a product, in a separate thread


def unnoticed(rows: slice, c: np.ndarray) -> None:
    """Ignore rows of a product as they arrive."""


def panels(device: Device, a: np.ndarray, b: np.ndarray, room: float) -> list[slice]:
    """Rows of A (m, k) that are sent together, of equal length except the last; empty if panels are not used.

    Panels are not used for small products, for those that need more than ``room`` bytes or fit one block while
    transfers cannot overlap, or if too many other shapes have kernels of their own.
    """
    (m, k), n = a.shape, b.shape[1]
    if a.dtype != np.float64 or min(m, n) < 2 * PANEL or max(k, n) > BLOCK:
        return []
    if not (device.runtime.hardware.overlaps or max(m, k, n) > device.block):
        return []
    needed = OPERAND_BYTES * k * n + AT_ONCE * PANEL * (OPERAND_BYTES * k + RESULT_BYTES * n)
    if needed > room or not float64_products.split_there(device, a.shape, DIGITS, (PANEL, rung(k))):
        return []
    length = math.ceil(m / math.ceil(m / PANEL) / TILE) * TILE
    if not device.buckets.owns("float64_matmul", (length, k, n)):
        return []
    return [slice(start, min(start + length, m)) for start in range(0, m, length)]


def matmul(
    device: Device, a: np.ndarray, b: np.ndarray, cuts: Sequence[slice], keeps: bool, beside: Beside[None],
    arrived: Arrived,
) -> np.ndarray:  # fmt: skip
    """The product of float64 a (m, k) and b (k, n) in the rows ``cuts`` of a, with the error bound of ``matmul``.

    ``keeps``: the device may cache panels of a for later calls. ``beside`` starts another thread. ``arrived`` is
    called with each panel of the result.
    """
    c = np.empty_like(a, order="C", shape=(a.shape[0], b.shape[1]))
    fit = device.buckets.fit("float64_matmul", (cuts[0].stop, a.shape[1], b.shape[1]))
    operand = functools.partial(float64_products.source, device) if keeps else stored
    right, following = float64_products.source(device, b), operand(a[cuts[0]])
    sending = fetching = _nothing

    def fetch(rows: slice, product: Source) -> None:
        c[rows] = product.values
        arrived(rows, c[rows])

    try:
        for rows, after in zip(cuts, [*cuts[1:], None], strict=True):
            sending()
            left, found = following, float64_products.certificate(device, following, right, fit)
            if after is not None:
                following = operand(a[after])
                sending = beside(functools.partial(_send, device, following, fit))
            if found is None:
                product = float64_products.in_parts(device, left, right, fit)
            else:
                product = float64_products.launched(device, *found, fit)
            fetching()
            fetching = functools.partial(fetch, rows, product)
            if after is not None:
                fetching = beside(fetching)
        fetching()
    except BaseException:
        for end in (sending, fetching):  # threads that still use the device
            with contextlib.suppress(Exception):
                end()
        raise
    return c


def _send(device: Device, x: Source, fit: Extents) -> None:
    float64_products.put_words(device, x.store, fit[:2])


def _nothing() -> None:
    """The initial wait function: nothing has begun."""
