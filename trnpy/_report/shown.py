"""What a notebook shows: tables, pages in frames, and its cells by their numbers."""

from __future__ import annotations

import html
import sys
from collections.abc import Iterable, Sequence
from typing import Any

LEFT = ' style="text-align:left"'


def table(caption: str, rows: Iterable[Sequence[str]], header: Sequence[str] = ()) -> str:
    """A table in the notebook's own style."""

    def line(cells: Sequence[str], tag: str) -> str:
        return f"<tr>{''.join(f'<{tag}{LEFT}>{html.escape(cell)}</{tag}>' for cell in cells)}</tr>"

    head = f"<thead>{line(header, 'th')}</thead>" if header else ""
    body = "".join(line(cells, "td") for cells in rows)
    caption = f"<caption{LEFT}>{html.escape(caption)}</caption>"
    return f"<table>{caption}{head}<tbody>{body}</tbody></table>"


def frame(page: str, title: str) -> str:
    """A page in a frame, so that its style does not affect the notebook."""
    return (
        f'<iframe srcdoc="{html.escape(page)}" sandbox="allow-scripts" title="{html.escape(title)}" '
        'style="width:100%;height:720px;border:0"></iframe>'
    )


def source(file: str) -> str:
    """The name of a file of code: "Cell In[3]" for a notebook's cell, which IPython compiles under a temporary name."""
    shell: Any = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    known = shell.compile.format_code_name(file) if shell is not None else None
    return " ".join(known) if known else file
