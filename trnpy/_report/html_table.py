"""HTML for notebooks: tables, and pages in frames."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

LEFT = ' style="text-align:left"'


def table(caption: str, rows: Iterable[Sequence[str]], header: Sequence[str] = ()) -> str:
    """A table in the notebook's own style."""
    import html  # imported here: the import takes 1.4 ms, and only notebooks show tables

    def line(cells: Sequence[str], tag: str) -> str:
        return f"<tr>{''.join(f'<{tag}{LEFT}>{html.escape(cell)}</{tag}>' for cell in cells)}</tr>"

    head = f"<thead>{line(header, 'th')}</thead>" if header else ""
    body = "".join(line(cells, "td") for cells in rows)
    caption = f"<caption{LEFT}>{html.escape(caption)}</caption>"
    return f"<table>{caption}{head}<tbody>{body}</tbody></table>"


def frame(page: str, title: str) -> str:
    """A page in a frame, so that its style does not affect the notebook."""
    import html

    return (
        f'<iframe srcdoc="{html.escape(page)}" sandbox="allow-scripts" title="{html.escape(title)}" '
        'style="width:100%;height:720px;border:0"></iframe>'
    )
