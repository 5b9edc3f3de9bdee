"""`python -m helpers.train PARAMETERS.json`: train one run without a notebook, alone or under torchrun."""

from helpers.train.job import train_from_shell

if __name__ == "__main__":
    train_from_shell()
