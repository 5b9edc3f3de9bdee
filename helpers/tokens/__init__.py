"""Room 03: documents become token shards, shards become windows, windows become batches.

shards   encoding to flat files of ids, which are memory-mapped later; in parallel, balanced by tokens
windows  memory-mapped shards as windows with labels: packing, padding, the order of an epoch
ngrams   n-gram models of tokens: baselines (loss, perplexity) that the model must beat
"""
