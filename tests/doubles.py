"""Engines that are adversaries: each computes on the host, counts its products and misbehaves in one stated way."""

from types import MappingProxyType

import numpy as np

from nkisim.hardware import TRN2
from trnpy._call.dispatch import Reason
from trnpy._engine.engines import BY_DIGITS, HostEngine
from trnpy._engine.precision import NAMED
from trnpy._nki.runtime import DeviceError, DeviceMemoryError, wait
from trnpy._settings.policy import current_policy


class _Double(HostEngine):
    """A double replaces ``answer``: products, and with them handles, Gram matrices and epilogues, rest on it."""

    hardware = TRN2

    def product(self, a, b):
        self.counters.launches["product"] += 1
        return self.answer(a, b)

    def answer(self, a, b):
        raise NotImplementedError


class RecordingEngine(_Double):
    """Host products; keeps (stack, m, k, n) of every one."""

    name = "recording"

    def __init__(self):
        super().__init__()
        self.shapes = []

    def answer(self, a, b):
        self.shapes.append((*np.broadcast_shapes(a.shape[:-2], b.shape[:-2]), *a.shape[-2:], b.shape[-1]))
        return np.matmul(a, b)


class TwinEngine(RecordingEngine):
    """Computes kernels by their twins, in the format of a device: digits or, where a policy asks for it, float32."""

    name = "twins"

    def format(self, dtype):
        return NAMED.get(current_policy().products, BY_DIGITS)


class RoundingEngine(_Double):
    """Products rounded as some BLAS might: each entry moved at random by up to half an eps of its terms' sizes."""

    name = "rounding"

    def __init__(self):
        super().__init__()
        self.rng = np.random.default_rng(0)

    def answer(self, a, b):
        c = np.matmul(a, b)
        unit = np.finfo(c.dtype).eps / 2 * np.matmul(np.abs(a), np.abs(b))
        moved = c + unit * self.rng.uniform(-1, 1, c.shape)
        if c.dtype.kind == "c":
            moved = moved + 1j * unit * self.rng.uniform(-1, 1, c.shape)
        return moved.astype(c.dtype)


class Float32Engine(_Double):
    """Products rounded to float32, as a TensorEngine without emulation returns them."""

    name = "float32"

    def answer(self, a, b):
        low = np.complex64 if np.iscomplexobj(a) or np.iscomplexobj(b) else np.float32
        return np.matmul(a.astype(low), b.astype(low)).astype(np.result_type(a, b))


class ReadOnlyEngine(_Double):
    """Results that must not be written to, as a view of device memory would be; operands are checked untouched."""

    name = "read-only"

    def answer(self, a, b):
        copies = a.copy(), b.copy()
        c = np.matmul(a, b)
        np.testing.assert_array_equal(a, copies[0])
        np.testing.assert_array_equal(b, copies[1])
        c.flags.writeable = False
        return c


class FaultyEngine(_Double):
    """Fails as devices do: ``raises``, ``nan``, ``wrong`` numbers, ``hangs`` past the time limit, ``oom``."""

    REASONS = MappingProxyType(
        {  # of each fault, and what the report gives for it
            "raises": Reason.ERROR,
            "nan": Reason.ACCURACY,
            "wrong": Reason.ACCURACY,
            "hangs": Reason.ERROR,
            "oom": Reason.OOM,
        }
    )
    FAULTS = tuple(REASONS)

    def __init__(self, fault):
        super().__init__()
        self.name = f"faulty ({fault})"
        self.fault = fault

    @property
    def products(self):
        return self.counters.launches["product"]

    def answer(self, a, b):
        c = np.matmul(a, b)
        if self.fault == "raises":
            raise DeviceError("NRT_EXEC_HW_ERR")
        if self.fault == "oom":
            raise DeviceMemoryError(f"{c.nbytes} bytes do not fit")
        if self.fault == "hangs":
            wait(lambda: False, current_policy().time_limit, "matmul")
        if self.fault == "nan":
            c[..., :1, :1] = np.nan
        if self.fault == "wrong":
            c = c * 1.001
        return c
