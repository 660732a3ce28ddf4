"""The engine of a device: it selects the product for a dtype and a precision, for arrays and device operands."""

from __future__ import annotations

import contextlib
import functools
import math
from collections.abc import Callable, Hashable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, TypeVar

import numpy as np

from nkisim.hardware import Hardware
from trnpy._engine import float64_products, float64_stacks, lazy_products, panels, triangular
from trnpy._engine import tuning as _tuning
from trnpy._engine.abstract_arrays import StandIn, usual
from trnpy._engine.at_once import Beside, beside, in_turn
from trnpy._engine.digits import MOST_DIGITS, pairs
from trnpy._engine.handles import (
    BY_DIGITS,
    Digits,
    Handle,
    Held,
    Numbers,
    Refused,
    Source,
    Store,
    combined,
    hermitian,
    stored,
)
from trnpy._engine.health import KEPT, Health
from trnpy._engine.native_products import CACHE_SHARE, Kernels, contents, sliced
from trnpy._engine.precision import NAMED, Facts, probed
from trnpy._engine.residency import Cache
from trnpy._engine.tuning import FINE, Buckets, block, pieces
from trnpy._nki.kernels.products.batched_matmul_reference import SMALL
from trnpy._nki.runtime import Buffer, DeviceMemoryError, LaunchCounters, Runtime
from trnpy._settings.policy import current_policy

T = TypeVar("T")

# dtype of a product under "matched" -> the format that TensorE multiplies. Sums are float32, as in NumPy for float16.
NATIVE: Mapping[str, str] = MappingProxyType(
    {"float32": "float32", "complex64": "float32", "float16": "float16", "bfloat16": "bfloat16"}
)
# Limit for a product that is split into parts: 5.6 times the normal 28 digit products, which without transfers are
# 8 to 17 times as fast as a host (docs/products.md#passes).
MOST_PASSES = 2 * pairs(MOST_DIGITS)
# Bytes per element for a float64 product n x n: two operands of 12 bf16 digits, 16 bytes of one of them, 4 words.
DIGIT_BYTES = 2 * 12 * 2 + 16 + 4 * 4


