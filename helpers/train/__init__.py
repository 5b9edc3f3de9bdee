"""Room 04: windows become a model; `python -m helpers.train PARAMETERS.json` trains without a notebook.

settings     a run's settings: notebook 04's parameters, a comment per field
rules        what a 0 becomes: width, depth, dropout, batch, rate, epochs from text, time and machine
initial      the model that a training begins with: fresh by the settings, or with weights of others
loss         cross-entropy in chunks over the vocabulary; what memory a training needs
optim        learning-rate schedule, gradient clipping, AdamW and Muon, which of them moves what
log          metrics.jsonl and TensorBoard; running means, loss spikes
checkpoint   checkpoints that are whole or absent; resume a run that was killed
distributed  inside each of several processes: ranks, DDP
milestones   where a run is, how long it will be; validation, early stop, checkpoints and exports on the way
trainer      the training loop; Trainer.step is one update: gradient accumulation, a retry when memory runs out
plan         steps, time and memory before a run begins, from a measured update
job          one run: prepare its room, train in a thread, in several processes or from a shell; stop it
"""
