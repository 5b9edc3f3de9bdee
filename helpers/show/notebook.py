"""Everything that a notebook shows, under one name: `from helpers.show import notebook as show`."""

import logging

# at its first import on a machine matplotlib lists the fonts; where that takes long it says so in the notebook
logging.getLogger("matplotlib.font_manager").setLevel(logging.ERROR)

# ruff: noqa: E402
from helpers.show.curves import loss_curve
from helpers.show.dashboard import watch
from helpers.show.experts import expert_load
from helpers.show.explain import attention, copied, explained, filters, grid
from helpers.show.figures import coverage, length_histogram, schedule, window_diagram, zipf
from helpers.show.history import samples_over_time, spikes
from helpers.show.metrics_file import attach, read_metrics
from helpers.show.panel import sampling_panel
from helpers.show.runs import compare, follow
from helpers.show.text import documents, labels, pieces, probabilities, samples, table

__all__ = [
    "attach",
    "attention",
    "compare",
    "copied",
    "coverage",
    "documents",
    "expert_load",
    "explained",
    "filters",
    "follow",
    "grid",
    "labels",
    "length_histogram",
    "loss_curve",
    "pieces",
    "probabilities",
    "read_metrics",
    "samples",
    "samples_over_time",
    "sampling_panel",
    "schedule",
    "spikes",
    "table",
    "watch",
    "window_diagram",
    "zipf",
]
