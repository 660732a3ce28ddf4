"""python -m benchmarks NAME [options]: one module of this folder each, printed with versions and threads."""

from __future__ import annotations

import importlib
import pathlib
import sys

HERE = pathlib.Path(__file__).parent
NAMES = sorted(p.stem.replace("_", "-") for p in HERE.glob("[a-z]*.py"))


def main(argv: list[str]) -> int:
    if not argv or argv[0] not in NAMES:
        print(f"usage: python -m benchmarks {{{', '.join(NAMES)}}} [options]", file=sys.stderr)
        return 2
    result: int = importlib.import_module(f"benchmarks.{argv[0].replace('-', '_')}").main(argv[1:])
    return result


sys.exit(main(sys.argv[1:]))
