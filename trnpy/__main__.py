"""``python -m trnpy`` and the command ``trnpy``; see ``trnpy._runner``."""

import os
import sys

from trnpy._runner import main


def script() -> int:
    """The command ``trnpy``: it finds modules where ``python -m trnpy`` finds them, not in its own directory."""
    if not sys.flags.safe_path:
        sys.path[0] = os.getcwd()
    return main()


if __name__ == "__main__":
    sys.exit(main())
