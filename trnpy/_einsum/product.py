"""One product of two labelled operands: its rows, columns and terms, the copies for BLAS, and the call on the host."""

from __future__ import annotations

import functools
import math
import os
from collections.abc import Callable, Mapping

import numpy as np

from trnpy._base.records import record
from trnpy._call.dispatch import Cost
from trnpy._call.guards import c_einsum
from trnpy._einsum.grammar import THIN
from trnpy._einsum.loop import contiguous, copied, loop, natural
from trnpy._settings.host_rates import HostRates
from trnpy._settings.tile import TILE, area, length, volume

__all__ = ["Sizes", "Step", "View", "c_einsum", "extent", "on_host", "product_of"]

# A transposing copy runs at 4 GB/s, a plain one at 30 GB/s (docs/baselines.md#machines). A copy in blocks that stay in
# the cache adds 0.6 to 1.3 times the time of a plain copy (EPYC, 10 MB, two contractions).
TRANSPOSES = 8
STEP_S = 2e-6  # overhead of the views of one product
VECTOR_GAIN = 2.0  # speed of BLAS over NumPy's loop for a vector, with operands in the cache
# Multiply-adds up to which OpenBLAS does not pack its operands (its small-matrix kernels for AVX-512). With few columns
# that is 1.5 to 1.9 times as fast. These kernels use one thread, whatever the number of threads.
UNPACKED = volume(1_000_000)
IN_CACHE = area(2**21)  # elements of two vectors, 32 MiB: beyond, one thread of BLAS is no faster than NumPy's loop
LINE = length(24)  # elements of a line above which one BLAS call per line is 1.3 to 2.5 times as fast as the loop
NARROW = length(64)  # columns up to which packing takes a third or more of the time of a product
CACHED = area(2**15)  # elements of an intermediate that a loop writes column by column: 256 KiB, a core's cache
COPIED = area(2**17)  # elements, 1 MiB: larger copies are made in blocks that stay in a core's cache
Sizes = Mapping[str, int]
Product = Callable[[np.ndarray, np.ndarray], np.ndarray]


@record()
class View:
    """An operand as a matrix or a stack of matrices: transposed, copied if BLAS cannot read it in place, reshaped."""

    axes: tuple[int, ...] | None
    copied: bool
    shape: tuple[int, ...]
    flipped: bool  # whether rows and columns are still exchanged: the copy keeps the unit stride

    def of(self, a: np.ndarray) -> np.ndarray:
        if self.axes is not None:
            a = a.transpose(self.axes)
        a = (a.astype(a.dtype, order="C", copy=False) if self.copied else a).reshape(self.shape)
        return a.swapaxes(-1, -2) if self.flipped else a


