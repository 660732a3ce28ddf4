"""``python -m trnpy`` and the command ``trnpy``; see ``trnpy._cli.runner``."""

import gc
import os
import sys

# OpenBLAS reads this when it is loaded: its threads sleep after 2^22 cycles without work, 1.6 ms, not after 2^28.
# Those of NumPy's OpenBLAS otherwise hold the processors that SciPy's needs (docs/baselines.md#threads-that-wait).
SLEEP = "OPENBLAS_THREAD_TIMEOUT", "22"


def script() -> int:
    """Run the command line, with nothing importable from where Python puts the command it starts.

    That is the current directory for ``python -m trnpy``, the directory of the script for ``trnpy``. The program gets
    what Python would have put first for it.
    """
    if not sys.flags.safe_path:
        del sys.path[0]
    os.environ.setdefault(*SLEEP)
    # The modules of NumPy and trnpy stay until the process ends. The collector looks at them neither while they are
    # loaded nor later (docs/baselines.md#what-the-runner-adds).
    gc.disable()
    from trnpy._cli.runner import main

    gc.freeze()
    gc.enable()
    return main()


if __name__ == "__main__":
    sys.exit(script())
