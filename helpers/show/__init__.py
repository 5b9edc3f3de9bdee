"""All that is for the eyes: figures, Chinese text, the training dashboard, the sampling panel.

Only notebooks import it, and it knows nothing of how a number came about. Figures are PNGs without Chinese (a fresh
machine has no such font); whatever shows Chinese is HTML, drawn by the browser. Every function displays and returns
None unless it says otherwise.
"""

import logging

# at its first import on a machine matplotlib lists the fonts; where that takes long it says so in the notebook
logging.getLogger("matplotlib.font_manager").setLevel(logging.ERROR)

from helpers.show.dashboard import read_metrics, watch  # noqa: E402
from helpers.show.figures import coverage, length_histogram, loss_curve, schedule, window_diagram, zipf  # noqa: E402
from helpers.show.panel import sampling_panel  # noqa: E402
from helpers.show.text import documents, labels, pieces, probabilities, samples, table  # noqa: E402

__all__ = [
    "coverage",
    "documents",
    "labels",
    "length_histogram",
    "loss_curve",
    "pieces",
    "probabilities",
    "read_metrics",
    "samples",
    "sampling_panel",
    "schedule",
    "table",
    "watch",
    "window_diagram",
    "zipf",
]
