"""Products by the kernels of a runtime: which kernel for which dtype, in which blocks, on operands kept where."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

import numpy as np

from trnpy import _matched
from trnpy._nki.hardware import Hardware
from trnpy._nki.kernels.batched_matmul_reference import SMALL
from trnpy._nki.kernels.parameters import for_numbers
from trnpy._nki.runtime import Buffer, Counters, DeviceMemoryError, Runtime
from trnpy._policy import current_policy
from trnpy._precision import NAMED, probed
from trnpy._residency import Cache
from trnpy._shapes import BLOCK, FINE, Buckets, block, pieces, rung

FAULTS_BEFORE_REST = 3  # consecutive device errors after which calls stay on the host
CACHE_SHARE = 0.5  # of the memory trnpy may use, for operands between calls; the rest is for products
# dtype of a product under "matched" -> what TensorEngine multiplies; sums are float32 (fp16 in NumPy sums in fp16)
NATIVE: Mapping[str, str] = MappingProxyType(
    {"float32": "float32", "complex64": "float32", "float16": "float16", "bfloat16": "bfloat16"}
)
# A product of n x n float64 holds two operands of at most 12 bf16 digits, one of them as 16 bytes too, and 4 words.
DIGIT_BYTES = 2 * 12 * 2 + 16 + 4 * 4
STACK_RESERVE = 1.25  # a stack is padded to a rung of the ladder
ONE = np.ones((1, 1), np.float32)


class Refused(Exception):
    """The engine has no product for these operands; the phrase says why, ``accuracy`` whether it is the values."""

    def __init__(self, why: str, accuracy: bool = False) -> None:
        super().__init__(why)
        self.accuracy = accuracy


@dataclass(slots=True)
class Health:
    """The circuit breaker of one engine: open after repeated faults, so that calls stop trying."""

    faults: int = 0

    @property
    def open(self) -> bool:
        return self.faults >= FAULTS_BEFORE_REST


@dataclass(frozen=True, slots=True, eq=False)
class Handle:
    """A matrix (rows, columns) on the device, padded with zeros to the shape a kernel is compiled for.

    ``parts``: one buffer, or of a complex matrix two, real and imaginary; they hold the transpose if ``turned``,
    the conjugate's if ``conjugate``. Transposes are free, ``block`` copies on the device.
    """

    shape: tuple[int, int]
    dtype: np.dtype  # the host's
    parts: tuple[Buffer, ...]
    turned: bool = False
    conjugate: bool = False

    @property
    def T(self) -> Handle:
        return replace(self, shape=self.shape[::-1], turned=not self.turned)

    @property
    def H(self) -> Handle:
        return replace(self.T, conjugate=not self.conjugate) if self.dtype.kind == "c" else self.T

    @property
    def padded(self) -> tuple[int, int]:
        """Rows and columns of the buffers, as this matrix has them."""
        rows, columns = self.parts[0].shape
        return (columns, rows) if self.turned else (rows, columns)

    @property
    def nbytes(self) -> int:
        return sum(p.nbytes for p in self.parts)


Operand = np.ndarray | Handle


def _numpy_dtype(name: str) -> np.dtype:
    if name != "bfloat16":
        return np.dtype(name)
    import ml_dtypes  # an extra: only products by that name need it

    bfloat16: np.dtype = np.dtype(ml_dtypes.bfloat16)
    return bfloat16


class DeviceEngine:
    """Products on one device: arrays in, arrays out; handles in, a handle out."""

    def __init__(self, runtime: Runtime) -> None:
        self.runtime = runtime
        self.name = runtime.name
        self.hardware: Hardware | None = runtime.hardware
        self.executes = runtime.executes
        self.health = Health()
        self.cache = Cache()
        self.buckets = Buckets()
        self.facts = probed(runtime.name, runtime.hardware.name)

    @property
    def counters(self) -> Counters:
        return self.runtime.counters

    @property
    def memory(self) -> float:
        """Bytes that the policy allows."""
        share = current_policy().device_memory
        return share * self.runtime.hardware.hbm_bytes if share <= 1 else share

    def _form(self, dtype: np.dtype) -> str:
        """What TensorEngine multiplies for products of ``dtype``; "" when no single format is accurate enough."""
        precision = current_policy().precision
        if precision != "matched" and dtype.kind in "fc":
            return NAMED[precision]
        form = NATIVE.get(dtype.name, "")
        return form if form != "float32" or self.facts.float32_products else ""

    # --- operands -----------------------------------------------------------------------------------------------------

    def put(self, a: np.ndarray) -> Handle:
        """``a`` (rows, columns) on the device, in the format that the policy's precision multiplies."""
        if a.ndim != 2 or a.size == 0:
            raise Refused(f"shape {a.shape} is not one non-empty matrix")
        form = self._form(a.dtype)
        if not form:
            raise Refused(f"{a.dtype} has no form of its own on the device")
        sizes = block((a.shape[0], a.shape[1], 1), _itemsize(a.dtype, form), self.memory)
        if sizes is None or sizes[:2] != a.shape:
            raise Refused(f"{a.shape} exceeds the largest operand of one launch")
        m, k, _ = self.buckets.fit("put", (a.shape[0], a.shape[1], 1))
        return self._put(a, form, (m, k))

    def get(self, h: Handle) -> np.ndarray:
        """``h`` on the host, in its own dtype."""
        rows, columns = h.shape[::-1] if h.turned else h.shape
        parts = [self.runtime.get(p)[:rows, :columns] for p in h.parts]
        if len(parts) == 1:
            result = parts[0].astype(h.dtype)
        else:
            result = np.empty((rows, columns), h.dtype)
            result.real, result.imag = parts[0], -parts[1] if h.conjugate else parts[1]
        return result.T if h.turned else result

    def block(self, h: Handle, rows: slice, columns: slice) -> Handle:
        """The rows and columns of a handle, as a handle: copied on the device, never over the link."""
        (r0, r1, _), (c0, c1, _) = rows.indices(h.shape[0]), columns.indices(h.shape[1])
        if r0 >= r1 or c0 >= c1:
            raise Refused(f"block {r1 - r0} by {c1 - c0} is empty")
        m, k, _ = self.buckets.fit("put", (r1 - r0, c1 - c0, 1))
        inner, shape = (slice(r0, r1), slice(c0, c1)), (m, k)
        if h.turned:
            inner, shape = inner[::-1], shape[::-1]
        parts = tuple(self.runtime.part(p, *inner, shape) for p in h.parts)
        return replace(h, shape=(r1 - r0, c1 - c0), parts=parts)

    def _put(self, a: np.ndarray, form: str, padded: tuple[int, int]) -> Handle:
        """``a`` (rows, columns) in format ``form``, padded; from the cache when it is there unchanged."""
        turned = a.flags.f_contiguous and not a.flags.c_contiguous
        base, shape = (a.T, padded[::-1]) if turned else (a, padded)
        dtype = _numpy_dtype(form)

        def make() -> tuple[Buffer, ...]:
            parts = (base.real, base.imag) if base.dtype.kind == "c" else (base,)
            return tuple(self._room_for(_padded(p, shape, dtype)) for p in parts)

        return Handle((a.shape[0], a.shape[1]), a.dtype, self._keep(base, (form, shape), make), turned)

    def _keep(self, operand: np.ndarray, form: Hashable, make: Callable[[], Any]) -> Any:
        """``make()``, or what the cache has of ``operand`` in ``form``."""
        return self.cache.get(operand, form, make, _device_bytes, CACHE_SHARE * self.memory)

    def _room_for(self, array: np.ndarray) -> Buffer:
        """``array`` on the device; without the cache when the memory is full."""
        try:
            return self.runtime.put(array)
        except DeviceMemoryError:
            self.cache.clear()
            return self.runtime.put(array)

    # --- products -----------------------------------------------------------------------------------------------------

    def matmul(self, a: Any, b: Any) -> Any:
        """(..., m, k) by (..., k, n), stacks broadcast, in the operands' dtype; with a handle the result is one.

        Refused where there is no product of that accuracy, DeviceError when the device fails.
        """
        if not self.executes:
            return self.runtime.launch("matmul", a, b)
        if isinstance(a, Handle) or isinstance(b, Handle):
            return self._handles(a, b)
        dtype = np.result_type(a, b)
        if 0 in (*a.shape, *b.shape):
            raise Refused("an operand is empty")
        form = self._form(dtype)
        product = self._native if form else self._by_digits
        a, b = a.astype(dtype, copy=False), b.astype(dtype, copy=False)
        if a.ndim == b.ndim == 2:
            return product(a, b, form)
        if b.ndim == 2:  # one product of all rows
            return product(a.reshape(-1, a.shape[-1]), b, form).reshape(*a.shape[:-1], b.shape[-1])
        stack = np.broadcast_shapes(a.shape[:-2], b.shape[:-2])
        one = a.ndim == 2  # serves every product
        a, b = (np.broadcast_to(x, stack + x.shape[-2:]).reshape(-1, *x.shape[-2:]) for x in (a, b))
        if form and dtype.kind == "f":
            c = self._stack(a[:1] if one else a, b, form)
        else:
            c = np.stack([product(x, y, form) for x, y in zip(a, b, strict=True)])
        return c.reshape(*stack, *c.shape[-2:])

    def _stack(self, a: np.ndarray, b: np.ndarray, form: str) -> np.ndarray:
        """(B or 1, m, k) by (B, k, n), real: as many in one launch as the memory holds."""
        batch, k, n = b.shape
        m, size, dtype = a.shape[1], _itemsize(b.dtype, form), _numpy_dtype(form)
        if max(m, k, n) > SMALL:
            return np.stack([self._native(a[i % len(a)], b[i], form) for i in range(batch)])
        fit = self.buckets.fit(f"batched_matmul {form}", (m, k, n))
        each = size * (fit[0] * fit[1] + fit[1] * fit[2]) + 4 * fit[0] * fit[2]
        most = min(int((1 - CACHE_SHARE) * self.memory / STACK_RESERVE // each), BLOCK)
        if not most:
            raise Refused(f"no product of {a.shape} by {b.shape} fits device_memory of {self.memory:.3g} bytes")
        c = np.empty((batch, m, n), b.dtype)
        most = max(r for r in (1, *FINE) if r <= most)
        for some in pieces(batch, most):
            count = some.stop - some.start
            stack = 1 if count == 1 else rung(count) if rung(count) <= most else most

            def put(x: np.ndarray, shape: tuple[int, ...]) -> Buffer:
                kept: Buffer = self._keep(x, (form, shape), lambda: self._room_for(_padded(x, shape, dtype)))
                return kept

            left = put(a if len(a) == 1 else a[some], (1 if len(a) == 1 else stack, fit[0], fit[1]))
            right = put(b[some], (stack, fit[1], fit[2]))
            c[some] = self.runtime.launch("batched_matmul", left, right)[:count, :m, :n]
        return c

    def gram(self, a: Any) -> Any:
        """A A^H of (..., m, k), of a handle as a handle: one transfer of A."""
        if isinstance(a, Handle):
            return self._gram(a)
        form = self._form(a.dtype)
        if a.ndim == 2 and a.size and self.executes:
            if not form and a.dtype.kind in "fc":
                return self._certified(a.dtype, lambda d, wide: _matched.gram(d, _as(a, wide)))
            with contextlib.suppress(Refused):  # too large for one launch
                return self.get(self._gram(self.put(a)))
        return self.matmul(a, (a.conj() if a.dtype.kind == "c" else a).swapaxes(-1, -2))

    def _gram(self, h: Handle) -> Handle:
        """A A^H: of A = X + iY the symmetric X X^T + Y Y^T by half the work, and Y X^T - X Y^T."""
        rows = {"a_rows": not h.turned}
        real: Buffer = self.runtime.run("syrk", h.parts[0], **rows)
        if len(h.parts) == 1:
            return Handle((h.shape[0], h.shape[0]), h.dtype, (real,))
        real = self.runtime.run("syrk", h.parts[1], ONE, real, ONE, **rows)
        imaginary = self._handles(h, h.H).parts[1]
        return Handle((h.shape[0], h.shape[0]), h.dtype, (real, imaginary))

    def _by_digits(self, a: np.ndarray, b: np.ndarray, form: str) -> np.ndarray:
        return self._certified(a.dtype, lambda d, wide: _matched.matmul(d, _as(a, wide), _as(b, wide)))

    def _certified(self, dtype: np.dtype, product: Callable[[_matched.Device, np.dtype], np.ndarray]) -> np.ndarray:
        """A product of digits in ``dtype``; of single precision where the device has none of its own, rounded once."""
        wide = np.result_type(dtype, np.float64) if dtype.char in "fF" else dtype
        if wide.char not in _matched.DTYPES:
            raise Refused(f"no product of {dtype} on the device")
        if not self.facts.digits:
            raise Refused("probes found digits inexact on this device")
        block_bytes = (1 - CACHE_SHARE) * self.memory
        longest = max((r for r in FINE if DIGIT_BYTES * r * r <= block_bytes), default=0)
        if not longest:
            raise Refused(f"no block of digits fits device_memory of {self.memory:.3g} bytes")
        try:
            result = product(_matched.Device(self.runtime, self.buckets, longest, self._keep), wide)
        except _matched.Uncertified as why:
            raise Refused(str(why), accuracy=True) from why
        return result.astype(dtype, copy=False)

    def _native(self, a: np.ndarray, b: np.ndarray, form: str) -> np.ndarray:
        """One product of matrices of one dtype, in blocks that the device's memory holds."""
        m, k, n = a.shape[0], a.shape[1], b.shape[1]
        sizes = block((m, k, n), _itemsize(a.dtype, form), (1 - CACHE_SHARE) * self.memory)
        if sizes is None:
            raise Refused(f"no block of {a.shape} by {b.shape} fits device_memory of {self.memory:.3g} bytes")
        c = np.empty((m, n), a.dtype)
        kept: dict[tuple[int, int], Handle] = {}  # blocks of one row of A
        for rows in pieces(m, sizes[0]):
            kept.clear()
            for columns in pieces(n, sizes[2]):
                total: Handle | None = None
                for inner in pieces(k, sizes[1]):
                    extents = rows.stop - rows.start, inner.stop - inner.start, columns.stop - columns.start
                    fit = self.buckets.fit(f"matmul {form}", extents)
                    at = (inner.start, fit[1])
                    if at not in kept:
                        if len(kept) * math.prod(fit[:2]) * _itemsize(a.dtype, form) > CACHE_SHARE * self.memory / 4:
                            kept.clear()
                        kept[at] = self._put(a[rows, inner], form, (fit[0], fit[1]))
                    right = self._put(b[inner, columns], form, (fit[1], fit[2]))
                    total = self._launch(kept[at], right, total, a.dtype)
                assert total is not None
                c[rows, columns] = self.get(total)
        return c

    def _handles(self, a: Operand, b: Operand) -> Handle:
        """The product of operands of which one at least is a handle; an array is put beside it."""
        if isinstance(a, np.ndarray):
            a = self._beside(a, b, rows=False)
        if isinstance(b, np.ndarray):
            b = self._beside(b, a, rows=True)
        if a.shape[1] != b.shape[0] or a.dtype != b.dtype or a.parts[0].dtype != b.parts[0].dtype:
            raise ValueError(
                f"handles {a.shape} {a.dtype} ({a.parts[0].dtype}) and {b.shape} {b.dtype} ({b.parts[0].dtype}): "
                "expected columns of the first to be rows of the second, and one dtype"
            )
        depth = max(a.padded[1], b.padded[0])
        a, b = self._deepened(a, (a.padded[0], depth)), self._deepened(b, (depth, b.padded[1]))
        return self._launch(a, b, None, a.dtype)

    def _beside(self, x: np.ndarray, h: Operand, rows: bool) -> Handle:
        """An array as a handle with the padding of the handle it meets."""
        assert isinstance(h, Handle)
        handle = self.put(x.astype(h.dtype, copy=False))
        if handle.shape[0 if rows else 1] != h.shape[1 if rows else 0]:
            raise ValueError(f"shapes {x.shape} and {h.shape} do not match")
        return handle

    def _deepened(self, h: Handle, padded: tuple[int, int]) -> Handle:
        if h.padded == padded:
            return h
        inner = tuple(slice(0, e) for e in (h.shape[::-1] if h.turned else h.shape))
        shape = padded[::-1] if h.turned else padded
        return replace(h, parts=tuple(self.runtime.part(p, inner[0], inner[1], shape) for p in h.parts))

    def _launch(self, a: Handle, b: Handle, total: Handle | None, dtype: np.dtype) -> Handle:
        """total + A B on the device: one real product, or of complex operands four (4M)."""
        shape = a.shape[0], b.shape[1]
        tiles = for_numbers(a.parts[0].dtype.itemsize).of_numbers()
        rows = {"a_rows": not a.turned, "b_rows": not b.turned}

        def run(left: Buffer, right: Buffer, sign: int, c0: Buffer | None) -> Buffer:
            if sign == 1 and c0 is None:
                out = self.runtime.run("matmul", left, right, **rows, **tiles)
            else:
                c0 = c0 or self.runtime.put(np.zeros((a.padded[0], b.padded[1]), np.float32))
                out = self.runtime.run("matmul", left, right, np.float32(sign) * ONE, c0, ONE, **rows, **tiles)
            assert isinstance(out, Buffer)
            return out

        so_far = (None, None) if total is None else total.parts
        if dtype.kind != "c":
            return Handle(shape, dtype, (run(a.parts[0], b.parts[0], 1, so_far[0]),))
        (ar, ai), (br, bi) = a.parts, b.parts
        sa, sb = (-1 if h.conjugate else 1 for h in (a, b))
        re = run(ai, bi, -sa * sb, run(ar, br, 1, so_far[0]))
        im = run(ai, br, sa, run(ar, bi, sb, so_far[1]))
        return Handle(shape, dtype, (re, im))


def _device_bytes(form: Any) -> int:
    """Bytes on the device of one buffer, or of those in a tuple."""
    return sum(p.nbytes for p in (form if isinstance(form, tuple) else (form,)) if isinstance(p, Buffer))


def _as(a: np.ndarray, dtype: np.dtype) -> np.ndarray:
    return a.astype(dtype, copy=False)


def _itemsize(dtype: np.dtype, form: str) -> int:
    """Device bytes of one element of an operand."""
    return (2 if form in ("bfloat16", "float16") else 4) * (2 if dtype.kind == "c" else 1)


def _padded(part: np.ndarray, shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
    """``part`` in ``dtype``, with zeros below and to the right up to ``shape``."""
    if part.shape == shape:
        with np.errstate(over="ignore"):  # an infinity is found when the result is checked
            return np.ascontiguousarray(part, dtype)
    padded = np.zeros(shape, dtype)
    with np.errstate(over="ignore"):
        padded[tuple(slice(0, extent) for extent in part.shape)] = part
    return padded


__all__ = ["DeviceEngine", "Handle", "Health", "Refused"]
