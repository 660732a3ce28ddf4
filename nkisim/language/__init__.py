"""nki.language: dtypes, buffers, tensors, control flow and the convenience layer over instructions."""

from __future__ import annotations

from typing import Any

from nkisim.chip.dtypes import STORAGE
from nkisim.chip.errors import MissingName
from nkisim.chip.names import MemoryRegion
from nkisim.chip.objects import NKIObject
from nkisim.chip.tensor import NkiTensor
from nkisim.language import _control, _creation, _elementwise, _grids, _random, _reduction
from nkisim.language._tile_size import TileSize


class Operator:
    """A named operation that is not a function: for ``op=`` only."""

    def __init__(self, name: str) -> None:
        self.__name__ = self.nki_operator = name

    def __repr__(self) -> str:
        return f"nl.{self.__name__}"


_NAMES: dict[str, Any] = {
    **{name: name for name in STORAGE},
    **{name: Operator(name) for name in ("average", "prelu", "bypass")},
    **{
        name: getattr(module, name)
        for module in (_control, _creation, _elementwise, _grids, _random, _reduction)
        for name in module.__all__
    },
    "DType": str,
    "range": _control.affine_range,  # undocumented, but nki-library uses it
    "MemoryRegion": MemoryRegion,
    "NKIObject": NKIObject,
    "NkiTensor": NkiTensor,
    "sbuf": MemoryRegion.sbuf,
    "psum": MemoryRegion.psum,
    "hbm": MemoryRegion.private_hbm,
    "private_hbm": MemoryRegion.private_hbm,
    "shared_hbm": MemoryRegion.shared_hbm,
    "tile_size": TileSize(),
}

REMOVED = {
    "arange": "index with slices or .ap",
    "mgrid": "index with slices or .ap",
    "par_dim": "the first dimension is the partition dimension",
    "gather": "use .ap(vector_offset=...)",
}
"""Names of older dialects, and their replacements."""


globals().update(_NAMES)
for _name in (*_elementwise.__all__, "max", "min"):
    _NAMES[_name].nki_operator = _name  # instructions recognise ``op=nl.add`` through this attribute


def __getattr__(name: str) -> Any:
    if name.startswith("_"):
        raise AttributeError(name)
    hint = f": {REMOVED[name]}" if name in REMOVED else ""
    raise MissingName(f"nl.{name} does not exist in NKI 0.6{hint}", rule=10)
