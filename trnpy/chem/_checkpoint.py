"""Finished pairs of an MP2 calculation in a folder, from which any number of ranks goes on after a kill."""

from __future__ import annotations

import contextlib
import os
import time
import zipfile
import zlib
from pathlib import Path

import numpy as np

from trnpy.dist._collectives import Communicator

EVERY_S = 30.0  # between writes of a rank: a killed run loses no more


class Checkpoint:
    """The pairs of the calculation with ``digest``, of which each rank writes a file of its own.

    The file of a rank has all pairs that were finished when the run began, and its own. It replaces the one before at
    once, so a file is never half written, and no pair is lost when the next run has another number of ranks.
    """

    def __init__(self, folder: Path, digest: str, every_s: float = EVERY_S) -> None:
        self._folder, self._digest, self._every_s, self._written = folder, np.array(digest), every_s, time.monotonic()

    def read(self, comm: Communicator, pairs: np.ndarray) -> np.ndarray:
        """``pairs`` with those of the folder in place of NaN, the same on all ranks: the first one reads.

        It also removes what runs that were killed in the middle of a write have left.
        """
        for part in self._folder.glob("pairs-*.part") if comm.rank == 0 else ():
            part.unlink()
        for path in sorted(self._folder.glob("pairs-*.npz")) if comm.rank == 0 else ():
            if found := read(path, self._digest):
                pairs = np.where(np.isnan(pairs), found["pairs"], pairs)
        return comm.bcast(pairs)

    def write(self, comm: Communicator, pairs: np.ndarray) -> None:
        """Write the pairs of this rank, if it has not just done so."""
        if time.monotonic() - self._written >= self._every_s:
            path = self._folder / f"pairs-{comm.rank}.npz"
            replace(path, digest=self._digest, pairs=pairs)
            self._written = time.monotonic()


def read(path: Path, digest: np.ndarray) -> dict[str, np.ndarray]:
    """The arrays of a file; none if there is no such file, if it is of another calculation, or if it is damaged."""
    damages = EOFError, ValueError, KeyError, zipfile.BadZipFile, zlib.error  # empty, no archive, other names, bits
    with contextlib.suppress(FileNotFoundError, *damages), path.open("rb") as raw, np.load(raw) as file:
        if file["digest"] == digest:
            return dict(file)
    return {}


def replace(path: Path, **arrays: np.ndarray) -> None:
    """Put a file of ``arrays`` in the place of ``path`` at once; after an error ``path`` is what it was."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f"{path.name}.part")  # what a kill leaves behind is overwritten by the next run
    with part.open("wb") as file:
        try:
            np.savez(file, allow_pickle=False, **arrays)
            file.flush()
            os.fsync(file.fileno())
            os.replace(part, path)
        except BaseException:  # an interrupt, too, leaves no file behind
            with contextlib.suppress(OSError):
                part.unlink()
            raise
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
