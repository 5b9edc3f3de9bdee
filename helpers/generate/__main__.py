"""`python -m helpers.generate --run NAME`: continue texts in a terminal, or converse."""

import sys

from helpers.generate.terminal import terminal_main

if __name__ == "__main__":
    sys.exit(terminal_main())
