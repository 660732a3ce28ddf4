"""python -m benchmarks NAME [--threads 1|2|...|unset] [options]: runs the module NAME of this folder.

Benchmarks of this computer's processor run three times: with one thread of BLAS, with two, and with the libraries'
own choice; or once, if ``--threads`` or OPENBLAS_NUM_THREADS gives the number.
"""

from __future__ import annotations

import argparse
import importlib
import os
import pathlib
import sys

from benchmarks import _threads

HERE = pathlib.Path(__file__).parent
NAMES = sorted(p.stem.replace("_", "-") for p in HERE.glob("[a-z]*.py"))
# Figures of a modelled device.
MODELLED = ("ccsd", "chem-model", "device", "eigh", "nki-model", "scf", "sparse-model", "stay")
OWN_THREADS = (*MODELLED, "forced", "gains", "programs", "scale")  # and these start processes with threads of their own
RESTING = ("einsum", "gains", "host-path", "linalg", "mp2", "routes")  # these wait until OpenBLAS's threads sleep


def main(argv: list[str]) -> int:
    if not argv or argv[0] not in NAMES:
        print(f"usage: python -m benchmarks {{{', '.join(NAMES)}}} [--threads N|unset] [options]", file=sys.stderr)
        return 2
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("--threads")
    chosen, options = parser.parse_known_args(argv[1:])
    if argv[0] in RESTING:
        os.environ.setdefault(*_threads.SLEEP)
    if chosen.threads is not None:
        given = _threads.environment(chosen.threads)
        os.environ.clear()
        os.environ.update(given)  # before NumPy is imported
    elif _threads.VARIABLE not in os.environ and argv[0] not in OWN_THREADS and not {"-h", "--help"} & set(options):
        return _threads.each(argv[0], options)
    result: int = importlib.import_module(f"benchmarks.{argv[0].replace('-', '_')}").main(options)
    return result


sys.exit(main(sys.argv[1:]))
