"""The commands ``python -m trnpy lint`` and ``python -m trnpy simulate``, which run nkisim's."""

from __future__ import annotations

from nkisim import cli


def main(argv: list[str]) -> int:
    """Run the command line of nkisim; see ``nkisim.cli.main``."""
    return cli.main(argv, prog="python -m trnpy")
