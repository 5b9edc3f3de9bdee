"""Room 04: windows become a model; `python -m helpers.train PARAMETERS.json` trains without a notebook.

settings     a run's settings: notebook 04's parameters, a comment per field
rules        what a 0 becomes: width, depth, dropout, batch, rate, epochs from text, time and machine
model        GPT-2, LLaMA-like models, mixture of experts: config, size, memory
convert      pytorch_model.bin of others becomes safetensors, read with weights_only
dropout      dropout on the residual stream, with cheap masks
attention    causal attention without a mask, for windows of one text each
fused        RMSNorm, rotary attention and SwiGLU in fewer passes, for a CPU in half precision
loss         cross-entropy in chunks over the vocabulary
optim        learning-rate schedule, gradient clipping, which optimizer moves what
muon         the Muon optimizer: Newton–Schulz, momentum
state        where a run is, how long it will be, when a loss spikes
log          metrics.jsonl and TensorBoard
checkpoint   checkpoints that are whole or absent; resume a run that was killed
distributed  inside each of several processes: ranks, DDP, FSDP
trainer      the training loop; Trainer.step is one update: gradient accumulation, a retry when memory runs out
throughput   how fast this machine trains a model: a measured update
plan         steps, time and memory before a run begins
job          one run: prepare its room, train in a thread, watch, stop
launch       start several processes: torchrun, from a notebook or a shell
"""
