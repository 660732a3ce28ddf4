"""Products in formats that TensorE multiplies directly, of matrices, stacks and device handles."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Hashable
from dataclasses import replace
from typing import Any

import numpy as np

from trnpy._base.records import record
from trnpy._engine.handles import Numbers, Refused
from trnpy._engine.residency import Cache
from trnpy._engine.tuning import BLOCK, FINE, Buckets, Cut, block, of_numbers, pieces, rung
from trnpy._nki.kernels.shared.parameters import for_numbers, for_unturned
from trnpy._nki.runtime import Buffer, DeviceMemoryError, Runtime, bfloat16, dtype_of

CACHE_SHARE = 0.5  # share of trnpy's memory that caches operands between calls; the rest is for products
STACK_RESERVE = 1.25  # padding of a stack to a shape bucket
ONE = np.ones((1, 1), np.float32)

# Pairs of bfloat16 slices of float32 (left operand, right operand), smallest products first: 2^-16 and more.
SLICES = ((2, 0), (0, 2), (1, 1), (1, 0), (0, 1), (0, 0))


def sliced(x: np.ndarray, side: int) -> np.ndarray:
    """float32 x (..., rows, columns) as six bfloat16 slices along K: columns of the left operand (side 0), or rows.

    One product of both operands in slices is as accurate as a float32 product, for devices without an accurate one:
    docs/products.md#single-and-complex.
    """
    slices: list[np.ndarray] = []
    with np.errstate(over="ignore", invalid="ignore"):  # the check of the result detects infs and NaNs
        for _ in range(3):
            slices.append(x.astype(bfloat16()).astype(np.float32))
            x = x - slices[-1]
    return np.concatenate([slices[pair[side]] for pair in SLICES], axis=-2 if side else -1)


@record()
class Kernels:
    """A runtime, the shapes its kernels are compiled for, its cache of operands, and the memory that it may use."""

    runtime: Runtime
    buckets: Buckets
    cache: Cache
    memory: float

    # --- operands -----------------------------------------------------------------------------------------------------

    def put(self, a: np.ndarray, form: str) -> Numbers:
        """``a`` (rows, columns) on the device in format ``form``."""
        sizes = block((a.shape[0], a.shape[1], 1), itemsize(a.dtype, form), self.memory)
        if sizes is None or sizes[:2] != a.shape:
            raise Refused(f"{a.shape} exceeds the largest operand of one launch")
        m, k, _ = self.buckets.fit("put", (a.shape[0], a.shape[1], 1))
        return self.padded(a, form, (m, k))

    def padded(self, a: np.ndarray, form: str, shape: tuple[int, int]) -> Numbers:
        """``a`` (rows, columns) in ``form``, padded to ``shape``; from the cache if it is there unchanged."""
        turned = a.flags.f_contiguous and not a.flags.c_contiguous
        base, shape = (a.T, shape[::-1]) if turned else (a, shape)
        dtype = dtype_of(form)

        def make() -> tuple[Buffer, ...]:
            parts = (base.real, base.imag) if base.dtype.kind == "c" else (base,)
            return tuple(self.room_for(with_zeros(p, shape, dtype)) for p in parts)

        return Numbers((a.shape[0], a.shape[1]), a.dtype, self.keep(base, (form, shape), make), turned)

    def keep(self, operand: np.ndarray, form: Hashable, make: Callable[[], Any], again: bool = False) -> Any:
        """``make()``, or its earlier result for ``operand`` in ``form`` if the cache has it."""
        return self.cache.get(operand, form, make, device_bytes, CACHE_SHARE * self.memory, again)

    def room_for(self, array: np.ndarray) -> Buffer:
        """``array`` on the device; if the memory is full, the cache is emptied first."""
        try:
            return self.runtime.put(array)
        except DeviceMemoryError:
            self.cache.clear()
            return self.runtime.put(array)

    def get(self, h: Numbers) -> np.ndarray:
        """``h`` on the host, in its own dtype."""
        rows, columns = h.shape[::-1] if h.turned else h.shape
        if len(h.parts) == 1:
            result = _compact(self.runtime.get(h.parts[0]), (rows, columns), h.dtype)
        else:
            parts = [self.runtime.get(p)[:rows, :columns] for p in h.parts]
            result = np.empty_like(parts[0], h.dtype, order="C", shape=(rows, columns))
            result.real, result.imag = parts[0], -parts[1] if h.conjugate else parts[1]
        return result.T if h.turned else result

    def block(self, h: Numbers, rows: slice, columns: slice) -> Numbers:
        """Some rows and columns of a handle, as a handle; they are copied on the device without a transfer."""
        shape = rows.stop - rows.start, columns.stop - columns.start
        m, k, _ = self.buckets.fit("put", (*shape, 1))
        padded = (m, k)
        if h.turned:
            rows, columns, padded = columns, rows, (k, m)
        return replace(h, shape=shape, parts=tuple(self.runtime.part(p, rows, columns, padded) for p in h.parts))

    def repadded(self, h: Numbers, padded: tuple[int, int], unit: bool = False) -> Numbers:
        """``h`` with other padding, of zeros or with ones on the diagonal."""
        if h.padded == padded and not unit:
            return h
        rows, columns = (slice(0, e) for e in (h.shape[::-1] if h.turned else h.shape))
        shape = padded[::-1] if h.turned else padded
        return replace(h, parts=tuple(self.runtime.part(p, rows, columns, shape, unit) for p in h.parts))

    def cast(self, h: Numbers, form: str) -> Numbers:
        """``h`` in format ``form``: results of products are float32 until they are used as operands."""
        if h.parts[0].dtype.name == form:
            return h
        return replace(h, parts=tuple(self.runtime.run("axpby", p, form=form) for p in h.parts))

    # --- products of handles ------------------------------------------------------------------------------------------

    def matmul(self, a: Numbers, b: Numbers, form: str) -> Numbers:
        """(m, k) by (k, n), multiplied in format ``form``."""
        depth = max(a.padded[1], b.padded[0])
        a, b = self.repadded(a, (a.padded[0], depth)), self.repadded(b, (depth, b.padded[1]))
        return self._launch(self.cast(a, form), self.cast(b, form), None, a.dtype)

    def gram(self, h: Numbers, form: str) -> Numbers:
        """A A^H. For A = X + iY it is X X^T + Y Y^T, symmetric and thus half the work, and Y X^T - X Y^T."""
        h = self.cast(h, form)
        dtype, fit = h.parts[0].dtype, (h.padded[0], h.padded[1], h.padded[0])
        tiles = self.buckets.tiles("syrk", dtype.name, fit, for_numbers(dtype.itemsize)).of_squares()
        rows = {"a_rows": not h.turned}
        real: Buffer = self.runtime.run("syrk", h.parts[0], **rows, **tiles)
        if len(h.parts) == 1:
            return Numbers((h.shape[0], h.shape[0]), h.dtype, (real,))
        real = self.runtime.run("syrk", h.parts[1], ONE, real, ONE, **rows, **tiles)
        imaginary = self.matmul(h, h.H, form).parts[1]
        return Numbers((h.shape[0], h.shape[0]), h.dtype, (real, imaginary))

    def axpby(self, alpha: complex, x: Numbers, beta: complex, y: Numbers | None) -> Numbers:
        """alpha x + beta y in float32, or alpha x if y is None."""
        if y is not None:
            padded = max(x.padded[0], y.padded[0]), max(x.padded[1], y.padded[1])
            x, y = self.repadded(x, padded), self.repadded(y, padded)
            if y.turned != x.turned:
                parts = tuple(self.runtime.run("transpose", p) for p in y.parts)
                y = replace(y, parts=parts, turned=x.turned)
        terms = [(complex(alpha), x)] + ([] if y is None else [(complex(beta), y)])
        if x.dtype.kind != "c":
            if any(factor.imag for factor, _ in terms):
                raise ValueError(f"factors {alpha} and {beta} of {x.dtype}: expected real ones")
            parts = (self._sum([(factor.real, h.parts[0]) for factor, h in terms]),)
        else:
            real, imaginary = [], []
            for factor, h in terms:
                (re, im), sign = h.parts, -1.0 if h.conjugate else 1.0
                real += [(factor.real, re), (-factor.imag * sign, im)]
                imaginary += [(factor.real * sign, im), (factor.imag, re)]
            parts = self._sum(real), self._sum(imaginary)
        return Numbers(x.shape, x.dtype, parts, x.turned)

    def _sum(self, terms: list[tuple[float, Buffer]]) -> Buffer:
        """The sum of factor times buffer; terms with factor zero are omitted, unless all are zero."""
        (first, x), *rest = [t for t in terms if t[0]] or terms[:1]
        if not rest:
            scaled: Buffer = self.runtime.run("axpby", x, None, np.float32(first) * ONE)
            return scaled
        for i, (factor, y) in enumerate(rest):
            x = self.runtime.run("axpby", x, y, np.float32(1 if i else first) * ONE, np.float32(factor) * ONE)
        return x

    def trsm(self, a: Numbers, b: Numbers, right: bool, lower: bool, transposed: bool, unit: bool) -> Numbers:
        """Solve op(A) X = B, or X op(A) = B if ``right``, in float32."""
        a, b = self.cast(a, "float32"), self.cast(b, "float32")
        n = max(*a.padded, b.padded[int(right)])
        a = self.repadded(a, (n, n), unit=True)
        b = self.repadded(b, (b.padded[0], n) if right else (n, b.padded[1]))
        if a.turned:  # the buffer holds A^T
            lower, transposed = not lower, not transposed
        if b.turned:  # the buffer holds B^T: solve X^T op(A)^T = B^T
            right, transposed = not right, not transposed
        x = self.runtime.run("trsm", a.parts[0], b.parts[0], right=right, lower=lower, transposed=transposed, unit=unit)
        return replace(b, parts=(x,))

    def _launch(self, a: Numbers, b: Numbers, total: Numbers | None, dtype: np.dtype) -> Numbers:
        """total + A B on the device: one real product, or four for complex operands (4M)."""
        shape = a.shape[0], b.shape[1]
        dtype_in, fit = a.parts[0].dtype, (a.padded[0], a.padded[1], b.padded[1])
        rows = {"a_rows": not a.turned, "b_rows": not b.turned}
        turned = rows["a_rows"] or not rows["b_rows"]
        best = for_numbers(dtype_in.itemsize) if turned else for_unturned(dtype_in.itemsize, self.runtime.hardware)
        summed = {**rows, **best.of_numbers()}
        kernel = "matmul turned" if turned else "matmul"
        alone = {**rows, **self.buckets.tiles(kernel, dtype_in.name, fit, best).of_numbers()}

        def run(left: Buffer, right: Buffer, sign: int, c0: Buffer | None) -> Buffer:
            if c0 is not None:
                out = self.runtime.run("matmul", left, right, np.float32(sign) * ONE, c0, ONE, **summed)
            elif sign == 1:
                out = self.runtime.run("matmul", left, right, **alone)
            else:
                out = self.runtime.run("matmul", left, right, np.float32(sign) * ONE, **alone)
            assert isinstance(out, Buffer)
            return out

        so_far = (None, None) if total is None else total.parts
        if dtype.kind != "c":
            return Numbers(shape, dtype, (run(a.parts[0], b.parts[0], 1, so_far[0]),))
        (ar, ai), (br, bi) = a.parts, b.parts
        sa, sb = (-1 if h.conjugate else 1 for h in (a, b))
        re = run(ai, bi, -sa * sb, run(ar, br, 1, so_far[0]))
        im = run(ai, br, sa, run(ar, bi, sb, so_far[1]))
        return Numbers(shape, dtype, (re, im))

    # --- products of arrays -------------------------------------------------------------------------------------------

    def product(self, a: np.ndarray, b: np.ndarray, form: str) -> np.ndarray:
        """One product of matrices of one dtype, in blocks that fit the device's memory."""
        m, k, n = a.shape[0], a.shape[1], b.shape[1]
        sizes = block((m, k, n), itemsize(a.dtype, form), (1 - CACHE_SHARE) * self.memory)
        if sizes is None:
            raise Refused(f"no block of {a.shape} by {b.shape} fits device_memory of {self.memory:.3g} bytes")
        c: np.ndarray | None = None  # a single block is the result itself
        price = of_numbers(self.runtime.hardware, a.dtype, form)
        cuts = self.buckets.cut(f"matmul {form}", (m, k, n), sizes, price)
        left, right = self._sent(a, form), self._sent(b, form)
        if len(cuts.rows) == len(cuts.columns) == len(cuts.inner) == 1 and not cuts.fixed:
            (rows,), (inner,), (columns,) = cuts.rows, cuts.inner, cuts.columns
            return self.get(self._launch(left(rows, inner), right(inner, columns), None, a.dtype))
        c = np.empty_like(a, order="C", shape=(m, n))
        for rows in cuts.rows:
            for columns in cuts.columns:
                total = self._zeros((rows[1], columns[1]), a.dtype) if cuts.fixed else None
                for inner in cuts.inner:
                    total = self._launch(left(rows, inner), right(inner, columns), total, a.dtype)
                assert total is not None
                found = self.get(total)
                if len(cuts.rows) == len(cuts.columns) == 1:
                    return found
                c = np.empty_like(a, order="C", shape=(m, n)) if c is None else c
                c[rows[0], columns[0]] = found
        assert c is not None
        return c

    def _zeros(self, shape: tuple[int, int], dtype: np.dtype) -> Numbers:
        """The sum before the first slice of K, so that all slices use one kernel, which adds to an earlier sum."""
        (zeros,) = self.padded(_no_sum(shape), "float32", shape).parts
        return Numbers(shape, dtype, (zeros,) * (2 if dtype.kind == "c" else 1))

    def _sent(self, x: np.ndarray, form: str) -> Callable[[Cut, Cut], Numbers]:
        """Blocks of ``x`` on the device; each is sent once, unless there are too many to keep during the product."""
        kept: dict[tuple[int, int], Numbers] = {}

        def block_of(rows: Cut, columns: Cut) -> Numbers:
            at, shape = (rows[0].start, columns[0].start), (rows[1], columns[1])
            if at not in kept:
                if (len(kept) + 1) * math.prod(shape) * itemsize(x.dtype, form) > CACHE_SHARE * self.memory / 8:
                    kept.clear()
                kept[at] = self.padded(x[rows[0], columns[0]], form, shape)
            return kept[at]

        return block_of

    def stack(self, a: np.ndarray, b: np.ndarray, form: str) -> np.ndarray:
        """(B or 1, m, k) by (B, k, n), as many per launch as fit the memory; four launches if complex (4M)."""
        batch, k, n = b.shape
        if b.dtype.kind == "c":
            c = np.empty_like(b, order="C", shape=(batch, a.shape[1], n))
            c.real = self.stack(a.real, b.real, form) - self.stack(a.imag, b.imag, form)
            c.imag = self.stack(a.real, b.imag, form) + self.stack(a.imag, b.real, form)
            return c
        m, size, dtype = a.shape[1], itemsize(b.dtype, form), dtype_of(form)
        fit = self.buckets.fit(f"batched_matmul {form}", (m, k, n))
        each = size * (fit[0] * fit[1] + fit[1] * fit[2]) + 4 * fit[0] * fit[2]
        most = min(int((1 - CACHE_SHARE) * self.memory / STACK_RESERVE // each), BLOCK)
        if not most:
            raise Refused(f"no product of {a.shape} by {b.shape} fits device_memory of {self.memory:.3g} bytes")
        whole: np.ndarray | None = None  # the result of a single launch is the result itself
        most = max(r for r in (1, *FINE) if r <= most)
        for some in pieces(batch, most):
            count = some.stop - some.start
            stack = 1 if count == 1 else rung(count) if rung(count) <= most else most

            def put(x: np.ndarray, shape: tuple[int, ...]) -> Buffer:
                kept: Buffer = self.keep(x, (form, shape), lambda: self.room_for(with_zeros(x, shape, dtype)))
                return kept

            left = put(a if len(a) == 1 else a[some], (1 if len(a) == 1 else stack, fit[0], fit[1]))
            right = put(b[some], (stack, fit[1], fit[2]))
            found = self.runtime.launch("batched_matmul", left, right)
            one = _compact(found, (count, m, n), b.dtype)
            if count == batch:
                return one
            whole = np.empty_like(b, order="C", shape=(batch, m, n)) if whole is None else whole
            whole[some] = one
        assert whole is not None
        return whole


@functools.cache
def _no_sum(shape: tuple[int, int]) -> np.ndarray:
    """Zeros that stay on the device: they are read-only, and pages that are never written take no memory."""
    zeros = np.zeros(shape, np.float32)
    zeros.flags.writeable = False
    return zeros


def _compact(whole: np.ndarray, shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
    """An array that has just been fetched, in ``dtype`` and without its padding, which it does not keep in memory."""
    part = whole if whole.shape == shape else whole[tuple(slice(0, extent) for extent in shape)]
    with np.errstate(over="ignore"):  # float16 may overflow: the check of the result detects infs
        compact: np.ndarray = part.astype(dtype, order="C", copy=part is not whole)
    return compact


def device_bytes(form: Any) -> int:
    """Bytes on the device of a buffer, or of all buffers in nested tuples and lists."""
    if isinstance(form, (list, tuple)):
        return sum(device_bytes(item) for item in form)
    return form.nbytes if isinstance(form, Buffer) else 0


def contents(form: Any, get: Callable[[Buffer], np.ndarray]) -> bytes:
    """The bytes of a buffer, or of all buffers in nested tuples and lists, fetched by ``get``."""
    if isinstance(form, (list, tuple)):
        return b"".join(contents(item, get) for item in form)
    return get(form).tobytes() if isinstance(form, Buffer) else b""


def itemsize(dtype: np.dtype, form: str) -> int:
    """Bytes on the device of one element of an operand."""
    return (2 if form in ("bfloat16", "float16") else 4) * (2 if dtype.kind == "c" else 1)


def with_zeros(part: np.ndarray, shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
    """``part`` in ``dtype``, with zeros below and to the right up to ``shape``."""
    if part.shape == shape:
        with np.errstate(over="ignore"):  # the check of the result detects infs
            return part.astype(dtype, order="C", copy=False)
    padded = np.zeros_like(part, dtype, order="C", shape=shape)
    with np.errstate(over="ignore"):
        padded[tuple(slice(0, extent) for extent in part.shape)] = part
    return padded
