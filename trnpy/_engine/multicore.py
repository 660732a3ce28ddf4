"""Several NeuronCores as one engine: large products of arrays use several, and so do algorithms that ask for them."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from nkisim.hardware import EFFICIENCY, FLOAT64_PASSES
from trnpy._engine.abstract_arrays import StandIn
from trnpy._engine.at_once import each
from trnpy._engine.device import DeviceEngine
from trnpy._engine.handles import BY_DIGITS, combined
from trnpy._engine.precision import launches
from trnpy._engine.residency import Cache
from trnpy._nki.runtime import LaunchCounters
from trnpy._settings.host_rates import current_rates
from trnpy._settings.policy import current_policy

Pair = tuple[Any, Any]  # operands of one share of a product


def fastest(engine_s: float, each_s: float, join_s: float, most: int) -> int:
    """The power of two, up to ``most`` cores, on which work of ``engine_s`` seconds on one core finishes first.

    Each core adds ``each_s``: its launches and its copy of the operands that all need, which the host starts and sends
    in sequence. Joining several results takes ``join_s``. Halves of a shape need less padding than thirds.
    """
    counts = [1 << i for i in range(most.bit_length())]
    return min(counts, key=lambda count: count * each_s + engine_s / count + (join_s if count > 1 else 0.0))


class Caches:
    """The caches of all cores: a fault of one makes all of them doubtful. The first one answers about residency."""

    def __init__(self, caches: Sequence[Cache]) -> None:
        self._caches = caches

    def __getattr__(self, name: str) -> Any:
        return getattr(self._caches[0], name)

    def doubt(self) -> None:
        """Compare every form at its next use."""
        for cache in self._caches:
            cache.doubt()

    def clear(self) -> None:
        """Drop all forms, which frees their memory."""
        for cache in self._caches:
            cache.clear()


class Cores:
    """``engines``, one for each core. Products of arrays are divided by rows, columns or matrices of a stack.

    Handles, and kernels that algorithms launch themselves, stay on the first core, unless they use ``shares``.
    """

    overlaps = False  # the shares arrive together

    def __init__(self, engines: Sequence[DeviceEngine]) -> None:
        self.engines = tuple(engines)
        self.cores = len(engines)
        self.cache = Caches([e.cache for e in engines])
        for other in engines[1:]:
            other.health = engines[0].health

    def __getattr__(self, name: str) -> Any:
        return getattr(self.engines[0], name)

    @property
    def counters(self) -> LaunchCounters:
        """The counters of all cores, added; kernel times are those of the slowest core."""
        total = LaunchCounters()
        for counters in (e.counters for e in self.engines):
            total.launches.update(counters.launches)
            total.compiles.update(counters.compiles)
            total.bytes_in += counters.bytes_in
            total.bytes_out += counters.bytes_out
            total.variants |= counters.variants
            for mine, theirs in ((total.seconds, counters.seconds), (total.compile_s, counters.compile_s)):
                mine.update({k: max(s, mine.get(k, 0.0)) for k, s in theirs.items()})
        return total

    def matmul(
        self, a: Any, b: Any, *, alpha: complex = 1.0, beta: complex = 0.0, c: Any = None, digits: int | None = None,
        proved: bool = True,
    ) -> Any:  # fmt: skip
        """alpha A B + beta C, as on one engine; arrays are multiplied on the number of cores that is fastest."""
        parts = _parts(a, b, self._count(a, b)) if _is_array(a) and _is_array(b) else []
        if len(parts) < 2:
            return self.engines[0].matmul(a, b, alpha=alpha, beta=beta, c=c, digits=digits, proved=proved)
        return combined(alpha, self._joined(a, b, parts), beta, c)

    def _count(self, a: Any, b: Any) -> int:
        """The number of cores that compute a product."""
        if 0 in (*a.shape, *b.shape):
            return 1
        dtype = np.result_type(a.dtype, b.dtype)
        form, real = self.engines[0].format(dtype), 4 if dtype.kind == "c" else 1
        results = math.prod(np.broadcast_shapes(a.shape[:-2], b.shape[:-2])) * a.shape[-2] * b.shape[-1]
        passes, rate = (FLOAT64_PASSES, "bfloat16") if form == BY_DIGITS else (1, form or "bfloat16")
        flops = 2.0 * results * a.shape[-1] * real * passes
        shared = min(a.nbytes, b.nbytes) if a.ndim == b.ndim == 2 else sum(x.nbytes for x in (a, b) if x.ndim == 2)
        join_s = 2.0 * results * dtype.itemsize / current_rates().copy_bytes_per_s
        return self._fastest(flops, rate, launches(dtype, current_policy().products), shared, join_s)

    def shares(self, flops: float, form: str, launched: int, sent: float) -> Sequence[DeviceEngine]:
        """The engines on which kernels of ``flops`` operations finish first (``Engine.shares``)."""
        return self.engines[: self._fastest(flops, form, launched, sent)]

    def _fastest(self, flops: float, form: str, launched: int, sent: float, join_s: float = 0.0) -> int:
        """The number of cores: from the cost model, or all that the policy allows if it forces calls."""
        policy, machine = current_policy(), self.engines[0].machine
        most = min(policy.cores or self.cores, self.cores)
        if policy.force:
            return most
        engine_s = flops / (machine.flops_per_s[form] * EFFICIENCY)
        return fastest(engine_s, launched * machine.launch_s + sent / machine.link_bytes_per_s, join_s, most)

    def _joined(self, a: Any, b: Any, parts: list[tuple[tuple[slice, ...], Pair]]) -> Any:
        """The product of ``a`` and ``b`` from its ``parts``, computed concurrently on one core each."""
        stack = np.broadcast_shapes(a.shape[:-2], b.shape[:-2])
        shape = (*stack, a.shape[-2], b.shape[-1])
        c = np.empty_like(a, dtype=np.result_type(a.dtype, b.dtype), order="C", shape=shape)

        def work(engine: DeviceEngine, n: int) -> None:
            place, pair = parts[n]
            c[place] = engine.matmul(*pair)

        each(self.engines[: len(parts)], work)
        return c


def _parts(a: Any, b: Any, count: int) -> list[tuple[tuple[slice, ...], Pair]]:
    """At most ``count`` shares of a product, limited by its rows, columns or matrices: place and operands of each."""
    if b.ndim == 2 and (a.ndim > 2 or a.shape[0] >= b.shape[1]):  # rows, or matrices, of the left operand
        return [((s,), (a[s], b)) for s in _even(a.shape[0], count)]
    if a.ndim == b.ndim == 2:
        return [((slice(None), s), (a, b[:, s])) for s in _even(b.shape[1], count)]
    length = np.broadcast_shapes(a.shape[:-2], b.shape[:-2])[0]
    deepest = max(a.ndim, b.ndim)

    def part(x: Any, s: slice) -> Any:
        return x[s] if x.ndim == deepest and x.shape[0] == length else x

    return [((s,), (part(a, s), part(b, s))) for s in _even(length, count)]


def _even(length: int, count: int) -> list[slice]:
    """At most ``count`` slices of ``length``, which differ by at most one; the first ones are the longest."""
    each, more = divmod(length, max(1, min(count, length)))
    ends = [i * each + min(i, more) for i in range(min(count, length) + 1)]
    return [slice(*pair) for pair in itertools.pairwise(ends)]


def _is_array(x: Any) -> bool:
    return isinstance(x, (np.ndarray, StandIn))


__all__ = ["Cores", "fastest"]
