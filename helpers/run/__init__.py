"""Runs the notebooks unattended: `python -m helpers.run` is the command line.

parameters  which notebooks, with which parameters: defaults, presets, the command line
unchanged   has a stage finished already, with the same parameters, inputs and notebook?
execute     one notebook after the other, each in a kernel of its own
verify      do all files of a run still fit together?
refresh     fresh outputs into notebooks/ itself, to be committed
"""
