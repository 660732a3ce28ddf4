"""A process beside each rank: it ends a rank that is stopped or waits too long, and says why. It imports no package.

A thread would not do: some functions of SciPy keep Python's lock for as long as they compute.
"""

import contextlib
import os
import select
import signal
import sys
import time
from pathlib import Path

PAGE = 1024  # bytes: process, state, time of its last change, and the last call with its line
EVERY_S = 0.1
STOPPED_S = 2.0  # a rank may be stopped for so long
ENDED = "ended"


def page(folder: str, rank: int) -> Path:
    return Path(folder, f"{rank}.page")


def read(folder: str, rank: int) -> tuple[int, str, float, str] | None:
    """Process, state, time of the last change, and the last call; None if the rank is not on this host."""
    try:
        fields = page(folder, rank).read_bytes().decode(errors="replace").strip(" \0").split("\n")
        return int(fields[0]), fields[1], float(fields[2]), fields[3] if len(fields) > 3 else ""
    except (OSError, ValueError, IndexError):
        return None


def report(folder: str, line: str) -> None:
    """Print why the run ends, once for the whole host: the first rank with something to say is the cause."""
    try:
        os.close(os.open(os.path.join(folder, "reported"), os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        return
    print(f"trnpy.dist: {line}", file=sys.stderr, flush=True)


def ended(rank: int, size: int, why: str, told: str) -> str:
    last = f"its last call was {told}" if told else "it had not called trnpy.dist"
    return f"rank {rank} of {size} ended the run: {why}; {last}"


def stopped(process: int) -> bool:
    """Whether a process is stopped by a signal."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] in "Tt"
    except OSError:
        return False


def late(folder: str, rank: int, size: int) -> str:
    """The ranks of this host that do not wait, and what they did last."""
    pages = {other: read(folder, other) for other in range(size) if other != rank}
    said = [f"rank {n}, whose last call was {p[3] or 'none'}" for n, p in pages.items() if p and p[1] != "waits"]
    return "; ".join(said) or "a rank of another host"


def watch(folder: str, rank: int, size: int, timeout: float, parent: int) -> None:
    """Watch ``parent``, the process that started this one, until it ends."""
    halted = 0.0  # seconds for which the rank has been stopped
    while True:
        select.select([sys.stdin], [], [], EVERY_S)  # or until the rank ends, and with it the other side of the pipe
        found = read(folder, rank)
        _, state, since, told = found or (0, "", 0.0, "")
        if state == ENDED:
            return
        if os.getppid() != parent:
            report(folder, ended(rank, size, "its process was killed (the first one noticed), perhaps for lack of memory", told))
            return
        # If all ranks are stopped, someone has suspended the program, and may go on with it.
        others = [p[0] for n in range(size) if n != rank and (p := read(folder, n)) is not None]
        halted = halted + EVERY_S if stopped(parent) and not all(map(stopped, others)) else 0.0
        why = ""
        if halted > STOPPED_S:
            why = f"its process {parent} is stopped by a signal"
        elif timeout and state == "waits" and time.monotonic() - since > timeout and read(folder, rank) == found:
            why = f"it waited {timeout:g} s for {late(folder, rank, size)}"
        if why:
            report(folder, ended(rank, size, why, told))
            os.kill(parent, signal.SIGKILL)  # the launcher ends all others
            return


def main() -> None:
    folder, rank, size, timeout, parent = sys.argv[1:]
    try:
        watch(folder, int(rank), int(size), float(timeout), int(parent))
    finally:
        with contextlib.suppress(OSError):
            page(folder, int(rank)).unlink()
        with contextlib.suppress(OSError):
            if not any(Path(folder).glob("*.page")):
                Path(folder, "reported").unlink(missing_ok=True)
                os.rmdir(folder)


if __name__ == "__main__":
    main()
