"""nl.NKIObject: the base of classes that kernels may use."""

from __future__ import annotations

from typing import Any


class NKIObject:
    """Fields are the annotations of the class; without an ``__init__`` of its own it takes them in order.

    A field that is not given has the class attribute's value, or None (nki-language-guide.rst, "Class
    Support"); then ``__post_init__`` runs.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        fields = list(vars(type(self)).get("__annotations__", {}))
        given = dict(zip(fields, args, strict=False)) | kwargs
        unknown = [name for name in given if name not in fields]
        if len(args) > len(fields) or unknown:
            raise TypeError(f"{type(self).__name__}({', '.join(fields)}) got {args} {kwargs}")
        for name in fields:
            setattr(self, name, given.get(name, getattr(type(self), name, None)))
        self.__post_init__()

    def __post_init__(self) -> None:
        pass
