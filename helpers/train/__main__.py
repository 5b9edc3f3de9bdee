"""`python -m helpers.train PARAMETERS.json`: train one run without a notebook, alone or under torchrun."""

from helpers.train.job import main

if __name__ == "__main__":
    main()