@record(eq=False)  # compared by identity, because their products are cached
class Step:
    """One product of two operands, summed over ``inner``, with the labels ``batch``, ``left`` and ``right`` kept."""

    operands: tuple[int, int]  # positions in the list of operands that remain to be contracted
    labels: tuple[str, str]  # labels of the two operands
    result: str  # labels of the result, in the order in which the product gives them
    wanted: str  # the same labels, in the order of the output if this is the last step
    batch: str
    left: str
    inner: str
    right: str
    shape: tuple[int, ...]  # shape of the result
    flops: float  # two for each multiply-add
    views: tuple[View, View]
    turned: bool  # whether the second operand is the left factor
    loops: bool  # whether NumPy's loop is as fast: not a product of matrices, or a thin one
    block: int  # both operands are copied in blocks of this length along the first label of ``inner``; 0: not in blocks
    extents: tuple[int, int, int]  # extents of left, inner and right
    vector: bool  # whether a factor is a vector, so that memory bounds the speed
    on_the_way: bool  # whether the result is intermediate: this is not the last step
    copied: float  # elements of C-contiguous operands that BLAS cannot read in place
    lines: str  # all labels in vecdot's order, if two operands with the same labels differ in layout
    blas_size: float  # the order n of a cubic product that BLAS computes as efficiently
    sizes: Sizes  # of the labels

    @property
    def subscripts(self) -> str:
        return f"{self.labels[0]},{self.labels[1]}->{self.result}"

    @property
    def dots(self) -> bool:
        """Whether it sums products of rows and columns that are longer than a tile."""
        m, k, n = self.extents
        return max(m, n) == 1 and k >= TILE

    def factors(self, a: np.ndarray, b: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The two operands as the left and the right factor of one product of matrices or stacks of matrices."""
        x, y = self.views[0].of(a), self.views[1].of(b)
        return (y, x) if self.turned else (x, y)

    @property
    def looped(self) -> bool:
        """Whether memory bounds the speed on the host, like that of NumPy's loop."""
        return self.loops or self.vector

    def host_s(self, rates: HostRates, dtype: np.dtype) -> float:
        """Predicted seconds on the host for operands in C order."""
        flops = self.flops * (4.0 if dtype.kind == "c" else 1.0)
        if self.looped:
            return rates.loop_s(self.units(dtype)) + STEP_S
        copies = rates.loop_s(self.copies(dtype))
        return rates.seconds("matmul", self.blas_size, flops, dtype) + copies + STEP_S

    def units(self, dtype: np.dtype) -> float:
        """The time of NumPy's loop, or of BLAS's product with a vector, in units of ``loop``."""
        if self.loops:
            return self._loop(self.labels, self.wanted, dtype)
        if self.lines:  # each operand in the order of its lines
            return self._loop(self.labels, "", dtype) / VECTOR_GAIN + self.copies(dtype)
        largest = max(self.labels, key=functools.partial(extent, self.sizes))
        vector = "".join(c for c in largest if c in self.inner)
        read = self._loop((largest, vector), "".join(c for c in largest if c not in vector), dtype)
        return read / VECTOR_GAIN + self.copies(dtype)

    def copies(self, dtype: np.dtype) -> float:
        """The time of copying the operands for BLAS, in units of ``loop``; copies in blocks count as plain copies."""
        total = 0.0
        for labels, view in zip(self.labels, self.views, strict=True):
            if view.copied:
                order = labels if self.block or view.axes is None else "".join(labels[i] for i in view.axes)
                total += copied(labels, order, tuple([self.sizes[c] for c in labels]), dtype)
        return total

    def _loop(self, labels: tuple[str, str], output: str, dtype: np.dtype) -> float:
        shapes = tuple([tuple([self.sizes[c] for c in own]) for own in labels])
        strides = tuple([contiguous(shape, dtype.itemsize) for shape in shapes])
        return loop(labels, output, shapes, strides, dtype.char * 2, dtype.char, dtype.itemsize)

    def cost(self, sizes: Sizes, dtype: np.dtype) -> Cost:
        """The cost of the step alone on the host."""
        flops = self.flops * (4.0 if dtype.kind == "c" else 1.0)
        moved = sum(extent(sizes, labels) for labels in self.labels) * dtype.itemsize
        kind, n = ("einsum", (flops / 2) ** (1 / 3)) if self.looped else ("matmul", self.blas_size)
        units = self.units(dtype) if self.looped else 0.0
        return Cost(kind, n, flops, moved, extent(sizes, self.result) * dtype.itemsize, units=units)


@functools.lru_cache(maxsize=4096)
def on_host(step: Step) -> Product:
    """The function that multiplies the operands of ``step``, with as little overhead as possible.

    Products of a few hundred microseconds empty the caches, after which Python code takes twice its usual time.
    """
    if step.loops:
        return _loop(step)
    if step.block:
        return functools.partial(_in_blocks, step)
    if step.vector and not step.result:
        return _sum_of_all(step)
    product, x_of, y_of = _product(step), _viewed(step, 0), _viewed(step, 1)
    shape, turned = step.shape, step.turned
    if x_of is y_of is None and not turned and len(step.left) == len(step.right) == 1 >= len(step.batch):
        return product

    def multiply(a: np.ndarray, b: np.ndarray) -> np.ndarray:
        x, y = a if x_of is None else x_of(a), b if y_of is None else y_of(b)
        c = np.asarray(product(y, x) if turned else product(x, y))
        return c if c.shape == shape else c.reshape(shape)

    return multiply


def _loop(step: Step) -> Product:
    """NumPy's loop over all labels, in the wanted order of labels, which determines the layout of the result."""
    subscripts = f"{step.labels[0]},{step.labels[1]}->{step.wanted}"
    axes = None if step.wanted == step.result else [step.wanted.index(c) for c in step.result]

    def loop(a: np.ndarray, b: np.ndarray) -> np.ndarray:
        c = np.asarray(c_einsum(subscripts, a, b))
        return c if axes is None else c.transpose(axes)

    return loop


def _sum_of_all(step: Step) -> Product:
    """The product of two operands with the same labels, all of them summed; in NumPy's loop if BLAS would copy."""
    loop, (a_labels, b_labels) = _loop(step), step.labels
    if a_labels == b_labels:

        def dot(a: np.ndarray, b: np.ndarray) -> np.ndarray:
            if a.flags.c_contiguous and b.flags.c_contiguous:
                a, b = a.reshape(-1), b.reshape(-1)
            elif a.flags.f_contiguous and b.flags.f_contiguous:
                a, b = a.T.reshape(-1), b.T.reshape(-1)
            return loop(a, b) if a.ndim > 1 else np.asarray(np.dot(a, b))

        return dot
    x_axes, y_axes = ([labels.index(c) for c in step.lines] for labels in step.labels)

    def lines(a: np.ndarray, b: np.ndarray) -> np.ndarray:
        if a.dtype.kind != "f" or not (a.flags.c_contiguous and b.flags.c_contiguous):  # vecdot conjugates one
            return loop(a, b)
        return np.asarray(np.vecdot(a.transpose(x_axes), b.transpose(y_axes)).sum())

    return lines


def _in_lines(a: str, b: str, sizes: Sizes) -> str:
    """The order of labels in which vecdot sums two operands, the line last; "" if NumPy's loop is as fast.

    The loop follows the memory order of one operand. If neighbours in the other operand lie along another label, each
    of its cache lines is read once for each of its elements, unless that label comes next.
    """
    for x, y in sorted(((a, b), (b, a)), key=lambda pair: -sizes[pair[0][-1]]):
        line, beside = x[-1], y[-1]
        if sizes[line] >= LINE and beside != x[-2:-1]:
            last = line if beside == line else beside + line
            return "".join(c for c in x if c not in last) + last
    return ""


def _viewed(step: Step, which: int) -> Callable[[np.ndarray], np.ndarray] | None:
    """The function that makes the view of one of the two operands; None if the operand needs no view."""
    view, own = step.views[which], (step.left, step.right)[which]
    if step.vector and 1 in view.shape and math.prod(view.shape) == step.extents[1]:
        return lambda a: view.of(a).ravel()  # one axis: BLAS then reads the other operand in place
    if not view.copied and len(own) == len(step.inner) == 1 >= len(step.batch):
        if view.axes is None and not view.flipped:
            return None
        if not step.batch:
            return None if view.axes and view.flipped else lambda a: a.T
    if view.axes is None and not view.copied and not view.flipped:
        return lambda a: a.reshape(view.shape)
    return view.of


def _product(step: Step) -> Product:
    """The function that multiplies the views of the operands, in their order of rows and columns."""
    if all(len(view.shape) == 2 for view in step.views):
        m, k, n = step.extents
        if step.vector or max(m, n) * k <= CACHED:
            return np.dot  # less overhead than matmul
        if (m if step.turned else n) <= NARROW and m * k * n > UNPACKED and blas_threads() == 1:
            return _narrow
    return np.matmul  # unlike dot, it does not copy operands whose rows are not contiguous


def _narrow(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """(m, k) (k, n) -> (m, n) for few columns n, with so few rows at a time that OpenBLAS does not pack them."""
    (m, k), n = x.shape, y.shape[1]
    if not x.flags.c_contiguous or x.dtype.kind != "f":  # OpenBLAS has no such kernels for these
        return np.asarray(np.matmul(x, y))
    parts = math.ceil(m * k * n / UNPACKED)
    rows = m // parts
    most = parts * rows
    c = np.empty((m, n), x.dtype)
    np.matmul(x[:most].reshape(parts, rows, k), y, out=c[:most].reshape(parts, rows, n))
    np.matmul(x[most:], y, out=c[most:])
    return c


def _in_blocks(step: Step, a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """A product summed over blocks of its first summed label, so that the copied blocks stay in the cache."""
    first, x_labels, y_labels = step.inner[0], step.left + step.inner, step.inner + step.right
    of_a, of_b = step.labels
    x, y = a.transpose([of_a.index(c) for c in x_labels]), b.transpose([of_b.index(c) for c in y_labels])
    at, total = len(step.left), a.shape[of_a.index(first)]
    m, n = math.prod(x.shape[:at]), math.prod(y.shape[len(step.inner) :])
    c, term = np.zeros((m, n), a.dtype), np.empty((m, n), a.dtype)
    before = (slice(None),) * at
    for start in range(0, total, step.block):
        block = slice(start, start + step.block)
        rows = np.ascontiguousarray(x[(*before, block)]).reshape(m, -1)
        c += np.dot(rows, np.ascontiguousarray(y[block]).reshape(-1, n), out=term)
    return c.reshape(step.shape)


@functools.cache
def blas_threads() -> int:
    """The number of threads of OpenBLAS, from the environment variables that it reads when it loads."""
    given = os.environ.get("OPENBLAS_NUM_THREADS") or os.environ.get("OMP_NUM_THREADS") or ""
    return int(given) if given.isdigit() else os.cpu_count() or 1


def extent(sizes: Sizes, labels: str) -> int:
    return math.prod([sizes[label] for label in labels])


def copied_by_numpy(step: Step, sizes: Sizes) -> int:
    """Elements of C-contiguous operands that NumPy copies for BLAS; it always copies stacks of matrices."""
    operands = zip(step.labels, (step.left, step.right), strict=True)
    return sum(extent(sizes, x) for x, own in operands if _view(x, step.batch, own, step.inner, sizes).copied)


def product_of(
    at: tuple[int, int], a: str, b: str, kept: set[str], output: str, sizes: Sizes, host: bool = False
) -> Step:
    """The product of operands ``a`` and ``b``. ``output`` is the wanted order of labels, "" for any order.

    ``host``: only the host computes it, so that NumPy's loop may choose the order of an intermediate result.
    """
    shared = [c for c in a if c in b]
    batch = "".join(c for c in shared if c in kept)
    left = "".join(c for c in a if c not in b)
    right = "".join(c for c in b if c not in a)
    # Sum in the label order of the larger operand, because the other one is cheaper to copy.
    larger = a if extent(sizes, a) >= extent(sizes, b) else b
    inner = "".join(c for c in larger if c in shared and c not in kept)
    m, k, n = (extent(sizes, group) for group in (left, inner, right))
    vector = not batch and min(m, n) == 1
    cubes = _cubes(a, b, left, inner, right, batch, sizes)
    views, turned, result = cubes or _oriented(a, b, (batch, left, inner, right), output, sizes)
    copied = sum(extent(sizes, x) for x, view in zip((a, b), views, strict=True) if view.copied)
    if inner and not (batch or left or right):
        lines = _in_lines(a, b, sizes) if a != b else ""
        thin = not lines if a != b else k > IN_CACHE and blas_threads() == 1
    else:  # a copy does not pay if one side is thin
        lines, thin = "", not inner or (min(m, k, n) < THIN if batch else bool(copied and min(m, n) < THIN))
    if thin and not output and host:
        result = natural(a, b, result, sizes)
    block = 0
    if not (thin or batch or m * n > CACHED) and all(view.copied for view in views) and copied > COPIED:
        each = sizes[inner[0]] * max(math.ceil(m * k * n / UNPACKED), 1)
        block, turned, result = max(sizes[inner[0]] ** 2 // each, 1), False, left + right
    return Step(
        at,
        (a, b),
        result,
        output or result,
        batch,
        left,
        inner,
        right,
        tuple(sizes[c] for c in result),
        2.0 * extent(sizes, batch) * m * k * n,
        views,
        turned,
        thin,
        block,
        (m, k, n),
        vector,
        not output,
        copied,
        lines,
        # The geometric mean of the order of a cubic product with as much arithmetic per element, and of one with as
        # much arithmetic. The time of thin products is 0.3 to 1.2 times the prediction from it (Haswell and SkylakeX
        # kernels, one thread of an EPYC, 2026-11-27).
        math.sqrt(3.0 / (1 / m + 1 / k + 1 / n) * (m * k * n) ** (1 / 3)),
        sizes,
    )


def _oriented(
    a: str, b: str, groups: tuple[str, str, str, str], output: str, sizes: Sizes
) -> tuple[tuple[View, View], bool, str]:
    """Views of both operands, whether the second is the left factor, and the labels of the result."""
    batch, left, inner, right = groups
    straight = _view(a, batch, left, inner, sizes), _view(b, batch, inner, right, sizes)
    if batch + right + left == output:
        turned = True
    elif batch + left + right == output:
        turned = False
    elif all(view.flipped or view.axes for view in straight):
        turned = True  # both factors are transposed in memory, so the transposed product reads them in place
    else:
        # Few rows times many columns, which OpenBLAS multiplies 1.2 to 1.4 times faster than many rows times few.
        turned = extent(sizes, right) < extent(sizes, left)
    if not turned:
        return straight, False, batch + left + right
    return (_view(a, batch, inner, left, sizes), _view(b, batch, right, inner, sizes)), True, batch + right + left


def _view(labels: str, batch: str, rows: str, columns: str, sizes: Sizes) -> View:
    # BLAS reads a matrix in place if its row labels and its column labels are neighbours and one has the unit stride.
    together = all(group in labels for group in (batch, rows, columns))
    readable = together and (not labels or labels[-1] not in batch)
    flipped = not readable and labels[-1] in rows
    first, second = (columns, rows) if flipped else (rows, columns)
    order = batch + first + second
    stack = (extent(sizes, batch),) if batch else ()
    shape = (*stack, extent(sizes, first), extent(sizes, second))
    return View(None if order == labels else tuple(map(labels.index, order)), not readable, shape, flipped)


def _cubes(
    a: str, b: str, left: str, inner: str, right: str, batch: str, sizes: Sizes
) -> tuple[tuple[View, View], bool, str] | None:
    """(views, turned, result) if the summed labels lie inside an operand, which is then read as a stack of matrices."""
    if batch or not inner:
        return None
    for whole, other, own, turned in ((a, b, right, True), (b, a, left, False)):
        order = "".join(c for c in whole if c in inner)
        before, found, after = whole.partition(order)
        if not (found and before and after and min(extent(sizes, inner), extent(sizes, after)) >= THIN):
            continue
        matrix = _view(other, "", own, order, sizes)
        stack = View(None, False, tuple(extent(sizes, group) for group in (before, order, after)), False)
        return ((stack, matrix) if turned else (matrix, stack)), turned, before + own + after
    return None
