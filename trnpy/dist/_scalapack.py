"""Eigenvectors with ScaLAPACK, if the program has loaded it into its process: trnpy loads no library itself."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np

from trnpy.dist._panel_factors import Panels
from trnpy.dist._sharded import Sharded

ROUTINES = {"f": "pssyevd_", "d": "pdsyevd_", "F": "pcheevd_", "D": "pzheevd_"}
DENSE = 1  # the type of a descriptor


def eigenvectors(a: Sharded) -> Sharded | None:
    """Eigenvectors of Hermitian a (n, n), unchecked; None if ScaLAPACK is not loaded or does not converge.

    Each rank has panels of columns, on a grid of one row. All ranks of MPI take part.
    """
    library, name = ctypes.CDLL(None), ROUTINES[a.dtype.char]
    if not a.comm.allreduce(int(a.comm.world and hasattr(library, name)), "min"):
        return None
    panels = Panels(a)
    grid = _Grid(library, panels)
    try:
        info, vectors = grid.solved(getattr(library, name)) if grid.fits else (1, panels.local)
    finally:
        library.blacs_gridexit_(_integer(grid.context))
    if info:
        return None
    panels.local = vectors
    return panels.sharded()


class _Grid:
    """The ranks as a grid of one row, and the panels of a matrix on it."""

    def __init__(self, library: Any, panels: Panels) -> None:
        self.panels = panels
        context, info = ctypes.c_int64(), ctypes.c_int64()
        library.blacs_get_(_integer(-1), _integer(0), ctypes.byref(context))
        library.blacs_gridinit_(ctypes.byref(context), b"Row", _integer(1), _integer(panels.comm.size))
        self.context = ctypes.c_int32(context.value & 0xFFFFFFFF).value
        n, width = panels.n, panels.width
        # Twice as long, in case the library has 64-bit integers: such a library is not used.
        self.descriptor = np.zeros(18, np.int32)
        sizes = [_integer(i) for i in (n, n, width, width, 0, 0, self.context, max(n, 1))]
        library.descinit_(_pointer(self.descriptor), *sizes, ctypes.byref(info))
        self.fits = self.descriptor[:9].tolist() == [DENSE, self.context, n, n, width, width, 0, 0, max(n, 1)]

    def solved(self, routine: Any) -> tuple[int, np.ndarray]:
        """The routine's info, 0 on success, and the columns of the eigenvectors of this rank."""
        matrix = np.array(self.panels.local, order="F")
        vectors, real = np.zeros_like(matrix), matrix.real.dtype
        values, info = np.empty(self.panels.n, real), ctypes.c_int64()
        one, n, descriptor = _integer(1), _integer(self.panels.n), _pointer(self.descriptor)
        kinds = [matrix.dtype, real] if matrix.dtype.kind == "c" else [matrix.dtype]
        spaces = [np.zeros(1, kind) for kind in (*kinds, np.dtype(np.int32))]
        for sizes in ([-1] * len(spaces), None):  # the first call queries the workspace
            if sizes is None:
                # A size in single precision may have been rounded down. In MKL 2026.2, pslasrt uses more than it
                # requests if a rank has less than one panel, and pdormtr if the whole matrix has less than one panel.
                more = (self.panels.n + 2 * self.panels.width) * self.panels.width
                sizes = [int(float(x[0].real) * (1 + 2.0**-20)) + more for x in spaces]
                spaces = [np.empty(size, x.dtype) for size, x in zip(sizes, spaces, strict=True)]
            work = [y for x, size in zip(spaces, sizes, strict=True) for y in (_pointer(x), _integer(size))]
            routine(
                b"V", b"L", n, _pointer(matrix), one, one, descriptor, _pointer(values),
                _pointer(vectors), one, one, descriptor, *work, ctypes.byref(info),
            )  # fmt: skip
            code = ctypes.c_int32(info.value & 0xFFFFFFFF).value
            if code < 0:
                raise RuntimeError(f"ScaLAPACK refused argument {-code} of an eigenproblem of order {self.panels.n}")
        return code, vectors


def _integer(value: int) -> Any:
    """A Fortran integer, of 32 or 64 bits."""
    return ctypes.byref(ctypes.c_int64(value))


def _pointer(x: np.ndarray) -> Any:
    return x.ctypes.data_as(ctypes.c_void_p)
