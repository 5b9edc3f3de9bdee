"""Runs the notebooks unattended: `python -m helpers.run` is the command line.

parameters    which notebooks, with which parameters: defaults, presets, the command line
model_config  GPT-2's model_config.json as a preset
old_names     what other tutorials call a parameter, and its name here
unchanged     has a stage finished already, with the same parameters, inputs and notebook?
execute       one notebook after the other, each in a kernel of its own
watch         what a stage is doing while it runs
verify        do all files of a run still fit together?
grid          a sweep file: combinations of values, and the numbers of their runs
share         one room for several runs
halving       which runs of a sweep end early: successive halving
sweep         the runs of a sweep, one after the other or one for each GPU
results       a sweep's table, and how much each parameter mattered
refresh       fresh outputs into notebooks/ itself, to be committed
"""
