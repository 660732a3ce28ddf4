"""The integrals (ia|L) of the occupied orbitals of one rank: in memory, or in a file without a name."""

from __future__ import annotations

import os
import tempfile
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np

from trnpy._engine.residency import Resident
from trnpy.chem._rows import REAL


class Share:
    """Matrices (nvir, naux) of the orbitals from ``first`` to ``last``, stored by columns, then read by orbitals.

    With ``folder`` they are in a file there, which disappears when the process ends, even if it is killed.
    """

    def __init__(self, first: int, last: int, nvir: int, naux: int, folder: str | None) -> None:
        self.first, self.last, self.nvir, self.naux, self._folder = first, last, nvir, naux, folder
        self._columns: list[tuple[int, int, int]] = []  # first and last column of each block, its place in the file
        self._file: Any = None if folder is None else self._opened()
        self._array = np.empty((last - first if folder is None else 0, nvir, naux))

    def add(self, column: int, block: np.ndarray) -> None:
        """Store ``block`` (orbitals, nvir, columns), which begins at ``column``."""
        if self._file is None:
            self._array[:, :, column : column + block.shape[2]] = block
        elif block.size:
            self._columns.append((column, column + block.shape[2], self._file.seek(0, os.SEEK_END)))
            self._file.write(np.ascontiguousarray(block).data)

    def resident(self) -> Resident:
        """Until it is closed, a device keeps its form of the orbitals that are in memory."""
        return Resident([self._array] if self._array.size else [])

    def finish(self, fit: Callable[[np.ndarray], np.ndarray]) -> None:
        """Apply ``fit``, (nvir, naux) -> (nvir, naux), to each orbital once all columns are there."""
        if self._file is None:
            for b in self._array:
                b[...] = fit(b)
            self._array.flags.writeable = False  # then a device-resident copy is used without comparing fingerprints
            return
        ordered = self._opened()
        b = np.empty((self.nvir, self.naux))
        for x in range(self.last - self.first):
            for column, end, start in self._columns:
                size = self.nvir * (end - column) * REAL.itemsize
                b[:, column:end] = _read(self._file, start + x * size, (self.nvir, end - column))
            ordered.write(np.ascontiguousarray(fit(b)).data)
        self._file.close()
        self._file, self._columns = ordered, []

    def read(self, first: int, last: int) -> np.ndarray:
        """The matrices of the orbitals from ``first`` to ``last``, all of which this rank owns."""
        first, last = first - self.first, last - self.first
        if self._file is None:
            return self._array[first:last]
        shape = last - first, self.nvir, self.naux
        return _read(self._file, first * self.nvir * self.naux * REAL.itemsize, shape)

    def _opened(self) -> Any:
        file = tempfile.TemporaryFile(dir=self._folder)  # noqa: SIM115 - closed with the share
        weakref.finalize(self, file.close)
        return file


def _read(file: Any, start: int, shape: tuple[int, ...]) -> np.ndarray:
    block = np.empty(shape)
    file.seek(start)
    if file.readinto(block.reshape(-1).view(np.uint8).data) != block.nbytes:
        raise OSError(f"{file.name}: shorter than the data written to it")
    return block
