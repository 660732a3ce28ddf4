"""``python -m trnpy`` and the command ``trnpy``; see ``trnpy._cli.runner``."""

import gc
import os
import sys

# OpenBLAS reads this variable when it is loaded: idle threads sleep after 2^22 cycles (1.6 ms) instead of 2^28.
# Otherwise waiting threads of NumPy's OpenBLAS keep SciPy's from running (docs/baselines.md#threads-that-wait).
SLEEP = "OPENBLAS_THREAD_TIMEOUT", "22"


def script() -> int:
    """Run the command line; modules beside the started program cannot be imported by mistake.

    Python puts the current directory first in sys.path for ``python -m trnpy``, and the script's directory for
    ``trnpy``. Both are removed; the program that is run gets the path that Python would give it.
    """
    if not sys.flags.safe_path:
        del sys.path[0]
    os.environ.setdefault(*SLEEP)
    # The modules of NumPy and trnpy live until the process ends, so the garbage collector skips them, both while they
    # are loaded and later (docs/baselines.md#what-the-runner-adds).
    gc.disable()
    from trnpy._cli.runner import main

    gc.freeze()
    gc.enable()
    return main()


if __name__ == "__main__":
    sys.exit(script())
