"""Small files in the user's cache: checked when read, and written in one step.

A file is JSON: ``schema``, ``key`` (its validity), ``checksum`` and ``content``. An invalid file is ignored and never
an error; ``Stored.ignored`` gives the doctor the reason.
"""

from __future__ import annotations

import contextlib
import os
import stat
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Generic, TypeVar

from trnpy._base.records import record

SCHEMA = 1  # version of the file's layout
LARGEST = 2**24  # bytes of a file that is read; files of trnpy stay under a megabyte

T = TypeVar("T")


@record()
class Stored(Generic[T]):
    """The content of a file; None if there is no file, or if it is ignored for the reason in ``ignored``."""

    content: T | None
    ignored: str = ""


def folder() -> Path:
    """The folder of trnpy's measurements, in the user's cache."""
    given = os.environ.get("XDG_CACHE_HOME", "")
    if sys.platform == "linux" and (not given or os.path.isabs(given)):
        return Path(given or os.path.expanduser("~/.cache"), "trnpy")  # as platformdirs, which takes 6 ms to load
    import platformdirs

    return Path(platformdirs.user_cache_dir("trnpy"))


def refused() -> str:
    """The reason why files cannot be written in ``folder()``; empty if they can."""
    import tempfile

    try:
        folder().mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder()):
            return ""
    except OSError as why:
        return str(why)


def _checksum(content: Any) -> str:
    import hashlib
    import json

    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def write(path: Path, content: Any, key: str) -> Path:
    """Write ``content``, valid for ``key``, in one step: a reader sees the old file or the new one."""
    framed = {"schema": SCHEMA, "key": key, "checksum": _checksum(content), "content": content}
    import json
    import tempfile  # not at the top: it loads a dozen modules, and most programs never write

    path.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=path.stem)
    try:
        with os.fdopen(handle, "w") as file:
            json.dump(framed, file, indent=1)
        os.replace(temporary, path)
    except BaseException:  # an interrupt must not leave a file behind either
        with contextlib.suppress(FileNotFoundError):  # it is in its place already
            os.unlink(temporary)
        raise
    return path


def read(path: Path, key: str, parse: Callable[[Any], T]) -> Stored[T]:
    """Read the content that was written for ``key``, converted by ``parse``.

    ``parse`` raises KeyError, ValueError, TypeError or AttributeError for unexpected content.
    """
    try:
        text = _text(path)
        import json  # imported after the file is found: it takes 2 ms

        document = json.loads(text)
        if document["schema"] != SCHEMA or document["checksum"] != _checksum(document["content"]):
            return Stored(None, f"{path} is damaged, or of another version of trnpy")
        if document["key"] != key:
            return Stored(None, f"{path} is for {document['key']}, not {key}")
        return Stored(parse(document["content"]))
    except (FileNotFoundError, NotADirectoryError):
        return Stored(None)
    except (OSError, KeyError, ValueError, TypeError, AttributeError, RecursionError) as why:
        return Stored(None, f"{path} is not what trnpy writes ({type(why).__name__}: {why})")


def _text(path: Path) -> bytes:
    # Without O_NONBLOCK, opening a named pipe would wait for a writer.
    handle = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0))
    with os.fdopen(handle, "rb") as file:
        status = os.fstat(handle)
        if not stat.S_ISREG(status.st_mode):
            raise ValueError("no regular file")
        if status.st_size > LARGEST:
            raise ValueError(f"{status.st_size} bytes")
        return file.read(LARGEST)
