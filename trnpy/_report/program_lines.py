"""The line of the user's program behind a call: frames of installed libraries are skipped."""

from __future__ import annotations

import functools
import os
from types import FrameType

from trnpy._base.conventions import OWN

DIRECT = (*OWN, "numpy", "scipy")  # a call that these make is never shown as theirs
# Packages that pass calls on to NumPy and SciPy; they are skipped wherever they are installed.
DISPATCHERS = frozenset({"array_api_compat", "array_api_extra", "autoray", "cotengra", "decorator", "opt_einsum"})
INSTALLED = (f"{os.sep}site-packages{os.sep}", f"{os.sep}dist-packages{os.sep}")
STANDARD, HERE = (os.path.join(os.path.dirname(file), "") for file in (os.__file__, os.path.dirname(__file__)))
INTERACTIVE = ("<stdin>", "<string>", "<ipython", "<console>")  # names of code that was typed or given with -c


def is_direct(frame: FrameType) -> bool:
    """Whether the frame belongs to NumPy, SciPy or trnpy."""
    return str(frame.f_globals.get("__name__", "")).partition(".")[0] in DIRECT


def is_library(frame: FrameType) -> bool:
    """Whether the frame belongs to an installed library, a dispatcher or the standard library, not to the program.

    A module that is run, with ``-m`` too, is the program, wherever its file is.
    """
    name = str(frame.f_globals.get("__name__", ""))
    file = frame.f_code.co_filename
    if name.partition(".")[0] in DIRECT or name.partition(".")[0] in DISPATCHERS or file.startswith(HERE):
        return True
    return name != "__main__" and is_installed(file, frame.f_globals.get("__file__"))


@functools.lru_cache(maxsize=4096)
def is_installed(file: str, module_file: object) -> bool:
    """Whether a source file is installed. Generated code belongs to the file of its module, if that has one."""
    if file.startswith("<"):
        return is_installed(module_file, None) if isinstance(module_file, str) else not file.startswith(INTERACTIVE)
    return file.startswith(STANDARD) or any(folder in file for folder in INSTALLED)
