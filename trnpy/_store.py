"""Small files beside the calibration, in the user's cache: a reader sees the old one or the new one, never a half."""

from __future__ import annotations

import json
import os
import tempfile
from pathlib import Path
from typing import Any


def folder() -> Path:
    """Where trnpy keeps what it has measured."""
    import platformdirs

    return Path(platformdirs.user_cache_dir("trnpy"))


def refused() -> str:
    """Why nothing can be kept in ``folder()``; "" where it can."""
    try:
        folder().mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder()):
            return ""
    except OSError as why:
        return str(why)


def write(path: Path, content: Any) -> Path:
    """``content`` as JSON."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=path.stem)
    try:
        with os.fdopen(handle, "w") as file:
            json.dump(content, file, indent=1)
        os.replace(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise
    return path
