"""A launch that runs again with other values: only the arithmetic of its instructions, without the kernel's Python.

Tracing a kernel and checking its instructions takes 10 to 40 times as long as the arithmetic of small tiles.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from threading import Lock
from typing import Any

import numpy as np

from nkisim.chip.context import CURRENT
from nkisim.chip.dtypes import Array
from nkisim.chip.replicas import world
from nkisim.chip.tape import Tape
from nkisim.chip.tensor import NkiTensor
from nkisim.run.launch import Result, Simulation

Arrays = Sequence[Array | None]


class Program:
    """One recorded launch. ``again`` accepts arrays of the same shapes and dtypes, at most one call at a time."""

    def __init__(self, tape: Tape, arguments: Arrays) -> None:
        self._tape, self._arguments = tape, arguments
        self._notes = len(tape.run.notes)
        tape.run.instructions, tape.run.lives = [], {}  # the trace of the recorded launch has them
        self._lock = Lock()
        self.nbytes = tape.nbytes

    def again(self, arrays: Arrays) -> Any:
        """The outputs for other values, with the same ``places``; None if they break a rule, or in another thread.

        Run the launch as a whole then: it raises the error with the kernel's line, or gives its notes.
        """
        if not self._lock.acquire(blocking=False):
            return None
        run = self._tape.run
        token = CURRENT.set(run)
        try:
            for held, given in zip(self._arguments, arrays, strict=True):
                if held is not None and given is not None:
                    np.copyto(held, given)
            with np.errstate(all="ignore"):  # device engines raise no floating-point exceptions
                for step in self._tape.steps:
                    step()
            new = list(run.notes)[self._notes :]
            for note in new:
                del run.notes[note]
            return None if new else _copied(self._tape.returned)
        except Exception:  # the whole launch raises it again, with the kernel's line
            return None
        finally:
            CURRENT.reset(token)
            self._lock.release()


def record(simulation: Simulation, arrays: Arrays, parameters: Mapping[str, Any]) -> tuple[Result, Program | None]:
    """Run a launch on copies of its arrays; also the program to run again, or None if it depends on values.

    ``arrays`` are the positional arguments: arrays that the kernel does not write, and None.
    """
    shared = places(arrays)
    if shared is None or simulation.mode != "run" or simulation.rules or world().size > 1:
        return simulation.run(*arrays, **parameters), None
    copies = [None if a is None else np.array(a, order="C") for a in arrays]
    held = [copies[place] for place in shared]  # one array given twice is one array in the program, too
    tape = Tape()
    result = replace(simulation, tape=tape).run(*held, **parameters)
    if tape.run is None:  # a launch on two cores
        return result, None
    if tape.why:  # the kernel may have written its arguments, here the copies
        return simulation.run(*arrays, **parameters), None
    return replace(result, outputs=_copied(tape.returned)), Program(tape, held)


def places(arrays: Arrays) -> tuple[int, ...] | None:
    """For each array the position of the first one that is the same; None if two share a part of their memory."""
    found = []
    for i, a in enumerate(arrays):
        same = [j for j in range(i) if a is not None and _same(a, arrays[j])]
        if not same and a is not None and any(b is not None and np.may_share_memory(a, b) for b in arrays[:i]):
            return None
        found.append(same[0] if same else i)
    return tuple(found)


def _same(a: Array, b: Array | None) -> bool:
    if b is None or a.shape != b.shape or a.dtype != b.dtype or a.strides != b.strides:
        return False
    return bool(a.__array_interface__["data"][0] == b.__array_interface__["data"][0])


def _copied(returned: Any) -> Any:
    if isinstance(returned, (tuple, list)):
        return tuple(_copied(one) for one in returned)
    return returned.read().copy() if isinstance(returned, NkiTensor) else None
