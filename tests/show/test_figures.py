"""Figures: small, the same bytes each time, and drawn also of nearly nothing."""

from collections import Counter

import pytest
from displays import full_rows, png_of

from helpers.show import curves, figures
from helpers.show import notebook as show


def draw_all() -> None:
    counts = Counter({f"w{i}": 5000 // (i + 1) for i in range(2000)})
    show.length_histogram([20, 30, 30, 45])
    show.length_histogram(i**2 for i in range(1, 500))
    show.zipf(counts)
    show.coverage(counts, vocab_size=500)
    figures.show_figure(curves.run_figure(full_rows(500), 0.95, {"unigram": 7.8, "bigram": 4.2}), "a run")
    show.maps({f"head {i}": [[1, 0], [0.5, 0.5]] for i in range(5)})


@pytest.mark.slow
def test_figures_are_small_and_the_same_twice(shown):
    draw_all()
    first = [output["data"] for output in shown]
    shown.clear()
    draw_all()
    assert [output["data"] for output in shown] == first
    for output in (output for output in shown if "image/png" in output["data"]):
        assert len(png_of(output)) < 60_000
        assert output["data"]["text/plain"] and "object at 0x" not in output["data"]["text/plain"]


def test_figures_of_nearly_nothing(shown):
    show.length_histogram([])
    show.length_histogram([7])
    for counts in (Counter(), Counter(a=1)):
        show.zipf(counts)
        show.coverage(counts, vocab_size=100)
    for rows in ([], [{"event": "step", "step": 1, "bits_per_char": float("nan")}]):
        figures.show_figure(curves.run_figure(rows, 1.0, {}), "nothing yet")
    pictures = [png_of(output) for output in shown if "image/png" in output["data"]]
    assert len(pictures) == 8
