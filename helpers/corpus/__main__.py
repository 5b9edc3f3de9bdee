"""`python -m helpers.corpus --run NAME --json FILE`: write a run's documents as one JSON list."""

import sys

from helpers.corpus.export import main

if __name__ == "__main__":
    sys.exit(main())
