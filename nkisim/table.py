"""Tables on the terminal: drawn with rich if it is installed, otherwise in plain columns."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Sequence
from typing import TextIO

WIDE = 200  # characters per line of a file or pipe


def print_table(title: str, heads: Sequence[str], lines: Sequence[Sequence[str]], file: TextIO | None = None) -> None:
    """Print rows of strings under their heads; the caller formats numbers."""
    file = file or sys.stdout
    if importlib.util.find_spec("rich") is None:
        print(plain(title, heads, lines), file=file)
        return
    import rich.box
    import rich.console
    import rich.table

    table = rich.table.Table(title=title, box=rich.box.SIMPLE_HEAD, title_justify="left", show_header=any(heads))
    for head in heads:
        table.add_column(head, overflow="fold")
    for line in lines:
        table.add_row(*line)
    width = None if file.isatty() else WIDE
    rich.console.Console(file=file, width=width, highlight=False, markup=False).print(table)


def plain(title: str, heads: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    """The same table as text, its columns padded to their longest entry."""
    shown = [tuple(heads), *map(tuple, lines)] if any(heads) else list(map(tuple, lines))
    widths = [max((len(line[i]) for line in shown), default=0) for i in range(len(heads))]
    body = ("  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in shown)
    return "\n".join([title, *body])
