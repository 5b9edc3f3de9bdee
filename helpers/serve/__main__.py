"""`python -m helpers.serve --run NAME`: serve a trained run over HTTP."""

import sys

from helpers.serve.server import main

if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:  # while the model is loaded, or a second time while the last texts are written
        sys.exit(130)
