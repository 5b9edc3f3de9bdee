"""The model: one GPT, which notebook 04 types, and which trains, writes and answers.

config       its shape, in the field's words; sizes and FLOPs computed from it
gpt          the model itself, in one file
kernels      parts of it in fewer passes over memory, for training on a CPU in half precision
cache        keys and values of texts that are being written
decoder      one more token in each row, in as few calls as possible; on a GPU as a CUDA graph
eight_bits   weights in a quarter of the bytes
huggingface  folders of `transformers`: a row for each family of models

Knows no data, no training loop and no text.
"""
