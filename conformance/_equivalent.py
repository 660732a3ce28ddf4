"""Mutations that change no result, by what they change, and why no test can kill them.

A reason that begins with "speed: " is of one that changes the time only.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

EQUIVALENT: Mapping[str, str] = MappingProxyType({})
