"""Room 01: raw text of any form and encoding becomes clean, distinct documents, split and written to shards.

In the order in which a text passes through them:

    settings       what can be set
    download       download a public corpus, an address or a data set of the Hub
    archives       files and members of archives, which kinds are read, and their bytes, unpacked
    find           the files that a corpus is made from
    encodings      charset detection and strict decoding
    mojibake       text that was decoded with the wrong charset: its signs, and its repair
    plain_text     lines and documents of plain text
    tables         the rows of CSV, TSV and Parquet
    records        what a record of JSON or a table says: a text, fields of a template, a conversation
    conversations  questions and answers in turn, in all their forms; documents that know who said what
    formats        which of these reads a file; JSON, PDF, Word, EPUB, web pages
    cleaning       the cleaning rules, each with a name
    dedup          near duplicates by MinHash; which advertisements and page numbers repeat across the corpus
    partition      the map step: slices of files become cleaned parts, in parallel
    split          the reduce step: deduplication, train/validation split, shards
    report         what happened to each file and to the whole corpus
    build          all of it in one call
    shards         reading the finished corpus
    built_in       the course's own corpus, drawn from a grammar with a known entropy
"""
