"""Runs the notebooks unattended: `python -m helpers.run` is the command line.

parameters  which notebooks, with which parameters: defaults, presets, the command line; lessons or none
execute     one notebook after the other, each in a kernel of its own, unless it has finished already
sweep       a run for each combination of values, as trials of an Optuna study
"""
