"""Command line: ``python -m conformance SUITE [--forced] [pytest arguments]``."""

from __future__ import annotations

import os
import sys

SMALL = "2"  # rows of a tile in forced runs: upstream's 3 x 3 matrices then have two panels


def main(arguments: list[str]) -> int:
    if arguments[:1] == ["nki"]:
        from conformance.nki import main as nki_main

        return int(nki_main(arguments[1:]))
    if arguments[:1] == ["faults"]:
        from conformance.faults import main as faults_main

        return faults_main(arguments[1:])
    if arguments[:1] == ["neuronx"]:
        from conformance.neuronx import main as neuronx_main

        return int(neuronx_main(arguments[1:]))
    if arguments and arguments[0] in ("array-api", "scikit-learn", "scipy-array-api"):
        from conformance.arrays import main as arrays_main

        return arrays_main(arguments[0], arguments[1:])
    # Before trnpy is imported, which reads the variable once.
    if "--small-tiles" in arguments or ("--forced" in arguments and "--full-tiles" not in arguments):
        os.environ.setdefault("TRNPY_TILE", SMALL)
    if arguments[:1] == ["mutate"] and any(argument.partition("=")[0] == "--random" for argument in arguments):
        from conformance._campaign import main as campaign_main

        return campaign_main(arguments[1:])
    if arguments[:1] == ["mutate"]:
        from conformance._mutate import main as mutate_main

        return mutate_main(arguments[1:])
    from conformance._run import main as run_main

    return run_main(arguments)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
