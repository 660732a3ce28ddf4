"""The simulator's one exception; its message has kernel, source line and rule in one line."""

from __future__ import annotations

import contextlib
import os
import sys
from contextvars import ContextVar
from types import FrameType

KERNEL: ContextVar[str] = ContextVar("kernel", default="")
"""Name of the kernel that runs in this thread, for error messages."""

HERE = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep


class SimulatorError(Exception):
    """A kernel broke a documented rule or received unsupported arguments.

    ``kernel``, ``file`` and ``line`` come from the stack: the innermost frame outside the simulator is
    the kernel's statement. ``rule`` is a key of rules.RULES, or None if no rule applies.
    """

    def __init__(
        self,
        message: str,
        *,
        rule: int | None = None,
        kernel: str | None = None,
        file: str | None = None,
        line: int | None = None,
    ) -> None:
        if file is None or line is None:
            file, line = source_location()
        self.message = " ".join(message.split())
        self.rule = rule
        self.kernel = KERNEL.get() if kernel is None else kernel
        self.file = file
        self.line = line
        super().__init__(self.message)

    def __str__(self) -> str:
        rule = "" if self.rule is None else f" [rule {self.rule}]"
        if not self.line:  # of a whole file, which the message names
            return f"{self.message}{rule}"
        where = f"{os.path.basename(self.file)}:{self.line}"
        return f"{self.kernel or 'kernel'} ({where}): {self.message}{rule}"


class MissingName(SimulatorError, AttributeError):
    """A name that a module of nki lacks; as an AttributeError it makes ``hasattr`` return False."""


def source_location() -> tuple[str, int]:
    """File and line of the innermost frame outside the simulator and the context managers it uses."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_code.co_filename.startswith((HERE, contextlib.__file__)):
        frame = frame.f_back
    return ("", 0) if frame is None else (frame.f_code.co_filename, frame.f_lineno)
