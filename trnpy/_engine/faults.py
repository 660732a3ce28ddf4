"""How an engine says that it cannot: it refuses operands, or fails until it rests."""

from __future__ import annotations

from dataclasses import dataclass

FAULTS_BEFORE_REST = 3  # consecutive device errors after which calls stay on the host


class Refused(Exception):
    """The engine has no product for these operands; the phrase says why, ``accuracy`` whether it is the values."""

    def __init__(self, why: str, accuracy: bool = False) -> None:
        super().__init__(why)
        self.accuracy = accuracy


@dataclass(slots=True)
class Health:
    """The circuit breaker of one engine: open after repeated faults, so that calls stop trying."""

    faults: int = 0

    @property
    def open(self) -> bool:
        return self.faults >= FAULTS_BEFORE_REST
