"""Everything that is for the eyes: figures, tables, dashboards, panels; only notebooks import it.

Figures are PNGs without Chinese (a fresh machine has no such font); whatever shows Chinese is HTML or SVG, drawn by
the browser. All of it says the same where styles are stripped, as on GitHub, and in plain text. Every function displays
its result and returns None unless its docstring says otherwise.

    notebook        what notebooks call: show.table, show.zipf, show.watch, …
    figures         the style of figures; lengths, Zipf's law, coverage, windows
    svg             boxes, words and arrows as SVG text; the drawings of notebooks/images
    lattice         a text's lattice of pieces, merges of BPE, a path through the grammar
    text            documents, tokens, tables, probabilities, labels as HTML
    metrics_file    a run's metrics.jsonl: read while it grows, as arrays, in words
    curves          a run's learning rate, loss, panels and experts; curves of any numbers
    dashboard       a run watched live, with a Stop button; its samples and loss spikes
    explain         probabilities in colours, filters, copied stretches, diversity, attention of a text
    panel           sliders for sampling
    exercise        a reader's guess compared with the answer, a function with the course's own; a stream judged
"""
