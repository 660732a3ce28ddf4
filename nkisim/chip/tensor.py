"""NkiTensor: a strided view of storage on the device, with the view rules of NKI 0.6.

Element (i0, i1, ...) of a view is element ``offset + sum(strides[k] * i_k)`` of its storage, counted in
elements of the view's dtype (nki-language-guide.rst, "Anatomy of a tensor"). On chip the storage has
``partitions`` rows of equal length, and dimension 0 indexes the rows.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

import numpy as np

from nkisim.chip.dtypes import STORAGE, Array, convert, dtype_name, to_float32
from nkisim.chip.errors import SimulatorError
from nkisim.chip.indirect import Index, access_pattern, gather, index_rows, index_source, scatter
from nkisim.chip.memory import Storage
from nkisim.chip.names import MemoryRegion
from nkisim.chip.record import Operand, Region
from nkisim.chip.registers import VirtualRegister
from nkisim.chip.views import merge_strides, reshape_strides, resolve_key

MAX_DIMS = 5  # of a view (nki-language-guide.rst)


class NkiTensor:
    """A view of one storage.

    Inside an instruction's ``compute``, read values with ``read()`` (storage dtype, no copy unless indirect)
    or ``float32()``, and store them with ``write(array)``, which converts to the view's dtype. Views
    share the storage.
    """

    __slots__ = (
        "_array", "_covers", "_operand", "_region", "checked",
        "dtype", "fault", "index", "itemsize", "offset", "shape", "storage", "strides",
    )  # fmt: skip
    # ``tensor[key] = value`` is an instruction, which the language defines.
    _assign: ClassVar[Callable[[NkiTensor, Any], None]]
    _itself: ClassVar[Callable[[NkiTensor], NkiTensor]]  # ``tensor.data``, likewise

    def __init__(
        self,
        storage: Storage,
        shape: tuple[int, ...],
        strides: tuple[int, ...],
        offset: int,
        dtype: str,
        index: Index | None = None,
        fault: str | None = None,
    ) -> None:
        self.storage = storage
        self.shape = shape
        self.strides = strides
        self.offset = offset
        self.dtype = dtype
        self.index = index
        self.itemsize = STORAGE[dtype].itemsize
        self._array: Array | None = None
        self._covers: bool | None = None
        self._region: Region | None = None
        self._operand: Operand | None = None
        self.fault = fault  # message if the view is out of range, which only its use refuses
        self.checked = False  # set by context.issue, which checks each view once
        if len(shape) > MAX_DIMS:
            raise SimulatorError(f"a view of {len(shape)} dimensions {shape}: at most {MAX_DIMS}", rule=12)

    # --- layout ---------------------------------------------------------------------------------------

    @property
    def ndim(self) -> int:
        return len(self.shape)

    @property
    def size(self) -> int:
        size = 1
        for extent in self.shape:
            size *= extent
        return size

    @property
    def name(self) -> str:
        return self.storage.name

    @property
    def base_tensor(self) -> NkiTensor:
        """The tensor that this view was made from; undocumented, but nki-library reads it on its arguments."""
        return whole(self.storage)

    @property
    def data(self) -> NkiTensor:
        """This tensor: NKI 0.7 reads ``data`` on tensors as on grids of tiles."""
        return type(self)._itself(self)

    @property
    def buffer(self) -> MemoryRegion:
        kind = self.storage.buffer
        if kind == "hbm":
            return MemoryRegion.shared_hbm if self.storage.shared else MemoryRegion.private_hbm
        return MemoryRegion.sbuf if kind == "sbuf" else MemoryRegion.psum

    @property
    def on_chip(self) -> bool:
        return self.storage.buffer != "hbm"

    @property
    def partitions(self) -> tuple[int, int]:
        """First partition and one past the last, on the chip; (0, 1) in HBM."""
        return self.region.partitions

    @property
    def row_elements(self) -> int:
        """Elements of this dtype in one partition of the storage; in HBM, in all of it."""
        return self.storage.row_bytes // self.itemsize

    @property
    def free_size(self) -> int:
        """Elements per partition of the view."""
        return self.size // self.shape[0]

    @property
    def distinct(self) -> bool:
        """True if no element of storage appears twice in the view."""
        reach = 0
        for stride, extent in sorted(zip(self.strides, self.shape, strict=True)):
            if extent > 1:
                if stride <= reach:
                    return False
                reach += stride * (extent - 1)
        return True

    @property
    def covers_storage(self) -> bool:
        """True if the view has every element of its storage exactly once."""
        if self._covers is None:
            whole = self.index is None and self.size * self.itemsize == self.storage.nbytes
            self._covers = whole and self.distinct
        return self._covers

    @property
    def region(self) -> Region:
        """The partitions and bytes that this view can touch."""
        if self._region is None:
            storage, size = self.storage, self.itemsize
            if self.index is not None and not self.on_chip:
                self._region = Region(storage.ident, storage.buffer, (0, 1), 0, storage.row_bytes)
            elif self.on_chip:
                row = self.row_elements
                first, start = divmod(self.offset, row)
                first += storage.partition_start
                hull = sum((n - 1) * s for n, s in zip(self.shape[1:], self.strides[1:], strict=True)) + 1
                stop = start + hull
                if self.index is not None:
                    start, stop = 0, row
                partitions = (first, first + self.shape[0])
                self._region = Region(storage.ident, storage.buffer, partitions, start * size, stop * size)
            else:
                hull = sum((n - 1) * s for n, s in zip(self.shape, self.strides, strict=True)) + 1
                self._region = Region(
                    storage.ident, storage.buffer, (0, 1), self.offset * size, (self.offset + hull) * size
                )
        return self._region

    def operand(self, role: str) -> Operand:
        """The record of this view in the given role of an instruction."""
        if self._operand is None or self._operand.role != role:
            self._operand = Operand(role, self.dtype, self.shape, self.strides, self.region)
        return self._operand

    def is_contiguous(self) -> bool:
        expected = 1
        first = 1 if self.on_chip else 0
        for stride, extent in zip(reversed(self.strides[first:]), reversed(self.shape[first:]), strict=True):
            if extent != 1 and stride != expected:
                return False
            expected *= extent
        return True

    def get_pattern(self) -> list[list[int]]:
        return [[stride, extent] for stride, extent in zip(self.strides, self.shape, strict=True)]

    def is_indirect(self) -> bool:
        return self.index is not None

    def __repr__(self) -> str:
        return f"NkiTensor({self.name or 'unnamed'}, {self.shape}, {self.dtype}, {self.buffer.value})"

    def __bool__(self) -> bool:
        """Always True: the tensor exists; its elements are on the device."""
        return True

    def __iter__(self) -> Any:
        raise SimulatorError("a tensor cannot be iterated over: index it with compile-time integers", rule=1)

    def __len__(self) -> int:
        return self.shape[0]

    # --- values, for instructions ---------------------------------------------------------------------

    def strided(self, base: Array, unit: int, more: tuple[int, ...] = (), more_strides: tuple[int, ...] = ()) -> Array:
        """This view's geometry over another flat array, which has ``unit`` elements for each element of the storage."""
        size = base.itemsize
        strides = tuple(s * unit * size for s in self.strides) + tuple(s * size for s in more_strides)
        return np.ndarray(self.shape + more, base.dtype, base, self.offset * unit * size, strides)

    def array(self) -> Array:
        """A NumPy view of the elements at the statically known address, ignoring a run-time index."""
        if self._array is None:
            if self.storage.data is None:
                raise SimulatorError("a tensor has no value in trace-only mode")
            size = self.itemsize
            strides = tuple([s * size for s in self.strides])
            self._array = np.ndarray(self.shape, STORAGE[self.dtype], self.storage.data, self.offset * size, strides)
        return self._array

    def read(self, skip: bool = False) -> Array:
        """The elements in the storage dtype: a view, or a new array if the view is indirect.

        ``skip`` gathers zeros for indices out of bounds instead of raising.
        """
        return self.array() if self.index is None else gather(self, skip)

    def float32(self) -> Array:
        """The elements as float32, in which every engine computes. Do not write into the result."""
        if self.dtype == "float32" or self.index is not None:
            return to_float32(self.read())
        key = (self.offset, self.shape, self.strides, self.dtype)
        cached = self.storage.cache.get(key)
        if cached is None:
            cached = to_float32(self.array())
            if self.on_chip:  # caching HBM would double the operands
                self.storage.remember(key, cached)
        return cached

    def write(self, values: Array, skip: bool = False) -> None:
        """Store values of this shape or size, converted to this dtype."""
        if self.storage.cache:
            self.storage.cache.clear()
        values = convert(values, self.dtype)
        if values.shape != self.shape:
            values = np.broadcast_to(values.reshape(-1), self.shape) if values.size == 1 else values.reshape(self.shape)
        if self.index is None:
            self.array()[...] = values
        else:
            scatter(self, values, skip)

    def mark(self, where: Array | None = None) -> None:
        """Declare all elements, or the elements in the mask, initialised: for instructions that write only some."""
        self.storage.written.add(self, where)

    # --- views ----------------------------------------------------------------------------------------

    def relaid(self, shape: Sequence[int], strides: Sequence[int], offset: int | None = None) -> NkiTensor:
        """Another layout of the same storage, with this dtype and index and, by default, this offset."""
        start = self.offset if offset is None else offset
        return NkiTensor(self.storage, tuple(shape), tuple(strides), start, self.dtype, self.index, self.fault)

    def _dim(self, dim: int, what: str, partition_allowed: bool = False) -> int:
        if not isinstance(dim, int) or not -self.ndim <= dim < self.ndim:
            raise SimulatorError(f"{what}: dimension {dim!r} of a tensor of shape {self.shape}")
        dim %= self.ndim
        if dim == 0 and not partition_allowed:
            self._keep_partition(what)
        return dim

    def _keep_partition(self, what: str) -> None:
        if self.on_chip:
            raise SimulatorError(f"{what}: the partition dimension of an on-chip tensor cannot change", rule=12)
        if self.index is not None and self.index.kind == "vector":
            raise SimulatorError(f"{what}: dimension 0 is addressed through a vector of indices", rule=19)

    def __getitem__(self, key: Any) -> NkiTensor:
        return resolve_key(self, key)

    def __setitem__(self, key: Any, value: Any) -> None:
        type(self)._assign(self[key], value)

    def slice(self, dim: int, start: int, end: int, step: int = 1) -> NkiTensor:
        dim = self._dim(dim, "slice", partition_allowed=True)
        extent = self.shape[dim]
        if not (isinstance(start, int) and isinstance(end, int) and 0 <= start < end <= extent):
            raise SimulatorError(
                f"slice {start}:{end} of dimension {dim} of {self.shape}: need 0 <= start < end <= {extent}", rule=12
            )
        if not isinstance(step, int) or step < 1:
            raise SimulatorError(f"slice step {step!r}: only positive steps exist", rule=12)
        if dim == 0 and step != 1 and self.on_chip:
            raise SimulatorError(f"slice step {step} on the partition dimension: partitions are contiguous", rule=12)
        if self.index is not None and dim == self.index.dim and (start, end, step) != (0, extent, 1):
            raise SimulatorError(f"slice of dimension {dim}, which is addressed through indices", rule=19)
        shape, strides = list(self.shape), list(self.strides)
        shape[dim] = -(-(end - start) // step)
        offset = self.offset + start * strides[dim]
        strides[dim] *= step
        return self.relaid(shape, strides, offset)

    def select(self, dim: int, index: Any) -> NkiTensor:
        dynamic = isinstance(index, (NkiTensor, VirtualRegister))
        dim = self._dim(dim, "select", partition_allowed=not dynamic)
        if self.index is not None and (dynamic or dim == self.index.dim):
            raise SimulatorError("select on a view that is already addressed through indices", rule=19)
        extent, stride = self.shape[dim], self.strides[dim]
        keep = self.ndim == 2 and self.on_chip if dim else self.on_chip
        shape, strides = list(self.shape), list(self.strides)
        if keep:
            shape[dim] = 1
        else:
            del shape[dim], strides[dim]
            if not shape:
                shape, strides = [1], [1]
        if dynamic:
            at = Index("scalar", index_source(index, self, "select"), stride, extent, None)
            return NkiTensor(self.storage, tuple(shape), tuple(strides), self.offset, self.dtype, at, self.fault)
        if not isinstance(index, (int, np.integer)) or not 0 <= index < extent:
            raise SimulatorError(
                f"index {index!r} of dimension {dim} of {self.shape}: need 0 <= index < {extent}", rule=12
            )
        return self.relaid(shape, strides, self.offset + int(index) * stride)

    def vector_select(self, dim: int, vector_offset: NkiTensor) -> NkiTensor:
        if dim != 0 or self.on_chip:
            raise SimulatorError("vector_select: only dimension 0 of an HBM tensor", rule=19)
        if self.index is not None:
            raise SimulatorError("vector_select on a view that is already addressed through indices", rule=19)
        rows = index_rows(vector_offset)
        at = Index("vector", vector_offset, self.strides[0], self.shape[0], 0)
        return NkiTensor(self.storage, (rows, *self.shape[1:]), self.strides, self.offset, self.dtype, at, self.fault)

    def permute(self, dims: Sequence[int]) -> NkiTensor:
        if sorted(dims) != list(range(self.ndim)):
            raise SimulatorError(
                f"permute {tuple(dims)}: not a permutation of the {self.ndim} dimensions of {self.shape}"
            )
        if dims[0] != 0:
            self._keep_partition("permute")
        return self.relaid([self.shape[d] for d in dims], [self.strides[d] for d in dims])

    def broadcast(self, dim: int, size: int) -> NkiTensor:
        dim = self._dim(dim, "broadcast")
        if self.shape[dim] != 1:
            raise SimulatorError(f"broadcast of dimension {dim} of {self.shape}: its size must be 1")
        shape, strides = list(self.shape), list(self.strides)
        shape[dim], strides[dim] = size, 0
        return self.relaid(shape, strides)

    def expand_dim(self, dim: int) -> NkiTensor:
        if not isinstance(dim, int) or not -self.ndim - 1 <= dim <= self.ndim:
            raise SimulatorError(f"expand_dim: position {dim!r} in a tensor of shape {self.shape}")
        dim %= self.ndim + 1
        if dim == 0:
            self._keep_partition("expand_dim")
        inner = self.shape[dim] * self.strides[dim] if dim < self.ndim else 1
        shape, strides = list(self.shape), list(self.strides)
        shape.insert(dim, 1)
        strides.insert(dim, inner)
        return self.relaid(shape, strides)

    def squeeze_dim(self, dim: int) -> NkiTensor:
        dim = self._dim(dim, "squeeze_dim")
        if self.shape[dim] != 1:
            raise SimulatorError(f"squeeze_dim of dimension {dim} of {self.shape}: its size must be 1")
        shape, strides = list(self.shape), list(self.strides)
        del shape[dim], strides[dim]
        return self.relaid(shape, strides)

    def reshape_dim(self, dim: int, shape: Sequence[int]) -> NkiTensor:
        dim = self._dim(dim, "reshape_dim", partition_allowed=True)
        extent = self.shape[dim]
        parts = _infer(list(shape), extent, "reshape_dim")
        if dim == 0 and parts != [extent]:
            self._keep_partition("reshape_dim")
        strides: list[int] = []
        step = self.strides[dim]
        for part in reversed(parts):
            strides.insert(0, step)
            step *= part
        return self.relaid(
            [*self.shape[:dim], *parts, *self.shape[dim + 1 :]],
            [*self.strides[:dim], *strides, *self.strides[dim + 1 :]],
        )

    def flatten_dims(self, start_dim: int, end_dim: int) -> NkiTensor:
        start = self._dim(start_dim, "flatten_dims")
        end = self._dim(end_dim, "flatten_dims", partition_allowed=True)
        if start > end:
            raise SimulatorError(f"flatten_dims({start_dim}, {end_dim}): the first must not exceed the second")
        merged = merge_strides(self.shape[start : end + 1], self.strides[start : end + 1])
        if merged is None:
            raise SimulatorError(
                f"flatten_dims of {self.shape} with strides {self.strides}: not contiguous there", rule=12
            )
        extent, stride = merged
        return self.relaid(
            [*self.shape[:start], extent, *self.shape[end + 1 :]],
            [*self.strides[:start], stride, *self.strides[end + 1 :]],
        )

    def reshape(self, shape: Sequence[int]) -> NkiTensor:
        wanted = _infer([shape] if isinstance(shape, int) else list(shape), self.size, "reshape")
        fixed = 0
        if self.on_chip or (self.index is not None and self.index.kind == "vector"):
            if wanted[0] != self.shape[0]:
                self._keep_partition(f"reshape of {self.shape} to {tuple(wanted)}")
            fixed = 1
        strides = reshape_strides(self.shape[fixed:], self.strides[fixed:], wanted[fixed:])
        if strides is None:
            raise SimulatorError(
                f"reshape of {self.shape} with strides {self.strides} to {tuple(wanted)}: layout forbids it", rule=12
            )
        return self.relaid(wanted, [*self.strides[:fixed], *strides])

    def rearrange(
        self, src_pattern: Sequence[Any], dst_pattern: Sequence[Any], fixed_sizes: Mapping[str, int] | None = None
    ) -> NkiTensor:
        if len(src_pattern) != self.ndim:
            raise SimulatorError(f"rearrange: {len(src_pattern)} source dimensions for a tensor of shape {self.shape}")
        sizes = dict(fixed_sizes or {})
        names: list[str] = []
        split = self
        for group in src_pattern:
            parts = [group] if isinstance(group, str) else list(group)
            split = split.reshape_dim(len(names), [sizes.get(part, -1) for part in parts])
            names += parts
        flat = [part for group in dst_pattern for part in ([group] if isinstance(group, str) else group)]
        if sorted(flat) != sorted(names):
            raise SimulatorError(f"rearrange: {tuple(dst_pattern)} does not name the dimensions {tuple(names)}")
        result = split.permute([names.index(part) for part in flat])
        for position, group in enumerate(dst_pattern):
            if not isinstance(group, str) and len(group) > 1:
                result = result.flatten_dims(position, position + len(group) - 1)
        return result

    def view(self, dtype: Any) -> NkiTensor:
        """The same bytes as another dtype; the last dimension is scaled by the ratio of item sizes."""
        name = dtype_name(dtype)
        if self.index is not None:
            raise SimulatorError("view(dtype) after a dynamic select", rule=19)
        old, new = self.itemsize, STORAGE[name].itemsize
        if old == new:
            return NkiTensor(self.storage, self.shape, self.strides, self.offset, name, fault=self.fault)
        contiguous = self.strides[-1] == 1 or self.shape[-1] == 1
        others = [self.offset * old, *(s * old for s in self.strides[:-1])]
        if not contiguous or self.shape[-1] * old % new or any(o % new for o in others):
            raise SimulatorError(
                f"view of {self.shape} {self.dtype} as {name}: the last dimension must be contiguous and divisible"
            )
        shape = (*self.shape[:-1], self.shape[-1] * old // new)
        strides = (*(s * old // new for s in self.strides[:-1]), 1)
        return NkiTensor(self.storage, shape, strides, self.offset * old // new, name, fault=self.fault)

    reinterpret_cast = view

    def ap(
        self,
        pattern: Sequence[Sequence[int]],
        offset: int | None = None,
        scalar_offset: Any = None,
        vector_offset: NkiTensor | None = None,
        indirect_dim: int = 0,
        dtype: Any = None,
    ) -> NkiTensor:
        """Access pattern [[stride, count], ...] over the storage itself (nki-aps.rst)."""
        return access_pattern(self, pattern, offset, scalar_offset, vector_offset, indirect_dim, dtype)

    def indirect(self, index: NkiTensor, num_elem: int | None = None) -> NkiTensor:
        raise SimulatorError(
            "tensor indirection (.indirect) is not implemented by this simulator: it exists on trn3 only"
        )


def _infer(shape: list[int], size: int, what: str) -> list[int]:
    """The shape with -1 replaced, checked against the number of elements."""
    known = 1
    for extent in shape:
        if not isinstance(extent, (int, np.integer)) or (extent < 1 and extent != -1):
            raise SimulatorError(f"{what}: size {extent!r} in {tuple(shape)}: need positive integers")
        known *= extent if extent != -1 else 1
    if shape.count(-1) > 1 or (-1 in shape and size % known) or (-1 not in shape and known != size):
        raise SimulatorError(f"{what}: {tuple(shape)} does not hold {size} elements")
    return [size // known if extent == -1 else int(extent) for extent in shape]


def whole(storage: Storage) -> NkiTensor:
    """The view of a storage that its allocation returns."""
    strides: list[int] = []
    step = 1
    for extent in reversed(storage.shape):
        strides.insert(0, step)
        step *= extent
    return NkiTensor(storage, storage.shape, tuple(strides), 0, storage.dtype)
