"""``python -m trnpy blocks``: the blocks of a sparse matrix in a file, and predicted times of a product with it."""

from __future__ import annotations

import argparse
import zipfile
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import scipy.io
from scipy import sparse

from trnpy._settings.policy import CHOICES, policy
from trnpy.sparse._analysis import block_analysis, morton_order
from trnpy.sparse._classes import adopt
from trnpy.sparse._tiles import TILE


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        self.exit(2, f"trnpy blocks: {message}\n")


def main(argv: list[str]) -> int:
    """Run the command. Returns 0; exits with 2 and one line for wrong arguments or files."""
    parser = _Parser(prog="python -m trnpy blocks", description="The 128 x 128 blocks of a sparse matrix in a file.")
    add = parser.add_argument
    add("matrix", type=Path, help="an .npz file of scipy.sparse.save_npz, or a Matrix Market file")
    add("--columns", type=int, default=TILE, help="columns of the dense factor (default %(default)s)")
    add("--order", choices=("rcm", "morton"), help="reorder rows and columns before counting blocks")
    add("--points", type=Path, help="for morton: an .npy file (rows, dimensions) with the centre of each row")
    add("--machine", choices=CHOICES["machine"], help="machine to model (default: TRNPY_MACHINE)")
    add("--html", type=Path, metavar="FILE", help="write a picture of the blocks")
    options = parser.parse_args(argv)
    if (options.order == "morton") != (options.points is not None):
        parser.error("--order morton and --points go together")
    try:
        with policy(**({} if options.machine is None else {"machine": options.machine})):
            order = morton_order(np.load(options.points)) if options.points is not None else options.order
            block_analysis(_read(options.matrix), options.columns, order, options.html)
    except (OSError, ValueError, zipfile.BadZipFile) as why:
        parser.error(f"{options.matrix}: {getattr(why, 'strerror', None) or why}")
    return 0


def _read(path: Path) -> Any:
    """The sparse matrix in an .npz or Matrix Market file; ValueError if it is dense."""
    if path.suffix == ".npz":
        try:
            return adopt(sparse.load_npz(path))
        except (EOFError, ValueError, zipfile.BadZipFile) as why:  # NumPy's text proposes allow_pickle
            raise ValueError("expected a file that scipy.sparse.save_npz has written") from why
    matrix = scipy.io.mmread(path, spmatrix=False)
    if not sparse.issparse(matrix):
        raise ValueError("a dense matrix: expected a sparse one")
    return adopt(sparse.csr_array(matrix))
