"""Operands that an engine keeps, as host arrays or as numbers or digits on a device, and ``Refused``."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import replace
from typing import Any, Protocol

import numpy as np

from trnpy._base.records import record
from trnpy._nki.runtime import Buffer


class Refused(Exception):
    """The engine has no product for these operands; the message says why. ``accuracy``: their values are the reason."""

    def __init__(self, why: str, accuracy: bool = False) -> None:
        super().__init__(why)
        self.accuracy = accuracy


class Held(Protocol):
    """An array of any shape and dtype that an engine keeps for its kernels: an operand or an output."""

    @property
    def shape(self) -> tuple[int, ...]: ...

    @property
    def dtype(self) -> np.dtype: ...

    @property
    def nbytes(self) -> int: ...


BY_DIGITS = "digits"  # result of Engine.format if float64 products are computed with digits


class Handle(Protocol):
    """An immutable matrix that an engine keeps for its products. Transposes cost nothing."""

    @property
    def shape(self) -> tuple[int, ...]: ...

    @property
    def padded(self) -> tuple[int, ...]: ...  # rows and columns in the kernels' layout, with zeros added

    @property
    def dtype(self) -> np.dtype: ...  # on the host

    @property
    def T(self) -> Handle: ...

    @property
    def H(self) -> Handle: ...


Operand = np.ndarray | Handle


@record(eq=False)
class HostHandle:
    """A matrix or another array that an engine on the host keeps."""

    array: np.ndarray

    @property
    def shape(self) -> tuple[int, ...]:
        return self.array.shape

    @property
    def dtype(self) -> np.dtype:
        return self.array.dtype

    @property
    def padded(self) -> tuple[int, ...]:
        return self.array.shape

    @property
    def nbytes(self) -> int:
        return self.array.nbytes

    @property
    def T(self) -> HostHandle:
        return HostHandle(self.array.T)

    @property
    def H(self) -> HostHandle:
        return HostHandle(self.array.conj().T)


@record(eq=False)
class Numbers:
    """A matrix (rows, columns) as numbers on the device, padded with zeros to the shape a kernel is compiled for.

    ``parts``: one buffer, or two for a complex matrix, real and imaginary. They hold the transpose if ``turned``, and
    the parts of the conjugate if ``conjugate``.
    """

    shape: tuple[int, int]
    dtype: np.dtype  # on the host
    parts: tuple[Buffer, ...]
    turned: bool = False
    conjugate: bool = False

    @property
    def T(self) -> Numbers:
        return replace(self, shape=self.shape[::-1], turned=not self.turned)

    @property
    def H(self) -> Numbers:
        return replace(self.T, conjugate=not self.conjugate) if self.dtype.kind == "c" else self.T

    @property
    def padded(self) -> tuple[int, int]:
        """The padded rows and columns, in this matrix's orientation."""
        rows, columns = self.parts[0].shape
        return (columns, rows) if self.turned else (rows, columns)

    @property
    def nbytes(self) -> int:
        return sum(p.nbytes for p in self.parts)


