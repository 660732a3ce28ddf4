"""``python -m nkisim``; see ``nkisim.cli``."""

import sys

from nkisim.cli import main

if __name__ == "__main__":
    sys.exit(main())
