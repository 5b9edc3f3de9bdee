"""Room 02: documents become a vocabulary and a tokenizer that loses nothing.

segment_cache   segmented lines, remembered between runs
words           word segmentation (thulac, rjieba), word counts, the word list, coverage
word_file       an existing word list: line n becomes token id n
tokenizer       tokenizers from words (a Unigram model), characters, BPE or bytes; encode and decode
chat            chat templates: a conversation becomes ids, its answers marked
choice          which kind of tokens and what vocabulary size suit a corpus
"""
