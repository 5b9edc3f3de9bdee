"""All that is for the eyes: figures, Chinese text, the training dashboard, the sampling panel.

Only notebooks import it, and it knows nothing of how a number came about. Figures are PNGs without Chinese (a fresh
machine has no such font); whatever shows Chinese is HTML, drawn by the browser. Every function displays and returns
None unless it says otherwise.
"""

import logging

# at its first import on a machine matplotlib lists the fonts; where that takes long it says so in the notebook
logging.getLogger("matplotlib.font_manager").setLevel(logging.ERROR)

from helpers.show.curves import loss_curve  # noqa: E402
from helpers.show.dashboard import watch  # noqa: E402
from helpers.show.experts import expert_load  # noqa: E402
from helpers.show.figures import coverage, length_histogram, schedule, window_diagram, zipf  # noqa: E402
from helpers.show.history import samples_over_time, spikes  # noqa: E402
from helpers.show.panel import sampling_panel  # noqa: E402
from helpers.show.record import attach, read_metrics  # noqa: E402
from helpers.show.runs import compare, follow  # noqa: E402
from helpers.show.seethrough import attention, copied, explained, filters, grid  # noqa: E402
from helpers.show.text import documents, labels, pieces, probabilities, samples, table  # noqa: E402

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
