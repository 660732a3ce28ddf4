"""Sharded arrays straight from files: each rank reads its own range."""

from __future__ import annotations

import os
from typing import Any

import numpy as np

from trnpy.dist._collectives import even
from trnpy.dist._sharded import Sharded, checked, cut
from trnpy.dist._start import comm as process_comm


def load(path: str | os.PathLike[str], axis: int = 0, name: str | None = None) -> Sharded:
    """Read an array from a file, each rank its own range along an axis; no rank holds the whole array.

    Parameters
    ----------
    path : path_like
        A ``.npy`` file, or an HDF5 file. All ranks must see it under this name.
    axis : int
        The axis that is cut, as evenly as can be.
    name : str, optional
        The dataset of an HDF5 file; it may be omitted if the file has only one. A group is read in the layout of
        PySCF's density-fitted integrals (``"j3c"``): its datasets are named by numbers and are joined in that order
        along the last axis.

    Returns
    -------
    Sharded
        The array in pieces.

    Raises
    ------
    ValueError
        If the array has no such ``axis``, or if ``name`` is omitted and the file has several datasets.
    KeyError
        If the file has no dataset ``name``.

    Examples
    --------
    >>> import numpy as np, pathlib, tempfile
    >>> from trnpy import dist
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = pathlib.Path(folder, "b.npy")
    ...     np.save(path, np.ones((6, 2)))
    ...     dist.load(path)
    Sharded((6, 2), float64, axis 0 at [0, 6], rank 0 of 1)
    """
    if os.fspath(path).endswith(".npy"):
        return _taken([np.load(path, mmap_mode="r")], axis)
    os.environ.setdefault("HDF5_USE_FILE_LOCKING", "FALSE")  # many ranks read one file, some of them over NFS
    import h5py

    with h5py.File(path, "r") as file:
        return _taken(_datasets(file, name), axis)


def _datasets(file: Any, name: str | None) -> list[Any]:
    """The datasets to be joined along their last axis."""
    found = file if name is None else file[name]
    while hasattr(found, "keys"):
        names = list(found)
        if len(names) != 1 and not (names and all(n.isdigit() for n in names)):
            raise ValueError(f"{file.filename} has {', '.join(names) or 'no dataset'}: expected name=, one of these")
        if len(names) > 1 or not hasattr(found[names[0]], "keys"):
            return [found[n] for n in sorted(names, key=lambda n: (len(n), n))]
        found = found[names[0]]
    return [found]


def _taken(parts: list[Any], axis: int) -> Sharded:
    """This rank's range of ``parts`` joined along their last axis."""
    comm = process_comm()
    last = len(parts[0].shape) - 1
    shape = (*parts[0].shape[:last], sum(part.shape[last] for part in parts))
    axis = checked(axis, shape)
    edges = even(shape[axis], comm.size)
    first, end = edges[comm.rank], edges[comm.rank + 1]
    local = np.empty((*shape[:axis], end - first, *shape[axis + 1 :]), parts[0].dtype)
    start = 0  # of a part along the last axis
    for part in parts:
        stop = start + part.shape[last]
        if axis == last:
            i, j = max(first, start), min(end, stop)
            if i < j:
                cut(local, axis, i - first, j - first)[...] = cut(part, axis, i - start, j - start)
        else:
            cut(local, last, start, stop)[...] = cut(part, axis, first, end)
        start = stop
    return Sharded(local, axis, shape, comm, edges)
