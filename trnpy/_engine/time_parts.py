"""The modelled seconds of the device path, by what takes them."""

from __future__ import annotations

from typing import NamedTuple


class Parts(NamedTuple):
    """Their sum is the time of the path."""

    launch_s: float = 0.0
    send_s: float = 0.0  # over the link to the device
    fetch_s: float = 0.0  # and back
    to_digits_s: float = 0.0  # conversions of operands on the host
    from_digits_s: float = 0.0  # conversions and proofs of results on the host
    engine_s: float = 0.0
    host_steps_s: float = 0.0  # other work of the host, between products


NOTHING = Parts()
