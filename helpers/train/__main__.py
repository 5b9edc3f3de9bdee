"""`python -m helpers.train PARAMETERS.json`: train one run without a notebook, alone or under torchrun."""

import signal

if __name__ == "__main__":  # while torch loads, Ctrl-C ends the process without a traceback
    signal.signal(signal.SIGINT, signal.SIG_DFL)

from helpers.train.job import train_from_shell

if __name__ == "__main__":
    train_from_shell()
