"""Run the examples of a page, and put what they print beneath them: conf.py does so for every page that is built."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
KINDS = (r"python", r"sh", r"\{code-block\} sh\n:class: fails\n", r"\{code-block\} text\n:class: cell")
BLOCK = re.compile(rf"^```({'|'.join(KINDS)})\n(.*?)^```\n", re.M | re.S)
SHELL = "from IPython.core.interactiveshell import InteractiveShell; shell = InteractiveShell.instance()"
COLOUR = re.compile(r"\x1b\[[0-9;]*m")
MARK = "\x1e"  # printed after each block; no program prints it
LINES, KEPT = 44, 36  # longer outputs are cut to the second number of lines
TIMEOUT_S = 600


def blocks(text: str) -> list[tuple[str, str]]:
    """Kind and source of each example of a page's text, in order."""
    return BLOCK.findall(text)


def program(text: str) -> str:
    """A page's examples as one program: commands must succeed, or fail if marked so; IPython runs cells."""
    lines = ["import subprocess"]
    if any("cell" in kind for kind, _ in blocks(text)):
        lines.append(SHELL)
    for kind, source in blocks(text):
        if kind == "python":
            lines.append(source)
        elif "cell" in kind:
            lines.append(f"shell.run_cell({source!r}, store_history=True).raise_error()")
        else:
            expected = "!= 0" if "fails" in kind else "== 0"
            for command in filter(None, source.replace("\\\n", "").splitlines()):
                lines.append(f"assert subprocess.run({command!r}, shell=True).returncode {expected}, {command!r}")
        lines.append(f"print({MARK!r}, flush=True)")
    return "\n".join(lines)


def run(text: str, folder: Path) -> list[str]:
    """What each example of a page prints, run in ``folder``; RuntimeError if one fails."""
    shutil.copytree(
        ROOT / "examples", folder / "examples", ignore=shutil.ignore_patterns("__pycache__"), dirs_exist_ok=True
    )
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    settings = {
        "PATH": path, "PYTHONPATH": str(ROOT), "OPENBLAS_NUM_THREADS": "2", "PYTHONUNBUFFERED": "1", "COLUMNS": "100",
        "MPLBACKEND": "svg", "SOURCE_DATE_EPOCH": "0",
    }  # fmt: skip
    done = subprocess.run(
        [sys.executable, "-c", program(text)], cwd=folder, env={**os.environ, **settings}, stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT, text=True, timeout=TIMEOUT_S, check=False,
    )  # fmt: skip
    if done.returncode:
        raise RuntimeError(done.stdout)
    return [shortened(part, folder) for part in done.stdout.split(f"{MARK}\n")[:-1]]


def shortened(printed: str, folder: Path) -> str:
    """An output without this machine's folders, and without the middle of a long one."""
    for place, name in ((folder, "."), (ROOT, "trnpy"), (Path.home(), "~")):
        printed = printed.replace(str(place), name)
    lines = [line.rstrip() for line in COLOUR.sub("", printed).rstrip().splitlines()]
    if len(lines) > LINES:
        lines = [*lines[:KEPT], f"... {len(lines) - KEPT} more lines"]
    return "\n".join(lines)


def with_outputs(text: str, printed: list[str]) -> str:
    """A page's text, each example followed by what it printed."""
    left = iter(printed)

    def shown(found: re.Match[str]) -> str:
        said = next(left)
        return found[0] + (f"\n````{{code-block}} text\n:class: output\n\n{said}\n````\n" if said else "")

    return BLOCK.sub(shown, text)
