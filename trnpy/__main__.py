"""``python -m trnpy``; see ``trnpy._runner``."""

import sys

from trnpy._runner import main

if __name__ == "__main__":
    sys.exit(main())
