"""The modelled seconds of the device path, by component."""

from __future__ import annotations

from typing import NamedTuple


class Parts(NamedTuple):
    """Their sum is the time of the path."""

    launch_s: float = 0.0
    send_s: float = 0.0  # transfers to the device
    fetch_s: float = 0.0  # transfers from the device
    to_digits_s: float = 0.0  # conversions of operands on the host
    from_digits_s: float = 0.0  # conversions and checks of results on the host
    engine_s: float = 0.0
    host_steps_s: float = 0.0  # other work of the host, between products


NOTHING = Parts()
