"""Writing of report files, which are replaced completely or not at all, and display names of source files."""

from __future__ import annotations

import contextlib
import os
import stat
import sys
from threading import get_ident
from typing import Any


def _private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)


def write(path: str | os.PathLike[str], text: str) -> None:
    """Replace the file at ``path`` in one step. Only its owner can read a new file, because it names source files."""
    if os.path.exists(path) and not os.path.isfile(path):  # a terminal or a pipe cannot be replaced
        with open(path, "w", encoding="utf-8", errors="backslashreplace") as file:
            file.write(text)
        return
    target = os.path.realpath(path)  # replaces the file that a link points to, not the link
    temporary = f"{target}.{os.getpid()}.{get_ident()}"
    try:
        # File names may contain bytes that are not UTF-8; these are written escaped.
        with open(temporary, "x", encoding="utf-8", errors="backslashreplace", opener=_private) as file:
            if os.path.exists(target):
                os.chmod(temporary, stat.S_IMODE(os.stat(target).st_mode))
            file.write(text)
        os.replace(temporary, target)
    except BaseException:  # even an interrupt leaves no temporary file
        with contextlib.suppress(FileNotFoundError):
            os.unlink(temporary)
        raise


def source(file: str) -> str:
    """The display name of a source file: "Cell In[3]" for a notebook cell, which IPython compiles under another."""
    shell: Any = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    known = shell.compile.format_code_name(file) if shell is not None else None
    return " ".join(known) if known else file
