"""A process beside each rank: it ends a rank that is stopped or waits too long, and prints why. Imports no package.

It is not a thread because some functions of SciPy hold Python's lock while they compute.
"""

import contextlib
import ctypes
import os
import select
import signal
import struct
import sys
import time
from pathlib import Path

PAGE = 1024  # bytes: process, state, time of its last change, and the last call with its line
EVERY_S = 0.1
STOPPED_S = 2.0  # a rank may be stopped for this time, and a launcher may take it to start the next rank
LOOK_S = 0.5  # interval between checks of the ranks that have not begun
PROXIES = ("hydra_pmi_proxy", "mpiexec", "mpirun", "orted", "prted", "orterun", "prterun", "slurmstepd")
ENDED = "ended"
CLOSE_WRITE = 8  # IN_CLOSE_WRITE of inotify(7), whose events have no name if a file is watched
EVENT = struct.Struct("iIII")  # number of the watch first
Page = tuple[int, str, float, str]  # process, state, time of the last change, and the last call


def page(folder: str, rank: int) -> Path:
    return Path(folder, f"{rank}.page")


def report(folder: str, line: str) -> None:
    """Print why the run ends, once for the whole host: the first rank to report is the cause."""
    try:
        os.close(os.open(os.path.join(folder, "reported"), os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        return
    print(f"trnpy.dist: {line}", file=sys.stderr, flush=True)


def ended(rank: int, size: int, why: str, told: str) -> str:
    last = f"its last call was {told}" if told else "it had not called trnpy.dist"
    return f"rank {rank} of {size} ended the run: {why}; {last}"


def status(process: int) -> tuple[str, str, int]:
    """The name of a process, the letter of its state, and its parent; "X" if it is gone, or the system is not Linux."""
    try:
        name, _, rest = Path(f"/proc/{process}/stat").read_text().partition("(")[2].rpartition(")")
    except OSError:
        return "", "X", 0
    state, parent, *_ = rest.split()
    return name, state, int(parent)


def stopped(process: int) -> bool:
    """Whether a process is stopped by a signal."""
    return status(process)[1] in "Tt"


class Pages:
    """The pages of the ranks of this host; their files may be removed meanwhile."""

    def __init__(self, folder: str, size: int) -> None:
        self._files: dict[int, int] = {}
        for rank in range(size):
            with contextlib.suppress(OSError):  # a rank of another host
                self._files[rank] = os.open(page(folder, rank), os.O_RDONLY)

    def ranks(self) -> list[int]:
        return [*self._files]

    def read(self, rank: int) -> Page:
        fields = os.pread(self._files[rank], PAGE, 0).decode(errors="replace").strip(" \0").split("\n")
        return int(fields[0]), fields[1], float(fields[2]), fields[3] if len(fields) > 3 else ""


class Closings:
    """The order in which the ranks of this host have closed their pages, from Linux's inotify.

    A launcher kills all ranks when the first one ends. On a busy host they may end before it has, but its page is
    closed before the launcher can detect the end (``Watched.show``).
    """

    def __init__(self, folder: str, ranks: list[int]) -> None:
        library = ctypes.CDLL(None)
        self._file, self._ranks = -1, dict[int, int]()
        if hasattr(library, "inotify_init1"):
            self._file = library.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
            add = library.inotify_add_watch
            self._ranks = {add(self._file, os.fsencode(page(folder, rank)), CLOSE_WRITE): rank for rank in ranks}

    def read(self) -> list[int]:
        """The ranks that have closed their pages since the last call."""
        try:
            found = os.read(self._file, len(self._ranks) * 8 * EVENT.size)
        except OSError:  # no events, or no inotify
            return []
        return [self._ranks[number] for number, *_ in EVENT.iter_unpack(found) if number in self._ranks]


class Deaths:
    """The processes that have ended.

    Only Linux has pidfds; on other systems only the process that started this one is watched.
    """

    def __init__(self, parent: int) -> None:
        self._parent, self._opened = parent, getattr(os, "pidfd_open", None)
        self._watched: dict[int, int] = {}  # process of each pidfd
        self._gone: list[int] = []  # processes that had ended before they were watched
        if self._opened is not None:
            self._events = select.epoll()
            self._events.register(sys.stdin, select.EPOLLIN)
        self.watch(parent)

    def watch(self, process: int) -> None:
        if self._opened is None or process in self._watched.values():
            return
        try:
            file = self._opened(process)
        except ProcessLookupError:
            self._gone.append(process)
            return
        self._watched[file] = process
        self._events.register(file, select.EPOLLIN)

    def wait(self) -> list[int]:
        """The processes that end within EVERY_S; returns as soon as the rank closes its side of the pipe."""
        if self._opened is None:
            select.select([sys.stdin], [], [], EVERY_S)
            return [self._parent] * (os.getppid() != self._parent)
        found, self._gone = self._gone, []
        for file, _ in self._events.poll(EVERY_S):
            self._events.unregister(file)
            if file in self._watched:
                found.append(self._watched[file])
        return found


def late(pages: Pages, rank: int) -> str:
    """The ranks of this host that do not wait, and the last call of each."""
    others = {other: pages.read(other) for other in pages.ranks() if other != rank}
    said = [f"rank {n}, whose last call was {p[3] or 'none'}" for n, p in others.items() if p[1] != "waits"]
    return "; ".join(said) or "a rank of another host"


def watch(folder: str, rank: int, size: int, timeout: float, parent: int, deaths: Deaths) -> None:
    """Watch all ranks of this host until ``parent``, the process of ``rank``, ends."""
    pages = Pages(folder, size)
    ranks = {pages.read(other)[0]: other for other in pages.ranks()}
    for process in ranks:
        deaths.watch(process)
    closings = Closings(folder, pages.ranks())
    print("watching", flush=True)  # the rank waits for this line: the order in which earlier processes died is unknown
    halted = 0.0  # seconds for which the rank has been stopped
    while True:
        dead = deaths.wait()
        for other in [*closings.read(), *(ranks[process] for process in dead)] if dead else ():
            _, state, _, told = pages.read(other)
            if state != ENDED:
                why = "its process was killed, perhaps for lack of memory"
                report(folder, ended(other, size, why, told))
                with contextlib.suppress(ProcessLookupError):
                    os.kill(parent, signal.SIGKILL)  # in case the launcher does not
                return
        _, state, since, told = now = pages.read(rank)
        if state == ENDED or parent in dead:
            return
        # If all ranks are stopped, a user has suspended the program and may resume it.
        others = [process for process in ranks if process != parent]
        halted = halted + EVERY_S if stopped(parent) and not all(map(stopped, others)) else 0.0
        why = ""
        if halted > STOPPED_S:
            why = f"its process {parent} is stopped by a signal"
        elif timeout and state == "waits" and time.monotonic() - since > timeout and pages.read(rank) == now:
            why = f"it waited {timeout:g} s for {late(pages, rank)}"
        if why:
            report(folder, ended(rank, size, why, told))
            os.kill(parent, signal.SIGKILL)  # the launcher ends all others
            return


class Start:
    """The ranks of this host before all have met: MPI waits indefinitely for one that has ended, stopped or hung."""

    def __init__(self, rank: int, size: int, on_host: int, variable: str, timeout: float, line: str) -> None:
        self._process, self._size, self._on_host, self._variable = rank, size, on_host, variable
        self._timeout, self._line, self._since = timeout, line, time.monotonic()
        self._launcher, found = 0, rank
        while found > 1 and not self._launcher:
            name, _, parent = status(found)
            self._launcher, found = (found if name.startswith(PROXIES) else 0), parent

    def wait(self) -> str:
        """The text that the rank writes when all have met. If they cannot meet, end this rank and return ""."""
        before, since = "", 0.0
        while not select.select([sys.stdin], [], [], LOOK_S)[0]:
            why, now = self._look(), time.monotonic()
            if why != before:
                before, since = why, now
            elif why and now - since > STOPPED_S:
                self._end(why)
                return ""
        return sys.stdin.readline()

    def _look(self) -> str:
        """Why the ranks cannot meet, as a message that names the rank that is the cause; "" if they still may."""
        mine = os.environ.get(self._variable, "?")
        waits = f"rank {mine} waits for it in trnpy.dist.comm at {self._line}"
        ranks = self._ranks()
        if mine not in ranks:  # the launcher is unknown
            return ""
        halted = [rank for rank, process in ranks.items() if stopped(process)]
        if len(ranks) < self._on_host:
            gone = {*map(str, range(self._size))} - {*ranks} if self._size == self._on_host else {"of this host"}
            return f"rank {', '.join(sorted(gone))} of {self._size} ended the run: its process has ended; {waits}"
        if halted and len(halted) < len(ranks):
            return f"rank {halted[0]} of {self._size} ended the run: its process is stopped by a signal; {waits}"
        if self._timeout and time.monotonic() - self._since > self._timeout - STOPPED_S:
            why = f"it waited {self._timeout:g} s for ranks that have not called trnpy.dist.comm"
            return f"rank {mine} of {self._size} ended the run: {why}, as it did at {self._line}"
        return ""

    def _ranks(self) -> dict[str, int]:
        """The processes of the launcher that have not ended, by rank."""
        found = {}
        for process in filter(str.isdigit, os.listdir("/proc")) if self._launcher else ():
            _, state, parent = status(int(process))
            if parent == self._launcher and state not in "ZX":
                with contextlib.suppress(OSError):
                    values = Path(f"/proc/{process}/environ").read_text(errors="replace").split("\0")
                    found.update(
                        {x.partition("=")[2]: int(process) for x in values if x.startswith(f"{self._variable}=")}
                    )
        return found

    def _end(self, why: str) -> None:
        """End this rank, and so all ranks; the first watcher of the host, which holds a name, prints why."""
        import socket  # imported late: it takes longer than the rest of the start

        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as name, contextlib.suppress(OSError):
            name.bind(f"\0trnpy-{self._launcher}")
            print(f"trnpy.dist: {why}", file=sys.stderr, flush=True)
            os.kill(self._process, signal.SIGKILL)
            time.sleep(2 * LOOK_S)
        with contextlib.suppress(ProcessLookupError):
            os.kill(self._process, signal.SIGKILL)


def main() -> None:
    parent, size, on_host, variable, timeout, line = sys.argv[1:]
    deaths = Deaths(int(parent))
    start = Start(int(parent), int(size), int(on_host), variable, float(timeout), line)
    told = start.wait().split("\n")[0].split("\t")  # once all ranks have pages
    if len(told) != 3:
        return  # the rank has ended
    folder, rank, size = told
    try:
        watch(folder, int(rank), int(size), float(timeout), int(parent), deaths)
    finally:
        with contextlib.suppress(OSError):
            page(folder, int(rank)).unlink()
        with contextlib.suppress(OSError):
            if not any(Path(folder).glob("*.page")):
                Path(folder, "reported").unlink(missing_ok=True)
                os.rmdir(folder)


if __name__ == "__main__":
    main()
