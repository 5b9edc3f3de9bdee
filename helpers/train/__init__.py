"""Room 04: windows become a model; `python -m helpers.train PARAMETERS.json` trains without a notebook.

settings     a run's settings: notebook 04's parameters, a comment per field
rules        what a 0 becomes: width, depth, dropout, batch, rate, epochs from text, time and machine
model        GPT-2, LLaMA-like models, mixture of experts: config, dropout, size, memory; weights of others
fused        RMSNorm, rotary attention and SwiGLU in fewer passes on a CPU; attention without a mask on a GPU
loss         cross-entropy in chunks over the vocabulary
optim        learning-rate schedule, gradient clipping, AdamW and Muon, which of them moves what
log          metrics.jsonl and TensorBoard; running means, loss spikes
checkpoint   checkpoints that are whole or absent; resume a run that was killed
distributed  inside each of several processes: ranks, DDP, FSDP
milestones   where a run is, how long it will be; validation, early stop, checkpoints and exports on the way
trainer      the training loop; Trainer.step is one update: gradient accumulation, a retry when memory runs out
plan         steps, time and memory before a run begins, from a measured update
job          one run: prepare its room, train in a thread, in several processes or from a shell; stop it
"""
