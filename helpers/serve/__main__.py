"""`python -m helpers.serve --run NAME`: serve a trained run over HTTP."""

import sys

from helpers.serve.server import main

if __name__ == "__main__":
    sys.exit(main())
