"""Room 05: a model becomes a writer.

settings        the sampling settings and their ranges; samples, chunks, token log-probabilities
sampling        filters from logits to the next token: temperature, top-k, top-p, repetition penalty
constraints     constrained decoding: acrostics, line lengths, rhymes
detokenize      ids to text while it is being written; stop strings
batch           rows decoded together, each with its own settings; the sliding window
generate        load a model; write one text, many, or a stream
dialogue        a conversation becomes ids that leave room for an answer; answers to many at once
terminal        `python -m helpers.generate`: continue a text in a terminal, or converse
gguf            a model and its tokenizer in llama.cpp's format
explain         bits per character, each token's probability, what each filter removed, attention
surprisal       levels of probability: the scale of colours of notebooks and page
memorization    which stretches occur verbatim in the training text; diversity
"""