class DeviceEngine:
    """Products on one device: arrays give arrays, handles give a handle."""

    executes = True
    cores = 1

    def __init__(
        self,
        runtime: Runtime,
        tuning: _tuning.Tuning | None = None,
        facts: Facts | None = None,
        beside: Beside[None] = beside,
    ) -> None:
        self._beside = beside
        self.name = runtime.name
        self.hardware: Hardware | None = runtime.hardware
        self.health = Health()
        fetch = functools.partial(contents, get=runtime.get) if runtime.executes else None
        self.cache = Cache(fetch, lambda: self.health.failed(KEPT))
        tuning = tuning or _tuning.load(runtime.name, runtime.hardware.name)
        self.buckets = Buckets(tuning.tiles)
        self.compiles = _tuning.Compiles(runtime, tuning)
        self.facts = facts or probed(runtime.name, runtime.hardware.name).content or Facts()
        self.runtime: Runtime = runtime if self.facts.usual else _formed(runtime, self.facts)

    @property
    def counters(self) -> LaunchCounters:
        return self.runtime.counters

    @property
    def parallel(self) -> bool:
        return self.runtime.parallel

    @property
    def overlaps(self) -> bool:
        return self.runtime.hardware.overlaps

    @property
    def most_loops(self) -> int | None:
        return self.facts.most_loops

    @property
    def machine(self) -> Hardware:
        return self.runtime.hardware

    @property
    def memory(self) -> float:
        """Bytes of device memory that the policy allows."""
        share = current_policy().device_memory
        return share * self.runtime.hardware.hbm_bytes if share <= 1 else share

    @property
    def room(self) -> float:
        """Bytes of device memory that one call may use; the rest caches operands between calls."""
        return (1 - CACHE_SHARE) * self.memory

    @property
    def _kernels(self) -> Kernels:
        return Kernels(self.runtime, self.buckets, self.cache, self.memory)

    def _form(self, dtype: np.dtype) -> str:
        """The format that TensorE multiplies for products of ``dtype``; "" if no single format is accurate enough."""
        if not self.facts.integer_sums:
            raise Refused("self-tests found inexact integer sums on GpSimd, which kernels need to find their blocks")
        if not self.facts.blocks:
            raise Refused("self-tests found wrong transposes, which kernels need for their blocks")
        precision = current_policy().products
        if precision != "matched" and dtype.kind in "fc":
            return NAMED[precision]
        form = NATIVE.get(dtype.name, "")
        return form if form != "float32" or self.facts.float32_products else ""

    # --- kernels ------------------------------------------------------------------------------------------------------

    def format(self, dtype: np.dtype) -> str:
        """The format that kernels multiply for ``dtype``: the policy's, float32 unchanged, or digits for all others.

        "" if self-tests of this device found that such products are not accurate.
        """
        form = NAMED.get(current_policy().products, "")
        if not form and dtype.char in "fF" and self.facts.float32_products:
            form = "float32"
        exact = self.facts.digits if not form else self.facts.blocks
        if not exact or (form == "float32" and not self.facts.float32_products):
            return ""
        return form or BY_DIGITS

    def hold(self, array: np.ndarray) -> Held:
        return self._kernels.room_for(array)

    def keep(self, operand: np.ndarray, form: Hashable, make: Callable[[], T], again: bool = False) -> T:
        found: T = self._kernels.keep(operand, form, make, again)
        return found

    def kernel(self, name: str, /, *operands: Any, **parameters: Any) -> Any:
        """Launch a kernel. Its outputs stay on the device; arrays among the operands are sent to it."""
        return self.runtime.run(name, *map(self._operand, operands), **parameters)

    def shares(self, flops: float, form: str, launched: int, sent: float) -> Sequence[DeviceEngine]:
        return (self,)

    def _operand(self, x: Any) -> Any:
        """An operand in the form that a launch requires; a matrix as its padded numbers, row by row."""
        if not isinstance(x, (Numbers, Digits)):
            return x
        if isinstance(x, Digits) or len(x.parts) > 1:
            raise TypeError(f"a matrix of {x.dtype}: expected a real float32, float16 or bfloat16 matrix")
        return self.runtime.run("transpose", x.parts[0]) if x.turned else x.parts[0]

    def reshaped(self, output: Held, shape: tuple[int, ...]) -> Held:
        assert isinstance(output, Buffer)
        return self.runtime.reshaped(output, shape)

    def matrix(self, output: Held, shape: tuple[int, int]) -> Handle:
        assert isinstance(output, Buffer)
        return Numbers(shape, output.dtype, (output,))

    # --- operands -----------------------------------------------------------------------------------------------------

    def put(self, a: np.ndarray, stay: bool = False, copy: bool = True) -> Handle:
        """``a`` (rows, columns) for products on the device, in the format that the policy's precision multiplies.

        ``stay``: float64 results of its products stay on the device (``lazy_products``). Without ``copy``, ``a`` must
        not change while the handle or its results are in use.
        """
        if a.ndim != 2 or a.size == 0:
            raise Refused(f"shape {a.shape} is not one non-empty matrix")
        form = self._form(a.dtype)
        if form:
            return self._kernels.put(a, form)
        wide, longest = self._digits_of(a.dtype)
        if max(a.shape) > longest:
            raise Refused(f"{a.shape} exceeds the largest operand of one launch")
        kept = a.astype(wide, copy=copy)
        parts = (kept.real, kept.imag) if kept.dtype.kind == "c" else (kept,)
        return Digits(a.dtype, tuple(stored(p, stay and p.dtype.kind == "f") for p in parts))

    def get(self, h: Handle | Held, copy: bool = True) -> np.ndarray:
        """``h`` on the host, in its own dtype. Without ``copy`` it must not be written to."""
        if isinstance(h, Numbers):
            return self._kernels.get(h)
        if isinstance(h, Buffer):
            return self.runtime.get(h)
        values = _digits(h).values
        return values.copy() if copy else values

    def block(self, h: Handle, rows: slice, columns: slice) -> Handle:
        """Some rows and columns of a handle, as a handle; they are copied on the device without a transfer."""
        (r0, r1, _), (c0, c1, _) = rows.indices(h.shape[0]), columns.indices(h.shape[1])
        if r0 >= r1 or c0 >= c1:
            raise Refused(f"block {r1 - r0} by {c1 - c0} is empty")
        if isinstance(h, Numbers):
            return self._kernels.block(h, slice(r0, r1), slice(c0, c1))
        digits = _digits(h)
        parts = tuple(
            Source(Store((r1 - r0, c1 - c0), p.dtype, functools.partial(_cut, p, r0, r1, c0, c1))) for p in digits.parts
        )
        return Digits(h.dtype, parts, digits.conjugate)

    # --- products -----------------------------------------------------------------------------------------------------

    def matmul(
        self, a: Any, b: Any, *, alpha: complex = 1.0, beta: complex = 0.0, c: Any = None, digits: int | None = None,
        proved: bool = True, arrived: panels.Arrived = panels.unnoticed,
    ) -> Any:  # fmt: skip
        """alpha A B + beta C of (..., m, k) by (..., k, n), stacks broadcast, in the operands' dtype.

        The result is a handle if an operand is one. Refused if no product is accurate enough, DeviceError if the device
        fails. ``digits``: for handles of float64 or complex128, use this many digits without an error bound; the
        error is 256^(1-digits) of the largest terms of each sum. ``proved=False``: the caller checks a result that
        depends on this product, so the product itself is not checked. ``arrived`` is called with rows of A B that have
        reached the host while others are computed.
        """
        if _is_array(a) and _is_array(b):
            return combined(alpha, self._arrays(a, b, arrived), beta, c)
        product = self._handles(a, b, digits, proved)
        return product if alpha == 1 and not beta else self.axpby(alpha, product, beta, c if beta else None)

    def gram(self, a: Any, *, digits: int | None = None, proved: bool = True) -> Any:
        """A A^H of (..., m, k), with one transfer of A; a handle gives a handle. Options as for ``matmul``."""
        if isinstance(a, Numbers):
            return self._kernels.gram(a, self._form(a.dtype))
        if isinstance(a, Digits):
            if digits is None and lazy_products.stays(a):
                return self._handles(a, a.T, None, proved)
            if a.dtype.kind in "fc":
                return self._in_digits(a.dtype, lambda d, wide: float64_products.gram_kept(d, a, digits), proved)
            return self._in_digits(a.dtype, lambda d, wide: float64_products.matmul_kept(d, a, a.T), True)
        form = self._form(a.dtype)
        if a.ndim == 2 and a.size and a.dtype.kind in "fc":
            if not form:
                return self._in_digits(a.dtype, lambda d, wide: _as(float64_products.gram(d, _as(a, wide)), a.dtype))
            with contextlib.suppress(Refused):  # too large for one launch
                c = self.get(self.gram(self.put(a)))
                return hermitian(c) if a.dtype.kind == "c" else c  # the kernel mirrors a triangle of a real result
        return hermitian(self.matmul(a, (a.conj() if a.dtype.kind == "c" else a).swapaxes(-1, -2)))

    def axpby(self, alpha: complex, x: Any, beta: complex = 0.0, y: Any = None) -> Any:
        """alpha X + beta Y, or alpha X: float32 on the device for handles of numbers; digits and arrays on the host."""
        if _is_array(x) and (y is None or _is_array(y)):
            return combined(alpha, x, beta, y)
        if y is not None:
            x, y = self._alike(x, y)
            if x.shape != y.shape:
                raise ValueError(f"shapes {x.shape} and {y.shape}: expected one")
        if isinstance(x, Numbers):
            return self._kernels.axpby(alpha, x, beta, y)
        stay = lazy_products.stays(x) and (y is None or lazy_products.stays(y))
        if stay and y is not None:
            total = self._in_digits(x.dtype, lambda d, wide: lazy_products.axpby(d, alpha.real, x, beta.real, y), True)
            if total is not None:
                return total
        return self.put(combined(alpha, _digits(x).values, beta, None if y is None else _digits(y).values), stay)

    def trsm(
        self, a: Any, b: Any, *, side: str = "left", lower: bool = True, trans: str = "N", unit: bool = False
    ) -> Any:
        """Solve op(A) X = B, or X op(A) = B for ``side`` "right"; A (n, n) is triangular, ``trans`` gives op.

        Only the triangle selected by ``lower`` is read. A zero on the diagonal of an array raises LinAlgError; a handle
        of numbers is not tested for one. The result is a handle if an operand is one.
        """
        triangular.check(a, b, side, trans)
        if _is_array(a) and _is_array(b):
            return self._solved(a, b, side, lower, trans, unit)
        a, b = self._alike(a, b)
        if isinstance(a, Numbers) and a.dtype.kind != "c" and self.facts.float32_products:
            return self._kernels.trsm(a, b, side == "right", lower, trans != "N", unit)
        return self.put(self._solved(self.get(a), self.get(b), side, lower, trans, unit))

    # --- of handles ---------------------------------------------------------------------------------------------------

    def _handles(self, a: Any, b: Any, digits: int | None, proved: bool) -> Handle:
        a, b = self._alike(a, b)
        if a.shape[1] != b.shape[0]:
            raise ValueError(f"handles {a.shape} and {b.shape}: expected columns of the first to be rows of the second")
        if isinstance(a, Numbers):
            return self._kernels.matmul(a, b, self._form(a.dtype))
        if digits is None and lazy_products.stays(a, b):
            kept = self._in_digits(a.dtype, lambda d, wide: lazy_products.matmul(d, a, b), proved)
            if kept is not None:
                return kept
        return self._in_digits(a.dtype, lambda d, wide: float64_products.matmul_kept(d, a, b, digits), proved)

    def _alike(self, a: Any, b: Any) -> tuple[Any, Any]:
        """Both as handles of one dtype and kind; an array is sent to the device in the form of the other operand."""
        if _is_array(a):
            a = self.put(a.astype(b.dtype, copy=False))
        elif _is_array(b):
            b = self.put(b.astype(a.dtype, copy=False))
        if a.dtype != b.dtype or type(a) is not type(b):
            raise ValueError(
                f"{type(a).__name__} {a.shape} {a.dtype} and {type(b).__name__} {b.shape} {b.dtype}: expected one "
                "dtype, put under one precision"
            )
        return a, b

    # --- of arrays ----------------------------------------------------------------------------------------------------

    def _arrays(self, a: np.ndarray, b: np.ndarray, arrived: panels.Arrived = panels.unnoticed) -> np.ndarray:
        dtype = np.result_type(a.dtype, b.dtype)
        if 0 in (*a.shape, *b.shape):
            raise Refused("an operand is empty")
        form = self._form(dtype)
        single = not form and dtype.char in "fF"
        if form:
            product: Callable[[np.ndarray, np.ndarray], np.ndarray] = functools.partial(
                self._kernels.product, form=form
            )
        else:
            product = self._by_slices if single else functools.partial(self._by_digits, arrived=arrived)
        a, b = a.astype(dtype, copy=False), b.astype(dtype, copy=False)
        if a.ndim == b.ndim == 2:
            return product(a, b)
        if b.ndim == 2:  # one product of all rows of the stack
            return product(a.reshape(-1, a.shape[-1]), b).reshape(*a.shape[:-1], b.shape[-1])
        stack = np.broadcast_shapes(a.shape[:-2], b.shape[:-2])
        if a.ndim == 2 and not form:  # one product of all columns of the stack: digits scale each column separately
            wide = np.moveaxis(b, -2, 0).reshape(b.shape[-2], -1)
            return np.moveaxis(product(a, wide).reshape(len(a), *stack, b.shape[-1]), 0, -2)
        one = a.ndim == 2  # one left operand for every product
        a, b = (np.broadcast_to(x, stack + x.shape[-2:]).reshape(-1, *x.shape[-2:]) for x in (a, b))
        if len(a) == 1 or max(*a.shape[1:], b.shape[2]) > SMALL:
            c = np.stack([product(x, y) for x, y in zip(a, b, strict=True)])
        elif single:
            c = self._by_slices(a, b)
        elif form:
            c = self._kernels.stack(a[:1] if one else a, b, form)
        else:
            c = self._in_digits(dtype, lambda d, wide: _as(float64_stacks.matmul(d, _as(a, wide), _as(b, wide)), dtype))
        return c.reshape(*stack, *c.shape[-2:])

    def _by_digits(self, a: np.ndarray, b: np.ndarray, arrived: panels.Arrived) -> np.ndarray:
        def product(device: float64_products.Device, wide: np.dtype) -> np.ndarray:
            x, y = _as(a, wide), _as(b, wide)
            cuts, one = panels.panels(device, x, y, self.room), max(*x.shape, y.shape[1]) <= device.block
            if not cuts or (one and any(self.cache.reuse((a,))[:2])):  # from its second use on, A is cached unstacked
                return float64_products.matmul(device, x, y)
            c = panels.matmul(device, x, y, cuts, not one, self._beside if self.overlaps else in_turn, arrived)
            if one:
                self.cache.computed_by_host((a,))
            return c

        return self._in_digits(a.dtype, product)

    def _by_slices(self, a: np.ndarray, b: np.ndarray) -> np.ndarray:
        """Products in single precision if the device has no accurate float32: six bfloat16 products in one sum."""
        if a.dtype.kind == "c":
            c = np.empty((*a.shape[:-1], b.shape[-1]), a.dtype)
            c.real = self._by_slices(a.real, b.real) - self._by_slices(a.imag, b.imag)
            c.imag = self._by_slices(a.real, b.imag) + self._by_slices(a.imag, b.real)
            return c
        left, right = sliced(a, 0), sliced(b, 1)
        return (self._kernels.product if a.ndim == 2 else self._kernels.stack)(left, right, "bfloat16")

    def _digits_of(self, dtype: np.dtype) -> tuple[np.dtype, int]:
        """The dtype whose digits are multiplied for ``dtype``, and the longest extent of one launch."""
        wide = np.result_type(dtype, np.float64) if dtype.char in "fF" else dtype
        if wide.char not in float64_products.DTYPES:
            raise Refused(f"no product of {dtype} on the device")
        if not self.facts.bits:
            raise Refused("self-tests found inexact digits on this device")
        if not self.facts.digits and wide.kind in "iub":
            raise Refused("self-tests found inexact digits of eight bits, which integers need, on this device")
        block_bytes = (1 - CACHE_SHARE) * self.memory
        longest = max((r for r in FINE if DIGIT_BYTES * r * r <= block_bytes), default=0)
        if not longest:
            raise Refused(f"no block of digits fits device_memory of {self.memory:.3g} bytes")
        return wide, longest

    def _in_digits(
        self, dtype: np.dtype, product: Callable[[float64_products.Device, np.dtype], T], proved: bool = False
    ) -> T:
        """The result of ``product`` with the dtype whose digits are multiplied for ``dtype``."""
        wide, longest = self._digits_of(dtype)
        passes = math.inf if current_policy().force else MOST_PASSES
        device = float64_products.Device(
            self.runtime,
            self.buckets,
            longest,
            self._kernels.keep,
            proved=proved,
            parallel=self.parallel,
            passes=passes,
            bits=self.facts.bits,
            splits=self.facts.splits,
        )
        try:
            try:
                return product(device, wide)
            except DeviceMemoryError:
                self.cache.clear()
                return product(device, wide)
        except float64_products.Uncertified as why:
            raise Refused(str(why), accuracy=True) from why

    def _solved(self, a: np.ndarray, b: np.ndarray, side: str, lower: bool, trans: str, unit: bool) -> np.ndarray:
        """``trsm`` of arrays, with the float32 kernel, or else with products by inverses of diagonal blocks."""
        dtype = np.result_type(a.dtype, b.dtype)
        if 0 in (*a.shape, *b.shape):
            raise Refused("an operand is empty")
        if not unit and not usual(a.diagonal().all(), True):
            raise np.linalg.LinAlgError("singular matrix: a zero on the diagonal")
        t, right, down = triangular.oriented(a, b.astype(dtype, copy=False), side, lower, trans)
        leaf, size = triangular.by_inverse(self._arrays), triangular.LEAF
        if self._form(dtype) and dtype.kind == "f" and self.facts.float32_products:
            budget = (1 - CACHE_SHARE) * self.memory
            sizes = block((len(t), right.shape[1], len(t)), 4, budget)
            if sizes is None:
                raise Refused(f"no block of {a.shape} fits device_memory of {self.memory:.3g} bytes")
            leaf, size = functools.partial(self._by_kernel, sizes[1]), min(sizes[0], sizes[2])
        x = triangular.solve(t, right, down, unit, self._arrays, leaf, size)
        return x if side == "left" else x.T

    def _by_kernel(self, width: int, a: np.ndarray, b: np.ndarray, lower: bool, unit: bool) -> np.ndarray:
        """Solve a system that fits one launch, ``width`` right-hand sides at a time; refined once.

        The kernel multiplies by inverses of tiles, whose error grows with their condition. One refinement in the same
        precision reduces the error to that of substitution (docs/systems.md#triangular-systems).
        """
        x, kernels = np.empty_like(b), self._kernels
        # Row by row: a sum of matrices in different memory orders would transpose one of them first.
        kept = kernels.put(triangular.triangle(a, lower, unit).astype(a.dtype, order="C", copy=False), "float32")
        for columns in pieces(b.shape[1], width):
            sides = kernels.put(b[:, columns].astype(b.dtype, order="C", copy=False), "float32")
            first = kernels.trsm(kept, sides, False, lower, False, unit)
            left = kernels.axpby(1.0, sides, -1.0, kernels.matmul(kept, first, "float32"))
            more = kernels.trsm(kept, left, False, lower, False, unit)
            x[:, columns] = self.get(kernels.axpby(1.0, first, 1.0, more))
        return x


def _formed(runtime: Runtime, facts: Facts) -> Runtime:
    """``runtime`` with the forms of kernels for a device on which self-tests failed."""
    from trnpy._nki.formed import FormedRuntime  # loads the simulator, which other devices do not need

    def refuse(reason: str) -> None:
        raise Refused(reason)

    return FormedRuntime(runtime, facts.form, facts.most_loops, refuse)


def _digits(h: Any) -> Digits:
    if not isinstance(h, Digits):
        raise TypeError(f"{type(h).__name__}: expected a handle that this engine's put has made")
    return h


def _is_array(x: Any) -> bool:
    return isinstance(x, (np.ndarray, StandIn))


def _cut(x: Source, r0: int, r1: int, c0: int, c1: int) -> np.ndarray:
    return x.values[r0:r1, c0:c1]


def _as(a: np.ndarray, dtype: np.dtype) -> np.ndarray:
    return a.astype(dtype, copy=False)


__all__ = ["DeviceEngine", "Handle", "Health", "Refused"]