class Store:
    """Values of one real matrix, and its forms on the device.

    The values of a product are fetched when they are first read. Until then they are only on the device.
    """

    def __init__(
        self,
        shape: tuple[int, int],
        dtype: np.dtype,
        fetch: Callable[[], np.ndarray],
        keep: Callable[[Hashable, Callable[[], Any]], Any] | None = None,
        stays: bool = False,
        integers: Any = None,
        given: bool = False,
    ) -> None:
        self.shape = shape
        self.dtype = dtype
        self._fetch: Callable[[], np.ndarray] | None = fetch
        self._values: np.ndarray | None = None
        self._forms: dict[Hashable, Any] = {}
        self._keep = keep
        self._given = given  # the values are the caller's array
        self.stays = stays  # results of its products stay on the device (_engine/lazy_products)
        self.integers = integers  # the device form of a product whose result stays there
        self.proofs: dict[bool, Any] = {}  # cached checksums of products with few columns, also of the transpose
        self.needed = 0  # digits, from the error bound of the last such product with or for this matrix

    @property
    def read(self) -> bool:
        """Whether the values are on the host."""
        return self._fetch is None or self.integers is None

    @property
    def here(self) -> bool:
        """Whether the values can be read without the device."""
        return self._given or self._fetch is None

    @property
    def values(self) -> np.ndarray:
        if self._fetch is not None:
            self._values, self._fetch = self._fetch(), None
        assert self._values is not None
        return self._values

    def alone(self) -> Store:
        """The same values and checksums, with nothing on the device."""
        values = self.values
        found = Store(self.shape, self.dtype, lambda: values, given=True)
        found.proofs = self.proofs
        return found

    def keep(self, form: Hashable, make: Callable[[], Any]) -> Any:
        """``make()``, or its earlier result for this ``form``."""
        if form not in self._forms:
            self._forms[form] = make() if self._keep is None else self._keep(form, make)
        return self._forms[form]


@record(eq=False)
class Source:
    """A real operand of products with digits: the matrix of a store, or its transpose."""

    store: Store
    turned: bool = False

    @property
    def shape(self) -> tuple[int, int]:
        rows, columns = self.store.shape
        return (columns, rows) if self.turned else (rows, columns)

    @property
    def dtype(self) -> np.dtype:
        return self.store.dtype

    @property
    def values(self) -> np.ndarray:
        return self.store.values.T if self.turned else self.store.values

    @property
    def T(self) -> Source:
        return Source(self.store, not self.turned)


@record(eq=False)
class Digits:
    """A matrix (rows, columns) of float64, complex128 or integers that is multiplied with digits.

    ``parts``: real, or real and imaginary, those of the conjugate if ``conjugate``. The first product that needs a
    device form makes it. Forms live as long as the handle or one made from it by T or H.
    """

    dtype: np.dtype  # on the host
    parts: tuple[Source, ...]
    conjugate: bool = False

    @property
    def shape(self) -> tuple[int, int]:
        return self.parts[0].shape

    @property
    def padded(self) -> tuple[int, int]:
        return self.shape

    @property
    def T(self) -> Digits:
        return replace(self, parts=tuple(p.T for p in self.parts))

    @property
    def H(self) -> Digits:
        return replace(self.T, conjugate=not self.conjugate) if self.dtype.kind == "c" else self.T

    @property
    def values(self) -> np.ndarray:
        """The matrix on the host, possibly a view."""
        if len(self.parts) == 1:
            return self.parts[0].values.astype(self.dtype, copy=False)
        real, imaginary = (p.values for p in self.parts)
        result = np.empty_like(real, self.dtype, order="C", shape=self.shape)
        result.real, result.imag = real, imaginary
        return np.conjugate(result, out=result) if self.conjugate else result


def stored(values: np.ndarray, stays: bool = False) -> Source:
    """An operand from a matrix (rows, columns), which the caller must not change from now on."""
    return Source(Store((values.shape[0], values.shape[1]), values.dtype, lambda: values, stays=stays, given=True))


def combined(alpha: complex, x: np.ndarray, beta: complex = 0.0, y: np.ndarray | None = None) -> np.ndarray:
    """alpha x + beta y on the host, in the dtype of x."""
    if alpha != 1:
        x = x * x.dtype.type(alpha)
    return x if y is None or not beta else x + x.dtype.type(beta) * y


def hermitian(product: np.ndarray) -> np.ndarray:
    """A product A A^H (..., m, m), Hermitian to the last bit.

    BLAS does not guarantee this: with some of its kernels the two triangles differ by rounding.
    """
    if product.dtype.kind not in "fc":
        return product
    half = product.astype(product.dtype, order="C", copy=False)
    half = (half.view(half.real.dtype) * 0.5).view(half.dtype)  # part by part: a complex inf times 0.5 has a NaN
    result: np.ndarray = half + half.conj().swapaxes(-1, -2)
    return result
