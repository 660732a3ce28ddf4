"""``python -m trnpy`` and the command ``trnpy``; see ``trnpy._cli.runner``."""

import sys


def script() -> int:
    """Run the command line, with nothing importable from where Python puts the command it starts.

    That is the current directory for ``python -m trnpy``, the directory of the script for ``trnpy``. The program gets
    what Python would have put first for it.
    """
    if not sys.flags.safe_path:
        del sys.path[0]
    from trnpy._cli.runner import main

    return main()


if __name__ == "__main__":
    sys.exit(script())
