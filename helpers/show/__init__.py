"""Everything that is for the eyes; only notebooks import it, and it knows nothing of how a number came about.

Figures are PNGs without Chinese (a fresh machine has no such font); whatever shows Chinese is HTML, drawn by the
browser. Every function displays and returns None unless it says otherwise.

    notebook        what notebooks call: show.table, show.zipf, show.watch, …
    figures         the look of figures; lengths, Zipf's law, schedules, windows
    text            documents, tokens, tables, probabilities as HTML
    metrics_file    metrics.jsonl of a run, read while it grows
    series          its rows as curves
    curves          loss curves
    experts         the load of a mixture's experts
    history         samples and loss spikes over a run
    runs            several runs in one figure
    dashboard       a run watched live, with a Stop button
    explain         probability, filters, attention, copied stretches of a text
    panel           sliders for sampling
"""
