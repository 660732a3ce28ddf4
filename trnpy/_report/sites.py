"""The lines of the program that make calls, found from frames and remembered."""

from __future__ import annotations

from types import CodeType, FrameType
from typing import TYPE_CHECKING

from trnpy._report.files import source
from trnpy._report.program_lines import is_direct, is_library
from trnpy._report.tally import Tally

if TYPE_CHECKING:
    from trnpy._report.reasons import Decision

SITES = 10_000  # lines of the program with counters of their own; further lines, of generated code, share one entry
UNKNOWN = ("", 0)
PROGRAM, LIBRARY, SKIPPED = range(3)  # kinds of sites: SKIPPED ones, of NumPy, SciPy and trnpy, are never named


class Site:
    """A call site, with its last decision and the tally of this decision.

    ``through`` is the line of a library, as ``file:line``, through which the program's line made the call.
    """

    __slots__ = ("code", "decision", "file", "kind", "line", "tally", "through")

    def __init__(self, code: CodeType | None, file: str, line: int, kind: int, through: str = "") -> None:
        self.code = code  # kept alive, so that no other code object gets its id
        self.file, self.line, self.kind, self.through = file, line, kind, through
        self.decision: Decision | None = None
        self.tally = Tally()


class Sites:
    """Sites by code object and instruction."""

    def __init__(self) -> None:
        self.known: dict[tuple[int, int], Site] = {}  # key: id of the code object, and instruction
        self._joined: dict[tuple[Site, Site], Site] = {}  # key: the program's line and the library's
        self.elsewhere = Site(None, *UNKNOWN, PROGRAM)

    def of(self, frame: FrameType | None) -> Site:
        """The line of the program that made a call, and the library's line through which it did, if there is one.

        A thread of a library has no line of the program; its calls belong to the library's line.
        """
        through: Site | None = None
        while frame is not None:
            try:
                site = self.known[id(frame.f_code), frame.f_lasti]
            except KeyError:
                site = self._resolve(frame)
            if site.kind == PROGRAM:
                return site if through is None else self._join(site, through)
            if site.kind == LIBRARY and through is None:
                through = site
            frame = frame.f_back
        return through or self.elsewhere

    def _join(self, site: Site, through: Site) -> Site:
        joined = self._joined.get((site, through))
        if joined is None:
            joined = Site(site.code, site.file, site.line, PROGRAM, f"{through.file}:{through.line}")
            if len(self._joined) < SITES:
                self._joined[site, through] = joined
        return joined

    def _resolve(self, frame: FrameType) -> Site:
        code = frame.f_code
        kind = SKIPPED if is_direct(frame) else LIBRARY if is_library(frame) else PROGRAM
        site = Site(code, source(code.co_filename), frame.f_lineno, kind)
        if len(self.known) < SITES:  # more are not kept, because code generated in a loop would fill memory
            self.known[id(code), frame.f_lasti] = site
        return site
