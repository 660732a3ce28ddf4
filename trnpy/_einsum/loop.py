"""The time of NumPy's einsum without a plan: one loop over all labels, in the order of its iterator.

The iterator (numpy/_core/src/multiarray/nditer_constr.c) sorts the axes by the strides of the operands and joins those
that all operands step through as one. The innermost axis goes to a kernel (einsum_sumprod.c.src), whose speed depends
on the number of operands, on which of them are contiguous or constant, and on whether the result is a sum.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping, Sequence

import numpy as np

from trnpy._einsum.grammar import Shapes
from trnpy._settings.tile import area

# Times in units of 0.22 ns, the time per element of the kernel for a scalar product of two contiguous float64 lines.
# All were fitted to 1,900 random contractions of one to four operands; 80 % of the predictions are 0.65 to 1.16 times
# the measured time (one thread of an AMD EPYC, family 26, NumPy 2.4.6, 2026-11-27). The ratios depend on NumPy's code,
# which is compiled for SSE on every x86 processor.
KERNELS: Mapping[str, tuple[float, ...]] = {  # per element of 8 bytes, of at most 4 bytes, complex, float16
    "line": (0.3, 0.15, 1.2, 5.0),  # the sum of one line
    "copy": (0.7, 0.4, 0.8, 6.0),  # one line to a line
    "sum": (0.3, 0.15, 3.2, 6.0),  # a line times a number to a number
    "axpy": (0.8, 0.4, 6.3, 18.0),  # a line times a number to a line
    "dot": (1.0, 0.45, 3.2, 10.0),  # two lines to a number
    "multiply": (1.3, 0.75, 6.0, 24.0),  # two lines to a line
    "two": (1.9, 2.0, 3.7, 15.0),  # two operands with other strides
    "lines": (1.8, 0.9, 8.0, 28.0),  # three lines to a line
    "three": (2.1, 2.1, 4.8, 16.0),  # three operands to a number
    "three apart": (2.7, 2.5, 9.0, 25.0),  # three operands to a line, with other strides
    "many": (13.0, 13.0, 17.5, 30.0),  # more than three operands
}
COLUMNS = {**dict.fromkeys("fiIhHbB", 1), "F": 2, "D": 2, "e": 3}  # column of KERNELS by dtype; 0 for all others
CALL = 7_500.0  # parsing the labels and making the iterator
INNER, OUTER = 13.0, 16.0  # each call of the kernel, and each step of the axes outside the second one
# The cost of such a step if only one of the two inner axes is summed, when the iterator sets up its buffers again.
RESET = 120.0
CAST = 2.0  # each element of an operand that the iterator converts in a buffer
LINE_BYTES, PAGE_BYTES = 64, 4096
# Units for each cache size in bytes (of one core, of all cores): for a missed cache line that follows the last one, for
# an isolated line, and for a jump to another page.
MISSED = {area(2**17) * 8: (0.6, 3.0, 1.3), area(3 * 2**20) * 8: (1.4, 7.1, 21.0)}
Axis = tuple[int, tuple[int, ...]]  # extent, and the stride of each operand and of the result


@functools.lru_cache(maxsize=4096)
def loop(
    inputs: tuple[str, ...], output: str, shapes: Shapes, strides: Shapes, chars: str, char: str, itemsize: int
) -> float:
    """Units of a loop over operands of the given ``strides`` in bytes and dtypes ``chars``, computed as ``char``."""
    axes = _axes(inputs, output, shapes, strides, itemsize)
    if not axes:
        return CALL
    inner, second = axes[0], axes[1] if len(axes) > 1 else (1, axes[0][1])
    elements = math.prod(n for n, _ in axes)
    each = KERNELS[_kernel(inner[1], itemsize)][COLUMNS.get(char, 0)] + CAST * sum(own != char for own in chars)
    outer = OUTER if (inner[1][-1] == 0) == (second[1][-1] == 0) else RESET
    steps = elements / inner[0] * INNER + (elements / (inner[0] * second[0]) * outer if len(axes) > 2 else 0.0)
    return CALL + elements * each + steps + _memory(axes, len(inputs) + 1)


def natural(a: str, b: str, kept: str, sizes: Mapping[str, int]) -> str:
    """The labels ``kept`` in the order that NumPy gives the result of a loop over C-contiguous operands."""
    shapes = tuple([tuple([sizes[c] for c in labels]) for labels in (a, b)])
    steps: dict[str, list[int]] = {}
    for i, (labels, shape) in enumerate(zip((a, b), shapes, strict=True)):
        for c, stride in zip(labels, contiguous(shape, 1), strict=True):
            steps.setdefault(c, [0, 0])[i] = stride
    order = _sorted([*kept, *sorted(set(steps) - set(kept))][::-1], steps)
    return "".join(c for c in reversed(order) if c in kept)


def contiguous(shape: Sequence[int], itemsize: int) -> tuple[int, ...]:
    """The strides of an array of ``shape`` in C order."""
    found, stride = [], itemsize
    for n in reversed(shape):
        found.append(stride)
        stride *= n
    return tuple(reversed(found))


def copied(labels: str, order: str, shape: tuple[int, ...], dtype: np.dtype) -> float:
    """Units of a copy of an operand in C order that has its ``labels`` in another ``order``."""
    sizes = dict(zip(labels, shape, strict=True))
    read = dict(zip(labels, contiguous(shape, dtype.itemsize), strict=True))
    written = dict(zip(order, contiguous([sizes[c] for c in order], dtype.itemsize), strict=True))
    axes = _joined([(sizes[c], (read[c], written[c])) for c in reversed(order) if sizes[c] > 1])
    if not axes:
        return 0.0
    elements = math.prod(n for n, _ in axes)
    each = KERNELS[_kernel(axes[0][1], dtype.itemsize)][COLUMNS.get(dtype.char, 0)]
    return elements * (each + INNER / axes[0][0]) + _memory(axes, 2)


def _axes(inputs: tuple[str, ...], output: str, shapes: Shapes, strides: Shapes, itemsize: int) -> list[Axis]:
    """The axes of the iterator, the innermost first."""
    extents: dict[str, int] = {}
    steps: dict[str, list[int]] = {}
    for i, (labels, shape, own) in enumerate(zip(inputs, shapes, strides, strict=True)):
        for c, n, stride in zip(labels, shape, own, strict=True):
            extents[c] = max(extents.get(c, 1), n)
            steps.setdefault(c, [0] * len(inputs))[i] += stride if n > 1 else 0  # a repeated label: the diagonal
    rest = sorted(c for c in extents if c not in output)
    order = _sorted([c for c in (*output, *rest) if extents[c] > 1][::-1], steps)
    found, stride = [], itemsize
    for c in order:  # the result is made in this order
        found.append((extents[c], (*steps[c], stride if c in output else 0)))
        stride *= extents[c] if c in output else 1
    return _joined(found)


def _sorted(order: list[str], steps: Mapping[str, Sequence[int]]) -> list[str]:
    """Labels, the innermost first, sorted by insertion as in the iterator: axes that share no operand stay in place."""
    for i in range(1, len(order)):
        at = i
        for j in range(i - 1, -1, -1):
            pairs = [(abs(x), abs(y)) for x, y in zip(steps[order[i]], steps[order[j]], strict=True) if x and y]
            if pairs and any(y <= x for x, y in pairs):
                break
            if pairs:
                at = j
        order.insert(at, order.pop(i))
    return order


def _joined(axes: list[Axis]) -> list[Axis]:
    joined: list[Axis] = []
    for n, strides in axes:
        if joined and all(joined[-1][0] * x == y for x, y in zip(joined[-1][1], strides, strict=True)):
            joined[-1] = joined[-1][0] * n, joined[-1][1]
        else:
            joined.append((n, strides))
    return joined


def _kernel(strides: tuple[int, ...], itemsize: int) -> str:
    *own, out = strides
    lines, numbers = own.count(itemsize), own.count(0)
    if len(own) == 1:
        return "two" if lines + numbers == 0 else "copy" if out else "line"
    if len(own) == 2:
        plain = lines and lines + numbers == 2 and out in (0, itemsize)
        return (("sum", "axpy"), ("dot", "multiply"))[lines - 1][out != 0] if plain else "two"
    if len(own) > 3:
        return "many"
    return "three" if not out else "lines" if lines == 3 and out == itemsize else "three apart"


def _memory(axes: list[Axis], operands: int) -> float:
    """Units for cache misses."""
    counted = ((_missed(axes, operands, cache), units) for cache, units in MISSED.items())
    return sum(n * each for lines, units in counted for n, each in zip(lines, units, strict=True))


def _missed(axes: list[Axis], operands: int, cache: int) -> tuple[float, float, float]:
    """Lines missed by a ``cache`` of this size in bytes: in runs, isolated, and starts of runs on other pages."""
    boxes = [[_lines(axes[:depth], i) for depth in range(len(axes) + 1)] for i in range(operands)]
    held = [sum(box[depth] for box in boxes) * LINE_BYTES <= cache for depth in range(len(axes) + 1)]
    if held[-1]:
        return 0.0, 0.0, 0.0
    depth = held.index(False) - 1  # the axes inside it find their lines in the cache
    streamed = alone = far = 0.0
    for i, box in enumerate(boxes):
        # The next axis may skip lines that are in the cache.
        lines = box[depth + 1] if axes[depth][1][i] else box[depth]
        lines *= math.prod(n for n, _ in axes[depth + 1 :])
        own = [(n, abs(strides[i])) for n, strides in axes if strides[i]]
        if not own:
            continue
        if own[0][1] >= LINE_BYTES:
            alone += lines
        else:
            streamed += lines
        run = max(own[0][0] * own[0][1] / LINE_BYTES, 1.0) if own[0][1] < LINE_BYTES else 1.0
        if own[0][1] >= PAGE_BYTES or (len(own) > 1 and own[1][1] >= PAGE_BYTES):
            far += lines / run
    return streamed, alone, far


def _lines(axes: list[Axis], i: int) -> float:
    """Lines of the cache that ``axes`` touch in operand ``i``."""
    own = [(n, abs(strides[i])) for n, strides in axes if strides[i]]
    shares = [max(stride / LINE_BYTES, 1 / n) for n, stride in own if stride < LINE_BYTES]
    return max(math.prod(n for n, _ in own) * min([*shares, 1.0]), 1.0)
