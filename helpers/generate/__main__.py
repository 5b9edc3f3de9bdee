"""`python -m helpers.generate --run NAME`: continue texts in a terminal, or score those of a file."""

import sys

from helpers.generate.terminal import main

if __name__ == "__main__":
    sys.exit(main())
