"""Runs the notebooks unattended: `python -m helpers.run` is the command line.

parameters  which notebooks, with which parameters: defaults, presets, the command line; lessons or none
finished    has a stage finished already, so that it need not run again?
execute     one notebook after the other, each in a kernel of its own
sweep       a run for each combination of values, as trials of an Optuna study
"""
