"""The style sheet of the HTML report, and the script that sorts its tables: report.css and report.js."""

from __future__ import annotations

from pathlib import Path

_FOLDER = Path(__file__).parent
STYLE = "\n" + (_FOLDER / "report.css").read_text(encoding="utf-8")
SCRIPT = "\n" + (_FOLDER / "report.js").read_text(encoding="utf-8")
