"""Everything that notebooks show, under one name: `from helpers.show import notebook as show`.

It loads no torch, so that a notebook with only figures starts quickly.
"""

import logging
from typing import TYPE_CHECKING

# at its first import on a machine matplotlib lists the fonts; if that takes long, it says so in the notebook
logging.getLogger("matplotlib.font_manager").setLevel(logging.ERROR)

# ruff: noqa: E402, F401
from helpers.show.curves import curves, maps, panels
from helpers.show.dashboard import spikes, watch
from helpers.show.exercise import attempt, judge_stream, predict
from helpers.show.explain import attention, copied, explained, filters
from helpers.show.figures import length_histogram, zipf
from helpers.show.figures import share_covered as coverage
from helpers.show.lattice import grammar_path, lattice
from helpers.show.metrics_file import read_metrics
from helpers.show.svg import drawing
from helpers.show.text import documents, labels, pieces, probabilities, samples, table

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

    from helpers.model.gpt import GPT
    from helpers.show.panel import Box


def sampling_panel(model: "GPT", tokenizer: "PreTrainedTokenizerFast", prompt: str = "") -> "Box":
    """Return a panel to play with a model's sampling; display it as the last line of a cell.

    `model` and `tokenizer` as `generate.load` returns them.
    """
    from helpers.show.panel import Panel  # here, because it loads torch

    return Panel(model, tokenizer, prompt).box
