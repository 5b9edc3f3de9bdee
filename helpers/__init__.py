"""The shared logic of the six notebooks; README.md shows the house, each module says its one job."""
