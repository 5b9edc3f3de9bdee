"""Runs the notebooks unattended: `python -m helpers.run` is the command line.

parameters  which notebooks, with which parameters: defaults, presets, the command line; lessons or none
verify      do all files of a run fit together, and has a stage finished already?
execute     one notebook after the other, each in a kernel of its own
sweep       a run for each combination of values, as trials of an Optuna study
"""
