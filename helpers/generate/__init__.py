"""Room 05: a model becomes a writer.

settings        what can be asked of a text, and what comes back
sampling        filters from logits to the next token: temperature, top-k, top-p, penalties
constraints     acrostics, line lengths, rhymes, required and forbidden words
inference       the forward pass with a KV cache
detokenize      ids to text while it is being written; stop strings
batch           rows decoded together, each with its own settings
generate        one text, many, or a stream
beam            beam search
explain         each token's probability, what each filter removed, attention
memorization    which stretches stand in the training text
diversity       diversity and repetition over temperature and top-p
ctranslate      generation by CTranslate2 in int8
"""
