"""Finished pairs of an MP2 calculation in a folder, from which any number of ranks can continue after a kill."""

from __future__ import annotations

import contextlib
import os
import time
import zipfile
import zlib
from pathlib import Path

import numpy as np

from trnpy.dist._collectives import Communicator

EVERY_S = 30.0  # between writes of a rank: a killed run loses at most this much work


class Checkpoint:
    """The pairs of the calculation with ``digest``, of which each rank writes a file of its own.

    The file of a rank has its own pairs and all pairs that were finished when the run began. Each write replaces the
    file atomically, so no file is half written and no pair is lost if the next run has another number of ranks.
    """

    def __init__(self, folder: Path, digest: str, every_s: float = EVERY_S) -> None:
        self._folder, self._digest, self._every_s, self._written = folder, np.array(digest), every_s, time.monotonic()

    def read(self, comm: Communicator, pairs: np.ndarray) -> np.ndarray:
        """``pairs`` with NaN replaced by the folder's values, the same on all ranks; only the first rank reads.

        It also removes partial files of runs that were killed in the middle of a write.
        """
        for part in self._folder.glob("pairs-*.part") if comm.rank == 0 else ():
            part.unlink()
        for path in sorted(self._folder.glob("pairs-*.npz")) if comm.rank == 0 else ():
            if found := read(path, self._digest):
                pairs = np.where(np.isnan(pairs), found["pairs"], pairs)
        return comm.bcast(pairs)

    def write(self, comm: Communicator, pairs: np.ndarray) -> None:
        """Write the pairs of this rank unless they have just been written."""
        if time.monotonic() - self._written >= self._every_s:
            path = self._folder / f"pairs-{comm.rank}.npz"
            replace(path, digest=self._digest, pairs=pairs)
            self._written = time.monotonic()


def read(path: Path, digest: np.ndarray) -> dict[str, np.ndarray]:
    """The arrays of a file; none if the file is missing, damaged, or from another calculation."""
    damages = EOFError, ValueError, KeyError, zipfile.BadZipFile, zlib.error  # empty, no archive, other names, bits
    with contextlib.suppress(FileNotFoundError, *damages), path.open("rb") as raw, np.load(raw) as file:
        if file["digest"] == digest:
            return dict(file)
    return {}


def replace(path: Path, **arrays: np.ndarray) -> None:
    """Replace ``path`` atomically by a file of ``arrays``; if an error occurs, ``path`` is unchanged."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f"{path.name}.part")  # the next run overwrites the partial file of a killed one
    with part.open("wb") as file:
        try:
            np.savez(file, allow_pickle=False, **arrays)
            file.flush()
            os.fsync(file.fileno())
            os.replace(part, path)
        except BaseException:  # remove the file after an interrupt, too
            with contextlib.suppress(OSError):
                part.unlink()
            raise
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
